"""Processes that convert units, and how Ctrl-C ends them: each cleans up after the unit at work, none cries out."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any, TypeVar

__all__ = ["Workers"]

Result = TypeVar("Result")


class Workers(ProcessPoolExecutor):
    """Processes for some units, as many as make sense.

    A terminal sends SIGINT to all its processes. A worker that it hit between two units, or while it starts, would die
    with a traceback, and the pool would then kill the others in the middle of their work. So workers are born with
    SIGINT blocked and let it through only while they convert.

    Parameters
    ----------
    wanted
        At most so many, and at most twice the number of processors (8 where there are few).
    """

    def __init__(self, wanted: int) -> None:
        most = max(8, 2 * (os.cpu_count() or 1))
        # Spawned, not forked: the caller may have threads, and h5py and torch do not survive a fork.
        super().__init__(min(wanted, most), mp_context=multiprocessing.get_context("spawn"))

    def submit(self, fn: Callable[..., Result], /, *args: Any, **kwargs: Any) -> Future[Result]:
        """As of any executor. Starts the processes, which inherit the mask; a SIGINT that comes meanwhile waits."""
        before = _mask(block=True)
        try:
            return super().submit(_interruptible, fn, *args, **kwargs)
        finally:
            if before is not None and signal.SIGINT not in before:
                _mask(block=False)


def _interruptible(function: Callable[..., Result], *args: Any, **kwargs: Any) -> Result:
    try:
        _mask(block=False)
        return function(*args, **kwargs)
    except KeyboardInterrupt:
        # Blocked, so it stays pending: units that already wait in this process's queue end at once, too.
        if _mask(block=True) is not None:
            signal.raise_signal(signal.SIGINT)
        raise
    finally:
        _mask(block=True)


def _mask(*, block: bool) -> set[int] | None:
    """Block SIGINT in this thread or let it through; what was blocked before, None where a system knows no masks."""
    if not hasattr(signal, "pthread_sigmask"):
        return None
    how = signal.SIG_BLOCK if block else signal.SIG_UNBLOCK
    return set(signal.pthread_sigmask(how, {signal.SIGINT}))
