"""``msformat verify``, ``recover`` and ``schema``."""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

from msformat.cli.output import print_json, print_table, problem
from msformat.errors import MsformatError

__all__ = ["add_commands"]

_DOCUMENTS = ("dump", "debug", "stack", "construct")


def add_commands(commands: Any) -> None:
    """Add ``verify``, ``recover`` and ``schema`` to the command line."""
    verify = commands.add_parser("verify", help="check digests, documents against tensors, missing and orphan files")
    verify.add_argument("path", metavar="PATH")
    verify.add_argument("--shallow", action="store_true", help="do not read the tensors' bytes")
    verify.add_argument("--json", action="store_true", help="print JSON")
    verify.set_defaults(run=_verify)
    recover = commands.add_parser("recover", help="finish dumps whose process died, as far as their journals tell")
    recover.add_argument("path", metavar="PATH")
    recover.add_argument("--orphans", action="store_true", help="also rebuild entries from tensors no document names")
    recover.add_argument("--json", action="store_true", help="print JSON")
    recover.set_defaults(run=_recover)
    schema = commands.add_parser("schema", help="print the JSON Schema of a document, or check a document against it")
    schema.add_argument("document", choices=_DOCUMENTS, help="which document")
    schema.add_argument("--check", metavar="FILE", help="check this file instead of printing the schema")
    schema.set_defaults(run=_schema)


def _verify(arguments: argparse.Namespace) -> int:
    from msformat.verify import verify  # noqa: PLC0415

    report = verify(arguments.path, deep=not arguments.shallow)
    if arguments.json:
        print_json(report.as_json())
        return report.exit_code
    rows = [(str(unit.key), unit.entries, unit.tensors, unit.checked, len(unit.problems)) for unit in report.units]
    numbers = ("entries", "tensors", "bytes checked", "problems")
    print_table(("unit", *numbers), rows, right=numbers)
    for unit in report.units:
        for text in unit.problems:
            problem(f"{unit.key}: {text}")
    for text in report.problems:
        problem(text)
    return report.exit_code


def _recover(arguments: argparse.Namespace) -> int:
    from msformat.recover import recover  # noqa: PLC0415

    report = recover(arguments.path, orphans=arguments.orphans)
    if arguments.json:
        print_json(report.as_json())
        return report.exit_code
    rows = [(str(unit.key), unit.state, unit.entries, unit.tensors, unit.orphans) for unit in report.units]
    print_table(("unit", "state", "entries", "tensors", "orphans"), rows, right=("entries", "tensors", "orphans"))
    for unit in report.units:
        for text in unit.problems:
            problem(f"{unit.key}: {text}")
    for text in report.problems:
        problem(text)
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
