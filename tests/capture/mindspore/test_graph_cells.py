"""Level L0 where cells are compiled: GRAPH_MODE and jit. PyNative's dump of the same program judges."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, nn, ops

import msformat
from tests.capture.mindspore.dumping import debugger


class Block(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Dense(3, 3)
        self.act = nn.ReLU()

    def construct(self, x: Tensor, scale: float = 1.0, *, extra: Any = None) -> tuple[Tensor, Tensor]:
        return self.act(self.fc(x)) * scale, x


class Half(nn.Cell):
    def construct(self, x: Tensor, kind: str = "", pair: Any = None, flag: bool = False) -> Tensor:
        return x.astype(ms.bfloat16)


class Loss(nn.Cell):
    def construct(self, x: Tensor) -> Tensor:
        return x.sum()


class Net(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.block, self.half, self.loss = Block(), Half(), Loss()

    def construct(self, x: Tensor) -> Tensor:
        y, _ = self.block(x, 2.0)
        z, _ = self.block(y, scale=3.0, extra=x)
        half = self.half(z, "kind", pair=(x, [1, None, y]), flag=True)
        return self.loss(half.astype(ms.float32) * z)


WEIGHT = np.array([[0.5, -1.25, 2.0], [1.0, 0.75, -0.5], [-0.125, 0.25, 1.5]], np.float32)
X = np.array([[1.0, 2.0, -0.5], [0.25, -3.0, 1.0]], np.float32)


def network() -> Net:
    net = Net()
    net.block.fc.weight.set_data(Tensor(WEIGHT))
    net.block.fc.bias.set_data(Tensor(np.array([0.5, 0.25, -0.125], np.float32)))
    return net


def train(path: Path, mode: str, *, steps: int = 1, **config: Any) -> tuple[Path, list[Any]]:
    """Steps of the network in one mode; where the dump is, and the gradients."""
    ms.set_context(mode=ms.GRAPH_MODE if mode == "graph" else ms.PYNATIVE_MODE)
    net = network()

    def forward(x: Tensor) -> Tensor:
        return net(x)

    run = ms.value_and_grad(ms.jit(forward) if mode == "jit" else forward, None, net.trainable_params())
    capture, gradients = debugger(path, **config), []
    for _ in range(steps):
        capture.start(net)
        _, found = run(Tensor(X))
        gradients = [gradient.asnumpy().copy() for gradient in found]
        capture.stop()
        capture.step()
    capture.close()
    return path / "dump", gradients


def values(dump: Path) -> dict[str, Any]:
    """Every tensor's bytes and every scalar of forward and backward entries, but for what graphs do not record."""
    found: dict[str, Any] = {}
    with msformat.open(dump) as opened:
        unit = opened.units[0]
        for key, entry in opened[unit].items():
            if "parameters_grad" in key:
                continue
            for tensor in entry.tensors:
                if tensor.slot != "parameters":
                    found[f"{key} {tensor.slot} {tensor.path}"] = (tensor.dtype_name, tensor.bits().tobytes())
            raw = entry.json()
            found[key] = {slot: _plain(raw[slot]) for slot in ("input_args", "input_kwargs") if slot in raw}
    return found


def _plain(node: Any) -> Any:
    if isinstance(node, list):
        return [_plain(part) for part in node]
    if isinstance(node, dict) and "shape" in node:
        return node["shape"]
    if isinstance(node, dict) and "value" not in node:
        return {key: _plain(part) for key, part in node.items()}
    return node


@pytest.mark.parametrize("mode", ["jit", "graph"])
def test_compiled_cells_are_recorded_as_pynative_records_them(tmp_path: Path, mode: str) -> None:
    expected_dump, expected_gradients = train(tmp_path / "pynative", "pynative")
    dump, gradients = train(tmp_path / mode, mode)
    for ours, theirs in zip(gradients, expected_gradients, strict=True):
        np.testing.assert_array_equal(ours, theirs)
    place = dump / "graph" if mode == "jit" else dump
    found, expected = values(place), values(expected_dump)
    # What nobody asks for a graph does not compute: PyNative makes zeros for the gradient of an output not used.
    unused = expected.keys() - found.keys()
    assert unused <= {"Cell.block.Block.backward.0 input 1", "Cell.block.Block.backward.1 input 1"}
    assert not any(np.frombuffer(expected[key][1], np.float32).any() for key in unused)
    for key, value in found.items():
        assert value == expected[key], key
    assert msformat.verify_dump(dump).exit_code == 0


def test_the_tree(tmp_path: Path) -> None:
    dump, _ = train(tmp_path, "graph")
    unit = msformat.open(dump)[0]
    assert unit.parent("Cell.block.fc.Dense.forward.1") == "Cell.block.Block.forward.1"
    assert unit.parent("Cell.block.Block.forward.1") is None
    assert unit.parent("Cell.block.act.ReLU.backward.0") == "Cell.block.Block.backward.0"


def test_statistics_and_steps(tmp_path: Path) -> None:
    dump, _ = train(tmp_path, "graph", task="statistics", steps=3)
    with msformat.open(dump) as opened:
        assert opened.steps == (0, 1, 2)
        for unit in opened:
            (tensor,) = [t for t in unit["Cell.block.fc.Dense.forward.0"].tensors if t.slot == "input_args"]
            assert tensor.stats is not None
            assert (tensor.stats.max, tensor.stats.min) == (2.0, -3.0)
            assert tensor.data_name is None
            assert len([key for key in unit if ".forward." in key]) == 8


def test_steps_and_lists(tmp_path: Path) -> None:
    dump, _ = train(tmp_path, "jit", steps=3, step=[1], settings={"list": ["fc"]})
    with msformat.open(dump) as opened:
        assert [str(key) for key in opened.units] == ["graph/step1/rank"]
        assert list(opened[1]) == [
            "Cell.block.fc.Dense.forward.0",
            "Cell.block.fc.Dense.forward.1",
            "Cell.block.fc.Dense.backward.0",
            "Cell.block.fc.Dense.backward.1",
        ]


class Jitted(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.inner = nn.ReLU()

    @ms.jit
    def construct(self, x: Tensor) -> Tensor:
        return self.inner(x) * 2


class Mixed(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.before, self.jitted = nn.Tanh(), Jitted()

    def construct(self, x: Tensor) -> Tensor:
        return self.jitted(self.before(x)).sum()


def test_two_branches_where_cells_are_under_jit(tmp_path: Path) -> None:
    """As msprobe lays it out: graph for what was compiled, pynative for what Python called."""
    net, capture = Mixed(), debugger(tmp_path)
    capture.start(net)
    ms.grad(net)(Tensor(X))
    capture.stop()
    capture.step()
    capture.close()
    with msformat.open(tmp_path / "dump") as dump:
        assert {str(key) for key in dump.units} == {"graph/step0/rank", "pynative/step0/rank"}
        called, compiled = dump[0, None, "pynative"], dump[0, None, "graph"]
        assert "Cell.jitted.Jitted.forward.0" in called
        assert "Cell.before.Tanh.forward.0" in called
        assert list(compiled) == ["Cell.jitted.inner.ReLU.forward.0", "Cell.jitted.inner.ReLU.backward.0"]
        (entering,) = compiled["Cell.jitted.inner.ReLU.forward.0"].inputs
        np.testing.assert_array_equal(entering.numpy(), called["Cell.before.Tanh.forward.0"].outputs[0].numpy())
        gradient = compiled["Cell.jitted.inner.ReLU.backward.0"].outputs[0].numpy()
        np.testing.assert_array_equal(gradient, np.where(entering.numpy() > 0, 2, 0))


def test_construct_is_given_back(tmp_path: Path) -> None:
    ms.set_context(mode=ms.GRAPH_MODE)
    net, capture = network(), debugger(tmp_path)
    capture.start(net)
    assert "construct" in net.block.fc.__dict__
    capture.stop()
    assert all("construct" not in cell.__dict__ for _, cell in net.cells_and_names())
    capture.close()


def test_a_program_compiled_before_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    ms.set_context(mode=ms.GRAPH_MODE)
    net, capture = network(), debugger(tmp_path)
    net(Tensor(X))
    capture.start(net)
    net(Tensor(X))
    capture.stop()
    capture.step()
    capture.close()
    assert "start() has to come before its first call" in caplog.text


def test_after_stop_nothing_more_is_recorded(tmp_path: Path) -> None:
    ms.set_context(mode=ms.GRAPH_MODE)
    net, capture = network(), debugger(tmp_path)
    capture.start(net)
    before = net(Tensor(X)).asnumpy()
    capture.stop()
    assert net(Tensor(X)).asnumpy() == before
    capture.step()
    capture.close()
    assert "Cell.loss.Loss.forward.1" not in msformat.open(tmp_path / "dump")[0]


def test_mix_in_graph_mode_says_what_it_cannot(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    dump, _ = train(tmp_path, "graph", level="mix")
    assert "set mode=PYNATIVE_MODE for level mix" in caplog.text
    assert "Cell.block.fc.Dense.forward.0" in msformat.open(dump)[0]


class Odd(nn.Cell):
    """What cells may be given: parameters, dynamic shapes, dicts, an own bprop."""

    def __init__(self) -> None:
        super().__init__()
        self.store, self.own, self.many = Store(), Own(), Many()
        self.kept = ms.Parameter(Tensor([1.0, 2.0, 3.0], ms.float32), name="kept")

    def construct(self, x: Tensor) -> Tensor:
        stored = self.store(self.kept, x[0])
        found = self.many({"a": x, "b": (x + 1, 2)}, ops.nonzero(x), None)
        return self.own(x).sum() + stored.sum() + found["a"].sum()


class Store(nn.Cell):
    def construct(self, kept: Any, x: Tensor) -> Tensor:
        ops.assign(kept, x)
        return kept + 0


class Own(nn.Cell):
    def construct(self, x: Tensor) -> Tensor:
        return x * 3

    def bprop(self, x: Tensor, out: Tensor, gradient: Tensor) -> tuple[Tensor]:
        return (gradient * 5,)


class Many(nn.Cell):
    def construct(self, parts: Any, where: Tensor, nothing: Any) -> Any:
        return {"a": parts["a"] * 2, "b": [parts["b"][0], 3]}


def test_odd_cells_go_on_working(tmp_path: Path) -> None:
    results = []
    for mode in (ms.PYNATIVE_MODE, ms.GRAPH_MODE):
        ms.set_context(mode=mode)
        net = Odd()
        gradient = ms.grad(net)(Tensor(X)).asnumpy()
        results.append((gradient, net.kept.asnumpy().copy()))
    ms.set_context(mode=ms.GRAPH_MODE)
    net, capture = Odd(), debugger(tmp_path)
    capture.start(net)
    gradient = ms.grad(net)(Tensor(X)).asnumpy()
    capture.stop()
    capture.step()
    capture.close()
    for expected, kept in results:
        np.testing.assert_array_equal(gradient, expected)
        np.testing.assert_array_equal(net.kept.asnumpy(), kept)
    unit = msformat.open(tmp_path / "dump")[0]
    assert list(unit["Cell.many.Many.forward.0"].outputs[0]) == ["a", "b"]
    assert "Cell.own.Own.forward.0" not in unit


def test_what_nobody_starts_costs_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[Any] = []
    monkeypatch.setattr("capture.mindspore.graph_cells._construct", made.append)
    capture = debugger(tmp_path, level="L1")
    capture.start(network())
    capture.stop()
    capture.close()
    assert not made
