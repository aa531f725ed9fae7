"""What docs/migrating.md says of commands and of config.json is so."""

from __future__ import annotations

import json
import re
import shutil
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

from capture.config import load_config
from capture.config_keys import INERT, OTHER_TASKS
from capture.debugger import DebuggerBase
from capture.errors import CaptureError
from tests.docs.guides import ROOT, run_guide, shell

GUIDE = ROOT / "docs" / "migrating.md"
TEXT = GUIDE.read_text("utf-8")


def test_its_commands_run(golden: Callable[[str], Path], tmp_path: Path) -> None:
    for name in ("target_dump", "golden_dump"):
        shutil.copytree(golden("torch_8.1.0_mix_tensor"), tmp_path / name)
    run_guide(GUIDE, tmp_path)
    original = (tmp_path / "golden_dump/step0/rank/dump.json").read_bytes()
    assert (tmp_path / "for_msprobe/step0/rank/dump.json").read_bytes() == original
    found = load_config(tmp_path / "config.json")
    assert (found.steps, str(found.level)) == ({0, 2, 3}, "mix")


def test_its_options_are_there(tmp_path: Path) -> None:
    for command, options in {
        "diff": {"-o", "--map", "--ranks", "--steps", "--rules", "--rows"},
        "report": {"-o", "--map"},
        "view": set(),
        "table": {"--parquet", "--csv", "--json"},
    }.items():
        text = shell(f"msformat {command} --help", tmp_path).stdout
        assert options <= set(re.findall(r"(?<![\w-])--?[a-z]+", text)), command


@pytest.mark.parametrize("framework", ["pytorch", "mindspore"])
def test_its_names_are_there(framework: str) -> None:
    pytest.importorskip({"pytorch": "torch", "mindspore": "mindspore"}[framework])
    module = import_module(f"capture.{framework}")
    for names in re.findall(rf"from capture\.{framework} import ([^`]+)`", TEXT):
        assert all(hasattr(module, name) for name in names.split(", ")), names


def test_its_methods_are_there() -> None:
    (sentence,) = re.findall(r"(`start`, `stop`, .*?) are there", TEXT, re.DOTALL)
    names = re.findall(r"`(\w+)`", sentence)
    assert len(names) == 8
    assert all(name in vars(DebuggerBase) for name in [*names, "wait", "close", "capture"])


def refusal(tmp_path: Path, **keys: object) -> str:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"task": "statistics", "dump_path": "dump", **keys}))
    with pytest.raises(CaptureError) as error:
        load_config(path)
    return str(error.value)


def test_every_refused_task_is_named(tmp_path: Path) -> None:
    table = TEXT.partition("| `task` | instead |")[2].partition("\n\n")[0]
    named = [
        name for row in table.splitlines() if row.startswith("| `") for name in re.findall("`(.*?)`", row.split("|")[1])
    ]
    assert set(named) == set(OTHER_TASKS)
    for name in named:
        assert name in refusal(tmp_path, task=name)


@pytest.mark.parametrize(
    ("key", "on", "off"),
    [
        ("enable_dataloader", True, False),
        ("load", {"path": "x"}, {}),
        ("slice", [1], []),
        ("bench_path", "other", ""),
        ("online_run_ut", True, False),
    ],
)
def test_what_has_no_counterpart(tmp_path: Path, key: str, on: object, off: object) -> None:
    assert f"`{key}`" in TEXT
    in_task = next(inert.place for inert in INERT if inert.name == key) == "task"
    assert key in refusal_or_nothing(tmp_path, {"statistics": {key: on}} if in_task else {key: on})
    assert refusal_or_nothing(tmp_path, {"statistics": {key: off}} if in_task else {key: off}) == ""


def refusal_or_nothing(tmp_path: Path, keys: dict[str, object]) -> str:
    path = tmp_path / "config.json"
    path.write_text(json.dumps({"task": "statistics", "dump_path": "dump", **keys}))
    try:
        load_config(path)
    except CaptureError as error:
        return str(error)
    return ""


def test_an_unknown_key_gets_the_nearest(tmp_path: Path) -> None:
    assert "level" in refusal(tmp_path, lavel="mix")
