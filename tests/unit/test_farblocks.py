"""HDF5 behind a URL fetches what is needed, judged by a file system that counts requests and bytes."""

from __future__ import annotations

import io
from pathlib import Path
from typing import Any

import fsspec
import h5py
import numpy as np
import pytest
from fsspec.implementations.memory import MemoryFileSystem

from msformat.errors import StoreError
from msformat.filesystem import open_filesystem
from msformat.stores.farblocks import BLOCK, FarFile
from msformat.stores.many import get_many
from msformat.stores.registry import open_store

ROWS, LENGTH = 1 << 12, 1 << 12  # of float32: 64 MiB, which nobody writes
MARK = 1234.5


@pytest.fixture
def fetched(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Bytes of each request."""
    sizes: list[int] = []
    real = MemoryFileSystem.cat_file

    def counted(self: Any, path: str, start: int | None = None, end: int | None = None, **more: Any) -> bytes:
        data = bytes(real(self, path, start, end, **more))
        sizes.append(len(data))
        return data

    monkeypatch.setattr(MemoryFileSystem, "cat_file", counted)
    return sizes


def _hdf5(*datasets: tuple[str, tuple[int, ...], tuple[int, ...] | None]) -> Any:
    """A file in memory, whose values are zeros but for one; chunks are stored as they are."""
    held = io.BytesIO()
    with h5py.File(held, "w") as file:
        file.create_group("documents")
        for name, shape, chunks in datasets:
            made = file.create_dataset(f"tensors/{name}", data=np.zeros(shape, np.float32), chunks=chunks)
            made[(shape[0] // 2, 5)] = MARK
    return held.getvalue()


@pytest.mark.parametrize("chunks", [None, (64, LENGTH)], ids=["contiguous", "chunked"])
def test_a_row_of_a_large_tensor(chunks: tuple[int, ...] | None, memory_url: str, fetched: list[int]) -> None:
    shape = (ROWS, LENGTH)
    fsspec.filesystem("memory").pipe_file("/bucket/d.h5", _hdf5(("x", shape, chunks)))
    with open_store("hdf5", "memory://bucket/d.h5") as store:
        row = store.get("x")[ROWS // 2]
    assert row.shape == (LENGTH,)
    assert row[5] == MARK
    # The row, or its chunk; and what is between the file's beginning and them, in blocks.
    needed = 4 * LENGTH * (chunks[0] if chunks else 1)
    assert needed <= sum(fetched) < needed + 12 * BLOCK
    assert len(fetched) < 12


def test_many_small_ones_need_few_requests(memory_url: str, fetched: list[int]) -> None:
    names = [f"x{number:04}" for number in range(1000)]
    data = _hdf5(*((name, (8, 16), None) for name in names))
    fsspec.filesystem("memory").pipe_file("/bucket/d.h5", data)
    with open_store("hdf5", "memory://bucket/d.h5") as store:
        assert all(found.bits()[4, 5] == MARK for found in get_many(store, names))
    assert sum(fetched) < 1.5 * len(data)
    assert len(fetched) < len(data) // BLOCK


def test_reads_as_any_file_does(memory_url: str, tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    data = rng.bytes(5 * BLOCK + 321)
    fsspec.filesystem("memory").pipe_file("/bucket/f", data)
    (tmp_path / "f").write_bytes(data)
    far = FarFile(open_filesystem("memory://bucket"), "f")
    with far, (tmp_path / "f").open("rb", buffering=0) as near:
        for _ in range(300):
            at, length = (
                int(rng.integers(0, len(data) + 100)),
                int(rng.choice([0, 1, 700, BLOCK - 1, BLOCK, 3 * BLOCK])),
            )
            assert far.seek(at) == near.seek(at)
            assert far.read(length) == near.read(length)
            assert far.tell() == near.tell()
        assert far.seek(-3, io.SEEK_END) == near.seek(-3, io.SEEK_END)
        assert far.read() == near.read()


def test_what_is_kept_is_bounded(memory_url: str) -> None:
    fsspec.filesystem("memory").pipe_file("/bucket/f", bytes(300 * BLOCK))
    far = FarFile(open_filesystem("memory://bucket"), "f")
    for at in range(0, 300 * BLOCK, BLOCK // 2):
        far.seek(at)
        assert len(far.read(100)) == 100
    assert len(far._blocks) <= 128


def test_a_place_that_gives_less_is_an_error(memory_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    fsspec.filesystem("memory").pipe_file("/bucket/d.h5", _hdf5(("x", (64, 4096), None)))
    real = MemoryFileSystem.cat_file
    with open_store("hdf5", "memory://bucket/d.h5") as store:
        monkeypatch.setattr(MemoryFileSystem, "cat_file", lambda *a, **k: real(*a, **k)[:-1])
        with pytest.raises(StoreError, match="'x'"):
            store.get("x").bits()
