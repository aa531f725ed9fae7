"""Tables beside kernel files: ``statistic.csv`` in its variants, and ``mapping.csv`` for names that were too long."""

from __future__ import annotations

import csv
import io
import re
from collections.abc import Container, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from msformat.foreign.kernel_dump.enums import spelled_type

__all__ = ["StatisticRow", "parse_mapping", "parse_statistics"]

# Column names of all writers -> ours.
_COLUMNS = {
    "op type": "op_type",
    "op name": "op_name",
    "task id": "task_id",
    "stream id": "stream_id",
    "timestamp": "timestamp",
    "io": "slot",
    "input/output": "slot",
    "slot": "index",
    "index": "index",
    "data size": "size",
    "data type": "dtype",
    "dtype": "dtype",
    "format": "format",
    "shape": "shape",
}
_STATISTICS = {
    "max value": "Max", "max": "Max", "min value": "Min", "min": "Min", "avg value": "Mean", "mean": "Mean",
    "mean value": "Mean", "avg": "Mean", "average": "Mean", "l2 norm value": "Norm", "l2 norm": "Norm",
    "l2norm value": "Norm", "l2 value": "Norm", "l2norm": "Norm", "norm": "Norm",
}  # fmt: skip
_NUMBER = re.compile(r"[0-9]{1,20}")


@dataclass(frozen=True, slots=True)
class StatisticRow:
    """What a table says of one tensor.

    Attributes
    ----------
    stem
        ``{type}.{name}.{task}.{stream}.{timestamp}`` of its kernel; ``""`` where the file's name says it.
    slot, index
        Which tensor.
    dtype, format, shape
        As far as the table has them.
    statistics
        Max, Min, Mean and Norm; None for null.
    others
        Other columns as they stand: counts, MD5, sizes.
    """

    stem: str
    slot: str
    index: int
    dtype: str = ""
    format: str = ""
    shape: tuple[int, ...] | None = None
    statistics: Mapping[str, float | int | bool | None] = field(default_factory=dict)
    others: Mapping[str, str] = field(default_factory=dict)


def parse_statistics(data: bytes, most: int | None = None) -> tuple[list[StatisticRow], int]:
    """Rows of a ``statistic.csv``, ``most`` at most, and how many lines fit no form or came after those."""
    rows: list[StatisticRow] = []
    bad = 0
    header: list[str] = []
    for cells in _cells(data):
        if not cells:
            continue
        if _is_header(cells):
            header = [cell.strip() for cell in cells]  # a big operator is appended in parts, each with its header
            continue
        row = _row(_joined(header, cells)) if header and (most is None or len(rows) < most) else None
        bad += row is None
        rows += [row] if row is not None else []
    return rows, bad


def _cells(data: bytes) -> Iterator[list[str]]:
    # Decoded piece by piece: as text, a table takes up to four times its bytes.
    text = io.TextIOWrapper(io.BytesIO(data), "utf-8-sig", "backslashreplace", newline="")
    reader = csv.reader(line.replace("\0", "") for line in text)
    while True:
        try:
            yield next(reader)
        except StopIteration:
            return
        except csv.Error:
            yield ["\0"]  # a field of more than the module's limit: a row of no form


def _is_header(cells: Sequence[str]) -> bool:
    known = {cell.strip().lower() for cell in cells}
    return "data type" in known or "dtype" in known


def _joined(header: Sequence[str], cells: list[str]) -> dict[str, str]:
    """Cells by column. One writer leaves ``(2,3)`` unquoted, which the csv module takes for several cells."""
    at = next((at for at, name in enumerate(header) if name.lower() == "shape"), None)
    extra = len(cells) - len(header)
    if at is not None and extra > 0 and cells[at].strip().startswith("("):
        cells = [*cells[:at], ",".join(cells[at : at + extra + 1]), *cells[at + extra + 1 :]]
    return dict(zip(header, cells, strict=False)) if len(cells) == len(header) else {}


def _row(cells: Mapping[str, str]) -> StatisticRow | None:
    known: dict[str, str] = {}
    statistics: dict[str, float | int | bool | None] = {}
    others: dict[str, str] = {}
    for name, text in cells.items():
        lower = name.lower()
        if lower in _COLUMNS:
            known[_COLUMNS[lower]] = text.strip()
        elif lower in _STATISTICS:
            statistics |= _statistic(_STATISTICS[lower], text.strip())
        elif text.strip():
            others[name] = text.strip()
    slot, index = known.get("slot", "").lower(), known.get("index", "")
    if slot not in ("input", "output") or not _NUMBER.fullmatch(index) or len(index) > 6:
        return None
    if known.get("size"):
        others["Data Size"] = known["size"]
    return StatisticRow(
        _stem(known), slot, int(index), spelled_type(known.get("dtype", "")), known.get("format", ""),
        _shape(known.get("shape", "")), statistics, others,
    )  # fmt: skip


def _stem(known: Mapping[str, str]) -> str:
    fields = [known.get(name, "") for name in ("op_type", "op_name", "task_id", "stream_id", "timestamp")]
    return ".".join(fields) if all(fields[:2]) else ""


def _statistic(name: str, text: str) -> dict[str, float | int | bool | None]:
    """A number, None for null; nothing for an empty cell or ``NA``."""
    lower = text.lower()
    if lower in ("", "na", "n/a", "-"):
        return {}
    if lower in ("null", "none"):
        return {name: None}
    if lower in ("true", "false"):
        return {name: lower == "true"}
    if re.fullmatch(r"-?[0-9]{1,18}", text):
        return {name: int(text)}
    try:
        return {name: float(text)}
    except ValueError:
        return {}


def _shape(text: str) -> tuple[int, ...] | None:
    """``(2,3)``, ``"(2,3)"``, ``2x3``, ``()``; None for ``-`` and whatever else is no shape."""
    bare = text.strip().strip("()[]\"'").strip()
    if bare == "":
        return () if text.strip() in ("()", "[]") else None
    parts = [part.strip() for part in re.split(r"[x,]", bare) if part.strip()]
    if not all(_NUMBER.fullmatch(part) and len(part) <= 18 for part in parts):
        return None
    return tuple(map(int, parts))


def parse_mapping(data: bytes, there: Container[str] | None = None) -> tuple[dict[str, str], int]:
    """Name on disk -> name that was too long, and how many lines fit no form. ``there``: leave out other names.

    There is no header row, and a row comes again with each piece of a large file. Either side may be a whole path.
    """
    names: dict[str, str] = {}
    bad = 0
    for cells in _cells(data):
        if not cells:
            continue
        parts = [cell.strip().replace("\\", "/").rpartition("/")[2] for cell in cells]
        if len(parts) == 2 and all(parts):
            names |= {parts[0]: parts[1]} if there is None or parts[0] in there else {}
        else:
            bad += 1
    return names, bad
