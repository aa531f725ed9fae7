"""Unpacking chunks beside HDF5 gives what plain h5py gives for the same file, or an error that names the tensor."""

from __future__ import annotations

import ctypes
import itertools
import threading
import tracemalloc
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from msformat.dtypes import dtype_from_numpy, dtype_named
from msformat.errors import CorruptTensorError, StoreError
from msformat.stores import hdf5, hdf5_chunks, hdf5_read
from msformat.stores.base import StoreOptions
from msformat.stores.codecs import chunk_shape
from msformat.stores.hdf5 import Hdf5Store

FLOAT32 = dtype_named("float32")


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "dump.h5")


@pytest.fixture(params=["isal", "zlib"])
def library(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "zlib":
        monkeypatch.setattr(hdf5_chunks, "_isal", None)
    return str(request.param)


def write(path: str, array: NDArray[Any], chunks: tuple[int, ...], **how: Any) -> None:
    with h5py.File(path, "w") as file:
        file.create_group("tensors").create_dataset("x", data=array, chunks=chunks, **how)


def write_raw(path: str, array: NDArray[Any], chunk: tuple[int, ...], raw: list[tuple[bytes, int]]) -> None:
    """A dataset with shuffle and deflate whose stored chunks are given."""
    with h5py.File(path, "w") as file:
        group = file.create_group("tensors")
        dataset = group.create_dataset("x", array.shape, array.dtype, chunks=chunk, compression=1, shuffle=True)
        grid = itertools.product(*(range(0, length, part) for length, part in zip(array.shape, chunk, strict=True)))
        for offset, (data, mask) in zip(grid, raw, strict=True):
            dataset.id.write_direct_chunk(offset, data, mask)


def shuffle(data: bytes, itemsize: int) -> bytes:
    return np.frombuffer(data, np.uint8).reshape(-1, itemsize).T.tobytes()


class Calls:
    """How often HDF5 was left to read."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.count = 0
        real = hdf5_read._read_by_hdf5

        def counted(*args: Any) -> None:
            self.count += 1
            real(*args)

        monkeypatch.setattr(hdf5_read, "_read_by_hdf5", counted)


@pytest.fixture
def by_hdf5(monkeypatch: pytest.MonkeyPatch) -> Calls:
    return Calls(monkeypatch)


# --- what comes out --------------------------------------------------------------------------------------------------

_TYPES = ("<f4", "<f2", "<f8", "<i8", "<u2", "|u1", "|i1", "|b1", "<c8", "<c16", ">f4", ">i2")


@st.composite
def _datasets(draw: st.DrawFn) -> tuple[NDArray[Any], dict[str, Any], Any, int]:
    shape = tuple(draw(st.lists(st.integers(1, 9), min_size=1, max_size=3)))
    chunks = tuple(draw(st.integers(1, length)) for length in shape)
    dtype = np.dtype(draw(st.sampled_from(_TYPES)))
    rng = np.random.default_rng(draw(st.integers(0, 9)))
    bits = rng.integers(0, draw(st.sampled_from((2, 256))), (*shape, dtype.itemsize), np.uint8)
    array = bits.view(dtype)[..., 0] if dtype.kind != "b" else bits[..., 0] > 0
    how = {
        "chunks": chunks,
        "compression": draw(st.sampled_from((None, "gzip", "lzf"))),
        "shuffle": draw(st.booleans()),
        "fletcher32": draw(st.integers(0, 5)) == 0,
    }
    selection = tuple(draw(st.slices(length)) for length in shape)
    return array, how, draw(st.sampled_from((..., selection))), draw(st.integers(0, 2))


@given(_datasets())
@settings(deadline=None, max_examples=150)
def test_any_dataset_reads_as_with_plain_h5py(tmp_path_factory: pytest.TempPathFactory, given_: Any) -> None:
    array, how, selection, threads = given_
    path = str(tmp_path_factory.mktemp("any") / "x.h5")
    write(path, array, **how)
    with h5py.File(path) as file:
        expected = file["tensors/x"][()][selection]
    with Hdf5Store(path, options=StoreOptions(threads=threads)) as store:
        found = store.get("x").bits(selection)
        # Complex and bool have bits of another numpy type than their values.
        assert found.tobytes() == expected.astype(expected.dtype.newbyteorder("<")).tobytes()
        assert found.flags.owndata or found.base is not None
        assert found.flags.writeable


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_our_own_datasets_are_unpacked_here(
    path: str, threads: int, library: str, by_hdf5: Calls, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(hdf5, "chunk_shape", lambda shape, itemsize: chunk_shape(shape, itemsize, target=20_000))
    rng = np.random.default_rng(threads)
    arrays: dict[str, tuple[NDArray[Any], str]] = {
        "rows": (rng.standard_normal((1234, 17)).astype(np.float32), "float32"),
        "cut last axis": (np.arange(3 * 50_000, dtype=np.int64).reshape(3, 50_000), "int64"),
        "noise": (rng.integers(0, 256, 100_003).astype(np.uint8), "uint8"),
        "bool": (rng.integers(0, 256, 70_000).astype(np.uint8).view(np.bool_), "bool"),
        "bfloat16": (rng.integers(0, 65536, (300, 70)).astype(np.uint16), "bfloat16"),
        "complex": (rng.standard_normal(20_001).astype(np.float32).repeat(2).view(np.complex64), "complex64"),
    }
    with Hdf5Store(path, mode="w") as store:
        for key, (array, name) in arrays.items():
            store.put(key, array, dtype_named(name))
    by_hdf5.count = 0
    with Hdf5Store(path, options=StoreOptions(threads=threads)) as store, h5py.File(path) as file:
        for key, (array, _) in arrays.items():
            found = store.get(key).bits()
            assert found.tobytes() == array.tobytes() == file["tensors"][key][()].tobytes(), key
            store.get(key).verify()
    assert by_hdf5.count == 0


def test_slices_that_take_little_are_left_to_hdf5(path: str, by_hdf5: Calls) -> None:
    array = np.arange(100_000, dtype=np.float32).reshape(100, 1000)
    write(path, array, (10, 1000), compression=1, shuffle=True)
    cases: list[tuple[Any, int]] = [
        (..., 0),
        (slice(20, 40), 0),  # two chunks
        (slice(3, 17), 0),  # most of two chunks
        ((slice(None), slice(0, 700)), 0),
        (slice(5, 6), 1),
        ((slice(None), slice(0, 400)), 1),
        (slice(None, None, 2), 1),
        (slice(None, None, -1), 0),
        (7, 1),
    ]
    with Hdf5Store(path) as store:
        for selection, left in cases:
            by_hdf5.count = 0
            assert store.get("x").bits(selection).tobytes() == array[selection].tobytes()
            assert by_hdf5.count == left, selection


@pytest.mark.parametrize("how", [{"compression": "lzf"}, {"fletcher32": True, "compression": 1}, {}])
def test_other_filters_are_left_to_hdf5(path: str, how: dict[str, Any], by_hdf5: Calls) -> None:
    array = np.arange(5000, dtype=np.int32)
    write(path, array, (700,), **how)
    with Hdf5Store(path) as store:
        assert store.get("x").bits().tobytes() == array.tobytes()
    assert by_hdf5.count == 1


def test_an_h5py_without_direct_reads_reads_all(path: str, by_hdf5: Calls, monkeypatch: pytest.MonkeyPatch) -> None:
    array = np.arange(5000, dtype=np.int32)
    write(path, array, (700,), compression=1)
    monkeypatch.setattr(hdf5_read, "hasattr", lambda *_: False, raising=False)
    with Hdf5Store(path) as store:
        assert store.get("x").bits().tobytes() == array.tobytes()
    assert by_hdf5.count == 1


def test_each_chunk_says_which_filters_were_skipped(path: str, by_hdf5: Calls, library: str) -> None:
    array = np.arange(4 * 1000, dtype=np.uint32)
    raw = []
    for mask, part in enumerate(array.reshape(4, 1000)):
        data = part.tobytes() if mask & 1 else shuffle(part.tobytes(), 4)
        raw.append((data if mask & 2 else zlib.compress(data), mask))
    write_raw(path, array, (1000,), raw)
    with h5py.File(path) as file:
        assert file["tensors/x"][()].tobytes() == array.tobytes()
    with Hdf5Store(path) as store:
        assert store.get("x").bits().tobytes() == array.tobytes()
    assert by_hdf5.count == 0


def test_what_follows_a_stream_is_ignored(path: str, library: str) -> None:
    array = np.arange(1000, dtype=np.uint32)
    write_raw(path, array, (1000,), [(zlib.compress(shuffle(array.tobytes(), 4)) + b"more", 0)])
    with Hdf5Store(path) as store, h5py.File(path) as file:
        assert store.get("x").bits().tobytes() == file["tensors/x"][()].tobytes() == array.tobytes()


def _set_chunk_opts() -> Any:
    """H5Pset_chunk_opts, which h5py does not wrap, out of the library that h5py has loaded."""
    for line in Path("/proc/self/maps").read_text().splitlines() if Path("/proc/self/maps").exists() else ():
        name = line.split(maxsplit=5)[-1]
        if "libhdf5" in name and "_hl" not in name:
            function = ctypes.CDLL(name).H5Pset_chunk_opts
            function.argtypes = [ctypes.c_int64, ctypes.c_uint]
            return function
    return None


def test_chunks_that_stick_out_may_be_stored_unpacked(path: str, by_hdf5: Calls) -> None:
    set_chunk_opts = _set_chunk_opts()
    if set_chunk_opts is None:
        pytest.skip("HDF5's library was not found")
    array = np.arange(2500, dtype=np.float32)
    with h5py.File(path, "w", libver="latest") as file:
        plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plan.set_chunk((1000,))
        plan.set_shuffle()
        plan.set_deflate(1)
        assert set_chunk_opts(plan.id, 2) == 0  # H5D_CHUNK_DONT_FILTER_PARTIAL_CHUNKS
        space = h5py.h5s.create_simple(array.shape)
        dataset = h5py.h5d.create(file.create_group("tensors").id, b"x", h5py.h5t.IEEE_F32LE, space, plan)
        dataset.write(h5py.h5s.ALL, h5py.h5s.ALL, array)
    with Hdf5Store(path) as store:
        assert store.get("x").bits().tobytes() == array.tobytes()
    assert by_hdf5.count == 1


# --- damage ----------------------------------------------------------------------------------------------------------


def _damaged(whole: bytes) -> Iterator[tuple[str, bytes]]:
    yield "zeros", bytes(len(whole))
    yield "no stream", b"\xff" * len(whole)
    yield "raw without a mask", bytes(range(256)) * 500
    for cut in (1, 4, 5, len(whole) // 2, len(whole) - 1):
        yield f"{cut} bytes missing", whole[:-cut]
    rng = np.random.default_rng(0)
    for at in rng.integers(0, len(whole), 150):
        yield f"bit of byte {at}", whole[:at] + bytes([whole[at] ^ 1 << int(rng.integers(8))]) + whole[at + 1 :]


def test_damage_is_an_error_that_names_the_tensor(path: str, library: str) -> None:
    array = np.cumsum(np.random.default_rng(0).standard_normal(32_000)).astype(np.float32)
    whole = zlib.compress(shuffle(array.tobytes(), 4), 1)
    for what, data in _damaged(whole):
        write_raw(path, array, array.shape, [(data, 0)])
        with Hdf5Store(path) as store, pytest.raises(CorruptTensorError, match="'x'"):
            pytest.fail(f"{what} went unseen: {store.get('x').bits()[:3]}")


@pytest.mark.parametrize("size", [3999, 4001, 1])
@pytest.mark.parametrize("mask", [0, 1, 2, 3])
def test_chunks_of_another_size_are_refused(path: str, size: int, mask: int, library: str) -> None:
    data = bytes(size) if mask & 2 else zlib.compress(bytes(size))
    write_raw(path, np.zeros(1000, np.float32), (1000,), [(data, mask)])
    with Hdf5Store(path) as store, pytest.raises(CorruptTensorError, match="'x'"):
        store.get("x").bits()


@pytest.mark.parametrize("length", [1000, 999])
def test_a_bomb_unpacks_no_more_than_a_chunk(path: str, length: int, library: str) -> None:
    bomb = zlib.compress(bytes(64 << 20), 9)
    # As long as a raw chunk would be, so that one which sticks out could pass for one.
    part = len(bomb) // 4 + 1
    write_raw(path, np.zeros(part * 2 - 1000 + length, np.float32), (part,), [(bomb.ljust(part * 4, b"\0"), 0)] * 2)
    # One thread: stopping tracemalloc while another allocates without the GIL crashes CPython 3.11 (gh-128679).
    with Hdf5Store(path, options=StoreOptions(threads=0)) as store:
        tracemalloc.start()
        try:
            with pytest.raises(CorruptTensorError, match=r"'x'.*unpacks to more"):
                store.get("x").bits()
            assert tracemalloc.get_traced_memory()[1] < 4 << 20
        finally:
            tracemalloc.stop()


def test_an_error_in_a_thread_reaches_the_reader(path: str) -> None:
    array = np.arange(50_000, dtype=np.float32)
    good = [zlib.compress(shuffle(part.tobytes(), 4)) for part in array.reshape(50, 1000)]
    for bad in (0, 1, 25, 49):
        write_raw(path, array, (1000,), [(b"bad" if at == bad else data, 0) for at, data in enumerate(good)])
        with Hdf5Store(path, options=StoreOptions(threads=2)) as store, pytest.raises(CorruptTensorError, match="'x'"):
            store.get("x").bits()


def test_readers_share_the_threads(path: str) -> None:
    array = np.random.default_rng(0).standard_normal(300_000).astype(np.float32)
    write(path, array, (10_000,), compression=1, shuffle=True)
    wrong: list[int] = []
    with Hdf5Store(path, options=StoreOptions(threads=2)) as store:

        def read(number: int) -> None:
            wrong.extend(number for _ in range(8) if store.get("x").bits().tobytes() != array.tobytes())

        threads = [threading.Thread(target=read, args=(number,)) for number in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []


def test_what_waits_to_be_written_is_read(path: str) -> None:
    array = np.random.default_rng(0).standard_normal(300_000).astype(np.float32)
    with Hdf5Store(path, mode="w") as store:
        for number in range(4):
            store.put(str(number), array + number, dtype_from_numpy(array.dtype))
            assert store.get(str(number)).bits().tobytes() == (array + number).astype(np.float32).tobytes()


def test_another_file_in_its_place_is_not_read_as_what_was_looked_up(path: str) -> None:
    """HDF5 would write all of the larger tensor behind the memory of the smaller one."""
    for shape in ((8,), (1 << 20,)):
        Path(path).unlink(missing_ok=True)
        write(path, np.ones(shape, np.float32), shape)
        if shape == (8,):
            store = Hdf5Store(path)
            tensor = store.get("x")
            store._release(commit=False)  # as in a process that received the store; it opens the file anew
    with store, pytest.raises(StoreError, match="another tensor of this name"):
        tensor.bits()


class Witness:
    """A dataset that notes whether other threads can be in HDF5 while it is asked."""

    def __init__(self, dataset: Any) -> None:
        self._dataset = dataset
        self.alone: list[bool] = []

    def _look(self) -> None:
        def enter() -> None:
            entered = h5py._objects.phil.acquire(blocking=False)
            self.alone.append(not entered)
            if entered:
                h5py._objects.phil.release()

        thread = threading.Thread(target=enter)
        thread.start()
        thread.join()

    def read_direct_chunk(self, offset: tuple[int, ...]) -> Any:
        self._look()
        return self._dataset.read_direct_chunk(offset)

    def write_direct_chunk(self, *args: Any) -> None:
        self._look()
        self._dataset.write_direct_chunk(*args)


def test_one_thread_is_in_hdf5_at_a_time(path: str) -> None:
    """h5py 3.8 itself does not see to it where chunks are read and written directly."""
    array = np.arange(50_000, dtype=np.float32)
    store = Hdf5Store(path, mode="w", options=StoreOptions(threads=0))
    with store:
        store.put("x", array, FLOAT32)
        store.get("x").bits()
        found = store._opened("x")
        witness, packed = Witness(found.dataset), found._packed
        assert packed is not None
        slices, bits = (slice(0, 50_000, 1),), np.empty_like(array)
        hdf5_read._read_packed(witness, slices, bits, packed, store._pipeline)
        store._write_chunk(witness, (0,), hdf5_chunks.ChunkFilter(1, shuffle=True).pack(array.view(np.uint8), 4))
        assert witness.alone == [True, True]
        assert bits.tobytes() == store.get("x").bits().tobytes() == array.tobytes()
