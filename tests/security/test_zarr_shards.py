"""Rows and shards made by an attacker: every number of an index is a lie until it is checked."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from msformat.dtypes import dtype_named
from msformat.errors import CorruptTensorError, FormatError, StoreError, UnsafeInputError
from msformat.stores.zarr import ZarrStore
from msformat.stores.zarr_codecs import _slow_crc32c
from tests.security.test_zarr_attacks import reindex

google_crc32c = pytest.importorskip("google_crc32c")

FLOAT32 = dtype_named("float32")
# Three chunks, the last of them half full.
BITS = np.random.default_rng(0).standard_normal((2500, 2000)).astype(np.float32)
CHUNKS = 3
TAIL = CHUNKS * 16 + 4


@pytest.fixture
def shard(tmp_path: Path) -> Path:
    """The only file of a row in shards."""
    with ZarrStore(str(tmp_path / "d.zarr"), mode="w") as store:
        store.put("x", BITS, FLOAT32)
    return tmp_path / "d.zarr/tensors/0/0.0.0"


def read_index(shard: Path) -> np.ndarray[Any, Any]:
    return np.frombuffer(shard.read_bytes()[-TAIL:-4], "<u8").reshape(-1, 2).copy()


def with_index(shard: Path, index: np.ndarray[Any, Any]) -> None:
    data = index.astype("<u8").tobytes()
    shard.write_bytes(shard.read_bytes()[:-TAIL] + data + google_crc32c.value(data).to_bytes(4, "little"))


def read(shard: Path, selection: Any = ...) -> np.ndarray[Any, Any]:
    with ZarrStore(str(shard.parents[2])) as store:
        return store.get("x").bits(selection)


def test_the_layout_is_what_the_specification_says(shard: Path) -> None:
    index = read_index(shard)
    data = shard.read_bytes()
    assert index[:, 1].sum() + TAIL == len(data)
    assert google_crc32c.value(data[-TAIL:-4]) == int.from_bytes(data[-4:], "little") == _slow_crc32c(data[-TAIL:-4])
    assert not [path for path in shard.parent.iterdir() if path.name not in ("zarr.json", "0.0.0")]


LIES: dict[str, Callable[[np.ndarray[Any, Any], int], None]] = {
    "outside": lambda index, size: index.__setitem__((1, 0), size - 3),
    "longer": lambda index, size: index.__setitem__((1, 1), size),
    "overflow": lambda index, size: index.__setitem__((1, 0), (1 << 64) - 8),
    "half missing": lambda index, size: index.__setitem__((1, 1), (1 << 64) - 1),
    "twice": lambda index, size: index.__setitem__(1, index[0]),
    "over another": lambda index, size: index.__setitem__((1, 0), index[0, 0] + 16),
    "swapped": lambda index, size: index.__setitem__(slice(2), index[1::-1].copy()),
    "empty": lambda index, size: index.__setitem__((1, 1), 0),
    "missing": lambda index, size: index.__setitem__(1, (1 << 64) - 1),
}


@pytest.mark.parametrize("lie", LIES)
def test_an_index_that_lies(shard: Path, lie: str) -> None:
    index = read_index(shard)
    LIES[lie](index, shard.stat().st_size)
    with_index(shard, index)
    with ZarrStore(str(shard.parents[2])) as store, pytest.raises(CorruptTensorError, match="'x'"):
        store.get("x").verify()
    if lie == "missing":
        assert np.array_equal(read(shard, np.s_[:10]), BITS[:10])


def test_damage(shard: Path) -> None:
    good = shard.read_bytes()
    for length in (0, 3, TAIL - 1, TAIL, len(good) // 2, len(good) - 1):
        shard.write_bytes(good[:length])
        with pytest.raises(CorruptTensorError, match="shard is corrupt"):
            read(shard, 0)
    shard.write_bytes(good[:-20] + bytes([good[-20] ^ 1]) + good[-19:])
    with pytest.raises(CorruptTensorError, match="crc32c"):
        read(shard, 0)
    shard.unlink()
    with pytest.raises(CorruptTensorError, match="chunk cannot be read"):
        read(shard, 0)


def configuration(shard: Path, **lies: Any) -> None:
    node = shard.parent / "zarr.json"
    found = json.loads(node.read_text())
    grid = lies.pop("grid", None)
    if grid:
        found["chunk_grid"]["configuration"]["chunk_shape"] = grid
    found["codecs"][0]["configuration"].update(lies)
    node.write_text(json.dumps(found))


@pytest.mark.parametrize(
    ("lies", "error"),
    [
        ({"chunk_shape": [1, 7, 2000]}, FormatError),
        ({"chunk_shape": [1, 0, 2000]}, FormatError),
        ({"chunk_shape": [1, 2000]}, FormatError),
        ({"chunk_shape": None}, FormatError),
        ({"index_location": "middle"}, FormatError),
        ({"index_codecs": ["bytes", "zstd"]}, StoreError),
        ({"index_codecs": None}, StoreError),
        ({"index_codecs": [{"name": "bytes", "configuration": {"endian": "odd"}}]}, FormatError),
        ({"codecs": ["bytes", "numcodecs.pickle"]}, UnsafeInputError),
        ({"codecs": [{"name": "sharding_indexed", "configuration": {}}]}, StoreError),
        ({"grid": [1, 1 << 40, 1 << 20], "chunk_shape": [1, 1, 1]}, UnsafeInputError),
        ({"grid": [1, 1 << 31, 2000], "chunk_shape": [1, 1 << 31, 2000]}, UnsafeInputError),
    ],
    ids=str,
)
def test_metadata_that_lies_about_shards(shard: Path, lies: dict[str, Any], error: type[Exception]) -> None:
    configuration(shard, **lies)
    with pytest.raises(error, match="tensors/0"):
        read(shard, 0)


@pytest.mark.parametrize("row", [1, 1 << 62, -1, 1 << 70, "0", None])
def test_a_row_that_is_none(shard: Path, row: Any) -> None:
    unit = shard.parents[2]
    reindex(unit, {"x": {"array": "tensors/0", "row": row, "dtype": "float32", "shape": list(BITS.shape)}})
    with pytest.raises((CorruptTensorError, FormatError), match=r"'x'|line 1"):
        read(shard, 0)


def test_a_pack_has_no_rows(shard: Path) -> None:
    place = {"pack": "packs/0", "offset": 0, "row": 0, "dtype": "float32", "shape": [1]}
    reindex(shard.parents[2], {"x": place})
    with pytest.raises(FormatError, match="no rows"):
        ZarrStore(str(shard.parents[2]))


def test_a_link_out_of_the_store(shard: Path, tmp_path: Path) -> None:
    shard.rename(tmp_path / "outside")
    shard.symlink_to(tmp_path / "outside")
    with pytest.raises(UnsafeInputError):
        read(shard, 0)
