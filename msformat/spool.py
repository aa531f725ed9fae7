"""Text that is made piece by piece and read as a whole: in memory while it is small, then in a file without a name."""

from __future__ import annotations

import mmap
import tempfile
from collections.abc import Iterable
from itertools import chain

from msformat.stores.base import ReadOnlyBuffer

__all__ = ["spooled"]

_IN_MEMORY = 64 << 20


def spooled(pieces: Iterable[bytes], directory: str | None = None) -> ReadOnlyBuffer:
    """The pieces in a row.

    Parameters
    ----------
    pieces
        Taken one at a time; no more than 64 MiB of them are held.
    directory
        Where the file is made; None where the system keeps temporary files, which may be memory. It is private, has no
        name where the system knows such files, and is gone with the result, however the process ends.

    Raises
    ------
    OSError
        The file cannot be written.
    """
    held: list[bytes] = []
    size = 0
    rest = iter(pieces)
    for piece in rest:
        held.append(piece)
        size += len(piece)
        if size > _IN_MEMORY:
            return _mapped(chain(held, rest), directory)
    return b"".join(held)


def _mapped(pieces: Iterable[bytes], directory: str | None) -> memoryview:
    with tempfile.TemporaryFile(dir=directory) as file:
        file.writelines(pieces)
        file.flush()
        # The map outlives the file's descriptor.
        return memoryview(mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ))
