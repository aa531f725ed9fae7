"""Content digests: the 128-bit xxh3 of a tensor's dtype, shape and bits, and the CRC-32 of the format's ``md5`` field.

All of them let other threads run meanwhile, and copy nothing that is contiguous.

The xxh3 digest tells equal content from different content at memory speed; it is no cryptographic hash, so it protects
against bit rot and not against a forger.
"""

from __future__ import annotations

import zlib
from importlib import import_module
from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from msformat.dtypes import DType

__all__ = ["RunningSums", "byte_view", "canonical_crc32", "content_digest", "crc32"]


_PIECE = 32 << 20


def _find_isal() -> Any:
    """ISA-L's CRC-32 takes 12 GB a second, that of zlib 3.7 (one core)."""
    try:
        return import_module("isal.isal_zlib")
    except ImportError:
        return zlib


_fastest = _find_isal()


def crc32(data: bytes | bytearray | memoryview, value: int = 0) -> int:
    """``zlib.crc32``, by ISA-L where that is installed."""
    return int(_fastest.crc32(data, value))


def byte_view(bits: NDArray[Any]) -> memoryview:
    """The bytes of a C-contiguous array as a flat view; no copy.

    ``memoryview.cast`` refuses arrays with a zero in their shape, which is why this goes through a numpy view.
    """
    return bits.reshape(-1).view(np.uint8).data


def content_digest(bits: NDArray[Any], dtype: DType) -> str:
    """32 hex digits that are equal exactly when dtype, shape and bits are.

    Parameters
    ----------
    bits
        C-contiguous array in ``dtype.storage``.
    dtype
        The logical element type.
    """
    head = f"{dtype.name}{list(dtype.logical_shape(bits.shape))}".encode()
    state = xxhash.xxh3_128(head)
    _update(state, byte_view(bits))
    return str(state.hexdigest())


def _update(state: Any, data: memoryview) -> None:
    """Between pieces other threads get their turn, also where the library keeps the interpreter to itself."""
    if len(data) <= _PIECE:
        state.update(data)
        return
    for at in range(0, len(data), _PIECE):
        state.update(data[at : at + _PIECE])


def canonical_crc32(bits: NDArray[Any], dtype: DType) -> str:
    """The format's ``md5`` field: CRC-32 of the contiguous little-endian bytes in eight hex digits.

    bfloat16 is widened to float32 first, as msprobe 8.1.0 does (format.md §2); other types are taken as they are.
    """
    return f"{crc32(_canonical_bytes(bits, dtype)):08x}"


def _canonical_bytes(bits: NDArray[Any], dtype: DType) -> memoryview:
    data = dtype.widen_bfloat16(bits) if dtype.name == "bfloat16" else bits
    return byte_view(np.ascontiguousarray(data))


class RunningSums:
    """:func:`content_digest` and :func:`canonical_crc32` of a tensor that comes in pieces.

    Parameters
    ----------
    dtype, shape
        Of the whole tensor.
    with_crc32
        Whether that one is wanted, too.
    """

    def __init__(self, dtype: DType, shape: tuple[int, ...], *, with_crc32: bool = False) -> None:
        self._dtype = dtype
        self._state = xxhash.xxh3_128(f"{dtype.name}{list(shape)}".encode())
        self._crc: int | None = 0 if with_crc32 else None

    def add(self, bits: NDArray[Any]) -> None:
        """Take the next piece in C order: a C-contiguous array of ``dtype.storage``."""
        _update(self._state, byte_view(bits))
        if self._crc is not None:
            self._crc = crc32(_canonical_bytes(bits, self._dtype), self._crc)

    @property
    def digest(self) -> str:
        """The content digest so far."""
        return str(self._state.hexdigest())

    @property
    def checksum(self) -> str | None:
        """The CRC-32 so far, None where it was not wanted."""
        return None if self._crc is None else f"{self._crc:08x}"
