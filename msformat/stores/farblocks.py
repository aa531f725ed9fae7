"""A file behind a URL that is read here and there, as HDF5 does: a little of each place, or a whole chunk.

fsspec's own files fetch 5 MiB wherever something is read. Here a large read fetches what it asks for, and small ones
share blocks; whoever reads on gets more blocks at a time, but never more than was read before.
"""

from __future__ import annotations

import io
from collections import OrderedDict
from typing import Any

from msformat.filesystem import FileSystem
from msformat.stores.hdf5_walks import Walks, bytes_at

__all__ = ["FarFile"]

#: What a small read fetches: on the way to an object store, that takes no longer than a byte.
BLOCK = 64 << 10
# 4 MiB at a time for one who reads from one end to the other, and twice as much kept.
_MOST_AT_ONCE = 64
_KEPT = 128


class FarFile(io.RawIOBase):
    """A file to read.

    Parameters
    ----------
    files
        Where it lies.
    path
        Of the file there.
    """

    def __init__(self, files: FileSystem, path: str) -> None:
        super().__init__()
        self._files = files
        self._path = path
        self._size = files.size(path)
        self._at = 0
        self.walks = Walks(is_fixed=True)
        self._blocks: OrderedDict[int, bytes] = OrderedDict()
        # The block behind the last ones fetched, and how many these were.
        self._next, self._run = -1, 1

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._size}[whence]
        self._at = max(0, start + offset)
        return self._at

    def readinto(self, buffer: Any) -> int:
        """Fill a buffer, up to the end of the file. OSError where the place gives less than it says it has."""
        room = memoryview(buffer).cast("B")
        wanted = min(len(room), max(0, self._size - self._at))
        self._fill(room[:wanted], self._at)
        start, self._at = self._at, self._at + wanted
        self.walks.check(start, room[:wanted], self._read_at)
        return wanted

    def _read_at(self, start: int, count: int) -> bytes:
        return bytes_at(self._fill, self._size, start, count)

    def _fill(self, room: memoryview, start: int) -> None:
        if len(room) >= BLOCK:
            room[:] = self._fetch(start, len(room))
            return
        done = 0
        while done < len(room):
            number, skipped = divmod(start + done, BLOCK)
            part = self._block(number)[skipped : skipped + len(room) - done]
            room[done : done + len(part)] = part
            done += len(part)

    def _block(self, number: int) -> bytes:
        if number not in self._blocks:
            self._run = min(2 * self._run, _MOST_AT_ONCE) if number == self._next else 1
            self._next = number + self._run
            self._keep(number, self._fetch(number * BLOCK, min(self._run * BLOCK, self._size - number * BLOCK)))
        self._blocks.move_to_end(number)
        return self._blocks[number]

    def _keep(self, number: int, data: bytes) -> None:
        for start in range(0, len(data), BLOCK):
            self._blocks[number + start // BLOCK] = data[start : start + BLOCK]
        while len(self._blocks) > _KEPT:
            self._blocks.popitem(last=False)

    def _fetch(self, start: int, length: int) -> bytes:
        found = self._files.read(self._path, start, length)
        if len(found) != length:
            where = self._files.describe(self._path)
            raise OSError(f"{where}: gave {len(found)} bytes where {length} were asked for")
        return found
