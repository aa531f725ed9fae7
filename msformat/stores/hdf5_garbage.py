"""No cyclic garbage is collected while HDF5 reads from a URL.

h5py holds one lock in every call of HDF5 (``h5py._objects.phil``), and takes it to free an object of its own as well.
Who reads from a URL holds it and waits for a thread that fetches, fsspec's loop. Were that one to collect a cycle with
an object of h5py in it, as Python has any thread do now and then, it would wait for the lock, and both for ever. Such
cycles are anybody's (an exception that keeps its frames is enough), so not to make any is no way out; nor is another
thread to fetch, which collects as well.

So before such a call, and before the lock is taken, automatic collection is switched off, and one that is already on
its way is waited for. What is left: somebody who switches it on meanwhile, or collects by hand in the thread that
fetches. Garbage waits until the call is over.
"""

from __future__ import annotations

import contextlib
import gc
import os
import threading
import time
from contextlib import AbstractContextManager

from msformat.filesystem import is_url

__all__ = ["NO_COLLECTIONS", "calm"]

# A finalizer that reads would wait for the very collection that it is part of.
_PATIENCE_S = 5.0


class _NoCollections:
    """A context without automatic collections, for any number of threads, also one in the other."""

    def __init__(self) -> None:
        # Re-entrant: between two lines, a finalizer may come here too.
        self._lock = threading.RLock()
        self._inside = 0
        self._was_enabled = False
        self._watches_forks = False

    def __enter__(self) -> None:
        with self._lock:
            if self._inside == 0:
                self._watch_forks()
                self._was_enabled = gc.isenabled()
                gc.disable()
            self._inside += 1
        patience = time.monotonic() + _PATIENCE_S
        while _is_collecting() and time.monotonic() < patience:
            time.sleep(0.001)

    def __exit__(self, *_: object) -> None:
        with self._lock:
            self._inside -= 1
            if self._inside == 0 and self._was_enabled:
                gc.enable()

    def _watch_forks(self) -> None:
        if not self._watches_forks and hasattr(os, "register_at_fork"):
            self._watches_forks = True
            os.register_at_fork(after_in_child=self._begin_anew)

    def _begin_anew(self) -> None:
        """In a child, where the threads that were inside are not."""
        self._lock = threading.RLock()
        if self._inside:
            self._inside = 0
            if self._was_enabled:
                gc.enable()


def _is_collecting() -> bool:
    """Whether a collection is on its way. A process has one at a time: a second is left out, and not counted."""
    before = _collections()
    gc.collect(0)
    return _collections() == before


def _collections() -> int:
    return sum(generation["collections"] for generation in gc.get_stats())


#: The one for all, because the switch is one for all.
NO_COLLECTIONS = _NoCollections()


def calm(location: str) -> AbstractContextManager[None]:
    """What calls of HDF5 are made in: without collections for a file behind a URL, as it is for a local one."""
    return NO_COLLECTIONS if is_url(location) else contextlib.nullcontext()
