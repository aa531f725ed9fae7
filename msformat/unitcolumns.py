"""The table of a unit: from the columnar index of its container, else from its documents."""

from __future__ import annotations

import warnings
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from msformat import schema
from msformat.columnbuild import ColumnBuilder, Columns
from msformat.columnindex import find_columns
from msformat.columns import MISSING, Column, ConstantColumn, ObjectColumn
from msformat.contents import Contents
from msformat.documents import DumpDocument
from msformat.errors import FormatError
from msformat.model import STATISTICS
from msformat.names import key_matches
from msformat.table import COLUMNS, Table

if TYPE_CHECKING:
    from msformat.entries import Tensor
    from msformat.unit import Unit

__all__ = ["unit_table"]


def unit_table(unit: Unit, contents: Callable[[], Contents], pattern: str) -> Table:
    """The statistics of every tensor of a unit.

    Parameters
    ----------
    unit
        The unit.
    contents
        Gives its documents, indexed: asked for only where there is no index of columns.
    pattern
        Only entries whose key matches; ``""`` for all.
    """
    # A journal knows better than any document.
    columns = find_columns(unit.store) if unit.location.journal is None else None
    if columns is not None:
        try:
            return _table(unit, columns, pattern)
        except FormatError as error:
            warnings.warn(f"{unit.path}: the index of columns is not used: {error}", stacklevel=3)
    return _table(unit, _built(unit, contents(), pattern), pattern)


def _table(unit: Unit, columns: Columns, pattern: str) -> Table:
    kept = _kept_rows(columns, pattern)
    found = columns.table_columns() | {
        "unit": ConstantColumn(unit.label, columns.rows),
        "step": ConstantColumn(unit.key.step, columns.rows),
        "rank": ConstantColumn(unit.key.rank, columns.rows),
    }
    found |= _late_statistics(unit, columns, found, kept)
    table = Table({name: found[name] for name in COLUMNS})
    smaller: Table = table if kept.all() else table[kept]
    return smaller


def _kept_rows(columns: Columns, pattern: str) -> NDArray[np.bool_]:
    if not pattern:
        return np.ones(columns.rows, np.bool_)
    kept = np.fromiter((key_matches(key, pattern) for key in columns.keys), np.bool_, len(columns.keys))
    return np.repeat(kept, columns.counts)


def _built(unit: Unit, contents: Contents, pattern: str) -> Columns:
    builder = ColumnBuilder()

    def leave_out(key: str) -> None:
        try:
            unit[key]
        except FormatError as error:
            warnings.warn(f"left out: {error}", stacklevel=7)

    keys = [key for key in contents.keys() if key_matches(key, pattern)] if pattern else None  # noqa: SIM118 (no mapping)
    only = contents.sources[0] if len(contents.sources) == 1 else None
    if isinstance(only, DumpDocument):
        builder.add_texts(only.texts(keys), leave_out)
        return builder.finish()
    for key in contents.keys() if keys is None else keys:
        source = contents.find(key) or {}
        try:
            builder.add(key, schema.dump_entry(source[key]))
        except FormatError:
            leave_out(key)
    return builder.finish()


def _late_statistics(
    unit: Unit, columns: Columns, found: dict[str, Column], kept: NDArray[np.bool_]
) -> dict[str, Column]:
    """Statistics of tensors of which the document has none but the store has values: see ``Tensor.statistics``."""
    codes, names = columns.data_name
    is_late = kept & np.fromiter((name is not None for name in names), np.bool_, len(names))[codes]
    for name in STATISTICS:
        is_late &= columns.lacking(name)
    rows = np.flatnonzero(is_late).tolist()
    if not rows:
        return {}
    made: dict[str, NDArray[Any]] = {name: found[name].objects().copy() for name in STATISTICS}
    ends = np.cumsum(columns.counts, dtype=np.int64)
    for row in rows:
        number = int(np.searchsorted(ends, row, side="right"))
        first = int(ends[number]) - int(columns.counts[number])
        stats = _tensor_at(unit, columns.keys[number], row - first).statistics()
        for name, attribute in STATISTICS.items():
            absent = stats is None or attribute in stats.absent
            made[name][row] = MISSING if absent else getattr(stats, attribute)
    return {name: ObjectColumn(values) for name, values in made.items()}


def _tensor_at(unit: Unit, key: str, number: int) -> Tensor:
    """A tensor that an index of columns speaks of; somebody may have made one with the right seal and wrong rows."""
    entry = unit.get(key)
    if entry is None or number >= len(entry.tensors):
        raise FormatError(f"entry {key!r}: the document has no tensor {number} of it")
    found: Tensor = entry.tensors[number]
    return found
