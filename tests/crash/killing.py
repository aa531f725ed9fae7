"""Conversions of a unit whose worker process dies at a chosen point, a chosen number of times."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from types import FrameType
from typing import Any

from msformat.convert import ConvertReport
from msformat.convert_unit import UnitJob, UnitReport
from tests.crash.forking import TOUCHES_FILES

__all__ = ["Killing", "found_done"]


def found_done(report: ConvertReport, conversions: dict[str, int]) -> set[str]:
    """Units that were there when a worker was asked again. Each unit of a report was converted to its end once.

    When a worker dies, the pool ends the others, too: what these had done but not yet told is found done.
    """
    there_already = {unit.key for unit in report.units if unit.skipped}
    unsaid = {unit.key for unit in report.units} - set(conversions)
    assert unsaid <= there_already
    assert set(conversions.values()) <= {1}
    return there_already


@dataclass(frozen=True)
class Killing:
    """Stands in the place of ``convert_tree_unit`` and its like.

    Attributes
    ----------
    work
        What converts the unit.
    log
        Folder where deaths and conversions are told.
    victim
        The unit whose workers die.
    at
        In front of which call that touches files; -1: after the unit is finished, before anybody is told.
    times
        How many of its workers die.
    calls
        Names of the functions that count as touching files.
    """

    work: Callable[..., UnitReport]
    log: str
    victim: str
    at: int
    times: int = 1
    calls: frozenset[str] = TOUCHES_FILES

    def __call__(self, job: UnitJob, *rest: Any) -> UnitReport:
        name = job.key.path.replace("/", "-")
        is_doomed = job.key.path == self.victim and self._dies_once_more()
        if is_doomed and self.at >= 0:
            self._arm()
        try:
            report = self.work(job, *rest)
        finally:
            sys.setprofile(None)
            threading.setprofile(None)
        if not report.skipped and not report.failed:
            Path(self.log, f"{name}-{os.getpid()}-{threading.get_ident()}-{os.urandom(4).hex()}.done").touch()
        if is_doomed and self.at < 0:
            os.kill(os.getpid(), signal.SIGKILL)
        return report

    def _dies_once_more(self) -> bool:
        for number in range(self.times):
            try:
                Path(self.log, f"death-{number}").touch(exist_ok=False)
            except FileExistsError:
                continue
            return True
        return False

    def _arm(self) -> None:
        numbers = count(1)

        def look(frame: FrameType, event: str, function: Any) -> None:
            touches = event == "c_call" and getattr(function, "__name__", "") in self.calls
            if touches and next(numbers) == self.at:
                os.kill(os.getpid(), signal.SIGKILL)

        threading.setprofile(look)
        sys.setprofile(look)

    def deaths(self) -> int:
        """How many workers died."""
        return len(list(Path(self.log).glob("death-*")))

    def conversions(self) -> dict[str, int]:
        """How often each unit was converted to its end."""
        found: dict[str, int] = {}
        for path in Path(self.log).glob("*.done"):
            unit = "/".join(path.name.split("-")[:2])
            found[unit] = found.get(unit, 0) + 1
        return found
