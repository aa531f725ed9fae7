"""Looking at large mapped tensors without filling memory with their pages.

A map costs no memory of its own, but every page that was looked at counts as this process's until the system wants it
back. While a large tensor is copied from its map, such pages are given back all the time: they stay in the file cache,
and one that is needed again is found there.
"""

from __future__ import annotations

import contextlib
import mmap
import threading
from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["is_mapped", "released_pages"]

_SECONDS = 0.01


@contextlib.contextmanager
def released_pages(array: NDArray[Any]) -> Iterator[None]:
    """Give the pages of an array's map back while the body looks at them; nothing for other arrays."""
    source = _map_of(array)
    advice = getattr(mmap, "MADV_DONTNEED", None)
    if source is None or advice is None:
        yield
        return
    done = threading.Event()
    thread = threading.Thread(target=_release, args=(source, advice, done), name="msformat-pages", daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def is_mapped(array: NDArray[Any]) -> bool:
    """Whether an array is a view of a map of a file."""
    return _map_of(array) is not None


def _map_of(array: NDArray[Any]) -> mmap.mmap | None:
    """The map of a file that an array is a view of."""
    base: Any = array
    while isinstance(base, np.ndarray):
        base = base.base
    source = base.obj if isinstance(base, memoryview) else base
    return source if isinstance(source, mmap.mmap) else None


def _release(source: mmap.mmap, advice: int, done: threading.Event) -> None:
    while True:
        finished = done.wait(_SECONDS)
        # Maps are of files and read-only: nothing that was written can be lost.
        with contextlib.suppress(OSError, ValueError):
            source.madvise(advice)
        if finished:
            return
