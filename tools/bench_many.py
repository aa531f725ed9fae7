"""Lines of ``make bench``: many small tensors in one call of ``unit.read``, beside a plain loop over each store."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np

import msformat
from msformat.convert import ConvertOptions, convert
from tools.bench_lines import Line, pairs

__all__ = ["bench_many"]

UNIT = "step0/rank0"
_TENSORS = 4


def bench_many(root: Path, count: int, repeats: int) -> list[Line]:
    """All of ``count`` tensors of 8 x 16, four an entry, from each store; metadata are read with them."""
    place = root / "together"
    names = _write(place / "npy", count)
    targets = {"npy": place / "npy", "pt": place / "pt", "hdf5": place / "d.h5", "zarr": place / "d.zarr"}
    for kind, target in targets.items():
        options = ConvertOptions(tensors="pt") if kind == "pt" else ConvertOptions(verify=False)
        if kind != "npy" and convert(targets["npy"], target, options).exit_code:
            raise SystemExit(f"{target} could not be written")
    lines = []
    for kind, (peer, plain) in _PLAIN.items():
        wanted = [name.removesuffix(".npy") + ".pt" for name in names] if kind == "pt" else names
        medians = pairs(partial(_read, targets[kind], count), partial(plain, targets[kind], wanted), repeats)
        # What a loop of slices over packs in memory takes, no reader of documents reaches.
        goal = "<= 1" if kind != "zarr" else ""
        note = "ours reads all metadata, too"
        lines.append(Line(f"unit.read() of {count:,} small tensors, {kind}", *medians, peer, goal, note))
    shutil.rmtree(place)
    return lines


def _write(tree: Path, count: int) -> list[str]:
    unit = tree / UNIT
    (unit / "dump_tensor_data").mkdir(parents=True)
    values = np.random.default_rng(0).standard_normal((count, 8, 16), np.float32)
    node = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [8, 16], "Max": 1.0, "Min": -1.0, "Mean": 0.0}
    node |= {"Norm": 3.0, "requires_grad": True}
    data, names = {}, []
    for at in range(0, count, _TENSORS):
        key = f"Functional.linear.{at // _TENSORS}.forward"
        mine = [f"{key}.input.{number}.npy" for number in range(_TENSORS)]
        for name, value in zip(mine, values[at : at + _TENSORS], strict=True):
            np.save(unit / "dump_tensor_data" / name, value)
        nodes = [{**node, "data_name": name} for name in mine]
        data[key] = {"input_args": nodes, "input_kwargs": {}, "output": []}
        names += mine
    header = {"task": "tensor", "level": "L1", "framework": "pytorch", "dump_data_dir": "dump_tensor_data"}
    (unit / "dump.json").write_text(json.dumps({**header, "data": data}, indent=1))
    return names


def _read(path: Path, count: int) -> None:
    with msformat.open(path)[0, 0] as unit:
        assert sum(1 for _ in unit.read()) == count


def _npy(path: Path, names: list[str]) -> None:
    for name in names:
        np.load(path / UNIT / "dump_tensor_data" / name)


def _pt(path: Path, names: list[str]) -> None:
    import torch

    for name in names:
        torch.load(path / UNIT / "dump_tensor_data" / name, weights_only=True)


def _hdf5(path: Path, names: list[str]) -> None:
    import h5py

    with h5py.File(path) as file:
        group = file[f"{UNIT}/tensors"]
        for name in names:
            group[name][...]


def _zarr(path: Path, names: list[str]) -> None:
    """As docs/format.md tells: the index, then each pack once."""
    import zarr

    unit = zarr.open_group(path, mode="r")[UNIT]
    index = json.loads(unit["documents/index.json"][:].tobytes())["tensors"]
    packs = {name: unit[name][:] for name in {place["pack"] for place in index.values()}}
    for name in names:
        place = index[name]
        packs[place["pack"]][place["offset"] : place["offset"] + 512].view("<f4").reshape(place["shape"]).copy()


_PLAIN: dict[str, tuple[str, Callable[[Path, list[str]], None]]] = {
    "npy": ("np.load", _npy),
    "pt": ("torch.load", _pt),
    "hdf5": ("h5py", _hdf5),
    "zarr": ("zarr-python, packs kept", _zarr),
}
