"""Pages about one dump: the page model filled by the reader."""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from msformat.columns import number_of
from msformat.entries import Tensor
from msformat.errors import MsformatError
from msformat.model import STATISTICS
from msformat.names import key_matches, parse_entry
from msformat.pages.health import Health, Numbers, health_of, largest_magnitude
from msformat.pages.histogram import histogram
from msformat.pages.packing import number, shown_frames
from msformat.pages.unitpage import Column, UnitPage, event_times, gradients_last, parents_of
from msformat.plaintext import shortened
from msformat.reader import Dump
from msformat.table import Table
from msformat.unit import Unit
from msformat.units import UnitKey
from msformat.unwritten import is_unwritten

__all__ = ["DumpPages", "find_tensor", "gradient_norm", "tree_of"]

# Units kept in memory: the one that is looked at, and the one before.
_HELD = 2
_BEFORE = 6
_OUTPUT = "output"
_GRADIENTS = "parameters_grad"


class DumpPages:
    """A dump as pages show it.

    Parameters
    ----------
    dump
        The dump.
    keys
        Which units.
    patterns
        Only entries that one of these globs or texts matches, and what is around them; all where there is none.
    """

    def __init__(self, dump: Dump, keys: Sequence[UnitKey], patterns: Sequence[str] = ()) -> None:
        self._dump = dump
        self._patterns = tuple(patterns)
        self._keys = tuple(keys)
        self._held = lru_cache(maxsize=_HELD)(self._arranged)

    @property
    def labels(self) -> Sequence[str]:
        """Units, in order of step and rank."""
        return [key.path for key in self._keys]

    def about(self) -> dict[str, Any]:
        """What the page says at its top."""
        return {
            "kind": "dump",
            "sides": [shortened(self._dump.path, 300)],
            "notes": [shortened(text, 1000) for text in self._dump.tree_problems],
        }

    def overview(self, at: int) -> dict[str, Any]:
        """A unit in a line, and the first tensor with NaN or an infinity in it."""
        key = self._keys[at]
        line = {"step": key.step, "rank": key.rank, "branch": key.branch}
        try:
            unit = self.unit(at)
        except (MsformatError, OSError, MemoryError) as error:
            return {**line, "problem": shortened(str(error) or type(error).__name__, 1000)}
        health = _numbers(unit.columns["health"])
        largest = largest_magnitude(_numbers(unit.columns["max"]), _numbers(unit.columns["min"]))
        finite = largest[np.isfinite(largest)]
        return {
            **line,
            "calls": len(unit.keys),
            "entries": int(np.count_nonzero(_numbers(unit.node_columns["order"]) >= 0)),
            "tensors": len(unit.owners),
            "health": {kind.name.lower(): int(np.count_nonzero(health == kind)) for kind in Health},
            "gradientNorm": number(gradient_norm(unit.columns["slot"], _numbers(unit.columns["norm"]))),
            "largest": float(finite.max()) if finite.size else None,
            "first": _first_trouble(unit),
            "notes": [shortened(note, 1000) for note in unit.notes],
        }

    def unit(self, at: int) -> UnitPage:
        """A unit whole."""
        return self._held(at)

    def histograms(self, at: int, row: int) -> list[dict[str, Any]]:
        """The histogram of a tensor, where its values were saved."""
        unit = self.unit(at)
        key = unit.keys[int(unit.owners[row])]
        tensor = find_tensor(self._dump.unit(self._keys[at]), key, unit.columns["slot"][row], unit.columns["path"][row])
        return [histogram(tensor)] if tensor is not None else []

    def series(self, at: int, row: int) -> list[dict[str, Any]]:
        """Statistics of a tensor in every unit that has it."""
        unit = self.unit(at)
        key, slot, path = unit.keys[int(unit.owners[row])], unit.columns["slot"][row], unit.columns["path"][row]
        found = ((where, find_tensor(self._dump.unit(where), key, slot, path)) for where in self._keys)
        return [_series_point(where, tensor) for where, tensor in found if tensor is not None]

    def _arranged(self, at: int) -> UnitPage:
        unit = self._dump.unit(self._keys[at])
        with warnings.catch_warnings(record=True) as said:
            warnings.simplefilter("always")
            keys, depths = _filtered(*tree_of(unit), self._patterns)
            table = _table_of(unit, keys, self._patterns)
            order = {key: place for place, key in enumerate(unit)}
            unit.stack("")
        incomplete = [] if unit.complete else [f"not complete: {unit.incomplete_reason}"]
        problems = [text for text in unit.problems if text != unit.incomplete_reason]
        notes = dict.fromkeys([*incomplete, *problems, *(str(warning.message) for warning in said)])
        owners, sorting = _owners(table, keys)
        columns = _tensor_columns(table, sorting, unit.header.framework)
        return UnitPage(
            label=self._keys[at].path,
            facts=_facts(unit),
            notes=list(notes),
            keys=keys,
            depths=depths,
            owners=owners,
            node_columns={"order": np.array([order.get(key, -1) for key in keys], dtype=np.int64)},
            columns=columns,
            alarming=_numbers(columns["health"]) >= Health.NEAR,
            stacks=lambda key: (unit.stack(key),),
        )


# --- one unit ------------------------------------------------------------------------------------------------------


def tree_of(unit: Unit) -> tuple[list[str], NDArray[np.int64]]:
    """Keys of the call tree and their depths, parents before what runs inside them."""
    return gradients_last((node.depth, node.key) for node in unit.tree())


def _filtered(
    keys: Sequence[str], depths: NDArray[np.int64], patterns: Sequence[str]
) -> tuple[list[str], NDArray[np.int64]]:
    """Entries that match, and those around them."""
    kept = set(range(len(keys))) if not patterns else set()
    parents = parents_of(depths).tolist()
    for node, key in enumerate(keys):
        at = node if any(key_matches(key, pattern) for pattern in patterns) else -1
        while at >= 0 and at not in kept:
            kept.add(at)
            at = parents[at]
    chosen = sorted(kept)
    return [keys[node] for node in chosen], depths[chosen]


def _table_of(unit: Unit, keys: Sequence[str], patterns: Sequence[str]) -> Table:
    table = unit.table()
    known = set(keys)
    kept = np.array([key in known for key in table["entry"]], dtype=np.bool_)
    chosen: Table = table if kept.all() else table[kept]
    if not patterns and len(chosen) < len(table):
        # Only an index of columns that somebody made can say so; `verify` tells more.
        warnings.warn(f"{len(table) - len(chosen)} tensors belong to no entry: left out", stacklevel=2)
    return chosen


def _facts(unit: Unit) -> dict[str, str]:
    """Framework, level, task and store of a unit."""
    header = unit.header
    facts = {"framework": header.framework, "level": header.level, "task": header.task, "store": unit.backend}
    return {name: value for name, value in facts.items() if value}


def _tensor_columns(table: Table, sorting: NDArray[np.int64], framework: str) -> dict[str, Column]:
    """Columns of a table as pages have them, in another order."""
    statistics = {name: table.numbers(name)[sorting] for name in STATISTICS}
    dtypes = table["dtype"][sorting]
    return {
        "slot": table["slot"][sorting].tolist(),
        "path": table["path"][sorting].tolist(),
        "dtype": dtypes.tolist(),
        "shape": _spelled_shapes(table["shape"][sorting]),
        "saved": np.array([name is not None for name in table["data_name"][sorting]], dtype=np.uint8),
        "health": _health(table[sorting], statistics, dtypes, framework),
        "absent": _absent(statistics.values()),
        **{STATISTICS[name]: values.filled(np.nan) for name, values in statistics.items()},
    }


def _health(table: Table, statistics: Mapping[str, Numbers], dtypes: NDArray[Any], framework: str) -> NDArray[np.uint8]:
    """The health of each row; -inf is no mask in a backward or a parameter, and unwritten memory is never at fault."""
    found = health_of(statistics, dtypes)
    for row in np.flatnonzero(found >= Health.MASKED).tolist():
        entry, slot = table["entry"][row], table["slot"][row]
        if is_unwritten(entry, slot, table["path"][row], framework):
            found[row] = Health.FINE
        elif found[row] == Health.MASKED:
            name = parse_entry(entry)
            if slot in ("parameters", _GRADIENTS) or (name is not None and name.stage == "backward"):
                found[row] = Health.INFINITE
    return found


def gradient_norm(slots: Column, norms: NDArray[np.float64]) -> float | None:
    """Norm of all parameter gradients together; None where none was recorded."""
    chosen = norms[[slot == _GRADIENTS for slot in slots]]
    with np.errstate(over="ignore", invalid="ignore"):
        return float(np.sqrt(np.sum(np.square(chosen)))) if len(chosen) else None


def _owners(table: Table, keys: Sequence[str]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The entry of each tensor, ascending, and the rows of the table in that order."""
    place = {key: node for node, key in enumerate(keys)}
    owners = np.fromiter((place[key] for key in table["entry"]), dtype=np.int64, count=len(table))
    sorting = np.argsort(owners, kind="stable")
    return owners[sorting], sorting


def _absent(statistics: Iterable[np.ma.MaskedArray[Any, Any]]) -> NDArray[np.uint8]:
    """A bit for each statistic that is null or missing: 1 for Max, 2 for Min, 4 for Mean, 8 for Norm."""
    bits = [np.ma.getmaskarray(values).astype(np.uint8) << place for place, values in enumerate(statistics)]
    return np.asarray(np.bitwise_or.reduce(bits))


def _spelled_shapes(shapes: NDArray[Any]) -> list[str]:
    made: dict[Any, str] = {}
    return [made.get(shape) or made.setdefault(shape, str(list(shape))) for shape in shapes]


def _numbers(column: Column) -> NDArray[Any]:
    assert isinstance(column, np.ndarray)
    return column


# --- the first trouble ---------------------------------------------------------------------------------------------


def _first_trouble(unit: UnitPage) -> dict[str, Any] | None:
    """The first tensor in order of execution that holds NaN or +inf; of -inf alone where there is no such."""
    health = _numbers(unit.columns["health"])
    for kinds in ((Health.NAN, Health.INFINITE), (Health.MASKED,)):
        rows = np.flatnonzero(np.isin(health, kinds))
        if rows.size:
            return _described(unit, rows)
    return None


def _described(unit: UnitPage, rows: NDArray[np.int64]) -> dict[str, Any]:
    begins, ends = event_times(unit.depths)
    slots = unit.columns["slot"]
    owners = unit.owners[rows]
    is_output = np.array([slots[row] == _OUTPUT for row in rows.tolist()])
    row = int(rows[np.argmin(np.where(is_output, ends[owners], begins[owners]))])
    node = int(unit.owners[row])
    time = (ends if slots[row] == _OUTPUT else begins)[node]
    stack = next(iter(unit.stacks(unit.keys[node])), None) or ()
    parents = parents_of(unit.depths)
    return {
        "key": shortened(unit.keys[node], 300),
        "slot": shortened(slots[row], 300),
        "path": shortened(unit.columns["path"][row], 300),
        "health": Health(int(_numbers(unit.columns["health"])[row])).name.lower(),
        "stack": shown_frames(stack),
        "inputsFine": _inputs_are_fine(unit, node),
        "parents": [shortened(unit.keys[at], 300) for at in _chain(parents, node)],
        "before": [
            {"key": shortened(unit.keys[at], 300), "health": _worst_health(unit, at)}
            for at in _before(unit, ends, time)
        ],
    }


def _inputs_are_fine(unit: UnitPage, node: int) -> bool:
    """Whether inputs were recorded and hold neither NaN nor infinities."""
    rows = np.flatnonzero(unit.owners == node)
    inputs = [row for row in rows.tolist() if unit.columns["slot"][row] != _OUTPUT]
    health = _numbers(unit.columns["health"])[inputs]
    return bool(inputs) and bool(np.all((health < Health.MASKED) & (health > Health.UNKNOWN)))


def _worst_health(unit: UnitPage, node: int) -> int:
    return int(_numbers(unit.columns["health"])[unit.owners == node].max(initial=0))


def _chain(parents: NDArray[np.int64], node: int) -> list[int]:
    found: list[int] = []
    while (node := int(parents[node])) >= 0 and len(found) < 100:
        found.append(node)
    return found


def _before(unit: UnitPage, ends: NDArray[np.int64], time: int) -> list[int]:
    """The calls that ended last before a time, the nearest last."""
    recorded = np.flatnonzero((ends < time) & (_numbers(unit.node_columns["order"]) >= 0))
    return [int(node) for node in recorded[np.argsort(ends[recorded])][-_BEFORE:]]


# --- one tensor ----------------------------------------------------------------------------------------------------


def find_tensor(unit: Unit, key: str, slot: str, path: str) -> Tensor | None:
    """The tensor at a place of an entry; None where there is none, or it cannot be read."""
    try:
        entry = unit.get(key)
        tensors = entry.tensors if entry is not None else ()
    except (MsformatError, OSError):
        return None
    return next((tensor for tensor in tensors if (tensor.slot, tensor.path) == (slot, path)), None)


def _series_point(where: UnitKey, tensor: Tensor) -> dict[str, Any]:
    """Statistics of a tensor in one unit."""
    stats = tensor.statistics()
    values = {name: None if stats is None else number_of(getattr(stats, name)) for name in STATISTICS.values()}
    return {"step": where.step, "rank": where.rank, **{name: number(value) for name, value in values.items()}}
