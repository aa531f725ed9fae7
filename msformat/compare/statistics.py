"""Two tensors of which only statistics are known."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from typing import Any

from msformat.compare.measures import StatChange
from msformat.compare.thresholds import Thresholds, is_exact_type
from msformat.dtypes import DType
from msformat.model import Stats

__all__ = ["NAMES", "statistic_changes", "statistic_faults"]

NAMES = ("max", "min", "mean", "norm")
# Mean and norm of integers are floats, which tools round in their own ways.
_ROUNDED = 1e-5


def statistic_changes(a: Stats | None, b: Stats | None) -> dict[str, StatChange]:
    """How each statistic differs; of those that one side lacks, or has as null, it is not said."""
    if a is None or b is None:
        return {}
    return {name: _change(_number(getattr(a, name)), _number(getattr(b, name))) for name in NAMES}


def _number(value: Any) -> float | None:
    """A statistic as a float; NaN may be spelled as text by other tools."""
    try:
        return None if value is None else float(value)
    except (ValueError, OverflowError):
        return None


def _change(a: float | None, b: float | None) -> StatChange:
    if a is None or b is None:
        return StatChange(None, None)
    if a == b:
        return StatChange(0.0, 0.0)
    absolute = a - b
    if math.isnan(absolute) and math.isnan(a) and math.isnan(b):
        return StatChange(math.nan, 0.0)
    return StatChange(absolute, abs(absolute / b) if b and math.isfinite(absolute) else None)


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
    pairs = {name: (_number(getattr(a, name)), _number(getattr(b, name))) for name in NAMES}
    scales = _scales(b, math.prod(shape))
    is_exact = all(map(is_exact_type, dtypes)) and thresholds.rtol is None
    tolerance = thresholds.tolerance(*dtypes)
    for name, (value_a, value_b) in pairs.items():
        if value_a is None or value_b is None or _is_overflow(name, pairs):
            continue
        most = tolerance * (thresholds.extremes if name in ("max", "min") else 1.0)
        if is_exact and name in ("mean", "norm"):
            most = _ROUNDED
        if not _is_near(value_a, value_b, most * scales[name], 0.0 if is_exact else thresholds.atol):
            relative = abs(value_a - value_b) / scales[name] if scales[name] else math.inf
            yield f"{name} {value_a:.6g} against {value_b:.6g} (off by {relative:.3g}, most: {most:g})"


def _scales(b: Stats, count: int) -> Mapping[str, float]:
    """What an error of each statistic is measured by."""
    high, low, mean, norm = (_number(getattr(b, name)) for name in NAMES)
    known = [abs(value) for value in (high, low) if value is not None and math.isfinite(value)]
    largest = max(known, default=0.0)
    is_known = norm is not None and math.isfinite(norm) and count > 0
    typical = norm / math.sqrt(count) if is_known and norm is not None else max(largest, abs(mean or 0.0))
    return {"max": largest, "min": largest, "mean": typical, "norm": abs(norm or 0.0)}


def _is_overflow(name: str, pairs: Mapping[str, tuple[float | None, float | None]]) -> bool:
    """Whether a norm or mean is infinite though all values are finite: msprobe sums float16 in float16."""
    if name not in ("mean", "norm"):
        return False
    extremes = [value for pair in (pairs["max"], pairs["min"]) for value in pair]
    are_finite = all(value is not None and math.isfinite(value) for value in extremes)
    return are_finite and any(value is not None and math.isinf(value) for value in pairs[name])


def _is_near(a: float, b: float, most: float, atol: float) -> bool:
    if a == b or (math.isnan(a) and math.isnan(b)):
        return True
    return math.isfinite(a - b) and abs(a - b) <= max(most, atol)
