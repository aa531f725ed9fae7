"""What must fit together at level L2 (kernel dumps), which differs by framework."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from typing import Any

from capture.config_file import Settings
from capture.config_values import DataMode
from capture.errors import CaptureError
from capture.kernel.target import REGEX, looks_like_api, parse_target

__all__ = ["check_kernels", "note_without_kernels"]

_API_FORM = "such as Functional.linear.0.forward or Mint.add.2.backward"
# MindSpore refuses anything else while it compiles a graph, which would end the training.
_GRAPH_PATH = re.compile(r"[A-Za-z0-9_/-]+")
_ONLY_L2 = {
    "file_format": "concerns kernel dumps (level L2) only",
    "device": "concerns kernel dumps (level L2) of static graphs only",
}


def note_without_kernels(values: dict[str, Any], found: Settings, defaults: Mapping[str, Any]) -> None:
    """At another level, what only kernel dumps know has no effect, which is said.

    Raises
    ------
    CaptureError
        A list of statistics: others would be recorded than were asked for.
    """
    for name, reason in _ONLY_L2.items():
        if values[name] != defaults[name]:
            found.notes.append(f"{found.source(name)}: {name}: {reason}")
    if (values["storage"] or {}).get("kernels", "keep") != "keep":
        found.notes.append(f"{found.source('storage')}: storage: kernels: concerns kernel dumps (level L2) only")
    chosen = values["summary_mode"]
    if isinstance(chosen, tuple):
        reason = "is none of statistics, md5; a list is for kernel dumps (level L2) of static graphs"
        raise CaptureError(f"{found.source('summary_mode')}: summary_mode: {list(chosen)} {reason}")


def check_kernels(values: dict[str, Any], found: Settings, framework: str) -> None:
    """Refuse what no kernel dump can follow, and note what it will not.

    Raises
    ------
    CaptureError
        The message names the file and the key.
    """

    def refuse(key: str, reason: str) -> CaptureError:
        return CaptureError(f"{found.source(key)}: {key}: {reason}")

    if values["task"] == "structure":
        raise refuse("level", "L2 dumps kernels with their values; task structure records none, use task tensor")
    if values["scope"]:
        raise refuse("scope", "level L2 has no scope; name what is wanted in list")
    _drop(values, found, "tensor_list", ())
    if framework == "mindspore" and not any(looks_like_api(name) for name in values["list"]):
        _check_graph(values, refuse)
    else:
        _check_api(values, found, refuse)


def _drop(values: dict[str, Any], found: Settings, name: str, default: Any) -> None:
    if values[name] != default:
        found.notes.append(f"{found.source(name)}: {name}: has no effect at level L2")
        values[name] = default


def _check_api(values: dict[str, Any], found: Settings, refuse: Callable[[str, str], CaptureError]) -> None:
    """The kernels of one API."""
    names = values["list"]
    if values["task"] != "tensor":
        raise refuse("task", f"level L2 dumps the data of kernels; use task tensor, not {values['task']}")
    if len(names) != 1:
        raise refuse("list", f"{list(names)!r}: level L2 needs exactly one entry name of an API, {_API_FORM}")
    if parse_target(names[0]) is None:
        raise refuse("list", f"{names[0]!r} is no entry name of an API, {_API_FORM}")
    if not (values["data_mode"].forward and values["data_mode"].backward):
        found.notes.append(
            f"{found.source('data_mode')}: data_mode: forward and backward have no effect at level L2: list says which"
        )
    _drop(values, found, "summary_mode", "statistics")
    _drop(values, found, "device", "host")
    _drop(values, found, "file_format", "npy")


def _check_graph(values: dict[str, Any], refuse: Callable[[str, str], CaptureError]) -> None:
    """The kernels of static graphs of MindSpore."""
    for name in values["list"]:
        if name.startswith(REGEX):
            _check_regex(name, refuse)
    mode: DataMode = values["data_mode"]
    if not (mode.forward and mode.backward):
        raise refuse("data_mode", "level L2 takes one of all, input and output: a graph has no forward and backward")
    if not _GRAPH_PATH.fullmatch(values["dump_path"]):
        reason = "MindSpore dumps kernels only into paths of the characters A-Z a-z 0-9 - _ /"
        raise refuse("dump_path", f"{values['dump_path']!r}: {reason}")


def _check_regex(name: str, refuse: Callable[[str, str], CaptureError]) -> None:
    if not name.endswith(")"):
        raise refuse("list", f"{name!r} has no closing parenthesis; write name-regex(Default/.+)")
    try:
        re.compile(name.removeprefix(REGEX)[:-1])
    except (re.error, RecursionError, OverflowError) as error:
        raise refuse("list", f"{name!r} is no regular expression: {error}") from error
