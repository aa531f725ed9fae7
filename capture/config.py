"""What is to be captured: :class:`CaptureConfig`, and :func:`load_config`, which makes it of a file and arguments.

A ``config.json`` of msprobe 8.1.0 or 26.2.0 works as it is. What capture cannot follow is an error that names the file
and the key; what merely has no effect is in :attr:`CaptureConfig.notes`.
"""

from __future__ import annotations

import os
import stat
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Any, Literal

from capture.config_file import Settings, read_object, read_settings
from capture.config_kernel import check_kernels, note_without_kernels
from capture.config_keys import KEYS
from capture.config_values import DataMode, default_queue_bytes
from capture.errors import CaptureError
from msformat import MsformatError, StoreOptions, open_store, parse_entry

__all__ = ["CaptureConfig", "DataMode", "StorageConfig", "load_config", "reread_enable", "try_store"]

_DEFAULTS = {key.name: key.default for key in KEYS}
_FRAMEWORKS = ("pytorch", "mindspore", "mindtorch")
_CONTAINERS = {"hdf5": ".h5", "zarr": ".zarr"}


@dataclass(frozen=True, slots=True)
class StorageConfig:
    """How and where bytes are kept; see :class:`msformat.StoreOptions`.

    Attributes
    ----------
    format
        ``files``, ``hdf5`` or ``zarr``.
    compression
        ``auto``, ``none``, or a spelling that the store knows.
    links
        Keep equal content once.
    durability
        ``fsync`` survives a power failure, ``process`` the death of the process only.
    overwrite
        Whether an earlier dump of the same step and rank is removed.
    kernels
        What becomes of the device's files at level L2: ``keep``, ``convert`` or ``move``.
    """

    format: str = "files"
    compression: str = "auto"
    links: bool = True
    durability: Literal["fsync", "process"] = "fsync"
    overwrite: bool = False
    kernels: Literal["keep", "convert", "move"] = "keep"


@dataclass(frozen=True, slots=True)
class CaptureConfig:
    """Everything that was configured, checked and with defaults filled in.

    Attributes
    ----------
    task
        ``statistics``, ``tensor`` or ``structure``.
    dump_path
        Absolute.
    level
        ``L0``, ``L1``, ``L2``, ``mix`` or ``debug``.
    steps, ranks
        None: all.
    scope
        Two entry names, or none.
    list, tensor_list
        Names and parts of names.
    data_mode
        Which directions and sides are recorded.
    summary_mode
        ``statistics`` or ``md5``; at level L2 in static graphs also names of statistics.
    file_format, device
        At level L2 in static graphs: ``npy`` or ``bin``; statistics by ``host`` or ``device``.
    extra_info
        Whether call stacks and the tree are recorded.
    dump_enable
        The switch in the file, None when there is none; see :func:`reread_enable`.
    risk_level
        ``ALL``, ``FOCUS`` or ``CORE``.
    precision
        ``high`` (statistics of 16-bit types in float32) or ``low``.
    on_error
        ``continue`` or ``raise``.
    max_queue_bytes
        Bytes that may wait for the writer.
    framework
        ``pytorch``, ``mindspore`` or ``mindtorch``.
    config_path
        Absolute path of the file, None without one.
    notes
        What the configuration asks for in vain, one text each, for the log.
    """

    task: str
    dump_path: str
    level: str = "L1"
    steps: frozenset[int] | None = None
    ranks: frozenset[int] | None = None
    scope: tuple[str, ...] = ()
    list: tuple[str, ...] = ()
    data_mode: DataMode = field(default_factory=DataMode)
    tensor_list: tuple[str, ...] = ()
    summary_mode: str | tuple[str, ...] = "statistics"
    file_format: str = "npy"
    device: str = "host"
    async_dump: bool = False
    extra_info: bool = True
    dump_enable: bool | None = None
    risk_level: str = "ALL"
    precision: str = "high"
    storage: StorageConfig = field(default_factory=StorageConfig)
    on_error: str = "continue"
    max_queue_bytes: int = 1 << 30
    framework: str = "pytorch"
    config_path: str | None = None
    notes: tuple[str, ...] = ()

    @property
    def md5(self) -> bool:
        """Whether every tensor gets its CRC-32."""
        return self.summary_mode == "md5"


def load_config(
    config_path: str | os.PathLike[str] | None = None,
    *,
    task: str | None = None,
    dump_path: str | os.PathLike[str] | None = None,
    level: str | None = None,
    step: Any = None,
    framework: str = "pytorch",
    **options: Any,
) -> CaptureConfig:
    """Read a configuration.

    Parameters
    ----------
    config_path
        A ``config.json``; without one the defaults hold.
    task, dump_path, level, step, **options
        Any key of ``docs/config.md``, which wins over the file; None: not given. ``step=[]`` means all steps, whatever
        the file says.
    framework
        Whose tensors will be recorded.

    Raises
    ------
    CaptureError
        A bad file, an unknown key, a bad or contradictory value. The message names the file and the key.
    """
    if framework not in _FRAMEWORKS:
        raise CaptureError(f"framework {framework!r} is none of {', '.join(_FRAMEWORKS)}")
    source = _config_path(config_path)
    arguments = {"task": task, "dump_path": dump_path, "level": level, "step": step, **options}
    found = read_settings(source, arguments)
    values = {**_DEFAULTS, **found.values}
    _require_path(values, source)
    if values["level"] == "L2":
        check_kernels(values, found, framework)
    else:
        note_without_kernels(values, found, _DEFAULTS)
    _check_level(values, found)
    _check_filters(values, found)
    storage = _storage(values.pop("storage"), found)
    return CaptureConfig(
        steps=values.pop("step"),
        ranks=values.pop("rank"),
        storage=storage,
        max_queue_bytes=values.pop("max_queue_bytes") or default_queue_bytes(),
        framework=framework,
        config_path=source,
        notes=tuple(found.notes),
        **values,
    )


def reread_enable(path: str | os.PathLike[str], default: bool) -> bool:  # noqa: FBT001 (the value it falls back to)
    """``dump_enable`` as the file says now. Costs one ``stat`` while the file does not change.

    A file that is gone, is just being written, or says nothing leaves the switch where it was; ``default`` is where it
    was at first.
    """
    return _switch_of(os.path.abspath(os.fspath(path)), default).read()


class _Switch:
    """The last good value of the key in one file, and the version of the file it was read from."""

    def __init__(self, path: str, value: bool) -> None:  # noqa: FBT001
        self.path = path
        self.value = value
        self.version: tuple[int, int, int] | None = None

    def read(self) -> bool:
        try:
            status = os.stat(self.path)
        except OSError:
            return self.value
        if not stat.S_ISREG(status.st_mode):
            return self.value  # reading a pipe once more would wait for ever
        version = (status.st_ino, status.st_mtime_ns, status.st_size)
        if version != self.version:
            self._read_again()
            self.version = version
        return self.value

    def _read_again(self) -> None:
        try:
            found = read_object(self.path).get("dump_enable")
        except CaptureError:
            return
        if isinstance(found, bool):
            self.value = found


@lru_cache(maxsize=64)
def _switch_of(path: str, default: bool) -> _Switch:  # noqa: FBT001
    return _Switch(path, default)


# --- what must fit together ------------------------------------------------------------------------------------------


def _config_path(value: str | os.PathLike[str] | None) -> str | None:
    if value is None:
        return None
    if not isinstance(value, (str, os.PathLike)) or not os.fspath(value):
        raise CaptureError(f"config_path: {value!r} is no path; settings may also be given as arguments")
    return os.path.abspath(os.fspath(value))


def _require_path(values: Mapping[str, Any], source: str | None) -> None:
    if values["dump_path"] is None:
        where = f"{source}: dump_path: is missing" if source else "dump_path is missing"
        raise CaptureError(f"{where}; say where the dump shall go: in the configuration file, or as an argument")


def _check_level(values: dict[str, Any], found: Settings) -> None:
    if values["task"] != "structure":
        return
    if values["level"] == "debug":
        message = "debug saves variables, and task structure records no values; use statistics or tensor"
        raise CaptureError(f"{found.source('level')}: level: {message}")
    if values["summary_mode"] == "md5":
        message = "task structure records no values that could have a CRC-32"
        raise CaptureError(f"{found.source('summary_mode')}: summary_mode: {message}")
    if values["level"] == "L1":
        # As msprobe: at L1 there is no tree, which is what the task is for.
        values["level"] = "mix"
        if "level" in found.values:
            found.notes.append(f"{found.source('level')}: level: task structure at L1 is recorded at mix")


def _check_filters(values: dict[str, Any], found: Settings) -> None:
    if values["tensor_list"] and values["task"] != "statistics":
        what = "saves all data already" if values["task"] == "tensor" else "saves no data"
        message = f"task {values['task']} {what}; leave tensor_list out, or use task statistics"
        raise CaptureError(f"{found.source('tensor_list')}: tensor_list: {message}")
    if values["level"] == "debug":
        _drop_filters(values, found)
    _check_scope(values["scope"], values["level"], found.source("scope"))
    for name in values["list"] if values["level"] != "L2" else ():
        if name.startswith("name-regex("):
            source = found.source("list")
            raise CaptureError(f"{source}: list: {name!r} is for graph mode; write names or parts of names")
    _note_risk(values, found)


def _drop_filters(values: dict[str, Any], found: Settings) -> None:
    """At level debug the calls of ``save`` say what is recorded; the peer ignores these keys too."""
    for name in ("scope", "list", "tensor_list", "data_mode"):
        if values[name] != _DEFAULTS[name]:
            found.notes.append(f"{found.source(name)}: {name}: has no effect at level debug")
            values[name] = _DEFAULTS[name]


def _note_risk(values: Mapping[str, Any], found: Settings) -> None:
    if values["risk_level"] == "ALL":
        return
    if values["scope"] or values["list"]:
        found.notes.append(f"{found.source('risk_level')}: risk_level: has no effect beside scope or list")
    elif values["level"] not in ("L1", "mix"):
        found.notes.append(f"{found.source('risk_level')}: risk_level: has no effect at level {values['level']}")


def _check_scope(scope: tuple[str, ...], level: str, source: str) -> None:
    if len(scope) not in (0, 2):
        raise CaptureError(f"{source}: scope: {list(scope)!r}: two different names are needed, first and last")
    for name in scope:
        form = _form(name)
        if form is None:
            message = "is no full entry name such as Functional.relu.0.forward or Module.fc.Linear.forward.0"
            raise CaptureError(f"{source}: scope: {name!r} {message}")
        if level in ("L0", "L1") and form != {"L0": "module", "L1": "api"}[level]:
            what = "modules" if level == "L0" else "APIs"
            raise CaptureError(f"{source}: scope: {name!r} names no entry of level {level}, which records {what}")


def _form(name: str) -> str | None:
    found = parse_entry(name)
    if found is None or found.stage not in ("forward", "backward"):
        return None
    # "Module.fc.0.forward" would be an API of the kind Module: an index in the wrong place.
    return None if found.order == "api" and found.kind in ("Module", "Cell") else found.order


def _storage(chosen: Mapping[str, Any] | None, found: Settings) -> StorageConfig:
    storage = StorageConfig(**(chosen or {}))
    source = f"{found.source('storage')}: storage"
    if storage.format == "files":
        if storage.compression not in ("auto", "none"):
            message = "files are never compressed, so that every tool reads them; use format hdf5 or zarr"
            raise CaptureError(f"{source}: compression: {storage.compression!r}: {message}")
        return storage
    try:
        try_store(storage)
    except (MsformatError, OSError) as error:
        raise CaptureError(f"{source}: {error}") from error
    return storage


def try_store(storage: StorageConfig) -> None:
    """Open such a container and throw it away: a missing library or codec shows before the training begins.

    Raises
    ------
    MsformatError, OSError
        It cannot be written.
    """
    with tempfile.TemporaryDirectory() as directory:
        location = os.path.join(directory, f"try{_CONTAINERS[storage.format]}")
        options = StoreOptions(compression=storage.compression, links=storage.links)
        open_store(storage.format, location, mode="a", options=options).close()
