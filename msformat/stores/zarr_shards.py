"""Shards of Zarr v3: many chunks in one file, with an index of where each lies.

Source: https://zarr-specs.readthedocs.io/en/latest/v3/codecs/sharding-indexed/. The index is a row of pairs (offset,
bytes), 64-bit each, in the order of the chunks in the shard, at the file's end or start; both numbers of a chunk that
was not written are 2**64 - 1. A slice reads the index and the chunks it touches, nothing else of the file.
"""

from __future__ import annotations

import contextlib
import math
import os
import threading
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from msformat.atomic import begin_writing, make_private, make_public, temporary_sibling
from msformat.errors import FormatError, StoreError, UnsafeInputError
from msformat.filesystem import FileSystem
from msformat.stores.base import ReadOnlyBuffer
from msformat.stores.zarr_codecs import crc32c

__all__ = [
    "LITTLE_ENDIAN",
    "MISSING",
    "FileShard",
    "Shard",
    "Shards",
    "find_sharding",
    "parse_sharding",
    "sharding_codec",
]

LITTLE_ENDIAN = {"name": "bytes", "configuration": {"endian": "little"}}
_SHARDING = "sharding_indexed"
MISSING = (1 << 64) - 1
_ENTRY_BYTES = 16
_CHECKSUM_BYTES = 4
# An index of a shard of ours has 512 bytes. A million chunks in one file are nobody's.
_INDEX_LIMIT = 16 << 20


# --- reading -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Shards:
    """How the chunks of an array lie in its shards.

    Attributes
    ----------
    shape
        Of a shard.
    counts
        Chunks in a shard, an axis each.
    endian
        Byte order of the index: ``<`` or ``>``.
    checksum
        Whether a CRC-32C follows the index.
    at_end
        Whether the index is at the end of the file, not at its start.
    """

    shape: tuple[int, ...]
    counts: tuple[int, ...]
    endian: str
    checksum: bool
    at_end: bool

    @property
    def index_nbytes(self) -> int:
        """Bytes of the index."""
        return math.prod(self.counts) * _ENTRY_BYTES + (_CHECKSUM_BYTES if self.checksum else 0)

    def locate(self, chunk: tuple[int, ...]) -> tuple[tuple[int, ...], int]:
        """The shard a chunk lies in, and its position there."""
        position = 0
        for at, count in zip(chunk, self.counts, strict=True):
            position = position * count + at % count
        return tuple(at // count for at, count in zip(chunk, self.counts, strict=True)), position

    def read_index(self, fs: FileSystem, path: str) -> NDArray[np.uint64]:
        """Start and length of each chunk, every one of them inside the file and apart from the others.

        Raises
        ------
        ValueError
            The file is too short, or the index damaged or a lie.
        OSError
            The file cannot be read.
        """
        size = fs.size(path)
        if size < self.index_nbytes:
            raise ValueError(f"{size} bytes cannot hold an index of {self.index_nbytes}")
        data = fs.read(path, size - self.index_nbytes if self.at_end else 0, self.index_nbytes)
        if len(data) < self.index_nbytes:
            raise ValueError("the file became shorter")
        if self.checksum:
            data, stored = data[:-_CHECKSUM_BYTES], data[-_CHECKSUM_BYTES:]
            if crc32c(data) != int.from_bytes(stored, "little"):
                raise ValueError("the index does not match its crc32c")
        index = np.frombuffer(data, f"{self.endian}u8").astype(np.uint64).reshape(-1, 2)
        _check_index(index, size)
        return index


def _check_index(index: NDArray[np.uint64], size: int) -> None:
    """Two chunks in one place would let a small file pretend to hold very much."""
    written = index[(index != MISSING).any(axis=1)]
    if (written > size).any() or (written.sum(axis=1) > size).any():
        raise ValueError(f"the index points outside the {size} bytes of the file")
    written = written[written[:, 0].argsort(kind="stable")]
    if (written[:-1].sum(axis=1) > written[1:, 0]).any():
        raise ValueError("the index puts chunks over each other")


def find_sharding(codecs: object) -> Mapping[str, Any] | None:
    """The configuration of a chain of codecs that is one of shards, None for any other."""
    if not (isinstance(codecs, list) and len(codecs) == 1 and isinstance(codecs[0], dict)):
        return None
    configuration = codecs[0].get("configuration")
    return configuration if codecs[0].get("name") == _SHARDING and isinstance(configuration, dict) else None


def parse_sharding(
    configuration: Mapping[str, Any], shape: tuple[int, ...], chunks: tuple[int, ...], where: str
) -> Shards:
    """Check how shards of ``shape`` hold ``chunks``.

    Raises
    ------
    FormatError
        Chunks that do not fill a shard, or no valid index.
    UnsafeInputError
        An index beyond all measure.
    StoreError
        An index that is packed.
    """
    if any(length % chunk for length, chunk in zip(shape, chunks, strict=True)):
        raise FormatError(f"{where}: chunks of {list(chunks)} do not fill shards of {list(shape)}")
    location = configuration.get("index_location", "end")
    if location not in ("start", "end"):
        raise FormatError(f"{where}: index_location {location!r:.80} is neither 'start' nor 'end'")
    endian, checksum = _index_codecs(configuration.get("index_codecs"), where)
    counts = tuple(length // chunk for length, chunk in zip(shape, chunks, strict=True))
    found = Shards(shape, counts, endian, checksum, location == "end")
    if found.index_nbytes > _INDEX_LIMIT:
        raise UnsafeInputError(f"{where}: shards of {math.prod(counts)} chunks")
    return found


def _index_codecs(codecs: object, where: str) -> tuple[str, bool]:
    listed = codecs if isinstance(codecs, list) else []
    known: list[Any] = [{"name": each} if isinstance(each, str) else each for each in listed]
    names = [each.get("name") if isinstance(each, dict) else None for each in known]
    if names not in (["bytes"], ["bytes", "crc32c"]):
        raise StoreError(f"{where}: index_codecs {codecs!r:.200} are not supported: 'bytes', and 'crc32c' behind it")
    configuration = known[0].get("configuration", {})
    endian = configuration.get("endian", "little") if isinstance(configuration, dict) else None
    if endian not in ("little", "big"):
        raise FormatError(f"{where}: unknown byte order {endian!r:.80} of index_codecs")
    return "<" if endian == "little" else ">", len(names) == 2


# --- writing -----------------------------------------------------------------------------------------------------


def sharding_codec(chunks: tuple[int, ...], codecs: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What ``zarr.json`` says of the shards that :class:`Shard` makes, of chunks that went through ``codecs``."""
    configuration = {
        "chunk_shape": chunks,
        "codecs": codecs,
        "index_codecs": [LITTLE_ENDIAN, {"name": "crc32c"}],
        "index_location": "end",
    }
    return {"name": _SHARDING, "configuration": configuration}


class Shard(ABC):
    """A shard being written, by several threads: chunks one behind the other, then the index.

    Parameters
    ----------
    path
        Its file.
    count
        Chunks it may hold.
    positions
        Which of them it gets, ascending. With the last it is a whole shard, and has its name.

    Notes
    -----
    Chunks lie in the order of the index whoever is done first, so that equal tensors make equal files. One that comes
    before its turn waits in memory: that is never more than the shard.
    """

    def __init__(self, path: str, count: int, positions: Sequence[int]) -> None:
        self.path = path
        self._index = np.full((count, 2), MISSING, "<u8")
        self._end = 0
        self._turns = deque(positions)
        self._early: dict[int, ReadOnlyBuffer] = {}
        self._left = len(positions)
        self._lock = threading.Lock()

    def add(self, position: int, data: ReadOnlyBuffer) -> None:
        """Put a chunk, and those that waited for it; the last one makes the shard whole."""
        ready = self._in_turn(position, data)
        for start, chunk in ready:
            self._put(start, chunk)
        with self._lock:
            self._left -= len(ready)
            is_last = self._left == 0 and bool(ready)
        if is_last:
            self._finish()

    def _in_turn(self, position: int, data: ReadOnlyBuffer) -> list[tuple[int, ReadOnlyBuffer]]:
        """Chunks all of whose predecessors are here, and where each starts."""
        ready = []
        with self._lock:
            self._early[position] = data
            while self._turns and self._turns[0] in self._early:
                at = self._turns.popleft()
                chunk = self._early.pop(at)
                self._index[at] = self._end, len(chunk)
                ready.append((self._end, chunk))
                self._end += len(chunk)
        return ready

    def _finish(self) -> None:
        index = self._index.tobytes()
        self._put(self._end, index + crc32c(index).to_bytes(_CHECKSUM_BYTES, "little"))
        self._seal()

    def abandon(self) -> None:
        """Leave nothing of one that is not whole, once nobody adds to it any more."""
        self._early.clear()

    @abstractmethod
    def _put(self, start: int, data: ReadOnlyBuffer) -> None:
        """Write something where it starts; several threads may come here, in any order."""

    @abstractmethod
    def _seal(self) -> None:
        """Give the shard its name: all of it is written."""


class FileShard(Shard):
    """A shard in a file, which gets its name when it is whole. No descriptor stays open between two chunks.

    ``done`` is called with its path then. ``begin``: the disk will be waited for, and may begin now.
    """

    def __init__(
        self, path: str, count: int, positions: Sequence[int], done: Callable[[str], None], *, begin: bool
    ) -> None:
        super().__init__(path, count, positions)
        self._done = done
        self._begin = begin
        self._temporary = temporary_sibling(path)
        self._mode: int | None = None

    def _put(self, start: int, data: ReadOnlyBuffer) -> None:
        flags = os.O_WRONLY | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_BINARY", 0)
        try:
            self._make()
            with open(os.open(self._temporary, flags), "wb", buffering=0) as stream:
                stream.seek(start)
                rest = memoryview(data).cast("B")
                while rest:
                    rest = rest[stream.write(rest) :]
                if self._begin:
                    begin_writing(stream.fileno(), start, len(data))
        except OSError as error:
            raise OSError(error.errno, error.strerror, self.path) from error

    def _make(self) -> None:
        """Make the file, whichever thread comes first."""
        with self._lock:
            if self._mode is None:
                with open(self._temporary, "xb") as stream:
                    self._mode = make_private(stream.fileno())

    def _seal(self) -> None:
        if self._mode is not None:
            make_public(self._temporary, self._mode)
        os.replace(self._temporary, self.path)
        self._done(self.path)

    def abandon(self) -> None:
        super().abandon()
        with contextlib.suppress(OSError):
            os.unlink(self._temporary)
