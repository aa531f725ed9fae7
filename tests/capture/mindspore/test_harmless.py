"""Capture does no harm: a training with it is the training without it, and nothing is kept or left behind."""

from __future__ import annotations

import gc
import os
import statistics
import subprocess
import sys
import threading
import time
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, mint, nn, ops
from mindspore.ops.composite import base as composite

import msformat
from tests.capture.mindspore.dumping import captured, debugger, dump_of, problems, units
from tests.capture.mindspore.networks import Shaped, Small, Training, bits, rows

LEVELS = ("L0", "L1", "mix")


def run(steps: int, path: Path | None, **config: Any) -> list[bytes]:
    """Bits of every loss, gradient and parameter of a training."""
    training = Training()
    capture = debugger(path, **config) if path is not None else None
    found: list[bytes] = []
    for _ in range(steps):
        if capture is not None:
            capture.start(training.net)
        loss, gradients = training.step()
        if capture is not None:
            capture.stop()
            capture.step()
        found += [bits(loss), *map(bits, gradients), *map(bits, training.net.trainable_params())]
    if capture is not None:
        capture.close()
    return found


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize("level", LEVELS)
def test_the_training_is_bit_for_bit_the_same(level: str, task: str, tmp_path: Path) -> None:
    assert run(3, tmp_path, level=level, task=task) == run(3, None)


def test_inputs_and_outputs_keep_their_identity(tmp_path: Path) -> None:
    seen: list[Any] = []
    kept = [{"k": rows()}]

    def keep(x: Any) -> Any:
        seen.append(x)
        return kept

    net = nn.SequentialCell(Shaped(keep))
    x = rows()
    with captured(tmp_path, net, level="mix"):
        assert net(x) is kept
        assert nn.SequentialCell(Shaped(lambda given: given))(x) is x
    assert seen[0] is x


def test_in_place_changes_of_outputs_train_the_same(tmp_path: Path) -> None:
    def gradients() -> list[bytes]:
        ms.set_seed(3)
        net = nn.SequentialCell(nn.Dense(3, 4), Shaped(lambda x: (x * 2).add_(1)), nn.Dense(4, 2))
        call = ms.value_and_grad(lambda x: net(x).sum(), None, net.trainable_params())
        models.append(net)
        return [bits(one) for one in call(rows())[1]]

    models: list[Any] = []
    alone = gradients()
    ms.set_seed(3)
    net = nn.SequentialCell(nn.Dense(3, 4), Shaped(lambda x: (x * 2).add_(1)), nn.Dense(4, 2))
    call = ms.value_and_grad(lambda x: net(x).sum(), None, net.trainable_params())
    with captured(tmp_path, net, level="mix"):
        assert [bits(one) for one in call(rows())[1]] == alone


def test_hooks_of_the_user_run_and_count(tmp_path: Path) -> None:
    heard: list[str] = []
    net = nn.SequentialCell(nn.Dense(3, 3), nn.Dense(3, 3))
    net[0].register_forward_pre_hook(lambda cell, given: heard.append("before"))
    net[0].register_forward_hook(lambda cell, given, output: output * 2)
    net[1].register_backward_hook(lambda cell, given, taken: heard.append("backward"))
    net[1].weight.register_hook(lambda gradient: gradient * 3)
    call = ms.value_and_grad(lambda x: net(x).sum(), None, net.trainable_params())
    alone = [bits(one) for one in call(rows())[1]]
    counts = [len(cell._forward_hook) + len(cell._forward_pre_hook) + len(cell._backward_hook) for cell in net]
    expected, heard[:] = list(heard), []
    results: list[Any] = []
    dump = dump_of(tmp_path, net, lambda: results.append(call(rows())[1]))
    assert heard == expected
    assert [bits(one) for one in results[0]] == alone
    assert counts == [len(cell._forward_hook) + len(cell._forward_pre_hook) + len(cell._backward_hook) for cell in net]
    recorded = dump.data["Cell.1.Dense.parameters_grad"]["weight"][0]
    assert dump.of(recorded).tobytes() == alone[2]


# --- exceptions ---------------------------------------------------------------------------------------------------


def test_an_exception_in_a_forward_comes_out_and_nothing_is_lost(tmp_path: Path) -> None:
    def refuse(x: Any) -> Any:
        raise KeyError("on purpose")

    inner = nn.SequentialCell(nn.Dense(3, 3), Shaped(refuse))

    class Net(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.inner, self.after = inner, nn.Dense(3, 3)

        def construct(self, x: Any) -> Any:
            try:
                x = self.inner(x)
            except KeyError:
                x = x * 1
            return self.after(x)

    net = Net()
    dump = dump_of(
        tmp_path, net, lambda: ms.value_and_grad(lambda x: net(x).sum(), None, net.trainable_params())(rows())
    )
    assert [key for key in dump.data if key.endswith((".0", ".1"))] == [
        "Cell.inner.0.Dense.forward.0", "Cell.after.Dense.forward.0", "Cell.after.Dense.backward.0",
    ]  # fmt: skip
    assert dump.tree["Cell.after.Dense.forward.0"] is None
    assert problems(dump) == ""


def test_an_exception_in_a_backward_comes_out(tmp_path: Path) -> None:
    def refuse(gradient: Any) -> Any:
        if armed:
            raise KeyError("on purpose")
        return gradient

    def hooked(x: Any) -> Any:
        x = x * 1
        x.register_hook(refuse)
        return x

    armed = [True]
    net = nn.SequentialCell(nn.Dense(3, 3), Shaped(hooked), nn.Dense(3, 3))
    call = ms.value_and_grad(lambda x: net(x).sum(), None, net.trainable_params())
    capture = debugger(tmp_path)
    capture.start(net)
    with pytest.raises(KeyError, match="on purpose"):
        call(rows())
    armed.clear()
    call(rows())
    capture.stop()
    capture.step()
    capture.close()
    dump = units(tmp_path)[0]
    assert "Cell.0.Dense.backward.1" in dump.data
    assert dump.tree["Cell.0.Dense.forward.1"] is None
    assert dump.tree["Cell.0.Dense.backward.1"] is None


def test_a_failing_operation_silences_nothing(tmp_path: Path) -> None:
    """msprobe stops recording for good when an error of a kernel surfaces in its hook."""

    def fail(x: Any) -> Any:
        try:
            ops.matmul(x, rows(5, 7)).asnumpy()
        except (RuntimeError, ValueError):
            failed.append(True)
        return x * 1

    failed: list[bool] = []
    net = nn.SequentialCell(Shaped(fail), nn.Dense(3, 3))
    with captured(tmp_path, net, level="mix") as capture:
        for _ in range(2):
            net(rows())
        capture.wait()
    dump = units(tmp_path)[0]
    assert failed == [True, True]
    assert {"Cell.1.Dense.forward.0", "Cell.1.Dense.forward.1"} <= set(dump.data)


def test_a_training_that_ends_in_the_middle_of_a_step_is_marked(tmp_path: Path) -> None:
    net = nn.SequentialCell(nn.Dense(3, 3))
    capture = debugger(tmp_path)
    with pytest.raises(ZeroDivisionError), capture.capture(net):
        _divide(net(rows()))
    capture.close()
    with msformat.open(tmp_path / "dump") as dump:
        assert not dump[0].complete
        assert "ZeroDivisionError" in str(dump[0].incomplete_reason)
        assert "Cell.0.Dense.forward.0" in dump[0]


def _divide(value: Any) -> float:
    return value.size / 0


# --- what is left behind ------------------------------------------------------------------------------------------


def _surface() -> dict[str, Any]:
    """Everything that capture may have replaced, by the object it is."""
    found: dict[str, Any] = {"Cell.__call__": vars(nn.Cell)["__call__"]}
    executor = composite._pynative_executor
    found |= {f"executor.{name}": value for name, value in vars(executor).items()}
    for home in (ops, ops.functional, mint, mint.nn.functional, Tensor, nn.Dense, nn.ReLU):
        for name in dir(home):
            if not name.startswith("__") or callable(vars(home).get(name)):
                found[f"{home.__name__}.{name}"] = vars(home).get(name)
    return found


@pytest.mark.parametrize("level", LEVELS)
def test_after_stop_every_function_is_the_object_it_was(level: str, tmp_path: Path) -> None:
    training = Training()
    training.step()
    before = _surface()
    with captured(tmp_path, training.net, level=level, task="statistics"):
        training.step()
    after = _surface()
    assert [name for name in before if after[name] is not before[name]] == []
    assert set(after) == set(before)
    for _, cell in training.net.cells_and_names():
        assert "__call__" not in vars(cell)
        assert not cell._forward_hook
        assert not cell._forward_pre_hook
        assert not cell._backward_hook
    assert not any(parameter.hooks() for parameter in training.net.trainable_params())


def test_saving_leaves_no_hook_on_a_tensor(tmp_path: Path) -> None:
    capture = debugger(tmp_path, level="debug")
    x = rows()
    weight = ms.Parameter(rows(), name="w")

    def forward(x: Any) -> Any:
        capture.save(x, "x")
        capture.save(weight, "w")
        y = x * weight
        capture.save(y, "y")
        return y.sum()

    for _ in range(3):
        ms.value_and_grad(forward, 0, [weight])(x)
        assert not x.hooks()
        assert not weight.hooks()
        capture.step()
    capture.close()
    assert "grad" not in vars(composite._pynative_executor)
    for unit in units(tmp_path):
        assert unit.tensor("x_grad.0.debug.npy").tobytes() == bits(weight)
        assert unit.tensor("w_grad.0.debug.npy").tobytes() == bits(x)
        assert unit.tensor("y_grad.0.debug.npy").tolist() == np.ones((2, 3)).tolist()


def test_a_saved_tensor_can_go_into_a_jit_function(tmp_path: Path) -> None:
    """A hook on the tensor would be compiled with it."""

    @ms.jit
    def wave(x: Any) -> Any:
        return ops.sin(x) * 2

    capture = debugger(tmp_path, level="debug")

    def forward(x: Any) -> Any:
        capture.save(x, "x")
        return wave(x).sum()

    ms.grad(forward)(rows())
    assert wave(rows()).shape == (2, 3)
    capture.step()
    capture.close()
    assert np.allclose(units(tmp_path)[0].tensor("x_grad.0.debug.npy"), 2 * np.cos(rows().asnumpy()), rtol=1e-6)


def test_models_and_tensors_die_when_the_program_lets_go(tmp_path: Path) -> None:
    capture = debugger(tmp_path, level="mix")
    training = Training()
    cells = [weakref.ref(cell) for _, cell in training.net.cells_and_names()]
    capture.start(training.net)
    training.step()
    capture.stop()
    capture.step()
    capture.wait()
    capture.model = None
    del training
    gc.collect()
    alive = [type(cell()).__name__ for cell in cells if cell() is not None]
    capture.close()
    assert alive == []


def _resident() -> int:
    return int(Path(f"/proc/{os.getpid()}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.parametrize(("level", "wanted"), [("L0", "all"), ("mix", "all"), ("mix", "two")])
def test_two_hundred_steps_keep_nothing(level: str, wanted: str, tmp_path: Path) -> None:
    """Hooks, memory and time of a step stay what they are."""
    net = nn.SequentialCell(nn.Dense(3, 4), nn.ReLU(), nn.Dense(4, 2))
    call = ms.value_and_grad(lambda x: ops.relu(net(x)).sum(), None, net.trainable_params())
    steps = [] if wanted == "all" else [1, 199]
    capture = debugger(tmp_path, level=level, task="statistics", step=steps, storage={"durability": "process"})
    sizes, objects, times, patched = list[int](), list[int](), list[float](), set[int]()
    for number in range(200):
        begun = time.perf_counter()
        capture.start(net)
        patched.add(len(vars(composite._pynative_executor)))
        call(rows())
        capture.stop()
        capture.step()
        times.append(time.perf_counter() - begun)
        if number in (60, 199):
            capture.wait()
            gc.collect()
            sizes.append(_resident())
            objects.append(len(gc.get_objects()))
    capture.close()
    assert len(units(tmp_path)) == (200 if wanted == "all" else 2)
    assert len(patched) <= 2  # wanted steps and others
    assert sizes[1] - sizes[0] < 32 << 20
    assert objects[1] - objects[0] < 2000
    assert statistics.median(times[150:]) < 3 * statistics.median(times[10:60]) + 0.05
    assert not any(parameter.hooks() for parameter in net.trainable_params())


def test_random_numbers_go_on_as_without(tmp_path: Path) -> None:
    def draw(around: Callable[[], Any]) -> list[Any]:
        ms.set_seed(11)
        np.random.seed(11)
        net = nn.SequentialCell(nn.Dropout(p=0.5), nn.Dense(3, 3)).set_train()
        around_ = around()
        if around_ is None:
            return [bits(net(rows())), float(np.random.rand())]
        with around_(net):
            return [bits(net(rows())), float(np.random.rand())]

    alone = draw(lambda: None)
    assert draw(lambda: lambda net: captured(tmp_path, net, level="mix")) == alone


def test_other_threads_are_not_disturbed(tmp_path: Path) -> None:
    net = nn.SequentialCell(nn.Dense(3, 3))
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for _ in range(20):
                net(rows())
        except BaseException as error:  # noqa: BLE001
            failures.append(error)

    with captured(tmp_path, net, task="statistics"):
        threads = [threading.Thread(target=work) for _ in range(3)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    assert failures == []
    assert len([key for key in units(tmp_path)[0].data if "forward" in key]) == 60


# --- graphs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("level", LEVELS)
def test_graph_mode_compiles_and_runs_under_capture(
    level: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    net = nn.SequentialCell(nn.Dense(3, 3), nn.ReLU())
    alone = bits(net(rows()))
    ms.set_context(mode=ms.GRAPH_MODE)
    with captured(tmp_path, net, level=level, task="statistics"):
        assert np.allclose(np.frombuffer(bits(net(rows())), np.float32), np.frombuffer(alone, np.float32), atol=1e-6)
    assert (
        "nothing was captured" in caplog.text if level == "L1" else "Cell.0.Dense.forward.0" in units(tmp_path)[0].data
    )


@pytest.mark.parametrize("capture_mode", ["ast", "bytecode"])
def test_a_function_that_is_compiled_under_capture(capture_mode: str, tmp_path: Path) -> None:
    net = Small().lst[0]

    @ms.jit(capture_mode=capture_mode)
    def compiled(x: Any) -> Any:
        return net(x)

    x = rows(2, 6)
    with captured(tmp_path, nn.SequentialCell(net), level="mix"):
        first = compiled(x)
        assert np.allclose(first.asnumpy(), net(x).asnumpy(), atol=1e-6)
    assert np.allclose(compiled(x).asnumpy(), net(x).asnumpy(), atol=1e-6)


def test_a_graph_that_is_made_by_running_is_not_recorded(tmp_path: Path) -> None:
    """In a script of its own: MindSpore looks at the source of every frame of the stack, which pytest has not."""
    script = tmp_path / "script.py"
    script.write_text(
        """
from pathlib import Path
import mindspore as ms, numpy as np
from mindspore import nn
from tests.capture.mindspore.dumping import captured, problems, units
from tests.capture.mindspore.networks import rows
try:
    ms.mint.add(ms.Tensor([1.0]), 1)
except SystemError:
    pass
net = nn.Dense(3, 3)
traced = ms.jit(lambda x: net(x), capture_mode="trace")
with captured(Path("out"), nn.SequentialCell(net), level="mix"):
    assert np.allclose(traced(rows()).asnumpy(), net(rows()).asnumpy(), atol=1e-6)
dump = units(Path("out"))[0]
assert [key for key in dump.data if key.startswith("Cell") and "forward" in key] == ["Cell.0.Dense.forward.0"]
assert "trace" in problems(dump)
"""
    )
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
