"""Tensors of one type and shape as rows of one Zarr array: a file each, and one array's metadata for all of them.

An array costs a directory and a ``zarr.json`` beside its chunks. A dump of a large model has thousands of large tensors
of a dozen shapes, so as rows they take one inode each instead of three.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from numpy.typing import NDArray

from msformat.dtypes import DType
from msformat.stores.codecs import SHARD_TARGET, Compression, chunk_shape, shard_shape
from msformat.stores.zarr_codecs import Encoder, array_encoder
from msformat.stores.zarr_metadata import array_document

__all__ = ["ROWS", "Cut", "Stack", "Stacks"]

# Attribute of such an array.
ROWS = "rows"


@dataclass(frozen=True, slots=True)
class Cut:
    """How an array is cut into files, and those into chunks.

    Attributes
    ----------
    shape
        Of the array.
    files
        Shape of what is one file: a shard of many chunks, or a chunk.
    chunks
        Shape of a chunk.
    """

    shape: tuple[int, ...]
    files: tuple[int, ...]
    chunks: tuple[int, ...]

    @classmethod
    def of(cls, shape: tuple[int, ...], itemsize: int, shard_bytes: int = SHARD_TARGET) -> Cut:
        """As every array of ours is cut. What is no larger than a chunk needs no shard."""
        chunks = chunk_shape(shape, itemsize)
        return cls(shape, shard_shape(shape, chunks, itemsize, shard_bytes), chunks)

    @property
    def shards(self) -> tuple[int, ...] | None:
        """Shape of a shard, None where each chunk is a file."""
        return self.files if self.files != self.chunks else None

    @property
    def counts(self) -> tuple[int, ...]:
        """Chunks in a file, an axis each."""
        return tuple(file // chunk for file, chunk in zip(self.files, self.chunks, strict=True))

    def chunks_of(self, file: tuple[int, ...]) -> Iterator[tuple[int, tuple[int, ...]]]:
        """Chunks in a file of the grid that are in the array: position in the file, and where in the array's grid."""
        for position, inside in enumerate(itertools.product(*map(range, self.counts))):
            chunk = tuple(at * count + one for at, count, one in zip(file, self.counts, inside, strict=True))
            if all(at * c < length for at, c, length in zip(chunk, self.chunks, self.shape, strict=True)):
                yield position, chunk

    @property
    def layout(self) -> tuple[int, int] | None:
        """Equal for arrays whose only file is the same where their bytes are; None for arrays of several files.

        A chunk is a run of elements, and only the last of a block, a whole turn of the axis that is cut, is filled up.
        So the elements of a chunk and of a block say where everything lies.
        """
        if any(length > file for length, file in zip(self.shape, self.files, strict=True)):
            return None
        cut = [axis for axis, count in enumerate(self.counts) if count > 1]
        return math.prod(self.chunks), math.prod(self.shape[cut[-1] if cut else 0 :])


class Stack:
    """An array of rows.

    Attributes
    ----------
    node
        Its path.
    encoder
        How its chunks are stored.
    cut
        How a row is cut.
    rows
        How many were given out.
    """

    def __init__(self, node: str, dtype: DType, bits: NDArray[Any], encoder: Encoder, cut: Cut) -> None:
        self.node = node
        self.encoder = encoder
        self.cut = cut
        self.rows = 0
        self._dtype = dtype
        self._storage = bits.dtype

    def metadata(self) -> bytes:
        """``zarr.json`` with the rows there are by now."""
        cut, logical = self.cut, {} if self._dtype.is_native else {"dtype": self._dtype.name}
        return array_document(
            (self.rows, *cut.shape),
            (1, *cut.chunks),
            self._storage,
            self.encoder,
            attributes={ROWS: True, **logical},
            shards=(1, *cut.shards) if cut.shards else None,
        )


class Stacks:
    """The arrays of rows of a unit being written.

    Parameters
    ----------
    compression
        Of what is put.
    first
        The first number that no array has as its name.
    shard_bytes
        The most that one file of a row holds.

    Notes
    -----
    A writer goes on with no array of an earlier one: what a dead one left in it is not known.
    """

    def __init__(self, compression: Compression, first: int, shard_bytes: int = SHARD_TARGET) -> None:
        self._compression = compression
        self._shard_bytes = shard_bytes
        self._next = first
        self._stacks: dict[tuple[str, tuple[int, ...]], Stack] = {}
        self._grown: dict[str, Stack] = {}

    def add(self, dtype: DType, bits: NDArray[Any]) -> tuple[Stack, int]:
        """The array for a tensor, and its row in it, which nothing else gets."""
        kind = dtype.name, bits.shape
        stack = self._stacks.get(kind)
        if stack is None:
            encoder = array_encoder(self._compression, bits.itemsize)
            cut = Cut.of(bits.shape, bits.itemsize, self._shard_bytes)
            stack = self._stacks[kind] = Stack(f"tensors/{self._next}", dtype, bits, encoder, cut)
            self._next += 1
        self._grown[stack.node] = stack
        stack.rows += 1
        return stack, stack.rows - 1

    def grown(self, node: str | None = None) -> Iterator[tuple[str, bytes]]:
        """Node and metadata of each array (or of one) that has more rows than it last said."""
        for each in [node] if node is not None else list(self._grown):
            stack = self._grown.get(each)
            if stack is not None:
                yield each, stack.metadata()
                # Only now, so that it is tried again where it could not be written.
                self._grown.pop(each, None)
