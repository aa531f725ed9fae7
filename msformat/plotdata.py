"""Numbers behind the plots: rows of tables as positions, values of a tensor as counts. Knows no matplotlib."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import NDArray

from msformat.columns import element_count
from msformat.errors import FormatError
from msformat.logical import logical_dtype
from msformat.model import STATISTICS
from msformat.names import key_matches
from msformat.room import check_room
from msformat.table import Table

if TYPE_CHECKING:
    from msformat.entries import Tensor

__all__ = ["Counts", "HasTable", "Marks", "Points", "counts_of", "marks_of", "points_of", "position_of"]

# Values are widened a piece at a time.
_PIECE = 1 << 20
#: How bad a statistic is.
FINITE, INFINITE, NAN = range(3)


class HasTable(Protocol):
    """A dump or a unit."""

    def table(self, *, filter: str | None = None) -> Table:  # noqa: A002 (what it is called everywhere)
        """Statistics of its tensors."""


@dataclass(frozen=True, slots=True)
class Points:
    """Rows of a table, ready to be drawn.

    Attributes
    ----------
    table
        The rows.
    names
        Each tensor that occurs, once, in the order of the document: the key of its entry, and slot and path unless
        they are ``output.0``.
    name_at
        Of each row the position in ``names``.
    """

    table: Table
    names: list[str]
    name_at: NDArray[np.int64]

    def column(self, name: str) -> tuple[list[Any], NDArray[np.int64]]:
        """Different values of a column, sorted where they are numbers, and of each row the position among them."""
        found = list(dict.fromkeys(self.table[name]))
        if all(isinstance(value, int) for value in found):
            found.sort()
        return found, position_of(self.table[name], found)

    def numbers(self, statistic: str) -> NDArray[np.float64]:
        """A statistic of each row as float64; NaN and infinities as they are, NaN too for what is null or missing."""
        return np.asarray(self.table.numbers(statistic).filled(math.nan), np.float64)

    def known(self, statistic: str) -> NDArray[np.bool_]:
        """Whether the document has a number for it."""
        return ~np.ma.getmaskarray(self.table.numbers(statistic))

    def sizes(self) -> NDArray[np.float64]:
        """Number of elements of each tensor."""
        return np.array([element_count(shape) for shape in self.table["shape"]], np.float64)


def points_of(source: HasTable | Table, filter: str | None, slot: str | None) -> Points:  # noqa: A002
    """The rows of a dump, a unit or a table that are to be drawn.

    Parameters
    ----------
    source
        Where they come from.
    filter
        Only entries whose key contains this or matches it as a glob.
    slot
        Only tensors of this slot (``output``, ``input_args``, ``parameters_grad``); None takes all.

    Raises
    ------
    FormatError
        Nothing is left.
    """
    if isinstance(source, Table):
        table = source[_matching(source, filter)] if filter else source
    else:
        table = source.table(filter=filter)
    if slot is not None:
        table = table[np.array([found == slot for found in table["slot"]], np.bool_)]
    if not len(table):
        raise FormatError(f"no tensors to draw: none of slot {slot!r} matches filter {filter!r}")
    names = [_name(*row) for row in zip(table["entry"], table["slot"], table["path"], strict=True)]
    known = list(dict.fromkeys(names))
    return Points(table, known, position_of(names, known))


def position_of(values: Any, among: list[Any]) -> NDArray[np.int64]:
    """Of each value its position in a list that has it."""
    positions = {value: at for at, value in enumerate(among)}
    return np.fromiter((positions[value] for value in values), np.int64, len(values))


def _matching(table: Table, pattern: str) -> NDArray[np.bool_]:
    return np.fromiter((key_matches(key, pattern) for key in table["entry"]), np.bool_, len(table))


def _name(entry: str, slot: str, path: str) -> str:
    place = ".".join(filter(None, (slot, path)))
    return entry if place in ("output.0", "") else f"{entry} {place}"


# --- what is not finite ----------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Marks:
    """How bad each entry is in each step.

    Attributes
    ----------
    steps
        Labels of the columns.
    names
        Labels of the rows: of each the worst entry, the first of several.
    worst
        ``[row, column]``: 0 all statistics are finite, 1 one is infinite, 2 one is NaN, NaN where there are none.
    entries
        How many entries there are; several share a row where they are more than asked for.
    """

    steps: list[Any]
    names: list[str]
    worst: NDArray[np.float64]
    entries: int


def marks_of(points: Points, most: int) -> Marks:
    """The worst statistic of each entry and step, over tensors and ranks; rows of several entries show the worst."""
    steps, step_at = points.column("step")
    entries, entry_at = points.column("entry")
    each = -(-len(entries) // most)
    starts = range(0, len(entries), each)
    bad = _badness(points)
    worst = np.full((len(starts), len(steps)), -1, np.int64)
    np.maximum.at(worst, (entry_at // each, step_at), bad)
    of_entry = np.full(len(entries), -1, np.int64)
    np.maximum.at(of_entry, entry_at, bad)
    names = [entries[start + int(of_entry[start : start + each].argmax())] for start in starts]
    return Marks(steps, names, np.where(worst < 0, math.nan, worst), len(entries))


def _badness(points: Points) -> NDArray[np.int64]:
    """Of each row: -1 no statistics, else the worst of them."""
    found = np.full(len(points.table), -1, np.int64)
    for statistic in STATISTICS:
        values, known = points.numbers(statistic), points.known(statistic)
        bad = np.where(np.isnan(values), NAN, np.where(np.isinf(values), INFINITE, FINITE))
        found = np.maximum(found, np.where(known, bad, -1))
    return found


# --- values of one tensor --------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Counts:
    """A histogram.

    Attributes
    ----------
    counts, edges
        As :func:`numpy.histogram` gives them for the finite values; no edges where there are none.
    nan, plus_inf, minus_inf
        How many values are not finite.
    """

    counts: NDArray[np.int64]
    edges: NDArray[np.float64]
    nan: int
    plus_inf: int
    minus_inf: int


def counts_of(tensor: Tensor, bins: int) -> Counts:
    """Count the values of a tensor; of complex ones the absolute values.

    Raises
    ------
    TensorNotFoundError
        No values were saved; says why.
    DTypeError
        The bits mean no number here.
    StoreError
        More than fits into memory.
    """
    stored = tensor.stored
    check_room(math.prod(stored.shape) * stored.dtype.itemsize, tensor.entry.key)
    is_native = logical_dtype(stored, tensor.meta.dtype).is_native
    values = (tensor.numpy() if is_native else tensor.float32()).reshape(-1)
    nan = plus_inf = minus_inf = 0
    low, high = math.inf, -math.inf
    for piece in _pieces(values):
        nan += int(np.isnan(piece).sum())
        plus_inf += int(np.isposinf(piece).sum())
        minus_inf += int(np.isneginf(piece).sum())
        finite = piece[np.isfinite(piece)]
        if finite.size:
            low, high = min(low, float(finite.min())), max(high, float(finite.max()))
    if low > high:
        return Counts(np.zeros(0, np.int64), np.zeros(0), nan, plus_inf, minus_inf)
    edges = _edges(low, high, bins)
    counts = np.zeros(bins, np.int64)
    for piece in _pieces(values):
        counts += np.histogram(piece[np.isfinite(piece)], edges)[0]
    return Counts(counts, edges, nan, plus_inf, minus_inf)


def _pieces(values: NDArray[Any]) -> Iterator[NDArray[np.float64]]:
    for start in range(0, values.size, _PIECE):
        piece = values[start : start + _PIECE]
        with np.errstate(all="ignore"):
            yield np.abs(piece.astype(np.complex128)) if piece.dtype.kind == "c" else piece.astype(np.float64)


def _edges(low: float, high: float, bins: int) -> NDArray[np.float64]:
    if low == high:
        around = max(0.5, abs(low) * 1e-3)
        low, high = max(low - around, -np.finfo(np.float64).max), min(high + around, np.finfo(np.float64).max)
    # By halves: the distance of the ends may be beyond float64.
    edges = np.linspace(low / 2, high / 2, bins + 1) * 2
    edges[0], edges[-1] = low, high
    return edges
