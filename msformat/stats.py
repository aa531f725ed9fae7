"""Max, Min, Mean and L2 norm of stored bits, as the format records them (format specification, statistics).

Values are widened before they are reduced, and sums are kept in float64, so a finite float16 tensor has a finite norm
and an int8 tensor does not overflow. NaN anywhere makes every statistic NaN, as torch does.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from msformat.dtypes import DType
from msformat.model import Stats

__all__ = ["tensor_stats"]

# Widened a piece at a time: a float64 copy of a whole tensor would take up to eight times its memory.
_PIECE = 1 << 20
# Squares and sums of such values neither overflow nor vanish in float64.
_LARGE, _SMALL = 1e140, 1e-140
# Integers that ml_dtypes has and numpy calls void.
_BELOW_A_BYTE = ("int4", "uint4")
_EMPTY = Stats(None, None, None, None)


def tensor_stats(bits: NDArray[Any], dtype: DType) -> Stats:
    """Statistics of a tensor.

    Parameters
    ----------
    bits
        Array of ``dtype.storage`` with shape ``dtype.stored_shape(...)``.
    dtype
        The logical element type.

    Returns
    -------
    Stats
        Floating point: floats, accurate to float64 (Max and Min exact). Integers: Max and Min exact ints, Mean and Norm
        floats. bool: Max is any, Min is all, the rest None. Complex: of the absolute value, Norm None. All None for
        empty tensors and for types whose bits mean no number here (quantised, packed, text, time).
    """
    values = dtype.from_bits(np.ascontiguousarray(bits)).reshape(-1)
    if values.size == 0 or _is_opaque(dtype, values):
        return _EMPTY
    if values.dtype.kind == "b":
        return Stats(bool(values.any()), bool(values.all()), None, None)
    if dtype.name in _BELOW_A_BYTE:
        values = values.astype(np.int8)
    with np.errstate(all="ignore"):  # NaN and infinities are values to report, not accidents
        if values.dtype.kind in "iu":
            return _of_integers(values)
        return _of_reals(values, _widener(values))


def _is_opaque(dtype: DType, values: NDArray[Any]) -> bool:
    if values.dtype.kind in "biufc":
        return values.dtype.kind in "iu" and values.dtype.name != dtype.name
    # ml_dtypes' types are of kind V; what came back as plain storage has no meaning here.
    return values.dtype.kind != "V" or values.dtype.name != dtype.name


def _widener(values: NDArray[Any]) -> Callable[[NDArray[Any]], NDArray[Any]]:
    if values.dtype.kind == "c":
        # The modulus is taken in the tensor's own precision, or wider: its parts may overflow float32.
        return lambda piece: np.abs(piece.astype(np.result_type(piece.dtype, np.complex128)))
    if values.dtype.kind == "V":
        return lambda piece: piece.astype(np.float32).astype(np.float64)
    return _to_float64


def _to_float64(piece: NDArray[Any]) -> NDArray[Any]:
    return piece.astype(np.float64)


def _of_integers(values: NDArray[Any]) -> Stats:
    mean, norm = _mean_and_norm(values, _to_float64, 1.0)
    return Stats(int(values.max()), int(values.min()), mean, norm)


def _of_reals(values: NDArray[Any], widen: Callable[[NDArray[Any]], NDArray[Any]]) -> Stats:
    extremes = [(piece.max(), piece.min()) for piece in map(widen, _pieces(values))]
    # numpy's max and min keep NaN, Python's do not.
    largest = float(np.max([high for high, _ in extremes]))
    smallest = float(np.min([low for _, low in extremes]))
    mean, norm = _mean_and_norm(values, widen, max(abs(largest), abs(smallest)))
    return Stats(largest, smallest, mean, None if values.dtype.kind == "c" else norm)


def _mean_and_norm(
    values: NDArray[Any], widen: Callable[[NDArray[Any]], NDArray[Any]], magnitude: float
) -> tuple[float, float]:
    """Mean and norm; values near the ends of float64 are scaled by a power of two, which is exact."""
    scale = 1.0
    if math.isfinite(magnitude) and magnitude and not _SMALL < magnitude < _LARGE:
        scale = 2.0 ** min(max(math.frexp(magnitude)[1], -1022), 1023)
    total = squares = 0.0
    for piece in map(widen, _pieces(values)):
        scaled = piece / scale
        total += float(scaled.sum())
        squares += float(np.square(scaled).sum())
    return total / values.size * scale, math.sqrt(squares) * scale


def _pieces(values: NDArray[Any]) -> list[NDArray[Any]]:
    return [values[start : start + _PIECE] for start in range(0, values.size, _PIECE)]
