"""PrecisionDebugger's methods on the instance and on the class, with a framework over numpy arrays."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import msformat
from capture.debugger import DebuggerBase
from capture.errors import CaptureError
from msformat.stores.hdf5_guard import load_h5py
from tests.capture.fake_framework import FakeFramework, FakeTensor
from tests.capture.test_session import NoHooks


class FakeDebugger(DebuggerBase):
    """A debugger whose program calls the observer itself; ``tokens`` are counted by hand."""

    framework_name = "pytorch"
    on_token: Callable[[int], None] | None = None

    def _make_framework(self) -> FakeFramework:
        return FakeFramework()

    def _make_hooks(self) -> NoHooks:
        return NoHooks()

    def _check_model(self, model: Any) -> None:
        if not isinstance(model, str):
            raise CaptureError("no model")

    def _count_tokens(self, model: Any, on_token: Callable[[int], None]) -> Callable[[], None]:
        self.on_token = on_token

        def undo() -> None:
            self.on_token = None

        return undo

    def relu(self, *values: float) -> None:
        """Play a call of an API."""
        observer = self._session.observer
        if not observer.running:
            return
        tensor = FakeTensor(np.array(values, np.float32))
        call = observer.begin_api("Functional", "relu", (tensor,), {})
        assert call is not None
        observer.end_api(call, tensor)


def _fail_in_a_step(debugger: FakeDebugger) -> None:
    with debugger.capture():
        debugger.relu(1)
        raise KeyError("mine")


@pytest.fixture(autouse=True)
def _forget_debuggers() -> Iterator[None]:
    yield
    for debugger in DebuggerBase._latest.values():
        debugger.close()
    DebuggerBase._latest.clear()


def keys(path: Path) -> dict[int, list[str]]:
    return {unit.key.step: list(unit) for unit in msformat.open(path)}


def test_methods_of_the_class_mean_the_debugger_made_last(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="no FakeDebugger was made"):
        FakeDebugger.start()
    FakeDebugger(dump_path=tmp_path / "old", level="L1")
    debugger = FakeDebugger(dump_path=tmp_path / "new", level="L1")
    assert FakeDebugger() is debugger
    FakeDebugger.start()
    debugger.relu(1)
    FakeDebugger.forward_backward_dump_end()
    debugger.relu(1)
    FakeDebugger.step()
    FakeDebugger.wait()
    assert keys(tmp_path / "new") == {0: ["Functional.relu.0.forward"]}
    assert not (tmp_path / "old").exists()


def test_a_debugger_that_is_made_again_is_the_same(tmp_path: Path) -> None:
    """As in msprobe. A program may make it in a function that it calls for each step; a new one would be in its way."""
    debugger = FakeDebugger(dump_path=tmp_path / "a", level="mix", model="m")
    for number in range(3):
        again = FakeDebugger(dump_path=tmp_path / "a", level="mix", model=f"m{number}")
        assert again is debugger
        assert again.model == f"m{number}"
        again.start()
        again.relu(1)
        again.stop()
        again.step()
    other = FakeDebugger(dump_path=tmp_path / "b", level="mix")
    assert other is not debugger
    assert FakeDebugger(None, None, tmp_path / "b", "mix") is other  # type: ignore[unreachable]
    other.close()
    assert FakeDebugger(dump_path=tmp_path / "b", level="mix") is not other
    debugger.close()
    assert keys(tmp_path / "a") == {step: ["Functional.relu.0.forward"] for step in range(3)}


def test_who_owns_a_debugger_alone_has_another(tmp_path: Path) -> None:
    debugger = FakeDebugger(dump_path=tmp_path / "a", level="L1")
    with pytest.raises(CaptureError, match="level"):
        FakeDebugger.another(None, None, tmp_path / "a", "L9")
    assert FakeDebugger() is debugger
    other = FakeDebugger.another(None, None, tmp_path / "a", "L1")
    assert other is not debugger
    assert FakeDebugger() is other
    debugger.close()


def test_arguments_that_do_not_fit_are_python_s_own_error(tmp_path: Path) -> None:
    FakeDebugger(dump_path=tmp_path, level="L1")
    for wrong in ({"dump_pth": "x"}, {"stpe": 1}):
        with pytest.raises(TypeError, match="unexpected keyword"):
            FakeDebugger(**wrong)  # type: ignore[arg-type]


def test_a_start_with_another_model_while_one_is_recorded_is_said(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    debugger = FakeDebugger(dump_path=tmp_path, level="mix")
    debugger.start("m")
    debugger.start("m")
    debugger.start()
    assert not caplog.records
    debugger.start("other")
    debugger.start(["m", "m"])
    debugger.relu(1)
    debugger.stop()
    debugger.step()
    debugger.close()
    (record,) = caplog.records
    assert "start() with another model has no effect before stop(): not recorded" in record.getMessage()
    assert keys(tmp_path) == {0: ["Functional.relu.0.forward"]}


@pytest.mark.parametrize("overwrite", [False, True])
def test_going_back_to_a_step_that_waits_for_the_writer(
    tmp_path: Path, overwrite: bool, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The writer finds the place free or taken, by its speed: the step is said to be occupied either way."""
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"dump_path": str(tmp_path / "d"), "storage": {"overwrite": overwrite}}))
    debugger = FakeDebugger(config)
    if not overwrite:
        monkeypatch.setattr("capture.session.is_occupied", lambda _: False)  # as long as the writer has not begun
    for number, value in ((0, 1), (0, 2), (1, 3)):
        debugger.set_init_step(number)
        debugger.start()
        debugger.relu(value)
        debugger.stop()
        debugger.step()
    debugger.close()
    found = {
        unit.key.step: unit["Functional.relu.0.forward"].inputs[0].stats.max for unit in msformat.open(tmp_path / "d")
    }
    assert found == {0: 2 if overwrite else 1, 1: 3}
    assert not [record for record in caplog.records if record.levelname == "ERROR"]
    assert ("holds another dump: this step is not captured" in caplog.text) is not overwrite


def test_a_level_with_modules_needs_a_model(tmp_path: Path) -> None:
    debugger = FakeDebugger(dump_path=tmp_path, level="mix")
    with pytest.raises(CaptureError, match="needs the model"):
        debugger.start()
    for nothing in ([], ()):
        with pytest.raises(CaptureError, match="needs the model"):
            debugger.start(model=nothing)
    with pytest.raises(CaptureError, match="no model"):
        debugger.start(model=3)
    debugger.start(model="m")
    debugger.stop()
    debugger.start()  # the model of before


@pytest.mark.parametrize("bad", [[1], [2, 1], "ab", [True, 2], [-1, 2], 3])
def test_a_bad_token_range_is_refused(tmp_path: Path, bad: Any) -> None:
    with pytest.raises(CaptureError, match="token_range"):
        FakeDebugger(dump_path=tmp_path, level="L1").start("m", token_range=bad)


def test_a_token_range_records_those_tokens(tmp_path: Path) -> None:
    debugger = FakeDebugger(dump_path=tmp_path, level="L1")
    debugger.start("m", token_range=[1, 2])
    for token in range(5):
        assert debugger.on_token is not None
        debugger.on_token(token)
        debugger.relu(token)
    debugger.stop()
    assert debugger.on_token is None
    debugger.step()
    debugger.close()
    unit = msformat.open(tmp_path)[0, None]
    assert [entry.inputs[0].stats.max for entry in unit.values()] == [1, 2]


def test_capture_as_a_context(tmp_path: Path) -> None:
    debugger = FakeDebugger(dump_path=tmp_path, level="L1")
    with debugger.capture():
        debugger.relu(1)
    with pytest.raises(KeyError, match="mine"):
        _fail_in_a_step(debugger)
    with debugger.capture():
        debugger.relu(1)
    debugger.close()
    assert [(unit.key.step, unit.complete) for unit in msformat.open(tmp_path)] == [(0, True), (1, False), (2, True)]


def test_the_switch_in_the_file_is_read_again(tmp_path: Path) -> None:
    config = tmp_path / "config.json"

    def switch(*, on: bool) -> None:
        text = {"dump_path": str(tmp_path / "dump"), "task": "statistics", "level": "L1", "dump_enable": on}
        config.write_text(json.dumps(text) + " " * on)

    switch(on=False)
    debugger = FakeDebugger(config)
    for on in (False, True, False):
        switch(on=on)
        debugger.start()
        debugger.relu(1)
        debugger.stop()
        debugger.step()
    debugger.close()
    assert list(keys(tmp_path / "dump")) == [1]


@pytest.mark.parametrize("step", [-1, 1.5, True, "3", None, 10**18])
def test_set_init_step_refuses(tmp_path: Path, step: Any) -> None:
    with pytest.raises(CaptureError, match="set_init_step"):
        FakeDebugger(dump_path=tmp_path, level="L1").set_init_step(step)


def test_set_init_step(tmp_path: Path) -> None:
    debugger = FakeDebugger(dump_path=tmp_path, level="L1", step=[7])
    debugger.set_init_step(np.int64(6))
    for _ in range(3):
        debugger.start()
        debugger.relu(1)
        debugger.stop()
        debugger.step()
    debugger.close()
    assert list(keys(tmp_path)) == [7]


def test_saved_variables_count_by_step(tmp_path: Path) -> None:
    debugger = FakeDebugger(dump_path=tmp_path, level="debug", task="tensor")
    for _ in range(2):
        debugger.save({"a": FakeTensor(np.ones(2)), "b": [None, 3]}, "x", save_backward=False)
        FakeDebugger.save(FakeTensor(np.zeros(2)), "x", save_backward=False)
        debugger.step()
    debugger.close()
    assert keys(tmp_path) == {step: ["x.0.debug", "x.1.debug"] for step in (0, 1)}
    unit = msformat.open(tmp_path)[1, None]
    assert unit["x.1.debug"].value.numpy().tolist() == [0, 0]


def test_save_does_nothing_at_other_levels(tmp_path: Path) -> None:
    debugger = FakeDebugger(dump_path=tmp_path / "dump", level="L1")
    debugger.save(3, "x")
    debugger.step()
    debugger.close()
    assert not (tmp_path / "dump").exists()


class Silent:
    """An object of the program that does not say what it is, nor whether it is true."""

    def __repr__(self) -> str:
        raise RuntimeError("no words")

    def __bool__(self) -> bool:
        raise RuntimeError("neither")


def test_arguments_of_save_that_raise_cost_the_variable(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    debugger = FakeDebugger(dump_path=tmp_path, level="debug")
    debugger.save(1, Silent())  # type: ignore[arg-type]
    debugger.save(2, "x", save_backward=Silent())  # type: ignore[arg-type]
    debugger.save(3, "y")
    debugger.step()
    debugger.close()
    assert "save(…, name=a Silent): a name is a text" in caplog.text
    assert "x: neither" in caplog.text
    assert keys(tmp_path)[0][-1] == "y_grad.0.debug"


def test_a_custom_api_must_exist(tmp_path: Path) -> None:
    with pytest.raises(CaptureError, match="no function 'nothing'"):
        FakeDebugger(dump_path=tmp_path, level="L1").register_custom_api(np, "nothing")


def test_a_missing_library_is_said_before_the_training_begins(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    load_h5py.cache_clear()  # another test may have loaded it
    monkeypatch.setitem(sys.modules, "h5py", None)
    config = tmp_path / "config.json"
    config.write_text(json.dumps({"level": "L1", "dump_path": str(tmp_path / "d"), "storage": {"format": "hdf5"}}))
    with pytest.raises(CaptureError, match=r"pip install .*msformat\[hdf5\]"):
        FakeDebugger(str(config))
