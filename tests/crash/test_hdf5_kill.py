"""A writer killed at any moment, or run out of disk, leaves an HDF5 file with everything it had synced."""

from __future__ import annotations

import io
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import h5py
import numpy as np
import pytest

from msformat.dtypes import dtype_named
from msformat.stores import hdf5_paged
from msformat.stores.hdf5_paged import side_path
from msformat.stores.registry import open_store

# Puts tensors of 4 bytes to 100 KB, and tells after each sync how many are safe.
WRITER = """
import sys
import numpy as np
from msformat.dtypes import dtype_named
from msformat.stores.registry import open_store

path, seed = sys.argv[1], int(sys.argv[2])
rng = np.random.default_rng(seed)
store = open_store("hdf5", path, mode="a")
print("synced 0", flush=True)
for number in range(100_000):
    store.put(f"op.{number}", np.full(int(rng.integers(1, 25_000)), number, np.float32), dtype_named("float32"))
    if number % 5 == 4:
        store.sync()
        print("synced", number + 1, flush=True)
    if number % 50 == 49:
        store.put_document("dump.json", b"x" * number * 10)
"""


def check_synced(path: Path, count: int) -> None:
    """Plain h5py and the store both read the first ``count`` tensors, in order."""
    if Path(side_path(str(path))).exists():
        open_store("hdf5", str(path), mode="a").close()
    with h5py.File(path, "r") as file:
        tensors = file["tensors"]
        assert len(tensors) >= count
        for number in range(count):
            values = tensors[f"op.{number}"][()]
            assert values.size
            assert (values == number).all()
    with open_store("hdf5", str(path)) as store:
        keys = list(store.keys())
        assert keys == [f"op.{number}" for number in range(len(keys))]
        for key in keys:
            store.get(key).verify()


@pytest.mark.parametrize("seed", range(8))
def test_killed_at_a_random_moment(tmp_path: Path, seed: int) -> None:
    path = tmp_path / "dump.h5"
    writer = subprocess.Popen(
        [sys.executable, "-c", WRITER, str(path), str(seed)], stdout=subprocess.PIPE, text=True, bufsize=1
    )
    assert writer.stdout is not None
    assert writer.stdout.readline() == "synced 0\n"
    time.sleep(random.Random(seed).uniform(0.0, 0.6))
    writer.send_signal(signal.SIGKILL)
    safe = 0
    for line in writer.stdout:
        if line.endswith("\n"):
            safe = int(line.split()[1])
    writer.wait()
    writer.stdout.close()
    check_synced(path, safe)
    # And the writer's successor goes on where it ended.
    with open_store("hdf5", str(path), mode="a") as store:
        store.put("after", np.zeros(3, np.float32), dtype_named("float32"))
        count = len(store)
    check_synced_with_after(path, count)


def check_synced_with_after(path: Path, count: int) -> None:
    with h5py.File(path, "r") as file:
        assert len(file["tensors"]) == count
        assert file["tensors/after"].shape == (3,)


# In a child, because the limit cannot be raised again.
FULL = """
import resource, signal, sys
import numpy as np
from msformat.dtypes import dtype_named
from msformat.errors import StoreError
from msformat.stores.base import StoreOptions
from msformat.stores.registry import open_store

path, limit, threads, size = sys.argv[1], int(sys.argv[2]), int(sys.argv[3]), int(sys.argv[4])
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
store = open_store("hdf5", path, mode="w", options=StoreOptions(threads=threads))
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
rng = np.random.default_rng(0)
safe, failure = 0, None
for number in range(10_000):
    values = rng.standard_normal(size).astype(np.float32)
    values[0] = number
    try:
        store.put(f"op.{number}", values, dtype_named("float32"))
        if number % 7 == 6:
            store.sync()
            safe = number + 1
    except StoreError as error:
        failure = str(error)
        break
again = ""
for attempt in (lambda: store.put("more", values, dtype_named("float32")), store.sync):
    try:
        attempt()
    except StoreError as error:
        again += str(error)
store.close()
store.close()
print(safe)
print(failure)
print(again)
"""


@pytest.mark.parametrize(("limit", "threads", "size"), [(3_000_000, 1, 40_000), (1_500_001, 0, 9000), (200_000, 1, 3)])
def test_disk_full(tmp_path: Path, limit: int, threads: int, size: int) -> None:
    path = tmp_path / "dump.h5"
    arguments = [sys.executable, "-W", "error", "-c", FULL, str(path), str(limit), str(threads), str(size)]
    done = subprocess.run(arguments, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    safe, failure, again = done.stdout.splitlines()
    assert int(safe) > 5
    assert str(path) in failure
    assert "op." in failure or "sync could not be written" in failure
    assert again == failure * 2
    with h5py.File(path, "r") as file:
        assert len(file["tensors"]) == int(safe)
        for number in range(int(safe)):
            assert file[f"tensors/op.{number}"][0] == number
    with open_store("hdf5", str(path)) as store:
        for key in list(store.keys()):
            store.get(key).verify()


def test_every_step_of_a_sync_can_be_the_last(tmp_path: Path) -> None:
    """Stop the writer before each of its system calls in turn: the file holds the state before the sync, or after."""
    outcomes = set()
    for stop in range(60):
        folder = tmp_path / str(stop)
        folder.mkdir()
        path = folder / "dump.h5"
        child = os.fork()
        if child == 0:
            _sync_until(path, stop)
        _, status = os.waitpid(child, 0)
        finished = os.waitstatus_to_exitcode(status) == 0
        with open_store("hdf5", str(path)) as reader:  # completes a pending sync in memory
            seen = list(reader.keys())
            assert seen in (["a"], ["a", "b"]), stop
            for key in seen:
                reader.get(key).verify()
        with open_store("hdf5", str(path), mode="a") as store:  # and on disk
            assert list(store.keys()) == seen
        with h5py.File(path, "r") as file:
            assert list(file["tensors"]) == seen
        assert [item.name for item in folder.iterdir()] == ["dump.h5"]
        outcomes.add((len(seen), finished))
        if finished:
            break
    assert outcomes == {(1, False), (2, False), (2, True)}


def _sync_until(path: Path, stop: int) -> None:
    """In a forked child: put "a", sync, put "b", and die before system call number ``stop`` of the second sync."""
    left = [10**9]

    def step() -> None:
        left[0] -= 1
        if left[0] < 0:
            os._exit(9)

    class DyingFile(io.FileIO):
        def write(self, data: object) -> int:
            step()
            return super().write(data)  # type: ignore[arg-type]

        def truncate(self, size: int | None = None) -> int:
            step()
            return super().truncate(size)

    real_fsync = os.fsync
    hdf5_paged.io.FileIO = DyingFile  # type: ignore[misc]
    hdf5_paged.os.fsync = lambda descriptor: (step(), real_fsync(descriptor))[1]  # type: ignore[assignment]
    store = open_store("hdf5", str(path), mode="a")
    store.put("a", np.arange(5000, dtype=np.float32), dtype_named("float32"))
    store.sync()
    left[0] = stop
    store.put("b", np.arange(9000, dtype=np.float32), dtype_named("float32"))
    store.sync()
    os._exit(0)
