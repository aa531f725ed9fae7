"""Max, Min, Mean and L2 norm of a tensor's values on the host, by the rules of msprobe 8.1.0.

They are accurate to float32's rounding or better, where msprobe reduces in the tensor's own 16 bits, or in float32
what has more: float64 is reduced in float64, integers are summed in float64 and keep Max and Min as ints where a float
would not be exact. NaN anywhere makes all four NaN. bool: any and all, Mean and Norm None. Complex: of the absolute
value, Norm included. No dimensions: all four are the value itself, integers as they are (msprobe's Norm of -3 is -3).
None throughout for empty tensors and for types whose bits are no number here (packed int4, hifloat8).
"""

from __future__ import annotations

import math
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from msformat import DType, tensor_stats

__all__ = ["NO_STATISTICS", "Statistics", "statistics_of"]

Statistics: TypeAlias = "tuple[Any, Any, Any, Any]"

NO_STATISTICS: Statistics = (None, None, None, None)

# float32 sums of so many values are off by less than float32's own rounding; they are added up in float64.
_DOT = 1 << 11
# Squares and sums of such values stay finite and normal in float32.
_LARGE, _SMALL = 1e17, 1e-13
_EXACT = 1 << 53
_ONES = np.ones(_DOT, dtype=np.float32)


def statistics_of(bits: NDArray[Any], dtype: DType) -> Statistics:
    """Statistics of stored bits.

    Parameters
    ----------
    bits
        C-contiguous array of ``dtype.storage``, of the tensor's shape. It is read, never kept.
    dtype
        The element type.
    """
    if bits.size == 0:
        return NO_STATISTICS
    if bits.ndim == 0:
        return _of_one(dtype.from_bits(bits.reshape(1)), dtype)
    if dtype.name == "float32":
        return _of_float32(bits.reshape(-1))
    if dtype.name == "bfloat16":
        return _of_float32(dtype.widen_bfloat16(bits.reshape(-1)))
    if dtype.name == "float16":
        return _of_float32(bits.reshape(-1).astype(np.float32))
    return _of_others(bits, dtype)


def _of_one(values: NDArray[Any], dtype: DType) -> Statistics:
    if values.dtype.name != dtype.name:
        return NO_STATISTICS
    value = values[0]
    if values.dtype.kind == "b":
        return bool(value), bool(value), None, None
    if values.dtype.kind == "c":
        number: Any = math.hypot(float(value.real), float(value.imag))
    else:
        number = int(value) if values.dtype.kind in "iu" else float(value)
    return number, number, number, number


def _of_others(bits: NDArray[Any], dtype: DType) -> Statistics:
    found = tensor_stats(bits, dtype)
    largest, smallest, norm = found.max, found.min, found.norm
    if type(largest) is int and type(smallest) is int:
        largest, smallest = _float_if_exact(largest), _float_if_exact(smallest)
    if dtype.numpy.kind == "c" and largest is not None:
        norm = _norm_of_complex(bits)
    return largest, smallest, found.mean, norm


def _float_if_exact(value: int) -> float | int:
    """msprobe writes integers as floats; one that a float would change stays as it is."""
    return float(value) if -_EXACT <= value <= _EXACT else value


def _norm_of_complex(bits: NDArray[Any]) -> float:
    parts = np.ascontiguousarray(bits).reshape(-1).view(np.float32 if bits.dtype.itemsize == 8 else np.float64)
    with np.errstate(all="ignore"):
        wide = parts.astype(np.float64)
        largest = float(np.max(np.abs(wide)))
        if not math.isfinite(largest) or largest == 0:
            return largest
        scale = 2.0 ** min(max(math.frexp(largest)[1], -1022), 1023)  # a power of two changes no digit
        return float(np.linalg.norm(wide / scale)) * scale


def _of_float32(values: NDArray[np.float32]) -> Statistics:
    largest, smallest = float(values.max()), float(values.min())
    magnitude = max(largest, -smallest)
    if not math.isfinite(largest - smallest):
        return _not_finite(values, largest, smallest)
    if not _SMALL < magnitude < _LARGE:
        return _of_wide(values, largest, smallest)
    whole = values[: values.size - values.size % _DOT].reshape(-1, _DOT)
    rest = values[whole.size :]
    total = float(np.dot(whole, _ONES).sum(dtype=np.float64)) + float(rest.sum(dtype=np.float64))
    squares = float(np.matmul(whole[:, None, :], whole[:, :, None]).sum(dtype=np.float64))
    squares += float(np.square(rest, dtype=np.float64).sum())
    return largest, smallest, total / values.size, math.sqrt(squares)


def _not_finite(values: NDArray[np.float32], largest: float, smallest: float) -> Statistics:
    """Infinities or NaN, which the sum shows, or finite values as far apart as float32 goes."""
    if math.isfinite(largest) and math.isfinite(smallest):
        return _of_wide(values, largest, smallest)
    with np.errstate(all="ignore"):
        mean = float(values.sum(dtype=np.float64)) / values.size
    return largest, smallest, mean, math.nan if math.isnan(largest) else math.inf


def _of_wide(values: NDArray[np.float32], largest: float, smallest: float) -> Statistics:
    """In float64, which holds the square of every float32."""
    wide = values.astype(np.float64)
    return largest, smallest, float(wide.mean()), math.sqrt(float(wide.dot(wide)))
