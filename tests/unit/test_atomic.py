"""Waiting for the disk: many files at a time, begun early."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from msformat.atomic import fsync_directories, fsync_files
from msformat.dtypes import dtype_named
from msformat.stores.base import StoreOptions
from msformat.stores.registry import open_store


@pytest.mark.parametrize("threads", [True, False])
@pytest.mark.parametrize("wait", [fsync_files, fsync_directories])
def test_each_file_is_waited_for(tmp_path: Path, wait: Any, threads: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [tmp_path / str(number) for number in range(30)]
    for path in paths:
        path.touch() if wait is fsync_files else path.mkdir()
    waited: list[int] = []
    monkeypatch.setattr(os, "fsync", lambda descriptor: waited.append(os.fstat(descriptor).st_ino))
    wait(map(str, paths), threads=threads)
    assert sorted(waited) == sorted(path.stat().st_ino for path in paths)


@pytest.mark.parametrize("threads", [True, False])
def test_a_disk_that_says_no(tmp_path: Path, threads: bool) -> None:
    names = [str(tmp_path / str(number)) for number in range(30)]
    for name in names[:-1]:
        Path(name).touch()
    with pytest.raises(FileNotFoundError, match=names[-1]):
        fsync_files(names, threads=threads)


@pytest.mark.parametrize("backend", ["files", "hdf5", "zarr"])
@pytest.mark.parametrize("durability", ["fsync", "process"])
def test_the_disk_begins_before_it_is_waited_for(
    tmp_path: Path, backend: str, durability: Literal["fsync", "process"], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Only where it will be waited for at all."""
    begun: list[int] = []
    monkeypatch.setattr(os, "posix_fadvise", lambda *args: begun.append(args[2]), raising=False)
    monkeypatch.setattr(os, "POSIX_FADV_DONTNEED", 4, raising=False)
    values = np.random.default_rng(1).integers(0, 256, 9 << 20, np.uint8)
    location = str(tmp_path / {"hdf5": "d.h5", "zarr": "d.zarr"}.get(backend, "unit"))
    options = StoreOptions(compression="none", durability=durability)
    with open_store(backend, location, mode="w", options=options) as store:
        store.put("large.npy", values, dtype_named("uint8"))
        store.put("small.npy", values[:100], dtype_named("uint8"))
    assert (sum(begun) >= values.nbytes) == (durability == "fsync")
    with open_store(backend, location) as store:
        np.testing.assert_array_equal(store.get("large.npy").bits(), values)
