"""Shards being written: equal tensors make equal files, what fails leaves nothing, an object has a limit."""

from __future__ import annotations

import itertools
import json
import math
import os
import random
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from msformat.dtypes import dtype_named
from msformat.errors import StoreError
from msformat.stores import zarr_remote, zarr_write
from msformat.stores.base import StoreOptions
from msformat.stores.codecs import chunk_shape, parse_compression, shard_shape
from msformat.stores.zarr import ZarrStore
from msformat.stores.zarr_codecs import Encoder, array_encoder
from msformat.stores.zarr_shards import FileShard
from msformat.stores.zarr_stacks import Cut
from msformat.stores.zarr_write import ArrayWriter

pytest.importorskip("numcodecs")

FLOAT32 = dtype_named("float32")
# Six chunks, the last of them not full.
BITS = np.arange(47 << 18, dtype=np.float32).reshape(47, 512, 512)


def files_below(folder: Path) -> dict[str, bytes]:
    return {str(path.relative_to(folder)): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("order", list(itertools.permutations((0, 1, 3))))
def test_chunks_lie_in_the_order_of_the_index(tmp_path: Path, order: tuple[int, ...]) -> None:
    path, done = tmp_path / "shard", []
    shard = FileShard(str(path), 5, (0, 1, 3), done.append, begin=False)
    for position in order:
        assert not path.exists()
        shard.add(position, bytes([position]) * (4 + position))
    assert done == [str(path)]
    data = path.read_bytes()
    missing = (1 << 64) - 1
    assert data[:16] == b"\0\0\0\0\1\1\1\1\1\3\3\3\3\3\3\3"
    assert np.frombuffer(data[16:-4], "<u8").reshape(5, 2).tolist() == [
        *([0, 4], [4, 5], [missing, missing], [9, 7], [missing, missing])
    ]
    assert [each.name for each in tmp_path.iterdir()] == ["shard"]


def test_a_store_is_the_same_whichever_thread_is_faster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    real, pause = zarr_write._chunk, random.Random(5)

    def in_its_own_time(*arguments: Any) -> Any:
        time.sleep(pause.choice((0, 0.005, 0.02)))
        return real(*arguments)

    monkeypatch.setattr(zarr_write, "_chunk", in_its_own_time)
    for name in ("one", "other"):
        with ZarrStore(str(tmp_path / name), mode="w", options=StoreOptions(threads=4, durability="process")) as store:
            for number in range(3):
                store.put(f"x{number}", BITS + number, FLOAT32, owned=True)
            store.put("flat", BITS.reshape(-1), FLOAT32, owned=True)
    assert files_below(tmp_path / "one") == files_below(tmp_path / "other")


@pytest.mark.parametrize("threads", [0, 3])
@pytest.mark.parametrize("bad", range(6))
def test_a_chunk_that_fails_leaves_no_shard(tmp_path: Path, threads: int, bad: int) -> None:
    def encode(chunk: np.ndarray[Any, Any]) -> bytes:
        if chunk.flat[0] == BITS[8 * bad].flat[0]:
            raise OSError(28, "No space left on device")
        return chunk.tobytes()

    (tmp_path / "tensors").mkdir()
    writer = ArrayWriter(str(tmp_path), threads, fsync=False)
    with pytest.raises(StoreError, match="'x': No space left"):
        writer.write("tensors/0", BITS, Encoder(None, encode), key="x", owned=False, row=0)
    writer.close()
    assert list((tmp_path / "tensors/0").iterdir()) == []


SHAPES = st.lists(st.integers(1, 12), min_size=1, max_size=4).map(tuple)


@settings(max_examples=30, deadline=None)
@given(shape=SHAPES, data=st.data())
def test_the_same_bytes_cut_alike_are_the_same_file(
    shape: tuple[int, ...], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """What hard links rely on."""
    root = tmp_path_factory.mktemp("alike")
    count = math.prod(shape)
    divisors = [number for number in range(1, count + 1) if count % number == 0]
    first = data.draw(st.sampled_from(divisors))
    target = data.draw(st.sampled_from((16, 40, 64, 100)))
    made = {}
    writer = ArrayWriter(str(root), 0, fsync=False)
    for each in {shape, (count,), (first, count // first), (count // first, 1, first)}:
        chunks = chunk_shape(each, 4, target)
        cut = Cut(each, shard_shape(each, chunks, 4, 4 * count + 2 * target), chunks)
        node = "x".join(map(str, each))
        bits = np.arange(count, dtype=np.float32).reshape(each) + 1
        writer.write(node, bits, array_encoder(parse_compression("none"), 4), key="x", owned=False, row=0, cut=cut)
        files = [path for path in (root / node).iterdir() if path.name != "zarr.json"]
        if cut.layout is not None:
            assert len(files) == 1
            made.setdefault((cut.layout, cut.shards is None), set()).add(files[0].read_bytes())
    assert all(len(contents) == 1 for contents in made.values()), made
    assert len({layout for layout, _ in made}) == len(made)


def test_metadata_that_replaces_what_was_promised_is_on_disk_first(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A loss of power after the rename must not leave an empty zarr.json where synced rows hang on."""
    seen: list[tuple[str, int]] = []
    fsync, replace = os.fsync, os.replace

    def synced(descriptor: int) -> None:
        seen.append(("fsync", os.fstat(descriptor).st_ino))
        fsync(descriptor)

    def replaced(source: str, target: str) -> None:
        if str(target).endswith("tensors/0/zarr.json"):
            seen.append(("replace", os.stat(source).st_ino))
        replace(source, target)

    with ZarrStore(str(tmp_path / "d.zarr"), mode="w") as store:
        store.put("a", BITS[0], FLOAT32)
        store.sync()
        monkeypatch.setattr(os, "fsync", synced)
        monkeypatch.setattr(os, "replace", replaced)
        store.put("b", BITS[1], FLOAT32)
        store.sync()
    (inode,) = [inode for what, inode in seen if what == "replace"]
    assert seen.index(("fsync", inode)) < seen.index(("replace", inode))
    assert json.loads((tmp_path / "d.zarr/tensors/0/zarr.json").read_text())["shape"] == [2, 512, 512]


def test_objects_are_uploaded_as_soon_as_they_are_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    """A tensor of many objects must not lie in memory a second time."""
    fsspec: Any = pytest.importorskip("fsspec")
    monkeypatch.setattr(zarr_remote, "_SHARD_BYTES", 16 << 20)
    monkeypatch.setattr(zarr_remote, "_THREADS", 2)
    held, most, lock = [0], [0], threading.Lock()
    sizes: list[int] = []
    put, seal = zarr_remote._ObjectShard._put, zarr_remote._ObjectShard._seal

    def count(nbytes: int) -> None:
        with lock:
            held[0] += nbytes
            most[0] = max(most[0], held[0])

    def counted_put(self: Any, start: int, data: Any) -> None:
        put(self, start, data)
        count(len(data))

    def counted_seal(self: Any) -> None:
        sizes.append(sum(map(len, self._parts.values())))
        seal(self)
        count(-sizes[-1])

    monkeypatch.setattr(zarr_remote._ObjectShard, "_put", counted_put)
    monkeypatch.setattr(zarr_remote._ObjectShard, "_seal", counted_seal)
    big = np.arange(40 << 20, dtype=np.float32)  # 160 MiB
    options = StoreOptions(compression="none", threads=2)
    try:
        with zarr_remote.RemoteZarrStore("memory://shards/d.zarr", options=options) as remote:
            remote.put("x", big, FLOAT32, owned=True)
        assert len(sizes) == 10
        assert max(sizes) <= (16 << 20) + 100
        assert most[0] < 5 * (16 << 20)
        with ZarrStore("memory://shards/d.zarr") as store:
            assert np.array_equal(store.get("x").numpy(), big)
    finally:
        fsspec.filesystem("memory").store.clear()
