"""A store that msformat wrote in the first layout of its Zarr stores (an array for each large tensor) is still read."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path

import numpy as np
import pytest

from msformat.dtypes import dtype_named
from msformat.stores.zarr import ZarrStore

pytest.importorskip("numcodecs")

STORE = Path(__file__).parent / "data/stores/zarr_layout_1.zip"
ROWS = (np.arange(3000 * 1000, dtype=np.float32) // 1000).reshape(3000, 1000)
COUNT = np.arange(40_000, dtype=np.uint16)
WANTED = {
    "chunked.pt": ("float32", ROWS),
    "one.pt": ("bfloat16", COUNT),
    "shape.pt": ("bfloat16", COUNT.reshape(200, 200)),
    "alias.pt": ("bfloat16", COUNT),
    "a/b": ("float32", np.full(20_000, 7, np.float32)),
    "small.pt": ("float32", np.arange(5, dtype=np.float32)),
}


@pytest.fixture
def old(tmp_path: Path) -> str:
    zipfile.ZipFile(STORE).extractall(tmp_path)
    return str(tmp_path / "d.zarr")


def check(store: ZarrStore) -> None:
    for key, (dtype, bits) in WANTED.items():
        stored = store.get(key)
        stored.verify()
        assert stored.dtype.name == dtype
        assert np.array_equal(stored.bits(), bits)
        assert np.array_equal(stored.bits(np.s_[3:70:9]), bits[3:70:9])
    assert store.get_document("dump.json") == b"{}"


def test_it_is_read(old: str) -> None:
    assert ZarrStore.groups(old) == ("step0/rank0",)
    store = ZarrStore(old, group="step0/rank0")
    assert list(store.keys()) == list(WANTED)
    check(store)


def test_it_is_added_to_and_says_so(old: str) -> None:
    """An older msformat must refuse what it would misread."""
    with ZarrStore(old, mode="a", group="step0/rank0") as store:
        store.put("again", COUNT, dtype_named("bfloat16"))
        store.put("new", ROWS + 1, dtype_named("float32"))
    reread = ZarrStore(old, group="step0/rank0")
    assert list(reread.keys()) == [*WANTED, "again", "new"]
    check(reread)
    assert np.array_equal(reread.get("new").bits(np.s_[2999]), ROWS[2999] + 1)
    assert reread.get("again").identity == reread.get("one.pt").identity
    group = json.loads((Path(old) / "step0/rank0/zarr.json").read_text())
    assert group["attributes"]["msformat"]["layout"] == 2


def test_without_its_index_the_arrays_are_found_by_name(old: str) -> None:
    unit = Path(old) / "step0/rank0"
    (unit / "documents/index.json/zarr.json").unlink()
    store = ZarrStore(old, group="step0/rank0")
    assert {"chunked.pt", "one.pt", "a/b"} <= set(store.keys())
    assert np.array_equal(store.get("a/b").bits(), WANTED["a/b"][1])
