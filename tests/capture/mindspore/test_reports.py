"""Reports from users on MindSpore's hooks, played with MindSpore itself (docs/reports.md; see tests/reports)."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, mint, nn, ops

import msformat
from capture.mindspore import backward, graph_save, listening, passes, save, save_grad, step
from capture.mindspore import jit as jit_module
from capture.mindspore.graph_files import Place, SaveDirectories
from capture.mindspore.quiet import settle
from msformat import dtype_named
from tests.capture.mindspore.dumping import captured, debugger, dump_of, problems, units
from tests.capture.mindspore.networks import bits, rows

ROOT = Path(__file__).parents[3]
MODES = ("pynative", "jit", "graph")


class Masked(nn.Cell):
    """Takes what is a tensor by keyword."""

    def construct(self, x: Any, mask: Any = None, flag: bool = False) -> Any:
        return x if mask is None else x * mask


class Masking(nn.Cell):
    """Calls the same cell by position and by keyword."""

    def __init__(self) -> None:
        super().__init__()
        self.fc, self.masked = nn.Dense(3, 3), Masked()

    def construct(self, x: Any) -> Any:
        h = self.fc(x)
        return self.masked(h, mask=x).sum() + self.masked(x=h, mask=h * 3, flag=True).sum()


def in_mode(mode: str, function: Callable[..., Any]) -> Callable[..., Any]:
    """The function as a program of that mode calls it."""
    ms.set_context(mode=ms.GRAPH_MODE if mode == "graph" else ms.PYNATIVE_MODE)
    return ms.jit(function) if mode == "jit" else function  # type: ignore[no-any-return]


def train_step(net: nn.Cell) -> Callable[[], Any]:
    """Loss and gradients of a network."""
    call = ms.value_and_grad(lambda x: net(x).sum(), None, net.trainable_params())
    return lambda: call(rows())


def layers(*middle: nn.Cell) -> nn.SequentialCell:
    """Two dense layers and what is between them; always the same."""
    ms.set_seed(3)
    return nn.SequentialCell(nn.Dense(3, 4), *middle, nn.Dense(4, 2))


def handles(net: nn.Cell) -> int:
    """Hooks on cells and parameters."""
    cells = [cell for _, cell in net.cells_and_names()]
    of_cells = sum(len(c._forward_hook) + len(c._forward_pre_hook) + len(c._backward_hook) for c in cells)
    return of_cells + sum(len(parameter.hooks()) for parameter in net.trainable_params())


def test_r008_r064_after_a_forward_that_failed_nothing_of_capture_is_recorded(tmp_path: Path) -> None:
    """MindSpore then makes gradients that want gradients, as in a gradient of a gradient: capture copies those.

    In a process of its own, as MindSpore compiles no gradient of a graph any more after it, with or without capture.
    """
    done = subprocess.run(
        [sys.executable, "-c", f"from {__name__} import fail_in_between; fail_in_between()"],
        cwd=tmp_path, env=os.environ | {"PYTHONPATH": str(ROOT)}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    first, _, third = (unit.data for unit in units(tmp_path))
    assert list(third) == list(first)
    assert third == first


def fail_in_between() -> None:
    """Three steps of which the second fails after its forward, into the working directory."""
    ms.set_context(mode=ms.PYNATIVE_MODE)
    net = layers(nn.ReLU())

    def failing(x: Any) -> Any:
        net(x)
        raise ZeroDivisionError

    run = train_step(net)
    capture = debugger(Path.cwd(), level="mix", task="statistics")
    for number in range(3):
        capture.start(net)
        if number == 1:
            with pytest.raises(ZeroDivisionError):
                ms.value_and_grad(failing, None, net.trainable_params())(rows())
        else:
            run()
        capture.stop()
        capture.step()
    capture.close()


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_r008_a_gradient_of_a_gradient_has_no_operations_of_capture(level: str, tmp_path: Path) -> None:
    net = layers(nn.Tanh())

    def penalty(x: Any) -> Any:
        return ms.grad(lambda y: ops.square(net(y)).sum())(x).sum()

    alone = bits(ms.grad(penalty)(rows()))
    with captured(tmp_path, net, level=level, task="tensor"):
        assert bits(ms.grad(penalty)(rows())) == alone
    data = units(tmp_path)[0].data
    assert any(".backward" in key for key in data)
    assert not [key for key in data if ".copy." in key]


def test_r072_keyword_inputs_of_a_cell(tmp_path: Path) -> None:
    net = Masking()
    dump = dump_of(tmp_path, net, train_step(net))
    first, second = (dump.data[f"Cell.masked.Masked.forward.{number}"] for number in (0, 1))
    assert (len(first["input_args"]), list(first["input_kwargs"])) == (1, ["mask"])
    assert dump.of(first["input_kwargs"]["mask"]).tobytes() == bits(rows())
    assert (second["input_args"], list(second["input_kwargs"])) == ([], ["x", "mask", "flag"])
    assert second["input_kwargs"]["flag"] == {"type": "bool", "value": True}
    x, mask = (dump.of(second["input_kwargs"][name]) for name in ("x", "mask"))
    np.testing.assert_array_equal(mask, x * np.float32(3))


def test_r073_parameter_gradients_in_every_step(tmp_path: Path) -> None:
    """With ``TrainOneStepCell``, which makes gradient and update in a graph of its own, and its weights in turn."""
    net = layers(nn.ReLU())
    trained = nn.TrainOneStepCell(nn.WithLossCell(net, nn.MSELoss()), nn.Adam(net.trainable_params(), 0.01))
    capture, target = debugger(tmp_path), Tensor(np.ones((2, 2), np.float32))
    for _ in range(3):
        capture.start(net)
        trained(rows(), target)
        assert handles(net) == 0
        capture.stop()
        capture.step()
    capture.close()
    norms = []
    for unit in units(tmp_path):
        entries = {key: entry for key, entry in unit.data.items() if key.endswith("parameters_grad")}
        assert list(entries) == ["Cell.0.Dense.parameters_grad", "Cell.2.Dense.parameters_grad"]
        norms.append([node["Norm"] for entry in entries.values() for (node,) in entry.values()])
    assert len(norms) == 3
    assert all(norm > 0 for of_step in norms for norm in of_step)
    assert norms[0] != norms[1] != norms[2]


def test_r074_hooks_do_not_accumulate(tmp_path: Path) -> None:
    """200 steps that also save a variable in each forward: nothing is registered that stays."""
    capture = debugger(tmp_path, level="debug", task="statistics", storage={"durability": "process"})

    class Saving(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Dense(3, 3)

        def construct(self, x: Any) -> Any:
            h = self.fc(x)
            capture.save(x, "x")
            capture.save(self.fc.weight, "w")
            capture.save(h, "h")
            return h.sum()

    net, x = Saving(), rows()
    call = ms.value_and_grad(net, 0, net.trainable_params())
    for _ in range(200):
        call(x)
        assert (handles(net), len(x.hooks())) == (0, 0)
        capture.step()
        assert not capture.framework._gradients._waiting
    capture.close()
    found = units(tmp_path)
    assert len(found) == 200
    for unit in (found[0], found[199]):
        assert all(unit.data[f"{name}_grad.0.debug"] for name in "xwh")


def test_r076_nothing_is_registered_inside_construct(tmp_path: Path) -> None:
    alone = [bits(gradient) for gradient in train_step(layers(nn.Tanh()))()[1]]
    for level in ("L0", "L1", "mix"):
        net = layers(nn.Tanh())
        run = train_step(net)
        with captured(tmp_path / level, net, level=level):
            for _ in range(3):
                assert [bits(gradient) for gradient in run()[1]] == alone
                assert handles(net) == 0
        data = units(tmp_path / level)[0].data
        assert len([key for key in data if ".backward" in key]) % 3 == 0


class Compiled(nn.Cell):
    """A cell whose ``construct`` is compiled."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Dense(3, 3)

    @ms.jit
    def construct(self, x: Any) -> Any:
        return ops.relu(self.fc(x))


def test_r077_a_cell_under_jit_has_its_backward(tmp_path: Path) -> None:
    net = nn.SequentialCell(Compiled(), nn.Dense(3, 1))
    gradients: list[Any] = []
    with captured(tmp_path, net):
        gradients.append(ms.grad(lambda x: net(x).sum())(rows()))
    entries = {
        key: unit[key]
        for unit in msformat.open(tmp_path / "dump")
        for key in unit
        if key == "Cell.0.Compiled.backward.0"
    }
    (entry,) = entries.values()
    assert entry.outputs[0].numpy().tobytes() == bits(gradients[0])


@pytest.mark.parametrize("level", ["L1", "mix"])
def test_r077_functions_in_graph_mode_are_said(level: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    net = layers()
    ms.set_context(mode=ms.GRAPH_MODE)
    with captured(tmp_path, net, level=level, task="statistics"):
        net(rows())
    assert "PYNATIVE_MODE" in caplog.text


@pytest.mark.parametrize("mode", ["jit", "graph"])
def test_r077_gradients_of_variables_saved_in_a_graph(
    mode: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """The debugger's ``save`` is called by a graph too, and its gradient never comes: there are calls that bring it."""
    capture = debugger(tmp_path, level="debug")

    class Saved(nn.Cell):
        def construct(self, x: Any) -> Any:
            y = x * 2
            capture.save(y, "y")
            return y * 3

    net = Saved()
    gradient = ms.grad(in_mode(mode, net))(rows())
    assert gradient.asnumpy().tolist() == np.full((2, 3), 6.0).tolist()
    capture.step()
    capture.close()
    (dump,) = units(tmp_path)
    assert dump.tensor("y.0.debug.npy").tobytes() == bits(rows() * 2)
    assert dump.data["y_grad.0.debug"] is None
    assert "no gradient: y_grad" in problems(dump)
    assert "use save and save_grad of capture.mindspore there" in caplog.text


@pytest.fixture
def saving(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps and numbers of ``save`` begin at 0."""
    monkeypatch.setattr(graph_save, "_SAVED", SaveDirectories(lambda: None, settle))


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.usefixtures("saving")
def test_r078_a_gradient_whose_result_was_not_used(mode: str, tmp_path: Path) -> None:
    directory = str(tmp_path / "saved")

    def forgotten(x: Any) -> Any:
        save(directory, "g", x)
        save_grad(directory, "g", x)
        h = save_grad(directory, "h", x * 2)
        return (h * x).sum()

    ms.grad(in_mode(mode, forgotten))(rows())
    step()
    unit = msformat.open(directory)[0]
    assert unit["g.0.debug"].tensors
    assert unit["h_grad.0.debug"].tensors
    assert not unit["g_grad.0.debug"].tensors
    report = msformat.verify_dump(directory)
    (problem,) = report.units[0].problems
    assert "g_grad" in problem
    assert report.exit_code == 1


def test_r082_processes_without_ranks_that_save(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Each has its own numbers and cannot know the other's: no file replaces another, and it is said."""
    first, second = (SaveDirectories(lambda: None, settle) for _ in range(2))
    place = Place(str(tmp_path))
    wanted = [float(number) for number in range(40)]
    for number in wanted:
        process = first if number % 2 else second
        process.put(place, "x", np.full(3, number, np.float32), dtype_named("float32"))
    assert sorted(float(np.load(file)[0]) for file in tmp_path.rglob("*.npy")) == wanted
    assert "another process saves there, too" in caplog.text
    assert msformat.verify_dump(tmp_path).exit_code == 0
    assert len(msformat.open(tmp_path)[0]) == 40


@pytest.mark.usefixtures("saving")
def test_r084_variables_of_a_graph_beside_a_pynative_dump(tmp_path: Path) -> None:
    dump = tmp_path / "dump"

    def compiled(x: Any) -> Any:
        x = save_grad(str(dump / "graph"), "z", x.astype(ms.bfloat16))
        return (x.astype(ms.float32) * 3).sum()

    net = layers()
    with captured(tmp_path, net, task="statistics"):
        ms.grad(ms.jit(compiled))(rows())
        net(rows())
    step()
    with msformat.open(dump) as opened:
        assert [str(key) for key in opened.units] == ["step0/rank", "graph/step0/rank0"]
        assert "Cell.0.Dense.forward.0" in opened[0, None]
        (tensor,) = opened[0, 0, "graph"]["z_grad.0.debug"].tensors
        assert (tensor.dtype_name, tensor.numpy().astype(np.float32).tolist()) == (
            "BFloat16",
            np.full((2, 3), 3.0).tolist(),
        )


def test_r086_a_compiled_cell_and_what_is_in_it(tmp_path: Path) -> None:
    """Each is recorded once: the outermost by PyNative, which calls it, what is inside by the graph."""
    net = nn.SequentialCell(Compiled(), nn.Dense(3, 1))
    with captured(tmp_path, net, level="mix", task="statistics"):
        train_step(net)()
    parts = {
        unit.key.branch: {key for key in unit if key.startswith("Cell.")} for unit in msformat.open(tmp_path / "dump")
    }
    assert parts["graph"] == {"Cell.0.fc.Dense.forward.0", "Cell.0.fc.Dense.backward.0"}
    assert {"Cell.0.Compiled.forward.0", "Cell.0.Compiled.backward.0", "Cell.1.Dense.forward.0"} <= parts["pynative"]
    assert parts["pynative"].isdisjoint(parts["graph"])


def test_r088_a_mindspore_that_shows_no_graph(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """As 2.7.0 is: what it lacks is named, and all that does not need it is recorded."""
    monkeypatch.setattr(backward, "SHOWS_GRAPH", False)
    monkeypatch.setattr(listening, "SHOWS_GRAPH", False)
    net = layers(nn.ReLU())
    gradients: list[Any] = []
    dump = dump_of(tmp_path / "L0", net, lambda: gradients.append(train_step(net)()[1]))
    assert not [key for key in dump.data if ".backward" in key]
    node = dump.data["Cell.0.Dense.parameters_grad"]["weight"][0]
    assert dump.of(node).tobytes() == bits(gradients[0][0])
    assert f"MindSpore {ms.__version__} does not show its graph of gradients" in problems(dump)
    assert len([record for record in caplog.records if "does not show its graph" in record.message]) == 1
    capture = debugger(tmp_path / "debug", level="debug")
    capture.save(rows(), "x")
    capture.step()
    capture.close()
    assert "does not show its graph of gradients" in problems(units(tmp_path / "debug")[0])


def test_r088_a_mindspore_that_works_elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(passes.composite, "_pynative_executor", None)
    monkeypatch.setattr(jit_module, "_module", lambda *_: None)
    net = layers()
    dump = dump_of(tmp_path, net, lambda: ops.relu(net(rows())), level="mix", task="statistics")
    assert "Functional.relu.0.forward" in dump.data
    said = problems(dump)
    assert "this MindSpore runs its backward elsewhere" in said
    assert "this MindSpore runs compiled functions elsewhere" in said


ODD = {
    "bfloat16": (lambda: rows().astype(ms.bfloat16), (0.71484375, 0.0)),
    "scalar": (lambda: Tensor(1.5).astype(ms.bfloat16), (1.5, 1.5)),
    "empty": (lambda: Tensor(np.zeros((0, 3), np.float32)), (None, None)),
    "empty_bfloat16": (lambda: Tensor(np.zeros((0, 3), np.float32)).astype(ms.bfloat16), (None, None)),
    "bool": (lambda: Tensor([True, False]), (True, False)),
    "int8": (lambda: Tensor(np.array([-128, 127], np.int8)), (127.0, -128.0)),
}


@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize("kind", ODD)
def test_r089_odd_tensors_in_pynative(kind: str, task: str, tmp_path: Path) -> None:
    make, extremes = ODD[kind]
    x = make()
    net = nn.SequentialCell(Masked())
    dump = dump_of(tmp_path, net, lambda: mint.reshape(net(x), (-1,)), level="mix", task=task)
    entry = dump.data["Cell.0.Masked.forward.0"]
    (node,) = entry["input_args"]
    assert (node["Max"], node["Min"]) == extremes
    assert (node["Mean"] is None) == (kind in ("bool", "empty", "empty_bfloat16"))
    assert "Mint.reshape.0.forward" in dump.data
    assert problems(dump) == ""
    if task == "tensor":
        wide = x.float() if "bfloat16" in kind or kind == "scalar" else x
        assert dump.of(node).tobytes() == bits(wide)


def _added(h: Any) -> Any:
    h += 1
    return h


def _scaled(h: Any) -> Any:
    h *= 2
    return h


def _added_by_method(h: Any) -> Any:
    return h.add_(1)


def _scaled_by_method(h: Any) -> Any:
    return h.mul_(2)


def _stored(h: Any) -> Any:
    h[0] = 5.0
    return h


def _added_to_a_part(h: Any) -> Any:
    first, second = mint.chunk(h, 2, 1)
    first += 1
    return mint.cat((first, second), 1)


class After(nn.Cell):
    """Changes the output of a cell in place."""

    def __init__(self, change: Callable[[Any], Any]) -> None:
        super().__init__()
        self.net, self.head, self.change = layers(nn.ReLU()), nn.Dense(2, 1), change

    def construct(self, x: Any) -> Any:
        return self.head(self.change(self.net(x)))


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize("change", [_added, _scaled, _added_by_method, _scaled_by_method, _stored, _added_to_a_part])
def test_r090_in_place_operations_after_a_cell(change: Callable[[Any], Any], level: str, tmp_path: Path) -> None:
    def gradients(around: Callable[[nn.Cell], Any] | None) -> list[bytes]:
        net = After(change)
        run = train_step(net)
        if around is None:
            return [bits(gradient) for gradient in run()[1]]
        with around(net):
            return [bits(gradient) for gradient in run()[1]]

    assert gradients(lambda net: captured(tmp_path, net, level=level)) == gradients(None)
    (dump,) = units(tmp_path)
    assert problems(dump) == ""
    assert [key for key in dump.data if ".backward" in key]


def test_r093_arguments_and_name_of_a_jit_function(tmp_path: Path) -> None:
    @ms.jit
    def blend(x: Any, y: Any, *, z: Any = None) -> Any:
        return x * 2 + y if z is None else x + z

    def run() -> None:
        blend(rows(), rows() + 1)
        blend(rows(), y=rows(), z=rows() * 3)
        blend(x=rows(), y=2.0)

    dump = dump_of(tmp_path, None, run, level="L1")
    calls = [dump.data[f"Jit.blend.{number}.forward"] for number in range(3)]
    assert [(len(call["input_args"]), list(call["input_kwargs"])) for call in calls] == [
        (2, []), (1, ["y", "z"]), (0, ["x", "y"]),
    ]  # fmt: skip
    first, second = (dump.of(node) for node in calls[0]["input_args"])
    assert (first.tobytes(), second.tobytes()) == (bits(rows()), bits(rows() + 1))
    np.testing.assert_array_equal(dump.of(calls[0]["output"][0]), first * 2 + second)
    assert calls[2]["input_kwargs"]["y"] == {"type": "float", "value": 2.0}


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_r077_r086_bytecode_is_said_and_never_recorded_twice(level: str, tmp_path: Path) -> None:
    """Bytecode is compiled as without capture, cell by cell or as a whole: as MindSpore likes."""
    net = layers(nn.ReLU())
    alone = bits(ms.grad(lambda x: net(x).sum())(rows()))

    @ms.jit(capture_mode="bytecode")
    def forward(x: Any) -> Any:
        return net(x).sum()

    with captured(tmp_path, net, level=level, task="statistics"):
        for _ in range(2):
            assert bits(ms.grad(forward)(rows())) == alone
        net(rows())
    keys = [key for unit in msformat.open(tmp_path / "dump") for key in unit if ".forward" in key]
    assert len(keys) == len(set(keys))
    assert any("bytecode" in path.read_text() for path in tmp_path.rglob("dump_error_info.log"))
    assert "construct" not in vars(net[0])
