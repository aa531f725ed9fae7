"""Which units of two dumps are the same rank of the same step."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from typing import TypeAlias

from msformat.layout import UnitLocation
from msformat.units import UnitKey

__all__ = ["UnitPair", "pair_units"]

UnitPair: TypeAlias = "tuple[UnitLocation | None, UnitLocation | None]"


def pair_units(a: Sequence[UnitLocation], b: Sequence[UnitLocation]) -> tuple[list[UnitPair], list[str]]:
    """Units that belong together in order of step and rank, those of one side alone among them, and notes.

    Same step, rank and branch first; then, where both sides have one unit of a step, that one, whatever its rank is
    called (``rank``, ``rank0``, ``proc4711``); at last, where no step is in both, units in their order.
    """
    found: list[UnitPair] = []
    free_a, free_b = list(a), list(b)
    for identity in (_whole, _numbered, _rank_of_step):
        found += _take(free_a, free_b, identity)
    for identity in (_step_and_branch, _step):
        found += _take(free_a, free_b, identity, only=True)
    notes: list[str] = []
    if not found and len(free_a) == len(free_b) and free_a:
        found = list(zip(free_a, free_b, strict=True))
        notes.append(f"no step is in both: {_words(found)} are compared in their order")
        free_a, free_b = [], []
    found += [(unit, None) for unit in free_a]
    found += [(None, unit) for unit in free_b]
    return sorted(found, key=_sort_key), notes


def _take(
    free_a: list[UnitLocation],
    free_b: list[UnitLocation],
    identity: Callable[[UnitKey], Hashable],
    *,
    only: bool = False,
) -> list[UnitPair]:
    """Pairs of one identity, taken out of both lists; with ``only``, of those that one unit a side has."""
    ours, theirs = _by(free_a, identity), _by(free_b, identity)
    found = [
        pair
        for name, units in ours.items()
        if name in theirs and (not only or len(units) == len(theirs[name]) == 1)
        for pair in zip(units, theirs[name], strict=False)
    ]
    taken = {id(unit) for pair in found for unit in pair}
    for free in (free_a, free_b):
        free[:] = [unit for unit in free if id(unit) not in taken]
    return list(found)


def _by(units: Sequence[UnitLocation], identity: Callable[[UnitKey], Hashable]) -> dict[Hashable, list[UnitLocation]]:
    found: dict[Hashable, list[UnitLocation]] = {}
    for unit in units:
        found.setdefault(identity(unit.key), []).append(unit)
    return found


def _whole(key: UnitKey) -> Hashable:
    return key


def _numbered(key: UnitKey) -> Hashable:
    """A single process is rank 0 of one."""
    return key.step, key.rank_number if key.rank != "rank" else 0, key.branch, key.rank if _is_process(key) else ""


def _rank_of_step(key: UnitKey) -> Hashable:
    return key.step, key.rank


def _step_and_branch(key: UnitKey) -> Hashable:
    return key.step, key.branch


def _step(key: UnitKey) -> Hashable:
    return key.step


def _is_process(key: UnitKey) -> bool:
    return key.rank.startswith("proc")


def _words(pairs: Sequence[UnitPair]) -> str:
    shown = [f"{a.key} and {b.key}" for a, b in pairs[:3] if a is not None and b is not None]
    return ", ".join(shown) + (f" and {len(pairs) - 3} more" if len(pairs) > 3 else "")


def _sort_key(pair: UnitPair) -> UnitKey:
    unit = pair[0] or pair[1]
    assert unit is not None
    return unit.key
