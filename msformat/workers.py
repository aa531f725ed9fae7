"""Processes that convert units, and how they end: each cleans up after the unit at work, none cries out.

Ctrl-C is one way to end; the death of the process that they work for is another.
"""

from __future__ import annotations

import multiprocessing
import os
import signal
import threading
from collections.abc import Callable
from concurrent.futures import Future, ProcessPoolExecutor
from typing import Any, TypeVar

__all__ = ["Workers"]

Result = TypeVar("Result")
# Held by a worker while it converts.
_at_work = threading.Lock()


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
        context = multiprocessing.get_context("spawn")
        super().__init__(min(wanted, most), mp_context=context, initializer=_end_with_parent)

    def submit(self, fn: Callable[..., Result], /, *args: Any, **kwargs: Any) -> Future[Result]:
        """As of any executor. Starts the processes, which inherit the mask; a SIGINT that comes meanwhile waits."""
        before = _mask(block=True)
        try:
            return super().submit(_interruptible, fn, *args, **kwargs)
        finally:
            if before is not None and signal.SIGINT not in before:
                _mask(block=False)


def _interruptible(function: Callable[..., Result], *args: Any, **kwargs: Any) -> Result:
    with _at_work:
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


def _end_with_parent() -> None:
    """In a worker, before it gets work. The pool's queue is held open by the workers themselves: nothing would end."""
    threading.Thread(target=_follow_parent, name="follow-parent", daemon=True).start()


def _follow_parent() -> None:
    parent = multiprocessing.parent_process()
    if parent is None:
        return
    parent.join()
    # It was killed: as with Ctrl-C, the unit at work is cleaned up after.
    main = threading.main_thread().ident
    if main is not None and hasattr(signal, "pthread_kill"):
        signal.pthread_kill(main, signal.SIGINT)
    with _at_work:
        os._exit(1)


def _mask(*, block: bool) -> set[int] | None:
    """Block SIGINT in this thread or let it through; what was blocked before, None where a system knows no masks."""
    if not hasattr(signal, "pthread_sigmask"):
        return None
    how = signal.SIG_BLOCK if block else signal.SIG_UNBLOCK
    return set(signal.pthread_sigmask(how, {signal.SIGINT}))
