"""Where two units part first, in order of execution.

Documents list calls as they began or as they ended, depending on who wrote them. What happened when is told by the call
tree: inputs and parameters of a call were there before anything inside it ran, its outputs after all of that.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from msformat.compare.model import EntryResult, Role, ScalarChange, TensorResult, Verdict
from msformat.names import parse_entry

__all__ = ["Event", "before", "execution_order", "first_event", "tensors_in_order"]

_EARLY: frozenset[Role] = frozenset(("input", "parameter"))

Wanted: TypeAlias = "Callable[[Verdict], bool]"


@dataclass(frozen=True, slots=True)
class Event:
    """A call begins (its inputs are there) or ends (so are its outputs).

    Attributes
    ----------
    entry
        Number of the entry.
    is_begin
        Which of both.
    """

    entry: int
    is_begin: bool


def execution_order(entries: Sequence[EntryResult], parents: Sequence[int | None]) -> list[Event]:
    """Begin and end of every entry, as they happened.

    Parameters
    ----------
    entries
        In the order of the documents.
    parents
        Number of the enclosing entry of each, None at the top. Circles are cut.
    """
    depths = _depths(parents)
    begins = _positions(entries)
    ends = list(begins)
    for at in sorted(range(len(entries)), key=depths.__getitem__, reverse=True):
        parent = parents[at]
        if parent is not None and depths[parent] < depths[at]:
            begins[parent] = min(begins[parent], begins[at])
            ends[parent] = max(ends[parent], ends[at])
    # At one place: outer calls begin before inner ones, and end after them; a call begins before it ends.
    keys = [((begins[at], 0, depths[at], at), Event(at, is_begin=True)) for at in range(len(entries))]
    keys += [((ends[at], 1, -depths[at], at), Event(at, is_begin=False)) for at in range(len(entries))]
    return [event for _, event in sorted(keys, key=lambda pair: pair[0])]


def _positions(entries: Sequence[EntryResult]) -> list[int]:
    """Place of each in the document, but for gradients of parameters: msprobe gives them a place behind the forward.

    They are there when the last backward of their module is, or at the end where none was recorded.
    """
    positions = list(range(len(entries)))
    names = [parse_entry(entry.key) for entry in entries]
    backwards = {name.path: at for at, name in enumerate(names) if name is not None and name.stage == "backward"}
    for at, name in enumerate(names):
        if name is not None and name.stage == "parameters_grad":
            positions[at] = backwards.get(name.path, len(entries))
    return positions


def _depths(parents: Sequence[int | None]) -> list[int]:
    """How deep each lies; entries of a circle count from where it is entered first."""
    depths = [-1] * len(parents)
    for start in range(len(parents)):
        way: list[int] = []
        seen: set[int] = set()
        at: int | None = start
        while at is not None and depths[at] < 0 and at not in seen:
            way.append(at)
            seen.add(at)
            at = parents[at]
        base = depths[at] if at is not None and at not in seen else -1
        for step, entry in enumerate(reversed(way), 1):
            depths[entry] = base + step
    return depths


def first_event(
    entries: Sequence[EntryResult], events: Sequence[Event], wanted: Wanted
) -> tuple[int, TensorResult | None, ScalarChange | None] | None:
    """The place in ``events`` of the first tensor or argument with a wanted verdict, and which it is."""
    for place, event in enumerate(events):
        entry = entries[event.entry]
        if event.is_begin:
            # Names of devices and the like are never where runs part.
            worse = (scalar for scalar in entry.scalars if scalar.verdict == "different")
            scalar = next((scalar for scalar in worse if wanted(scalar.verdict)), None)
            if scalar is not None:
                return place, None, scalar
            if not entry.tensors and entry.match == "none" and wanted(entry.verdict):
                return place, None, None
        tensor = next((found for found in _at(entry, event) if wanted(found.verdict)), None)
        if tensor is not None:
            return place, tensor, None
    return None


def _at(entry: EntryResult, event: Event) -> Iterator[TensorResult]:
    return (tensor for tensor in entry.tensors if (tensor.role in _EARLY) == event.is_begin)


def tensors_in_order(entries: Sequence[EntryResult]) -> Iterator[tuple[EntryResult, TensorResult]]:
    """Every tensor with its entry, in order of execution: the first is where trouble begins, the rest what came of it.

    Parameters
    ----------
    entries
        Of one unit, in the order of the documents.
    """
    places = {key: at for at, entry in enumerate(entries) for key in (entry.b, entry.a) if key is not None}
    parents = [places.get(entry.parent) if entry.parent is not None else None for entry in entries]
    for event in execution_order(entries, parents):
        entry = entries[event.entry]
        yield from ((entry, tensor) for tensor in _at(entry, event))


def before(entries: Sequence[EntryResult], events: Sequence[Event], place: int, count: int) -> tuple[EntryResult, ...]:
    """The last calls that ended before a place, the nearest last."""
    found: list[EntryResult] = []
    for event in reversed(events[:place]):
        if len(found) == count:
            break
        if not event.is_begin and event.entry != events[place].entry:
            found.append(entries[event.entry])
    return tuple(reversed(found))
