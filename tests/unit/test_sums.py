"""Content with several names is read once, and each name still answers for itself."""

from __future__ import annotations

import json
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from msformat.digest import canonical_crc32, content_digest
from msformat.dtypes import dtype_named
from msformat.errors import CorruptTensorError
from msformat.stores.base import Store, StoreOptions
from msformat.stores.registry import open_store
from msformat.sums import ContentSums
from msformat.transfer import verify_transfer
from msformat.verify import verify

FLOAT32 = dtype_named("float32")
BACKENDS = ("memory", "files", "hdf5", "zarr")
VALUES = np.arange(20_000, dtype=np.float32)


def fill(tmp_path: Path, backend: str, **options: Any) -> Store:
    """Three names of one content, then two others of the same size."""
    location = str(tmp_path / {"hdf5": "d.h5", "zarr": "d.zarr"}.get(backend, "unit"))
    store = open_store(backend, location, mode="w", options=StoreOptions(**options))
    for key in ("a.npy", "b.npy", "c.npy"):
        store.put(key, VALUES, FLOAT32)
    store.put("other.npy", VALUES + 1, FLOAT32)
    store.put("ints.npy", VALUES.view(np.int32), dtype_named("int32"))
    if backend == "memory":
        return store
    store.close()
    return open_store(backend, location)


@pytest.mark.parametrize("links", [True, False])
@pytest.mark.parametrize("backend", BACKENDS)
def test_identity(tmp_path: Path, backend: str, links: bool) -> None:
    with fill(tmp_path, backend, links=links) as store:
        names = {key: store.get(key).identity for key in list(store.keys())}
    assert None not in names.values()
    assert len(set(names.values())) == (3 if links else 5)
    assert (names["a.npy"] == names["b.npy"] == names["c.npy"]) == links


@pytest.mark.parametrize("backend", BACKENDS)
def test_shared_content_is_read_once(tmp_path: Path, backend: str, reads: list[str]) -> None:
    with fill(tmp_path, backend) as store:
        digests = {key: content_digest(VALUES, FLOAT32) for key in ("a.npy", "b.npy", "c.npy")}
        assert verify_transfer(store, digests) == []
        assert len(reads) == 1  # by whichever thread came first
        assert len(verify_transfer(store, {**digests, "b.npy": "0" * 32, "other.npy": digests["a.npy"]})) == 2


@pytest.mark.parametrize("backend", BACKENDS)
def test_threads_that_ask_for_one_content_read_it_once(tmp_path: Path, backend: str, reads: list[str]) -> None:
    keys = ["a.npy", "b.npy", "c.npy"] * 20
    with fill(tmp_path, backend) as store, ThreadPoolExecutor(8) as pool:
        sums = ContentSums()
        found = set(pool.map(lambda key: sums.of(store.get(key)).digest, keys))
    assert found == {content_digest(VALUES, FLOAT32)}
    assert len(reads) == 1


def test_sums_are_those_of_the_bits(tmp_path: Path, reads: list[str]) -> None:
    with fill(tmp_path, "files") as store:
        sums = ContentSums()
        first = sums.of(store.get("a.npy"))
        assert (first.nbytes, first.digest, first.crc32) == (80_000, content_digest(VALUES, FLOAT32), None)
        assert sums.of(store.get("b.npy"), crc32=True).crc32 == canonical_crc32(VALUES, FLOAT32)
        assert sums.of(store.get("c.npy"), crc32=True).digest == first.digest
        assert reads == ["a.npy", "b.npy"]


def test_the_same_bytes_of_two_types_are_two_contents(tmp_path: Path) -> None:
    """A stranger's file may have two names, of which the sidecar says different things."""
    data = tmp_path / "dump_tensor_data"
    data.mkdir()
    np.save(data / "r.npy", np.arange(50, dtype=np.uint8))
    (data / "b.npy").hardlink_to(data / "r.npy")
    (tmp_path / "tensors.jsonl").write_text(json.dumps({"file": "b.npy", "dtype": "float8_e4m3fn"}) + "\n")
    with open_store("files", str(tmp_path)) as store:
        raw, eight = store.get("r.npy"), store.get("b.npy")
        assert (raw.dtype.name, eight.dtype.name) == ("uint8", "float8_e4m3fn")
        assert raw.identity == eight.identity
        sums = ContentSums()
        assert sums.of(raw).digest != sums.of(eight).digest


def test_a_wrong_digest_is_told_for_each_name(tmp_path: Path, reads: list[str]) -> None:
    fill(tmp_path, "hdf5").close()
    with h5py.File(tmp_path / "d.h5", "r+") as file:
        file["tensors/b.npy"].attrs.modify("xxh3_128", np.bytes_("0" * 32))
    (unit,) = verify(tmp_path / "d.h5").units
    wrong = [problem for problem in unit.problems if "do not match the digest" in problem]
    assert len(wrong) == 3
    assert len(reads) == 3
    assert (unit.tensors, unit.digests, unit.checked) == (5, 5, 5 * VALUES.nbytes)


def test_what_cannot_be_read_is_told_for_each_name(tmp_path: Path) -> None:
    fill(tmp_path, "hdf5").close()
    with h5py.File(tmp_path / "d.h5", "r+") as file:
        file["tensors/b.npy"].id.write_direct_chunk((0,), b"nonsense")
    with open_store("hdf5", str(tmp_path / "d.h5")) as store:
        sums = ContentSums()
        for key in ("a.npy", "c.npy"):
            with pytest.raises(CorruptTensorError, match=key):
                sums.of(store.get(key))
        assert sums.of(store.get("other.npy")).digest == content_digest(VALUES + 1, FLOAT32)
