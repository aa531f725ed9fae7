"""``msformat convert``: any store to any store."""

from __future__ import annotations

import argparse
import sys
import time
from typing import TYPE_CHECKING, Any

from msformat.cli.bars import BytesBar
from msformat.cli.inspect import PATH_HELP
from msformat.cli.output import bytes_text, executor_of, print_json, seconds_text, tell_problems
from msformat.cli.selectors import DASK_HELP, add_selectors
from msformat.cli.tables import print_table

if TYPE_CHECKING:
    from msformat.convert import ConvertReport

__all__ = ["add_commands"]

_EPILOG = """examples:
  msformat convert dump/ dump.h5                    one HDF5 file with every step and rank
  msformat convert dump/ stored/ --to zarr --jobs 4 a tree with a Zarr group a unit
  msformat convert dump.h5 back/ --to files         the canonical msprobe layout again, documents byte for byte
  msformat convert /nfs/dump s3://bucket/dump --to zarr --dask tcp://head:8786
                                                    units on the workers of a cluster, into an object store
  msformat convert dump/ small/ --steps 0 --ranks 0-3 --filter 'Module.layers.3.*' --to files --tensors npy
"""


def add_commands(commands: Any) -> None:
    """Add ``convert`` to the command line."""
    parser = commands.add_parser(
        "convert",
        help="turn a dump into another store, or back",
        description="Turn a dump into another store, or back.",
        epilog=_EPILOG,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("src", metavar="SRC", help=PATH_HELP)
    parser.add_argument(
        "dst", metavar="DST", help="a directory, or a name ending in .h5 or .zarr for a single file; or a URL"
    )
    parser.add_argument("--to", choices=("files", "hdf5", "zarr"), help="store of the result (default: by DST)")
    parser.add_argument("--tensors", choices=("npy", "pt"), help="tensor files of canonical layouts (default: as SRC)")
    parser.add_argument("--dialect", choices=("1.2", "8.1", "26"), help="write names as that msprobe version does")
    parser.add_argument("--strict-json", action="store_true", help="spell NaN and infinities as strings in documents")
    add_selectors(parser, filters=True)
    parser.add_argument(
        "--compression",
        default="auto",
        metavar="CODEC",
        help="auto, none, gzip, zstd, lz4, blosc; also gzip:9, blosc-zstd:5+bitshuffle",
    )
    parser.add_argument("--no-links", action="store_true", help="store equal tensors in full each time")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="units converted at the same time (default 1)")
    parser.add_argument("--dask", metavar="ADDRESS", help=f"{DASK_HELP}, instead of --jobs")
    parser.add_argument("--verify", action=argparse.BooleanOptionalAction, default=True, help="read back and compare")
    parser.add_argument(
        "--resume", action="store_true", help="go on with an unfinished convert; Ctrl-C keeps whole units"
    )
    parser.add_argument("--overwrite", action="store_true", help="replace units of a dump that stands at DST")
    parser.add_argument("--dry-run", action="store_true", help="say what would be done")
    parser.add_argument("--quiet", action="store_true", help="no progress bar")
    parser.add_argument("--json", action="store_true", help="print the report as JSON")
    parser.set_defaults(run=_run)


def _run(arguments: argparse.Namespace) -> int:
    from msformat.convert import ConvertOptions, convert  # noqa: PLC0415

    options = ConvertOptions(
        to=arguments.to,
        tensors=arguments.tensors,
        dialect=arguments.dialect,
        strict_json=arguments.strict_json,
        steps=arguments.steps,
        ranks=arguments.ranks,
        filter=tuple(arguments.filter or ()),
        layout=arguments.layout,
        compression=arguments.compression,
        links=not arguments.no_links,
        jobs=arguments.jobs,
        verify=arguments.verify,
        resume=arguments.resume,
        overwrite=arguments.overwrite,
        dry_run=arguments.dry_run,
    )
    show_bar = not (arguments.quiet or arguments.json) and sys.stderr.isatty()
    began = time.monotonic()
    with executor_of(arguments.dask) as executor, BytesBar(enabled=show_bar) as progress:
        shown = progress if show_bar else None
        report = convert(arguments.src, arguments.dst, options, progress=shown, executor=executor)
    if arguments.json:
        print_json(report.as_json())
    else:
        _print_report(report, time.monotonic() - began, dry_run=arguments.dry_run)
    return report.exit_code


def _print_report(report: ConvertReport, seconds: float, *, dry_run: bool) -> None:
    rows = [_row(unit) for unit in report.units]
    print_table(
        ("unit", "entries", "tensors", "bytes in", "bytes out", "ratio", "files in", "files out", "time", "verified"),
        rows,
        title="would convert" if dry_run else "",
        right=("entries", "tensors", "bytes in", "bytes out", "ratio", "files in", "files out", "time"),
        total=_total(report, seconds),
    )
    tell_problems(report)


def _row(unit: Any) -> tuple[object, ...]:
    verified = {True: "yes", False: "NO", None: "not asked"}[unit.verified]
    if unit.skipped:
        verified = "there already"
    elif unit.failed:
        verified = "FAILED"
    return (
        str(unit.key),
        unit.entries,
        unit.tensors,
        bytes_text(unit.bytes_in),
        bytes_text(unit.bytes_out),
        _ratio(unit.bytes_in, unit.bytes_out),
        unit.files_in,
        unit.files_out,
        seconds_text(unit.seconds),
        verified,
    )


def _total(report: ConvertReport, seconds: float) -> tuple[object, ...]:
    """All units together; the time is that of the clock, which several jobs share."""
    names = ("entries", "tensors", "bytes_in", "bytes_out", "files_in", "files_out")
    entries, tensors, bytes_in, bytes_out, files_in, files_out = (
        sum(getattr(unit, name) for unit in report.units) for name in names
    )
    ratio = _ratio(bytes_in, bytes_out)
    sizes = bytes_text(bytes_in), bytes_text(bytes_out)
    return ("total", entries, tensors, *sizes, ratio, files_in, files_out, seconds_text(seconds), "")


def _ratio(bytes_in: int, bytes_out: int) -> str:
    return f"{bytes_in / bytes_out:.2f}" if bytes_out else ""
