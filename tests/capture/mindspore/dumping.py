"""Running something under capture, and reading what it left."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np

from capture.mindspore import PrecisionDebugger


class Dump:
    """One unit of canonical files."""

    def __init__(self, unit: Path) -> None:
        self.unit = unit
        self.name = "dump.json" if (unit / "dump.json").exists() else "debug.json"
        self.document: dict[str, Any] = json.loads((unit / self.name).read_text())
        self.data: dict[str, Any] = self.document["data"]

    @property
    def tree(self) -> dict[str, str | None]:
        return json.loads((self.unit / "construct.json").read_text())  # type: ignore[no-any-return]

    @property
    def stacks(self) -> list[tuple[list[str], list[str]]]:
        return list(json.loads((self.unit / "stack.json").read_text()).values())

    @property
    def files(self) -> set[str]:
        folder = self.unit / "dump_tensor_data"
        return {path.name for path in folder.iterdir()} if folder.exists() else set()

    def tensor(self, name: str) -> Any:
        return np.load(self.unit / "dump_tensor_data" / name)

    def of(self, node: dict[str, Any]) -> Any:
        return self.tensor(node["data_name"])


def debugger(path: Path, *, level: str = "L0", task: str = "tensor", **more: Any) -> PrecisionDebugger:
    """A debugger with a configuration; keys of the task's object in ``more["settings"]``."""
    settings = more.pop("settings", {})
    path.mkdir(parents=True, exist_ok=True)
    config = {"task": task, "dump_path": str(path / "dump"), "level": level, task: settings, **more}
    (path / "config.json").write_text(json.dumps(config))
    return PrecisionDebugger(config_path=path / "config.json")


@contextmanager
def captured(path: Path, model: Any = None, **config: Any) -> Iterator[PrecisionDebugger]:
    """One step; the unit is finished afterwards."""
    capture = debugger(path, **config)
    capture.start(model)
    try:
        yield capture
    finally:
        capture.stop()
        capture.step()
        capture.close()


def units(path: Path) -> list[Dump]:
    """Units of a debugger made by :func:`debugger`, by step."""
    found = sorted((path / "dump").glob("step*/rank*"), key=lambda unit: int(unit.parent.name[4:]))
    return [Dump(unit) for unit in found]


def dump_of(path: Path, model: Any, run: Callable[[], Any], **config: Any) -> Dump:
    """What one step of ``run`` leaves."""
    with captured(path, model, **config):
        run()
    return units(path)[0]


def problems(dump: Dump) -> str:
    """``dump_error_info.log``, empty when there is none."""
    log = dump.unit / "dump_error_info.log"
    return log.read_text() if log.exists() else ""
