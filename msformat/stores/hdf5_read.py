"""Reading datasets: runs of whole chunks are unpacked here, in threads; everything else is left to HDF5.

HDF5 unpacks with zlib, one chunk after the other, in one thread of the process at a time. What :mod:`hdf5_chunks`
wrote, and h5py's ``compression="gzip"`` with or without ``shuffle=True``, is fetched packed and unpacked with ISA-L.
A packed chunk never yields more than its size; with HDF5 it grows as its writer pleases.
"""

from __future__ import annotations

import itertools
import math
from collections import deque
from collections.abc import Iterator
from concurrent.futures import Future
from dataclasses import dataclass
from functools import lru_cache, partial
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from msformat.errors import CorruptTensorError
from msformat.room import check_room
from msformat.selection import Region
from msformat.stores import hdf5_guard as guard
from msformat.stores.hdf5_chunks import UNPACK_ERRORS, ChunkPipeline, inflate

__all__ = ["OpenDataset", "PackedChunks", "check_dataset", "read_region"]

_READ_ERRORS: tuple[type[Exception], ...] = (OSError, RuntimeError, TypeError, *UNPACK_ERRORS)

# First element of the chunk, what is taken of it, where that goes; one each an axis.
_Part: TypeAlias = "tuple[int, slice, slice]"
_FLETCHER_BYTES = 4


class _LeftToHdf5(Exception):  # noqa: N818 (a way out, not an error)
    """Only HDF5 can tell whether this chunk is packed at all."""


@dataclass(frozen=True, slots=True)
class PackedChunks:
    """Chunks that can be unpacked here.

    Attributes
    ----------
    whole
        Shape of the dataset.
    shape
        Shape of a chunk.
    itemsize
        Bytes of an element.
    shuffled
        Whether shuffle is the first filter; deflate is the last.
    """

    whole: tuple[int, ...]
    shape: tuple[int, ...]
    itemsize: int
    shuffled: bool

    @property
    def nbytes(self) -> int:
        """Bytes of an unpacked chunk."""
        return math.prod(self.shape) * self.itemsize

    def open(self, raw: bytes, mask: int) -> NDArray[np.uint8]:
        """Undo deflate, unless the mask says that it was skipped.

        Raises
        ------
        UNPACK_ERRORS
            It is no deflate stream, or a damaged one, or gives another number of bytes than a chunk has.
        """
        skipped = mask >> int(self.shuffled) & 1
        data = raw if skipped else inflate(raw, self.nbytes)
        if len(data) != self.nbytes:
            raise ValueError(f"a chunk of {self.nbytes} bytes has {len(data)}")
        return np.frombuffer(data, np.uint8)

    def place(self, data: NDArray[np.uint8], mask: int, out: NDArray[np.uint8]) -> None:
        """Undo shuffle on the way into ``out``, flat bytes of a chunk."""
        if not self.shuffled or mask & 1:
            out[:] = data
            return
        elements = out.reshape(-1, self.itemsize)
        for number, plane in enumerate(data.reshape(self.itemsize, -1)):
            elements[:, number] = plane


@dataclass(slots=True)
class OpenDataset:
    """A tensor's dataset that is open. It is checked in front of its first read.

    Attributes
    ----------
    key
        Of the tensor.
    dataset
        In h5py's low-level terms.
    described
        What it is.
    label
        What errors call it.
    """

    key: str
    dataset: Any
    described: guard.Described
    label: str
    _packed: PackedChunks | None = None
    _is_checked: bool = False

    def read(self, region: Region, file_size: int, pipeline: ChunkPipeline) -> NDArray[Any]:
        """Stored bits of a region. Raises as :func:`check_dataset` and :func:`read_region` do."""
        if not self._is_checked:
            self._packed = check_dataset(self.dataset, self.described, file_size, self.label)
            self._is_checked = True
        if self.described.axes is not None:
            return _read_row(self.dataset, self.described, region, self.label)
        return read_region(self.dataset, self.described, region, self.label, self._packed, pipeline)


def check_dataset(dataset: Any, described: guard.Described, file_size: int, label: str) -> PackedChunks | None:
    """Check a dataset before it is read, as :func:`msformat.stores.hdf5_guard.check_backing` does.

    Parameters
    ----------
    described
        What :func:`msformat.stores.hdf5_guard.describe` found.
    file_size
        Bytes of the file.

    Returns
    -------
    PackedChunks | None
        How its chunks are unpacked here; None where HDF5 has to do it.
    """
    plan = guard.check_backing(dataset, described, file_size, label)
    if plan is None:
        return None
    with guard.named_errors(label, CorruptTensorError):
        packed = _packed_chunks(dataset, plan, described)
        _check_places(dataset, described.whole, label, least=0 if packed is not None else _least_chunk(plan))
        return packed


def _check_places(dataset: Any, shape: tuple[int, ...], label: str, *, least: int) -> None:
    """Refuse chunks that lie outside of the shape, where that may grow up to a limit, and what no filter can have made.

    HDF5 finds a chunk's place in its index by that limit, and believes both: a wrong one leads it out of its memory. So
    does a chunk of fewer bytes than the checksum that its filter takes off.

    Parameters
    ----------
    least
        Bytes that a chunk has at least, where HDF5 itself unpacks it; 0 where it does not.
    """
    most = dataset.get_space().get_simple_extent_dims(maxdims=True)
    is_limited = most != shape and guard.load_h5py().h5s.UNLIMITED not in most
    if not (is_limited or least):
        return
    for place, size in _chunks_of(dataset):
        if any(at >= length for at, length in zip(place, shape, strict=True)):
            raise CorruptTensorError(f"{label}: a chunk at {place} lies outside of the shape {shape}")
        if size < least:
            raise CorruptTensorError(f"{label}: the chunk at {place} has only {size} bytes")


def _chunks_of(dataset: Any) -> list[tuple[tuple[int, ...], int]]:
    """First element and stored bytes of each chunk. HDF5 counts from the first on for each one that is asked for."""
    found: list[tuple[tuple[int, ...], int]] = []
    if hasattr(dataset, "chunk_iter"):
        dataset.chunk_iter(lambda chunk: found.append((chunk.chunk_offset, chunk.size)))
    else:  # an HDF5 older than 1.10.10 or 1.12.3
        chunks = map(dataset.get_chunk_info, range(dataset.get_num_chunks()))
        found += [(chunk.chunk_offset, chunk.size) for chunk in chunks]
    return found


def _least_chunk(plan: Any) -> int:
    """The fewest bytes that the filters of a dataset make of a chunk; 0 without filters."""
    codes = {plan.get_filter(number)[0] for number in range(plan.get_nfilters())}
    return 0 if not codes else 1 + _FLETCHER_BYTES * (guard.load_h5py().h5z.FILTER_FLETCHER32 in codes)


def _packed_chunks(dataset: Any, plan: Any, described: guard.Described) -> PackedChunks | None:
    h5py = guard.load_h5py()
    if not hasattr(dataset, "read_direct_chunk"):
        return None
    storage, kind = described.dtype.storage, dataset.get_type()
    filters = [plan.get_filter(number) for number in range(plan.get_nfilters())]
    shuffled = len(filters) == 2 and filters[0][0] == h5py.h5z.FILTER_SHUFFLE
    if len(filters) != 1 + shuffled or filters[-1][0] != h5py.h5z.FILTER_DEFLATE:
        return None
    if shuffled and tuple(filters[0][2][:1]) != (storage.itemsize,):
        return None
    if not any(kind == same for same in _file_types(storage)):
        return None
    return PackedChunks(described.whole, tuple(plan.get_chunk()), storage.itemsize, shuffled)


@lru_cache(maxsize=64)
def _file_types(storage: np.dtype[Any]) -> tuple[Any, Any]:
    """HDF5 types whose values have the bits of ``storage``; they differ for bool and complex."""
    h5py = guard.load_h5py()
    return h5py.h5t.py_create(storage), h5py.h5t.py_create(storage, logical=True)


def read_region(
    dataset: Any,
    described: guard.Described,
    region: Region,
    label: str,
    packed: PackedChunks | None,
    pipeline: ChunkPipeline,
) -> NDArray[Any]:
    """Stored bits of a region; of a chunked dataset only the chunks it touches are read.

    Parameters
    ----------
    dataset
        One that passed :func:`check_dataset`.
    described
        What that was told.
    packed
        What that returned.
    pipeline
        Whose threads help.

    Raises
    ------
    CorruptTensorError
        They cannot be read: a chunk does not unpack, or the file ends too early.
    """
    # What the file stores was checked against the shape before; what it unpacks to may still be more than memory.
    dtype, shape = described.dtype, region.shape
    check_room(math.prod(shape) * dtype.itemsize, label)
    bits: NDArray[Any] = np.empty(dtype.stored_shape(shape), dtype.storage)
    if bits.size == 0:
        return bits
    slices = (*region.slices, *((slice(0, dtype.lanes, 1),) if dtype.lanes > 1 else ()))
    try:
        if packed is None or not (bits.shape == packed.whole or _takes_most(slices, packed)):
            _read_by_hdf5(dataset, described.whole, slices, bits)
            return bits
        try:
            _read_packed(dataset, slices, bits, packed, pipeline)
        except _LeftToHdf5:
            _read_by_hdf5(dataset, described.whole, slices, bits)
    except _READ_ERRORS as error:
        raise CorruptTensorError(f"{label}: stored bytes cannot be read: {error}") from error
    return bits


def _read_row(dataset: Any, described: guard.Described, region: Region, label: str) -> NDArray[Any]:
    """A region of what has too many axes for HDF5: all of the row is read."""
    dtype = described.dtype
    check_room(described.whole[0] * dtype.storage.itemsize, label)
    bits: NDArray[Any] = np.empty(described.whole, dtype.storage)
    try:
        if bits.size:
            _read_by_hdf5(dataset, described.whole, (), bits)
        # NumPy 1 has no room for so many axes, either: ValueError.
        return np.ascontiguousarray(bits.reshape(described.axes)[region.slices])
    except _READ_ERRORS as error:
        raise CorruptTensorError(f"{label}: stored bytes cannot be read: {error}") from error


def _read_by_hdf5(dataset: Any, whole: tuple[int, ...], slices: tuple[slice, ...], bits: NDArray[Any]) -> None:
    h5py = guard.load_h5py()
    memory = file = h5py.h5s.ALL
    if bits.shape != whole:
        file = dataset.get_space()
        file.select_hyperslab(tuple(s.start for s in slices), bits.shape, tuple(s.step for s in slices))
        memory = h5py.h5s.create_simple(bits.shape)
    dataset.read(memory, file, bits, _file_types(bits.dtype)[0])


def _takes_most(slices: tuple[slice, ...], packed: PackedChunks) -> bool:
    """Whether at least half of what the touched chunks hold is wanted. For less, HDF5 keeps chunks it unpacked."""
    touched = wanted = 1
    for taken, length, part in zip(slices, packed.whole, packed.shape, strict=True):
        touched *= min(-(-taken.stop // part) * part, length) - taken.start // part * part
        wanted *= len(range(taken.start, taken.stop, taken.step))
    return 2 * wanted >= touched and all(taken.step == 1 for taken in slices)


def _read_packed(
    dataset: Any, slices: tuple[slice, ...], bits: NDArray[Any], packed: PackedChunks, pipeline: ChunkPipeline
) -> None:
    """Fetch each chunk, and unpack it in a free thread, or here when all are busy."""
    places = list(itertools.product(*map(_cut, slices, packed.shape)))
    threads = min(pipeline.threads, len(places) - 1)
    running: deque[Future[None]] = deque()
    for parts in places:
        with guard.library_lock():
            mask, raw = dataset.read_direct_chunk(tuple(start for start, _, _ in parts))
        job = partial(_unpack, packed, raw, mask, parts, bits)
        future = pipeline.submit(job) if len(running) < threads else None
        if future is None:
            job()
        else:
            running.append(future)
        while running and running[0].done():
            running.popleft().result()
    for waited in running:
        waited.result()


def _cut(taken: slice, chunk: int) -> Iterator[_Part]:
    """Cut one axis of a region at the borders of chunks."""
    for start in range(taken.start // chunk * chunk, taken.stop, chunk):
        first, last = max(taken.start, start), min(taken.stop, start + chunk)
        yield start, slice(first - start, last - start), slice(first - taken.start, last - taken.start)


def _unpack(packed: PackedChunks, raw: bytes, mask: int, parts: tuple[_Part, ...], bits: NDArray[Any]) -> None:
    """Unpack a chunk into its place in ``bits``."""
    try:
        data = packed.open(raw, mask)
    except UNPACK_ERRORS as error:
        ends = (start + part for (start, _, _), part in zip(parts, packed.shape, strict=True))
        sticks_out = any(end > length for end, length in zip(ends, packed.whole, strict=True))
        # Newer files may keep chunks that stick out unpacked, without a word in their mask.
        if sticks_out and len(raw) == packed.nbytes and not isinstance(error, OverflowError):
            raise _LeftToHdf5 from error
        raise
    room = bits[tuple(result for _, _, result in parts)]
    if room.shape == packed.shape and room.flags.c_contiguous:
        packed.place(data, mask, room.reshape(-1).view(np.uint8))
        return
    whole = np.empty(packed.shape, bits.dtype)
    packed.place(data, mask, whole.reshape(-1).view(np.uint8))
    room[...] = whole[tuple(inside for _, inside, _ in parts)]
