"""The call tree of a unit: which entry ran inside which module."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from msformat.documents import ConstructDocument

__all__ = ["Node", "Tree"]

# Modules of real networks lie some ten deep.
_DEEPEST = 100


@dataclass(frozen=True, slots=True)
class Node:
    """One line of the tree.

    Attributes
    ----------
    key
        Entry key.
    depth
        0 at the top.
    has_entry
        False for what was recorded in the tree only: a structure run, or an entry that was filtered out.
    """

    key: str
    depth: int
    has_entry: bool


class Tree:
    """Nodes in the order of execution, parents before their children; print it to see it.

    Every key comes exactly once, whatever the document says: cycles are cut above their first entry, an entry with an
    unknown parent stands at the top. Entries that the document does not mention (parameter gradients) come last.

    Parameters
    ----------
    construct
        The document.
    entries
        Keys of the unit's entries.
    """

    def __init__(self, construct: ConstructDocument, entries: Iterable[str]) -> None:
        self._construct = construct
        self._entries = dict.fromkeys(entries)
        self._others = tuple(key for key in self._entries if key not in construct)

    def children(self, key: str | None) -> tuple[str, ...]:
        """Keys directly below a key; of None: those at the top."""
        below = self._construct.children(key)
        return below if key is not None else (*below, *self._others)

    def __iter__(self) -> Iterator[Node]:
        for depth, key in self._construct.tree():
            yield Node(key, depth, key in self._entries)
        for key in self._others:
            yield Node(key, 0, has_entry=True)

    def __len__(self) -> int:
        return len(self._construct) + len(self._others)

    def __str__(self) -> str:
        return "\n".join(_indent(node.depth) + node.key for node in self)

    def __repr__(self) -> str:
        return f"<Tree: {len(self)} nodes, {len(self.children(None))} at the top>"


def _indent(depth: int) -> str:
    """Two blanks a level; a number from where a stranger's chain of 50,000 entries would make gigabytes of them."""
    return "  " * depth if depth <= _DEEPEST else f"{'  ' * _DEEPEST}… {depth}: "
