"""``make bench``: what msformat costs, as ratios to a peer or a plain tool measured in the same run.

Every line is the median of repeated pairs (ours, theirs, ours, theirs, …), so that a machine whose speed drifts does
not decide. The dump is made on the spot: activations of a small network, tensors named several times as in a mix dump.
"""

from __future__ import annotations

import argparse
import json
import platform
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from datetime import datetime, timezone
from pathlib import Path

import numpy as np

from msformat.cli.output import bytes_text
from msformat.cli.tables import print_table
from msformat.usage import disk_usage
from tools.bench_open import bench_open

Action = Callable[[], object]


@dataclass(frozen=True)
class Line:
    """One comparison: seconds of both, medians of pairs."""

    what: str
    ours: float
    theirs: float
    peer: str
    goal: str
    note: str = ""

    def row(self) -> tuple[object, ...]:
        """As a row of the table."""
        ratio = f"{self.ours / self.theirs:.2f}"
        return (self.what, f"{self.ours * 1e3:.2f}", self.peer, f"{self.theirs * 1e3:.2f}", ratio, self.goal, self.note)


def pairs(ours: Action, theirs: Action, repeats: int, *, before: Action = lambda: None) -> tuple[float, float]:
    """Median seconds of both, run in turn after one warm-up."""
    times: dict[Action, list[float]] = {ours: [], theirs: []}
    for turn in range(repeats + 1):
        for action, found in times.items():
            before()
            began = time.perf_counter()
            action()
            if turn:
                found.append(time.perf_counter() - began)
    return statistics.median(times[ours]), statistics.median(times[theirs])


def make_dump(root: Path, layers: int) -> None:
    """A canonical dump of about ``layers`` x 16 MB as msprobe would write it, with torch."""
    import torch

    torch.manual_seed(0)
    unit = root / "step0" / "rank"
    (unit / "dump_tensor_data").mkdir(parents=True)
    data: dict[str, object] = {}

    def saved(tensor: torch.Tensor, name: str) -> dict[str, object]:
        torch.save(tensor.clone(), unit / "dump_tensor_data" / f"{name}.pt")
        shape = list(tensor.shape)
        stats = {"Max": float(tensor.max()), "Min": float(tensor.min()), "Mean": float(tensor.mean())}
        meta = {"type": "torch.Tensor", "dtype": str(tensor.dtype), "shape": shape, **stats}
        return {**meta, "Norm": float(tensor.norm()), "requires_grad": False, "data_name": f"{name}.pt"}

    x = torch.randn(512, 1024)
    weight = torch.randn(1024, 1024) / 32
    for layer in range(layers):
        y = torch.nn.functional.gelu(x @ weight) + x * 0.5
        key = f"Functional.linear.{layer}.forward"
        data[key] = {
            "input_args": [saved(x, f"{key}.input.0"), saved(weight, f"{key}.input.1")],
            "input_kwargs": {},
            "output": [saved(y, f"{key}.output.0")],
        }
        key = f"Module.layers.{layer}.Linear.forward.0"
        data[key] = {
            "input_args": [saved(x, f"{key}.input.0")],
            "input_kwargs": {},
            "output": [saved(y, f"{key}.output.0")],
            "parameters": {"weight": saved(weight, f"{key}.parameters.weight")},
        }
        x = y
    header = {"task": "tensor", "level": "mix", "framework": "pytorch", "dump_data_dir": "dump_tensor_data"}
    (unit / "dump.json").write_text(json.dumps({**header, "data": data}, indent=1))
    (unit / "stack.json").write_text("{}")
    (unit / "construct.json").write_text(json.dumps(dict.fromkeys(data), indent=1))


def bench_import(repeats: int) -> Line:
    """A fresh interpreter that imports us, against one that imports numpy; both less the bare interpreter."""
    bare, _ = pairs(lambda: python("pass"), lambda: None, repeats)
    ours, theirs = pairs(lambda: python("import msformat"), lambda: python("import numpy"), repeats)
    return Line("import msformat", ours - bare, theirs - bare, "import numpy", "< 2")


def python(code: str) -> None:
    """Run code in a fresh interpreter."""
    subprocess.run([sys.executable, "-c", code], check=True)


def bench_pt(root: Path, repeats: int) -> list[Line]:
    """One tensor from a ``.pt``: small, and a row of a large one, against ``torch.load(weights_only=True)``."""
    import torch

    from msformat.stores.registry import open_store

    folder = root / "pt" / "dump_tensor_data"
    folder.mkdir(parents=True)
    torch.save(torch.randn(8, 16), folder / "small.pt")
    torch.save(torch.randn(4096, 4096), folder / "large.pt")
    lines = []
    with open_store("files", str(root / "pt")) as store:
        for name, label in (("small", "8x16"), ("large", "64 MiB")):
            path = folder / f"{name}.pt"

            def ours(key: str = f"{name}.pt") -> object:
                return store.get(key).numpy()

            def theirs(path: Path = path) -> object:
                return torch.load(path, weights_only=True)

            lines.append(Line(f"read one .pt, {label}", *pairs(ours, theirs, repeats * 10), "torch.load", "<= 0.5"))
        sliced = pairs(
            lambda: store.get("large.pt")[7],
            lambda: torch.load(folder / "large.pt", weights_only=True)[7],
            repeats * 10,
        )
        lines.append(Line("read one row of it", *sliced, "torch.load", "<= 0.5"))
    return lines


def bench_convert(root: Path, repeats: int) -> list[Line]:
    """Convert with verification into each store and back, against tar and zstd of the same tree."""
    from msformat.convert import ConvertOptions, convert

    dump, archive, out = root / "dump", root / "dump.tar.zst", root / "out"
    first = disk_usage(dump)

    def clean() -> None:
        for path in root.iterdir():
            if path not in (dump, archive) and path.name.startswith("out"):
                shutil.rmtree(path) if path.is_dir() else path.unlink()

    def pack() -> None:
        subprocess.run(
            f"tar cf - -C {root} dump | zstd -q -f -1 -T0 -o {archive} && sync -f {archive}", shell=True, check=True
        )

    def unpack() -> None:
        out.mkdir()
        subprocess.run(f"zstd -q -d -c {archive} | tar x -C {out} && sync -f {out}", shell=True, check=True)

    lines = []
    for suffix, store in ((".h5", "HDF5"), (".zarr", "Zarr")):
        target = out.with_suffix(suffix)

        def run(target: Path = target) -> None:
            assert convert(dump, target, ConvertOptions(jobs=2)).exit_code == 0

        medians = pairs(run, pack, repeats, before=clean)
        clean()
        run()
        size = disk_usage(target)
        packed = first.bytes / archive.stat().st_size
        note = f"{first.bytes / size.bytes:.1f}x smaller, {size.files} files; tar.zst {packed:.1f}x"
        lines.append(Line(f"files -> {store}, verified", *medians, "tar | zstd -1 -T0", "<= 1", note))
    stored = root / "kept.h5"
    assert convert(dump, stored, ConvertOptions()).exit_code == 0

    def export() -> None:
        assert convert(stored, out, ConvertOptions(to="files", verify=False)).exit_code == 0

    lines.append(Line("HDF5 -> files", *pairs(export, unpack, repeats, before=clean), "zstd -d | tar x", "<= 1"))
    return lines


def main() -> int:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--quick", action="store_true", help="a smaller dump and fewer repeats")
    parser.add_argument("--json", metavar="FILE", help="also write the figures here")
    arguments = parser.parse_args()
    layers, entries, repeats = (12, 20_000, 3) if arguments.quick else (60, 100_000, 5)
    if not shutil.which("zstd"):
        sys.exit("make bench compares with zstd, which is not installed")
    root = Path(tempfile.mkdtemp(prefix="msformat-bench-"))
    try:
        make_dump(root / "dump", layers)
        size = disk_usage(root / "dump")
        print(f"{datetime.now(tz=timezone.utc):%Y-%m-%d}, {platform.machine()}, Python {platform.python_version()},")
        print(f"numpy {np.__version__}; dump of {bytes_text(size.bytes)} in {size.files} files;", end=" ")
        print(f"medians of {repeats} pairs\n")
        lines = [bench_import(repeats), *bench_pt(root, repeats), *bench_open(root, entries, repeats, Line, pairs)]
        lines += bench_convert(root, repeats)
    finally:
        shutil.rmtree(root)
    print_table(
        ("what", "ours ms", "against", "theirs ms", "ratio", "goal", ""),
        [line.row() for line in lines],
        right=("ours ms", "theirs ms", "ratio", "goal"),
    )
    if arguments.json:
        Path(arguments.json).write_text(json.dumps([vars(line) for line in lines], indent=1))
    return 0


if __name__ == "__main__":
    sys.exit(main())
