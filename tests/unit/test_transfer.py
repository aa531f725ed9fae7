"""Tensors from store to store: what is stored once is read once, and still every name gets what is its own."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from msformat.digest import content_digest
from msformat.dtypes import dtype_named
from msformat.plan import PlannedTensor
from msformat.stores.base import Store, StoreOptions
from msformat.stores.registry import open_store
from msformat.transfer import transfer, verify_transfer

FLOAT32 = dtype_named("float32")
BACKENDS = ("files", "hdf5", "zarr")
KEYS = ("a.npy", "b.npy", "c.npy")
VALUES = np.arange(20_000, dtype=np.float32)


def opened(place: Path, backend: str, mode: Any = "r", **options: Any) -> Store:
    """A store called after its backend."""
    place.mkdir(exist_ok=True)
    location = str(place / {"hdf5": "d.h5", "zarr": "d.zarr"}.get(backend, "unit"))
    return open_store(backend, location, mode=mode, options=StoreOptions(**options))


def filled(place: Path, backend: str, **options: Any) -> Path:
    """One content under three names, and another."""
    with opened(place, backend, "w", **options) as store:
        for key in KEYS:
            store.put(key, VALUES, FLOAT32)
        store.put("other.npy", VALUES + 1, FLOAT32)
    return place


def planned(*keys: str, declared: str | None = "torch.float32") -> list[PlannedTensor]:
    """Tensors that keep their names."""
    return [PlannedTensor(key, key, declared) for key in keys]


@pytest.mark.parametrize("to", BACKENDS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_has_several_names_is_read_once(tmp_path: Path, backend: str, to: str, reads: list[str]) -> None:
    filled(tmp_path / "source", backend)
    told: list[int] = []
    with opened(tmp_path / "source", backend) as source, opened(tmp_path, to, "w") as target:
        done = transfer(source, target, planned(*KEYS, "other.npy"), told.append)
    assert reads == ["a.npy", "other.npy"]
    assert done.problems == []
    assert (done.nbytes, told[-1]) == (4 * VALUES.nbytes, 4 * VALUES.nbytes)
    assert done.digests == {**dict.fromkeys(KEYS, content_digest(VALUES, FLOAT32)),
                            "other.npy": content_digest(VALUES + 1, FLOAT32)}  # fmt: skip
    with opened(tmp_path, to) as target:
        assert verify_transfer(target, done.digests) == []
        for key in KEYS:
            np.testing.assert_array_equal(target.get(key).bits(), VALUES)


def test_names_become_hard_links_that_others_read(tmp_path: Path) -> None:
    filled(tmp_path / "source", "zarr")
    with opened(tmp_path / "source", "zarr") as source:
        for to in ("files", "hdf5"):
            with opened(tmp_path, to, "w") as target:
                transfer(source, target, planned(*KEYS, "other.npy"))
    files = [tmp_path / "unit/dump_tensor_data" / key for key in KEYS]
    assert {file.stat().st_nlink for file in files} == {3}
    for file in files:
        np.testing.assert_array_equal(np.load(file), VALUES)
    with h5py.File(tmp_path / "d.h5") as file:
        assert file["tensors/a.npy"] == file["tensors/c.npy"]
        np.testing.assert_array_equal(file["tensors/c.npy"][:], VALUES)


@pytest.mark.parametrize("to", BACKENDS)
def test_without_links_each_name_has_its_bytes(tmp_path: Path, to: str, reads: list[str]) -> None:
    filled(tmp_path / "source", "hdf5")
    with opened(tmp_path / "source", "hdf5") as source, opened(tmp_path, to, "w", links=False) as target:
        transfer(source, target, planned(*KEYS))
    assert reads == list(KEYS)
    with opened(tmp_path, to) as target:
        assert len({target.get(key).identity for key in KEYS}) == 3


@pytest.mark.parametrize("to", BACKENDS)
def test_names_of_several_declared_types(tmp_path: Path, to: str) -> None:
    """float32 whose low halves are zero is bfloat16 where the document says so (format.md §3)."""
    whole = np.arange(256, dtype=np.float32)
    with opened(tmp_path / "source", "files", "w") as store:
        for key in KEYS:
            store.put(key, whole, FLOAT32)
    tensors = [*planned("a.npy"), *planned("b.npy", declared="BFloat16"), *planned("c.npy", declared="Int8")]
    with opened(tmp_path / "source", "files") as source, opened(tmp_path, to, "w") as target:
        done = transfer(source, target, tensors)
    assert [note.split(":")[0] for note in done.notes] == ["tensor 'c.npy'"]
    with opened(tmp_path, to) as target:
        assert [target.get(key).dtype.name for key in KEYS] == ["float32", "bfloat16", "float32"]
        np.testing.assert_array_equal(target.get("b.npy").bits(), (whole.view(np.uint32) >> 16).astype(np.uint16))


def test_a_note_is_made_of_each_name(tmp_path: Path) -> None:
    filled(tmp_path / "source", "hdf5")
    with opened(tmp_path / "source", "hdf5") as source, opened(tmp_path, "zarr", "w") as target:
        done = transfer(source, target, planned(*KEYS, declared="torch.int8"))
    assert len(done.digests) == 3
    assert [note.split(":")[0] for note in done.notes] == [f"tensor {key!r}" for key in KEYS]


@pytest.mark.parametrize("to", BACKENDS)
def test_a_refused_first_name_takes_no_other_with_it(tmp_path: Path, to: str) -> None:
    filled(tmp_path / "source", "zarr")
    with opened(tmp_path, to, "w") as target:
        target.put("a.npy", VALUES - 1, FLOAT32)
    with opened(tmp_path / "source", "zarr") as source, opened(tmp_path, to, "a") as target:
        done = transfer(source, target, planned(*KEYS))
    assert done.conflicts == len(done.problems) == 1
    assert "a.npy" in done.problems[0]
    assert set(done.digests) == {"b.npy", "c.npy"}
    with opened(tmp_path, to) as target:
        np.testing.assert_array_equal(target.get("a.npy").bits(), VALUES - 1)
        for key in ("b.npy", "c.npy"):
            np.testing.assert_array_equal(target.get(key).bits(), VALUES)


@pytest.mark.parametrize("to", BACKENDS)
def test_what_is_there_already_is_taken_and_what_differs_is_not(tmp_path: Path, to: str) -> None:
    filled(tmp_path / "source", "hdf5")
    with opened(tmp_path, to, "w") as target:
        target.put("b.npy", VALUES, FLOAT32)
        target.put("c.npy", VALUES - 1, FLOAT32)
    with opened(tmp_path / "source", "hdf5") as source, opened(tmp_path, to, "a") as target:
        done = transfer(source, target, planned(*KEYS))
    assert (done.conflicts, set(done.digests)) == (1, {"a.npy", "b.npy"})


def test_what_cannot_be_read_is_told_for_each_name(tmp_path: Path) -> None:
    filled(tmp_path / "source", "files")
    data = tmp_path / "source/unit/dump_tensor_data"
    with (data / "a.npy").open("r+b") as file:
        file.truncate(5000)
    with opened(tmp_path / "source", "files") as source, opened(tmp_path, "hdf5", "w") as target:
        done = transfer(source, target, planned(*KEYS, "other.npy"))
    assert list(done.digests) == ["other.npy"]
    assert [key in problem for key, problem in zip(KEYS, done.problems, strict=True)] == [True] * 3


def test_what_changed_in_the_source_is_kept_and_said_of_each_name(tmp_path: Path) -> None:
    """A bit that turned on the disk, in a store without checksums of its own: h5py writes over what was stored."""
    place = filled(tmp_path / "a", "hdf5", compression="none")
    with h5py.File(place / "d.h5", "r+") as file:
        file["tensors/a.npy"][7] = -1.0
    with opened(place, "hdf5") as source, opened(tmp_path / "b", "files", "w") as target:
        done = transfer(source, target, planned(*KEYS, "other.npy"))
    assert [problem.split(" is damaged")[0] for problem in done.problems] == [f"tensor {key!r}" for key in KEYS]
    assert done.damaged == set(KEYS)
    changed = VALUES.copy()
    changed[7] = -1.0
    written = {path.name: path for path in (tmp_path / "b").rglob("*.npy")}
    assert all(np.array_equal(np.load(written[key]), changed) for key in KEYS)
