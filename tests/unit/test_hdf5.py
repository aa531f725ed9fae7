"""What the HDF5 store does beyond the shared contract."""

from __future__ import annotations

import math
import multiprocessing
import os
import pickle
import subprocess
import sys
import threading
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from msformat.dtypes import dtype_from_numpy, dtype_named
from msformat.errors import CorruptTensorError, FormatError, StoreError
from msformat.stores import hdf5, hdf5_chunks
from msformat.stores.base import StoreOptions
from msformat.stores.codecs import chunk_shape
from msformat.stores.hdf5 import Hdf5Store
from msformat.stores.hdf5_links import escape, unescape
from msformat.stores.hdf5_paged import PAGE, PagedFile, side_path

ROOT = Path(__file__).resolve().parents[2]
FLOAT32 = dtype_named("float32")
UINT8 = dtype_named("uint8")


@pytest.fixture
def path(tmp_path: Path) -> str:
    return str(tmp_path / "dump.h5")


def make(path: str, mode: Any = "w", group: str = "", **options: Any) -> Hdf5Store:
    return Hdf5Store(path, mode=mode, group=group, options=StoreOptions(**options))


# --- names -----------------------------------------------------------------------------------------------------------


@given(st.lists(st.text(st.characters(codec=None, exclude_categories=())), min_size=2, max_size=2, unique=True))
@settings(deadline=None, max_examples=300)
def test_link_names_are_reversible_and_injective(keys: list[str]) -> None:
    names = [escape(key) for key in keys]
    assert [unescape(name) for name in names] == keys
    assert names[0] != names[1]
    for name in names:
        assert name not in (b"", b".", b"..")
        assert not {0, ord("/")} & set(name)


def test_foreign_names_are_their_own_keys(path: str) -> None:
    foreign = [b"100%", b"%41", b"%2f", b"\xff\xfe", b"a%zz", "é".encode()]
    with h5py.File(path, "w") as file:
        group = file.create_group("tensors")
        for number, name in enumerate(foreign):
            group[name] = np.full(3, number, np.int32)
    with Hdf5Store(path) as store:
        keys = list(store.keys())
        assert len(set(keys)) == len(foreign)
        assert sorted(int(store.get(key)[0]) for key in keys) == list(range(len(foreign)))
        assert "100%" in store
        assert store.get("100%").key == "100%"


def test_very_long_keys(path: str) -> None:
    with make(path) as store:
        for length in (65_000, 65_536, 200_000):
            store.put("k" * length, np.zeros(1, np.float32), FLOAT32)
    with h5py.File(path) as file:
        assert [len(name) for name in file["tensors"]] == [65_000, 65_536, 200_000]


# --- bits ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("repeats", [1, 1000])
def test_bools_keep_any_byte(path: str, repeats: int) -> None:
    values = np.tile(np.arange(256, dtype=np.uint8), repeats).view(np.bool_)
    with make(path) as store:
        store.put("b", values, dtype_named("bool"))
    with Hdf5Store(path) as store:
        assert store.get("b").bits().tobytes() == values.tobytes()
        assert store.get("b").bits(slice(3, 90, 7)).tobytes() == values[3:90:7].tobytes()
    with h5py.File(path) as file:
        assert file["tensors/b"].dtype == np.bool_
        assert file["tensors/b"][()].tobytes() == values.tobytes()


@pytest.mark.parametrize("threads", [0, 1, 3])
@pytest.mark.parametrize("compression", ["auto", "gzip:0", "gzip:4", "gzip:2+noshuffle", "none"])
def test_plain_h5py_unpacks_what_threads_packed(
    path: str, threads: int, compression: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    # Chunks of 20 KB make every array here many of them, the last ones sticking out.
    monkeypatch.setattr(hdf5, "chunk_shape", small_chunks)
    rng = np.random.default_rng(threads)
    arrays = {
        "cut rows": rng.standard_normal((1234, 17)).astype(np.float32),
        "cut last axis": np.arange(3 * 50_000, dtype=np.int64).reshape(3, 50_000),
        "cut middle": rng.standard_normal((2, 3, 701, 5)).astype(np.float16),
        "flat": rng.integers(0, 9, 100_003).astype(np.uint8),
        "random bytes": rng.integers(0, 256, 100_003).astype(np.uint8),
        "complex": (rng.standard_normal((99, 100)) + 1j).astype(np.complex64),
        "one element of many": np.zeros((1, 1, 1, 40_001), np.float64),
    }
    with make(path, threads=threads, compression=compression) as store:
        for key, array in arrays.items():
            store.put(key, array, dtype_from_numpy(array.dtype))
    with h5py.File(path) as file:
        for key, array in arrays.items():
            dataset = file["tensors"][key]
            assert dataset[()].tobytes() == array.tobytes(), key
            assert dataset.compression == (None if compression == "none" else "gzip")
            assert dataset.shuffle == (compression not in ("none", "gzip:2+noshuffle"))
    with Hdf5Store(path) as store:
        for key in arrays:
            store.get(key).verify()


def small_chunks(shape: tuple[int, ...], itemsize: int) -> tuple[int, ...]:
    return chunk_shape(shape, itemsize, target=20_000)


def test_chunks_that_do_not_shrink_are_stored_as_they_are(path: str) -> None:
    noise = np.random.default_rng(0).integers(0, 256, 1 << 20).astype(np.uint8)
    with make(path) as store:
        store.put("noise", noise, UINT8)
    with h5py.File(path) as file:
        info = file["tensors/noise"].id.get_chunk_info(0)
    assert info.filter_mask == 0b11
    assert Path(path).read_bytes()[info.byte_offset : info.byte_offset + info.size] == noise.tobytes()


def _mixed(count: int) -> dict[str, np.ndarray[Any, Any]]:
    """Arrays some of whose planes look random, in every order."""
    random = np.random.default_rng(5)
    floats = random.standard_normal(count).astype(np.float32)
    planes = random.integers(0, 256, (count, 4), dtype=np.uint8)
    planes[:, 1] = 7
    planes[:, 2] = np.arange(count) % 11
    return {
        "floats": floats,
        "doubles": random.standard_normal(count),
        "bfloat16": (floats.view(np.uint32) >> 16).astype(np.uint16),
        "random, constant, periodic, random": planes.reshape(-1).view(np.uint32),
        "random at first": np.where(np.arange(count) < count // 3, planes.view(np.uint32)[:, 0], 0).astype(np.uint32),
        "noise": random.integers(0, 1 << 32, count, dtype=np.uint32),
    }


@pytest.mark.parametrize("level", [1, 3, 6])
@pytest.mark.parametrize("count", [1 << 14, 1 << 16, (1 << 17) + 13])
def test_planes_that_look_random_are_stored_in_an_ordinary_stream(
    path: str, monkeypatch: pytest.MonkeyPatch, count: int, level: int
) -> None:
    arrays = _mixed(count)
    for name, array in arrays.items():
        packed, mask = hdf5_chunks.ChunkFilter(level, shuffle=True).pack(array.view(np.uint8), array.itemsize)
        plain = np.ascontiguousarray(array.view(np.uint8).reshape(-1, array.itemsize).T).tobytes()
        if mask:
            assert bytes(packed) == array.tobytes(), name
        else:
            assert zlib.decompress(packed) == plain, name
        with monkeypatch.context() as patch:
            patch.setattr(hdf5_chunks, "_looks_random", lambda plane, engine: False)
            whole, _ = hdf5_chunks.ChunkFilter(level, shuffle=True).pack(array.view(np.uint8), array.itemsize)
        assert len(packed) < 1.02 * len(whole) + 100, name
    with make(path, compression=f"gzip:{level}") as store:
        for name, array in arrays.items():
            store.put(name, array, dtype_from_numpy(array.dtype))
    # HDF5's own filters are the judge.
    with h5py.File(path) as file:
        for name, array in arrays.items():
            assert file["tensors"][name].compression == "gzip"
            assert file["tensors"][name][:].tobytes() == array.tobytes(), name


def test_isal_and_zlib_make_the_same_kind_of_stream(monkeypatch: pytest.MonkeyPatch) -> None:
    data = np.arange(100_000, dtype=np.float32).view(np.uint8)
    how = hdf5_chunks.ChunkFilter(level=1, shuffle=False)
    fast, _ = how.pack(data, 4)
    monkeypatch.setattr(hdf5_chunks, "_isal", None)
    slow, _ = how.pack(data, 4)
    assert zlib.decompress(fast) == zlib.decompress(slow) == data.tobytes()


def test_small_tensors_carry_no_filters(path: str) -> None:
    with make(path) as store:
        store.put("tiny", np.zeros(10, np.float32), FLOAT32)
        store.put("small", np.zeros(1000, np.float32), FLOAT32)
        store.put("empty", np.zeros((0, 4), np.float32), FLOAT32)
    with h5py.File(path) as file:
        layouts = {name: dataset.id.get_create_plist().get_layout() for name, dataset in file["tensors"].items()}
        chunks = [dataset.chunks for dataset in file["tensors"].values()]
    assert layouts == {"tiny": h5py.h5d.COMPACT, "small": h5py.h5d.CONTIGUOUS, "empty": h5py.h5d.CONTIGUOUS}
    assert chunks == [None] * 3


@pytest.mark.parametrize("compression", ["zstd", "lz4", "blosc-lz4+bitshuffle", "zstd+bitshuffle"])
def test_plugins_say_how_to_get_them(path: str, compression: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "hdf5plugin", None)
    with pytest.raises(StoreError, match="pip install hdf5plugin"):
        make(path, compression=compression)
    assert not Path(path).exists()


def test_compressions_that_make_no_sense(path: str) -> None:
    with pytest.raises(StoreError, match="bitshuffle"):
        make(path, compression="gzip+bitshuffle")
    with pytest.raises(FormatError, match="choices"):
        make(path, compression="rar")


def test_slices_read_only_their_chunks(path: str) -> None:
    big = np.arange(6_000_000, dtype=np.float32).reshape(6, 1_000_000)
    with make(path) as store:
        store.put("x", big, FLOAT32)
    with h5py.File(path) as file:
        infos = [file["tensors/x"].id.get_chunk_info(number) for number in range(3)]
    # Break every chunk but the one asked for.
    data = bytearray(Path(path).read_bytes())
    for info in infos:
        if info.chunk_offset != (2, 0):
            data[info.byte_offset : info.byte_offset + info.size] = bytes(info.size)
    Path(path).write_bytes(data)
    with Hdf5Store(path) as store:
        assert store.get("x")[3, ::-500].tobytes() == big[3, ::-500].tobytes()
        with pytest.raises(CorruptTensorError, match="'x'"):
            store.get("x").bits()
        assert store.get("x")[2, 5] == big[2, 5]


# --- the pipeline ----------------------------------------------------------------------------------------------------


def test_the_pipeline_holds_a_bounded_number_of_bytes() -> None:
    gate = threading.Event()
    written: list[int] = []
    pipeline = hdf5_chunks.ChunkPipeline(1)
    size = hdf5_chunks._PENDING_LIMIT // 4

    def slow_pack() -> Any:
        assert gate.wait(60)
        return b"", 0

    for number in range(4):
        pipeline.add("k", slow_pack, size, lambda _, number=number: written.append(number))
    assert written == []
    threading.Timer(0.05, gate.set).start()
    pipeline.add("k", slow_pack, size, lambda _: written.append(4))
    assert written[:1] == [0]
    pipeline.drain()
    assert written == [0, 1, 2, 3, 4]
    pipeline.close()


def _put_and_sync(store: Hdf5Store) -> None:
    store.put("culprit", np.ones(100_000, np.float32), FLOAT32)
    store.sync()


def test_an_error_of_an_earlier_put_names_its_key(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(self: Any, data: Any, itemsize: int) -> Any:
        raise MemoryError("no memory")

    store = make(path)
    store.put("good", np.ones(5, np.float32), FLOAT32)
    store.sync()
    with monkeypatch.context() as patch:
        patch.setattr(hdf5_chunks.ChunkFilter, "pack", broken)
        with pytest.raises(StoreError, match="'culprit' could not be written: no memory"):
            _put_and_sync(store)
    with pytest.raises(StoreError, match="'culprit'"):
        store.put("later", np.ones(5, np.float32), FLOAT32)
    store.close()
    with Hdf5Store(path) as reader:
        assert list(reader.keys()) == ["good"]


def test_an_error_that_nobody_saw_yet_is_raised_by_close(path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    started = threading.Event()

    def broken(self: Any, data: Any, itemsize: int) -> Any:
        assert started.wait(60)
        raise MemoryError("no memory")

    monkeypatch.setattr(hdf5_chunks.ChunkFilter, "pack", broken)
    store = make(path)
    store.put("culprit", np.ones(100_000, np.float32), FLOAT32)
    started.set()
    with pytest.raises(StoreError, match="'culprit'"):
        store.close()
    store.close()
    with Hdf5Store(path) as reader:
        assert list(reader.keys()) == []


# --- units in one file -----------------------------------------------------------------------------------------------


def test_groups(path: str) -> None:
    for step in (0, 1):
        for rank in (0, 1):
            with make(path, "w", f"step{step}/rank{rank}") as store:
                store.put("x", np.full(3, 10 * step + rank, np.float32), FLOAT32)
    with make(path, "a", "step0/rank0") as store:
        store.put_document("dump.json", b"{}")
    assert Hdf5Store.groups(path) == ("step0/rank0", "step0/rank1", "step1/rank0", "step1/rank1")
    with Hdf5Store(path, group="step1/rank0") as store:
        assert store.get("x")[0] == 10
    with pytest.raises(StoreError, match="already holds a unit"):
        make(path, "w", "step0/rank0")
    with pytest.raises(StoreError, match="no group 'step7'"):
        Hdf5Store(path, group="step7")


def test_a_unit_is_there_from_the_start(path: str) -> None:
    store = make(path, group="step0/rank")
    with h5py.File(path, "r", locking=False) as file:
        assert sorted(file["step0/rank"]) == ["documents", "tensors"]
    store.close()


def test_groups_of_a_foreign_file(path: str) -> None:
    with h5py.File(path, "w") as file:
        file.create_group("a/b/c/d/tensors")
        file.create_group("a/b/c/d/e/tensors")
        file["model/documents/x"] = 1
        file["data"] = np.zeros(3)
        file["a/loop"] = file["a"]
        file["soft"] = h5py.SoftLink("/model")
        file["elsewhere"] = h5py.ExternalLink("other.h5", "/")
        file["not/tensors"] = np.zeros(2)
    assert Hdf5Store.groups(path) == ("a/b/c/d", "model")


# --- files -----------------------------------------------------------------------------------------------------------


def test_errors_on_opening(path: str, tmp_path: Path) -> None:
    with make(path) as store:
        store.put("x", np.zeros(50_000, np.float32), FLOAT32)
    whole = Path(path).read_bytes()
    cases: dict[str, tuple[bytes, str]] = {
        "text": (b"no HDF5 at all" * 100, "is not an HDF5 file"),
        "cut": (whole[: len(whole) // 2], "is cut off"),
        "head": (whole[:7], "is not an HDF5 file"),
    }
    for name, (data, message) in cases.items():
        (tmp_path / name).write_bytes(data)
        for mode in ("r", "a"):
            with pytest.raises(StoreError, match=message) as caught:
                Hdf5Store(str(tmp_path / name), mode=mode)  # type: ignore[arg-type]
            assert str(tmp_path / name) in str(caught.value)
        assert (tmp_path / name).read_bytes() == data
    (tmp_path / "empty").touch()
    os.mkfifo(tmp_path / "fifo")
    for wrong in ("empty", "fifo", "", "missing"):
        with pytest.raises(StoreError):
            Hdf5Store(str(tmp_path / wrong))
    with make(str(tmp_path / "empty")) as store:
        store.put("x", np.zeros(3, np.float32), FLOAT32)
    with h5py.File(tmp_path / "empty") as file:
        assert list(file["tensors"]) == ["x"]
    with pytest.raises(StoreError, match="cannot be written"):
        make(str(tmp_path / "no such folder" / "x.h5"))


def test_a_file_being_written_says_so(path: str) -> None:
    store = make(path)
    store.put("x", np.arange(3, dtype=np.float32), FLOAT32)
    store.sync()
    store.put("later", np.zeros(3, np.float32), FLOAT32)
    for mode in ("r", "a"):
        with pytest.raises(StoreError, match=r"being written by another process.*HDF5_USE_FILE_LOCKING"):
            Hdf5Store(path, mode=mode)  # type: ignore[arg-type]
    # The way out that the message names; HDF5 reads the variable once a process.
    code = f"from msformat.stores.hdf5 import Hdf5Store; s = Hdf5Store({path!r}); print(list(s.keys()), s.get('x')[2])"
    environment = {**os.environ, "HDF5_USE_FILE_LOCKING": "FALSE"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout == "['x'] 2.0\n"
    store.close()
    with Hdf5Store(path) as reader, Hdf5Store(path) as second:
        assert list(reader.keys()) == list(second.keys()) == ["x", "later"]


def test_a_foreign_file_is_read_and_added_to(path: str) -> None:
    with h5py.File(path, "w", libver="latest") as file:
        file["tensors/b"] = np.arange(4, dtype=">f8")
        file["tensors/a"] = np.float32(3)
        file["tensors"].create_dataset("c", data=np.eye(100), chunks=(10, 100), compression="lzf", fletcher32=True)
        file["tensors/d"] = np.arange(3, dtype=np.uint16)
        file["tensors/d"].attrs["dtype"] = "bfloat16"
    with make(path, "a") as store:
        store.put("new", np.ones(2, np.float32), FLOAT32)
        store.put("c", np.eye(100), dtype_named("float64"))
    with Hdf5Store(path) as store:
        assert list(store.keys()) == ["a", "b", "c", "d", "new"]
        assert store.get("b").dtype.name == "float64"
        assert store.get("b")[::-1].tolist() == [3, 2, 1, 0]
        assert store.get("b").digest is None
        assert store.get("a").shape == ()
        assert store.get("c")[5].tolist() == np.eye(100)[5].tolist()
        assert store.get("d").dtype.name == "bfloat16"


# --- processes -------------------------------------------------------------------------------------------------------


def _sum_in_another_process(store: Hdf5Store) -> float:
    return float(store.get("x")[...].sum())


@pytest.fixture
def filled(path: str) -> Iterator[Hdf5Store]:
    with make(path, group="step0/rank") as store:
        store.put("x", np.arange(1000, dtype=np.float32), FLOAT32)
    with Hdf5Store(path, group="step0/rank") as store:
        yield store


def test_attributes_that_mean_something_else_elsewhere(
    path: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of a foreign file that is opened by a relative path, before the program goes elsewhere."""
    with h5py.File(path, "w") as file:
        for name, shape in (("a", "2,3"), ("b", "6"), ("c", "flat"), ("d", "")):
            dataset = file.create_dataset(f"tensors/{name}", data=np.arange(6, dtype=np.uint16))
            dataset.attrs.update(dtype="bfloat16", shape=shape)
    monkeypatch.chdir(tmp_path)
    with Hdf5Store(os.path.basename(path)) as store:
        monkeypatch.chdir("/")
        for name in ("a", "b", "c", "d"):
            assert store.get(name).dtype.name == "bfloat16"
            assert store.get(name).bits().tolist() == list(range(6))


def test_a_reader_can_be_sent_to_another_process(filled: Hdf5Store) -> None:
    with pickle.loads(pickle.dumps(filled)) as copy:
        assert copy.get("x")[7] == 7
    tensor = pickle.loads(pickle.dumps(filled.get("x")))
    assert tensor[7] == 7
    tensor._store.close()
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        assert pool.apply(_sum_in_another_process, (filled,)) == math.fsum(range(1000))


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_reader_survives_a_fork(filled: Hdf5Store) -> None:
    tensor = filled.get("x")
    child = os.fork()
    if child == 0:
        ok = tensor[7] == 7 and _sum_in_another_process(filled) == math.fsum(range(1000))
        os._exit(0 if ok else 1)
    assert tensor[8] == 8
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert tensor[9] == 9


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_forked_child_cannot_hurt_its_parents_file(path: str) -> None:
    store = make(path)
    store.put("x", np.arange(1000, dtype=np.float32), FLOAT32)
    child = os.fork()
    if child == 0:
        refused = 0
        for attempt in (lambda: store.put("y", np.zeros(9, np.float32), FLOAT32), store.sync, lambda: store.get("x")):
            try:
                attempt()
            except StoreError:
                refused += 1
        store.close()
        os._exit(refused)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 3
    store.put("z", np.arange(1000, dtype=np.float32)[::-1], FLOAT32)
    with pytest.raises(StoreError, match="only a store opened for reading"):
        pickle.dumps(store)
    store.close()
    with Hdf5Store(path) as reader:
        assert list(reader.keys()) == ["x", "z"]
        for key in list(reader.keys()):
            reader.get(key).verify()


CHILD_LEAVES = """
import ctypes, os, sys
import numpy as np
from msformat.stores.hdf5 import Hdf5Store
from tests.unit.test_hdf5 import FLOAT32
store = Hdf5Store(sys.argv[1], mode=sys.argv[2], group="g")
if sys.argv[2] != "r":
    for number in range(50):
        store.put(f"k{number}", np.arange(number + 3, dtype=np.float32), FLOAT32)
    store._pipeline.drain()
# What the frames of a thread hold that is not there any more is never let go.
for held in (store, store._file, store._file.id):
    ctypes.pythonapi.Py_IncRef(ctypes.py_object(held))
child = os.fork()
if child == 0:
    sys.exit(0)
status = os.waitpid(child, 0)[1]
store.close()
assert status == 0, status
"""


@pytest.mark.parametrize("pending", [False, True])
def test_a_forked_child_ends_in_peace_whatever_its_parents_threads_held(path: str, pending: bool) -> None:
    subprocess.run([sys.executable, "-c", CHILD_LEAVES, path, "x"], cwd=ROOT, check=True, timeout=60)
    with Hdf5Store(path, group="g") as reader:
        assert len(reader) == 50
        reader.get("k49").verify()
    if pending:  # read through our file object
        Path(side_path(path)).write_bytes(b"")
    subprocess.run([sys.executable, "-c", CHILD_LEAVES, path, "r"], cwd=ROOT, check=True, timeout=60)


# --- the file below --------------------------------------------------------------------------------------------------


def test_what_is_not_synced_is_not_on_disk(path: str) -> None:
    store = make(path)
    store.put("a", np.arange(100_000, dtype=np.float32), FLOAT32)
    store.sync()
    before = Path(path).read_bytes()
    for number in range(300):
        store.put(f"b{number}", np.full(1000, number, np.float32), FLOAT32)
    assert Path(path).read_bytes()[: len(before)] == before
    with h5py.File(path, "r", locking=False) as file:
        assert list(file["tensors"]) == ["a"]
    store.close()
    with h5py.File(path) as file:
        assert len(file["tensors"]) == 301


def test_a_file_that_cannot_be_written_any_more_is_let_go(path: str) -> None:
    """Whoever got the error may never close the store; HDF5 would at the end, when Python is no more, and crash."""
    store = make(path)
    store.put("x", np.zeros(3, np.float32), FLOAT32)
    store.sync()
    os.rename(path, path + ".moved")
    store.put("y", np.zeros(3, np.float32), FLOAT32)
    for _ in range(2):
        with pytest.raises(StoreError, match="could not be written"):
            store.sync()
    with h5py.File(path + ".moved", "r+") as file:  # no lock is left
        assert list(file["tensors"]) == ["x"]
    store.close()


def test_replaced_documents_leave_no_room_behind(path: str) -> None:
    with make(path, compression="none") as store:
        for number in range(20):
            store.put_document("dump.json", bytes([number]) * 200_000)
            store.sync()
    assert Path(path).stat().st_size < 3 * 200_000


@pytest.mark.parametrize("damage", ["torn", "flipped", "huge"])
def test_a_side_file_that_is_not_whole_is_ignored(path: str, damage: str) -> None:
    with make(path) as store:
        store.put("x", np.arange(9, dtype=np.float32), FLOAT32)
    whole = Path(path).read_bytes()
    file = PagedFile(path, "a")
    file.seek(0)
    file.write(b"\0" * PAGE)
    file._prepare(file._pages)
    file.close()
    side = Path(side_path(path))
    data = side.read_bytes()
    broken = {"torn": data[:-100], "flipped": data[:50] + b"\xff" + data[51:], "huge": data * 9}[damage]
    side.write_bytes(broken)
    with Hdf5Store(path) as store:
        assert store.get("x")[8] == 8
    assert side.exists()  # a reader changes nothing
    with make(path, "a") as store:
        assert store.get("x")[8] == 8
    assert not side.exists()
    assert Path(path).read_bytes() == whole


@given(
    st.lists(
        st.one_of(
            st.tuples(st.just("write"), st.integers(0, 30_000), st.integers(1, 9000)),
            st.tuples(st.just("truncate"), st.integers(0, 30_000), st.just(0)),
            st.tuples(st.just("commit"), st.just(0), st.just(0)),
        ),
        max_size=12,
    )
)
@settings(deadline=None, max_examples=60)
def test_paged_file_is_a_file_whose_synced_part_stands_still(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[str, int, int]]
) -> None:
    """Against a bytearray: reads see every write; the disk holds the last commit, apart from bytes behind its end."""
    path = tmp_path_factory.mktemp("paged") / "x"
    file = PagedFile(str(path), "x")
    now, synced = bytearray(), b""
    for number, (what, at, length) in enumerate(steps):
        if what == "write":
            data = bytes([number + 1]) * length
            now.extend(bytes(max(0, at + length - len(now))))
            now[at : at + length] = data
            file.seek(at)
            file.write(data)
        elif what == "truncate" and at >= len(now):  # HDF5 gives back only what it no longer uses
            now.extend(bytes(at - len(now)))
            file.truncate(at)
        elif what == "commit":
            file.commit()
            synced = bytes(now)
        assert path.read_bytes()[: len(synced)] == synced
        file.seek(0)
        assert file.read(len(now)) == bytes(now)
    file.commit()
    file.close()
    assert path.read_bytes() == bytes(now)


def test_threads_read_what_they_asked_for(path: str) -> None:
    with make(path) as store:
        for number in range(8):
            store.put(f"op.{number}", np.full(20_000, number, np.float32), FLOAT32)
    wrong: list[int] = []

    def read(number: int) -> None:
        wrong.extend(number for _ in range(60) if (store.get(f"op.{number}")[::50] != number).any())

    with Hdf5Store(path) as store:
        threads = [threading.Thread(target=read, args=(number,)) for number in range(8)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert wrong == []
