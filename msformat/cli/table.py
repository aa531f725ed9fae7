"""``msformat table``: the statistics of every tensor as CSV, Parquet, JSON or a table on the terminal."""

from __future__ import annotations

import argparse
import warnings
from typing import TYPE_CHECKING, Any

from msformat.cli.inspect import (
    add_command,
    add_unit_options,
    for_each_unit,
    nothing_matches,
    tell_incomplete,
    wanted_keys,
)
from msformat.cli.output import check_output, executor_of, print_json
from msformat.cli.selectors import DASK_HELP, FILTER_HELP, parse_name
from msformat.cli.tables import print_table
from msformat.errors import StoreError

if TYPE_CHECKING:
    from msformat import Dump, Unit
    from msformat.unittables import TableOfUnit

__all__ = ["add_commands"]

_SHOWN = ("unit", "entry", "slot", "path", "dtype", "shape", "Max", "Min", "Mean", "Norm", "digest")
_NUMBERS = ("Max", "Min", "Mean", "Norm")


def add_commands(commands: Any) -> None:
    """Add ``table`` to the command line."""
    parser = add_command(commands, "table", "statistics of every tensor: a table, CSV, Parquet or JSON")
    add_unit_options(parser)
    parser.add_argument("--csv", metavar="FILE", help="write CSV (UTF-8)")
    parser.add_argument("--bom", action="store_true", help="begin the CSV with a byte order mark, for Excel")
    parser.add_argument("--parquet", metavar="FILE", help="write Parquet (needs the extra 'table')")
    parser.add_argument("--filter", type=parse_name, default="", metavar="PATTERN", help=FILTER_HELP)
    parser.add_argument("--dask", metavar="ADDRESS", help=DASK_HELP)
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    import msformat  # noqa: PLC0415

    tables: list[Any] = []

    def add_unit(_: Any, unit: Unit) -> None:
        tell_incomplete(unit)
        tables.append(unit.table(filter=arguments.filter or None))

    def add_made(key: Any, _: Unit) -> None:
        found = made[key]
        for text in found.warnings:
            warnings.warn(text, stacklevel=2)
        if found.table is None:
            raise StoreError(found.problem)
        tables.append(found.table)

    outputs = [path for path in (arguments.csv, arguments.parquet) if path is not None]
    for path in outputs:
        check_output(path, arguments.path)
    dump = msformat.open(_path(arguments), layout=arguments.layout)
    made = _made_on_cluster(dump, arguments) if arguments.dask else {}
    code = for_each_unit(dump, arguments, add_made if arguments.dask else add_unit)
    if not tables:
        return code
    whole = msformat.Table.concat(tables)
    if arguments.csv is not None:
        whole.to_csv(arguments.csv, bom=arguments.bom)
    if arguments.parquet is not None:
        whole.to_parquet(arguments.parquet)
    if arguments.json:
        print_json(list(whole.rows()))
    elif not outputs:
        cells = ([_cell(name, row[name]) for name in _SHOWN] for row in whole.rows())
        print_table(_SHOWN, cells, right=_NUMBERS)
    return code if len(whole) else nothing_matches(arguments, code)


def _path(arguments: argparse.Namespace) -> str:
    from msformat.cluster import shared_path  # noqa: PLC0415

    return shared_path(arguments.path) if arguments.dask else str(arguments.path)


def _made_on_cluster(dump: Dump, arguments: argparse.Namespace) -> dict[Any, TableOfUnit]:
    from msformat.unittables import tables_of_units  # noqa: PLC0415

    with executor_of(arguments.dask) as executor:
        assert executor is not None
        units = [dump.unit(key).location for key in wanted_keys(dump, arguments.path, arguments)]
        return tables_of_units(units, arguments.filter or None, executor)


def _cell(name: str, value: Any) -> Any:
    if value is None:
        # A statistic that is null is not one that is missing.
        return "null" if name in _NUMBERS else ""
    return f"{value:.6g}" if isinstance(value, float) else value
