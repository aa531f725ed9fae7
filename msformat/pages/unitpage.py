"""The page model: what a page knows of one unit, as columns. Readers and comparisons fill it, pages show it."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias

import numpy as np
from numpy.typing import NDArray

from msformat.pages.packing import MOST_FRAMES, Texts, packed, shown_frames
from msformat.plaintext import shortened

__all__ = [
    "Column",
    "PageSource",
    "Stacks",
    "UnitPage",
    "encode_unit",
    "event_times",
    "gradients_last",
    "parents_of",
]

_IS_GRADIENT = re.compile(r"\.parameters_grad(\.\d+)?\Z")

# Numbers, or texts of which many repeat.
Column: TypeAlias = "NDArray[Any] | Sequence[str]"
# The call stack of an entry on each side; None where none was recorded.
Stacks: TypeAlias = "Callable[[str], Sequence[tuple[str, ...] | None]]"


@dataclass(frozen=True, slots=True)
class UnitPage:
    """One unit.

    Attributes
    ----------
    label
        ``step0/rank3``.
    facts
        What to say of it in a line: framework, level, task, …
    notes
        What a person should know, in sentences.
    keys
        Entry keys in the order of the call tree, parents before what runs inside them.
    depths
        Depth of each in the tree, int64, 0 at the top.
    owners
        Of each tensor the number of its entry, int64, ascending.
    node_columns
        One value an entry.
    columns
        One value a tensor: ``slot``, ``path``, ``dtype``, ``shape``, ``health`` or ``verdict``, statistics, …
    alarming
        Tensors to keep when there is no room for all, bool.
    stacks
        Call stacks, looked up when they are needed.
    details
        Further JSON by name.
    """

    label: str
    facts: Mapping[str, str]
    notes: Sequence[str]
    keys: Sequence[str]
    depths: NDArray[np.int64]
    owners: NDArray[np.int64]
    node_columns: Mapping[str, Column]
    columns: Mapping[str, Column]
    alarming: NDArray[np.bool_]
    stacks: Stacks
    details: Mapping[str, Any] = field(default_factory=dict)


class PageSource(Protocol):
    """One dump, or two compared: what pages are made of."""

    @property
    def labels(self) -> Sequence[str]:
        """Units, in order of step and rank."""

    def about(self) -> dict[str, Any]:
        """What the page says at its top, as JSON."""

    def overview(self, at: int) -> dict[str, Any]:
        """A unit in a line, and where its first trouble is, as JSON."""

    def unit(self, at: int) -> UnitPage:
        """A unit whole."""

    def histograms(self, at: int, row: int) -> list[dict[str, Any]]:
        """Histograms of a tensor, given by its row, on every side that has its values, as JSON."""

    def series(self, at: int, row: int) -> list[dict[str, Any]]:
        """Statistics of a tensor in every unit that has it, as JSON."""


def gradients_last(nodes: Iterable[tuple[int, str]]) -> tuple[list[str], NDArray[np.int64]]:
    """Keys and depths of a tree. Parameter gradients at its top go to the end.

    msprobe gives them a place behind the forward, though they are there when the backward is done.
    """
    listed = list(nodes)
    is_late = [depth == 0 and _IS_GRADIENT.search(key) is not None for depth, key in listed]
    ordered = [*(node for node, late in zip(listed, is_late, strict=True) if not late)]
    ordered += [node for node, late in zip(listed, is_late, strict=True) if late]
    return [key for _, key in ordered], np.array([depth for depth, _ in ordered], dtype=np.int64)


def event_times(depths: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """When each entry of a tree begins and ends, counted in begins and ends.

    Inputs and parameters of a call are there when it begins, outputs when it ends, after all that runs inside it.
    """
    begins, ends = np.zeros(len(depths), np.int64), np.zeros(len(depths), np.int64)
    running: list[int] = []
    time = 0
    for node, depth in enumerate(depths.tolist()):
        while len(running) > depth:
            ends[running.pop()] = time
            time += 1
        begins[node] = time
        time += 1
        running.append(node)
    while running:
        ends[running.pop()] = time
        time += 1
    return begins, ends


def parents_of(depths: NDArray[np.int64]) -> NDArray[np.int64]:
    """The entry around each; -1 at the top."""
    parents = np.full(len(depths), -1, np.int64)
    running: list[int] = []
    for node, depth in enumerate(depths.tolist()):
        del running[depth:]
        parents[node] = running[-1] if running else -1
        running.append(node)
    return parents


# --- as JSON -------------------------------------------------------------------------------------------------------


def encode_unit(unit: UnitPage, most: int | None = None) -> dict[str, Any]:
    """A unit as JSON.

    Parameters
    ----------
    unit
        The unit.
    most
        Most entries: those with alarming tensors and the entries around them are kept first, then the first ones.
    """
    nodes = np.arange(len(unit.keys)) if most is None or len(unit.keys) <= most else _kept(unit, most)
    texts = Texts()
    rows, owners = _rows_of(unit, nodes)
    return {
        "label": shortened(unit.label, 200),
        "facts": {name: shortened(value, 200) for name, value in unit.facts.items()},
        "notes": [shortened(note, 1000) for note in unit.notes],
        "leftOut": len(unit.keys) - len(nodes),
        "keys": texts.pack(unit.keys[node] for node in nodes.tolist()),
        "depths": packed(unit.depths[nodes]),
        "owners": packed(owners),
        "nodes": {name: _pack(column, nodes, texts) for name, column in unit.node_columns.items()},
        "columns": {name: _pack(column, rows, texts) for name, column in unit.columns.items()},
        "rows": packed(rows),
        **_encode_stacks(unit, nodes),
        "details": dict(unit.details),
        "texts": texts.shown,
    }


def _pack(column: Column, chosen: NDArray[np.int64], texts: Texts) -> dict[str, Any]:
    if isinstance(column, np.ndarray):
        return packed(column[chosen])
    return texts.pack(column[at] for at in chosen.tolist())


def _rows_of(unit: UnitPage, nodes: NDArray[np.int64]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Tensors of some entries, and the number of their entry among these."""
    place = np.full(len(unit.keys), -1, dtype=np.int64)
    place[nodes] = np.arange(len(nodes))
    owners = place[unit.owners]
    rows = np.flatnonzero(owners >= 0)
    return rows, owners[rows]


def _kept(unit: UnitPage, most: int) -> NDArray[np.int64]:
    """Which entries stay when there is no room for all. Ancestors of what stays do, so that depths stay true."""
    parents = parents_of(unit.depths).tolist()
    kept: set[int] = set()
    for node in dict.fromkeys([*unit.owners[unit.alarming].tolist(), *range(len(unit.keys))]):
        chain = []
        while node >= 0 and node not in kept:
            chain.append(node)
            node = parents[node]
        if len(kept) + len(chain) <= most:
            kept.update(chain)
    return np.array(sorted(kept), dtype=np.int64)


def _encode_stacks(unit: UnitPage, nodes: NDArray[np.int64]) -> dict[str, Any]:
    """Frames and stacks once each; an entry has the number of its stack on each side, -1 for none."""
    frames: dict[str, int] = {}
    stacks: dict[tuple[str, ...], int] = {}
    found = [[_number(stack, stacks) for stack in unit.stacks(unit.keys[node])] for node in nodes.tolist()]
    lists = [[frames.setdefault(frame, len(frames)) for frame in stack] for stack in stacks]
    sides = len(found[0]) if found else 0
    return {
        "frames": [line for frame in frames for line in shown_frames([frame])],
        "stacks": lists,
        "stackOf": [packed([row[side] for row in found]) for side in range(sides)],
    }


def _number(stack: Iterable[str] | None, stacks: dict[tuple[str, ...], int]) -> int:
    shown = tuple(stack or ())[:MOST_FRAMES]
    return stacks.setdefault(shown, len(stacks)) if shown else -1
