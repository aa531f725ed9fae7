"""A row of a large tensor touches only its chunks: counted by the kernel, and by a file system that is far away.

The tensors are made by numpy, h5py, zarr-python and holes in files, so that they cost nothing to write.
"""

from __future__ import annotations

import io
import json
import shutil
import subprocess
import sys
import zlib
from collections.abc import Callable
from functools import cache
from pathlib import Path
from typing import Any, ClassVar, TypeAlias

import fsspec
import h5py
import numpy as np
import pytest

from msformat.stores.registry import open_store
from tests.judges import judge
from tests.local_urls import LocalUrls

zarr = judge("zarr")

SHAPE = (1 << 13, 1 << 12)  # of float32: 128 MiB; 2 GiB in tools/bench_read.py
CHUNK = (1 << 10, 1 << 12)
ROW = 7_777
MARK = 1234.5
MIB = 1 << 20
KINDS = ("npy", "pt", "hdf5", "zarr")
# The chunk itself (16 MiB), unpacked, and what allocators and caches like to have.
MOST_MEMORY = 96 * MIB
# What a process took more for reading the row, with pages of mapped files, and what it asked the system to read.
CHILD = """
import re, sys
from pathlib import Path
from msformat.stores.registry import open_store
def peak(): return int(re.search(r"VmHWM:\\s*(\\d+)", Path("/proc/self/status").read_text())[1]) << 10
def read(): return int(re.search(r"rchar: (\\d+)", Path("/proc/self/io").read_text())[1])
backend, place, key, row = sys.argv[1:]
with open_store(backend, place + "/small") as store:
    store.get(key)[0]
before = peak(), read()
with open_store(backend, place + "/large") as store:
    found = store.get(key)[int(row)]
print(peak() - before[0], read() - before[1], found.shape[0], found[5])
"""


PlaceOf: TypeAlias = "Callable[[str], Path]"
opened: list[io.FileIO] = []


class Counted(LocalUrls):
    """Local files behind a protocol of their own; bytes that leave them are counted."""

    protocol = "counted"
    taken: ClassVar[int] = 0

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **more: Any) -> bytes:
        found = bytes(super().cat_file(path, start, end, **more))
        Counted.taken += len(found)
        return found

    def _open(self, path: str, mode: str = "rb", block_size: int | None = None, **_: Any) -> Any:
        file = _CountedFile(path, mode)
        opened.append(file)
        return file


class _CountedFile(io.FileIO):
    def readinto(self, buffer: Any) -> int:
        count = super().readinto(buffer) or 0
        Counted.taken += count
        return count

    def read(self, size: int | None = -1) -> bytes:
        found = super().read(size) or b""
        Counted.taken += len(found)
        return found


@pytest.fixture(scope="module")
def place_of(tmp_path_factory: pytest.TempPathFactory) -> PlaceOf:
    """Where a kind's tensors are. They are written when first asked for: torch alone takes seconds to be imported."""
    fsspec.register_implementation("counted", Counted, clobber=True)
    root = tmp_path_factory.mktemp("slices")

    @cache
    def place_of(kind: str) -> Path:
        (root / kind).mkdir(exist_ok=True)
        write = {"npy": _write_npy, "pt": _write_pt, "hdf5": _write_hdf5, "zarr": _write_zarr}[kind]
        write(root / kind / "large", SHAPE)
        write(root / kind / "small", CHUNK)
        return root / kind

    return place_of


def _write_npy(place: Path, shape: tuple[int, int]) -> None:
    (place / "dump_tensor_data").mkdir(parents=True)
    array = np.lib.format.open_memmap(place / "dump_tensor_data" / "x.npy", "w+", np.float32, shape)
    array[ROW % shape[0], 5] = MARK
    array.flush()


def _write_pt(place: Path, shape: tuple[int, int]) -> None:
    """``torch.save`` of a few values, with a hole put into the zip where its storage is."""
    torch = judge("torch")
    values = torch.zeros(shape)
    values[ROW % shape[0], 5] = MARK
    (place / "dump_tensor_data").mkdir(parents=True)
    with (place / "dump_tensor_data" / "x.pt").open("wb") as file:
        torch.save(values, _Holes(file))


class _Holes:
    """Writes zeros as holes."""

    def __init__(self, file: Any) -> None:
        self._file = file

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        for start in range(0, len(view), MIB):
            part = view[start : start + MIB]
            if np.frombuffer(part, np.uint8).any():
                self._file.write(part)
            else:
                self._file.seek(len(part), io.SEEK_CUR)
        return len(view)

    def flush(self) -> None:
        self._file.flush()


def _write_hdf5(place: Path, shape: tuple[int, int]) -> None:
    marked = np.zeros(CHUNK, np.float32)
    empty = zlib.compress(marked.tobytes())
    marked[ROW % CHUNK[0], 5] = MARK
    with h5py.File(place, "w") as file:
        made = file.create_dataset("tensors/x.pt", shape, np.float32, chunks=CHUNK, compression="gzip")
        file.create_group("documents")
        for start in range(0, shape[0], CHUNK[0]):
            is_marked = ROW % shape[0] // CHUNK[0] * CHUNK[0] == start
            made.id.write_direct_chunk((start, 0), zlib.compress(marked.tobytes()) if is_marked else empty)


def _write_zarr(place: Path, shape: tuple[int, int]) -> None:
    group = zarr.create_group(place)
    group.create_group("documents")
    config = {"write_empty_chunks": True}
    made = group.create_array("tensors/x.pt", shape=shape, chunks=CHUNK, dtype="float32", config=config)
    group.require_group("tensors")
    number = ROW % shape[0] // CHUNK[0]
    other = 0 if number else 1
    for chunk in {number, min(other, shape[0] // CHUNK[0] - 1)}:
        values = np.zeros(CHUNK, np.float32)
        values[ROW % CHUNK[0], 5] = MARK if chunk == number else 0
        made[chunk * CHUNK[0] : (chunk + 1) * CHUNK[0]] = values
    chunks = place / "tensors" / "x.pt" / "c"
    for chunk in set(range(shape[0] // CHUNK[0])) - {number, other}:
        shutil.copytree(chunks / str(other), chunks / str(chunk))


@pytest.mark.skipif(not Path("/proc/self/io").exists(), reason="Linux counts")
@pytest.mark.parametrize("kind", KINDS)
def test_a_row_takes_no_more_than_its_chunks(kind: str, place_of: PlaceOf) -> None:
    backend = "files" if kind in ("npy", "pt") else kind
    key = "x.npy" if kind == "npy" else "x.pt"
    command = [sys.executable, "-c", CHILD, backend, str(place_of(kind)), key, str(ROW)]
    memory, read, length, value = subprocess.run(command, check=True, capture_output=True, text=True).stdout.split()
    assert (int(length), float(value)) == (SHAPE[1], MARK)
    assert int(memory) < MOST_MEMORY
    assert int(read) < 4 * MIB


@pytest.mark.parametrize("kind", KINDS)
def test_behind_a_url_too(kind: str, place_of: PlaceOf) -> None:
    backend = "files" if kind in ("npy", "pt") else kind
    key = "x.npy" if kind == "npy" else "x.pt"
    Counted.taken = 0
    with open_store(backend, f"counted://{place_of(kind)}/large") as store:
        found = store.get(key)[ROW]
        assert found.shape == SHAPE[1:]
        assert found[5] == MARK
    for file in opened:
        file.close()
    opened.clear()
    assert Counted.taken < 4 * MIB


@pytest.mark.parametrize("kind", KINDS)
def test_what_was_written_is_what_others_read(kind: str, place_of: PlaceOf) -> None:
    assert _read_by_others[kind](place_of(kind) / "large") == MARK


def _read_zarr(place: Path) -> float:
    meta = json.loads((place / "tensors" / "x.pt" / "zarr.json").read_text())
    assert meta["shape"] == list(SHAPE)
    return float(zarr.open_group(place, mode="r")["tensors/x.pt"][ROW, 5])


def _read_hdf5(place: Path) -> float:
    with h5py.File(place) as file:
        return float(file["tensors/x.pt"][ROW, 5])


_read_by_others: dict[str, Callable[[Path], float]] = {
    "npy": lambda place: np.load(place / "dump_tensor_data" / "x.npy", mmap_mode="r")[ROW, 5],
    "pt": lambda place: judge("torch").load(str(place / "dump_tensor_data" / "x.pt"), weights_only=True, mmap=True)[
        ROW, 5
    ],
    "hdf5": _read_hdf5,
    "zarr": _read_zarr,
}
