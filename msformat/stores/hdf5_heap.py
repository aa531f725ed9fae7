"""Global heaps of HDF5, where text of variable length lies: damage there has HDF5 loop for ever instead of failing.

A heap is a row of objects, each with its size; an object of free space that claims to have none is where HDF5 (1.14)
stays. HDF5 reads a heap from its signature on, so whoever gives it the bytes can look before it does: every file of
ours below HDF5 calls :func:`check_heap`. Source: HDF5 file format specification, version 3, section III.E.
"""

from __future__ import annotations

import errno
from collections.abc import Callable

__all__ = ["check_heap"]

_SIGNATURE = b"GCOL\x01\0\0\0"
_HEADER = 16
# HDF5 makes them of 4 KiB, or as large as the text that is in them.
_LARGEST = 32 << 20


def check_heap(data: memoryview, rest: Callable[[int], bytes]) -> None:
    """Look at bytes that HDF5 is about to get; those of anything but a heap are let be.

    Parameters
    ----------
    data
        What HDF5 asked for. Of a heap it asks for 4 KiB, and then for what is left of it, which has no signature.
    rest
        Reads so many bytes of what follows, fewer at the end of the file.

    Raises
    ------
    OSError
        A heap whose objects do not lie in a row, or one of more than 32 MiB.
    """
    if bytes(data[:8]) != _SIGNATURE:
        return
    size = int.from_bytes(data[8:16], "little")
    if size > _LARGEST:
        raise OSError(errno.EFBIG, f"global heap of {size} bytes")
    if size > len(data):
        data = memoryview(bytes(data) + rest(size - len(data)))
    end = min(size, len(data))
    at = _HEADER
    while at + _HEADER <= end:
        number, length = int.from_bytes(data[at : at + 2], "little"), int.from_bytes(data[at + 8 : at + 16], "little")
        # Free space counts its own header.
        needed = length if number == 0 else _HEADER + -(-length // 8) * 8
        if needed < _HEADER or at + needed > size:
            raise OSError(errno.EIO, f"damaged global heap: object {number} of {length} bytes")
        at += needed
