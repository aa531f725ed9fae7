"""What an attack may cost: memory by what the system counted, time by the processor, so that neither hangs on load."""

from __future__ import annotations

import os
import resource
import signal
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from types import FrameType

__all__ = ["bounded", "peak_memory"]

_PROCESSOR_SECONDS = 60
_SECONDS = 3600
# Threads and maps take addresses that they do not use.
_ADDRESSES = 8 << 30


def _status(name: str) -> int:
    """A line of /proc/self/status in bytes; 0 where there is none."""
    with suppress(OSError):
        for line in Path("/proc/self/status").read_text().splitlines():
            if line.startswith(name):
                return int(line.split()[1]) << 10
    return 0


def peak_memory() -> int:
    """The most memory this process had since the last :func:`bounded` began, in bytes."""
    return _status("VmHWM") or resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10


@contextmanager
def bounded(mebibytes: int = 256) -> Iterator[None]:
    """What runs within takes no more memory than that, and neither hangs nor computes without end.

    C libraries count, too, which tracemalloc does not see.
    """
    with suppress(OSError):
        Path("/proc/self/clear_refs").write_text("5")
    before = _status("VmRSS") or peak_memory()
    with _little_time(), _few_addresses():
        yield
    grown = peak_memory() - before
    assert grown < mebibytes << 20, f"took {grown >> 20} MiB more"


@contextmanager
def _few_addresses() -> Iterator[None]:
    """Who asks for a terabyte gets a MemoryError instead of taking the machine down."""
    old = resource.getrlimit(resource.RLIMIT_AS)
    most = _status("VmSize") + _ADDRESSES
    resource.setrlimit(resource.RLIMIT_AS, (most if old[0] < 0 else min(most, old[0]), old[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, old)


@contextmanager
def _little_time() -> Iterator[None]:
    """A pipe that nobody writes into would wait for ever; that is told, too, though late."""

    def give_up(number: int, _: FrameType | None) -> None:
        raise AssertionError(f"took no end (process {os.getpid()}, signal {number})")

    signals = ((signal.SIGPROF, signal.ITIMER_PROF, _PROCESSOR_SECONDS), (signal.SIGALRM, signal.ITIMER_REAL, _SECONDS))
    olds = [signal.signal(number, give_up) for number, _, _ in signals]
    for _, timer, seconds in signals:
        signal.setitimer(timer, seconds)
    try:
        yield
    finally:
        for (number, timer, _), old in zip(signals, olds, strict=True):
            signal.setitimer(timer, 0)
            signal.signal(number, old)
