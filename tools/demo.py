"""``make demo``: a real dump to HDF5, to Zarr, back to canonical files, verified equal; ends in a table.

The dump is one that msprobe 8.1.0 wrote while training a small network (tests/golden/data).
"""

from __future__ import annotations

import filecmp
import os
import shutil
import sys
import time
import zipfile
from pathlib import Path

from msformat.cli.output import bytes_text
from msformat.cli.tables import print_table
from msformat.convert import ConvertOptions, convert
from msformat.usage import disk_usage
from msformat.verify import verify

ROOT = Path(__file__).resolve().parent.parent
GOLDEN = ROOT / "tests" / "golden" / "data" / "torch_8.1.0_mix_tensor.zip"


def main() -> int:
    """Run the demonstration in ``demo-out``; 0 when the result equals the original in every file."""
    out = ROOT / "demo-out"
    if out.exists():
        shutil.rmtree(out)
    out.mkdir()
    with zipfile.ZipFile(GOLDEN) as archive:
        archive.extractall(out)
    original = out / GOLDEN.stem
    print(f"A dump of msprobe 8.1.0, two training steps at level mix with tensors: {original.relative_to(ROOT)}\n")
    ways = [
        ("HDF5, one file", original, out / "dump.h5", "hdf5"),
        ("Zarr, one group", out / "dump.h5", out / "dump.zarr", "zarr"),
        ("canonical files again", out / "dump.zarr", out / "back", "files"),
    ]
    first = disk_usage(original)
    rows: list[tuple[object, ...]] = [("as msprobe wrote it", bytes_text(first.bytes), first.files, "", "1.00", "")]
    failed = False
    for label, source, target, store in ways:
        began = time.perf_counter()
        report = convert(source, target, ConvertOptions(to=store))
        seconds = time.perf_counter() - began
        checked = verify(target)
        failed = failed or report.exit_code != 0 or checked.exit_code != 0
        used = disk_usage(target)
        verified = "yes" if checked.exit_code == 0 and report.exit_code == 0 else "NO"
        ratio = f"{first.bytes / used.bytes:.2f}"
        rows.append((label, bytes_text(used.bytes), used.files, f"{seconds:.2f}", ratio, verified))
    numbers = ("bytes", "files", "seconds", "times smaller")
    print_table(("store", *numbers, "verified"), rows, right=numbers)
    different = compare_trees(original, out / "back")
    for text in different:
        print(f"  differs: {text}")
    if failed or different:
        print("NOT equal to the original")
        return 1
    print("Every document is the same byte for byte, every tensor the same bit for bit.")
    # ``make demo`` puts the command into an environment of its own, which is on nobody's PATH.
    command = Path(os.path.relpath(sys.prefix, ROOT)) / "bin" / "msformat"
    print(f"Look into it:  {command} info {(out / 'dump.h5').relative_to(ROOT)}")
    return 0


def compare_trees(original: Path, exported: Path) -> list[str]:
    """Names of files that are missing, new or different. Tensors are compared by content, torch being the judge."""
    import torch

    names = {path.relative_to(original) for path in original.rglob("*") if path.is_file()}
    others = {path.relative_to(exported) for path in exported.rglob("*") if path.is_file()}
    different = [f"{name} (only on one side)" for name in sorted(names ^ others, key=str)]
    for name in sorted(names & others, key=str):
        if name.suffix == ".pt":
            one, two = (torch.load(root / name, weights_only=True).contiguous() for root in (original, exported))
            same = one.dtype == two.dtype and one.shape == two.shape
            same = same and bytes(one.untyped_storage()) == bytes(two.untyped_storage())
        else:
            same = filecmp.cmp(original / name, exported / name, shallow=False)
        if not same:
            different.append(str(name))
    return different


if __name__ == "__main__":
    sys.exit(main())
