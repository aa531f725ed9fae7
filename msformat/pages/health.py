"""Whether a tensor's statistics look right: NaN, infinities, values near the end of the type, nothing but zeros."""

from __future__ import annotations

from collections.abc import Mapping
from enum import IntEnum
from functools import lru_cache
from typing import Any, TypeAlias

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from msformat.dtypes import parse_dtype
from msformat.model import STATISTICS

__all__ = ["Health", "Numbers", "health_of", "largest_magnitude"]

Numbers: TypeAlias = "np.ma.MaskedArray[Any, Any]"

# From half of the largest value on, one more addition overflows.
_NEAR = 0.5
_HIFLOAT8_LARGEST = 32768.0


class Health(IntEnum):
    """In order of badness."""

    UNKNOWN = 0
    FINE = 1
    ZERO = 2
    #: -inf and no other: what masks of attention hold on purpose, and seldom an overflow.
    MASKED = 3
    #: Finite, but beyond half of the largest value of the type.
    NEAR = 4
    INFINITE = 5
    NAN = 6


def health_of(statistics: Mapping[str, Numbers], dtypes: NDArray[Any]) -> NDArray[np.uint8]:
    """The :class:`Health` of each row.

    Parameters
    ----------
    statistics
        ``Max``, ``Min``, ``Mean`` and ``Norm`` as :meth:`msformat.Table.numbers` gives them, masked where absent.
    dtypes
        Element types as documents spell them, an object array.
    """
    high, low, mean, norm = (statistics[name].filled(np.nan) for name in STATISTICS)
    limits = _limits(dtypes)
    found = np.full(len(high), Health.FINE, dtype=np.uint8)
    found[(high == 0) & (low == 0)] = Health.ZERO
    # Exactly the lowest value is a mask, too.
    found[(high >= _NEAR * limits) | ((low <= -_NEAR * limits) & (low > -limits))] = Health.NEAR
    found[np.isneginf(low)] = Health.MASKED
    found[np.isposinf(high) | np.isneginf(high) | np.isposinf(low)] = Health.INFINITE
    has_infinite = np.isinf(high) | np.isinf(low)
    # Values that are finite, and a norm that is not: it was beyond what the run computed it in.
    found[(np.isinf(norm) | np.isinf(mean)) & ~has_infinite] = Health.INFINITE
    found[_has_nan(statistics, has_infinite)] = Health.NAN
    found[np.logical_and.reduce([np.ma.getmaskarray(values) for values in statistics.values()])] = Health.UNKNOWN
    return found


def _has_nan(statistics: Mapping[str, Numbers], has_infinite: NDArray[np.bool_]) -> NDArray[np.bool_]:
    """Where elements are NaN. The mean of both infinities is NaN without any element being so."""
    high, low, mean, norm = (
        np.isnan(statistics[name].data) & ~np.ma.getmaskarray(statistics[name]) for name in STATISTICS
    )
    return np.asarray(high | low | ((mean | norm) & ~has_infinite))


def largest_magnitude(high: NDArray[np.float64], low: NDArray[np.float64]) -> NDArray[np.float64]:
    """``max(|Max|, |Min|)``; NaN where either is."""
    return np.maximum(np.abs(high), np.abs(low))


def _limits(dtypes: NDArray[Any]) -> NDArray[np.float64]:
    spelled, codes = np.unique(dtypes.astype(str), return_inverse=True)
    limits = np.array([_largest(name) for name in spelled.tolist()], dtype=np.float64)
    return limits[codes] if len(limits) else np.zeros(0)


@lru_cache(maxsize=256)
def _largest(spelling: str) -> float:
    """Largest finite value of a floating-point type; infinite for all others."""
    dtype = parse_dtype(spelling)
    if dtype is None:
        return float("inf")
    if dtype.name == "hifloat8":
        return _HIFLOAT8_LARGEST
    try:
        return float(ml_dtypes.finfo(dtype.numpy).max)  # type: ignore[no-untyped-call]
    except (ValueError, TypeError):  # integers, bools, packed types
        return float("inf")
