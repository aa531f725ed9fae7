"""Stored bits as numbers to calculate with: float64, or complex128."""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray

from msformat.dtypes import DType
from msformat.smallfloats import to_float32

__all__ = ["element_kind", "is_wide_integer", "to_numbers"]

_NIBBLES = ("int4", "uint4")
_SMALL_FLOATS = ("bfloat16", "float8_", "hifloat8")


def element_kind(dtype: DType) -> str:
    """``b`` bool, ``i`` integers, ``f`` floating point, ``c`` complex, ``x`` for bits that mean no number here."""
    if dtype.name == "complex32":
        return "c"
    if dtype.name in _NIBBLES:
        return "i"
    if dtype.name.startswith(_SMALL_FLOATS):
        # What an old ml_dtypes lacks comes as plain storage.
        return "f" if dtype.name == "hifloat8" or dtype.numpy != dtype.storage else "x"
    kind = dtype.numpy.kind
    if kind in "iu":
        return "i" if dtype.is_native else "x"
    return kind if kind in "bfc" else "x"


def is_wide_integer(dtype: DType) -> bool:
    """Whether float64 does not hold every value."""
    return element_kind(dtype) == "i" and dtype.itemsize == 8


def to_numbers(bits: NDArray[Any], dtype: DType) -> NDArray[Any]:
    """Values behind stored bits as a float64 or complex128 array, exactly but for integers above 2**53.

    Parameters
    ----------
    bits
        C-contiguous array of ``dtype.storage``; flat, or with the lanes of ``dtype`` as last axis.
    dtype
        Of a kind other than ``x``.
    """
    if dtype.name == "complex32":
        pairs = bits.reshape(-1).view(np.float16).astype(np.float64)
        return pairs.view(np.complex128)
    if dtype.name in _NIBBLES:
        return np.asarray(dtype.from_bits(bits).astype(np.int8).astype(np.float64))
    if dtype.name.startswith(_SMALL_FLOATS):
        return np.asarray(to_float32(bits, dtype).astype(np.float64))
    values = dtype.from_bits(bits)
    return values.astype(np.complex128 if values.dtype.kind == "c" else np.float64)
