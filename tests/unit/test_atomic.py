"""Waiting for the disk, many files at a time."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path
from typing import Literal

import numpy as np
import pytest

from msformat.atomic import each_at_once
from msformat.dtypes import dtype_named
from msformat.stores.base import StoreOptions
from msformat.stores.registry import open_store


@pytest.mark.parametrize("threads", [True, False])
@pytest.mark.parametrize("count", [0, 1, 7, 8, 300])
def test_each_is_done_once(count: int, threads: bool) -> None:
    done: list[str] = []
    before = threading.active_count()
    each_at_once(done.append, map(str, range(count)), threads=threads)
    assert sorted(done, key=int) == [str(number) for number in range(count)]
    assert threading.active_count() == before


@pytest.mark.parametrize("bad", [0, 150, 299])
def test_an_error_comes_out_whoever_had_it(bad: int) -> None:
    for kind in (OSError, IndexError):

        def action(path: str, kind: type[Exception] = kind) -> None:
            if int(path) == bad:
                raise kind(f"no {path}")

        with pytest.raises(kind, match=f"no {bad}"):
            each_at_once(action, map(str, range(300)))


def test_at_the_end_of_the_interpreter(tmp_path: Path) -> None:
    """What closes at exit (a store, a debugger) comes after threads can no longer be had."""
    script = (
        "import atexit, pathlib, sys\n"
        "import numpy as np\n"
        "from msformat.dtypes import dtype_named\n"
        "from msformat.stores.registry import open_store\n"
        "store = open_store('files', sys.argv[1], mode='w')\n"
        "for number in range(40): store.put(f'{number}.npy', np.full(3, number, np.float32), dtype_named('float32'))\n"
        "atexit.register(store.close)\n"
    )
    command = [sys.executable, "-c", script, str(tmp_path / "u")]
    found = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (found.returncode, found.stderr) == (0, "")
    assert len(list((tmp_path / "u/dump_tensor_data").iterdir())) == 40


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
