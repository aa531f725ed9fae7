"""Documents in HDF5: rows of bytes, read whole, and told apart as they are stored."""

from __future__ import annotations

from typing import Any

import xxhash

from msformat.dtypes import dtype_named
from msformat.errors import CorruptTensorError, StoreError
from msformat.room import check_document
from msformat.selection import Region
from msformat.stores import hdf5_guard as guard
from msformat.stores.base import ReadOnlyBuffer
from msformat.stores.hdf5_chunks import ChunkPipeline
from msformat.stores.hdf5_read import PackedChunks, check_dataset, read_region

__all__ = ["Document"]

_UINT8 = dtype_named("uint8")
# Of 8 MiB each where we write them. A stranger's document of smaller ones is simply read.
_MOST_CHUNKS = 4096


class Document:
    """A document that lies in a group.

    Parameters
    ----------
    dataset
        Its dataset.
    file_size
        Bytes of the file.
    label
        What messages call it.

    Raises
    ------
    StoreError, CorruptTensorError, UnsafeInputError
        It is no row of bytes, or not what the file can hold.
    """

    def __init__(self, dataset: Any, file_size: int, label: str) -> None:
        described = guard.describe(dataset, label)
        if described.dtype is not _UINT8 or len(described.whole) != 1:
            raise StoreError(f"{label}: is no row of bytes")
        self.length = int(described.whole[0])
        self._packed: PackedChunks | None = check_dataset(dataset, described, file_size, label)
        check_document(self.length, dataset.get_storage_size, label)
        self._dataset = dataset
        self._described = described
        self._label = label

    def read(self, pipeline: ChunkPipeline) -> ReadOnlyBuffer:
        """All of it."""
        whole = Region((slice(0, self.length, 1),), (slice(None),))
        bits = read_region(self._dataset, self._described, whole, self._label, self._packed, pipeline)
        return bits.data.toreadonly()

    def seal(self, pipeline: ChunkPipeline) -> str:
        """A digest of its chunks as they are packed; of its bytes, where they are not."""
        starts = [] if self._packed is None else range(0, self.length, self._packed.shape[0])
        if not 0 < len(starts) <= _MOST_CHUNKS:
            return str(xxhash.xxh3_128_hexdigest(self.read(pipeline)))
        state = xxhash.xxh3_128(f"{self.length}".encode())
        with guard.named_errors(self._label, CorruptTensorError):
            for start in starts:
                with guard.library_lock():
                    mask, raw = self._dataset.read_direct_chunk((start,))
                state.update(b"%d:%d:" % (mask, len(raw)))
                state.update(raw)
        return str(state.hexdigest())
