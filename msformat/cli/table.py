"""``msformat table``: the statistics of every tensor as CSV, Parquet, JSON or a table on the terminal."""

from __future__ import annotations

import argparse
from typing import Any

from msformat.cli.inspect import add_unit_options, for_each_unit
from msformat.cli.output import print_json, print_table

__all__ = ["add_commands"]

_SHOWN = ("unit", "entry", "slot", "path", "dtype", "shape", "Max", "Min", "Mean", "Norm", "digest")
_NUMBERS = ("Max", "Min", "Mean", "Norm")


def add_commands(commands: Any) -> None:
    """Add ``table`` to the command line."""
    parser = commands.add_parser("table", help="statistics of every tensor: a table, CSV, Parquet or JSON")
    add_unit_options(parser)
    parser.add_argument("--csv", metavar="FILE", help="write CSV (UTF-8)")
    parser.add_argument("--bom", action="store_true", help="begin the CSV with a byte order mark, for Excel")
    parser.add_argument("--parquet", metavar="FILE", help="write Parquet (needs the extra 'table')")
    parser.add_argument("--filter", default="", metavar="TEXT", help="only entries whose key contains TEXT")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    import msformat  # noqa: PLC0415

    tables: list[Any] = []
    code = for_each_unit(
        msformat.open(arguments.path),
        arguments,
        lambda _, unit: tables.append(unit.table(filter=arguments.filter or None)),
    )
    if not tables:
        return code
    whole = msformat.Table.concat(tables)
    if arguments.csv:
        whole.to_csv(arguments.csv, bom=arguments.bom)
    if arguments.parquet:
        whole.to_parquet(arguments.parquet)
    if arguments.json:
        print_json(list(whole.rows()))
    elif not (arguments.csv or arguments.parquet):
        print_table(_SHOWN, ([_cell(row[name]) for name in _SHOWN] for row in whole.rows()), right=_NUMBERS)
    return code


def _cell(value: Any) -> Any:
    if value is None:
        return ""
    return f"{value:.6g}" if isinstance(value, float) else value
