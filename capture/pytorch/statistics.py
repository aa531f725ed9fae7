"""Max, Min, Mean and Norm of tensors, as msprobe 8.1.0 has them where it is right.

Floating point: of the values, sums accurate to float32 rounding or better, float64 in float64. NaN anywhere makes all
four NaN, as torch does. Integers: floats (``Max 9.0``), but where that would not be exact Max and Min stay ints; Mean
and Norm in float64. bool: any and all, Mean and Norm None. Complex: of the absolute value, Norm None. None throughout
for empty tensors and for element types whose bits are no number here (packed float4, bit types).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, TypeAlias

import numpy as np
import torch

from capture.pytorch.hostcopy import array_type, live_array
from capture.pytorch.raw import (
    aminmax,
    complex_abs,
    copy_to,
    data_ptr,
    dot,
    element_size,
    item,
    mean,
    numel,
    summed,
    vector_norm,
    view,
)
from msformat import parse_dtype

__all__ = ["NO_STATISTICS", "Reduce", "Statistics", "float_if_exact", "of_one", "reducer"]

Statistics: TypeAlias = "tuple[Any, Any, Any, Any]"
Reduce: TypeAlias = "Callable[[torch.Tensor], Statistics]"

NO_STATISTICS: Statistics = (None, None, None, None)

# A float32 dot keeps float32 sums: off over 2**17 values by 5e-6 where they have few digits (bfloat16), over 2**25 by
# 4e-4; in pieces of this length by 1e-7 (MKL and OpenBLAS, measured).
_DOT = 1 << 11
# Squares and sums of such values stay finite and normal: in float32, and in float64.
_LARGE32, _SMALL32 = 1e17, 1e-13
_LARGE, _SMALL = 1e140, 1e-140
_EXACT = 1 << 53
_PIECE = 1 << 22
_ONES, _ONES32 = np.ones(_DOT, dtype=np.float64), np.ones(_DOT, dtype=np.float32)


def _vecdot(left: Any, right: Any) -> Any:
    return np.matmul(left[:, None, :], right[..., None])


_VECDOT: Callable[[Any, Any], Any] = getattr(np, "vecdot", _vecdot)  # numpy 2


def reducer(dtype: torch.dtype, precision: str = "high") -> Reduce:
    """What computes the statistics of a contiguous, non-empty CPU tensor of a type.

    ``precision`` is ``high``, or ``low``: 16-bit types are reduced in their own type, as msprobe does.
    """
    if precision == "low" and dtype in (torch.float16, torch.bfloat16):
        return _of_half_in_its_type
    return _REDUCERS.get(dtype) or (_of_bytes(dtype) if dtype.itemsize == 1 else _none)


def float_if_exact(value: int) -> float | int:
    """An integer as a float, unless that would change it."""
    return float(value) if -_EXACT <= value <= _EXACT else value


def of_one(value: Any) -> Statistics:
    """Statistics of a tensor of one element, from that element."""
    if isinstance(value, bool):
        return value, value, None, None
    if isinstance(value, complex):
        modulus = math.hypot(value.real, value.imag)
        return modulus, modulus, modulus, None
    kept = float_if_exact(value) if isinstance(value, int) else value
    return kept, kept, float(value), abs(float(value))


def _none(_tensor: torch.Tensor) -> Statistics:
    return NO_STATISTICS


def _of_float32(tensor: torch.Tensor) -> Statistics:
    count = numel(tensor)
    memory: Any = array_type(4 * count).from_address(data_ptr(tensor))
    values = np.frombuffer(memory, np.float32)
    if count <= _DOT:
        # Calls are what costs here, and numpy's are shorter; argmax and argmin find a NaN first.
        largest, smallest = float(values[values.argmax()]), float(values[values.argmin()])
    else:
        # numpy keeps to this thread: torch's reductions wait for OpenMP's, which training and writer compete with.
        largest, smallest = float(values.max()), float(values.min())
    magnitude = max(largest, -smallest)
    if _SMALL32 < magnitude < _LARGE32:
        average, squares = _short_sums(values) if count <= _DOT else _long_sums(values)
        return largest, smallest, average, math.sqrt(squares)
    if not math.isfinite(largest - smallest):
        return largest, smallest, item(summed(tensor)) / count, math.inf if largest == largest else math.nan  # noqa: PLR0124
    return _of_float64(copy_to(tensor, torch.float64)) if magnitude else (largest, smallest, 0.0, 0.0)


def _short_sums(values: np.ndarray[Any, Any]) -> tuple[float, float]:
    """Mean and sum of squares, in float64: it costs less than another call, and no square is lost to its range."""
    wide = values.astype(np.float64)
    return float(wide.dot(_ONES[: wide.size])) / wide.size, float(wide.dot(wide))


def _long_sums(values: np.ndarray[Any, Any]) -> tuple[float, float]:
    """Mean, and sum of squares, in pieces short enough for float32 sums, which are added up in float64."""
    whole = values[: values.size - values.size % _DOT].reshape(-1, _DOT)
    rest = values[whole.size :]
    with np.errstate(all="ignore"):
        total = float(_VECDOT(whole, _ONES32).sum(dtype=np.float64)) + float(rest.dot(_ONES32[: rest.size]))
        squares = float(_VECDOT(whole, whole).sum(dtype=np.float64)) + float(rest.dot(rest))
    return total / values.size, squares


def _of_float64(tensor: torch.Tensor) -> Statistics:
    flat = view(tensor, -1)
    low, high = aminmax(flat)
    smallest, largest = item(low), item(high)
    magnitude = max(abs(smallest), abs(largest))
    if not math.isfinite(magnitude) or _SMALL < magnitude < _LARGE or magnitude == 0:
        return largest, smallest, item(summed(flat)) / numel(flat), math.sqrt(item(dot(flat, flat)))
    scale = 2.0 ** min(max(math.frexp(magnitude)[1], -1022), 1023)  # a power of two changes no digit
    scaled = flat / scale
    average, norm = item(summed(scaled)) / numel(flat), math.sqrt(item(dot(scaled, scaled)))
    return largest, smallest, average * scale, norm * scale


def _of_half(tensor: torch.Tensor) -> Statistics:
    return _of_float32(copy_to(tensor, torch.float32))


def _of_half_in_its_type(tensor: torch.Tensor) -> Statistics:
    flat = view(tensor, -1)
    try:
        low, high = aminmax(flat)
        return item(high), item(low), item(mean(flat)), item(vector_norm(flat))
    except RuntimeError:  # PyTorch 2.1 reduces no float16 on a CPU
        return _of_half(tensor)


def _of_integers(tensor: torch.Tensor) -> Statistics:
    low, high = aminmax(tensor)
    return _integer_statistics(item(low), item(high), tensor)


def _of_wide_unsigned(tensor: torch.Tensor) -> Statistics:
    """torch has next to no operations for uint16, uint32 and uint64."""
    values = live_array(tensor, np.dtype(f"u{element_size(tensor)}"))
    return _integer_statistics(int(values.min()), int(values.max()), tensor)


def _integer_statistics(low: int, high: int, tensor: torch.Tensor) -> Statistics:
    wide = copy_to(view(tensor, -1), torch.float64)
    average, norm = item(summed(wide)) / numel(wide), math.sqrt(item(dot(wide, wide)))
    return float_if_exact(high), float_if_exact(low), average, norm


def _of_bools(tensor: torch.Tensor) -> Statistics:
    low, high = aminmax(tensor)
    return item(high), item(low), None, None


def _of_complex(tensor: torch.Tensor) -> Statistics:
    # In float64: the modulus of finite complex64 values may be beyond float32.
    largest, smallest, average, _ = _of_float64(complex_abs(copy_to(tensor, torch.complex128)))
    return largest, smallest, average, None


def _of_bytes(dtype: torch.dtype) -> Reduce:
    """For float8: there are 256 values, so they are counted; torch converts them 200 times slower (2.13, CPU)."""
    known = parse_dtype(str(dtype))
    if known is None or known.storage != np.uint8 or known.numpy == np.uint8:
        return _none
    table = known.from_bits(np.arange(256, dtype=np.uint8)).astype(np.float64)

    def reduce(tensor: torch.Tensor) -> Statistics:
        codes = live_array(tensor, np.dtype(np.uint8))
        pieces = range(0, codes.size, _PIECE)  # bincount widens what it counts to eight bytes
        counts = np.zeros(256, dtype=np.int64)
        for start in pieces:
            counts += np.bincount(codes[start : start + _PIECE], minlength=256)
        present = counts > 0
        values, times = table[present], counts[present]
        if np.isnan(values).any():
            return (math.nan,) * 4
        with np.errstate(all="ignore"):
            total, squares = float((values * times).sum()), float((values * values * times).sum())
        return float(values.max()), float(values.min()), total / numel(tensor), math.sqrt(squares)

    return reduce


_REDUCERS: dict[torch.dtype, Reduce] = {
    torch.float32: _of_float32,
    torch.float64: _of_float64,
    torch.float16: _of_half,
    torch.bfloat16: _of_half,
    torch.bool: _of_bools,
    torch.complex64: _of_complex,
    torch.complex128: _of_complex,
    torch.complex32: _of_complex,
    **dict.fromkeys((torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64), _of_integers),
    **{
        getattr(torch, name): _of_wide_unsigned
        for name in ("uint16", "uint32", "uint64")
        if hasattr(torch, name)  # torch 2.3
    },
}
