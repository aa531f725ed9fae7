"""Entries of a unit as a comparison sees them: name, place among the others, and what runs around them."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from itertools import chain
from typing import Any

from msformat.compare.mapping import NameMapping
from msformat.entries import Entry
from msformat.errors import FormatError
from msformat.names import OpName, parse_entry
from msformat.unit import Unit

__all__ = ["Call", "Calls", "load_calls"]

# Chains of parents from a stranger may be circles.
_DEEPEST = 1000


@dataclass(frozen=True, slots=True)
class Call:
    """An entry.

    Attributes
    ----------
    key
        Entry key.
    name
        What it says, in the names of the other dump where a mapping knows them; None for a key of no known form.
    parent
        Key of the enclosing call.
    module
        Path of the module it is; None for anything else.
    is_mapped
        Whether the user's mapping renamed it.
    """

    key: str
    name: OpName | None
    parent: str | None
    module: str | None = None
    is_mapped: bool = False


class Calls(Mapping[str, Call]):
    """Entries of a unit by key, in the document's order."""

    def __init__(self, unit: Unit, calls: Iterable[Call]) -> None:
        self.unit = unit
        self._calls = {call.key: call for call in calls}
        self.has_tree = any(call.parent is not None for call in self._calls.values())

    def __getitem__(self, key: str) -> Call:
        return self._calls[key]

    def __iter__(self) -> Iterator[str]:
        return iter(self._calls)

    def __len__(self) -> int:
        return len(self._calls)

    def entry(self, key: str) -> Entry | None:
        """The entry, None for one that cannot be decoded."""
        try:
            found: Entry | None = self.unit.get(key)
        except FormatError:
            return None
        return found

    def parents(self, key: str) -> Iterator[str]:
        """Keys of what runs around an entry, innermost first; also of what has no entry itself."""
        seen: set[str] = {key}
        parent = self._parent(key)
        while parent is not None and parent not in seen and len(seen) < _DEEPEST:
            yield parent
            seen.add(parent)
            parent = self._parent(parent)

    def _parent(self, key: str) -> str | None:
        call = self._calls.get(key)
        return call.parent if call is not None else self.unit.parent(key)

    def module(self, key: str) -> str:
        """Path of the module an entry is, or runs in; ``""`` outside of modules."""
        for at in chain((key,), self.parents(key)):
            call = self._calls.get(at)
            path = call.module if call is not None else _module_of(parse_entry(at))
            if path is not None:
                return path
        return ""


def load_calls(unit: Unit, mapping: NameMapping | None = None) -> Calls:
    """Entries with their names, which a mapping may change, and parents; nothing is decoded."""
    calls = [_call(unit, key) for key in unit]
    if mapping is not None:
        classes = {
            call.name.path: call.name.class_name or ""
            for call in calls
            if call.name is not None and call.name.order == "module"
        }
        calls = [_renamed(call, mapping, classes) for call in calls]
    return Calls(unit, calls)


def _call(unit: Unit, key: str) -> Call:
    name = parse_entry(key)
    return Call(key, name, unit.parent(key), _module_of(name))


def _module_of(name: OpName | None) -> str | None:
    return name.path if name is not None and name.order == "module" else None


def _renamed(call: Call, mapping: NameMapping, classes: Mapping[str, Any]) -> Call:
    name = mapping.name(call.key, call.name, classes)
    return call if name is None else replace(call, name=name, is_mapped=True)
