"""Large tensors are looked at in the maps of their files."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from msformat.borrowed import is_mapped, released_pages
from msformat.digest import RunningSums, canonical_crc32, content_digest
from msformat.dtypes import dtype_named
from msformat.stores.registry import open_store
from msformat.sums import ContentSums

FLOAT32, BFLOAT16 = dtype_named("float32"), dtype_named("bfloat16")


@pytest.fixture
def large(tmp_path: Path) -> tuple[Path, np.ndarray]:
    array = np.arange(5 * 7 * (1 << 19), dtype=np.float32).reshape(5, 7, 1 << 19)
    with open_store("files", str(tmp_path / "unit"), mode="w") as store:
        store.put("x.npy", array, FLOAT32)
    return tmp_path / "unit", array


def test_large_tensors_are_lent_not_read(large: tuple[Path, np.ndarray]) -> None:
    where, array = large
    with open_store("files", str(where)) as store:
        stored = store.get("x.npy")
        lent = stored.borrowed_bits()
        assert is_mapped(lent)
        assert not lent.flags.writeable
        assert not is_mapped(stored.bits())
        np.testing.assert_array_equal(lent, array)


def test_small_tensors_are_read(tmp_path: Path) -> None:
    with open_store("files", str(tmp_path / "unit"), mode="w") as store:
        store.put("x.npy", np.ones(4, np.float32), FLOAT32)
        assert not is_mapped(store.get("x.npy").borrowed_bits())


def test_values_survive_while_pages_are_given_back(large: tuple[Path, np.ndarray]) -> None:
    where, array = large
    before = threading.active_count()
    with open_store("files", str(where)) as store:
        lent = store.get("x.npy").borrowed_bits()
        with released_pages(lent):
            for _ in range(3):
                np.testing.assert_array_equal(lent, array)
    assert threading.active_count() == before


def test_other_arrays_need_no_thread() -> None:
    before = threading.active_count()
    with released_pages(np.ones(3)):
        assert threading.active_count() == before


@pytest.mark.parametrize("backend", ["files", "hdf5", "zarr"])
@pytest.mark.parametrize("dtype", [FLOAT32, BFLOAT16], ids=lambda dtype: dtype.name)
def test_sums_of_slabs_are_those_of_the_whole(tmp_path: Path, backend: str, dtype: Any) -> None:
    """Long in the last axis, so that slabs are cut in an inner one."""
    count = 3 * 70_000_000 // (dtype.itemsize * 6)
    bits = np.random.default_rng(3).integers(0, 1 << 16, (2, 3, count), np.uint16)
    bits = bits if dtype is BFLOAT16 else bits.astype(np.float32)
    with open_store(backend, str(tmp_path / "x"), mode="w") as store:
        store.put("x.npy", bits, dtype)
    with open_store(backend, str(tmp_path / "x")) as store:
        found = ContentSums().of(store.get("x.npy"), crc32=True)
    assert (found.nbytes, found.digest) == (bits.nbytes, content_digest(bits, dtype))
    assert found.crc32 == canonical_crc32(bits, dtype)


def test_running_sums_do_not_depend_on_the_pieces() -> None:
    bits = np.arange(1000, dtype=np.uint16)
    sums = RunningSums(BFLOAT16, (1000,), with_crc32=True)
    for at in (0, 1, 999):
        sums.add(bits[at : {0: 1, 1: 999, 999: 1000}[at]])
    assert (sums.digest, sums.checksum) == (content_digest(bits, BFLOAT16), canonical_crc32(bits, BFLOAT16))
    assert RunningSums(BFLOAT16, (1000,)).checksum is None
