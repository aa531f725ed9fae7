"""``msformat verify``, ``recover`` and ``schema``."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from msformat.cli.inspect import PATH_HELP, add_command
from msformat.cli.output import bytes_text, executor_of, print_json, problem, tell_problems
from msformat.cli.selectors import DASK_HELP
from msformat.cli.tables import print_table
from msformat.errors import MsformatError

__all__ = ["add_commands"]

_DOCUMENTS = ("dump", "debug", "stack", "construct")


def add_commands(commands: Any) -> None:
    """Add ``verify``, ``recover`` and ``schema`` to the command line."""
    verify = add_command(commands, "verify", "check digests, documents against tensors, missing and orphan files")
    verify.add_argument("path", metavar="PATH", help=PATH_HELP)
    verify.add_argument("--shallow", action="store_true", help="do not read the tensors' bytes")
    verify.add_argument("--dask", metavar="ADDRESS", help=DASK_HELP)
    verify.add_argument("--json", action="store_true", help="print JSON")
    verify.set_defaults(run=_verify)
    recover = add_command(commands, "recover", "finish dumps whose process died, as far as their journals tell")
    recover.add_argument("path", metavar="PATH", help="a dump tree or a unit; unfinished units in it are changed")
    recover.add_argument("--orphans", action="store_true", help="also rebuild entries from tensors no document names")
    recover.add_argument("--json", action="store_true", help="print JSON")
    recover.set_defaults(run=_recover)
    schema = add_command(commands, "schema", "print the JSON Schema of a document, or check a document against it")
    schema.add_argument("document", choices=_DOCUMENTS, help="which document")
    schema.add_argument("--check", metavar="FILE", help="check this file instead of printing the schema")
    schema.set_defaults(run=_schema)


def _verify(arguments: argparse.Namespace) -> int:
    from msformat.verify import verify  # noqa: PLC0415

    with executor_of(arguments.dask) as executor:
        report = verify(arguments.path, deep=not arguments.shallow, executor=executor)
    if arguments.json:
        print_json(report.as_json())
        return report.exit_code
    numbers = ("entries", "tensors", "bytes checked", "problems")
    counts = [(unit.entries, unit.tensors, unit.checked, len(unit.problems)) for unit in report.units]
    rows = [(str(unit.key), *_verified_cells(row)) for unit, row in zip(report.units, counts, strict=True)]
    total = ("total", *_verified_cells([sum(column) for column in zip(*counts, strict=True)])) if counts else None
    print_table(("unit", *numbers), rows, right=numbers, total=total)
    tell_problems(report)
    return report.exit_code


def _verified_cells(counts: Sequence[int]) -> tuple[object, ...]:
    entries, tensors, checked, problems = counts
    return entries, tensors, bytes_text(checked), problems


def _recover(arguments: argparse.Namespace) -> int:
    from msformat.recover import recover  # noqa: PLC0415

    report = recover(arguments.path, orphans=arguments.orphans)
    if arguments.json:
        print_json(report.as_json())
        return report.exit_code
    rows = [(str(unit.key), unit.state, unit.entries, unit.tensors, unit.orphans) for unit in report.units]
    print_table(("unit", "state", "entries", "tensors", "orphans"), rows, right=("entries", "tensors", "orphans"))
    tell_problems(report)
    return report.exit_code


def _schema(arguments: argparse.Namespace) -> int:
    from msformat import jsontext, schema  # noqa: PLC0415

    if arguments.check is None:
        json.dump(schema.json_schema(arguments.document), sys.stdout, indent=2)
        print()
        return 0
    data = Path(arguments.check).read_bytes()
    try:
        schema.check_document(arguments.document, jsontext.parse_json(data, arguments.check), arguments.check)
    except MsformatError as error:
        problem(str(error))
        return 1
    print(f"{arguments.check}: follows the {arguments.document} schema")
    return 0
