"""A device that dumps kernels, for tests: it remembers what it was told and writes files as CANN does."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tests.kernel_files import NAME, Part, write_dump

VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)
TIME = "20241201103000"


class FakeDevice:
    """Implements ``capture.kernel.device.KernelDevice``.

    Attributes
    ----------
    events
        What happened, in order; tests may add their own.
    number
        Of the device: the directory that it writes into.
    writes
        Whether kernels run while it is on.
    fails
        Which of ``begin`` and ``end`` raise.
    """

    def __init__(self, *, number: int = 0, writes: bool = True, fails: tuple[str, ...] = ()) -> None:
        self.events: list[str] = []
        self.configs: list[dict[str, Any]] = []
        self.reason: str | None = None
        self.number, self.writes, self.fails = number, writes, fails
        self.is_on = False
        self.time = TIME
        self.before_end: Callable[[], None] = lambda: None

    def why_not(self) -> str | None:
        return self.reason

    def begin(self, config_path: str) -> None:
        self.events.append("begin")
        if "begin" in self.fails:
            raise RuntimeError("no such device")
        assert not self.is_on
        self.is_on = True
        self.configs.append(json.loads(Path(config_path).read_text("utf-8")))

    def end(self) -> None:
        self.events.append("end")
        self.before_end()
        if self.is_on and self.writes:
            where = Path(self.configs[-1]["dump"]["dump_path"]) / self.time / str(self.number)
            write_dump(where, [Part.of(VALUES)], [Part.of(VALUES * 2)], name=NAME)
        self.is_on = False
        if "end" in self.fails:
            raise RuntimeError("device lost")
