"""One unit on its way to the disk: what is handed over is what msformat opens; failures cost what they must."""

from __future__ import annotations

import gc
import json
import logging
import os
import subprocess
import sys
import threading
import time
import weakref
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import msformat
from capture.framework import HostTensor
from capture.queue import WriteQueue
from capture.sink import UnitSink
from capture.stacks import frame_texts, frames_of
from msformat import DumpWriter, Header, StoreError, dtype_named

FLOAT32 = dtype_named("float32")
HEADER = Header("tensor", "mix", "pytorch")
ROOT = Path(__file__).parents[2]
BACKENDS = ("files", "hdf5", "zarr")


@dataclass
class Entry:
    """What :class:`capture.sink.Record` asks for."""

    key: str
    value: Any = field(default_factory=dict)
    tensors: list[tuple[str, HostTensor, dict[str, Any]]] = field(default_factory=list)


def host(*values: float) -> HostTensor:
    return HostTensor(np.array(values, np.float32), FLOAT32)


def node(content: HostTensor) -> dict[str, Any]:
    statistics = {"Max": float("nan"), "Min": 0.0, "Mean": None, "Norm": float("inf")}
    shape = [content.nbytes // 4]
    return {"type": "torch.Tensor", "dtype": "torch.float32", "shape": shape, **statistics, "requires_grad": False}


def entry(key: str, *contents: HostTensor) -> Entry:
    """An entry whose outputs these are."""
    nodes = [node(content) for content in contents]
    tensors = [
        (f"{key}.output.{number}.pt", content, one)
        for number, (content, one) in enumerate(zip(contents, nodes, strict=True))
    ]
    return Entry(key, {"input_args": [], "input_kwargs": {}, "output": nodes, "is_recompute": False}, tensors)


@pytest.fixture
def queue() -> Iterator[WriteQueue]:
    made = WriteQueue(1 << 20)
    yield made
    made.close()


class Place:
    """A unit, its sink, and what the sink said."""

    def __init__(self, root: Path, queue: WriteQueue, *, md5: bool = False, backend: str = "files", step: int = 0):
        self.root, self.unit, self.queue = root, root / f"step{step}" / "rank", queue
        self.failures: list[tuple[str, BaseException]] = []
        self.made: list[DumpWriter] = []
        self.backend = backend
        self.sink = UnitSink(queue, self.make, on_failure=lambda *failure: self.failures.append(failure), md5=md5)

    def make(self) -> DumpWriter:
        self.made.append(DumpWriter(self.unit, HEADER, backend=self.backend))
        return self.made[-1]

    def done(self) -> Any:
        """Finish, and what dump.json says then."""
        self.sink.finish()
        assert self.queue.drain(20)
        return json.loads((self.unit / "dump.json").read_text())["data"]


@pytest.fixture
def place(tmp_path: Path, queue: WriteQueue) -> Place:
    return Place(tmp_path, queue)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_unit_as_it_was_handed_over(tmp_path: Path, queue: WriteQueue, backend: str) -> None:
    place = Place(tmp_path, queue, backend=backend)
    shared, frames = host(1, 2, 3), frames_of(sys._getframe())
    place.sink.put([entry("Torch.a.0.forward", shared), entry("Torch.b.0.forward", shared, host(4))])
    place.sink.put_parents({"Torch.a.0.forward": None, "Torch.b.0.forward": "Torch.a.0.forward"})
    place.sink.put_stack(["Torch.a.0.forward"], frames)
    place.sink.put_problem("Torch.c.0.forward: not captured: no reason")
    place.sink.finish()
    queue.drain()
    assert not place.failures
    assert not place.sink.failed
    with msformat.open(tmp_path) as dump:
        (unit,) = dump
        assert unit.complete
        assert list(unit) == ["Torch.a.0.forward", "Torch.b.0.forward"]
        first, second = unit["Torch.b.0.forward"].outputs
        assert first.numpy().tolist() == [1, 2, 3]
        assert second.numpy().tolist() == [4]
        assert unit["Torch.a.0.forward"].stack == tuple(frame_texts(frames))
        assert unit.tree().children("Torch.a.0.forward") == ("Torch.b.0.forward",)


def test_content_under_two_names_is_given_to_the_store_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    put: list[str] = []
    real = DumpWriter.put_tensor

    def counting(self: DumpWriter, name: str, *args: Any, **options: Any) -> str:
        put.append(name)
        return real(self, name, *args, **options)

    monkeypatch.setattr(DumpWriter, "put_tensor", counting)
    shared = host(1, 2)
    place.sink.put([entry("Torch.a.0.forward", shared, shared)])
    place.sink.put([entry("Torch.b.0.forward", shared)])
    data = place.done()
    assert put == ["Torch.a.0.forward.output.0.pt"]
    names = [data[key]["output"][-1]["data_name"] for key in data]
    assert names == ["Torch.a.0.forward.output.1.pt", "Torch.b.0.forward.output.0.pt"]
    files = [(place.unit / "dump_tensor_data" / name).stat().st_ino for name in (*put, *names)]
    assert len(set(files)) == 1


def test_fields_stand_in_the_order_of_the_format(tmp_path: Path, queue: WriteQueue) -> None:
    place = Place(tmp_path, queue, md5=True)
    place.sink.put([entry("Torch.a.0.forward", host(1, 2))])
    (output,) = place.done()["Torch.a.0.forward"]["output"]
    assert list(output)[-3:] == ["requires_grad", "md5", "data_name"]
    assert output["md5"] == f"{zlib.crc32(np.array([1, 2], '<f4').tobytes()):08x}"
    text = (place.unit / "dump.json").read_text()
    assert '"Max": NaN' in text
    assert '"Norm": Infinity' in text


def test_an_md5_that_is_there_stays(tmp_path: Path, queue: WriteQueue) -> None:
    place = Place(tmp_path, queue, md5=True)
    one = entry("Torch.a.0.forward", host(1))
    one.tensors[0][2]["md5"] = "0badcafe"
    place.sink.put([one])
    assert place.done()["Torch.a.0.forward"]["output"][0]["md5"] == "0badcafe"


def test_names_are_data(place: Place) -> None:
    one = entry("a/../../b.0.debug", host(1))
    twice = entry("Torch.a.0.forward", host(2), host(3))
    twice.tensors = [("same.pt", content, record) for _, content, record in twice.tensors]
    place.sink.put([one, twice])
    data = place.done()
    assert not place.failures
    assert {path.name for path in place.root.iterdir()} == {"step0"}
    names = [record["data_name"] for record in data["Torch.a.0.forward"]["output"]]
    assert len(set(names)) == 2
    with msformat.open(place.root) as dump:
        assert list(dump[0]) == ["a/../../b.0.debug", "Torch.a.0.forward"]
        assert [tensor.numpy().tolist() for tensor in dump[0].tensors()] == [[1], [2], [3]]


def test_a_unit_without_data_leaves_no_trace(place: Place) -> None:
    place.sink.finish()
    place.queue.drain()
    assert not place.made
    assert not list(place.root.iterdir())


def test_problems_alone_are_no_dump(place: Place) -> None:
    place.sink.put_problem("nothing fits")
    place.sink.finish()
    place.queue.drain()
    assert not list(place.root.iterdir())
    assert not place.failures


def test_close_says_why(place: Place) -> None:
    place.sink.put([entry("Torch.a.0.forward", host(1))])
    place.sink.close("the program ended")
    place.queue.drain()
    with msformat.open(place.root) as dump:
        assert not dump[0].complete
        assert list(dump[0]) == ["Torch.a.0.forward"]
    assert "the program ended" in (place.unit / "journal.jsonl").read_text()


# --- memory ----------------------------------------------------------------------------------------------------------


def test_no_bits_are_kept_once_stored(place: Place) -> None:
    """The host's owner may live on (in a cache); its bits must not."""
    contents = [host(number) for number in range(20)]
    bits = [weakref.ref(content.bits) for content in contents]
    place.sink.put([entry(f"Torch.a.{number}.forward", content) for number, content in enumerate(contents)])
    place.queue.drain()
    gc.collect()
    assert all(content.bits is None for content in contents)
    assert [one() for one in bits] == [None] * 20
    place.sink.finish()


def test_content_counts_once_however_many_names_it_has(place: Place) -> None:
    may_go = threading.Event()
    place.queue.submit(may_go.wait)
    shared = HostTensor(np.zeros(1 << 18, np.uint8).view(np.float32), FLOAT32)
    for number in range(20):  # 20 x 256 KiB would not fit into 1 MiB
        place.sink.put([entry(f"Torch.a.{number}.forward", shared)])
    assert shared.nbytes < place.queue.waiting_bytes < 2 * shared.nbytes
    may_go.set()
    assert len(place.done()) == 20
    assert place.queue.waiting_bytes == 0


def test_a_slow_store_makes_training_wait_and_keeps_memory_flat(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    bits: list[weakref.ref[Any]] = []
    most = 0
    real = DumpWriter.put_tensor

    def slow(self: DumpWriter, name: str, *args: Any, **options: Any) -> str:
        nonlocal most
        most = max(most, sum(one() is not None for one in bits))
        time.sleep(0.002)
        return real(self, name, *args, **options)

    monkeypatch.setattr(DumpWriter, "put_tensor", slow)
    for number in range(60):
        content = HostTensor(np.full(1 << 16, number, np.float32), FLOAT32)
        bits.append(weakref.ref(content.bits))
        place.sink.put([entry(f"Torch.a.{number}.forward", content)])
    # 1 MiB holds three of 256 KiB and their JSON; one more is in the hands of whoever waits, one in the store's.
    assert 3 <= most <= 5
    assert len(place.done()) == 60


def test_statistics_alone_are_bounded_too(place: Place) -> None:
    may_go = threading.Event()
    place.queue.submit(may_go.wait)

    def put() -> None:
        for number in range(100):
            place.sink.put([entry(f"Torch.a.{number}.forward.{part}") for part in range(10)])

    thread = threading.Thread(target=put)
    thread.start()
    thread.join(0.3)
    assert thread.is_alive()
    may_go.set()
    thread.join(20)
    assert len(place.done()) == 1000


# --- failures --------------------------------------------------------------------------------------------------------


def failing(monkeypatch: pytest.MonkeyPatch, method: str, when: Callable[..., bool], error: Exception) -> None:
    real = getattr(DumpWriter, method)

    def fail(self: DumpWriter, *args: Any, **options: Any) -> Any:
        if when(*args):
            raise error
        return real(self, *args, **options)

    monkeypatch.setattr(DumpWriter, method, fail)


def test_a_store_that_fails_ends_the_unit_once(place: Place, monkeypatch: pytest.MonkeyPatch) -> None:
    place.sink.put([entry("Torch.a.0.forward", host(1))])
    failing(monkeypatch, "put_tensor", lambda name, *_: name.startswith("Torch.b"), StoreError("the disk is full"))
    contents = [host(number) for number in range(6)]
    place.sink.put([entry("Torch.b.0.forward", contents[0]), entry("Torch.b.1.forward", contents[1])])
    place.sink.put([entry("Torch.c.0.forward", *contents[2:])])
    place.sink.put_parents({"Torch.a.0.forward": None})
    place.sink.put_problem("later")
    place.sink.finish()
    place.sink.close("late")
    place.queue.drain()
    assert [(what, str(error)) for what, error in place.failures] == [("entry 'Torch.b.0.forward'", "the disk is full")]
    assert place.sink.failed
    assert all(content.bits is None for content in contents)
    assert place.queue.waiting_bytes == 0
    with msformat.open(place.root) as dump:
        assert not dump[0].complete
        assert list(dump[0]) == ["Torch.a.0.forward"]
        assert dump[0]["Torch.a.0.forward"].outputs[0].numpy().tolist() == [1]
    assert "entry 'Torch.b.0.forward': the disk is full" in (place.unit / "journal.jsonl").read_text()


def test_a_unit_that_cannot_be_made_fails_once(place: Place) -> None:
    place.unit.mkdir(parents=True)
    (place.unit / "dump.json").write_text("{}")
    for number in range(3):
        place.sink.put([entry(f"Torch.a.{number}.forward", host(1))])
    place.sink.finish()
    place.queue.drain()
    ((what, error),) = place.failures
    assert what == "entry 'Torch.a.0.forward'"
    assert "a dump lies here already" in str(error)
    assert (place.unit / "dump.json").read_text() == "{}"


@pytest.mark.parametrize("error", [StoreError("gone"), RuntimeError("odd"), msformat.FormatError("odd")])
def test_an_end_that_fails_is_told(place: Place, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    failing(monkeypatch, "finish", lambda: True, error)
    place.sink.put([entry("Torch.a.0.forward", host(1))])
    place.sink.finish()
    place.queue.drain()
    assert place.failures == [("the end of the dump", error)]
    with msformat.open(place.root) as dump:
        assert not dump[0].complete


@pytest.mark.parametrize("error", [msformat.FormatError("bad name"), msformat.DTypeError("float1"), MemoryError("big")])
def test_a_tensor_that_is_refused_costs_itself(place: Place, monkeypatch: pytest.MonkeyPatch, error: Exception) -> None:
    failing(monkeypatch, "put_tensor", lambda name, *_: name == "Torch.a.0.forward.output.0.pt", error)
    bad = host(1)
    place.sink.put([entry("Torch.a.0.forward", bad, host(2)), entry("Torch.b.0.forward", bad)])
    data = place.done()
    first, second = data["Torch.a.0.forward"]["output"]
    assert first["not_captured"] == str(error)
    assert "data_name" not in first
    assert second["data_name"] == "Torch.a.0.forward.output.1.pt"
    assert "not_captured" in data["Torch.b.0.forward"]["output"][0]  # the same content, gone
    log = (place.unit / "dump_error_info.log").read_text().splitlines()
    assert log[0] == f"tensor 'Torch.a.0.forward.output.0.pt': not captured: {error}"
    assert not place.failures


def test_an_entry_that_is_refused_costs_itself(place: Place) -> None:
    place.sink.put([entry("Torch.a.0.forward", host(1)), Entry("Torch.b.0.forward", {"x": object()})])
    place.sink.put([entry("Torch.c.0.forward", host(2))])
    assert list(place.done()) == ["Torch.a.0.forward", "Torch.c.0.forward"]
    assert "entry 'Torch.b.0.forward': not captured: " in (place.unit / "dump_error_info.log").read_text()
    assert not place.failures


def test_content_of_another_unit_is_stored_again_or_says_that_it_is_gone(tmp_path: Path, queue: WriteQueue) -> None:
    first, second = Place(tmp_path, queue), Place(tmp_path, queue, step=1)
    shared, again = host(1, 2), host(3)
    first.sink.put([entry("Torch.a.0.forward", shared, again)])
    assert queue.drain()
    again.bits = np.array([3], np.float32)  # as a framework that still has it would
    second.sink.put([entry("Torch.a.0.forward", shared, again)])
    assert first.done()["Torch.a.0.forward"]["output"][0]["data_name"]
    gone, stored = second.done()["Torch.a.0.forward"]["output"]
    assert "content went to another unit" in gone["not_captured"]
    assert "data_name" not in gone
    with msformat.open(tmp_path) as dump:
        assert dump[1]["Torch.a.0.forward"].outputs[1].numpy().tolist() == [3]
    assert stored["data_name"]


def test_what_comes_after_the_end_is_told(place: Place, caplog: pytest.LogCaptureFixture) -> None:
    place.sink.put([entry("Torch.a.0.forward", host(1))])
    place.sink.finish()
    with caplog.at_level(logging.WARNING):
        place.sink.put([entry("Torch.late.0.forward", host(1))])
        assert list(place.done()) == ["Torch.a.0.forward"]
    assert "Torch.late.0.forward" in caplog.text
    assert not place.failures


def test_a_failure_that_nobody_can_be_told_does_not_stop_the_next_unit(
    tmp_path: Path, queue: WriteQueue, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: object) -> None:
        raise ValueError("no ear")

    (tmp_path / "step0").write_text("in the way")
    sink = UnitSink(queue, lambda: DumpWriter(tmp_path / "step0" / "rank", HEADER), on_failure=fail, md5=False)
    sink.put([entry("Torch.a.0.forward", host(1))])
    place = Place(tmp_path, queue, step=1)
    place.sink.put([entry("Torch.a.0.forward", host(1))])
    assert list(place.done()) == ["Torch.a.0.forward"]
    assert sink.failed
    assert "no ear" in caplog.text


# --- forks -----------------------------------------------------------------------------------------------------------


FORK = """
import os, sys, time, warnings
from pathlib import Path
import numpy as np
warnings.simplefilter("ignore", DeprecationWarning)
from capture.queue import WriteQueue
from tests.capture.test_sink import Place, entry, host
queue = WriteQueue(1 << 20)
place = Place(Path(sys.argv[1]), queue, backend=sys.argv[2])
for number in range(100):
    place.sink.put([entry(f"Torch.a.{number}.forward", host(number))])
    if number in (30, 60):
        child = os.fork()
        if child == 0:
            place.sink.put([entry("Torch.child.0.forward", host(-1))])
            place.sink.finish()
            place.sink.close("child")
            queue.close()
            sys.exit(0)  # with everything an interpreter does at its end
        if number == 60:
            assert os.waitpid(child, 0)[1] == 0
        else:
            time.sleep(0.05)
place.sink.finish()
queue.close()
assert not place.failures, place.failures
"""


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.skipif(not hasattr(os, "fork"), reason="no fork")
def test_forks_in_the_middle_leave_the_unit_to_the_parent(tmp_path: Path, backend: str) -> None:
    done = subprocess.run(
        [sys.executable, "-c", FORK, str(tmp_path), backend],
        cwd=ROOT, capture_output=True, text=True, timeout=60, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    with msformat.open(tmp_path) as dump:
        assert dump[0].complete
        found = [dump[0][key].outputs[0].numpy().tolist() for key in dump[0]]
    assert found == [[number] for number in range(100)]
    assert msformat.verify_dump(tmp_path).exit_code == 0
