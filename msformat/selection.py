"""Basic indexing, split into the part a backend reads and the part numpy does afterwards."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from types import EllipsisType
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

__all__ = ["Region", "Selection", "plan_selection", "slabs"]

Selection: TypeAlias = "int | slice | EllipsisType | tuple[int | slice | EllipsisType, ...]"


@dataclass(frozen=True, slots=True)
class Region:
    """What to read, and what to make of it.

    Attributes
    ----------
    slices
        One forward slice (``0 <= start <= stop <= length``, ``step >= 1``) an axis: all a backend has to support.
    post
        Index that turns the array read into the array asked for (drops integer axes, reverses).
    shape
        Of the array a backend returns for ``slices``.
    """

    slices: tuple[slice, ...]
    post: tuple[int | slice, ...]
    shape: tuple[int, ...] = field(init=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "shape", tuple(len(range(s.start, s.stop, s.step)) for s in self.slices))

    def finish(self, read: NDArray[Any]) -> NDArray[Any]:
        """Apply ``post``; a 0-d result stays an array."""
        return np.asarray(read[self.post])


def plan_selection(selection: Selection, shape: tuple[int, ...]) -> Region:
    """Split basic indexing of an array of ``shape``.

    Raises
    ------
    IndexError
        Out of range, too many indices, or an index that is not an int, a slice or an ellipsis (lists and masks would
        make a backend read everything: read first, then index the array).
    """
    if selection is Ellipsis:
        return _whole(tuple(shape))
    items = selection if isinstance(selection, tuple) else (selection,)
    if sum(item is Ellipsis for item in items) > 1:
        raise IndexError("an index can only have a single ellipsis ('...')")
    if not any(item is Ellipsis for item in items):
        items = (*items, Ellipsis)
    missing = len(shape) - (len(items) - 1)
    if missing < 0:
        raise IndexError(f"too many indices: {len(items) - 1} for shape {tuple(shape)}")
    at = next(i for i, item in enumerate(items) if item is Ellipsis)
    full: list[Any] = [*items[:at], *([slice(None)] * missing), *items[at + 1 :]]
    pairs = [_plan_axis(item, length, axis) for axis, (item, length) in enumerate(zip(full, shape, strict=True))]
    return Region(tuple(read for read, _ in pairs), tuple(post for _, post in pairs))


@lru_cache(maxsize=1024)
def _whole(shape: tuple[int, ...]) -> Region:
    """What most ask for, of shapes that repeat."""
    return Region(tuple(slice(0, length, 1) for length in shape), (slice(None),) * len(shape))


def _plan_axis(item: Any, length: int, axis: int) -> tuple[slice, int | slice]:
    if isinstance(item, slice):
        start, stop, step = item.indices(length)
        taken = range(start, stop, step)
        if not taken:
            return slice(0, 0, 1), slice(None)
        if step > 0:
            return slice(start, taken[-1] + 1, step), slice(None)
        return slice(taken[-1], start + 1, -step), slice(None, None, -1)
    if isinstance(item, (int, np.integer)) and not isinstance(item, (bool, np.bool_)):
        index = int(item)
        if not -length <= index < length:
            raise IndexError(f"index {index} is out of bounds for axis {axis} with size {length}")
        index %= length
        return slice(index, index + 1, 1), 0
    raise IndexError(f"only ints, slices and '...' index a stored tensor, not {type(item).__name__}")


def slabs(shape: tuple[int, ...], nbytes: int, most: int) -> Iterator[Selection]:
    """Selections that together give everything once, in C order, each of ``most`` bytes or little more.

    Parameters
    ----------
    shape, nbytes
        Of all. Nothing is made of their size: a stranger says what they are.
    """
    inner = nbytes
    for axis, length in enumerate(shape):
        inner //= max(1, length)
        if inner <= most or axis == len(shape) - 1:
            rows = max(1, most // max(1, inner))
            for index in _indices(shape[:axis]):
                for start in range(0, length, rows):
                    yield (*index, slice(start, start + rows))
            return
    yield ...


def _indices(shape: tuple[int, ...]) -> Iterator[tuple[int, ...]]:
    """Every index, the last axis fastest. ``itertools.product`` would make a tuple of each axis first."""
    if not shape:
        yield ()
        return
    for first in range(shape[0]):
        for rest in _indices(shape[1:]):
            yield (first, *rest)
