"""Steps, units, order, parents and problems: the life of a session, with a framework over numpy arrays."""

from __future__ import annotations

import json
import logging
import threading
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import msformat
from capture.config import load_config
from capture.errors import CaptureError
from capture.observer import Observer
from capture.session import Session
from tests.capture.fake_framework import FakeFramework, FakeTensor


class NoHooks:
    """Hooks of a program that calls the observer itself."""

    def __init__(self, unfired: tuple[str, ...] = ()) -> None:
        self.is_set = False
        self.unfired = list(unfired)

    def install(self, model: Any) -> None:
        self.is_set = True

    def finish(self) -> None:
        assert self.is_set

    def new_step(self) -> None:
        assert not self.is_set

    def remove(self) -> None:
        self.is_set = False

    def never_fired(self) -> list[str]:
        return self.unfired


def make(path: Path, framework: FakeFramework | None = None, **options: Any) -> Session:
    options = {"level": "mix", "task": "tensor", **options}
    return Session(load_config(dump_path=path, **options), framework or FakeFramework())


def tensor(*values: float, **options: Any) -> FakeTensor:
    return FakeTensor(np.array(values, np.float32), **options)


def api(observer: Observer, name: str, *args: Any, output: Any = None) -> Any:
    call = observer.begin_api("Functional", name, args, {})
    assert call is not None
    observer.end_api(call, output)
    return call


def run_step(session: Session, work: Any, hooks: NoHooks | None = None) -> None:
    if session.start(hooks or NoHooks(), None):
        work(session.observer)
    session.stop()
    session.step()


def raw(unit: Any, key: str) -> dict[str, Any]:
    """The entry as the document says it."""
    found: dict[str, Any] = json.loads(bytes(unit.document("dump.json")))["data"][key]
    return found


def opened(path: Path, session: Session, step: int = 0) -> Any:
    session.close()
    return msformat.open(path)[step, session.rank]


def test_a_step_becomes_a_unit_with_its_tree(tmp_path: Path) -> None:
    session = make(tmp_path)

    def work(observer: Observer) -> None:
        outer = observer.begin_module("Module.a.Block", (tensor(1, 2),), {})
        inner = observer.begin_module("Module.a.fc.Linear", (tensor(1, 2),), {})
        call = api(observer, "linear", tensor(1, 2), output=tensor(3))
        weight = tensor(5, requires_grad=True)
        observer.end_module(inner, tensor(3), {"weight": weight})
        observer.end_module(outer, tensor(4), {})
        observer.open_module_backward(outer)
        observer.open_module_backward(inner)
        observer.api_backward(call, [tensor(7)], [tensor(8), None])
        observer.parameter_gradient("Module.a.fc.Linear", "weight", tensor(9))
        observer.module_backward(inner, [tensor(1)], [tensor(2)])
        observer.module_backward(outer, [tensor(1)], [])

    run_step(session, work)
    unit = opened(tmp_path, session)
    assert unit.complete
    assert list(unit) == [
        "Functional.linear.0.forward",
        "Module.a.fc.Linear.forward.0",
        "Module.a.fc.Linear.parameters_grad",
        "Module.a.Block.forward.0",
        "Functional.linear.0.backward",
        "Module.a.fc.Linear.backward.0",
        "Module.a.Block.backward.0",
    ]
    parents = {key: unit.parent(key) for key in unit if "parameters_grad" not in key}
    assert parents == {
        "Functional.linear.0.forward": "Module.a.fc.Linear.forward.0",
        "Module.a.fc.Linear.forward.0": "Module.a.Block.forward.0",
        "Module.a.Block.forward.0": None,
        "Functional.linear.0.backward": "Module.a.fc.Linear.backward.0",
        "Module.a.fc.Linear.backward.0": "Module.a.Block.backward.0",
        "Module.a.Block.backward.0": None,
    }
    (gradient,) = raw(unit, "Module.a.fc.Linear.parameters_grad")["weight"]
    assert gradient["Max"] == 9
    assert raw(unit, "Functional.linear.0.backward")["output"][1] is None


def test_inputs_are_recorded_before_they_change(tmp_path: Path) -> None:
    session = make(tmp_path)
    value = tensor(-1, 2)

    def work(observer: Observer) -> None:
        call = observer.begin_module("Module.act.ReLU", (value,), {})
        value.fill_(0)
        observer.end_module(call, value, {})

    run_step(session, work)
    entry = opened(tmp_path, session)["Module.act.ReLU.forward.0"]
    assert entry.inputs[0].numpy().tolist() == [-1, 2]
    assert entry.outputs[0].numpy().tolist() == [0, 0]


def test_counts_begin_again_in_each_step(tmp_path: Path) -> None:
    session = make(tmp_path, level="L1")
    for _ in range(3):
        run_step(session, lambda observer: [api(observer, "relu", tensor(1)) for _ in range(2)])
    session.close()
    keys = [list(unit) for unit in msformat.open(tmp_path)]
    assert keys == [["Functional.relu.0.forward", "Functional.relu.1.forward"]] * 3


def test_start_and_stop_twice_in_a_step_go_on_counting(tmp_path: Path) -> None:
    session = make(tmp_path, level="L1")
    for _ in range(2):
        session.start(NoHooks(), None)
        api(session.observer, "relu", tensor(1))
        session.stop()
    session.step()
    assert list(opened(tmp_path, session)) == ["Functional.relu.0.forward", "Functional.relu.1.forward"]


def test_a_backward_after_its_step_belongs_nowhere(tmp_path: Path) -> None:
    session = make(tmp_path, level="L1")
    calls: list[Any] = []
    run_step(session, lambda observer: calls.append(api(observer, "relu", tensor(1))))
    run_step(session, lambda observer: observer.api_backward(calls[0], [tensor(1)], [tensor(1)]))
    session.close()
    assert [list(unit) for unit in msformat.open(tmp_path)] == [["Functional.relu.0.forward"]]


def test_a_closed_session_captures_no_more(tmp_path: Path) -> None:
    session = make(tmp_path, level="L1", step=[0, 2])
    run_step(session, lambda observer: api(observer, "relu", tensor(1)))
    session.close()
    session.close()
    run_step(session, lambda observer: pytest.fail("step 1 is not wanted"))
    with pytest.raises(CaptureError, match="closed"):
        session.start(NoHooks(), None)
    session.stop()
    session.step()


def test_a_backward_between_stop_and_step_belongs_to_the_step(tmp_path: Path) -> None:
    session = make(tmp_path, level="L1")
    session.start(NoHooks(), None)
    call = api(session.observer, "relu", tensor(1))
    session.stop()
    session.observer.api_backward(call, [tensor(1)], [tensor(1)])
    session.step()
    assert list(opened(tmp_path, session)) == ["Functional.relu.0.forward", "Functional.relu.0.backward"]


def test_a_step_without_data_leaves_no_trace_and_is_said_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    session = make(tmp_path / "dump")
    for _ in range(3):
        run_step(session, lambda observer: None)
    run_step(session, lambda observer: api(observer, "relu", tensor(1)))
    session.close()
    assert [path.name for path in (tmp_path / "dump").iterdir()] == ["step3"]
    assert sum("nothing was captured" in record.message for record in caplog.records) == 1


def test_accumulated_gradients_final_first(tmp_path: Path) -> None:
    session = make(tmp_path)

    def work(observer: Observer) -> None:
        for _ in range(3):
            call = observer.begin_module("Module.fc.Linear", (tensor(1),), {})
            observer.end_module(call, tensor(1), {"weight": tensor(1, requires_grad=True)})
        for total in (1, 2, 3):
            observer.parameter_gradient("Module.fc.Linear", "weight", tensor(total))

    run_step(session, work)
    recorded = raw(opened(tmp_path, session), "Module.fc.Linear.parameters_grad")["weight"]
    assert [node["Max"] for node in recorded] == [3, 1, 2]
    assert len({node["data_name"] for node in recorded}) == 3


def test_an_early_stop_leaves_the_stack_right(tmp_path: Path) -> None:
    session = make(tmp_path)

    def work(observer: Observer) -> None:
        outer = observer.begin_module("Module.a.Block", (), {})
        observer.begin_module("Module.a.fc.Linear", (), {})  # never told that it ended
        observer.abort_module(outer)
        api(observer, "relu", tensor(1))

    run_step(session, work)
    unit = opened(tmp_path, session)
    assert unit.parent("Functional.relu.0.forward") is None
    assert list(unit) == ["Functional.relu.0.forward"]


def test_a_failing_framework_costs_an_entry_and_is_said_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    framework = FakeFramework()
    session = make(tmp_path, framework, level="L1")

    def work(observer: Observer) -> None:
        monkeypatch.setattr(framework, "is_recompute", lambda: 1 / 0)
        assert observer.begin_api("Functional", "relu", (tensor(1),), {}) is None
        assert observer.begin_api("Functional", "relu", (tensor(1),), {}) is None
        monkeypatch.undo()
        api(observer, "gelu", tensor(1))
        assert not observer.local.busy

    run_step(session, work)
    unit = opened(tmp_path, session)
    assert list(unit) == ["Functional.gelu.0.forward"]
    assert sum("division by zero" in record.message for record in caplog.records) == 1
    assert "ZeroDivisionError" in (tmp_path / "step0" / "rank" / "dump_error_info.log").read_text()


def test_late_statistics_come_in_batches(tmp_path: Path) -> None:
    framework = FakeFramework(deferred=True)
    session = make(tmp_path, framework, level="L1", task="statistics")
    run_step(session, lambda observer: [api(observer, "relu", tensor(at), output=tensor(at)) for at in range(200)])
    unit = opened(tmp_path, session)
    assert [raw(unit, entry.key)["output"][0]["Max"] for entry in unit.values()] == list(range(200))
    assert len(framework.resolved) < 10
    assert sum(framework.resolved) == 400


def test_one_captures_at_a_time(tmp_path: Path) -> None:
    one, two = make(tmp_path / "one"), make(tmp_path / "two")
    one.start(NoHooks(), None)
    with pytest.raises(CaptureError, match="another debugger is capturing"):
        two.start(NoHooks(), None)
    one.stop()
    assert two.start(NoHooks(), None)
    two.stop()
    one.close()
    two.close()


def test_only_wanted_steps_and_ranks(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    session = make(tmp_path, FakeFramework(number=3), level="L1", step=["1-2"])
    hooks = NoHooks()
    for _ in range(4):
        assert session.start(hooks, None) == (session.step_number in (1, 2)) == hooks.is_set
        if hooks.is_set:
            api(session.observer, "relu", tensor(1))
        session.stop()
        session.step()
    session.close()
    assert [(unit.key.step, unit.key.rank) for unit in msformat.open(tmp_path)] == [(1, "rank3"), (2, "rank3")]
    assert not caplog.records


def test_an_unwanted_rank_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    session = make(tmp_path / "dump", rank=[4, 5])
    run_step(session, lambda observer: pytest.fail("captured"))
    session.close()
    assert "single process" in caplog.text
    assert "[4, 5]" in caplog.text
    assert not (tmp_path / "dump").exists()


def test_a_step_that_never_came_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    session = make(tmp_path, step=[7])
    for _ in range(3):
        run_step(session, lambda observer: pytest.fail("captured"))
    session.close()
    assert "step [7] was never reached; the last one was 2" in caplog.text


def test_modules_that_never_ran_are_listed_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    session = make(tmp_path)
    for _ in range(2):
        run_step(session, lambda observer: api(observer, "relu", tensor(1)), NoHooks(("block.fc",)))
    session.close()
    assert caplog.text.count("block.fc") == 1
    assert "block.fc" in (tmp_path / "step0" / "rank" / "dump_error_info.log").read_text()


def test_an_earlier_dump_is_refused_at_the_start_and_replaced_when_asked(tmp_path: Path) -> None:
    def work(observer: Observer) -> None:
        api(observer, "relu", tensor(1))

    first = make(tmp_path, level="L1")
    run_step(first, work)
    first.close()
    (tmp_path / "step0" / "rank" / "mine.txt").write_text("kept")
    second = make(tmp_path, level="L1")
    with pytest.raises(CaptureError, match=r"earlier run.*overwrite"):
        second.start(NoHooks(), None)
    third = make(tmp_path, level="L1", task="statistics", storage={"overwrite": True})
    run_step(third, work)
    unit = opened(tmp_path, third)
    assert unit.header.task == "statistics"
    assert not (tmp_path / "step0" / "rank" / "dump_tensor_data").exists()
    assert (tmp_path / "step0" / "rank" / "mine.txt").read_text() == "kept"


def test_a_dump_that_comes_in_the_way_later_costs_that_step_only(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    session = make(tmp_path, level="L1")
    run_step(session, lambda observer: api(observer, "relu", tensor(1)))
    (tmp_path / "step1" / "rank").mkdir(parents=True)
    (tmp_path / "step1" / "rank" / "dump.json").write_text("{}")
    for _ in range(2):
        run_step(session, lambda observer: api(observer, "relu", tensor(1)))
    session.close()
    assert (tmp_path / "step1" / "rank" / "dump.json").read_text() == "{}"
    assert (tmp_path / "step2" / "rank" / "dump.json").exists()
    assert "this step is not captured" in caplog.text


def test_an_exception_in_the_step_marks_it(tmp_path: Path) -> None:
    session = make(tmp_path, level="L1")
    session.start(NoHooks(), None)
    api(session.observer, "relu", tensor(1))
    session.abandon(RuntimeError("loss is nan"))
    run_step(session, lambda observer: api(observer, "relu", tensor(1)))
    session.close()
    broken, whole = msformat.open(tmp_path)
    assert not broken.complete
    assert "loss is nan" in str(broken.incomplete_reason)
    assert list(broken) == list(whole) == ["Functional.relu.0.forward"]
    assert whole.complete


@pytest.mark.parametrize("on_error", ["continue", "raise"])
def test_a_store_that_fails_ends_capture_and_not_the_training(
    tmp_path: Path, on_error: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    session = make(tmp_path, level="L1", on_error=on_error)

    def no_room(*_: object, **__: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("capture.session.DumpWriter", no_room)
    session.start(NoHooks(), None)
    api(session.observer, "relu", tensor(1))
    session.records().flush(everything=True)
    session.wait()
    assert not session.observer.running
    if on_error == "raise":
        with pytest.raises(CaptureError, match="No space left"):
            session.stop()
    else:
        session.stop()
        session.step()
        assert not session.start(NoHooks(), None)
    session.failed("the next step, on its way", OSError(28, "No space left on device"))
    assert sum(record.levelno == logging.ERROR for record in caplog.records) == (2 if on_error == "raise" else 1)
    session.close()


def test_structure_records_the_tree_and_no_entries(tmp_path: Path) -> None:
    session = make(tmp_path, task="structure")

    def work(observer: Observer) -> None:
        call = observer.begin_module("Module.fc.Linear", (tensor(1),), {})
        api(observer, "linear", tensor(1))
        observer.end_module(call, tensor(1), {"weight": tensor(1, requires_grad=True)})

    run_step(session, work)
    unit = opened(tmp_path, session)
    assert list(unit) == []
    assert unit.parent("Functional.linear.0.forward") == "Module.fc.Linear.forward.0"
    assert "test_session.py" in str(unit.stack("Functional.linear.0.forward"))


def test_risk_levels_leave_out_entries_but_count_them(tmp_path: Path) -> None:
    session = make(tmp_path, level="L1", risk_level="FOCUS")

    def work(observer: Observer) -> None:
        for name in ("reshape", "relu", "linear"):
            api(observer, name, tensor(1))

    run_step(session, work)
    assert list(opened(tmp_path, session)) == ["Functional.relu.0.forward", "Functional.linear.0.forward"]


@pytest.mark.parametrize(
    ("data_mode", "slots"),
    [
        (["forward"], {"forward": ["input_args", "input_kwargs", "is_recompute", "output"]}),
        (["input"], {"forward": ["input_args", "input_kwargs", "is_recompute"], "backward": ["input"]}),
        (["backward", "output"], {"backward": ["output"]}),
        (["output"], {"forward": ["output", "is_recompute"], "backward": ["output"]}),
    ],
)
def test_data_mode(tmp_path: Path, data_mode: list[str], slots: dict[str, list[str]]) -> None:
    session = make(tmp_path, level="L1", data_mode=data_mode)
    run_step(
        session,
        lambda observer: observer.api_backward(api(observer, "relu", tensor(1)), [tensor(1)], [tensor(1)]),
    )
    unit = opened(tmp_path, session)
    assert {key.split(".")[-1]: list(raw(unit, entry.key)) for key, entry in unit.items()} == slots


def test_threads_that_start_and_stop_at_once_leave_no_hook(tmp_path: Path) -> None:
    class SlowHooks(NoHooks):
        installed = removed = 0

        def install(self, model: Any) -> None:
            time.sleep(0.001)
            self.installed += 1
            super().install(model)

        def remove(self) -> None:
            time.sleep(0.001)
            self.removed += 1
            super().remove()

    session, hooks = make(tmp_path), SlowHooks()

    def work() -> None:
        for _ in range(20):
            session.start(hooks, None)
            session.stop()

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    session.stop()
    assert (hooks.is_set, hooks.installed, session.observer.running) == (False, hooks.removed, False)
    session.close()


def test_a_second_backward_of_a_call_is_said_and_leaves_no_orphan(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    session = make(tmp_path, level="L1")

    def work(observer: Observer) -> None:
        call = api(observer, "relu", tensor(1))
        for value in (2, 3):
            observer.api_backward(call, [tensor(value)], [tensor(value)])

    run_step(session, work)
    session.close()
    assert msformat.verify_dump(tmp_path).exit_code == 0
    assert "ran backward again" in caplog.text
    unit = msformat.open(tmp_path)[0, None]
    assert raw(unit, "Functional.relu.0.backward")["input"][0]["Max"] == 2


def test_what_capture_itself_raises_costs_one_entry_and_is_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail() -> None:
        raise MemoryError("no room for statistics")

    framework = FakeFramework()
    session = make(tmp_path, framework)
    session.start(NoHooks(), None)
    with monkeypatch.context() as patch:
        patch.setattr(framework, "quiet", fail)
        assert session.observer.begin_api("Functional", "relu", (tensor(1.0),), {}) is None
    api(session.observer, "gelu", tensor(1.0), output=tensor(2.0))
    session.stop()
    session.step()
    assert list(opened(tmp_path, session)) == ["Functional.gelu.0.forward"]
    assert "no room for statistics" in caplog.text
