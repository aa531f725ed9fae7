"""Lines of ``make bench`` for reading: a tensor, a slice of a large one, many small ones, many entries, many units."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import numpy as np

import msformat
from msformat.cli.output import bytes_text
from msformat.convert import ConvertOptions, convert
from msformat.stores.registry import open_store
from msformat.usage import disk_usage
from tools.bench_lines import Line, code, pairs, peak_memory, with_memory

__all__ = ["bench_pt", "bench_slices", "bench_small", "bench_units"]

ROW = 777


def bench_pt(root: Path, repeats: int) -> list[Line]:
    """One tensor from a ``.pt``: small, and a row of a large one, against ``torch.load(weights_only=True)``."""
    import torch

    folder = root / "pt" / "dump_tensor_data"
    folder.mkdir(parents=True)
    torch.save(torch.randn(8, 16), folder / "small.pt")
    torch.save(torch.randn(4096, 4096), folder / "large.pt")
    lines = []
    with open_store("files", str(root / "pt")) as store:
        for name, label in (("small", "8x16"), ("large", "64 MiB")):
            medians = pairs(
                lambda name=name: store.get(f"{name}.pt").numpy(),
                lambda name=name: torch.load(folder / f"{name}.pt", weights_only=True),
                repeats * 10,
            )
            lines.append(Line(f"read one .pt, {label}", *medians, "torch.load", "<= 0.5"))
        sliced = pairs(
            lambda: store.get("large.pt")[7],
            lambda: torch.load(folder / "large.pt", weights_only=True)[7],
            repeats * 10,
        )
        lines.append(Line("read one row of it", *sliced, "torch.load", "<= 0.5"))
    return lines


# --- a slice of a large tensor ----------------------------------------------------------------------------------------

_PLAIN = {
    "pt": "import torch; torch.load({path!r}, weights_only=True, mmap=True)[{row}].numpy().copy()",
    "npy": "import numpy; numpy.load({path!r}, mmap_mode='r')[{row}].copy()",
    "h5": "import h5py; h5py.File({path!r})[{name!r}][{row}]",
    "zarr": "import zarr; zarr.open_group({path!r}, mode='r')[{name!r}][0, {row}]",
}
_TOUCHED = "memory: its chunks"
_PEERS = {"pt": "torch.load(mmap=True)", "npy": "np.load(mmap_mode='r')", "h5": "h5py", "zarr": "zarr-python"}


def bench_slices(root: Path, nbytes: int, repeats: int) -> list[Line]:
    """A row of one large tensor from each store; memory shows that no more than its chunks are touched."""
    lines = []
    for kind, template in _PLAIN.items():
        place = root / "large"
        place.mkdir()
        name, path = _write_large(place, nbytes, kind)
        inner = {"h5": _dataset_in, "zarr": _array_in}.get(kind, lambda *_: "")(path, name)
        suffix = "pt" if kind == "pt" else "npy"
        source = {"h5": place / "d.h5", "zarr": place / "d.zarr"}.get(kind, place / "dump")
        mine = f"import msformat; msformat.open({str(source)!r})[0, None].tensor('x.forward.0.input.0.{suffix}')[{ROW}]"
        plain = template.format(path=str(path), row=ROW, name=inner)
        medians = pairs(lambda mine=mine: exec(mine), lambda plain=plain: exec(plain), repeats)
        peaks = with_memory(code(mine), code(plain))
        lines.append(
            Line(f"open, one row of {bytes_text(nbytes)}, {kind}", *medians, _PEERS[kind], _TOUCHED, peaks=peaks)
        )
        shutil.rmtree(place)
    return lines


def _write_large(place: Path, nbytes: int, kind: str) -> tuple[str, Path]:
    """A dump of one tensor; where the bytes of a kind lie."""
    name = "x.forward.0.input.0." + ("pt" if kind == "pt" else "npy")
    unit = place / "dump" / "step0" / "rank"
    folder = unit / "dump_tensor_data"
    folder.mkdir(parents=True)
    values = np.random.default_rng(0).standard_normal((max(ROW + 1, nbytes // (4096 * 4)), 4096), np.float32)
    if kind == "pt":
        import torch

        torch.save(torch.from_numpy(values), folder / name)
    else:
        np.save(folder / name, values)
    node = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": list(values.shape), "Max": 1.0, "Min": 0.0}
    node |= {"Mean": 0.0, "Norm": 1.0, "requires_grad": False, "data_name": name}
    _write_document(unit, {"x.forward.0": {"input_args": [node], "input_kwargs": {}, "output": []}})
    if kind in ("pt", "npy"):
        return name, folder / name
    target = place / f"d.{kind}"
    if convert(place / "dump", target, ConvertOptions(verify=False)).exit_code:
        raise SystemExit(f"{target} could not be written")
    return name, target


def _write_document(unit: Path, data: dict[str, Any]) -> None:
    header = {"task": "tensor", "level": "mix", "framework": "pytorch", "dump_data_dir": "dump_tensor_data"}
    (unit / "dump.json").write_text(json.dumps({**header, "data": data}, indent=1))


def _dataset_in(path: Path, name: str) -> str:
    """Where a tensor lies in an HDF5 file."""
    import h5py

    with h5py.File(path) as file:
        found = file.visit(lambda inner: inner if inner.endswith(name) else None)
    return str(found)


def _array_in(path: Path, name: str) -> str:
    """The array in a Zarr store whose first row a tensor is, by the index."""
    import zarr

    unit = zarr.open_group(path, mode="r")["step0/rank"]
    index = json.loads(unit["documents/index.json"][:].tobytes())["tensors"]
    return f"step0/rank/{index[name]['array']}"


# --- many small tensors -----------------------------------------------------------------------------------------------


def bench_small(root: Path, count: int, repeats: int) -> list[Line]:
    """So many tensors of 8 x 16, each of its own content, written and read as files and in Zarr and HDF5.

    The plain tool is ``np.save`` and ``np.load``, a file a tensor.
    """
    values = np.random.default_rng(0).standard_normal((count, 8, 16), np.float32)
    names = [f"Functional.linear.{at}.forward.input.0.npy" for at in range(count)]
    plain = root / "plain"

    def clean() -> None:
        for path in root.glob("small*"):
            shutil.rmtree(path) if path.is_dir() else path.unlink()
        shutil.rmtree(plain, ignore_errors=True)

    def save() -> None:
        plain.mkdir()
        for name, value in zip(names, values, strict=True):
            np.save(plain / name, value)
        subprocess.run(["sync", "-f", str(plain)], check=True)

    def load() -> None:
        for name in names:
            np.load(plain / name)

    lines = []
    for backend, suffix in (("zarr", ".zarr"), ("hdf5", ".h5"), ("files", "")):
        target = root / f"small{suffix}"
        goal = "<= 1" if backend == "zarr" else ""
        written = pairs(lambda: _put_all(backend, target, names, values), save, repeats, before=clean)  # noqa: B023
        clean()
        save()
        _put_all(backend, target, names, values)
        mine, theirs = disk_usage(target), disk_usage(plain)
        lines.append(Line(f"write {count:,} small tensors, {backend}", *written, "np.save; sync", goal))
        lines.append(Line(f"inodes of them, {backend}", mine.inodes, theirs.inodes, ".npy files", goal, "", "inodes"))
        read = pairs(lambda: _get_all(backend, target, names), load, repeats)  # noqa: B023
        lines.append(Line(f"read {count:,} small tensors, {backend}", *read, "np.load", goal))
    clean()
    return lines


def _put_all(backend: str, target: Path, names: list[str], values: Any) -> None:
    dtype = msformat.dtype_named("float32")
    if backend == "files":
        target.mkdir()
    with open_store(backend, str(target), mode="w") as store:
        for name, value in zip(names, values, strict=True):
            store.put(name, value, dtype)
        store.sync()


def _get_all(backend: str, target: Path, names: list[str]) -> None:
    with open_store(backend, str(target)) as store:
        for name in names:
            store.get(name).numpy()


# --- many entries, many units -----------------------------------------------------------------------------------------


def bench_units(root: Path, entries: int, ranks: int, steps: int, repeats: int) -> list[Line]:
    """A unit of very many entries, and a tree of very many units: opening is lazy, names are what it costs."""
    path = root / "many" / "step0" / "rank" / "dump.json"
    _write_entries(path, entries, 3)
    size = path.stat().st_size
    mine = f"import msformat; (next(iter(msformat.open({str(root / 'many')!r})[0, None].values())).key)"
    medians = pairs(lambda: _first(root / "many"), lambda: _load_all(path), 1 if size > 1 << 28 else repeats)
    lines = [
        Line(
            f"open {entries:,} entries ({bytes_text(size)})", *medians, "json.load", "<= 0.1",
            "goal of memory: a third", peaks=(peak_memory(code(mine)), _peak_of_load(path)),
        )
    ]  # fmt: skip
    # json.load would need tens of gigabytes of memory for this one: the peer only reads the bytes.
    _write_entries(path, entries, 10)
    label = f"first of {entries:,} entries, streamed ({bytes_text(path.stat().st_size)})"
    seconds = pairs(lambda: _first(root / "many"), lambda: _cat(path), 1)
    lines.append(Line(label, *seconds, "cat", "<= 20 s", peaks=(peak_memory(code(mine)), 0)))
    _write_entries(path, 1, 3)
    small = path.read_text()
    shutil.rmtree(root / "many")
    for step in range(steps):
        for rank in range(ranks):
            unit = root / "units" / f"step{step}" / f"rank{rank}"
            unit.mkdir(parents=True)
            (unit / "dump.json").write_text(small)
    tree = root / "units"
    mine = f"import msformat; (next(iter(msformat.open({str(tree)!r})[{steps - 1}, {ranks - 1}].values())).key)"
    medians = pairs(lambda: exec(mine), lambda: _find(tree), repeats)
    label = f"open {steps} x {ranks:,} units, one entry of the last"
    lines.append(Line(label, *medians, "find -type f", "<= 5 s", peaks=(peak_memory(code(mine)), 0)))
    shutil.rmtree(tree)
    return lines


def _write_entries(path: Path, entries: int, tensors: int) -> None:
    """A dump.json of statistics, so many tensors an entry: 1,000,000 of 10 are 2 GB."""
    tensor = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [4, 128, 256], "Max": 3.1, "Min": -3.2}
    tensor |= {"Mean": 1e-05, "Norm": 362.0, "requires_grad": True}
    value = json.dumps({"input_args": [tensor] * (tensors - 1), "input_kwargs": {}, "output": [tensor]}, indent=1)
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        file.write('{"task": "statistics", "level": "L1", "framework": "pytorch", "dump_data_dir": null, "data": {\n')
        for at in range(entries):
            file.write(("," if at else "") + f'"Functional.linear.{at}.forward": {value}\n')
        file.write("}}")


def _cat(path: Path) -> None:
    subprocess.run(["cat", str(path)], check=True, stdout=subprocess.DEVNULL)


def _first(path: Path) -> object:
    with msformat.open(path)[0, None] as unit:
        return next(iter(unit.values()))


def _load_all(path: Path) -> object:
    return next(iter(json.loads(path.read_bytes())["data"].values()))


def _peak_of_load(path: Path) -> int:
    return peak_memory(code(f"import json; json.load(open({str(path)!r}))"))


def _find(tree: Path) -> None:
    subprocess.run(["find", str(tree), "-type", "f"], check=True, stdout=subprocess.DEVNULL)
