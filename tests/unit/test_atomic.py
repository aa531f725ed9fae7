"""Waiting for the disk, many files at a time."""

from __future__ import annotations

import subprocess
import sys
import threading
from pathlib import Path

import pytest

from msformat.atomic import each_at_once


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
