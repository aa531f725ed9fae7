"""Statistics of many tensors as columns."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections import namedtuple
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from msformat.atomic import output_file
from msformat.columns import MISSING, Column, ConcatColumn, ObjectColumn
from msformat.errors import FormatError
from msformat.extras import optional
from msformat.htmlview import table_html
from msformat.model import STATISTICS
from msformat.plaintext import csv_text

if TYPE_CHECKING:
    from msformat.entries import Tensor

__all__ = ["COLUMNS", "MISSING", "Table"]

COLUMNS = (
    "unit", "step", "rank", "entry", "slot", "path", "type", "dtype", "shape",
    "Max", "Min", "Mean", "Norm", "digest", "data_name", "requires_grad",
)  # fmt: skip


class Table:
    """Columns of equal length, a row a tensor.

    ``table["Max"]`` is a numpy object array with what the document says, exactly: a number, a bool, NaN, None for null,
    :data:`MISSING` for no such key. :meth:`numbers` is the same for arithmetic. An integer index gives a row, a slice
    or mask a smaller table.

    The columns: ``unit`` (path in the dump), ``step``, ``rank`` (label), ``entry``, ``slot``, ``path``, ``type``,
    ``dtype``, ``shape``, ``Max``, ``Min``, ``Mean``, ``Norm``, ``digest`` (JSON ``md5``), ``data_name``,
    ``requires_grad``.

    Examples
    --------
    >>> import msformat
    >>> table = msformat.open("my_dump")[0].table()
    >>> large = table[table.numbers("Norm").filled(0) > 40]
    >>> for row in large:
    ...     print(row.entry, row.slot, row.Max)
    Torch.argmax.0.forward output 15.0
    """

    def __init__(self, columns: Mapping[str, Sequence[Any] | NDArray[Any] | Column]) -> None:
        self._columns = {
            name: values if isinstance(values, Column) else ObjectColumn(values) for name, values in columns.items()
        }
        lengths = {name: len(column) for name, column in self._columns.items()}
        if len(set(lengths.values())) > 1:
            raise FormatError(f"columns of a table are of one length: {lengths}")
        self._row_type: Any = namedtuple("Row", self._columns)  # type: ignore[misc]

    @classmethod
    def of_tensors(cls, tensors: Iterable[Tensor]) -> Table:
        """A row for each tensor."""
        rows = [_row_of(tensor) for tensor in tensors]
        return cls(dict(zip(COLUMNS, zip(*rows, strict=True), strict=True)) if rows else dict.fromkeys(COLUMNS, ()))

    @classmethod
    def concat(cls, tables: Sequence[Table]) -> Table:
        """All rows of several tables with the same columns, in order; of none, an empty table."""
        if not tables:
            return cls.of_tensors(())
        return cls({name: ConcatColumn([table._columns[name] for table in tables]) for name in tables[0].columns})

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the columns."""
        return tuple(self._columns)

    def __len__(self) -> int:
        return len(next(iter(self._columns.values()), ()))

    def __getitem__(self, index: Any) -> Any:
        """A column by name, a row by number, a smaller table by slice, mask or array of numbers."""
        if isinstance(index, str):
            return self._columns[index].objects()
        if isinstance(index, (int, np.integer)) and not isinstance(index, bool):
            return self._row_type(*(column.item(int(index)) for column in self._columns.values()))
        return Table({name: column.take(index) for name, column in self._columns.items()})

    def __iter__(self) -> Iterator[Any]:
        """Rows as named tuples."""
        return (self._row_type(*row) for row in zip(*self._objects(), strict=True))

    def rows(self) -> Iterator[dict[str, Any]]:
        """Rows as dicts. Missing statistics are :data:`MISSING`, which serialises as the empty text."""
        return (dict(zip(self._columns, row, strict=True)) for row in zip(*self._objects(), strict=True))

    def _objects(self) -> list[NDArray[Any]]:
        return [column.objects() for column in self._columns.values()]

    def numbers(self, column: str) -> np.ma.MaskedArray[Any, Any]:
        """A statistic as float64, masked where it is null or missing; NaN stays NaN, True is 1.

        Integers above 2**53 are rounded; the column itself has them exactly.
        """
        values, mask = self._columns[column].numbers()
        return np.ma.MaskedArray(values, mask=mask, fill_value=math.nan)

    # --- to other tools --------------------------------------------------------------------------------------------

    def to_pandas(self) -> Any:
        """A ``pandas.DataFrame``. Statistics are object columns: None is null, NaN is NaN, ``pandas.NA`` is missing.

        Raises
        ------
        BackendMissingError
            pandas is not installed.
        """
        pandas = optional("pandas", "table", "Table.to_pandas()")
        frame = {}
        for name, column in zip(self._columns, self._objects(), strict=True):
            values = [pandas.NA if value is MISSING else value for value in column]
            frame[name] = _series(pandas, values, dtype=object if name in _KEPT_OBJECTS else None)
        return pandas.DataFrame(frame)

    def to_arrow(self) -> Any:
        """A ``pyarrow.Table``. Statistics are float64 where null is null and NaN is NaN.

        A missing statistic is null too, and named in the row's list ``missing``; so is a shape beyond 64 bits, which no
        tensor has, but a stranger may have written.

        Raises
        ------
        BackendMissingError
            pyarrow is not installed.
        """
        arrow = optional("pyarrow", "table", "Table.to_arrow()")
        arrays = {name: self._arrow_array(arrow, name) for name in self._columns}
        arrays["missing"] = self._arrow_missing(arrow)
        return arrow.table(arrays)

    def _arrow_array(self, arrow: Any, name: str) -> Any:
        if name in STATISTICS:
            values, absent = self._columns[name].numbers()
            return arrow.array(values, arrow.float64(), mask=absent)
        column = self._columns[name].objects()
        if name == "shape":
            shapes = [None if _has_no_arrow(shape) else list(shape) for shape in column]
            return arrow.array(shapes, arrow.list_(arrow.int64()))
        if name in _ARROW_TYPES:
            return arrow.array(list(column), getattr(arrow, _ARROW_TYPES[name])())
        return arrow.array([_utf8(value) for value in column], arrow.string())

    def _arrow_missing(self, arrow: Any) -> Any:
        """Of each row the names of what is missing; column by column, since most rows have none."""
        names = [name for name in ("shape", *STATISTICS) if name in self._columns]
        lacking = np.zeros((len(self), len(names)), np.bool_)
        for at, name in enumerate(names):
            lacking[:, at] = [_has_no_arrow(value) for value in self._columns[name].objects()]
        ends = np.cumsum(lacking.sum(axis=1), dtype=np.int32)
        found = [names[at] for at in np.nonzero(lacking)[1]]
        offsets = arrow.array(np.concatenate([np.zeros(1, np.int32), ends]))
        return arrow.ListArray.from_arrays(offsets, arrow.array(found, arrow.string()))

    def __arrow_c_stream__(self, requested_schema: Any = None) -> Any:
        """The PyCapsule interface of Arrow: polars, DuckDB, pandas 3 and others take a table as it is."""
        return self.to_arrow().__arrow_c_stream__(requested_schema)

    def to_polars(self) -> Any:
        """A ``polars.DataFrame`` of what :meth:`to_arrow` gives: null is null, NaN is NaN, ``missing`` names the rest.

        Raises
        ------
        BackendMissingError
            polars or pyarrow is not installed.
        """
        polars = optional("polars", "polars", "Table.to_polars()")
        return polars.from_arrow(self.to_arrow())

    def to_parquet(self, path: str | os.PathLike[str]) -> None:
        """Write :meth:`to_arrow` as a Parquet file, whole or not at all. A device or pipe is written into.

        Raises
        ------
        BackendMissingError
            pyarrow is not installed.
        """
        table = self.to_arrow()
        parquet = optional("pyarrow.parquet", "table", "Table.to_parquet()")
        with output_file(path) as stream:
            parquet.write_table(table, stream)

    def to_csv(self, path: str | os.PathLike[str], *, bom: bool = False) -> None:
        """Write a CSV file in UTF-8, whole or not at all. A device or pipe is written into.

        Numbers are spelled as in dump.json (``NaN``, ``Infinity``), null is ``null``, missing is an empty cell.
        Text that a spreadsheet would calculate (``=1+1``) begins with ``'``.

        Parameters
        ----------
        path
            The file.
        bom
            Begin with a byte order mark, without which Excel on Windows takes UTF-8 for something else.
        """
        encoding = "utf-8-sig" if bom else "utf-8"
        with output_file(path) as stream:
            # backslashreplace: a lone surrogate in a name from JSON has no UTF-8 form.
            text = io.TextIOWrapper(stream, encoding=encoding, errors="backslashreplace", newline="")
            writer = csv.writer(text)
            writer.writerow(self.columns)
            cells = [_cells(name, column) for name, column in zip(self._columns, self._objects(), strict=True)]
            writer.writerows(zip(*cells, strict=True))
            text.flush()
            text.detach()

    def __reduce__(self) -> tuple[type[Table], tuple[Any, ...]]:
        # The type of the rows is made for this table, so pickle would not find it.
        return Table, (self._columns,)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return table_html(self)

    def __repr__(self) -> str:
        return f"<Table: {len(self)} rows, {len(self.columns)} columns>"


def _row_of(tensor: Tensor) -> tuple[Any, ...]:
    meta, unit = tensor.meta, tensor.entry.unit
    return (
        unit.label, unit.key.step, unit.key.rank, tensor.entry.key, tensor.slot, tensor.path,
        meta.type, meta.dtype, meta.shape,
        *_statistics(tensor.statistics()), meta.digest, meta.data_name, meta.requires_grad,
    )  # fmt: skip


def _series(pandas: Any, values: list[Any], dtype: Any) -> Any:
    try:
        return pandas.Series(values, dtype=dtype)
    except UnicodeEncodeError:
        # Texts of pandas 3 are UTF-8, which a lone surrogate from JSON has not.
        return pandas.Series(values, dtype=object)


def _statistics(stats: Any) -> Iterator[Any]:
    for attribute in STATISTICS.values():
        absent = stats is None or attribute in stats.absent
        yield MISSING if absent else getattr(stats, attribute)


def _cells(name: str, column: NDArray[Any]) -> Iterable[Any]:
    """How CSV spells a column. The csv module writes texts and ints as they are, and None as nothing."""
    if name == "shape":
        return (f"[{', '.join(map(str, shape))}]" for shape in column)
    if name in STATISTICS:
        return map(_spelled, column)
    return map(_plain_cell, column)


def _plain_cell(value: Any) -> Any:
    if isinstance(value, str):
        return csv_text(value)
    return ("true" if value else "false") if isinstance(value, bool) else value


def _spelled(value: Any) -> Any:
    """A statistic as dump.json spells it; the csv module does so for finite floats."""
    if type(value) is float and math.isfinite(value):
        return value
    if isinstance(value, str):
        return csv_text(value)
    return json.dumps(value) if value is None or isinstance(value, (bool, float)) else value


_ARROW_TYPES = {"step": "int64", "requires_grad": "bool_"}
# What pandas must not turn into a type of its own, where None and NaN would become one.
_KEPT_OBJECTS = (*STATISTICS, "shape", "requires_grad")


def _has_no_arrow(value: Any) -> bool:
    """Whether a statistic is missing, or a shape has an axis that no 64-bit integer counts."""
    return value is MISSING or (isinstance(value, tuple) and any(length >= 1 << 63 for length in value))


def _utf8(value: str | None) -> str | None:
    """Text that has a UTF-8 form; JSON may hold lone surrogates."""
    return None if value is None else value.encode("utf-8", "backslashreplace").decode("utf-8")
