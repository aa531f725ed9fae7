"""stack.json and construct.json."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, TypeAlias

from msformat.check import check_construct, check_stack
from msformat.jsontext import Buffer, canonical, parse_object

__all__ = ["ConstructDocument", "Dialect", "Group", "StackDocument", "encode_stack"]

Dialect: TypeAlias = Literal["1.2", "8.1"]
# Entries that were called from one place, and the frames that lead there, innermost first.
Group: TypeAlias = "tuple[tuple[str, ...], tuple[str, ...]]"


class StackDocument:
    """Call stacks by entry.

    Attributes
    ----------
    dialect
        ``"8.1"``: ``{"0": [[entry keys], [frames]], …}`` (msprobe 8.1.0 and later; also for a document without
        stacks); ``"1.2"``: ``{entry key: [frames]}``.
    groups
        Entry keys with their frames, in order; in the dialect 1.2 one key each.
    problems
        What is odd but does not hinder reading, a sentence each.
    """

    def __init__(self, groups: Iterable[Group], dialect: Dialect, source: str) -> None:
        self.groups = list(groups)
        self.dialect: Dialect = dialect
        self.source = source
        self.problems: list[str] = []
        self._frames: dict[str, tuple[str, ...]] = {}
        for entries, frames in self.groups:
            for entry in entries:
                if self._frames.setdefault(entry, frames) != frames:
                    self.problems.append(f"{source}: entry {entry!r} has more than one call stack; the first counts")

    @classmethod
    def parse(cls, data: Buffer, source: str) -> StackDocument:
        """Read either dialect.

        Raises
        ------
        SchemaError
            No JSON, or of neither dialect.
        UnsafeInputError
            As :func:`~msformat.jsontext.parse_json`.
        """
        obj = parse_object(data, source)
        check_stack(obj, source)
        if any(value and isinstance(value[0], list) for value in obj.values()):
            return cls(((tuple(entries), tuple(frames)) for entries, frames in obj.values()), "8.1", source)
        return cls((((key,), tuple(frames)) for key, frames in obj.items()), "1.2" if obj else "8.1", source)

    def frames(self, entry: str) -> tuple[str, ...] | None:
        """The call stack of an entry, innermost frame first; None where it has none."""
        return self._frames.get(entry)


def encode_stack(groups: Iterable[tuple[Sequence[str], Sequence[str]]], dialect: Dialect) -> bytes:
    """The canonical bytes of a stack.json.

    Parameters
    ----------
    groups
        Entry keys with their frames, as in :attr:`StackDocument.groups`.
    dialect
        In ``"8.1"``, groups with the same frames become one, at the place of the first.

    An entry that stands in several groups stays in the first, whose frames are its own (:meth:`StackDocument.frames`).
    """
    frames_of: dict[str, tuple[str, ...]] = {}
    merged: dict[tuple[str, ...], list[str]] = {}
    for entries, frames in groups:
        found = tuple(frames)
        members = merged.setdefault(found, [])
        members += [entry for entry in dict.fromkeys(entries) if frames_of.setdefault(entry, found) is found]
    if dialect == "1.2":
        return canonical({entry: list(frames) for entry, frames in frames_of.items()})
    return canonical({str(number): [keys, list(frames)] for number, (frames, keys) in enumerate(merged.items())})


class ConstructDocument(Mapping[str, "str | None"]):
    """Parent of each entry, None at the top.

    Attributes
    ----------
    problems
        Cycles, and parents that are no entry themselves; a sentence each.
    """

    def __init__(self, parents: Mapping[str, str | None], source: str) -> None:
        self._parents = dict(parents)
        self.source = source
        self._cycle_heads = _find_cycles(self._parents)
        self._children = self._collect_children()
        self.problems = self._describe_problems()

    @classmethod
    def parse(cls, data: Buffer, source: str) -> ConstructDocument:
        """Read a construct.json.

        Raises
        ------
        SchemaError
            No JSON, no object, or a parent that is neither a string nor null.
        UnsafeInputError
            As :func:`~msformat.jsontext.parse_json`.
        """
        obj = parse_object(data, source)
        check_construct(obj, source)
        return cls(obj, source)

    def __getitem__(self, entry: str) -> str | None:
        return self._parents[entry]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parents)

    def __len__(self) -> int:
        return len(self._parents)

    @property
    def roots(self) -> tuple[str, ...]:
        """Entries from which all others are reached: at the top, with an unknown parent, or the first of a cycle."""
        return self.children(None)

    def children(self, parent: str | None) -> tuple[str, ...]:
        """Entries directly below another, in the order of the document; of None: :attr:`roots`.

        A cycle is cut above its first entry, so that children form trees.
        """
        return tuple(self._children.get(parent, ()))

    def tree(self) -> Iterator[tuple[int, str]]:
        """Depth and key of every entry once, parents before children."""
        pending = [(0, root) for root in reversed(self.roots)]
        while pending:
            depth, entry = pending.pop()
            yield depth, entry
            pending.extend((depth + 1, child) for child in reversed(self._children.get(entry, ())))

    def encode(self) -> bytes:
        """The canonical bytes."""
        return canonical(self._parents)

    def _collect_children(self) -> dict[str | None, list[str]]:
        children: dict[str | None, list[str]] = {}
        for entry, parent in self._parents.items():
            is_root = parent not in self._parents or entry in self._cycle_heads
            children.setdefault(None if is_root else parent, []).append(entry)
        return children

    def _describe_problems(self) -> list[str]:
        strangers: dict[str, str] = {}
        for entry, parent in self._parents.items():
            if parent is not None and parent not in self._parents:
                strangers.setdefault(parent, entry)
        return [
            *(f"{self.source}: {head!r} is among its own parents" for head in self._cycle_heads),
            *(
                f"{self.source}: {name!r}, parent of {entry!r}, has no place itself"
                for name, entry in strangers.items()
            ),
        ]


def _find_cycles(parents: Mapping[str, Any]) -> dict[str, None]:
    """The first entry, in the order of the document, of each cycle. Linear: every entry is followed up once."""
    order = {entry: number for number, entry in enumerate(parents)}
    walk_of: dict[str, int] = {}
    heads: dict[str, None] = {}
    for walk, start in enumerate(parents):
        entry: Any = start
        while entry in parents and entry not in walk_of:
            walk_of[entry] = walk
            entry = parents[entry]
        if walk_of.get(entry) == walk:
            heads[min(_cycle_through(parents, entry), key=order.__getitem__)] = None
    return heads


def _cycle_through(parents: Mapping[str, Any], start: str) -> Iterator[str]:
    yield start
    entry = parents[start]
    while entry != start:
        yield entry
        entry = parents[entry]
