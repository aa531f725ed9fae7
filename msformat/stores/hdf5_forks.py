"""HDF5 files over a Python object (h5py's ``fileobj`` driver) that are open while the process is forked, or ends.

The HDF5 library closes what is open in an exit handler of C, which runs when Python is no more, and that is a
segmentation fault. A child has copies of what its parent had open. h5py lets no thread be inside the library during a
fork, so it can close them at once, while Python still lives. A file that is read, and that something Python never takes
apart still holds at the end, is closed in front of that; one that is written is its writer's, who may not be done.
"""

from __future__ import annotations

import atexit
import contextlib
import os
import weakref
from typing import Any

__all__ = ["close_in_children"]

# Not a WeakSet: the hash of an h5py file is that of its identifier, which a closed one no longer has.
_open: dict[int, weakref.ReferenceType[Any]] = {}
_watching: list[int] = []


def close_in_children(file: Any) -> Any:
    """Have forked children close an ``h5py.File`` over a Python object, and the end one for reading; returns the file.

    The file below must write nothing in another process than its own.
    """
    key = id(file)
    _open[key] = weakref.ref(file, lambda _: _open.pop(key, None))
    # After h5py's own handlers, which are called in the same order and give the library's lock back.
    if not _watching:
        _watching.append(os.getpid())
        atexit.register(_close, "r")
        if hasattr(os, "register_at_fork"):
            os.register_at_fork(after_in_child=_close)
    return file


def _close(*modes: str) -> None:
    """Close what is open, or only in these modes."""
    for reference in list(_open.values()):
        file = reference()
        if file is not None:
            with contextlib.suppress(OSError, RuntimeError, ValueError):
                if not modes or file.mode in modes:
                    file.close()
