"""How far apart is too far: thresholds by element type, those of a user, and the verdict of msprobe."""

from __future__ import annotations

import math
from dataclasses import dataclass

from msformat.arguments import require_real
from msformat.compare.measures import Metrics
from msformat.dtypes import DType
from msformat.errors import FormatError

__all__ = ["RULES", "Thresholds", "is_exact_type", "peer_verdict"]

RULES = ("msformat", "msprobe")

# Some two roundings of the narrow types, a thousand of float32, which is what a deep network on another chip makes of
# them. Types of which one is a prefix of the other stand longest first.
_RTOL = {
    "float64": 1e-8,
    "float32": 1e-4,
    "float16": 2e-3,
    "bfloat16": 1.6e-2,
    "complex128": 1e-8,
    "complex64": 1e-4,
    "complex32": 2e-3,
    "float8_e5m2": 0.25,
    "float8_e3m4": 0.06,
    "float8_e8m0": 1.0,
    "float8_e4m3": 0.125,
    "hifloat8": 0.25,
}
_UNKNOWN_RTOL = 1e-4
_EXACT_KINDS = "biu"

# msprobe 8.1.0 (core/common/const.py): a tensor is not accurate when its cosine is below the first and its largest
# absolute error above the second, or when either passes the third and fourth.
_PEER_COSINE, _PEER_ERROR, _PEER_COSINE_MOST, _PEER_ERROR_MOST = 0.99, 0.001, 0.9, 1.0


@dataclass(frozen=True, slots=True)
class Thresholds:
    """When two tensors are ``different``.

    Attributes
    ----------
    rtol
        Most of ``norm(a - b) / norm(b)``, and of the like of statistics; None for the default of the element type
        (the coarser of two). Integers and bools have to be equal unless it is given.
    atol
        A largest absolute error up to this is never a difference.
    extremes
        The largest absolute error may be so many times ``rtol`` of the largest value: one wild element among a million
        hardly shows in a norm.
    exact
        Any bit that differs is a difference.
    cosine, max_abs, max_rel, within_01, within_05
        Further bounds (least for ``cosine`` and the shares, most for the errors); None for none.
    rules
        ``msformat``: the above. ``msprobe``: of values, the verdict of ``msprobe compare`` (its cosine and largest
        absolute error) and no other.

    Raises
    ------
    FormatError
        Unknown rules, or a threshold that is negative or no number.
    """

    rtol: float | None = None
    atol: float = 1e-8
    extremes: float = 10.0
    exact: bool = False
    cosine: float | None = None
    max_abs: float | None = None
    max_rel: float | None = None
    within_01: float | None = None
    within_05: float | None = None
    rules: str = "msformat"

    def __post_init__(self) -> None:
        if self.rules not in RULES:
            raise FormatError(f"rules={self.rules!r}: choose one of {', '.join(RULES)}")
        require_real(0.0, atol=self.atol, extremes=self.extremes)
        for name in ("rtol", "max_abs", "max_rel", "within_01", "within_05", "cosine"):
            value = getattr(self, name)
            if value is not None:
                require_real(-1.0 if name == "cosine" else 0.0, **{name: value})

    def tolerance(self, dtype_a: DType | None, dtype_b: DType | None) -> float:
        """Relative tolerance for a pair of element types; None is a type that nobody knows."""
        if self.rtol is not None:
            return self.rtol
        return max(_default(dtype_a), _default(dtype_b))

    def faults(self, metrics: Metrics, tolerance: float) -> list[str]:
        """What is beyond the thresholds, in sentences."""
        if self.rules == "msprobe":
            answer = peer_verdict(metrics)
            return [] if answer == "Yes" else [f"msprobe's rules: {_peer_words(metrics)}"]
        found = self._own_faults(metrics, tolerance) if metrics.max_abs > self.atol or tolerance == 0.0 else []
        return found + self._extra_faults(metrics)

    def _own_faults(self, metrics: Metrics, tolerance: float) -> list[str]:
        found = []
        if metrics.rel_l2 > tolerance:
            found.append(f"relative error {metrics.rel_l2:.3g} (most: {tolerance:g})")
        largest = metrics.max_b or 0.0
        if metrics.max_abs > self.extremes * tolerance * largest and not found:
            where = list(metrics.worst or ())
            found.append(f"largest error {metrics.max_abs:.3g} at {where} beside values up to {largest:.3g}")
        return found

    def _extra_faults(self, metrics: Metrics) -> list[str]:
        pairs = (
            ("cosine", metrics.cosine, self.cosine, False),
            ("largest absolute error", metrics.max_abs, self.max_abs, True),
            ("largest relative error", metrics.max_rel, self.max_rel, True),
            ("share within 0.1 %", metrics.within_01, self.within_01, False),
            ("share within 0.5 %", metrics.within_05, self.within_05, False),
        )
        return [
            f"{name} {value:.6g} ({'most' if is_most else 'least'}: {bound:g})"
            for name, value, bound, is_most in pairs
            if bound is not None and value is not None and (value > bound if is_most else value < bound)
        ]


def is_exact_type(dtype: DType | None) -> bool:
    """Whether values of a type are no roundings of something: integers and bools."""
    return dtype is not None and (dtype.numpy.kind in _EXACT_KINDS) and not dtype.name.startswith(tuple(_RTOL))


def _default(dtype: DType | None) -> float:
    if is_exact_type(dtype):
        return 0.0
    name = dtype.name if dtype is not None else ""
    return next((value for prefix, value in _RTOL.items() if name.startswith(prefix)), _UNKNOWN_RTOL)


def peer_verdict(metrics: Metrics) -> str:
    """``Yes`` or ``No``, as the column "Accuracy Reached or Not" of ``msprobe compare`` has it.

    msprobe gives no verdict for a single element, whose cosine says nothing: here it may be off by 0.001, or by 0.5 %.
    """
    if metrics.elements == 1:
        return "Yes" if metrics.max_abs <= _PEER_ERROR or metrics.within_05 == 1.0 else "No"
    # Where one side is zero throughout there is no cosine, and only the error counts.
    cosine = metrics.cosine if metrics.cosine is not None else math.nan
    if cosine < _PEER_COSINE and metrics.max_abs > _PEER_ERROR:
        return "No"
    return "No" if cosine < _PEER_COSINE_MOST or metrics.max_abs > _PEER_ERROR_MOST else "Yes"


def _peer_words(metrics: Metrics) -> str:
    cosine = "none" if metrics.cosine is None else f"{metrics.cosine:.6g}"
    return f"cosine {cosine}, largest error {metrics.max_abs:.3g}"
