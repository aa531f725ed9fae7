"""What the parts of ``make bench`` share: pairs, a line of the table, and how much memory a command takes."""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from msformat.cli.output import bytes_text

__all__ = ["Action", "Line", "code", "pairs", "peak_memory", "with_memory"]

Action = Callable[[], object]
COLUMNS = ("what", "ours", "against", "theirs", "ratio", "goal", "met", "memory", "theirs", "")
_SCALES = {"ms": 1e3, "s": 1.0, "MiB": 1 / (1 << 20), "inodes": 1.0}


@dataclass(frozen=True)
class Line:
    """One comparison: medians of pairs, or amounts.

    Attributes
    ----------
    ours, theirs
        Seconds (units ``ms`` and ``s``), bytes (``MiB``) or inodes.
    goal
        ``<= 0.5``: of the ratio; ``<= 0.05 s``: of our seconds; other text is no more than text.
    peaks
        Most memory of a process that does only this, ours and theirs, in bytes; 0 is not measured.
    """

    what: str
    ours: float
    theirs: float
    peer: str
    goal: str
    note: str = ""
    unit: str = "ms"
    peaks: tuple[int, int] = (0, 0)

    @property
    def met(self) -> bool | None:
        """Whether the goal is reached; None where there is none to compare."""
        words = self.goal.split()
        if len(words) not in (2, 3) or words[0] not in ("<", "<="):
            return None
        value = self.ours if words[2:] == ["s"] else self.ours / self.theirs
        return value <= float(words[1])

    def row(self) -> tuple[object, ...]:
        """As a row of the table."""
        ours, theirs = (f"{value * _SCALES[self.unit]:,.2f} {self.unit}" for value in (self.ours, self.theirs))
        ratio = f"{self.ours / self.theirs:.2f}" if self.theirs else "-"
        peaks = [bytes_text(peak) if peak else "" for peak in self.peaks]
        answer = {True: "yes", False: "NO", None: ""}[self.met]
        return (self.what, ours, self.peer, theirs, ratio, self.goal, answer, *peaks, self.note)


def pairs(ours: Action, theirs: Action, repeats: int, *, before: Action = lambda: None) -> tuple[float, float]:
    """Median seconds of both, run in turn after one warm-up."""
    times: dict[Action, list[float]] = {ours: [], theirs: []}
    for turn in range(repeats + 1):
        for action, found in times.items():
            before()
            began = time.perf_counter()
            action()
            if turn:
                found.append(time.perf_counter() - began)
    return statistics.median(times[ours]), statistics.median(times[theirs])


def code(text: str) -> list[str]:
    """The command that runs Python code in a fresh interpreter."""
    return [sys.executable, "-c", text]


def peak_memory(command: Sequence[str] | str) -> int:
    """Most bytes a command and all its children hold at once; a shell's line as a string.

    Memory of their own (anonymous and shared), as Linux counts it every few milliseconds: pages of files, which the
    system takes back when it likes, are left out. The interpreter and its imports are in it. 0 where there is no
    ``/proc``.
    """
    process = subprocess.Popen(command, shell=isinstance(command, str), stdout=subprocess.DEVNULL)
    most = 0
    while process.poll() is None:
        most = max(most, _held(process.pid))
        time.sleep(0.002)
    if process.returncode:
        sys.exit(f"{command}: exit code {process.returncode}")
    return most


def _held(pid: int) -> int:
    """Bytes of a process and of all below it."""
    total, waiting = 0, [pid]
    while waiting:
        place = Path(f"/proc/{waiting.pop()}")
        try:
            fields = dict(line.split(":", 1) for line in (place / "status").read_text().splitlines() if ":" in line)
            total += sum(int(fields.get(name, "0 kB").split()[0]) << 10 for name in ("RssAnon", "RssShmem"))
            for task in (place / "task").iterdir():
                waiting += [int(child) for child in (task / "children").read_text().split()]
        except (OSError, ValueError):  # it has just ended
            continue
    return total


def with_memory(ours: Sequence[str] | str, theirs: Sequence[str] | str) -> tuple[int, int]:
    """``peaks`` of a line."""
    return peak_memory(ours), peak_memory(theirs)
