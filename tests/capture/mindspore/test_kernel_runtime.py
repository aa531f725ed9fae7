"""Level L2 in static graphs on Ascend, with a double of the runtime: what is called, set and written."""

from __future__ import annotations

import json
import os
import types
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mindspore
import pytest

from capture.mindspore import PrecisionDebugger, kernel_graph

NAMES = ("_dump_set_dynamic", "_set_init_iter", "_dump_start", "_dump_stop", "_dump_step")


class Runtime(types.SimpleNamespace):
    """The functions of a build, and what was called."""

    def __init__(self, names: tuple[str, ...] = NAMES) -> None:
        super().__init__(calls=[], refuses=False)
        for name in names:
            setattr(self, name, self._function(name))

    def _function(self, name: str) -> Callable[..., None]:
        def call(*arguments: int) -> None:
            self.calls.append((name, *arguments))
            if self.refuses and name == "_set_init_iter" and "MINDSPORE_DUMP_CONFIG" in os.environ:
                raise RuntimeError("Parse dump json failed")

        return call


@pytest.fixture
def ascend(monkeypatch: pytest.MonkeyPatch) -> Callable[..., Runtime]:
    monkeypatch.delenv("MINDSPORE_DUMP_CONFIG", raising=False)
    monkeypatch.setenv("MS_ACL_DUMP_CFG_PATH", "earlier.json")

    def build(target: str = "Ascend", level: str = "O0", names: tuple[str, ...] = NAMES) -> Runtime:
        runtime = Runtime(names)
        monkeypatch.setattr(kernel_graph, "runtime", runtime)
        monkeypatch.setattr(kernel_graph, "synchronize", lambda: runtime.calls.append(("synchronize",)))
        monkeypatch.setattr(kernel_graph, "_target", lambda: target)
        monkeypatch.setattr(mindspore.context, "get_jit_config", lambda: {"jit_level": level})
        mindspore.set_context(mode=mindspore.GRAPH_MODE)
        return runtime

    return build


@pytest.fixture
def debugger(tmp_path: Path) -> Iterator[Callable[..., PrecisionDebugger]]:
    made: list[PrecisionDebugger] = []

    def make(listed: tuple[str, ...] = (), **keys: Any) -> PrecisionDebugger:
        (tmp_path / "run").mkdir(exist_ok=True)
        path = tmp_path / "config.json"
        document = {"task": "statistics", "dump_path": str(tmp_path / "run" / "dump"), "level": "L2", **keys}
        document[document["task"]] = {"list": list(listed), **document.pop("section", {})}
        path.write_text(json.dumps(document))
        made.append(PrecisionDebugger(path))
        return made[-1]

    # Names of tests have characters that MindSpore takes in no path.
    yield make
    for one in made:
        one.close()


@pytest.fixture
def tmp_path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("kernels")


def run(one: PrecisionDebugger, steps: int = 2) -> None:
    for _ in range(steps):
        one.start()
        one.stop()
        one.step()


def test_the_runtime_is_told_what_msprobe_tells_it(ascend: Any, debugger: Any) -> None:
    runtime = ascend()
    run(debugger())
    a_step = [("_dump_start",), ("synchronize",), ("_dump_stop",), ("_dump_step", 1)]
    assert runtime.calls == [("_dump_set_dynamic",), ("_set_init_iter", 0), *a_step, *a_step]


def test_steps_that_are_not_wanted_are_counted(ascend: Any, debugger: Any) -> None:
    runtime = ascend()
    run(debugger(step=[1]), steps=3)
    assert runtime.calls == [
        ("_dump_set_dynamic",), ("_set_init_iter", 0), ("_dump_step", 1),
        ("_dump_start",), ("synchronize",), ("_dump_stop",), ("_dump_step", 1), ("_dump_step", 1),
    ]  # fmt: skip


def test_a_resumed_training_has_its_own_numbers(ascend: Any, debugger: Any) -> None:
    runtime = ascend()
    one = debugger()
    run(one, steps=1)
    one.set_init_step(9)
    run(one, steps=1)
    assert [call for call in runtime.calls if call[0] == "_set_init_iter"] == [
        ("_set_init_iter", 0),
        ("_set_init_iter", 9),
    ]


def test_a_crash_stops_the_dump(ascend: Any, debugger: Any) -> None:
    runtime = ascend()
    one = debugger()
    with pytest.raises(KeyError), one.capture():
        raise KeyError("crash")
    assert runtime.calls[-3:] == [("synchronize",), ("_dump_stop",), ("_dump_step", 1)]


def test_elsewhere_the_number_of_the_iteration_is_the_switch(ascend: Any, debugger: Any) -> None:
    runtime = ascend("GPU")
    one = debugger()
    run(one, steps=1)
    numbers = [call[1] for call in runtime.calls if call[0] == "_set_init_iter"]
    assert numbers == [2**32 - 1, 0, 2**32 - 1]
    settings = json.loads((Path(one.config.dump_path) / "kernel_kbyk_dump.json").read_text())
    assert settings["common_dump_settings"]["iteration"] == f"0-{2**32 - 2}"


@pytest.mark.parametrize(
    ("level", "listed", "name", "acl"),
    [
        ("O0", (), "kernel_kbyk_dump.json", None),
        ("O1", ("ReLU",), "kernel_kbyk_dump.json", None),
        ("O2", (), "kernel_graph_dump.json", "kernel_graph_dump.json"),
        ("O2", ("ReLU",), "kernel_graph_dump.json", None),
    ],
)
def test_the_environment_names_the_settings(
    ascend: Any, debugger: Any, level: str, listed: tuple[str, ...], name: str, acl: str | None
) -> None:
    ascend(level=level)
    one = debugger(listed)
    one.start()
    path = Path(one.config.dump_path)
    assert [item.name for item in path.iterdir()] == [name]
    assert os.environ["MINDSPORE_DUMP_CONFIG"] == str(path / name)
    assert os.environ.get("MS_ACL_DUMP_CFG_PATH") == (acl and str(path / acl))
    one.close()
    assert "MINDSPORE_DUMP_CONFIG" not in os.environ
    assert os.environ["MS_ACL_DUMP_CFG_PATH"] == "earlier.json"


def test_settings_that_are_refused_are_out_of_the_way(ascend: Any, debugger: Any, caplog: Any) -> None:
    """What the runtime refuses once, it refuses with every graph: that would end the training."""
    runtime = ascend()
    runtime.refuses = True
    run(debugger())
    assert "MINDSPORE_DUMP_CONFIG" not in os.environ
    assert runtime.calls == [("_dump_set_dynamic",), ("_set_init_iter", 0), ("_set_init_iter", 2**32 - 1)]
    assert caplog.text.count("Parse dump json failed") == 1


def test_a_build_without_a_switch_is_said(ascend: Any, debugger: Any, caplog: Any) -> None:
    runtime = ascend(names=())
    run(debugger())
    assert runtime.calls == [("synchronize",)] * 2
    assert caplog.text.count("this MindSpore cannot be told when to dump") == 1


def test_a_runtime_that_fails_costs_nothing(ascend: Any, debugger: Any, caplog: Any) -> None:
    runtime = ascend()

    def broken(*_: int) -> None:
        raise RuntimeError("device lost")

    runtime._dump_start = runtime._dump_stop = runtime._dump_step = broken
    run(debugger(), steps=3)
    assert caplog.text.count("device lost") == 1


def test_settings_of_somebody_else_are_said(ascend: Any, debugger: Any, caplog: Any, monkeypatch: Any) -> None:
    """What the runtime has read once, it never reads again."""
    ascend()
    monkeypatch.setenv("MINDSPORE_DUMP_CONFIG", "/their/own.json")
    one = debugger()
    run(one, steps=1)
    one.close()
    assert "MINDSPORE_DUMP_CONFIG was /their/own.json" in caplog.text
    assert os.environ["MINDSPORE_DUMP_CONFIG"] == "/their/own.json"


def test_a_format_that_is_not_written_is_noted(ascend: Any, debugger: Any, caplog: Any) -> None:
    ascend()
    run(debugger(task="tensor", section={"file_format": "bin"}), steps=1)
    assert "file_format: has no effect where kernels are launched one by one" in caplog.text


def test_switched_off_in_the_file_it_is_armed_all_the_same(ascend: Any, debugger: Any) -> None:
    """It may be switched on later, when graphs are compiled."""
    runtime = ascend()
    run(debugger(dump_enable=False))
    assert runtime.calls == [("_dump_set_dynamic",), ("_set_init_iter", 0), ("_dump_step", 1), ("_dump_step", 1)]
