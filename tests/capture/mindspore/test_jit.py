"""Compiled functions under capture: graphs are compiled as without it, and their calls are entries."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import mindspore
import numpy as np
import pytest
from mindspore import Tensor, mint, nn, ops
from mindspore.mint.nn import functional

from tests.capture.mindspore.recording import Bench, RecordingObserver

ROOT = Path(__file__).resolve().parents[3]
X = np.array([[1.0, -2.0], [3.0, 4.0]], np.float32)


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def observer(bench: Bench) -> Iterator[RecordingObserver]:
    with bench.installed() as observer:
        yield observer


def body(x: Tensor, factor: int = 2) -> Tensor:
    """Names of every kind of place, inside a branch too."""
    if factor > 1:
        x = ops.relu(x) + functional.relu(x)
    x = mint.add(x, 1.0).reshape((-1,)).sum() * factor
    return abs(-x)


def squares(x: Tensor) -> Tensor:
    return (ops.relu(x) * x).sum()


def judge(x: np.ndarray[Any, Any], factor: int = 2) -> float:
    if factor > 1:
        x = 2 * np.maximum(x, 0)
    return float(abs((x + 1).sum() * factor))


class Net(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.relu = ops.ReLU()
        self.dense = nn.Dense(2, 2)

    def construct(self, x: Tensor, factor: int = 2) -> Tensor:
        return ops.exp(self.relu(self.dense(x))) * factor


class JitNet(Net):
    @mindspore.jit
    def construct(self, x: Tensor, factor: int = 2) -> Tensor:
        return ops.exp(self.relu(self.dense(x))) * factor


class Holder:
    """A class of the user's with a compiled method."""

    @mindspore.jit
    def method(self, x: Tensor) -> Tensor:
        return ops.relu(x) * 3


@pytest.mark.parametrize("mode", ["ast", "bytecode"])
def test_a_compiled_function_gives_what_it_gives_without_capture(mode: str, observer: RecordingObserver) -> None:
    compiled = mindspore.jit(body, capture_mode=mode)
    for _ in range(2):  # compiled, found compiled
        assert float(compiled(Tensor(X)).asnumpy()) == judge(X)
    inside = ["Jit.body.0.forward", "Jit.body.1.forward"] if mode == "ast" else []
    assert observer.keys == inside
    assert set(observer.problems) == (set() if mode == "ast" else {("bytecode", "Jit.body")})
    assert ops.relu(Tensor(X)).shape == (2, 2)  # and recording goes on
    assert observer.keys == [*inside, "Functional.relu.0.forward"]


TRACED = """
import mindspore
from mindspore import Tensor, ops
from tests.capture.mindspore.recording import Bench
from tests.capture.mindspore.test_jit import X, body, judge

try:
    mindspore.mint.add(Tensor([1.0]), 1)
except SystemError:  # numpy 2
    pass
traced, bench = mindspore.jit(body, capture_mode="trace"), Bench()
with bench.installed() as observer:
    for _ in range(2):
        assert float(traced(Tensor(X)).asnumpy()) == judge(X)
    ops.relu(Tensor(X))
print(observer.keys, sorted({kind for kind, _ in observer.problems}))
"""


def test_a_traced_function(tmp_path: Path) -> None:
    """In a program of its own: MindSpore reads the source line of every frame below, and pytest's have none."""
    script = tmp_path / "traced.py"
    script.write_text(TRACED)
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-W", "ignore", str(script)]
    done = subprocess.run(command, env=environment, capture_output=True, text=True, cwd=tmp_path, check=False)
    assert done.stdout.splitlines()[-1:] == ["['Functional.relu.0.forward'] ['traced']"], done.stderr[-2000:]


def test_arguments_are_recorded_as_they_were_given(observer: RecordingObserver) -> None:
    """msprobe loses keyword arguments."""
    compiled = mindspore.jit(body)
    result = compiled(Tensor(X), factor=1)
    assert float(result.asnumpy()) == judge(X, 1)
    args, kwargs = observer.inputs["Jit.body.0.forward"]
    assert (args[0].tolist(), kwargs) == (X.tolist(), {"factor": 1})
    assert float(observer.outputs["Jit.body.0.forward"]) == judge(X, 1)


def test_a_function_without_arguments(observer: RecordingObserver) -> None:
    """msprobe leaves it out."""

    @mindspore.jit
    def constant() -> Tensor:
        return ops.ones((2,), mindspore.float32) * 3

    assert constant().asnumpy().tolist() == [3, 3]
    assert observer.keys == ["Jit.constant.0.forward"]
    assert observer.outputs["Jit.constant.0.forward"].tolist() == [3, 3]


def test_cells_and_methods_that_are_compiled(observer: RecordingObserver) -> None:
    net, holder = JitNet(), Holder()
    expected = Net.construct(net, Tensor(X), 3).asnumpy()
    observer.keys.clear()
    np.testing.assert_allclose(net(Tensor(X), factor=3).asnumpy(), expected, rtol=1e-6)
    assert holder.method(Tensor(X)).asnumpy().max() == 12.0
    assert observer.keys == ["Jit.JitNet.0.forward", "Jit.method.0.forward"]
    args, kwargs = observer.inputs["Jit.JitNet.0.forward"]
    assert (args[0], args[1].tolist(), kwargs) == ("JitNet", X.tolist(), {"factor": 3})


def test_gradients_of_a_compiled_function(observer: RecordingObserver) -> None:
    """msprobe shows its arguments as gradients."""
    compiled = mindspore.jit(body)
    total = mindspore.grad(lambda x: compiled(x * 1) * 5)(Tensor(X))
    assert [float(one) for one in observer.inputs["Jit.body.0.backward"]] == [5.0]
    assert [one.tolist() for one in observer.outputs["Jit.body.0.backward"]] == [total.asnumpy().tolist()]
    assert observer.problems == []


def test_the_gradient_itself_compiled(observer: RecordingObserver) -> None:
    @mindspore.jit
    def step(x: Tensor) -> Tensor:
        return mindspore.grad(squares)(x)

    expected = mindspore.grad(squares)(Tensor(X)).asnumpy()
    observer.keys.clear()
    assert step(Tensor(X)).asnumpy().tolist() == expected.tolist()
    assert observer.keys == ["Jit.step.0.forward"]


def test_a_function_that_does_not_compile(observer: RecordingObserver) -> None:
    @mindspore.jit
    def wrong(x: Tensor) -> Tensor:
        return ops.concat((x, ops.ones((3, 7), mindspore.float32)), axis=0)

    with pytest.raises((TypeError, ValueError, RuntimeError)):
        wrong(Tensor(X))
    assert observer.failed == ["Jit.wrong.0.forward"]
    assert float(mindspore.jit(body)(Tensor(X)).asnumpy()) == judge(X)
    assert observer.keys[-1] == "Jit.body.0.forward"


def test_graph_mode_compiles_the_functions_themselves(bench: Bench) -> None:
    net = Net()
    expected = net(Tensor(X)).asnumpy()
    gradient = mindspore.grad(net)(Tensor(X)).asnumpy()
    mindspore.set_context(mode=mindspore.GRAPH_MODE)
    with bench.installed(net) as observer:
        np.testing.assert_allclose(net(Tensor(X)).asnumpy(), expected, rtol=1e-6)
        np.testing.assert_allclose(mindspore.grad(net)(Tensor(X)).asnumpy(), gradient, rtol=1e-6)
        assert isinstance(net.relu, ops.ReLU)
    assert observer.problems == [("graph mode", "")]
    np.testing.assert_allclose(net(Tensor(X)).asnumpy(), expected, rtol=1e-6)


def test_stand_ins_are_back_after_compiling(bench: Bench) -> None:
    original = ops.relu
    net = Net()
    with bench.installed(net):
        stand_in, kind = ops.relu, type(net.relu)
        assert stand_in is not original
        mindspore.jit(body)(Tensor(X))
        assert (ops.relu, type(net.relu)) == (stand_in, kind)
    assert ops.relu is original


def test_an_optimizer_of_mindspore_that_compiles_itself(bench: Bench) -> None:
    net = Net()
    optimizer = nn.SGD(net.trainable_params(), 0.1)
    step = mindspore.value_and_grad(lambda x: net(x).sum(), None, optimizer.parameters)
    with bench.installed(net) as observer:
        _, gradients = step(Tensor(X))
        optimizer(gradients)
    assert observer.keys[-1] == "Jit.SGD.0.forward"
    assert observer.inputs["Jit.SGD.0.forward"][0][0] == "SGD"
