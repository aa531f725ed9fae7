"""Global heaps of HDF5, where text of variable length lies: damage there has HDF5 loop for ever instead of failing.

A heap is a row of objects, each with its size; an object of free space that claims to have none is where HDF5 (1.14)
stays. HDF5 reads a heap from its signature on, so whoever gives it the bytes can look before it does: every file of
ours below HDF5 calls :func:`check_heap`. Source: HDF5 file format specification, version 3, section III.E.
"""

from __future__ import annotations

import errno

__all__ = ["check_heap"]

_SIGNATURE = b"GCOL\x01\0\0\0"
_HEADER = 16


def check_heap(data: memoryview) -> None:
    """Look at bytes that HDF5 is about to get; those of anything but a heap are let be.

    Raises
    ------
    OSError
        A heap whose objects do not lie in a row.
    """
    if bytes(data[:8]) != _SIGNATURE:
        return
    size = int.from_bytes(data[8:16], "little")
    # The first read may be of the beginning only; that of the rest comes here, too.
    end = min(size, len(data))
    at = _HEADER
    while at + _HEADER <= end:
        number, length = int.from_bytes(data[at : at + 2], "little"), int.from_bytes(data[at + 8 : at + 16], "little")
        # Free space counts its own header.
        needed = length if number == 0 else _HEADER + -(-length // 8) * 8
        if needed < _HEADER or at + needed > size:
            raise OSError(errno.EIO, f"damaged global heap: object {number} of {length} bytes")
        at += needed
