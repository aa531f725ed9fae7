"""Saved variables: what ``PrecisionDebugger.save`` leaves in the dump, judged by msprobe's where it is right."""

from __future__ import annotations

import gc
import json
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import msformat
from capture.config import load_config
from capture.errors import CaptureError
from capture.queue import WriteQueue
from capture.record import EntryRecord, Recorder
from capture.saving import Saver
from capture.sink import UnitSink
from capture.unit import StepRecords
from msformat import DumpWriter, Header
from tests.capture.fake_framework import FakeFramework, FakeTensor

STEM = ("type", "dtype", "shape", "Max", "Min", "Mean", "Norm", "requires_grad")


class Collected:
    """Entries in order, as they were when they were handed over."""

    def __init__(self) -> None:
        self.entries: list[tuple[str, Any, list[str]]] = []
        self.open: list[EntryRecord] = []

    def add(self, entry: EntryRecord) -> None:
        self.entries.append((entry.key, json.loads(json.dumps(entry.value)), [raw for raw, *_ in entry.tensors]))

    def reserve(self, entry: EntryRecord) -> None:
        self.open.append(entry)

    def complete(self, entry: EntryRecord) -> None:
        self.open.remove(entry)
        self.add(entry)

    def end(self) -> dict[str, Any]:
        """The step ends: what is open is taken as it is."""
        for entry in self.open:
            self.add(entry)
        return {key: value for key, value, _ in self.entries}


class Bench:
    """A saver over the fake framework."""

    def __init__(self, **keys: Any) -> None:
        self.problems: list[tuple[str, str, str]] = []
        self.framework = FakeFramework(suffix=".pt")
        config = load_config(dump_path="x", level="debug", **keys)
        recorder = Recorder(self.framework, on_problem=lambda *details: self.problems.append(details))
        self.saver = Saver(self.framework, recorder, config)
        self.records = Collected()

    def save(self, variable: Any, name: str = "v", *, backward: bool = True) -> None:
        self.saver.save(variable, name, self.records, save_backward=backward)

    def files(self) -> list[str]:
        return [raw for *_, tensors in self.records.entries for raw in tensors]


def leaf(*values: float) -> FakeTensor:
    return FakeTensor(np.array(values, np.float32), requires_grad=True)


def gradient(*values: float) -> FakeTensor:
    return FakeTensor(np.array(values, np.float32))


def norms(node: Any) -> Any:
    """The document with each tensor as its Max and each scalar as its value."""
    if isinstance(node, list):
        return [norms(part) for part in node]
    if isinstance(node, dict) and not isinstance(node.get("type"), str):
        return {key: norms(part) for key, part in node.items()}
    return node if node is None else node.get("Max", node.get("value"))


# --- as msprobe does -------------------------------------------------------------------------------------------------


def test_a_real_dump_comes_out_the_same(golden: Callable[[str], Path], tmp_path: Path) -> None:
    """The calls behind the golden dump, with its values: same document, same files, bit for bit."""
    expected_dir = golden("torch_8.1.0_debug_tensor") / "step0" / "rank"
    expected = msformat.open(expected_dir)[0]
    y = FakeTensor(expected["y.0.debug"].value.numpy(), requires_grad=True)
    inner = FakeTensor(expected["list.0.debug"].value[1][0].numpy(), requires_grad=True)
    bench = Bench(task="tensor")
    records, finish = real_records(bench, tmp_path / "step0" / "rank")
    bench.records = records
    bench.save(y, "y", backward=False)
    bench.save(y, "y")
    bench.save(3.5, "scalar")
    bench.save([y, [inner]], "list")
    y.backward(FakeTensor(expected["y_grad.1.debug"].value.numpy()))
    finish()
    ours, theirs = (
        json.loads((where / "debug.json").read_text())["data"] for where in (tmp_path / "step0/rank", expected_dir)
    )
    assert list(ours) == list(theirs)
    assert without_statistics(ours) == without_statistics(theirs)
    found = msformat.open(tmp_path)[0]
    assert sorted(found.store.keys()) == sorted(expected.store.keys())
    for name in list(expected.store.keys()):
        assert found.store.get(name).bits().tobytes() == expected.store.get(name).bits().tobytes()


def without_statistics(node: Any) -> Any:
    if isinstance(node, list):
        return [without_statistics(part) for part in node]
    if not isinstance(node, dict):
        return node
    return {key: without_statistics(part) for key, part in node.items() if key not in ("Max", "Min", "Mean", "Norm")}


def test_counts_by_name_and_step() -> None:
    bench = Bench()
    for name in ("a", "b", "a", "a.0", "a.0.debug", "a"):
        bench.save(1, name, backward=False)
    assert [key for key, *_ in bench.records.entries] == [
        "a.0.debug", "b.0.debug", "a.1.debug", "a.0.0.debug", "a.0.debug.0.debug", "a.2.debug",
    ]  # fmt: skip
    bench.saver.new_step()
    bench.save(1, "a", backward=False)
    assert bench.records.entries[-1][0] == "a.0.debug"
    bench.records = Collected()  # a step that began in another way
    bench.save(1, "a", backward=False)
    assert bench.records.entries[-1][0] == "a.0.debug"


def test_a_variable_called_like_the_gradients_of_another() -> None:
    bench = Bench()
    x = leaf(1)
    bench.save(x, "y")
    bench.save(2, "y_grad", backward=False)
    bench.save(3, "z_grad", backward=False)
    bench.save(x, "z")
    x.backward(gradient(7))
    found = bench.records.end()
    assert {key: norms(value) for key, value in found.items()} == {
        "y.0.debug": 1, "y_grad.0.debug": 7, "y_grad.1.debug": 2,
        "z_grad.0.debug": 3, "z.0.debug": 1, "z_grad.1.debug": 7,
    }  # fmt: skip


# --- any value -------------------------------------------------------------------------------------------------------


def test_what_msprobe_drops_is_kept() -> None:
    """None and int keys anywhere in a variable; bool, None and tuple keys too."""
    bench = Bench(task="tensor")
    x, y = leaf(1), leaf(2)
    bench.save({"a": None, 3: x, "b": [None, {"c": y}], (1, 2): x, None: 4, True: "t"})
    x.backward(gradient(5))
    found = bench.records.end()
    value, gradients = found["v.0.debug"], found["v_grad.0.debug"]
    assert (value["a"], value["b"][0], norms(value["3"])) == (None, None, 1)
    assert len(value) == len(gradients) == 6
    assert list(value) == list(gradients)
    assert (norms(gradients["3"]), gradients["b"], gradients["a"]) == (5, [None, {"c": None}], None)
    assert "v.0.debug.3.pt" in bench.files()
    assert "v.0.debug.b.1.c.pt" in bench.files()
    assert "v_grad.0.debug.3.pt" in bench.files()


def test_a_dict_with_the_keys_of_a_record_is_a_dict() -> None:
    bench = Bench()
    x = leaf(1)
    bench.save({"type": "torch.Tensor", "value": x})
    x.backward(gradient(5))
    assert norms(bench.records.end()["v_grad.0.debug"]) == {"type": None, "value": 5}


def test_a_list_in_itself_and_a_generator() -> None:
    bench = Bench()
    x = leaf(1)
    endless: list[Any] = [x]
    endless.append(endless)
    ticks = (tick for tick in range(3))
    bench.save([endless, ticks])
    x.backward(gradient(5))
    found = bench.records.end()
    assert norms(found["v_grad.0.debug"]) == [[5, None], None]
    assert list(ticks) == [0, 1, 2]


@pytest.mark.parametrize("name", ["a/../../b", "", "..", "x" * 1000, "a\nb", "名", "a.0.debug", "\ud800", "con:|?*"])
def test_names_are_data(name: str, tmp_path: Path) -> None:
    bench = Bench(task="tensor")
    unit = tmp_path / "dump" / "step0" / "rank"
    bench.records, finish = real_records(bench, unit)  # type: ignore[assignment]
    x = leaf(1, 2)
    bench.save([x], name)
    x.backward(gradient(5, 6))
    finish()
    assert bench.problems == []
    dump = msformat.open(tmp_path / "dump")[0]
    text = "\\ud800" if name == "\ud800" else name
    assert dump[f"{text}.0.debug"].value[0].numpy().tolist() == [1, 2]
    assert dump[f"{text}_grad.0.debug"].value[0].numpy().tolist() == [5, 6]
    everything = {path for path in tmp_path.rglob("*") if path.is_file()}
    assert all(unit in path.parents for path in everything)
    assert sum(path.suffix == ".pt" for path in everything) == 2
    assert msformat.verify_dump(tmp_path / "dump").exit_code == 0


# --- gradients -------------------------------------------------------------------------------------------------------


def test_gradients_are_null_until_they_come() -> None:
    bench = Bench()
    x, y = leaf(1), leaf(2)
    bench.save({"x": x, "y": [y, 3]})
    assert bench.records.entries[-1] == ("v_grad.0.debug", {"x": None, "y": [None, None]}, [])
    y.backward(gradient(6))
    x.backward(gradient(5))
    editions = [norms(value) for key, value, _ in bench.records.entries if key == "v_grad.0.debug"]
    assert editions[1:] == [{"x": None, "y": [6, None]}, {"x": 5, "y": [6, None]}]


def test_without_backward_nothing_is_hooked() -> None:
    bench = Bench()
    x = leaf(1)
    bench.save(x, backward=False)
    assert x.hooks == []
    assert list(bench.records.end()) == ["v.0.debug"]


def test_a_tensor_without_gradient_stays_null() -> None:
    bench = Bench()
    x = gradient(1)
    bench.save([x, x])
    assert x.hooks == []
    assert bench.records.end()["v_grad.0.debug"] == [None, None]


def test_the_same_tensor_twice() -> None:
    bench = Bench()
    x = leaf(1)
    bench.save([x, {"again": x}])
    bench.save(x, "w")
    x.backward(gradient(5))
    found = bench.records.end()
    assert norms(found["v_grad.0.debug"]) == [5, {"again": 5}]
    assert norms(found["w_grad.0.debug"]) == 5


def test_a_second_backward_pass_is_an_entry_of_its_own(tmp_path: Path) -> None:
    """Each pass gives a part of the sum; msprobe keeps the last part."""
    bench = Bench(task="tensor")
    bench.records, finish = real_records(bench, tmp_path / "step0" / "rank")  # type: ignore[assignment]
    x, y = leaf(1), leaf(2)
    bench.save([x, y], "v")
    for number in (5, 6, 7):
        x.backward(gradient(number))
    y.backward(gradient(8))
    finish()
    unit = msformat.open(tmp_path)[0]
    assert sorted(unit) == ["v.0.debug", "v_grad.0.debug", "v_grad~2.0.debug", "v_grad~3.0.debug"]
    assert [node.numpy().tolist() for node in unit["v_grad.0.debug"].value] == [[5], [8]]
    for key, number in (("v_grad~2.0.debug", 6), ("v_grad~3.0.debug", 7)):
        first, second = unit[key].value
        assert (first.numpy().tolist(), second) == ([number], None)
    assert msformat.verify_dump(tmp_path).exit_code == 0


@pytest.mark.parametrize("name", [None, 3, b"x"])
def test_what_is_no_name_is_not_saved_and_said(name: Any) -> None:
    bench = Bench()
    bench.saver.save(1, name, bench.records)
    assert [kind for kind, _, _ in bench.problems] == ["name"]
    assert not bench.records.entries


def test_a_gradient_after_the_step_is_lost_and_said() -> None:
    bench = Bench()
    x = leaf(1)
    bench.save(x)
    bench.saver.new_step()
    x.backward(gradient(5))
    assert bench.records.end()["v_grad.0.debug"] is None
    assert [kind for kind, *_ in bench.problems] == ["late gradient"]


def test_many_gradients_are_not_written_over_and_over() -> None:
    bench = Bench(task="tensor")
    tensors = [leaf(at) for at in range(1000)]
    bench.save(tensors)
    for at, tensor in enumerate(tensors[:-3]):
        tensor.backward(gradient(at + 1))
    editions = [entry for entry in bench.records.entries if entry[0] == "v_grad.0.debug"]
    assert 30 < len(editions) < 100
    found = bench.records.end()["v_grad.0.debug"]  # the last ones are taken when the step ends
    assert norms(found) == [*range(1, 998), None, None, None]
    assert len(bench.files()) == 1000 + 997


def test_gradients_from_several_threads(tmp_path: Path) -> None:
    bench = Bench(task="tensor")
    bench.records, finish = real_records(bench, tmp_path / "step0" / "rank")  # type: ignore[assignment]
    tensors = [leaf(at) for at in range(200)]
    bench.save(tensors)

    def work(part: list[FakeTensor]) -> None:
        for tensor in part:
            tensor.backward(FakeTensor(tensor.array * 2))

    threads = [threading.Thread(target=work, args=(tensors[at::4],)) for at in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    finish()
    found = msformat.open(tmp_path)[0]["v_grad.0.debug"].value
    assert [node.numpy().tolist() for node in found] == [[2 * at] for at in range(200)]


def test_saving_from_several_threads() -> None:
    bench = Bench()

    def work() -> None:
        for _ in range(100):
            bench.save([1, leaf(1)])

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({key for key, *_ in bench.records.entries}) == 800
    assert bench.problems == []


# --- no harm ---------------------------------------------------------------------------------------------------------


def test_values_are_those_of_the_call() -> None:
    bench = Bench(task="tensor")
    x = leaf(1)
    bench.save(x)
    x.fill_(9)
    assert norms(bench.records.end()["v.0.debug"]) == 1


def test_hooks_return_nothing_and_keep_nothing_alive() -> None:
    bench = Bench()
    x = leaf(1)
    bench.save([x, {"a": leaf(2)}])
    given = gradient(5)
    assert [hook(given) for hook in x.hooks] == [None]
    bench.framework.new_step()
    alive = [weakref.ref(x), weakref.ref(given)]
    gc.disable()
    try:
        del x, given
        assert [reference() for reference in alive] == [None, None]
    finally:
        gc.enable()


def test_a_failure_costs_one_variable(monkeypatch: pytest.MonkeyPatch) -> None:
    bench = Bench()
    x = leaf(1)
    bench.save(x, "good")
    monkeypatch.setattr(bench.framework, "on_gradient", lambda *_: 1 / 0)
    bench.save(x, "bad")
    monkeypatch.setattr(bench.records, "reserve", lambda *_: 1 / 0)
    x.backward(gradient(5))
    assert [(kind, where) for kind, where, _ in bench.problems] == [
        ("save ZeroDivisionError", "bad"), ("save ZeroDivisionError", "good_grad"),
    ]  # fmt: skip
    assert "bad.0.debug" in bench.records.end()


def test_a_gradient_that_nobody_can_bring_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    """The variable and the gradients of the others are there all the same."""
    bench = Bench()
    lost, found = leaf(1), leaf(2)
    ask = bench.framework.on_gradient

    def refuse(tensor: Any, callback: Any) -> bool:
        if tensor is lost:
            raise CaptureError("not in this mode")
        return ask(tensor, callback)

    monkeypatch.setattr(bench.framework, "on_gradient", refuse)
    bench.save([lost, found])
    found.backward(gradient(5))
    assert bench.problems == [("no gradient", "v_grad", "not in this mode")]
    first, second = bench.records.end()["v_grad.0.debug"]
    assert first is None
    assert norms(second) == 5


def test_the_work_is_done_out_of_sight() -> None:
    bench = Bench()
    depths: list[int] = []
    describe = bench.framework.describe
    bench.framework.describe = lambda *details: (depths.append(bench.framework.quiet_depth), describe(*details))[1]  # type: ignore[method-assign]
    recorder = Recorder(bench.framework, on_problem=lambda *_: None)
    saver = Saver(bench.framework, recorder, load_config(dump_path="x", level="debug"))
    x = leaf(1)
    saver.save(x, "v", bench.records)
    x.backward(gradient(5))
    assert depths == [1, 1]
    assert bench.framework.quiet_depth == 0


@pytest.mark.parametrize(("task", "files"), [("tensor", 2), ("statistics", 0)])
def test_task_and_summary_mode(task: str, files: int) -> None:
    bench = Bench(task=task, summary_mode="md5")
    x = leaf(1)
    bench.save(x)
    x.backward(gradient(5))
    assert len(bench.files()) == files
    assert list(bench.records.end()["v.0.debug"]) == [*STEM, "md5"]


# --- through the writer ----------------------------------------------------------------------------------------------


def real_records(bench: Bench, unit: Path) -> tuple[Any, Callable[[], None]]:
    """Records that end in a dump on disk, and how the step ends."""
    queue = WriteQueue(1 << 24)
    failures: list[object] = []

    def make_writer() -> DumpWriter:
        return DumpWriter(unit, Header("tensor", "debug", "pytorch"), document="debug.json")

    sink = UnitSink(queue, make_writer, on_failure=lambda *details: failures.append(details), md5=False)
    records = StepRecords(sink, bench.framework)

    def finish() -> None:
        records.flush(everything=True)
        sink.finish()
        queue.drain()
        queue.close()
        assert failures == []

    return records, finish
