"""Numbers that say how far two tensors are apart."""

from __future__ import annotations

from dataclasses import dataclass

__all__ = ["Metrics", "NonFinite", "StatChange"]


@dataclass(frozen=True, slots=True)
class NonFinite:
    """NaN and infinities of one tensor.

    Attributes
    ----------
    nan, posinf, neginf
        How many elements (a complex number counts once: as NaN where either part is, else by its real part).
    first
        Indices of the first few in C order.
    """

    nan: int = 0
    posinf: int = 0
    neginf: int = 0
    first: tuple[tuple[int, ...], ...] = ()

    @property
    def total(self) -> int:
        """All of them."""
        return self.nan + self.posinf + self.neginf


@dataclass(frozen=True, slots=True)
class Metrics:
    """Errors of ``a`` against ``b``, computed in float64 over elements that are finite on both sides.

    Attributes
    ----------
    cosine
        Cosine of the angle between both as vectors; 1 where both are zero, None where one is.
    max_abs, mean_abs
        Of ``|a - b|``.
    max_rel, mean_rel
        Of ``|a - b| / |b|``, over elements where ``b`` is not 0; 0 elements equal on both sides count as error 0.
        None where no element has one.
    rmse, euclidean
        Root mean square and Euclidean norm of ``a - b``.
    rel_l2
        ``euclidean / norm(b)``; 0 where both are zero, ``inf`` where only ``b`` is.
    within_01, within_05
        Share of elements with a relative error below 0.1 % and 0.5 %, between 0 and 1; elements equal on both sides
        are within, elements where only ``b`` is 0 are not.
    compared, elements
        How many elements were finite on both sides, and how many there are.
    max_b
        Largest ``|b|``.
    worst
        Index of the largest absolute error, None where nothing was compared.
    """

    cosine: float | None
    max_abs: float
    mean_abs: float
    max_rel: float | None
    mean_rel: float | None
    rmse: float
    euclidean: float
    rel_l2: float
    within_01: float
    within_05: float
    compared: int
    elements: int
    max_b: float
    worst: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class StatChange:
    """How one statistic differs.

    Attributes
    ----------
    absolute
        ``a - b``; NaN where one is NaN, None where one is not there.
    relative
        ``|a - b| / |b|``; None where ``b`` is 0 and ``a`` is not, or ``absolute`` is None.
    """

    absolute: float | None
    relative: float | None
