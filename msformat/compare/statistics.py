"""Two tensors of which only statistics are known."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

from msformat.columns import element_count, number_of
from msformat.compare.measures import StatChange
from msformat.compare.thresholds import Thresholds, is_exact_type
from msformat.dtypes import DType
from msformat.model import STATISTICS, Stats

__all__ = ["NAMES", "are_equal", "say_anything", "statistic_changes", "statistic_error", "statistic_faults"]

NAMES = tuple(STATISTICS.values())
# Mean and norm of integers are floats, which tools round in their own ways.
_ROUNDED = 1e-5


def statistic_changes(a: Stats | None, b: Stats | None) -> dict[str, StatChange]:
    """How each statistic differs; of those that one side lacks, or has as null, it is not said."""
    if a is None or b is None:
        return {}
    return {name: _change(x, y) for name, x, y in zip(NAMES, _numbers(a), _numbers(b), strict=True)}


def say_anything(a: Stats, b: Stats) -> bool:
    """Whether any statistic is known on both sides."""
    return any(x is not None and y is not None for x, y in zip(_numbers(a), _numbers(b), strict=True))


def are_equal(a: Stats, b: Stats) -> bool:
    """Whether all that is known on both sides is equal, NaN and NaN included."""
    pairs = zip(_numbers(a), _numbers(b), strict=True)
    return all(x is None or y is None or x == y or (math.isnan(x) and math.isnan(y)) for x, y in pairs)


def _numbers(stats: Stats) -> tuple[float | None, float | None, float | None, float | None]:
    """In the order of :data:`NAMES`."""
    return number_of(stats.max), number_of(stats.min), number_of(stats.mean), number_of(stats.norm)


def _change(a: float | None, b: float | None) -> StatChange:
    if a is None or b is None:
        return StatChange(None, None)
    if a == b:
        return StatChange(0.0, 0.0)
    absolute = a - b
    if math.isnan(absolute) and math.isnan(a) and math.isnan(b):
        return StatChange(math.nan, 0.0)
    return StatChange(absolute, abs(absolute / b) if b and math.isfinite(absolute) else None)


def statistic_error(a: Stats, b: Stats, shape: tuple[int, ...]) -> float:
    """The largest relative error of a statistic, each beside what :func:`statistic_faults` judges it by.

    ``inf`` where a NaN or an infinity stands against something else, or anything against a tensor of zeros.
    """
    values_a, values_b = _numbers(a), _numbers(b)
    scales = _scales(values_b, element_count(shape))
    extremes = (*values_a[:2], *values_b[:2])
    known = [
        _relative(x, y, scale)
        for name, x, y, scale in zip(NAMES, values_a, values_b, scales, strict=True)
        if x is not None and y is not None and (name in ("max", "min") or not _is_overflow(x, y, extremes))
    ]
    return max(known, default=math.inf)


def _relative(a: float, b: float, scale: float) -> float:
    if a == b or (math.isnan(a) and math.isnan(b)):
        return 0.0
    error = abs(a - b) / scale if scale else math.inf
    return error if math.isfinite(error) else math.inf


def statistic_faults(
    a: Stats, b: Stats, dtypes: tuple[DType | None, DType | None], shape: tuple[int, ...], thresholds: Thresholds
) -> list[str]:
    """Statistics that are too far apart, in sentences.

    Max and Min are judged by the largest value, the mean by the root mean square: each by what it could be wrong about,
    never by itself, because a mean near zero is all rounding.
    """
    return list(_faults(a, b, dtypes, shape, thresholds))


def _faults(
    a: Stats, b: Stats, dtypes: tuple[DType | None, DType | None], shape: tuple[int, ...], thresholds: Thresholds
) -> Iterator[str]:
    values_a, values_b = _numbers(a), _numbers(b)
    if values_a == values_b:
        return
    scales = _scales(values_b, element_count(shape))
    is_exact = thresholds.rtol is None and all(map(is_exact_type, dtypes))
    tolerance = thresholds.tolerance(*dtypes)
    atol = 0.0 if is_exact else thresholds.atol
    extremes = (*values_a[:2], *values_b[:2])
    for name, value_a, value_b, scale in zip(NAMES, values_a, values_b, scales, strict=True):
        if value_a is None or value_b is None or value_a == value_b:
            continue
        is_extreme = name in ("max", "min")
        most = tolerance * thresholds.extremes if is_extreme else (_ROUNDED if is_exact else tolerance)
        if _is_near(value_a, value_b, most * scale, atol):
            continue
        if is_extreme or not _is_overflow(value_a, value_b, extremes):
            relative = abs(value_a - value_b) / scale if scale else math.inf
            yield f"{name} {value_a:.6g} against {value_b:.6g} (off by {relative:.3g}, most: {most:g})"


def _scales(b: Sequence[float | None], count: float) -> tuple[float, float, float, float]:
    """What an error of each statistic is measured by."""
    high, low, mean, norm = b
    known = [abs(value) for value in (high, low) if value is not None and math.isfinite(value)]
    largest = max(known, default=0.0)
    if norm is not None and math.isfinite(norm) and count > 0:
        typical = norm / math.sqrt(count)
    else:
        typical = max(largest, abs(mean or 0.0))
    return largest, largest, typical, abs(norm or 0.0)


def _is_overflow(a: float, b: float, extremes: Sequence[float | None]) -> bool:
    """Whether a norm or mean is infinite though all values are finite: msprobe sums float16 in float16."""
    is_infinite = math.isinf(a) or math.isinf(b)
    return is_infinite and all(value is not None and math.isfinite(value) for value in extremes)


def _is_near(a: float, b: float, most: float, atol: float) -> bool:
    if a == b or (math.isnan(a) and math.isnan(b)):
        return True
    return math.isfinite(a - b) and abs(a - b) <= max(most, atol)
