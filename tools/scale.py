"""What a step of a large model costs in each store: predicted from a small run, without the large model.

``python -m tools.scale --write docs/scale.md``. Three things are put together:

1. *The skeleton*: a model with the large one's layers and sizes that are all different numbers (width 42, 11 tokens, …)
   is captured for real. It has the large run's entries, names and equal contents; each axis of each tensor is known by
   its number and gets the large run's length instead.
2. *Costs*: two small models are captured into each store, one with many small tensors, one with larger ones. Bytes a
   name, bytes a byte (the codec's ratio) and CPU seconds of both kinds follow from them.
3. *Rules* of the stores that need no measuring: how many files, rows and packs a tensor makes.

``--check`` predicts a model of other sizes, captures it, and compares (so does tests/capture/pytorch/test_scale.py).
"""

from __future__ import annotations

import argparse
import json
import math
import shutil
import sys
import tempfile
import time
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import xxhash

import msformat
from msformat.cli.output import bytes_text
from msformat.cli.tables import print_table
from msformat.stores.zarr import PACK_BELOW, PACK_BYTES
from msformat.stores.zarr_stacks import Cut
from msformat.usage import disk_usage
from tools.llama import LlamaConfig, make_step, train_step
from tools.report import machine, markdown_table, replace_tables

STORES = ("files", "hdf5", "zarr")
TASKS = ("statistics", "tensor")
LEVELS = ("L0", "mix")
DOCUMENTS = ("dump.json", "stack.json", "construct.json")
# Sizes that differ from each other and from all that a tensor's axis can be otherwise.
SKELETON = LlamaConfig(width=42, heads=3, hidden=26, vocabulary=17, tokens=11)
# Many small tensors; larger ones; and others to try the prediction on.
SMALL = LlamaConfig(layers=6, width=48, heads=3, hidden=64, vocabulary=96, tokens=16)
LARGE = LlamaConfig(layers=2, width=320, heads=5, hidden=864, vocabulary=512, tokens=160)
TRIAL = LlamaConfig(layers=3, width=256, heads=4, hidden=688, vocabulary=384, tokens=144)
# A machine of eight ranks writes so many bytes a second to its own disks; a file system all machines share, in all.
NODE_DISK, SHARED_DISK, NODE_RANKS = 2e9, 50e9, 8


@dataclass(frozen=True)
class Tensor:
    """One tensor of a dump: its bytes, and which earlier contents it repeats (numbers of the content)."""

    shape: tuple[int, ...]
    dtype: str
    itemsize: int
    content: int  # same type, shape and bits
    raw: int  # same bits

    @property
    def nbytes(self) -> int:
        """Bytes of the values."""
        return math.prod(self.shape) * self.itemsize


@dataclass(frozen=True)
class Plan:
    """What a unit holds, whatever the store."""

    entries: int
    tensors: tuple[Tensor, ...]
    documents: int  # bytes of all documents

    @property
    def nbytes(self) -> int:
        """Bytes under all names."""
        return sum(each.nbytes for each in self.tensors)

    @property
    def distinct(self) -> list[Tensor]:
        """One tensor of each content."""
        return list({each.content: each for each in self.tensors if each.content >= 0}.values())

    @property
    def distinct_bytes(self) -> int:
        """Bytes to be stored."""
        return sum(each.nbytes for each in self.distinct)


@dataclass(frozen=True)
class Cost:
    """A unit in a store."""

    bytes: float
    files: int
    inodes: int
    seconds: float


# --- a run ------------------------------------------------------------------------------------------------------------


def capture(config: LlamaConfig, root: Path, level: str, task: str, store: str = "files", repeats: int = 3) -> float:
    """Record steps on this machine's CPUs, keep one; the CPU seconds that recording and writing add to a step.

    Of all threads, and the least of the repeats: what else the machine does meanwhile, and its disk, do not count.
    """
    import torch

    from capture.pytorch import PrecisionDebugger

    torch.set_num_threads(1)  # more of them wait for each other busily, which would count
    model, inputs = make_step(config, "cpu")
    train_step(model, inputs)
    bare = min(_seconds(lambda: train_step(model, inputs)) for _ in range(repeats))
    settings = {"level": level, "task": task, "dump_path": str(root), "storage": {"format": store}}
    file = root.with_name(f"{root.name}.json")
    file.write_text(json.dumps(settings))
    debugger = PrecisionDebugger(str(file))

    def step() -> None:
        debugger.start(model=model)
        train_step(model, inputs)
        debugger.stop()
        debugger.step()
        debugger.wait()

    step()  # the first one warms up
    seconds = min(_seconds(step) for _ in range(repeats))
    debugger.close()
    for number in (0, *range(2, repeats + 1)):
        shutil.rmtree(root / f"step{number}")
    return max(0.0, seconds - bare)


def _seconds(action: Any) -> float:
    began = time.process_time()
    action()
    return time.process_time() - began


def read_plan(root: Path) -> Plan:
    """The plan of what was captured into files: contents told apart by inode, bits by their hash."""
    unit = msformat.open(root)[1, None]
    folder = Path(unit.location.directory) / "dump_tensor_data"
    contents: dict[int, int] = {}
    bits: dict[bytes, int] = {}
    found = []
    for tensor in unit.tensors():
        dtype = msformat.parse_dtype(tensor.meta.dtype)
        kind = tensor.meta.shape, dtype.name, dtype.itemsize
        if not tensor.has_data:
            found.append(Tensor(*kind, -1, -1))
            continue
        inode = (folder / str(tensor.data_name)).stat().st_ino
        raw = xxhash.xxh3_128_digest(np.ascontiguousarray(tensor.stored.numpy()).tobytes())
        content = contents.setdefault(inode, len(contents))
        found.append(Tensor(*kind, content, bits.setdefault(raw, len(bits))))
    documents = sum((folder.parent / name).stat().st_size for name in DOCUMENTS)
    return Plan(len(unit), tuple(found), documents)


def resize(plan: Plan, old: LlamaConfig, new: LlamaConfig) -> Plan:
    """The plan of the same model with other sizes; its axes are found by their lengths.

    Raises
    ------
    ValueError
        An axis has a length that no size explains.
    """
    lengths = {1: 1, **dict(zip(_axes(old), _axes(new), strict=True))}
    grown, tensors = 0, []
    for each in plan.tensors:
        if unknown := set(each.shape) - set(lengths):
            raise ValueError(f"no size of {old} explains an axis of {unknown}")
        shape = tuple(lengths[length] for length in each.shape)
        grown += len(json.dumps(shape)) - len(json.dumps(each.shape))
        tensors.append(replace(each, shape=shape))
    return Plan(plan.entries, tuple(tensors), plan.documents + grown)


def _axes(config: LlamaConfig) -> tuple[int, ...]:
    head = config.width // config.heads
    return (config.tokens, config.width, config.heads, head, head // 2, config.hidden, config.vocabulary)


def skeleton(config: LlamaConfig, root: Path, level: str, task: str) -> Plan:
    """The plan of a model that is too large to run: of one that is not, resized."""
    small = replace(SKELETON, layers=config.layers)
    capture(small, root, level, task, repeats=1)
    return resize(read_plan(root), small, config)


# --- the rules of the stores ------------------------------------------------------------------------------------------


def count_files(plan: Plan, store: str) -> tuple[int, int]:
    """Files and inodes of the tensors of a unit: documents and the unit's directory come on top."""
    stored = [each for each in plan.tensors if each.content >= 0]
    if store == "hdf5" or not stored:
        return 0, 0
    if store == "files":
        return len(stored), len(plan.distinct) + 1
    files = inodes = packed = 0
    seen: set[object] = set()
    kinds = set()
    for each in plan.distinct:
        if each.nbytes <= PACK_BELOW:
            packed += 0 if each.raw in seen else each.nbytes
            seen.add(each.raw)
            continue
        kinds.add((each.shape, each.dtype))
        cut = Cut.of(each.shape, each.itemsize)
        own = math.prod(math.ceil(a / b) for a, b in zip(each.shape, cut.files, strict=True))
        shared = cut.layout is not None and (each.raw, cut.layout) in seen
        seen.add((each.raw, cut.layout))
        files += own
        inodes += 0 if shared else own
    packs = math.ceil(packed / PACK_BYTES)
    # An array of rows is a directory and its metadata; a pack has a chunk as well.
    return files + len(kinds) + 2 * packs, inodes + 2 * len(kinds) + 3 * packs


# --- costs ------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Costs:
    """What was measured of a store and task: of a unit's cost, what each name and each byte take."""

    unit_bytes: float  # of a unit whose documents are empty
    documents: float  # bytes stored for a byte of documents
    name_bytes: float
    byte_bytes: float
    name_seconds: float
    byte_seconds: float
    files: int
    inodes: int

    def of(self, plan: Plan, store: str, task: str) -> Cost:
        """Predict."""
        files, inodes = count_files(plan, store) if task == "tensor" else (0, 0)
        names, stored = len(plan.tensors), plan.distinct_bytes if task == "tensor" else 0
        size = self.unit_bytes + self.documents * plan.documents + self.name_bytes * names + self.byte_bytes * stored
        seconds = self.name_seconds * names + self.byte_seconds * plan.distinct_bytes
        return Cost(size, files + self.files, inodes + self.inodes, seconds)


def measure(root: Path, level: str, store: str, plans: dict[tuple[str, str], Plan], repeats: int) -> dict[str, Costs]:
    """The costs of a store for each task, from the two models; ``plans`` are theirs by size and task."""
    found, base, documents = {}, 0.0, 1.0
    for task in TASKS:
        used, seconds = {}, {}
        for size, config in (("small", SMALL), ("large", LARGE)):
            place = root / f"{store}-{task}-{size}"
            seconds[size] = capture(config, place, level, task, store, repeats)
            used[size] = disk_usage(place / "step1" / "rank")
            shutil.rmtree(place)
        small, large = (plans[size, task] for size in ("small", "large"))
        if task == "statistics":
            base, documents = _line((small.documents, used["small"].bytes), (large.documents, used["large"].bytes))
            names = bytes_ = 0.0
        else:
            rest = [used[size].bytes - base - documents * plans[size, task].documents for size in ("small", "large")]
            names, bytes_ = _solve(small, large, *rest)
        times = _solve(small, large, seconds["small"], seconds["large"])
        files, inodes = count_files(small, store) if task == "tensor" else (0, 0)
        fixed = used["small"].files - files, used["small"].inodes - inodes
        found[task] = Costs(base, documents, names, bytes_, *times, *fixed)
    return found


def _line(one: tuple[int, int], two: tuple[int, int]) -> tuple[float, float]:
    """Where a line through two points begins, and how it rises."""
    slope = (two[1] - one[1]) / (two[0] - one[0])
    return one[1] - slope * one[0], slope


def _solve(small: Plan, large: Plan, first: float, second: float) -> tuple[float, float]:
    """``names x + bytes y`` is the one for the small plan and the other for the large; neither is below 0."""
    matrix = [[len(plan.tensors), plan.distinct_bytes] for plan in (small, large)]
    x, y = np.linalg.solve(np.array(matrix, float), np.array([first, second]))
    if x < 0:
        return 0.0, second / large.distinct_bytes
    return (float(x), float(y)) if y >= 0 else (first / len(small.tensors), 0.0)


def small_plans(root: Path, level: str) -> dict[tuple[str, str], Plan]:
    """Plans of the two models that are measured. Statistics are of the same tensors, which they do not name."""
    plans = {}
    for size, config in (("small", SMALL), ("large", LARGE)):
        for task in TASKS:
            place = root / f"plan-{size}-{task}"
            capture(config, place, level, task, repeats=1)
            plans[size, task] = read_plan(place)
            shutil.rmtree(place)
        plans[size, "statistics"] = replace(plans[size, "tensor"], documents=plans[size, "statistics"].documents)
    return plans


def predict(config: LlamaConfig, root: Path, level: str, repeats: int = 3) -> dict[Any, Any]:
    """Costs of a unit by (store, task), and under a task alone its plan."""
    measured = small_plans(root, level)
    plans: dict[Any, Any] = {task: skeleton(config, root / f"skeleton-{task}", level, task) for task in TASKS}
    plans["statistics"] = replace(plans["tensor"], documents=plans["statistics"].documents)
    found: dict[Any, Any] = dict(plans)
    for store in STORES:
        for task, costs in measure(root, level, store, measured, repeats).items():
            found[store, task] = costs.of(plans[task], store, task)
    return found


# --- the tool ---------------------------------------------------------------------------------------------------------


def check(root: Path, level: str, repeats: int = 3) -> list[tuple[object, ...]]:
    """Predicted and really written, for a model of other sizes."""
    found, rows = predict(TRIAL, root, level, repeats), []
    for store in STORES:
        for task in TASKS:
            place = root / f"trial-{store}-{task}"
            seconds = capture(TRIAL, place, level, task, store, repeats)
            used, wanted = disk_usage(place / "step1" / "rank"), found[store, task]
            shutil.rmtree(place)
            off = f"{100 * (wanted.bytes / used.bytes - 1):+.1f} %"
            sizes = (bytes_text(round(wanted.bytes)), bytes_text(used.bytes), off)
            counts = (wanted.files, used.files, wanted.inodes, used.inodes)
            rows.append((level, task, store, *sizes, *counts, f"{wanted.seconds:.2f}", f"{seconds:.2f}"))
    return rows


CHECK_COLUMNS = (
    "level", "task", "store", "bytes predicted", "written", "off", "files predicted", "written", "inodes predicted",
    "written", "CPU s predicted", "taken",
)  # fmt: skip


def forecast(found: dict[Any, Any], level: str, ranks: int) -> list[tuple[object, ...]]:
    """Rows for a step of so many ranks."""
    rows = []
    for task in TASKS:
        for store in STORES:
            cost = found[store, task]
            size = cost.bytes * ranks
            nodes = math.ceil(ranks / NODE_RANKS)
            counts = f"{cost.files * ranks:,}", f"{cost.inodes * ranks:,}"
            times = f"{cost.seconds:.1f}", f"{size / nodes / NODE_DISK:.2f}", f"{size / SHARED_DISK:.2f}"
            rows.append((level, task, store, bytes_text(round(cost.bytes)), bytes_text(round(size)), *counts, *times))
    return rows


FORECAST_COLUMNS = (
    "level", "task", "store", "bytes a rank", "bytes of a step", "files", "inodes", "CPU s a rank",
    "s, disk of a machine", "s, shared disk",
)  # fmt: skip


def tables(
    config: LlamaConfig, root: Path, levels: list[str], ranks: list[int]
) -> list[tuple[str, tuple[str, ...], list[Any]]]:
    """Everything that docs/scale.md shows."""
    found = {}
    for level in levels:
        (root / level).mkdir()
        found[level] = predict(config, root / level, level)
    facts = []
    for level, each in found.items():
        plan = each["tensor"]
        sizes = bytes_text(plan.nbytes), bytes_text(plan.distinct_bytes)
        facts.append((level, plan.entries, len(plan.tensors), len(plan.distinct), *sizes))
    shown: list[Any] = [("A unit", ("level", "entries", "tensors", "distinct", "bytes", "distinct bytes"), facts)]
    for number in ranks:
        rows = [row for level in levels for row in forecast(found[level], level, number)]
        shown.append((f"A step of {number:,} ranks", FORECAST_COLUMNS, rows))
    return shown


def main() -> int:
    """Predict, or check the predictions."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--check", action="store_true", help="compare with what is really written, of a small model")
    parser.add_argument("--write", metavar="FILE", help="put the tables into this document")
    parser.add_argument("--layers", type=int, default=32, help="of the large model (32: Llama-2-7B)")
    parser.add_argument("--levels", nargs="*", choices=LEVELS, default=LEVELS)
    parser.add_argument("--ranks", type=int, nargs="*", default=[8, 1024])
    arguments = parser.parse_args()
    root = Path(tempfile.mkdtemp(prefix="scale-"))
    try:
        shown: list[Any] = []
        if not arguments.check or arguments.write:
            shown = tables(LlamaConfig(layers=arguments.layers), root, arguments.levels, arguments.ranks)
        if arguments.check or arguments.write:
            rows = []
            for level in arguments.levels:
                (root / f"check-{level}").mkdir()
                rows += check(root / f"check-{level}", level)
            shown.append(("Predicted and written: a small model", CHECK_COLUMNS, rows))
    finally:
        shutil.rmtree(root)
    for title, columns, rows in shown:
        print_table(columns, rows, title=title, right=columns[3:])
    if arguments.write:
        text = "\n\n".join(f"## {title}\n\n{markdown_table(columns, rows)}" for title, columns, rows in shown)
        replace_tables(Path(arguments.write), f"Measured on {machine()}.\n\n{text}\n")
    return 0


if __name__ == "__main__":
    sys.exit(main())
