"""Waiting for the disk: many files at a time, begun early."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Literal

import numpy as np
import pytest

from msformat.atomic import atomic_file, fsync_directories, fsync_files, is_temporary, usual_mode, write_atomic
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


def test_a_file_is_on_disk_before_it_has_its_name(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    done: list[str] = []
    fsync, replace = os.fsync, os.replace

    def synced(descriptor: int) -> None:
        done.append("directory" if os.path.isdir(f"/proc/self/fd/{descriptor}") else "bytes")
        fsync(descriptor)

    def named(source: str, target: str) -> None:
        done.append("name")
        replace(source, target)

    monkeypatch.setattr(os, "fsync", synced)
    monkeypatch.setattr(os, "replace", named)
    write_atomic(tmp_path / "x", b"content")
    write_atomic(tmp_path / "y", b"content", fsync=False)
    assert done == ["bytes", "name", "directory", "name"]


@pytest.mark.parametrize("before", [None, b"what was there"])
def test_a_file_is_whole_or_not_there(tmp_path: Path, before: bytes | None) -> None:
    path = tmp_path / "x"
    if before is not None:
        path.write_bytes(before)

    def dies() -> Any:
        yield b"half"
        assert (path.read_bytes() if path.exists() else None) == before
        assert [is_temporary(item.name) for item in tmp_path.iterdir() if item != path] == [True]
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        write_atomic(path, dies())
    assert {item.name: item.read_bytes() for item in tmp_path.iterdir()} == ({} if before is None else {"x": before})
    with atomic_file(path) as stream:
        stream.write(b"whole")
    assert path.read_bytes() == b"whole"


@pytest.mark.parametrize("directory", [False, True])
def test_the_mode_that_something_gets_is_found_out_without_a_trace(tmp_path: Path, directory: bool) -> None:
    assert usual_mode(str(tmp_path / "x"), directory=directory) & 0o700 == (0o700 if directory else 0o600)
    assert list(tmp_path.iterdir()) == []


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
