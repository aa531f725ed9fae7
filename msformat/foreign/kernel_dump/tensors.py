"""Tensors of kernel dumps as stored tensors: nothing is read before values are asked for."""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Sequence
from functools import partial
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from msformat.dtypes import DType, dtype_named
from msformat.filesystem import FileSystem
from msformat.foreign.kernel_dump.device_layout import HostLayout
from msformat.foreign.kernel_dump.elements import Reading, unpack_int4
from msformat.selection import Region
from msformat.stores.base import StoredTensor
from msformat.stores.strided import Extent, FileTensor, as_stored

__all__ = ["BlockTensor", "MadeTensor", "joined_tensor", "open_block"]


class BlockTensor(FileTensor):
    """Elements that lie in a file in one piece, in the order of the device."""

    __slots__ = ("_start",)

    def __init__(
        self, fs: FileSystem, path: str, start: int, dtype: DType, shape: tuple[int, ...], *, key: str = ""
    ) -> None:
        strides = tuple(dtype.itemsize * math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
        nbytes = dtype.itemsize * math.prod(shape)
        extent = Extent(path, start, nbytes, 0, shape, strides, dtype.storage)
        decode = partial(as_stored, dtype=dtype, source=fs.describe(path))
        super().__init__(key, dtype, extent, fs, decode=decode)
        self._start = start

    @property
    def identity(self) -> Hashable | None:
        """A file holds many tensors: its place in it belongs to the identity."""
        file = super().identity
        return None if file is None else (file, self._start)


class MadeTensor(StoredTensor):
    """A tensor whose elements have to be unpacked, reordered or joined: read whole, then cut."""

    __slots__ = ("_make",)

    reads_parts: ClassVar[bool] = False

    def __init__(self, key: str, dtype: DType, shape: tuple[int, ...], make: Callable[[], NDArray[Any]]) -> None:
        super().__init__(key, dtype, shape)
        self._make = make

    def _read(self, region: Region) -> NDArray[Any]:
        return self._make()[region.slices]


def open_block(
    fs: FileSystem, path: str, start: int, reading: Reading, *, key: str = "", host: HostLayout | None = None
) -> StoredTensor:
    """The tensor of a block.

    Parameters
    ----------
    start
        Byte in the file where it begins.
    host
        How to get the framework's layout; None for the device's.
    """
    if not reading.is_packed:
        plain = BlockTensor(fs, path, start, reading.dtype, reading.shape, key=key)
        if host is None:
            return plain
        return MadeTensor(key, reading.dtype, host.shape, lambda: host.apply(plain.bits()))
    packed = BlockTensor(fs, path, start, dtype_named("uint8"), (reading.nbytes,))
    unpack = partial(_unpacked, packed, reading.shape, host)
    return MadeTensor(key, reading.dtype, reading.shape if host is None else host.shape, unpack)


def _unpacked(packed: StoredTensor, shape: tuple[int, ...], host: HostLayout | None) -> NDArray[Any]:
    values = unpack_int4(packed.bits(), shape)
    return values if host is None else host.apply(values)


def joined_tensor(key: str, parts: Sequence[StoredTensor], axis: int) -> StoredTensor:
    """Slices of one tensor, one behind the other along an axis."""
    first = parts[0]
    length = sum(part.shape[axis] for part in parts)
    shape = (*first.shape[:axis], length, *first.shape[axis + 1 :])
    return MadeTensor(key, first.dtype, shape, lambda: np.concatenate([part.bits() for part in parts], axis))
