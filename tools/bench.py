"""``make bench``: what msformat costs, as ratios to a peer or a plain tool measured in the same run.

Every line is the median of repeated pairs (ours, theirs, ours, theirs, …), so that a machine whose speed drifts does
not decide. The dump is a real one: a step of the GPT of tools/gpt.py as msprobe 8.1.0 writes it (tools/bench_dump.py).
``--write docs/benchmarks.md`` puts the tables into that document.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from msformat.cli.output import bytes_text
from msformat.cli.tables import print_table
from msformat.usage import disk_usage
from tools.bench_capture import bench_peer
from tools.bench_convert import bench_convert, bench_stages, bench_verify
from tools.bench_diff import bench_diff
from tools.bench_dump import make_dump
from tools.bench_lines import COLUMNS, Line, pairs
from tools.bench_many import bench_many
from tools.bench_open import bench_open
from tools.bench_read import bench_pt, bench_slices, bench_small, bench_units
from tools.report import machine, markdown_table, replace_tables

STAGES = ("where a conversion's time goes", "s alone", "rate")
PARTS = ("capture", "convert", "verify", "diff", "open", "read")


@dataclass(frozen=True)
class Size:
    """How much is measured."""

    layers: int  # of the GPT whose step is the dump
    repeats: int
    turns: int  # of a training under each tool
    steps: int
    entries: int
    many_entries: int
    ranks: int
    unit_steps: int
    large: int  # bytes of a tensor that is sliced
    small: int  # tensors


FULL = Size(4, 5, 3, 4, 100_000, 1_000_000, 1024, 4, 2 << 30, 20_000)
QUICK = Size(2, 1, 1, 2, 20_000, 50_000, 128, 2, 128 << 20, 4_000)
# To try the suite itself: its figures mean nothing.
TINY = Size(1, 1, 1, 1, 500, 1_000, 4, 2, 8 << 20, 200)


def bench_import(repeats: int) -> Line:
    """A fresh interpreter that imports us, against one that imports numpy; both less the bare interpreter."""
    bare, _ = pairs(lambda: python("pass"), lambda: None, repeats)
    ours, theirs = pairs(lambda: python("import msformat"), lambda: python("import numpy"), repeats)
    return Line("import msformat", ours - bare, theirs - bare, "import numpy", "< 2")


def python(code: str) -> None:
    """Run code in a fresh interpreter."""
    subprocess.run([sys.executable, "-c", code], check=True)


def measure(root: Path, size: Size, parts: list[str], peer: str) -> Iterator[tuple[str, list[Line]]]:
    """Sections of the table, each as soon as it is measured. ``root`` holds the dump."""
    repeats = size.repeats
    if "capture" in parts and Path(peer).exists():
        yield "Capture", bench_peer(peer, size.turns, size.steps)
    if "convert" in parts or "verify" in parts:
        yield "Convert", bench_convert(root, repeats)
    if "verify" in parts:
        yield "Verify", bench_verify(root, repeats)
    if "diff" in parts and Path(peer).exists():
        yield "Compare", bench_diff(root, size.layers, repeats, peer)
    if "open" in parts:
        opened = [bench_import(repeats), *bench_open(root, size.entries, repeats, Line, pairs)]
        yield "Open", opened + bench_units(root, size.many_entries, size.ranks, size.unit_steps, repeats)
    if "read" in parts:
        read = [*bench_pt(root, repeats), *bench_slices(root, size.large, repeats)]
        read += bench_small(root, size.small, repeats)
        yield "Read", read + bench_many(root, size.small, repeats)


def parse_arguments() -> argparse.Namespace:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    sizes = parser.add_mutually_exclusive_group()
    sizes.add_argument("--quick", dest="size", action="store_const", const=QUICK, help="under five minutes")
    sizes.add_argument("--tiny", dest="size", action="store_const", const=TINY, help="to try the suite itself")
    parser.add_argument("--only", nargs="*", choices=PARTS, default=list(PARTS), metavar="PART", help=", ".join(PARTS))
    parser.add_argument("--peer", default=".venv-peer/bin/python", help="Python with msprobe 8.1.0")
    parser.add_argument("--write", metavar="FILE", help="put the tables into this document")
    parser.add_argument("--json", metavar="FILE", help="also write the figures here")
    parser.set_defaults(size=FULL)
    return parser.parse_args()


def main() -> int:
    """Measure, print and write."""
    arguments = parse_arguments()
    size: Size = arguments.size
    if not shutil.which("zstd"):
        sys.exit("make bench compares with zstd, which is not installed")
    # Not resolved: a virtual environment's Python is a link whose own place counts.
    peer = os.path.abspath(arguments.peer)
    root = Path(tempfile.mkdtemp(prefix="msformat-bench-"))
    lines: list[Line] = []
    try:
        writer = make_dump(root / "dump", size.layers, peer)
        used = disk_usage(root / "dump")
        dump = f"dump: a step of mix/tensor by {writer}, {bytes_text(used.bytes)} in {used.files} files"
        about = f"{machine()}, numpy {np.__version__}; {dump}; medians of {size.repeats} pairs"
        print(f"{about}\n", flush=True)
        written = [f"{about}. Memory is that of a whole process, pages of files left out."]
        for title, found in measure(root, size, arguments.only, peer):
            lines += found
            show(written, title, COLUMNS, [line.row() for line in found])
        if "convert" in arguments.only:
            show(written, "Profile of converting", STAGES, bench_stages(root, max(1, size.repeats // 2)))
    finally:
        shutil.rmtree(root)
    missed = [line.what for line in lines if line.met is False]
    print(f"goals missed: {'; '.join(missed) or 'none'}")
    if arguments.json:
        Path(arguments.json).write_text(json.dumps([vars(line) for line in lines], indent=1))
    if arguments.write:
        replace_tables(Path(arguments.write), "\n\n".join(written))
    return 0


def show(written: list[str], title: str, columns: tuple[str, ...], rows: list[tuple[object, ...]]) -> None:
    """Print a table now, and keep it for the document."""
    print_table(columns, rows, title=title, right=columns[1:2])
    sys.stdout.flush()
    written.append(f"## {title}\n\n{markdown_table(columns, rows)}")


if __name__ == "__main__":
    sys.exit(main())
