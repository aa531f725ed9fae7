"""A training that dies, or whose disk is full, in the middle of a captured step: nothing promised is lost."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import msformat
from capture.framework import HostTensor
from capture.queue import WriteQueue
from capture.sink import UnitSink
from msformat import DumpWriter, StoreOptions, dtype_named
from msformat.journal import read_journal
from tests.capture.test_sink import Entry, entry
from tests.crash.workload import BACKENDS, HEADER

ROOT = Path(__file__).parents[2]
FLOAT32 = dtype_named("float32")
COUNT, BATCH = 60, 4
LIMIT = 256 << 10


def values(number: int, count: int = 1 << 12) -> NDArray[np.float32]:
    """Numbers that no codec makes small; every third content occurred before."""
    seed = number - 1 if number % 3 == 2 else number
    return np.random.default_rng(seed).standard_normal(count, dtype=np.float32)


def key(number: int) -> str:
    return f"Torch.op.{number}.forward"


class Training:
    """A step being captured; what the writing thread has done is noted in a file by the same thread."""

    def __init__(self, root: Path, backend: str, durability: Any = "fsync") -> None:
        self.root, self.backend = root, backend
        self.options = StoreOptions(durability=durability)
        self.queue = WriteQueue(128 << 10)  # holds five entries: the writing thread is never far behind
        self.failures: list[str] = []
        self.progress = os.open(root / "progress", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self.hosts: dict[bytes, HostTensor] = {}

    def sink(self, step: int) -> UnitSink:
        self.hosts.clear()
        make = partial(
            DumpWriter, self.root / f"step{step}" / "rank", HEADER,
            backend=self.backend, options=self.options, sync_entries=BATCH,
        )  # fmt: skip
        return UnitSink(self.queue, make, on_failure=self.failed, md5=False)

    def failed(self, what: str, error: BaseException) -> None:
        self.failures.append(f"{what}: {error}")

    def entry(self, number: int, count: int = 1 << 12) -> Entry:
        bits = values(number, count)
        host = self.hosts.setdefault(bits.tobytes(), HostTensor(bits, FLOAT32))
        return entry(key(number), host)

    def put(self, sink: UnitSink, number: int, count: int = 1 << 12) -> None:
        sink.put([self.entry(number, count)])
        sink.put_parents({key(number): None})
        self.queue.submit(partial(os.write, self.progress, b"%d\n" % (number + 1)))


def die(root: str, backend: str, how: str, when: int, durability: str = "fsync") -> None:
    """Runs in a process of its own, which dies after ``when`` entries were handed over."""
    training = Training(Path(root), backend, durability)
    sink = training.sink(0)
    try:
        for number in range(COUNT):
            if number == when:
                end(how)
            training.put(sink, number)
    except BaseException as error:
        sink.close(f"{type(error).__name__}: {error}")
        training.queue.close()
        raise


def end(how: str) -> None:
    if how == "kill":
        os.kill(os.getpid(), signal.SIGKILL)
    if how == "_exit":
        os._exit(17)
    if how == "exit":
        sys.exit(17)
    raise ValueError("the loss is NaN")


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "tests.crash.test_capture_sink", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)


def check(root: Path, at_least: int, at_most: int, step: int = 0) -> str:
    """What is readable: a prefix of what was handed over, bit for bit; the reason that the unit gives."""
    with msformat.open(root) as dump:
        unit = dump[step]
        assert not unit.complete
        found = list(unit)
        assert found == [key(number) for number in range(len(found))]
        assert at_least <= len(found) <= at_most
        for number, name in enumerate(found):
            np.testing.assert_array_equal(unit[name].outputs[0].numpy(), values(number))
    return str(read_journal(root / f"step{step}" / "rank" / "journal.jsonl").reason)


def promised(root: Path) -> int:
    """Entries of whole batches, of those that the writing thread was done with."""
    done = (root / "progress").read_text().split()
    return int(done[-1]) // BATCH * BATCH if done else 0


@pytest.mark.parametrize("when", [12, 33, 59])
@pytest.mark.parametrize("backend", BACKENDS)
def test_kill(tmp_path: Path, backend: str, when: int) -> None:
    assert run("die", tmp_path, backend, "kill", when).returncode == -signal.SIGKILL
    assert promised(tmp_path) >= when - 10
    check(tmp_path, promised(tmp_path), when)
    (report,) = msformat.recover_dump(tmp_path).units
    assert report.is_whole
    with msformat.open(tmp_path) as dump:
        assert dump[0].complete


@pytest.mark.parametrize("backend", BACKENDS)
def test_kill_without_fsync(tmp_path: Path, backend: str) -> None:
    """The death of a process is survived without it."""
    assert run("die", tmp_path, backend, "kill", 50, "process").returncode == -signal.SIGKILL
    assert promised(tmp_path) >= 40
    check(tmp_path, promised(tmp_path), 50)


@pytest.mark.parametrize("backend", BACKENDS)
def test_exit_without_farewell(tmp_path: Path, backend: str) -> None:
    assert run("die", tmp_path, backend, "_exit", 50).returncode == 17
    assert promised(tmp_path) >= 40
    check(tmp_path, promised(tmp_path), 50)


@pytest.mark.parametrize(("how", "reason"), [("raise", "ValueError: the loss is NaN"), ("exit", "SystemExit: 17")])
@pytest.mark.parametrize("backend", BACKENDS)
def test_an_exception_leaves_everything_and_its_words(tmp_path: Path, backend: str, how: str, reason: str) -> None:
    done = run("die", tmp_path, backend, how, 50)
    assert done.returncode == (17 if how == "exit" else 1)
    assert check(tmp_path, 50, 50) == reason


def fill(root: str, backend: str) -> None:
    """Runs in a process of its own: the disk is full in the middle of step 0, and has room again in step 1."""
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (LIMIT, resource.RLIM_INFINITY))
    training, trained = Training(Path(root), backend), 0
    first = training.sink(0)
    for number in range(COUNT):
        # What no file may hold, however a store lays out its files.
        training.put(first, number, 1 << 18 if number == 8 else 1 << 10)
        trained += 1
    first.finish()
    training.queue.drain()
    waiting = training.queue.waiting_bytes
    resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
    second = training.sink(1)
    for number in range(BATCH):
        training.put(second, number)
    second.finish()
    training.queue.close()
    kept = sum(host.bits is not None for host in training.hosts.values())
    print(json.dumps({"trained": trained, "failures": training.failures, "waiting": waiting, "kept": kept}))


@pytest.mark.parametrize("backend", BACKENDS)
def test_disk_full(tmp_path: Path, backend: str) -> None:
    done = run("fill", tmp_path, backend)
    assert done.stderr == ""
    told = json.loads(done.stdout)
    assert (told["trained"], told["waiting"], told["kept"]) == (COUNT, 0, 0)
    (failure,) = told["failures"]
    # A store with threads of its own tells at a later entry, but what it could not write.
    assert f"{key(8)}.output.0.pt" in failure
    assert "File too large" in failure
    with msformat.open(tmp_path) as dump:
        assert [unit.complete for unit in dump] == [False, True]
        assert list(dump[0]) == [key(number) for number in range(8)]
        for number, name in enumerate(dump[0]):
            np.testing.assert_array_equal(dump[0][name].outputs[0].numpy(), values(number, 1 << 10))
        assert list(dump[1]) == [key(number) for number in range(BATCH)]
    reason = str(read_journal(tmp_path / "step0" / "rank" / "journal.jsonl").reason)
    assert "File too large" in reason


def main(what: str, root: str, backend: str, *how: str) -> None:
    if what == "fill":
        fill(root, backend)
    else:
        die(root, backend, how[0], int(how[1]), *how[2:])


if __name__ == "__main__":
    main(*sys.argv[1:])
