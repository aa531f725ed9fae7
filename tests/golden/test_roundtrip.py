"""Every real dump through every ordered pair of stores: documents byte for byte, tensors bit for bit.

The judges are the frameworks' own readers: ``torch.load`` and ``np.load`` on the files msprobe wrote and on ours.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from msformat.convert import ConvertOptions, convert
from msformat.convert_unit import disk_usage
from msformat.verify import verify
from tests.conftest import golden_names

Golden = Callable[[str], Path]

# A place for a store, by the name that makes convert choose it.
_FORMS = {
    "files": ("tree", "files"),
    "hdf5": ("one.h5", None),
    "hdf5-tree": ("tree", "hdf5"),
    "zarr": ("one.zarr", None),
    "zarr-tree": ("tree", "zarr"),
}
# Bookkeeping of the files store: element types that a .npy cannot say.
_SIDECAR = "tensors.jsonl"


@pytest.fixture(autouse=True)
def _no_waiting_for_disks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing dies here, so nothing has to survive."""
    monkeypatch.setattr(os, "fsync", lambda descriptor: None)


def _convert(source: Path, place: Path, form: str, *, verify: bool = True) -> Path:
    name, to = _FORMS[form]
    target = place / name
    report = convert(source, target, ConvertOptions(to=to, verify=verify))
    assert report.exit_code == 0, report.as_json()
    assert all(unit.verified or not verify for unit in report.units)
    return target


def _files(root: Path) -> dict[str, Path]:
    found = {str(path.relative_to(root)): path for path in root.rglob("*") if path.is_file()}
    return {name: path for name, path in found.items() if path.name != _SIDECAR}


def _content(path: Path) -> Any:
    """What the framework reads: type, shape and bits."""
    if path.suffix == ".npy":
        array = np.load(path, allow_pickle=False)
        return array.dtype.str, array.shape, array.tobytes()
    if path.suffix == ".pt":
        torch = pytest.importorskip("torch")
        tensor = torch.load(path, weights_only=True)
        bits = tensor.detach().reshape(-1).contiguous().view(torch.uint8).numpy().tobytes() if tensor.numel() else b""
        return type(tensor).__name__, str(tensor.dtype), tuple(tensor.shape), bits
    return path.read_bytes()


def _contents(root: Path, names: Iterable[str] | None = None) -> dict[str, Any]:
    files = _files(root)
    return {name: _content(files[name]) for name in (names or files)}


_originals: dict[str, dict[str, Any]] = {}


def _original(name: str, root: Path) -> dict[str, Any]:
    if name not in _originals:
        _originals[name] = _contents(root)
    return _originals[name]


def _circuit() -> list[str]:
    """A walk over the forms that takes every ordered pair once (Hierholzer), from files to files."""
    ways = {form: [other for other in _FORMS if other != form] for form in _FORMS}
    walk: list[str] = []
    pending = ["files"]
    while pending:
        if ways[pending[-1]]:
            pending.append(ways[pending[-1]].pop())
        else:
            walk.append(pending.pop())
    return walk[::-1]


def test_the_walk_takes_every_ordered_pair() -> None:
    walk = _circuit()
    assert walk[0] == walk[-1] == "files"
    assert sorted(itertools.pairwise(walk)) == sorted(itertools.permutations(_FORMS, 2))


@pytest.mark.parametrize("name", golden_names)
def test_a_walk_through_every_ordered_pair_of_stores_loses_nothing(name: str, golden: Golden, tmp_path: Path) -> None:
    source = golden(name)
    original = _original(name, source)
    here = source
    for number, form in enumerate(_circuit()[1:]):
        place = tmp_path / str(number)
        place.mkdir()
        here = _convert(here, place, form, verify=form == "files")
        if form == "files":
            assert _files(here).keys() == original.keys()
            different = [file for file, content in _contents(here).items() if content != original[file]]
            assert not different, different


@pytest.mark.parametrize("name", golden_names)
def test_real_dumps_pass_verification_in_every_store(name: str, golden: Golden, tmp_path: Path) -> None:
    assert verify(golden(name)).exit_code == 0
    for form in ("hdf5", "zarr-tree"):
        (tmp_path / form).mkdir()
        report = verify(_convert(golden(name), tmp_path / form, form))
        assert report.exit_code == 0, report.as_json()


def test_stores_are_smaller_than_the_canonical_tree(golden: Golden, tmp_path: Path) -> None:
    source = golden("torch_8.1.0_mix_tensor")
    size, _ = disk_usage(str(source))
    for form in ("hdf5", "hdf5-tree", "zarr", "zarr-tree"):
        (tmp_path / form).mkdir()
        assert disk_usage(str(_convert(source, tmp_path / form, form)))[0] < size / 2
    assert sorted(path.name for path in (tmp_path / "hdf5-tree").rglob("*") if path.is_file()) == ["dump.h5", "dump.h5"]


def test_bfloat16_of_mindspore_becomes_bfloat16_and_float32_again(golden: Golden, tmp_path: Path) -> None:
    h5py = pytest.importorskip("h5py")
    source = golden("mindspore_8.1.0_debug_tensor")
    stored = _convert(source, tmp_path, "hdf5")
    key = "bf.0.debug.npy"
    original = np.load(source / "step0" / "rank" / "dump_tensor_data" / key)
    with h5py.File(stored) as file:
        dataset = file["step0/rank/tensors"][key]
        assert bytes(dataset.attrs["dtype"]) == b"bfloat16"
        assert (dataset[...].astype(np.uint32) << 16).tobytes() == original.tobytes()
    back = _convert(stored, tmp_path / "back", "files")
    again = np.load(back / "step0" / "rank" / "dump_tensor_data" / key)
    assert again.dtype == original.dtype == np.float32
    assert again.tobytes() == original.tobytes()


def test_arrays_of_characters_survive(golden: Golden, tmp_path: Path) -> None:
    source = golden("mindspore_8.1.0_L1_values")
    texts = [name for name, path in _files(source).items() if path.suffix == ".npy" and np.load(path).dtype.kind == "U"]
    assert texts
    back = _convert(_convert(source, tmp_path, "hdf5"), tmp_path / "back", "files")
    assert _contents(back, texts) == _contents(source, texts)
