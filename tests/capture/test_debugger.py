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


def test_a_level_with_modules_needs_a_model(tmp_path: Path) -> None:
    debugger = FakeDebugger(dump_path=tmp_path, level="mix")
    with pytest.raises(CaptureError, match="needs the model"):
        debugger.start()
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


@pytest.mark.parametrize("step", [-1, 1.5, True, "3"])
def test_set_init_step_refuses(tmp_path: Path, step: Any) -> None:
    with pytest.raises(CaptureError, match="set_init_step"):
        FakeDebugger(dump_path=tmp_path, level="L1").set_init_step(step)


def test_set_init_step(tmp_path: Path) -> None:
    debugger = FakeDebugger(dump_path=tmp_path, level="L1", step=[7])
    debugger.set_init_step(6)
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
