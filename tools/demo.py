"""``make demo``: two training steps captured, then converted, read and verified; ends in a table.

The training is that of the GPT in tools/gpt.py, recorded by ``capture.pytorch`` at level mix with every tensor. The
same way is then gone with a dump that msprobe 8.1.0 wrote while training a small network (tests/golden/data).
"""

from __future__ import annotations

import filecmp
import json
import os
import shutil
import sys
import time
import zipfile
from pathlib import Path

import msformat
from msformat.cli.output import bytes_text
from msformat.cli.tables import print_table
from msformat.convert import ConvertOptions, convert
from msformat.usage import disk_usage
from msformat.verify import verify

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests" / "golden" / "data" / "torch_8.1.0_mix_tensor.zip"
Row = tuple[object, ...]


def main() -> int:
    """Run the demonstration in ``demo-out``; 0 when both dumps come back equal in every file."""
    out = ROOT / "demo-out"
    if out.exists():
        shutil.rmtree(out)
    out.mkdir()
    captured = capture_training(out)
    with zipfile.ZipFile(GOLDEN) as archive:
        archive.extractall(out)
    rows: list[Row] = []
    problems: list[str] = []
    for label, dump in (("captured", captured), ("msprobe's", out / GOLDEN.stem)):
        found, problem = there_and_back(label, dump)
        rows += found
        problems += problem
    read(captured.with_suffix(".h5"))
    numbers = ("bytes", "files", "seconds", "times smaller")
    print_table(("dump", "store", *numbers, "verified"), rows, right=numbers)
    for text in problems:
        print(f"  {text}")
    if problems:
        print("NOT equal to the original")
        return 1
    print("Every document is the same byte for byte, every tensor the same bit for bit.")
    # ``make demo`` puts the command into an environment of its own, which is on nobody's PATH.
    command = Path(os.path.relpath(sys.prefix, ROOT)) / "bin" / "msformat"
    print(f"Look into it:  {command} info {captured.with_suffix('.h5').relative_to(ROOT)}")
    return 0


def capture_training(out: Path) -> Path:
    """Train two steps, recorded into ``out/captured``."""
    from capture.pytorch import PrecisionDebugger
    from tools.gpt import Training

    dump = out / "captured"
    config = out / "config.json"
    config.write_text(json.dumps({"task": "tensor", "level": "mix", "dump_path": str(dump)}, indent=1))
    debugger = PrecisionDebugger(config_path=str(config))
    training = Training(debugger)
    print(f"Training a GPT for two steps, every API and module recorded with its tensors: {dump.relative_to(ROOT)}")
    for step in range(2):
        began = time.perf_counter()
        loss = training.step()
        print(f"  step {step}: loss {loss:.4f}, {time.perf_counter() - began:.2f} s")
    began = time.perf_counter()
    debugger.close()
    print(f"  the rest was written {time.perf_counter() - began:.2f} s later\n")
    return dump


def there_and_back(label: str, original: Path) -> tuple[list[Row], list[str]]:
    """A dump to HDF5, to Zarr and to canonical files again: rows of the table, and what is not equal."""
    first, back = disk_usage(original), original.with_name(f"{original.name}-back")
    stored, zarr = original.with_suffix(".h5"), original.with_suffix(".zarr")
    ways = [
        ("HDF5, one file", original, stored, "hdf5"),
        ("Zarr, one group", stored, zarr, "zarr"),
        ("canonical files again", zarr, back, "files"),
    ]
    rows: list[Row] = [(label, "as it was written", bytes_text(first.bytes), first.files, "", "1.00", "")]
    problems = []
    for store, source, target, name in ways:
        began = time.perf_counter()
        report = convert(source, target, ConvertOptions(to=name))
        seconds = time.perf_counter() - began
        verified = verify(target).exit_code == 0 and report.exit_code == 0
        if not verified:
            problems.append(f"{label}, {store}: not verified")
        used = disk_usage(target)
        ratio, answer = f"{first.bytes / used.bytes:.2f}", "yes" if verified else "NO"
        rows.append(("", store, bytes_text(used.bytes), used.files, f"{seconds:.2f}", ratio, answer))
    return rows, problems + [f"{label} differs: {text}" for text in compare_trees(original, back)]


def read(path: Path) -> None:
    """A few values, as a tool would read them."""
    with msformat.open(path) as dump:
        unit = dump[1, None]
        entry = unit["Module.blocks.0.attention.Attention.forward.0"]
        x = entry.outputs[0]
        print(f"{path.relative_to(ROOT)}: {len(dump)} units, {len(unit)} entries in the second step")
        print(f"{entry.key}, output of shape {x.shape}: mean {x.stats.mean:.6f}; its first values {x[0, 0, :3]}\n")


def compare_trees(original: Path, exported: Path) -> list[str]:
    """Names of files that are missing, new or different. Tensors are compared by content, torch being the judge."""
    import torch

    names = {path.relative_to(original) for path in original.rglob("*") if path.is_file()}
    others = {path.relative_to(exported) for path in exported.rglob("*") if path.is_file()}
    different = [f"{name} (only on one side)" for name in sorted(names ^ others, key=str)]
    for name in sorted(names & others, key=str):
        if name.suffix == ".pt":
            one, two = (torch.load(root / name, weights_only=True).detach() for root in (original, exported))
            same = one.dtype == two.dtype and one.shape == two.shape
            same = same and torch.equal(*(each.contiguous().view(-1).view(torch.uint8) for each in (one, two)))
        else:
            same = filecmp.cmp(original / name, exported / name, shallow=False)
        if not same:
            different.append(str(name))
    return different


if __name__ == "__main__":
    sys.exit(main())
