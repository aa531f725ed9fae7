"""What the records of a journal add up to: a document, its call stacks and its tree.

Pure values; :mod:`msformat.journal` reads and checks the records.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any, TypeAlias

__all__ = ["Record", "Replayed", "StackGroups", "replay"]

Record: TypeAlias = "dict[str, Any]"


@dataclass(slots=True)
class Replayed:
    """What the records add up to.

    Attributes
    ----------
    header
        The document without entries (``data`` is ``{}``); None when the journal holds not even its header.
    document_name
        ``dump.json`` or ``debug.json``.
    backend
        Name of the store the tensors are in.
    entries
        Entry key to JSON value, in the order the keys were first seen.
    stack_groups
        (entry keys, frames) of each distinct call stack, in first-seen order.
    parents
        Entry key to the key of its parent, or None.
    problems
        What was not captured, in words.
    reason
        Why the writer went away without finishing; None when it was killed, or still writes.
    """

    header: dict[str, Any] | None = None
    document_name: str = "dump.json"
    backend: str = "files"
    entries: dict[str, Any] = field(default_factory=dict)
    stack_groups: list[tuple[list[str], list[str]]] = field(default_factory=list)
    parents: dict[str, str | None] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)
    reason: str | None = None


def replay(records: Iterable[Record]) -> Replayed:
    """Add records up. A later entry with the same key replaces the earlier one in its place; so does a parent."""
    found = Replayed()
    stacks = StackGroups()
    numbers: list[int] = []
    for record in records:
        kind = record["kind"]
        if kind == "header":
            found.header, found.document_name = record["header"], record["document"]
            found.backend = record["backend"]
        elif kind == "entry":
            found.entries[record["key"]] = record["value"]
        elif kind == "stack":
            if "frames" in record:
                numbers.append(stacks.put(record["entries"], record["frames"])[0])
            else:
                stacks.put_again(record["entries"], numbers[record["ref"]])
        elif kind == "parent":
            found.parents[record["child"]] = record["parent"]
        elif kind == "parents":
            found.parents.update(record["parents"])
        elif kind == "problem":
            found.problems.append(record["message"])
        else:
            found.reason = record["reason"]
    found.stack_groups = stacks.groups()
    return found


class StackGroups:
    """Entries with one call stack together, both in first-seen order; the last stack put for an entry counts."""

    def __init__(self) -> None:
        self._numbers: dict[tuple[str, ...], int] = {}
        self._frames: list[tuple[str, ...]] = []
        self._of_entry: dict[str, int] = {}

    def put(self, entries: Iterable[str], frames: Iterable[str]) -> tuple[int, bool]:
        """Note the call stack of entries; returns its number and whether it is new."""
        stack = tuple(frames)
        number = self._numbers.setdefault(stack, len(self._frames))
        is_new = number == len(self._frames)
        if is_new:
            self._frames.append(stack)
        self.put_again(entries, number)
        return number, is_new

    def put_again(self, entries: Iterable[str], number: int) -> None:
        """Note that entries have the call stack of that number; what a long stack costs is paid once."""
        self._of_entry.update(dict.fromkeys(entries, number))

    def groups(self) -> list[tuple[list[str], list[str]]]:
        """(entries, frames) of each call stack that has entries."""
        members: list[list[str]] = [[] for _ in self._frames]
        for entry, number in self._of_entry.items():
            members[number].append(entry)
        return [(entries, list(stack)) for entries, stack in zip(members, self._frames, strict=True) if entries]
