"""HDF5 files that are open while the process is forked.

The HDF5 library closes what is open in an exit handler of C, which runs when Python is no more: a child that inherits a
file over a Python object (h5py's ``fileobj`` driver) would end in a segmentation fault. h5py itself lets no thread be
inside the library during a fork, so a child can close its copies at once, while Python still lives.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from typing import Any

__all__ = ["close_in_children"]

# Not a WeakSet: the hash of an h5py file is that of its identifier, which a closed one no longer has.
_open: dict[int, weakref.ReferenceType[Any]] = {}
_watching: list[int] = []


def close_in_children(file: Any) -> Any:
    """Have forked children close an ``h5py.File`` over a Python object; returns the file.

    The file below must write nothing in another process than its own.
    """
    key = id(file)
    _open[key] = weakref.ref(file, lambda _: _open.pop(key, None))
    # After h5py's own handlers, which are called in the same order and give the library's lock back.
    if not _watching and hasattr(os, "register_at_fork"):
        _watching.append(os.getpid())
        os.register_at_fork(after_in_child=_close)
    return file


def _close() -> None:
    for reference in list(_open.values()):
        file = reference()
        if file is not None:
            with contextlib.suppress(OSError, RuntimeError, ValueError):
                file.close()
