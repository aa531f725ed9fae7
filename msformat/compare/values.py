"""Values of two stored tensors: read a slab at a time where they are large, and each content once."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from dataclasses import replace
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from msformat.compare.elements import element_kind
from msformat.compare.running import Measured, RunningErrors
from msformat.digest import content_digest
from msformat.logical import LogicalBits, logical_bits
from msformat.selection import Selection, slabs
from msformat.stores.base import StoredTensor

__all__ = ["PairMeasure"]

# Larger tensors are read in slabs.
_AT_ONCE = 32 << 20
_SLAB = 8 << 20
# Digests of less take longer than what they save.
_DIGESTED_FROM = 4096
# Bytes looked at in one go; a multiple of eight.
_COMPARED = 1 << 20

Pair: TypeAlias = "tuple[LogicalBits, LogicalBits]"


class PairMeasure:
    """Measures pairs of tensors of two open stores; pairs of the same contents are measured once.

    May be used by several threads.
    """

    def __init__(self) -> None:
        self._by_identity: dict[Hashable, Measured] = {}
        self._by_content: dict[tuple[str, str], Measured] = {}

    def of(self, a: StoredTensor, declared_a: str, b: StoredTensor, declared_b: str) -> Measured:
        """Measure two tensors of one shape.

        Parameters
        ----------
        declared_a, declared_b
            Their types as the documents say, see :func:`msformat.logical.logical_bits`.

        Raises
        ------
        CorruptTensorError, StoreError
            One cannot be read.
        """
        identity = _identity(a, declared_a, b, declared_b)
        found = self._by_identity.get(identity) if identity is not None else None
        if found is None:
            found = self._measure(a, declared_a, b, declared_b)
            if identity is not None:
                self._by_identity[identity] = found
        return found

    def _measure(self, a: StoredTensor, declared_a: str, b: StoredTensor, declared_b: str) -> Measured:
        if max(a.nbytes, b.nbytes) > _AT_ONCE:
            return _measure(lambda: _slab_pairs(a, declared_a, b, declared_b), a.shape)
        pair = logical_bits(a, declared_a), logical_bits(b, declared_b)
        if min(a.nbytes, b.nbytes) < _DIGESTED_FROM:
            return _measure(lambda: [pair], a.shape)
        content = content_digest(pair[0].bits, pair[0].dtype), content_digest(pair[1].bits, pair[1].dtype)
        found = self._by_content.get(content)
        if found is None:
            found = self._by_content[content] = _measure(lambda: [pair], a.shape)
        return found


def _identity(a: StoredTensor, declared_a: str, b: StoredTensor, declared_b: str) -> Hashable | None:
    if a.identity is None or b.identity is None:
        return None
    return a.identity, a.dtype.name, declared_a, b.identity, b.dtype.name, declared_b, a.shape


# --- slabs -----------------------------------------------------------------------------------------------------------


def _slab_pairs(a: StoredTensor, declared_a: str, b: StoredTensor, declared_b: str) -> Iterator[Pair]:
    for selection in _slabs(a, b):
        yield logical_bits(a, declared_a, selection), logical_bits(b, declared_b, selection)


def _slabs(a: StoredTensor, b: StoredTensor) -> Iterator[Selection]:
    """Selections of one shape that follow one another in C order; all at once where a store cannot read parts."""
    if not (a.reads_parts and b.reads_parts):
        yield ...
        return
    for stored in (a, b):
        stored.check_whole()
    yield from slabs(a.shape, max(a.nbytes, b.nbytes), _SLAB)


# --- pairs of bits ---------------------------------------------------------------------------------------------------


def _measure(pairs: Callable[[], Iterable[Pair]], shape: tuple[int, ...]) -> Measured:
    """Measure pairs of bits that follow one another, anew with a scale where squares do not fit."""
    found, scale = _measure_once(pairs(), shape, 1.0)
    return found if scale == 1.0 else _measure_once(pairs(), shape, scale)[0]


def _measure_once(pairs: Iterable[Pair], shape: tuple[int, ...], scale: float) -> tuple[Measured, float]:
    """What came of it, and the scale it should be done again with."""
    notes: dict[str, None] = {}
    running = RunningErrors(shape, scale)
    same, differing = True, None
    for a, b in pairs:
        notes.update(dict.fromkeys(filter(None, (a.note, b.note))))
        flat_a, flat_b = _flat(a), _flat(b)
        is_same = a.dtype == b.dtype and _equal(flat_a, flat_b)
        same = same and is_same
        if "x" in (element_kind(a.dtype), element_kind(b.dtype)):
            differing = (differing or 0) + (0 if is_same else _count_differing(flat_a, flat_b))
        elif is_same:
            running.add_same(flat_a, a.dtype)
        else:
            running.add(flat_a, a.dtype, flat_b, b.dtype)
    measured = running.result(same=same, notes=tuple(notes))
    if differing is not None:
        return replace(measured, metrics=None, differing=differing), 1.0
    return measured, running.wanted_scale


def _flat(found: LogicalBits) -> NDArray[Any]:
    lanes = found.dtype.lanes
    return found.bits.reshape(-1) if lanes == 1 else found.bits.reshape(-1, lanes)


def _equal(a: NDArray[Any], b: NDArray[Any]) -> bool:
    """Whether all bits are equal, found out without a mask as large as they are."""
    left, right = a.reshape(-1).view(np.uint8), b.reshape(-1).view(np.uint8)
    cut = len(left) & ~7
    for at in range(0, cut, _COMPARED):
        end = min(at + _COMPARED, cut)
        if not np.array_equal(left[at:end].view(np.uint64), right[at:end].view(np.uint64)):
            return False
    return np.array_equal(left[cut:], right[cut:])


def _count_differing(a: NDArray[Any], b: NDArray[Any]) -> int:
    """How many elements have other bits; all, where they are of other types."""
    if a.dtype != b.dtype or a.shape != b.shape:
        return len(a)
    return int(np.count_nonzero((a != b).reshape(len(a), -1).any(axis=1)))
