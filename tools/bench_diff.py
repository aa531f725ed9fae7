"""Lines of ``make bench`` for comparing two dumps, against ``msprobe compare`` of the same two."""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from tools.bench_dump import make_dump
from tools.bench_lines import Line, pairs, peak_memory

__all__ = ["bench_diff"]

# Relative noise on the weights of the second dump: every tensor is compared, none has equal bits.
NUDGE = 1e-4
READ = """
import glob, json, sys, pandas
table = pandas.read_excel(glob.glob(sys.argv[1] + "/compare_result_*.xlsx")[0])
print(json.dumps(table.astype(object).where(table.notna(), None).to_dict("records")))
"""


def bench_diff(root: Path, layers: int, repeats: int, peer: str) -> list[Line]:
    """``root / "dump"`` against the same step with other weights: as a table, and as a workbook like msprobe's."""
    make_dump(root / "nudged", layers, peer, NUDGE)
    out, mine = root / "compared", root / "mine.xlsx"
    theirs = _compare(root, out, peer)
    lines = []
    for what, options in (("diff", []), ("diff to .xlsx", ["-o", str(mine)])):
        ours = [sys.executable, "-m", "msformat", "diff", str(root / "nudged"), str(root / "dump"), *options]
        medians = pairs(lambda ours=ours: _run(ours, 1), lambda: _run(theirs, 0), repeats, before=lambda: _clean(out))
        peaks = peak_memory(["sh", "-c", f"{_joined(ours)} > /dev/null; true"]), peak_memory(theirs)
        note = "goal of memory: a fifth" if not options else _agreement(root, out, peer)
        lines.append(Line(what, *medians, "msprobe compare", "<= 0.2", note, "s", peaks=peaks))
    shutil.rmtree(root / "nudged")
    return lines


def _compare(root: Path, out: Path, peer: str) -> list[str]:
    """The command that compares both dumps by msprobe."""
    units = {name: root / dump / "step0" / "rank" for name, dump in (("npu", "nudged"), ("bench", "dump"))}
    config = root / "compare.json"
    paths = {f"{name}_path": str(unit / "dump.json") for name, unit in units.items()}
    paths["stack_path"] = str(units["npu"] / "stack.json")
    config.write_text(json.dumps({**paths, "is_print_compare_log": False}))
    command = [Path(peer).with_name("msprobe"), "-f", "pytorch", "compare", "-i", config, "-o", out, "-s"]
    return list(map(str, command))


def _run(command: list[str], code: int) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != code:
        sys.exit(f"{_joined(command)}: exit code {done.returncode}\n{done.stderr[-2000:]}")


def _clean(out: Path) -> None:
    shutil.rmtree(out, ignore_errors=True)


def _joined(command: list[str]) -> str:
    return " ".join(command)


def _agreement(root: Path, out: Path, peer: str) -> str:
    """How many tensors have the verdict that msprobe gives them."""
    from msformat.compare.rows import rows_of
    from msformat.compare.run import diff

    done = subprocess.run([peer, "-c", READ, str(out)], capture_output=True, text=True, check=True)
    theirs: dict[str, Any] = {row["NPU Name"]: row["Accuracy Reached or Not"] for row in json.loads(done.stdout)}
    mine = {row["NPU Name"]: row["Accuracy Reached or Not"] for row in rows_of(diff(root / "nudged", root / "dump"))}
    judged = [name for name, verdict in theirs.items() if verdict in ("Yes", "No") and name in mine]
    equal = sum(mine[name] == theirs[name] for name in judged)
    return f"same verdict on {equal:,} of {len(judged):,} tensors"
