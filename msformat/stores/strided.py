"""A tensor that lies uncompressed in a file, and a slice of it read without the rest.

Used by ``.npy`` and ``.pt`` alike. Sizes are checked against the file before anything is allocated.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable
from dataclasses import dataclass
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from msformat.dtypes import DType
from msformat.errors import CorruptTensorError, FormatError, UnsafeInputError
from msformat.filesystem import FileSystem, LocalFileSystem
from msformat.room import check_room
from msformat.selection import Region
from msformat.stores.base import StoredTensor

__all__ = ["Extent", "FileTensor", "as_stored", "little_endian", "narrow_bfloat16"]

Check: TypeAlias = "Callable[[], None]"
# Files up to this size stay in memory between looking at the header and reading, so that they are opened once.
KEPT_BYTES = 1 << 13
# A view may repeat what is stored (stride 0); beyond this a declared size must be backed by stored bytes.
_REPEATED_BYTES = 64 << 20
# What is fetched from a URL at once; more comes in pieces, into its place.
_ONE_REQUEST = 64 << 20
# Larger tensors are not read to be looked at once.
_BORROWED_FROM = 64 << 20


@dataclass(frozen=True, slots=True)
class Extent:
    """Elements in a file.

    Attributes
    ----------
    path
        Of the file, relative to the file system's root.
    start, nbytes
        The bytes that belong to the tensor's storage: nothing else is ever read.
    offset
        Byte, from ``start``, of the element with all indices 0.
    strides
        In bytes, never negative.
    element
        numpy type in the file, byte order included.
    """

    path: str
    start: int
    nbytes: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    element: np.dtype[Any]

    def check(self, source: str) -> None:
        """Refuse a view that reaches beyond its storage.

        Raises
        ------
        CorruptTensorError
            The bytes stored are fewer than the declared shape needs.
        """
        if 0 in self.shape:
            return
        needed = self.offset + self._reach(self.shape) + self.element.itemsize
        if needed > self.nbytes:
            raise CorruptTensorError(
                f"{source}: shape {list(self.shape)} needs {needed} bytes, the storage has {self.nbytes}"
            )

    def check_repeats(self, source: str) -> int:
        """Refuse a view that repeats its storage without end; returns how many bytes it has.

        Raises
        ------
        UnsafeInputError
            It has more bytes than are stored, and more than a few.
        """
        wanted = math.prod(self.shape) * self.element.itemsize
        if wanted > max(self.nbytes, _REPEATED_BYTES):
            raise UnsafeInputError(
                f"{source}: a view of {wanted} bytes repeats a storage of {self.nbytes}: read a slice of it"
            )
        return wanted

    def _reach(self, shape: tuple[int, ...]) -> int:
        return sum((length - 1) * stride for length, stride in zip(shape, self.strides, strict=True))

    def select(self, region: Region) -> Extent:
        """The extent of ``region.slices``."""
        shape = region.shape
        if shape == self.shape:
            return self
        offset = self.offset + sum(s.start * stride for s, stride in zip(region.slices, self.strides, strict=True))
        strides = tuple(s.step * stride for s, stride in zip(region.slices, self.strides, strict=True))
        return Extent(self.path, self.start, self.nbytes, offset, shape, strides, self.element)

    def read(self, files: FileSystem, source: str, kept: bytes | memoryview | None = None) -> NDArray[Any]:
        """All elements, as an array of ``element`` that may be a view of a map; ``kept`` is the whole file, if held."""
        wanted = self.check_repeats(source)
        if wanted == 0:
            return self._empty(source)
        check_room(wanted, source)
        hull = self.hull
        first = self.start + self.offset
        if kept is not None:
            return self._view(kept, first, source)
        if hull > 4 * wanted and hull > KEPT_BYTES and isinstance(files, LocalFileSystem):
            return self._view(files.map(self.path), first, source)
        return self._view(_read_range(files, self.path, first, hull, source), 0, source)

    @property
    def hull(self) -> int:
        """Bytes from the first element to the last."""
        return self._reach(self.shape) + self.element.itemsize

    def view(self, file: bytes | memoryview, source: str) -> NDArray[Any]:
        """All elements, as a view of the whole file's bytes."""
        return self._view(file, self.start + self.offset, source)

    def _empty(self, source: str) -> NDArray[Any]:
        try:
            return np.empty(self.shape, self.element)
        except (ValueError, OverflowError) as error:
            raise UnsafeInputError(f"{source}: shape {list(self.shape)}: {error}") from error

    def _view(self, buffer: Any, first: int, source: str) -> NDArray[Any]:
        try:
            return np.ndarray(self.shape, self.element, buffer=buffer, offset=first, strides=self.strides)
        except (TypeError, ValueError, OverflowError) as error:
            # numpy checks the bounds once more; a file that shrank since it was opened ends here.
            raise CorruptTensorError(f"{source}: {error}") from error


def _read_range(files: FileSystem, path: str, first: int, length: int, source: str) -> NDArray[np.uint8]:
    if length <= _ONE_REQUEST and not isinstance(files, LocalFileSystem):
        # A stream would fetch what follows as well.
        data = files.read(path, first, length)
        if len(data) < length:
            raise CorruptTensorError(f"{source}: ends {length - len(data)} bytes too early")
        return np.frombuffer(data, np.uint8)
    buffer = np.empty(length, np.uint8)
    got = 0
    with files.open(path) as stream:
        stream.seek(first)
        while got < length:
            count = stream.readinto(buffer[got:].data)  # type: ignore[attr-defined] # every raw and fsspec file has it
            if not count:
                raise CorruptTensorError(f"{source}: ends {length - got} bytes too early")
            got += count
    return buffer


class FileTensor(StoredTensor):
    """A tensor in one file.

    Parameters
    ----------
    decode
        Turns elements as they lie in the file into stored bits (byte order, narrowing, lazy conjugation).
    check
        A further check of ``verify``, of what the file itself says about its content.
    kept
        The whole file, if it is small enough to be held until the first read.
    """

    __slots__ = ("_check", "_decode", "_extent", "_files", "_kept", "_source")

    def __init__(
        self,
        key: str,
        dtype: DType,
        extent: Extent,
        files: FileSystem,
        *,
        decode: Callable[[NDArray[Any]], NDArray[Any]],
        check: Check | None = None,
        kept: bytes | memoryview | None = None,
        digest: str | None = None,
    ) -> None:
        self._source = files.describe(extent.path)
        super().__init__(key, dtype, _logical_shape(extent, dtype, self._source), digest)
        self._extent = extent
        self._files = files
        self._decode = decode
        self._check = check
        self._kept = kept if kept is not None and len(kept) <= KEPT_BYTES else None
        extent.check(self._source)

    @property
    def identity(self) -> Hashable | None:
        return self._files.identity(self._extent.path)

    def _read(self, region: Region) -> NDArray[Any]:
        kept, self._kept = self._kept, None
        lanes = len(self._extent.shape) - len(region.slices)
        if lanes:
            tail = tuple(slice(0, length, 1) for length in self._extent.shape[len(region.slices) :])
            region = Region((*region.slices, *tail), region.post)
        return self._decode(self._extent.select(region).read(self._files, self._source, kept))

    def check_whole(self) -> None:
        self._extent.check_repeats(self._source)

    def bits_of(self, file: bytes) -> NDArray[Any]:
        """All bits, out of the whole file's bytes that somebody read already."""
        self._kept = file
        return self.bits()

    def borrowed_bits(self) -> NDArray[Any]:
        """A view of the map, for what is large, dense, and stored as it is."""
        extent = self._extent
        is_dense = math.prod(extent.shape) * extent.element.itemsize == extent.hull and 0 not in extent.shape
        if not is_dense or extent.hull < _BORROWED_FROM or not isinstance(self._files, LocalFileSystem):
            return self.bits()
        found = self._decode(extent.view(self._files.map(extent.path), self._source))
        return found if found.flags.c_contiguous else self.bits()

    def verify(self) -> None:
        """Read everything; compare with the digest or checksum that was recorded, where there is one."""
        if self._check is not None:
            self._check()
        super().verify()


def _logical_shape(extent: Extent, dtype: DType, source: str) -> tuple[int, ...]:
    """The shape without the lanes axis, which raw bits of wide types have and elements numpy knows do not."""
    if dtype.lanes == 1 or extent.element.itemsize != dtype.storage.itemsize:
        return extent.shape
    if extent.shape[-1:] != (dtype.lanes,):
        raise FormatError(
            f"{source}: shape {list(extent.shape)} does not end in the {dtype.lanes} bytes of {dtype.name}"
        )
    return extent.shape[:-1]


def little_endian(array: NDArray[Any]) -> NDArray[Any]:
    """The same values in the byte order that stores keep."""
    if array.dtype.byteorder == ">" or (array.dtype.byteorder == "=" and not np.little_endian):
        return array.astype(array.dtype.newbyteorder("<"))
    return array


def narrow_bfloat16(array: NDArray[Any], source: str) -> NDArray[np.uint16]:
    """bfloat16 bits out of the float32 a ``.npy`` holds.

    Raises
    ------
    CorruptTensorError
        A value has more bits than a bfloat16.
    """
    wide = np.ascontiguousarray(little_endian(array)).reshape(array.shape).view(np.uint32)
    if np.any(wide & np.uint32(0xFFFF)):
        raise CorruptTensorError(f"{source}: said to hold bfloat16 values, yet holds others")
    return (wide >> np.uint32(16)).astype(np.uint16)


def as_stored(array: NDArray[Any], dtype: DType, source: str) -> NDArray[Any]:
    """Elements of a file as bits of ``dtype``, whichever of the two ways they were written in."""
    array = little_endian(array)
    if array.dtype == dtype.storage:
        return array
    if array.dtype == dtype.numpy or (array.dtype.itemsize == dtype.itemsize and dtype.lanes == 1):
        dense = np.ascontiguousarray(array).reshape(array.shape)
        return dtype.to_bits(dense.view(dtype.numpy))
    raise FormatError(f"{source}: elements of {array.dtype} are no {dtype.name}")
