"""A full disk, played by RLIMIT_FSIZE in a child: told once, clean, and what was committed before stays readable."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from msformat.atomic import is_temporary
from msformat.dtypes import dtype_named
from msformat.errors import StoreError
from msformat.journal import read_journal
from msformat.layout import find_units
from msformat.reader import open_dump
from msformat.recover import recover_unit
from msformat.replay import replay
from msformat.stores.registry import open_store
from msformat.writer import DumpWriter
from tests.crash.workload import BACKENDS, HEADER

FLOAT32 = dtype_named("float32")
ROOT = Path(__file__).parents[2]
# Small tensors first, then one no file may hold.
LIMIT = 256 << 10
SMALL, LARGE = 1 << 8, 1 << 18


def values(number: int, count: int) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    """Numbers that no codec makes small."""
    return np.random.default_rng(number).standard_normal(count, dtype=np.float32)


def put(writer: DumpWriter, number: int, count: int) -> None:
    name = f"x.{number}.debug.npy"
    writer.put_tensor(name, values(number, count), FLOAT32)
    record = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [count], "data_name": name}
    writer.put_entry(f"x.{number}.debug", record)


def put_words(writer: DumpWriter, number: int) -> None:
    """An entry that fills the journal and no store."""
    writer.put_entry(f"x.{number}.debug", {"type": "str", "value": "word " * 8192})


def child(unit: str, backend: str, what: str) -> None:
    """Runs in a process of its own; prints what happened to it."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, LIMIT))
    errors: list[str] = []
    trained = 0
    with DumpWriter(unit, HEADER, backend=backend, sync_entries=1) as writer:
        for number in range(8):
            try:
                if what == "words":
                    put_words(writer, number)
                else:
                    put(writer, number, LARGE if number == 4 else SMALL)
            except StoreError as error:
                errors.append(str(error))
            trained += 1  # the user's training goes on
    print(json.dumps({"errors": errors, "trained": trained}))


def run(unit: Path, backend: str, what: str) -> list[str]:
    """The errors a writer's user was told of."""
    command = [sys.executable, "-m", "tests.crash.test_disk_full", str(unit), backend, what]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=True)
    assert done.stderr == ""
    told = json.loads(done.stdout)
    assert told["trained"] == 8
    errors: list[str] = told["errors"]
    return errors


def test_full_in_the_middle_of_the_journal(tmp_path: Path) -> None:
    unit = tmp_path / "step0" / "rank"
    first, *later = run(unit, "files", "words")
    assert "cannot append to the journal" in first
    assert "File too large" in first
    assert len(later) == 1
    found = read_journal(unit / "journal.jsonl")
    # Half a record was cut off again, so that the reason could follow.
    assert not found.torn
    assert "File too large" in str(found.reason)
    assert list(replay(found.records).entries) == [f"x.{number}.debug" for number in range(6)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_disk_full(tmp_path: Path, backend: str) -> None:
    unit = tmp_path / "step0" / "rank"
    first, *later = run(unit, backend, "tensors")
    assert "x.4.debug" in first
    assert "File too large" in first
    assert len(later) == 3
    assert all("cannot be written any more: writing failed" in text for text in later)

    found = read_journal(unit / "journal.jsonl")
    assert not found.torn
    assert "File too large" in str(found.reason)
    keys = [f"x.{number}.debug" for number in range(4)]
    assert list(replay(found.records).entries) == keys
    with open_dump(tmp_path) as dump:
        assert not dump[0].complete
        assert list(dump[0]) == keys
    report = recover_unit(find_units(tmp_path)[0][0])
    assert (report.state, report.entries, report.missing) == ("recovered", 4, ())
    assert not [path for path in unit.rglob("*") if is_temporary(path.name)]
    location = find_units(tmp_path)[0][0]
    with open_store(location.backend, location.location) as store:
        for number in range(4):
            np.testing.assert_array_equal(store.get(f"x.{number}.debug.npy").numpy(), values(number, SMALL))
    with open_dump(tmp_path) as dump:
        assert dump[0].complete


if __name__ == "__main__":
    child(*sys.argv[1:])
