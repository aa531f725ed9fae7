"""Large files behind a URL: the two ends that say what is in them, without all that lies between."""

from __future__ import annotations

import mmap

from msformat.filesystem import FileSystem, LocalFileSystem

__all__ = ["Look", "look_at"]

# Files up to this size are fetched whole; of larger ones so much of each end. A torch.save keeps its pickle at the
# start and its directory at the end.
_END_BYTES = 128 << 10


class Look:
    """What was read of a file to open it.

    Attributes
    ----------
    buffer
        The file: all of it, or with zeros between its ends, for which no memory is taken.
    is_whole
        Whether it is all of it.
    """

    __slots__ = ("buffer", "is_whole")

    def __init__(self, buffer: bytes | memoryview, *, is_whole: bool) -> None:
        self.buffer = buffer
        self.is_whole = is_whole


def look_at(files: FileSystem, path: str) -> Look:
    """Read or map a file; of a large one behind a URL the ends alone."""
    if isinstance(files, LocalFileSystem):
        return Look(files.map(path), is_whole=True)
    head = files.read(path, 0, _END_BYTES + 1)
    if len(head) <= _END_BYTES:
        return Look(head, is_whole=True)
    size = files.size(path)
    room = _zeros(size) if size > 2 * _END_BYTES else None
    if room is None:
        return Look(files.map(path), is_whole=True)
    room[: len(head)] = head
    tail = files.read(path, size - _END_BYTES, _END_BYTES)
    room[size - _END_BYTES : size - _END_BYTES + len(tail)] = tail
    return Look(memoryview(room), is_whole=False)


def _zeros(size: int) -> mmap.mmap | None:
    """Pages that take no memory until somebody writes them; None where the system has no such."""
    flags = getattr(mmap, "MAP_PRIVATE", 0) | getattr(mmap, "MAP_ANONYMOUS", 0) | getattr(mmap, "MAP_NORESERVE", 0)
    try:
        return mmap.mmap(-1, size, flags=flags) if flags else None
    except (OSError, ValueError, OverflowError):
        return None
