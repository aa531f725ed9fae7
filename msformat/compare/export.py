"""Results as files: CSV, Parquet, an Excel workbook, JSON. Names in them are a stranger's, and stay text."""

from __future__ import annotations

import csv
import io
import json
import math
import os
from collections.abc import Callable, Iterator, Mapping
from itertools import islice
from pathlib import Path
from typing import Any, TypeAlias
from zipfile import ZIP_DEFLATED, ZipFile

from msformat.atomic import output_file
from msformat.columns import number_of
from msformat.compare.document import as_json
from msformat.compare.model import DiffResult
from msformat.compare.rows import NUMBERS, columns_of, kind_of, rows_of
from msformat.errors import FormatError
from msformat.extras import optional
from msformat.plaintext import csv_text

__all__ = ["FORMATS", "write_csv", "write_json", "write_parquet", "write_result", "write_xlsx", "writer_for"]

Writer: TypeAlias = "Callable[[DiffResult, str | os.PathLike[str]], None]"

# Of Excel: rows of a sheet, characters of a cell.
_MOST_ROWS = 1_048_576
_MOST_CHARACTERS = 32_767
_BATCH = 8192
_COLOURED = ("NPU Name", "Verdict")
_COLOURS = {"different": "FFC7CE", "unreadable": "FFC7CE", "only_a": "FFEB9C", "only_b": "FFEB9C"}


def write_result(result: DiffResult, path: str | os.PathLike[str]) -> None:
    """Write a result in the format that the suffix of ``path`` names, whole or not at all.

    Raises
    ------
    FormatError
        Another suffix.
    BackendMissingError
        A library is not installed; names the extra that brings it.
    """
    writer_for(path)(result, path)


def writer_for(path: str | os.PathLike[str]) -> Writer:
    """What writes a file of this name; raises as :func:`write_result` does."""
    suffix = Path(path).suffix.lower()
    if suffix not in FORMATS:
        raise FormatError(f"{os.fspath(path)}: name a file ending in {', '.join(FORMATS)}")
    return FORMATS[suffix]


def write_json(result: DiffResult, path: str | os.PathLike[str]) -> None:
    """Everything, as :func:`msformat.compare.document.as_json` gives it."""
    with output_file(path) as stream:
        for piece in json.JSONEncoder(indent=1, allow_nan=False).iterencode(as_json(result)):
            stream.write(piece.encode())


def write_csv(result: DiffResult, path: str | os.PathLike[str]) -> None:
    """UTF-8 with a byte order mark, for Excel; text that a spreadsheet would calculate is quoted with ``'``."""
    names = columns_of(kind_of(result))
    with output_file(path) as stream:
        text = io.TextIOWrapper(stream, encoding="utf-8-sig", errors="backslashreplace", newline="")
        writer = csv.writer(text)
        writer.writerow(names)
        writer.writerows([_csv_cell(value) for value in row.values()] for row in rows_of(result))
        text.flush()
        text.detach()


def _csv_cell(value: Any) -> Any:
    if isinstance(value, str):
        return csv_text(value)
    return _spelled(value)


def _spelled(value: Any) -> Any:
    """Numbers that are none in words: NaN is not the same as nothing."""
    if value is None:
        return "N/A"
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("inf" if value > 0 else "-inf")
    return value


def write_parquet(result: DiffResult, path: str | os.PathLike[str]) -> None:
    """Columns of float64 and text; what is not there is null."""
    arrow = optional("pyarrow", "diff", "a result in Parquet")
    parquet = optional("pyarrow.parquet", "diff", "a result in Parquet")
    names = columns_of(kind_of(result))
    schema = arrow.schema([(name, arrow.float64() if name in NUMBERS else arrow.string()) for name in names])
    rows = rows_of(result)
    with output_file(path) as stream, parquet.ParquetWriter(stream, schema) as writer:
        while batch := list(islice(rows, _BATCH)):
            cells = {name: [_arrow_cell(row, name) for row in batch] for name in names}
            writer.write_batch(arrow.RecordBatch.from_pydict(cells, schema=schema))


def _arrow_cell(row: Mapping[str, Any], name: str) -> Any:
    value = row[name]
    if value is None:
        return None
    if name in NUMBERS:
        return number_of(value) if isinstance(value, (bool, int, float)) else None
    return str(value).encode("utf-8", "backslashreplace").decode()


def write_xlsx(result: DiffResult, path: str | os.PathLike[str]) -> None:
    """A workbook as msprobe makes one: a row a tensor, those that differ coloured; more sheets where one is full."""
    openpyxl = optional("openpyxl", "diff", "a result in Excel's format")
    excel = optional("openpyxl.writer.excel", "diff", "a result in Excel's format")
    with output_file(path) as stream:
        book = openpyxl.Workbook(write_only=True)
        try:
            _fill(openpyxl, book, result)
            # As book.save does it, but closed while there is a stream, also on a full disk.
            with ZipFile(stream, "w", ZIP_DEFLATED) as archive:
                excel.ExcelWriter(book, archive).save()
        finally:
            # What is not closed here is so at exit, when its file is gone.
            for sheet in book.worksheets:
                if not sheet.closed:
                    sheet.close()


def _fill(openpyxl: Any, book: Any, result: DiffResult) -> None:
    fills = {verdict: openpyxl.styles.PatternFill("solid", fgColor=colour) for verdict, colour in _COLOURS.items()}
    names = columns_of(kind_of(result))
    rows: Iterator[Mapping[str, Any]] = rows_of(result)
    number = 1
    while True:
        batch = islice(rows, _MOST_ROWS - 1)
        first = next(batch, None)
        if first is None and number > 1:
            break
        sheet = book.create_sheet(f"result {number}" if number > 1 else "result")
        sheet.freeze_panes = "A2"
        sheet.append(list(names))
        for row in (first, *batch) if first is not None else ():
            sheet.append(_excel_row(openpyxl, sheet, row, fills))
        number += 1


def _excel_row(openpyxl: Any, sheet: Any, row: Mapping[str, Any], fills: Mapping[str, Any]) -> list[Any]:
    """Values, and cells where a value alone would be taken for something else or has a colour."""
    fill = fills.get(row["Verdict"])
    cells = []
    for name, value in row.items():
        shown = _spelled(value)
        text = _excel_text(shown) if isinstance(shown, str) else None
        is_coloured = fill is not None and name in _COLOURED
        if is_coloured or (text is not None and text.startswith("=")):
            cell = openpyxl.cell.WriteOnlyCell(sheet, value=shown if text is None else text)
            if text is not None:
                cell.data_type = "s"  # a text that begins with "=" would be a formula
            if is_coloured:
                cell.fill = fill
            cells.append(cell)
        else:
            cells.append(shown if text is None else text)
    return cells


def _excel_text(text: str) -> str:
    """Text without what XML cannot hold, no longer than a cell takes."""
    shown = text if text.isprintable() else "".join(
        char if char.isprintable() or char == "\n" else char.encode("unicode_escape").decode() for char in text
    )  # fmt: skip
    return shown if len(shown) <= _MOST_CHARACTERS else f"{shown[: _MOST_CHARACTERS - 1]}…"


FORMATS: dict[str, Writer] = {
    ".csv": write_csv,
    ".json": write_json,
    ".parquet": write_parquet,
    ".xlsx": write_xlsx,
}
