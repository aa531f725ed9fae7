"""Reading regions of Zarr v3 arrays: only the chunks they touch, each checked before memory is spent on it."""

from __future__ import annotations

import math
import threading
from collections import OrderedDict
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from msformat.errors import CorruptTensorError, FormatError
from msformat.filesystem import FileSystem, join
from msformat.room import check_room
from msformat.stores.zarr_metadata import ArrayMeta
from msformat.stores.zarr_shards import MISSING

__all__ = ["ChunkCache", "read_array", "read_region"]

# Up to this size an allocation is no danger, and asking for the size of each file first would cost more.
_TRUSTED_BYTES = 16 << 20
# Indices of shards that are kept while a region is read.
_INDICES = 64
_INDEX_BYTES = 32 << 20


class ChunkCache:
    """The chunks decoded last, for packs: one chunk holds many tensors."""

    def __init__(self, count: int = 4, largest: int = 16 << 20) -> None:
        self._chunks: OrderedDict[Hashable, NDArray[Any]] = OrderedDict()
        self._count = count
        self._largest = largest
        self._lock = threading.Lock()

    def get(self, where: Hashable) -> NDArray[Any] | None:
        """A chunk that was kept."""
        with self._lock:
            found = self._chunks.get(where)
            if found is not None:
                self._chunks.move_to_end(where)
            return found

    def put(self, where: Hashable, chunk: NDArray[Any]) -> None:
        """Keep a chunk, unless it is very big."""
        if chunk.nbytes > self._largest:
            return
        chunk.flags.writeable = False
        with self._lock:
            self._chunks[where] = chunk
            if len(self._chunks) > self._count:
                self._chunks.popitem(last=False)


@dataclass(frozen=True, slots=True)
class _Part:
    """What one chunk gives to one axis: its number, the slice in it, and the slice of the result."""

    chunk: int
    inside: slice
    result: slice


def read_array(fs: FileSystem, node: str, meta: ArrayMeta, what: str) -> NDArray[Any]:
    """A whole array."""
    return read_region(fs, node, meta, tuple(slice(0, length, 1) for length in meta.shape), what)


def read_region(
    fs: FileSystem,
    node: str,
    meta: ArrayMeta,
    slices: tuple[slice, ...],
    what: str,
    cache: ChunkCache | None = None,
) -> NDArray[Any]:
    """A region of an array in ``meta.storage``; may be a read-only view.

    Parameters
    ----------
    fs, node, meta
        Where it lies and what it is.
    slices
        One forward slice an axis, inside the shape.
    what
        What is read, for messages (``tensor 'x'``).
    cache
        Where to look for chunks first.

    Raises
    ------
    CorruptTensorError
        A chunk is missing, truncated or not decodable.
    """
    shape = tuple(len(range(s.start, s.stop, s.step)) for s in slices)
    if 0 in shape:
        return np.empty(shape, meta.storage)
    reader = _Chunks(fs, node, meta, what, cache)
    if all(s.start // chunk == (s.stop - 1) // chunk for s, chunk in zip(slices, meta.chunks, strict=True)):
        only = next(_regions(slices, meta.chunks))
        return np.asarray(reader.read(only)[tuple(part.inside for part in only)])
    if math.prod(shape) * meta.storage.itemsize > _TRUSTED_BYTES:
        for parts in _regions(slices, meta.chunks):
            reader.check(parts)
    check_room(math.prod(shape) * meta.storage.itemsize, what)
    result = np.empty(shape, meta.storage)
    for parts in _regions(slices, meta.chunks):
        result[tuple(part.result for part in parts)] = reader.read(parts)[tuple(part.inside for part in parts)]
    return result


def _regions(slices: tuple[slice, ...], chunks: tuple[int, ...]) -> Iterator[tuple[_Part, ...]]:
    """What each chunk gives. Lazy, unlike itertools.product: a stranger's grid may be endless."""
    if not slices:
        yield ()
        return
    for part in _parts(slices[0], chunks[0]):
        for others in _regions(slices[1:], chunks[1:]):
            yield (part, *others)


def _parts(taken: slice, chunk: int) -> Iterator[_Part]:
    """Cut one axis of a region at the borders of chunks; chunks that a long step jumps over are left out."""
    start, stop, step = taken.start, taken.stop, taken.step
    done = 0
    while start < stop:
        number = start // chunk
        base = number * chunk
        end = min(stop, base + chunk)
        count = len(range(start, end, step))
        yield _Part(number, slice(start - base, end - base, step), slice(done, done + count))
        done += count
        start += count * step


@dataclass(frozen=True, slots=True)
class _Chunks:
    fs: FileSystem
    node: str
    meta: ArrayMeta
    what: str
    cache: ChunkCache | None
    # A region crosses a shard several times, once a row of chunks, and is checked before it is read.
    indices: OrderedDict[str, NDArray[np.uint64]] = field(default_factory=OrderedDict)

    def _place(self, parts: tuple[_Part, ...]) -> tuple[str, int | None]:
        name, position = self.meta.file_of(tuple(part.chunk for part in parts))
        return join(self.node, name), position

    def read(self, parts: tuple[_Part, ...]) -> NDArray[Any]:
        place = path, position = self._place(parts)
        found = self.cache.get(place) if self.cache else None
        if found is not None:
            return found
        span = None if position is None else self._span(path, position)
        try:
            data = self.fs.map(path) if span is None else self.fs.part(path, *span)
        except OSError as error:
            raise self._missing(path, error) from error
        try:
            chunk = self.meta.pipeline.decode(data, self.meta.chunks, self.meta.storage)
        except ValueError as error:
            raise CorruptTensorError(f"{self.fs.describe(path)}: {self.what}: chunk is corrupt: {error}") from error
        if self.cache:
            self.cache.put(place, chunk)
        return chunk

    def _span(self, path: str, position: int) -> tuple[int, int]:
        """Start and length of a chunk in a shard."""
        if path not in self.indices:
            self.indices[path] = self._index(path)
            self._forget_indices()
        start, length = (int(number) for number in self.indices[path][position])
        if start == length == MISSING:
            raise self._missing(path, FileNotFoundError(f"chunk {position} of the shard"))
        return start, length

    def _forget_indices(self) -> None:
        kept = self.indices
        while len(kept) > _INDICES or (len(kept) > 1 and sum(each.nbytes for each in kept.values()) > _INDEX_BYTES):
            kept.popitem(last=False)

    def _index(self, path: str) -> NDArray[np.uint64]:
        assert self.meta.shards is not None
        try:
            return self.meta.shards.read_index(self.fs, path)
        except FormatError:
            raise
        except OSError as error:
            raise self._missing(path, error) from error
        except ValueError as error:
            raise CorruptTensorError(f"{self.fs.describe(path)}: {self.what}: shard is corrupt: {error}") from error

    def check(self, parts: tuple[_Part, ...]) -> None:
        """That what is stored of the chunk can hold what it must, before room for the result is made."""
        path, position = self._place(parts)
        span = None if position is None else self._span(path, position)
        try:
            size = self.fs.size(path) if span is None else span[1]
        except OSError as error:
            raise self._missing(path, error) from error
        if self.meta.pipeline.most(size) < self.meta.chunk_nbytes:
            raise CorruptTensorError(
                f"{self.fs.describe(path)}: {self.what}: {size} bytes cannot hold a chunk of {self.meta.chunk_nbytes}"
            )

    def _missing(self, path: str, error: OSError) -> CorruptTensorError:
        # Zarr would call this a chunk of fill values. A dump that lost its bytes must not read as zeros.
        return CorruptTensorError(
            f"{self.fs.describe(path)}: {self.what}: chunk cannot be read ({type(error).__name__}); it is lost, or was "
            "never written because it equals the fill value (zarr-python: write_empty_chunks=True writes it)"
        )
