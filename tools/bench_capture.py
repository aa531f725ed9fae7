"""``make bench``, capture: what recording adds to a training step, as ratios to msprobe 8.1.0 and 26.2.0.

Every figure comes from a process of its own (tools/capture_worker.py); all tools take their turn before any has its
second one, so that a machine whose speed drifts does not decide. The model is the GPT of tools/gpt.py.
"""

from __future__ import annotations

import argparse
import json
import os
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path
from typing import Any

from msformat.cli.output import bytes_text
from msformat.cli.tables import print_table
from msformat.usage import disk_usage
from tools.bench_lines import Line

TOOLS = Path(__file__).parent
LEVELS = ("mix", "L1", "L0")
MODES = ("statistics", "md5", "tensor")
STORES = ("files", "hdf5", "zarr")
# What is recorded: by 26.2.0 as it comes, or everything that 8.1.0 records.
DEFAULT, EVERYTHING = "FOCUS", "ALL"
_MAIN = (("statistics", ""), ("tensor", "files"), ("tensor", "hdf5"), ("tensor", "zarr"))
OURS, PEER, PEER26 = "capture", "8.1.0", "26.2.0"


@dataclass(frozen=True)
class Setup:
    """One cell to measure."""

    tool: str
    level: str
    mode: str
    coverage: str = EVERYTHING
    store: str = ""

    def config(self, dump_path: Path) -> dict[str, object]:
        """Its config.json."""
        task = "tensor" if self.mode == "tensor" else "statistics"
        section = {"scope": [], "list": [], "data_mode": ["all"]}
        section |= {"summary_mode": "md5" if self.mode == "md5" else "statistics"}
        config: dict[str, object] = {"task": task, "dump_path": str(dump_path), "rank": [], "step": []}
        config |= {"level": self.level, "async_dump": False, task: section}
        if self.tool == PEER26 or (self.tool == OURS and self.coverage != EVERYTHING):
            config["risk_level"] = self.coverage
        if self.store not in {"", "files"}:
            config["storage"] = {"format": self.store}
        return config


@dataclass
class Found:
    """What the runs of one setup gave: seconds a step, and bytes."""

    waits: list[float] = field(default_factory=list)
    drains: list[float] = field(default_factory=list)
    cpus: list[float] = field(default_factory=list)
    bytes: int = 0
    files: int = 0
    peak: int = 0

    @property
    def wait(self) -> float:
        """Median time of a step as the training loop sees it."""
        return statistics.median(self.waits)

    @property
    def total(self) -> float:
        """The same with what is written after the last step, shared among the steps."""
        return self.wait + statistics.median(self.drains)


def setups(levels: tuple[str, ...]) -> list[Setup]:
    """Everything to measure, each once."""
    found = [Setup("none", "", "")]
    for level in levels:
        for mode in MODES:
            found.append(Setup(PEER, level, mode))
            for coverage in (EVERYTHING, DEFAULT):
                found.append(Setup(PEER26, level, mode, coverage))
                stores = STORES if mode == "tensor" else ("",)
                found += [Setup(OURS, level, mode, coverage, store) for store in stores]
    return found


def run(setup: Setup, pythons: dict[str, str], steps: int, found: Found) -> None:
    """Train once in the environment of the tool and add what it took."""
    root = Path(tempfile.mkdtemp(prefix="capture-bench-"))
    try:
        config = root / "config.json"
        config.write_text(json.dumps(setup.config(root / "dump"), indent=1))
        result = worker(setup.tool, pythons, config, steps)
        found.waits += result["steps"]
        found.drains.append(result["drain"] / steps)
        found.cpus.append(result["cpu"])
        found.peak = max(found.peak, result["peak"])
        if (root / "dump").exists():
            os.sync()  # a file system counts blocks when it has written them
            used = disk_usage(root / "dump")
            # The dump also holds the step that warmed up.
            found.bytes, found.files = used.bytes // (steps + 1), used.files // (steps + 1)
    finally:
        shutil.rmtree(root)
        os.sync()


def worker(tool: str, pythons: dict[str, str], config: Path, steps: int) -> dict[str, Any]:
    """What the worker of a tool printed."""
    name = {PEER: "msprobe", PEER26: "msprobe"}.get(tool, tool)
    command = [pythons.get(tool, sys.executable), str(TOOLS / "capture_worker.py"), name, str(config), str(steps)]
    environment = {**os.environ, "OMP_NUM_THREADS": "2", "MKL_NUM_THREADS": "2"}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment, cwd=config.parent)
    if done.returncode:
        sys.exit(f"{' '.join(command)}\n{done.stdout[-2000:]}{done.stderr[-4000:]}")
    result: dict[str, Any] = json.loads(done.stdout.strip().splitlines()[-1])
    return result


def goal(setup: Setup, peer: str) -> float | None:
    """The ratio that issue 3 asks for; tensor: of the time the training loop waits."""
    if setup.level != "mix":
        return None
    goals = {PEER: {"statistics": 0.06, "md5": 0.06, "tensor": 0.15}}
    goals[PEER26] = {"statistics": 0.35, "md5": 0.15, "tensor": 0.25}
    return goals[peer][setup.mode]


def bytes_goal(setup: Setup, peer: str) -> float | None:
    """The same for bytes on disk."""
    if setup.level != "mix" or setup.mode != "tensor":
        return None
    return 0.28 if peer == PEER else 0.35


def ratio(ours: float, theirs: float, wanted: float | None) -> str:
    """A ratio, beside its goal where there is one."""
    text = f"{ours / theirs:.3f}" if theirs > 0 else "-"
    return text if wanted is None else f"{text} (<= {wanted})"


def comparison(peer: Setup, ours: Setup, found: dict[Setup, Found]) -> tuple[object, ...]:
    """A row: seconds a step added by both, as the loop waits and in all, and bytes."""
    bare = found[Setup("none", "", "")].wait
    theirs, mine = found[peer], found[ours]
    wanted = goal(ours, peer.tool)
    waits = ratio(mine.wait - bare, theirs.wait - bare, wanted)
    totals = ratio(mine.total - bare, theirs.total - bare, None if ours.mode == "tensor" else wanted)
    sizes = ratio(mine.bytes, theirs.bytes, bytes_goal(ours, peer.tool))
    label = f"{ours.level} {ours.mode} {ours.store}".strip()
    seconds = (f"{theirs.wait - bare:.3f}", f"{mine.wait - bare:.3f}", waits)
    return (label, *seconds, f"{theirs.total - bare:.3f}", f"{mine.total - bare:.3f}", totals, sizes)


def print_comparison(peer: str, coverage: str, found: dict[Setup, Found], title: str) -> None:
    """Us against one peer."""
    rows = [
        comparison(Setup(peer, each.level, each.mode, coverage), each, found)
        for each in found
        if each.tool == OURS and each.coverage == coverage
    ]
    columns = ("", "loop waits +s", "ours +s", "ratio", "in all +s", "ours in all +s", "ratio in all", "bytes")
    print_table(columns, rows, title=title, right=columns[1:])


def print_sizes(found: dict[Setup, Found]) -> None:
    """Bytes, files and memory of every setup."""
    rows = [
        (
            " ".join(filter(None, (each.tool, each.level, each.mode, each.store, each.coverage))),
            f"{one.wait:.3f}",
            f"{one.total - one.wait:.3f}",
            f"{statistics.median(one.cpus):.2f}",
            bytes_text(one.bytes),
            one.files,
            bytes_text(one.peak),
        )
        for each, one in found.items()
    ]
    columns = ("", "step s", "written after s", "CPU s a step", "bytes a step", "files a step", "peak memory")
    print_table(columns, rows, title="Every setup", right=columns[1:])


def print_idle(pythons: dict[str, str], steps: int) -> None:
    """A debugger that records none of the steps, against none, step by step in one process."""
    with tempfile.TemporaryDirectory() as root:
        config = Path(root) / "config.json"
        wanted = Setup(OURS, "mix", "statistics").config(Path(root) / "dump")
        config.write_text(json.dumps({**wanted, "step": [1_000_000]}))
        result = worker("pairs", pythons, config, steps)
    low, middle, high = (f"{each * 1e3:+.2f}" for each in result["quarters"])
    print(f"Outside of the wanted steps, start and stop called: {result['none'] * 1e3:.1f} ms a step without a tool,")
    print(f"{result['idle'] * 1e3:.1f} ms with us; difference of {steps} pairs, quartiles {low}, {middle}, {high} ms\n")


def bench_peer(python: str, turns: int, steps: int) -> list[Line]:
    """Lines of ``make bench``: what a step of level mix takes longer with us and with msprobe 8.1.0, in turn."""
    ours = [Setup(OURS, "mix", mode, EVERYTHING, store) for mode, store in _MAIN]
    peers = [Setup(PEER, "mix", mode, EVERYTHING) for mode in dict(_MAIN)]
    found = {each: Found() for each in (Setup("none", "", ""), *ours, *peers)}
    for _ in range(turns):
        for each, one in found.items():
            run(each, {PEER: python}, steps, one)
    bare, lines = found[Setup("none", "", "")], []
    for each in ours:
        mine, theirs = found[each], found[Setup(PEER, "mix", each.mode, EVERYTHING)]
        label = f"capture a step, mix {each.mode} {each.store}".rstrip()
        wanted = f"<= {goal(each, PEER)}"
        waits = mine.wait - bare.wait, theirs.wait - bare.wait
        later = f"the rest is written {mine.total - mine.wait:.2f} s later"
        note = f"bare step: {bare.wait * 1e3:.0f} ms, {bytes_text(bare.peak)}; {later}"
        peaks = (mine.peak, theirs.peak)
        lines.append(Line(f"{label}: the loop waits", *waits, f"msprobe {PEER}", wanted, note, peaks=peaks))
        if each.mode == "tensor":
            size = f"<= {bytes_goal(each, PEER)}"
            lines.append(Line(f"{label}: bytes", mine.bytes, theirs.bytes, f"msprobe {PEER}", size, "", "MiB"))
    return lines


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="level mix only, one turn, fewer steps")
    parser.add_argument("--peer", default=".venv-peer/bin/python", help="Python with msprobe 8.1.0")
    parser.add_argument("--peer26", default=".venv-peer26/bin/python", help="Python with msprobe 26.2.0")
    parser.add_argument("--only", default="", help="only setups whose text holds this (no comparison then)")
    parser.add_argument("--json", metavar="FILE", help="also write the figures here")
    arguments = parser.parse_args()
    turns, steps, levels = (1, 3, LEVELS[:1]) if arguments.quick else (3, 4, LEVELS)
    pythons = {PEER: os.path.abspath(arguments.peer), PEER26: os.path.abspath(arguments.peer26)}
    wanted = [each for each in setups(levels) if arguments.only in str(each)]
    found = {each: Found() for each in wanted}
    for _ in range(turns):
        for each, one in found.items():
            print(f"\r{each}"[:100].ljust(100), end="", file=sys.stderr, flush=True)
            run(each, pythons, steps, one)
    print("\r".ljust(101), end="\r", file=sys.stderr)
    date = f"{datetime.now(tz=timezone.utc):%Y-%m-%d}"
    print(f"{date}, {platform.machine()}, {os.cpu_count()} CPUs, 2 threads; GPT of 4 layers,")
    print(f"width 256, batch 4 x 128, AdamW; {turns} turns of {steps} steps, medians\n")
    if not arguments.only:
        print_comparison(PEER, EVERYTHING, found, "Against msprobe 8.1.0")
        print_comparison(PEER26, EVERYTHING, found, "Against msprobe 26.2.0, risk_level ALL: what 8.1.0 records")
        print_comparison(PEER26, DEFAULT, found, "Against msprobe 26.2.0 as it comes, risk_level FOCUS")
        print_idle(pythons, 20 if arguments.quick else 100)
    print_sizes(found)
    if arguments.json:
        figures = [{**vars(each), **vars(one), "total": one.total} for each, one in found.items()]
        Path(arguments.json).write_text(json.dumps(figures, indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
