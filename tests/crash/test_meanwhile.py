"""Readers beside a living writer, disks that keep it waiting, clocks that go backwards."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import msformat
from capture.framework import HostTensor
from capture.queue import WriteQueue
from capture.sink import UnitSink
from msformat import DumpWriter, StoreError, dtype_named
from msformat.atomic import temporary_sibling
from msformat.convert import ConvertOptions, convert
from tests.capture.test_sink import entry
from tests.crash.workload import BACKENDS, HEADER, Step, put, steps
from tests.small_dumps import temporaries, tree_bytes, write_tree

ROOT = Path(__file__).parents[2]
FLOAT32 = dtype_named("float32")
SEED = 3

# Does what it is told on standard input, a word a line, and says when it is done.
WRITER = """
import sys
from msformat import DumpWriter
from tests.crash.workload import HEADER, put, steps
made = steps(int(sys.argv[3]), 1000)
writer = DumpWriter(sys.argv[1], HEADER, backend=sys.argv[2], sync_entries=1000)
for line in sys.stdin:
    if line.strip() == "finish":
        writer.finish()
    else:
        for _ in range(int(line)):
            put(writer, next(made))
        writer.commit()
    print("done", flush=True)
"""


class Writer:
    """A writer in a process of its own, which goes on when it is told."""

    def __init__(self, unit: Path, backend: str) -> None:
        command = [sys.executable, "-c", WRITER, str(unit), backend, str(SEED)]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        self._process = subprocess.Popen(
            command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT, env=environment
        )

    def tell(self, word: object) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        print(word, file=self._process.stdin, flush=True)
        assert self._process.stdout.readline() == "done\n"

    def end(self) -> None:
        self._process.communicate()


@pytest.fixture(params=BACKENDS)
def writer(request: pytest.FixtureRequest, tmp_path: Path) -> Iterator[tuple[Writer, str]]:
    made = Writer(tmp_path / "d/step0/rank", request.param)
    yield made, request.param
    made.end()


def check_tensors(unit: msformat.Unit, one: Step) -> None:
    for name, (bits, dtype) in one.tensors.items():
        found = unit.tensor(name).numpy()
        assert (
            found.tobytes() == (dtype.widen_bfloat16(bits) if found.dtype.itemsize > dtype.itemsize else bits).tobytes()
        )


def test_a_reader_beside_a_writer_sees_what_was_promised(writer: tuple[Writer, str], tmp_path: Path) -> None:
    process, backend = writer
    process.tell(3)
    with msformat.open(tmp_path / "d") as early:
        first = early[0]
        assert len(first) == 3
        for count in (3, 8, 20):
            if count > 3:
                process.tell(count - (3 if count == 8 else 8))
            wanted = list(steps(SEED, count))
            with msformat.open(tmp_path / "d") as dump:
                (unit,) = dump
                assert not unit.complete
                assert "still being written" in str(unit.incomplete_reason)
                assert list(unit) == [one.key for one in wanted]
                for one in wanted:
                    if backend == "hdf5":
                        # HDF5's own lock: a second process is told so, and how it may look all the same.
                        with pytest.raises(StoreError, match="HDF5_USE_FILE_LOCKING=FALSE"):
                            check_tensors(unit, one)
                    else:
                        check_tensors(unit, one)
        process.tell("finish")
        # Who opened it then keeps seeing what was there then; all of it can be read.
        assert list(first) == [one.key for one in steps(SEED, 3)]
        for one in steps(SEED, 3):
            check_tensors(first, one)
    with msformat.open(tmp_path / "d") as dump:
        assert dump[0].complete
        assert list(dump[0]) == [one.key for one in steps(SEED, 20)]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_disk_that_keeps_the_writer_waiting(tmp_path: Path, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """The training waits at the bound of the queue, memory stays there, and nothing is lost."""
    is_there, goes_on = threading.Event(), threading.Event()
    fsync = os.fsync

    def slow(descriptor: int) -> None:
        is_there.set()
        goes_on.wait()
        fsync(descriptor)

    monkeypatch.setattr(os, "fsync", slow)
    count, most, seen = 40, 128 << 10, []
    queue = WriteQueue(most)
    sink = UnitSink(
        queue,
        partial(DumpWriter, tmp_path / "step0/rank", HEADER, backend=backend, sync_entries=2),
        on_failure=lambda what, error: seen.append(-1),
        md5=False,
    )

    def train() -> None:
        for number in range(count):
            sink.put([entry(f"Torch.op.{number}.forward", HostTensor(np.full(1 << 13, number, np.float32), FLOAT32))])
            seen.append(queue.waiting_bytes)

    training = threading.Thread(target=train)
    training.start()
    is_there.wait()
    # Forty tensors of 32 KiB do not fit into the queue: as long as the disk waits, the training cannot be done.
    assert training.is_alive()
    goes_on.set()
    training.join()
    sink.finish()
    queue.close()
    assert min(seen) >= 0
    assert max(seen) <= most
    with msformat.open(tmp_path) as dump:
        assert dump[0].complete
        assert [entry.outputs[0].numpy()[0] for entry in dump[0].values()] == list(range(count))


@pytest.fixture
def backwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each time somebody looks, it is an hour earlier."""
    now = [time.time()]

    def earlier() -> float:
        now[0] -= 3600
        return now[0]

    monkeypatch.setattr(time, "time", earlier)
    monkeypatch.setattr(time, "time_ns", lambda: int(earlier() * 1e9))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_clock_that_goes_backwards_while_a_dump_is_written(tmp_path: Path, backend: str, backwards: None) -> None:
    for step in range(2):
        with DumpWriter(tmp_path / f"step{step}/rank", HEADER, backend=backend, sync_entries=2) as writer:
            for one in steps(SEED, 9):
                put(writer, one)
    with msformat.open(tmp_path) as dump:
        assert [unit.key.path for unit in dump] == ["step0/rank", "step1/rank"]
        for unit in dump:
            assert list(unit) == [one.key for one in steps(SEED, 9)]


@pytest.mark.parametrize("target", ["out", "out.h5", "out.zarr"])
def test_a_clock_that_went_backwards_before_a_conversion_is_resumed(
    tmp_path: Path, target: str, backwards: None
) -> None:
    """What looks newest is not what was written last: the result is right all the same, and nothing is left."""
    source, place = write_tree(tmp_path / "src"), tmp_path / "place"
    good = convert(source, tmp_path / target)
    assert good.exit_code == 0
    place.mkdir()
    if "." in target:
        os.rename(tmp_path / target, real := temporary_sibling(place / target))
        other = Path(temporary_sibling(place / target))
        other.mkdir() if target.endswith(".zarr") else other.write_bytes(b"of another run")
    else:
        (place / "out/step0").mkdir(parents=True)
        os.rename(tmp_path / "out/step0/rank", real := temporary_sibling(place / "out/step0/rank"))
        other = Path(temporary_sibling(place / "out/step0/rank"))
        other.mkdir()
    os.utime(real, (0, 0))
    os.utime(other, (2e9, 2e9))
    assert convert(source, place / target, ConvertOptions(resume=True)).exit_code == 0
    assert not temporaries(place)
    convert(place / target, tmp_path / "back", ConvertOptions(to="files"))
    assert tree_bytes(tmp_path / "back") == tree_bytes(source)
