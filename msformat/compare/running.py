"""Errors of one tensor against another, from pieces of both that come one after the other.

A piece is as long as the caches of a core like it; whatever the size of a tensor, this takes a few such pieces of
memory. numpy lets go of the interpreter meanwhile, so that threads make progress together.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from msformat.compare.elements import is_wide_integer, to_numbers
from msformat.compare.measures import Metrics, NonFinite
from msformat.dtypes import DType

__all__ = ["PIECE", "Measured", "RunningErrors", "index_of"]

Floats: TypeAlias = "NDArray[np.float64]"

#: Elements of a piece.
PIECE = 1 << 15
# From 10,000 elements on OpenBLAS spreads a dot product over threads of its own, and waits for them.
_DOT = 1 << 13
_THOUSANDTH, _FIVE_THOUSANDTHS = 0.001, 0.005
_MOST_PLACES = 4
# Squares and sums of such values neither overflow nor vanish in float64.
_LARGE, _SMALL = 1e140, 1e-140
_LARGE_SQUARES, _SMALL_SQUARES = 1e280, 1e-280


@dataclass(frozen=True, slots=True)
class Measured:
    """What came of a pair.

    Attributes
    ----------
    metrics
        None where bits mean no number.
    special_a, special_b, mismatch
        As in :class:`msformat.compare.model.TensorResult`.
    mismatch_at
        Index of the first element that is of different kinds; None without any.
    same
        Whether all bits are equal.
    differing
        How many elements have other bits, where that is all that can be said.
    notes
        What is odd about the stored values, in sentences.
    """

    metrics: Metrics | None
    special_a: NonFinite
    special_b: NonFinite
    mismatch: int = 0
    mismatch_at: tuple[int, ...] | None = None
    same: bool = False
    differing: int | None = None
    notes: tuple[str, ...] = ()


@dataclass(slots=True)
class _Special:
    """NaN and infinities so far, with the places of the first, counted from the beginning."""

    nan: int = 0
    posinf: int = 0
    neginf: int = 0
    places: list[int] = field(default_factory=list)

    def add(self, codes: NDArray[np.int8], start: int) -> None:
        found = np.flatnonzero(codes)
        counts = np.bincount(codes[found], minlength=4)
        self.nan += int(counts[1])
        self.posinf += int(counts[2])
        self.neginf += int(counts[3])
        room = _MOST_PLACES - len(self.places)
        self.places += [start + int(place) for place in found[:room]]

    def result(self, shape: tuple[int, ...]) -> NonFinite:
        return NonFinite(self.nan, self.posinf, self.neginf, tuple(index_of(place, shape) for place in self.places))


class RunningErrors:
    """Errors so far.

    Parameters
    ----------
    shape
        Of both tensors.
    scale
        A power of two that values are multiplied with, where their squares would not fit float64 otherwise.
    """

    def __init__(self, shape: tuple[int, ...], scale: float = 1.0) -> None:
        self._shape = shape
        self._scale = scale
        self._done = self._compared = self._mismatch = 0
        self._mismatch_at: int | None = None
        self._special = _Special(), _Special()
        self._ab = self._aa = self._bb = self._dd = 0.0
        self._sum = self._sum_rel = 0.0
        self._max = -1.0
        self._max_rel = -1.0
        self._largest = [0.0, 0.0]
        self._with_rel = self._within_01 = self._within_05 = 0
        self._worst = 0

    def add(self, bits_a: NDArray[Any], dtype_a: DType, bits_b: NDArray[Any], dtype_b: DType) -> None:
        """Take the next bits of both in C order: flat (lanes as last axis), of one length and of no opaque kind."""
        is_exact = is_wide_integer(dtype_a) and is_wide_integer(dtype_b)
        with np.errstate(all="ignore"):
            for at in range(0, len(bits_a), PIECE):
                piece_a, piece_b = bits_a[at : at + PIECE], bits_b[at : at + PIECE]
                a, b = to_numbers(piece_a, dtype_a), to_numbers(piece_b, dtype_b)
                self._add(a, b, _integer_gap(piece_a, piece_b) if is_exact else None)
                self._done += len(piece_a)

    def add_same(self, bits: NDArray[Any], dtype: DType) -> None:
        """Take the next bits, which are those of both, at a third of the cost."""
        with np.errstate(all="ignore"):
            for at in range(0, len(bits), PIECE):
                values = to_numbers(bits[at : at + PIECE], dtype)
                self._add_same(values)
                self._done += len(values)

    def _add_same(self, values: NDArray[Any]) -> None:
        if self._scale != 1.0:
            values *= self._scale
        squares = _squares(values)
        if not math.isfinite(squares):
            codes = _codes(values)
            for special in self._special:
                special.add(codes, self._done)
            values = values[codes == 0]
            squares = _squares(values)
        if not len(values):
            return
        self._aa += squares
        self._bb += squares
        self._ab += squares
        self._largest[1] = max(self._largest[1], float(np.abs(values).max()))
        self._max, self._max_rel = max(self._max, 0.0), max(self._max_rel, 0.0)
        self._compared += len(values)
        self._with_rel += len(values)
        self._within_01 += len(values)
        self._within_05 += len(values)

    def _add(self, a: NDArray[Any], b: NDArray[Any], gap: Floats | None) -> None:
        if self._scale != 1.0:
            a *= self._scale
            b *= self._scale
        squares_a, squares_b = _squares(a), _squares(b)
        places = None
        if not math.isfinite(squares_a + squares_b):
            codes_a, codes_b = _codes(a), _codes(b)
            self._special[0].add(codes_a, self._done)
            self._special[1].add(codes_b, self._done)
            self._note_mismatches(codes_a != codes_b)
            places = np.flatnonzero((codes_a | codes_b) == 0)
            a, b = a[places], b[places]
            gap = gap[places] if gap is not None else None
            squares_a, squares_b = _squares(a), _squares(b)
        if len(a):
            self._aa += squares_a
            self._bb += squares_b
            self._ab += _dot(b, a)
            self._add_errors(a, b, gap, places)

    def _note_mismatches(self, differ: NDArray[np.bool_]) -> None:
        count = int(np.count_nonzero(differ))
        if count and self._mismatch_at is None:
            self._mismatch_at = self._done + int(differ.argmax())
        self._mismatch += count

    def _add_errors(
        self, a: NDArray[Any], b: NDArray[Any], gap: Floats | None, places: NDArray[np.intp] | None
    ) -> None:
        if not _SMALL_SQUARES < self._aa < _LARGE_SQUARES:
            self._largest[0] = max(self._largest[0], float(np.abs(a).max()))
        error, size = _error_and_size(a, b, gap)
        self._dd += _dot(error, error)
        self._sum += float(error.sum())
        largest = float(error.max())
        if largest > self._max:
            self._max = largest
            place = int(error.argmax())
            self._worst = self._done + (place if places is None else int(places[place]))
        self._largest[1] = max(self._largest[1], float(size.max()))
        self._compared += len(error)
        self._add_relative(error, size)

    def _add_relative(self, error: Floats, size: Floats) -> None:
        """Relative errors; size is overwritten. Where only the reference is 0 there is none."""
        undefined = 0
        if size.min() == 0.0:
            is_zero = size == 0.0
            undefined = int(np.count_nonzero(error[is_zero]))
            size[is_zero] = np.inf  # makes 0 of what is divided by it
        relative = np.divide(error, size, out=size)
        self._within_01 += int(np.count_nonzero(relative < _THOUSANDTH)) - undefined
        self._within_05 += int(np.count_nonzero(relative < _FIVE_THOUSANDTHS)) - undefined
        self._with_rel += len(error) - undefined
        self._sum_rel += float(relative.sum())
        if len(error) > undefined:
            self._max_rel = max(self._max_rel, float(relative.max()))

    @property
    def wanted_scale(self) -> float:
        """The scale to begin anew with; 1 where what was summed is right."""
        largest = max(self._largest)
        if self._scale != 1.0 or largest == 0.0 or _SMALL < largest < _LARGE:
            return 1.0
        return float(2.0 ** -min(max(math.frexp(largest)[1], -1022), 1022))

    def result(self, *, same: bool, notes: tuple[str, ...] = ()) -> Measured:
        """Errors of all that was added, with what the caller knows of it."""
        count, back = self._compared, 1.0 / self._scale
        norm_a, norm_b, distance = math.sqrt(self._aa), math.sqrt(self._bb), math.sqrt(self._dd)
        metrics = Metrics(
            cosine=_cosine(self._ab, norm_a, norm_b) if distance else 1.0,
            max_abs=max(self._max, 0.0) * back,
            mean_abs=self._sum / count * back if count else 0.0,
            max_rel=self._max_rel if self._max_rel >= 0.0 else None,
            mean_rel=self._sum_rel / self._with_rel if self._with_rel else None,
            rmse=math.sqrt(self._dd / count) * back if count else 0.0,
            euclidean=distance * back,
            rel_l2=_ratio(distance, norm_b),
            within_01=self._within_01 / count if count else 1.0,
            within_05=self._within_05 / count if count else 1.0,
            compared=count,
            elements=math.prod(self._shape),
            max_b=self._largest[1] * back,
            worst=index_of(self._worst, self._shape) if self._max > 0.0 else None,
        )
        special_a, special_b = (special.result(self._shape) for special in self._special)
        place = index_of(self._mismatch_at, self._shape) if self._mismatch_at is not None else None
        return Measured(metrics, special_a, special_b, self._mismatch, place, same=same, notes=notes)


def index_of(place: int, shape: tuple[int, ...]) -> tuple[int, ...]:
    """Index of an element from its place in C order."""
    index = []
    for length in reversed(shape):
        place, at = divmod(place, length)
        index.append(at)
    return tuple(reversed(index))


def _error_and_size(a: NDArray[Any], b: NDArray[Any], gap: Floats | None) -> tuple[Floats, Floats]:
    """``|a - b|`` and ``|b|``; of real numbers in their own memory, for neither is needed again."""
    if a.dtype.kind == "c":
        return np.abs(a - b), np.abs(b)
    if gap is None:
        gap = np.subtract(a, b, out=a)
        np.abs(gap, out=gap)
    return gap, np.abs(b, out=b)


def _squares(values: NDArray[Any]) -> float:
    return _dot(values, values)


def _dot(a: NDArray[Any], b: NDArray[Any]) -> float:
    """Real part of the scalar product."""
    return sum(float(np.vdot(a[at : at + _DOT], b[at : at + _DOT]).real) for at in range(0, len(a), _DOT))


def _codes(values: NDArray[Any]) -> NDArray[np.int8]:
    """0 finite, 1 NaN, 2 and 3 the infinities; of complex numbers by their parts."""
    codes = np.zeros(values.shape, np.int8)
    for part in (values.imag, values.real) if values.dtype.kind == "c" else (values,):
        codes[part == np.inf] = 2
        codes[part == -np.inf] = 3
    codes[np.isnan(values)] = 1
    return codes


def _integer_gap(a: NDArray[Any], b: NDArray[Any]) -> Floats:
    """``|a - b|`` of 64-bit integers: exact before it is rounded, which the difference of two floats is not."""
    if a.dtype != b.dtype:  # no numpy type holds both int64 and uint64
        return np.array([abs(int(x) - int(y)) for x, y in zip(a.tolist(), b.tolist(), strict=True)], np.float64)
    high, low = np.maximum(a, b).view(np.uint64), np.minimum(a, b).view(np.uint64)
    gap: Floats = np.subtract(high, low).astype(np.float64)
    return gap


def _cosine(product: float, norm_a: float, norm_b: float) -> float | None:
    if norm_a == 0.0 or norm_b == 0.0:
        return 1.0 if norm_a == norm_b else None
    return min(1.0, max(-1.0, product / norm_a / norm_b))


def _ratio(error: float, norm: float) -> float:
    if norm == 0.0:
        return 0.0 if error == 0.0 else math.inf
    return error / norm
