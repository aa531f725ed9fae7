"""What lies beside kernel files: tables, arguments of kernels, documents, and files that are none of it."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace

from msformat.filesystem import FileSystem, Item, join
from msformat.foreign.kernel_dump.filenames import is_hash_name, parse_kernel_name
from msformat.foreign.kernel_dump.places import Place, is_atb_file
from msformat.foreign.kernel_dump.record import Doubt, DoubtName
from msformat.foreign.kernel_dump.tables import StatisticRow, parse_mapping, parse_statistics

__all__ = ["SideFiles", "read_side_files"]

_STATISTICS = "statistic.csv"
_MAPPING = "mapping.csv"
# Larger tables are left to themselves: their rows would be gigabytes of objects.
_MOST_TABLE = 256 << 20
# Of all tables of a directory.
_MOST_ROWS = 500_000
_MOST_DOCUMENT = 16 << 20
_DOCUMENT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,190}\.(?:csv|json|txt|log)")
_ARGUMENTS = re.compile(r"[^.]+\.[^.]+\.json")
# Names that mean something else in a unit.
_RESERVED = frozenset({"dump.json", "debug.json", "stack.json", "construct.json"})


@dataclass(slots=True)
class SideFiles:
    """Files of a directory, sorted by what they are.

    Attributes
    ----------
    kernel_files
        Dumps of kernels and of single tensors.
    atb_files
        Tensors of ATB operations.
    mapping
        Name on disk -> name that was too long.
    rows
        Of all tables of statistics.
    arguments
        Paths of ``{type}.{name}.json``, by type and name.
    documents
        Paths of tables and texts to keep, by name.
    doubts
        What is doubtful.
    """

    kernel_files: list[Item] = field(default_factory=list)
    atb_files: list[Item] = field(default_factory=list)
    mapping: dict[str, str] = field(default_factory=dict)
    rows: list[StatisticRow] = field(default_factory=list)
    arguments: dict[str, str] = field(default_factory=dict)
    documents: dict[str, str] = field(default_factory=dict)
    doubts: list[Doubt] = field(default_factory=list)


def read_side_files(fs: FileSystem, place: Place) -> SideFiles:
    """Sort the files of a directory and read its tables."""
    side = SideFiles()
    mapping = next((item for item in place.files if item.name == _MAPPING), None)
    if mapping is not None:
        _read_mapping(fs, place, mapping, side)
    strangers = [item.name for item in place.files if not _take(fs, place, item, side)]
    if strangers:
        some = ", ".join(strangers[:3]) + (", …" if len(strangers) > 3 else "")
        text = f"{fs.describe(place.path)}: {len(strangers)} files are no kernel dumps: {some}"
        side.doubts.append(Doubt(DoubtName.left_alone, text))
    return side


def _take(fs: FileSystem, place: Place, item: Item, side: SideFiles) -> bool:
    """Find out what a file is; False for a stranger."""
    path = join(place.path, item.name)
    shown = side.mapping.get(item.name, item.name)
    if is_atb_file(item.name):
        side.atb_files.append(item)
    elif parse_kernel_name(shown) is not None or is_hash_name(item.name):
        side.kernel_files.append(item)
    elif item.name == _STATISTICS or parse_kernel_name(item.name.removesuffix(".csv")) is not None:
        _read_statistics(fs, path, item, side)
        if item.size <= _MOST_TABLE:
            side.documents[item.name] = path
    elif _ARGUMENTS.fullmatch(item.name) and item.size <= _MOST_DOCUMENT:
        side.arguments[item.name.removesuffix(".json")] = path
    elif _DOCUMENT.fullmatch(item.name) and item.name not in _RESERVED and item.size <= _MOST_DOCUMENT:
        side.documents[item.name] = path
    else:
        return False
    return True


def _table(fs: FileSystem, path: str, item: Item, side: SideFiles) -> bytes:
    if item.size > _MOST_TABLE:
        _doubt(fs, path, f"a table of {item.size} bytes is not read", side)
        return b""
    try:
        return fs.read(path)
    except OSError as error:
        _doubt(fs, path, f"cannot be read: {error}", side)
        return b""


def _doubt(fs: FileSystem, path: str, text: str, side: SideFiles) -> None:
    side.doubts.append(Doubt(DoubtName.bad_table, f"{fs.describe(path)}: {text}"))


def _read_mapping(fs: FileSystem, place: Place, item: Item, side: SideFiles) -> None:
    path = join(place.path, item.name)
    side.mapping, bad = parse_mapping(_table(fs, path, item, side), {file.name for file in place.files})
    if bad:
        _doubt(fs, path, f"{bad} lines are no pair of names", side)


def _read_statistics(fs: FileSystem, path: str, item: Item, side: SideFiles) -> None:
    most = _MOST_ROWS - len(side.rows)
    rows, bad = parse_statistics(_table(fs, path, item, side), most)
    if bad:
        why = "fit no form of the table" if len(rows) < most else f"are not read, behind {_MOST_ROWS} rows"
        _doubt(fs, path, f"{bad} lines {why}", side)
    side.rows += rows if item.name == _STATISTICS else _named(rows, item.name.removesuffix(".csv"))


def _named(rows: Sequence[StatisticRow], stem: str) -> Iterator[StatisticRow]:
    """Rows of a table of one kernel, whose name is that of the file."""
    return (replace(row, stem=stem) for row in rows)
