"""What HDF5 walks through: damage there has it walk for ever, or until its stack is full, instead of failing.

- A *global heap* (text of variable length, sources of virtual datasets) is a row of objects, each with its size; an
  object of free space that claims to have none is where HDF5 stays.
- The free space of a *local heap* (names in old groups, names of external files) is a list, whose end may lead back
  into it; HDF5 keeps a record of each piece that it comes to.
- A node of a *B-tree* of version 1 (members of old groups, chunks) may be its own child.

HDF5 reads each of them from its signature on, in one piece or, of a global heap, in two. So whoever gives it the bytes
can look before it does: every file of ours below HDF5 has a :class:`Walks`. Source: HDF5 file format specification,
version 3, sections III.A.1, III.D and III.E; seen with HDF5 1.14 and 2.0.
"""

from __future__ import annotations

import errno
import threading
from collections.abc import Callable, Iterator
from typing import TypeAlias

__all__ = ["Walks", "bytes_at", "find_superblock"]

#: Reads so many bytes from an offset of the file on, fewer at its end.
ReadAt: TypeAlias = "Callable[[int, int], bytes]"

_SUPERBLOCK = b"\x89HDF\r\n\x1a\n"
_HEADER = 16
# HDF5 makes global heaps of 4 KiB, or as large as the text that is in them.
_LARGEST_HEAP = 32 << 20
_END_OF_FREE_SPACE = 1
_MOST_FREE_PIECES = 1 << 20
_NODE_HEADER = 24
_GROUP_KEY = 8
# Size and filter mask of a chunk, then its place: one number an axis, and one for the element.
_CHUNK_KEYS = tuple(8 + 8 * (axes + 1) for axes in range(1, 33))


class Walks:
    """Looks at the bytes that HDF5 is about to get. Values are read inside of it, used as a context.

    Parameters
    ----------
    is_fixed
        Nobody changes the file: each node of a tree then has one parent for good.
    """

    def __init__(self, *, is_fixed: bool) -> None:
        self._is_fixed = is_fixed
        self._base: int | None = None
        self._parents: dict[int, int] = {}
        # Values may begin as a heap does, and HDF5 reads no heaps on the way to them; a thread says that it wants some.
        self._wants_values = threading.local()

    def __enter__(self) -> None:
        """From now on this thread reads values of a dataset that is open."""
        self._wants_values.now = True

    def __exit__(self, *_: object) -> None:
        self._wants_values.now = False

    def check(self, start: int, data: memoryview, read_at: ReadAt) -> None:
        """Look at bytes from an offset on; those that begin with none of the signatures are let be.

        Raises
        ------
        OSError
            HDF5 would not come to an end with them, or the file is of a kind in which that cannot be told.
        """
        signature = bytes(data[:4])
        if signature not in (b"TREE", b"HEAP", b"GCOL"):
            return
        base = self._base_address(read_at)
        if signature == b"TREE":
            self._check_node(start, data, base, read_at)
        elif getattr(self._wants_values, "now", False):
            return
        elif signature == b"HEAP":
            _check_local_heap(start, data, base, read_at)
        else:
            _check_global_heap(start, data, read_at)

    def _check_node(self, start: int, data: memoryview, base: int, read_at: ReadAt) -> None:
        if len(data) > _NODE_HEADER and data[5] > 0:
            for children in _readings(data):
                self._check_children(start, data[5], [base + child for child in children], read_at)

    def _check_children(self, start: int, level: int, places: list[int], read_at: ReadAt) -> None:
        seen: set[int] = set()
        for place in places:
            found = read_at(place, 8)
            if found[:4] != b"TREE":
                continue  # HDF5 says so itself
            if found[5] >= level:
                raise OSError(errno.EIO, f"damaged B-tree: a node of level {level} leads to one of level {found[5]}")
            # Without loops, but with many ways to one node, a walk is as good as endless.
            parent = self._parents.setdefault(place, start) if self._is_fixed else start
            if place in seen or parent != start:
                raise OSError(errno.EIO, f"damaged B-tree: there are two ways to the node at {place}")
            seen.add(place)

    def _base_address(self, read_at: ReadAt) -> int:
        """Where addresses count from: the superblock, in front of which somebody may have put something else."""
        if self._base is None:
            offset, superblock = find_superblock(read_at)
            if not superblock:
                return 0  # being made
            _check_widths(superblock)
            self._base = offset
        return self._base


def bytes_at(fill: Callable[[memoryview, int], object], size: int, start: int, count: int) -> bytes:
    """What ``fill(room, offset)`` reads of a file of ``size`` bytes, fewer than ``count`` at its end."""
    if start >= size:
        return b""
    room = bytearray(min(count, size - start))
    fill(memoryview(room), start)
    return bytes(room)


def find_superblock(read_at: ReadAt) -> tuple[int, bytes]:
    """Where a file's superblock is, and the first 16 bytes of it; none where there is none."""
    offset = 0
    while len(found := read_at(offset, 16)) == 16:
        if found[:8] == _SUPERBLOCK:
            return offset, found
        offset = max(512, 2 * offset)
    return 0, b""


def _check_global_heap(start: int, data: memoryview, read_at: ReadAt) -> None:
    if bytes(data[4:8]) != b"\x01\0\0\0":
        return
    size = _number(data, 8)
    if size > _LARGEST_HEAP:
        raise OSError(errno.EFBIG, f"global heap of {size} bytes")
    if size > len(data):
        # HDF5 asks for 4 KiB, and then for what is left, which has no signature.
        data = memoryview(bytes(data) + read_at(start + len(data), size - len(data)))
    end = min(size, len(data))
    at = _HEADER
    while at + _HEADER <= end:
        number, length = int.from_bytes(data[at : at + 2], "little"), _number(data, at + 8)
        # Free space counts its own header.
        needed = length if number == 0 else _HEADER + -(-length // 8) * 8
        if needed < _HEADER or at + needed > size:
            raise OSError(errno.EIO, f"damaged global heap: object {number} of {length} bytes")
        at += needed


def _check_local_heap(start: int, data: memoryview, base: int, read_at: ReadAt) -> None:
    if len(data) < 32:
        data = memoryview(read_at(start, 32))
    if bytes(data[4:8]) != bytes(4) or len(data) < 32:
        return
    size, free, address = (_number(data, at) for at in (8, 16, 24))
    seen = 0
    while free != _END_OF_FREE_SPACE and free + 16 <= size:
        piece = read_at(base + address + free, 16)
        if len(piece) < 16:
            return  # HDF5 says so itself
        seen += 1
        if seen > min(size // 16, _MOST_FREE_PIECES):
            raise OSError(errno.EIO, f"damaged local heap: {seen} pieces of free space in {size} bytes")
        free = _number(piece, 0)


def _number(data: memoryview | bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 8], "little")


def _check_widths(superblock: bytes) -> None:
    """Refuse addresses and lengths of other than 8 bytes, which nobody makes any more (``H5Pset_sizes``)."""
    at = 13 if superblock[8] < 2 else 9
    if superblock[at] != 8 or superblock[at + 1] != 8:
        raise OSError(errno.EINVAL, f"addresses of {superblock[at]} and lengths of {superblock[at + 1]} bytes")


def _readings(node: memoryview) -> Iterator[list[int]]:
    """Addresses of the nodes below one. How long its keys are is told by how long it is, nearly always in one way."""
    used = int.from_bytes(node[6:8], "little")
    for key in (_GROUP_KEY,) if node[4] == 0 else _CHUNK_KEYS:
        # Keys and children take turns, with a key at both ends.
        most, rest = divmod(len(node) - _NODE_HEADER - key, 8 + key)
        if rest == most % 2 == 0:
            yield [_number(node, _NODE_HEADER + key + number * (8 + key)) for number in range(min(used, most))]
