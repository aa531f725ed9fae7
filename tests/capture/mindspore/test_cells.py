"""Cells: names, paths, values of all shapes, gradients, and what the ways of running them do to a dump."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import Tensor, mint, nn, ops

from capture.errors import CaptureError
from tests.capture.mindspore.dumping import Dump, captured, debugger, dump_of, problems, units
from tests.capture.mindspore.networks import Around, Shaped, Training, bits, rows, total


def gradients_of(net: Any, *inputs: Any, position: Any = None) -> Any:
    return ms.value_and_grad(lambda *given: total(net(*given)), position, net.trainable_params())(*inputs)


def keys(dump: Dump, part: str = "") -> list[str]:
    return [key for key in dump.data if part in key]


def shapes(values: Any) -> Any:
    """Shape of each tensor in its place."""
    if isinstance(values, list):
        return [shapes(value) for value in values]
    if isinstance(values, dict) and "shape" in values:
        return tuple(values["shape"])
    return {key: shapes(value) for key, value in values.items()} if isinstance(values, dict) else values


# --- names --------------------------------------------------------------------------------------------------------


def test_a_list_of_models_puts_their_number_first(tmp_path: Path) -> None:
    first, second = nn.SequentialCell(nn.Dense(3, 3)), nn.SequentialCell(nn.ReLU())
    dump = dump_of(tmp_path, [first, second], lambda: second(first(rows())))
    assert keys(dump, "forward") == ["Cell.0.0.Dense.forward.0", "Cell.1.0.ReLU.forward.0"]


def test_containers_are_called_by_their_path(tmp_path: Path) -> None:
    class Net(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.lst = nn.CellList([nn.ReLU(), nn.SequentialCell(nn.ReLU())])
            self.named = nn.CellDict({"a": nn.ReLU()})

        def construct(self, x: Any) -> Any:
            return self.named["a"](self.lst[1](self.lst[0](x)))

    net = Net()
    dump = dump_of(tmp_path, net, lambda: net(rows()), task="statistics")
    assert list(dump.data) == [
        "Cell.lst.0.ReLU.forward.0", "Cell.lst.1.0.ReLU.forward.0", "Cell.lst.1.SequentialCell.forward.0",
        "Cell.named.a.ReLU.forward.0",
    ]  # fmt: skip
    assert dump.tree["Cell.lst.1.0.ReLU.forward.0"] == "Cell.lst.1.SequentialCell.forward.0"
    assert problems(dump) == ""


def test_a_cell_that_two_attributes_hold_goes_by_the_first(tmp_path: Path) -> None:
    net = nn.SequentialCell(nn.Dense(3, 3))
    net.again = net[0]
    dump = dump_of(tmp_path, net, lambda: gradients_of(net, rows()), task="statistics")
    assert keys(dump, "forward") == ["Cell.0.Dense.forward.0"]


def test_counts_begin_anew_in_every_step(tmp_path: Path) -> None:
    net = nn.SequentialCell(nn.Dense(3, 3))
    capture = debugger(tmp_path, task="statistics", step=["1-2"])
    for _ in range(4):
        capture.start(net)
        gradients_of(net, rows())
        gradients_of(net, rows())
        capture.stop()
        capture.step()
    capture.close()
    found = units(tmp_path)
    assert [unit.unit.parent.name for unit in found] == ["step1", "step2"]
    for unit in found:
        assert keys(unit, "forward") == ["Cell.0.Dense.forward.0", "Cell.0.Dense.forward.1"]
        assert keys(unit, "backward") == ["Cell.0.Dense.backward.0", "Cell.0.Dense.backward.1"]


# --- values -------------------------------------------------------------------------------------------------------


def test_keyword_arguments_are_recorded(tmp_path: Path) -> None:
    net = Around(Shaped(lambda x: x))
    dump = dump_of(tmp_path, net, lambda: net(rows()))
    kwargs = dump.data["Cell.inner.Shaped.forward.0"]["input_kwargs"]
    assert list(kwargs) == ["cfg", "pair"]
    assert kwargs["cfg"]["t"]["data_name"] == "Cell.inner.Shaped.forward.0.kwargs.cfg.t.npy"
    assert kwargs["pair"][1] == {"type": "int", "value": 7}
    assert dump.of(kwargs["pair"][0]).tobytes() == bits(rows())


@pytest.mark.parametrize(
    ("make", "output", "count"),
    [
        (lambda x: [x + 1, [x * 2, x * 3]], [[(2, 3), [(2, 3), (2, 3)]]], 3),
        (lambda x: {"a": x + 1, "b": {"c": x * 2}, "n": None}, [{"a": (2, 3), "b": {"c": (2, 3)}, "n": None}], 2),
        (lambda x: (x + 1, (x * 2, x * 3)), [(2, 3), [(2, 3), (2, 3)]], 3),
        (lambda x: (x + 1,), [(2, 3)], 1),
        (lambda x: None, [None], 0),
    ],
    ids=["list", "dict", "tuple", "one", "none"],
)
def test_every_shape_of_output_has_its_gradients(make: Any, output: Any, count: int, tmp_path: Path) -> None:
    """msprobe records null for the gradients of lists and dicts."""
    net = Around(Shaped(make))
    dump = dump_of(tmp_path, net, lambda: gradients_of(net, rows()))
    assert shapes(dump.data["Cell.inner.Shaped.forward.0"]["output"]) == output
    backward = dump.data.get("Cell.inner.Shaped.backward.0")
    if count == 0:
        assert backward is None
        return
    assert [dump.of(node).tolist() for node in backward["input"]] == [np.ones((2, 3)).tolist()] * count
    factors = {3: 6.0, 2: 3.0, 1: 1.0}  # x + 1, x * 2, x * 3
    assert dump.of(backward["output"][0]).tolist() == np.full((2, 3), factors[count]).tolist()


def test_numbers_among_outputs_have_no_gradient(tmp_path: Path) -> None:
    net = Around(Shaped(lambda x: (x + 1, 5, None, "s", 2.5)))
    dump = dump_of(tmp_path, net, lambda: gradients_of(net, rows()))
    entry = dump.data["Cell.inner.Shaped.forward.0"]["output"]
    assert entry[1:] == [
        {"type": "int", "value": 5},
        None,
        {"type": "str", "value": "s"},
        {"type": "float", "value": 2.5},
    ]
    assert len(dump.data["Cell.inner.Shaped.backward.0"]["input"]) == 1


def test_only_a_cell_s_own_share_of_a_gradient_is_recorded(tmp_path: Path) -> None:
    """The input goes two ways; what comes back the other way is not the cell's."""

    class Net(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.double = Shaped(lambda x: x * 2)

        def construct(self, x: Any) -> Any:
            h = x * 1
            return self.double(h) + h * 5

    net = Net()
    dump = dump_of(tmp_path, net, lambda: ms.grad(lambda x: net(x).sum())(rows()))
    assert dump.of(dump.data["Cell.double.Shaped.backward.0"]["output"][0]).tolist() == np.full((2, 3), 2.0).tolist()


def test_outputs_of_one_operation_are_told_apart(tmp_path: Path) -> None:
    net = nn.SequentialCell(
        Shaped(lambda x: mint.chunk(x * 1, 3, 1)), Shaped(lambda parts: parts[0] * 2 + parts[2] * 3)
    )
    dump = dump_of(tmp_path, net, lambda: ms.grad(lambda x: net(x).sum())(rows()))
    given, taken = dump.data["Cell.0.Shaped.backward.0"], dump.data["Cell.1.Shaped.backward.0"]
    assert [None if node is None else dump.of(node).ravel().tolist() for node in given["input"]] == [
        [2.0, 2.0], None, [3.0, 3.0],
    ]  # fmt: skip
    assert shapes(taken["output"]) == [(2, 1), None, (2, 1)]


def test_a_tensor_that_is_given_twice(tmp_path: Path) -> None:
    class Twice(nn.Cell):
        def construct(self, left: Any, right: Any) -> Any:
            return left * 2 + right * 3

    class Net(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.twice = Twice()

        def construct(self, x: Any) -> Any:
            h = x * 1
            return self.twice(h, h)

    net = Net()
    dump = dump_of(tmp_path, net, lambda: ms.grad(lambda x: net(x).sum())(rows()))
    whole, again = dump.data["Cell.twice.Twice.backward.0"]["output"]
    assert (dump.of(whole)[0, 0], again) == (5.0, None)


# --- gradients are those of the program ---------------------------------------------------------------------------


def test_everything_is_bit_for_bit_what_the_program_has(tmp_path: Path) -> None:
    """Judged by hooks of MindSpore itself in a run without capture."""
    alone = Training()
    seen: dict[str, bytes] = {}
    for path, cell in alone.net.cells_and_names():
        if path:
            cell.register_forward_hook(_witness(seen, f"Cell.{path}.{type(cell).__name__}"))
    loss, gradients = alone.step()
    by_name = {
        parameter.name: bits(gradient)
        for parameter, gradient in zip(alone.net.trainable_params(), gradients, strict=True)
    }
    training = Training()
    results: list[Any] = []
    dump = dump_of(tmp_path, training.net, lambda: results.append(training.step()))
    assert bits(results[0][0]) == bits(loss)
    assert len(seen) > 20
    for name, content in seen.items():
        assert dump.tensor(name).tobytes() == content, name
    checked = 0
    for key, entry in dump.data.items():
        if key.endswith("parameters_grad"):
            path = key.split(".", 1)[1].rsplit(".", 2)[0]
            for parameter, (node,) in entry.items():
                assert dump.of(node).tobytes() == by_name[f"{path}.{parameter}"], key
                checked += 1
    assert checked == len(by_name) == 10


def _witness(seen: dict[str, bytes], prefix: str) -> Any:
    calls: list[int] = []

    def hear(direction: str, number: int, at: int) -> Any:
        def hook(gradient: Any) -> None:
            seen[f"{prefix}.backward.{number}.{direction}.{at}.npy"] = bits(gradient)

        return hook

    def witness(_cell: Any, _inputs: Any, output: Any) -> None:
        number = len(calls)
        calls.append(number)
        for at, tensor in enumerate(output if isinstance(output, tuple) else (output,)):
            seen[f"{prefix}.forward.{number}.output.{at}.npy"] = bits(tensor)
            tensor.register_hook(hear("input", number, at))

    return witness


def test_gradients_of_parameters_come_every_step(tmp_path: Path) -> None:
    training = Training()
    capture = debugger(tmp_path)
    wanted = []
    for _ in range(3):
        capture.start(training.net)
        wanted.append(training.step()[1])
        capture.stop()
        capture.step()
    capture.close()
    for unit, gradients in zip(units(tmp_path), wanted, strict=True):
        entry = unit.data["Cell.lst.0.Dense.parameters_grad"]
        assert list(entry) == ["weight", "bias"]
        by_name = dict(zip([p.name for p in training.net.trainable_params()], gradients, strict=True))
        assert unit.of(entry["weight"][0]).tobytes() == bits(by_name["lst.0.weight"])


def test_two_backward_passes_of_a_step_keep_both_gradients(tmp_path: Path) -> None:
    net = nn.SequentialCell(nn.Dense(3, 3))
    given: list[Any] = []

    def run() -> None:
        given.extend(gradients_of(net, rows() * factor)[1][0] for factor in (1, 2))

    dump = dump_of(tmp_path, net, run)
    last, first = dump.data["Cell.0.Dense.parameters_grad"]["weight"]
    assert [node["Max"] for node in (first, last)] == [float(one.asnumpy().max()) for one in given]


@pytest.mark.parametrize("weights", ["one", "none"])
def test_what_was_not_asked_for_has_no_gradient(weights: str, tmp_path: Path) -> None:
    net = nn.SequentialCell(nn.Dense(3, 3))
    asked = net.trainable_params()[:1] if weights == "one" else None
    call = ms.value_and_grad(lambda x: net(x).sum(), 0, asked)
    dump = dump_of(tmp_path, net, lambda: call(rows()), task="statistics")
    entry = dump.data["Cell.0.Dense.parameters_grad"]
    assert entry["bias"] == [None]
    assert (entry["weight"] == [None]) == (weights == "none")
    assert ("parameter gradients" in problems(dump)) == (weights == "none")


@pytest.mark.parametrize("get_all", [False, True])
def test_every_way_to_a_gradient_is_followed(get_all: bool, tmp_path: Path) -> None:
    net = nn.SequentialCell(nn.Dense(3, 3))
    weights = ms.ParameterTuple(net.trainable_params())
    call = ops.GradOperation(get_all=get_all, get_by_list=True, sens_param=True)(net, weights)
    found: list[Any] = []
    dump = dump_of(tmp_path, net, lambda: found.append(call(rows(), rows())))
    gradients = found[0][1] if get_all else found[0]
    entry = dump.data["Cell.0.Dense.parameters_grad"]
    assert [dump.of(entry[name][0]).tobytes() for name in ("weight", "bias")] == [bits(one) for one in gradients]


def test_a_parameter_that_two_cells_share_is_recorded_in_both(tmp_path: Path) -> None:
    first, second = nn.Dense(3, 3, has_bias=False), nn.Dense(3, 3, has_bias=False)
    second.weight = first.weight
    net = nn.SequentialCell(first, second)
    dump = dump_of(tmp_path, net, lambda: gradients_of(net, rows()))
    one, two = (dump.data[f"Cell.{number}.Dense.parameters_grad"]["weight"][0] for number in (0, 1))
    assert dump.of(one).tobytes() == dump.of(two).tobytes()


# --- ways of running ----------------------------------------------------------------------------------------------


def test_a_recomputed_cell(tmp_path: Path) -> None:
    net = nn.SequentialCell(nn.Dense(3, 3), nn.SequentialCell(nn.Dense(3, 3), nn.ReLU()))
    alone = gradients_of(net, rows())[1]
    net[1].recompute()
    dump = dump_of(tmp_path, net, lambda: gradients_of(net, rows()))
    entry = dump.data["Cell.1.0.Dense.parameters_grad"]
    assert dump.of(entry["weight"][0]).tobytes() == bits(alone[2])
    assert len(entry["weight"]) == 1
    assert "Cell.1.0.Dense.forward.1" in dump.data
    assert shapes(dump.data["Cell.1.0.Dense.backward.1"]["output"]) == [(2, 3)]
    assert dump.tree["Cell.0.Dense.backward.0"] is None
    assert problems(dump) == ""


def test_a_cell_with_its_own_bprop(tmp_path: Path) -> None:
    class Own(nn.Cell):
        def construct(self, x: Any) -> Any:
            return x * 2

        def bprop(self, x: Any, out: Any, dout: Any) -> Any:
            return (dout * 7,)

    net = nn.SequentialCell(nn.Dense(3, 3), Own())
    dump = dump_of(tmp_path, net, lambda: gradients_of(net, rows()))
    assert "Cell.1.Own.forward.0" in dump.data
    assert dump.of(dump.data["Cell.1.Own.backward.0"]["output"][0])[0, 0] == 7.0


def test_a_gradient_of_a_gradient(tmp_path: Path) -> None:
    net = nn.SequentialCell(Shaped(lambda x: x * x * x))
    call = ms.grad(lambda x: ms.grad(lambda y: net(y).sum())(x).sum())
    alone = call(rows())
    found: list[Any] = []
    dump = dump_of(tmp_path, net, lambda: found.append(call(rows())))
    assert bits(found[0]) == bits(alone)
    assert np.allclose(dump.of(dump.data["Cell.0.Shaped.backward.0"]["output"][0]), 3 * rows().asnumpy() ** 2)


def test_without_gradients_there_is_no_backward(tmp_path: Path) -> None:
    net = nn.SequentialCell(nn.Dense(3, 3))
    dump = dump_of(tmp_path, net, lambda: net(rows()))
    assert list(dump.data) == ["Cell.0.Dense.forward.0", "Cell.0.Dense.parameters_grad"]
    assert dump.data["Cell.0.Dense.parameters_grad"] == {"weight": [None], "bias": [None]}


def test_an_output_that_nobody_used_closes_its_cell_all_the_same(tmp_path: Path) -> None:
    net = nn.SequentialCell(nn.Dense(3, 3), Shaped(lambda x: (ops.sin(x), x * 2)), Shaped(lambda parts: parts[1]))
    dump = dump_of(tmp_path, net, lambda: gradients_of(net, rows()))
    entry = dump.data["Cell.1.Shaped.backward.0"]
    assert entry["input"][0] is None
    assert dump.of(entry["output"][0])[0, 0] == 2.0
    assert keys(dump, "backward") == [f"Cell.{name}.backward.0" for name in ("2.Shaped", "1.Shaped", "0.Dense")]


def test_stop_before_the_backward(tmp_path: Path) -> None:
    net = nn.SequentialCell(nn.Dense(3, 3))
    capture = debugger(tmp_path)

    def forward(x: Any) -> Any:
        capture.start(net)
        output = net(x)
        capture.stop()
        return output.sum()

    ms.grad(forward)(rows())
    capture.step()
    capture.close()
    dump = units(tmp_path)[0]
    assert shapes(dump.data["Cell.0.Dense.backward.0"]["output"]) == [(2, 3)]


def test_calls_of_construct_are_named(tmp_path: Path) -> None:
    net = nn.SequentialCell(nn.Dense(3, 3), nn.ReLU())
    dump = dump_of(tmp_path, net, lambda: net[1](net[0].construct(rows())), task="statistics")
    assert "never called" in problems(dump)
    assert "0" in problems(dump)


def test_a_jit_cell_is_recorded_from_outside(tmp_path: Path) -> None:
    class Compiled(nn.Cell):
        def __init__(self) -> None:
            super().__init__()
            self.fc = nn.Dense(3, 3)

        @ms.jit
        def construct(self, x: Any) -> Any:
            return self.fc(x)

    net = nn.SequentialCell(nn.Dense(3, 3), Compiled())
    alone = [bits(one) for one in gradients_of(net, rows())[1]]
    found: list[Any] = []
    with captured(tmp_path, net):
        found.append(gradients_of(net, rows())[1])
    assert [bits(one) for one in found[0]] == alone
    dump = Dump(tmp_path / "dump/pynative/step0/rank")  # what is inside is in the branch beside it: test_graph_cells
    assert shapes(dump.data["Cell.1.Compiled.forward.0"]["output"]) == [(2, 3)]
    assert shapes(dump.data["Cell.1.Compiled.backward.0"]["output"]) == [(2, 3)]


def test_models_are_checked() -> None:
    capture = debugger(Path.cwd())
    with pytest.raises(CaptureError, match="needs the model"):
        capture.start()
    with pytest.raises(CaptureError, match=r"mindspore\.nn\.Cell or a list of them is needed, not function"):
        capture.start(rows)


def test_token_ranges_count_forwards_of_the_model(tmp_path: Path) -> None:
    net = nn.SequentialCell(nn.Dense(3, 3))
    capture = debugger(tmp_path, task="statistics")
    before = nn.Cell.__call__
    capture.start(net, token_range=[1, 2])
    for _ in range(5):
        net(rows())
    capture.stop()
    assert nn.Cell.__call__ is before
    capture.step()
    capture.close()
    assert keys(units(tmp_path)[0], "forward") == ["Cell.0.Dense.forward.0", "Cell.0.Dense.forward.1"]


@pytest.mark.parametrize(
    ("settings", "expected"),
    [
        ({"scope": ["Cell.0.Dense.forward.0", "Cell.1.Dense.forward.0"]}, ["Cell.0", "Cell.1"]),
        ({"list": ["Cell.1.Dense"]}, ["Cell.1"]),
        ({"data_mode": ["forward", "input"]}, ["Cell.0", "Cell.1", "Cell.2"]),
    ],
    ids=["scope", "list", "data_mode"],
)
def test_filters(settings: dict[str, Any], expected: list[str], tmp_path: Path) -> None:
    net = nn.SequentialCell(*(nn.Dense(3, 3) for _ in range(3)))
    dump = dump_of(tmp_path, net, lambda: gradients_of(net, rows()), settings=settings)
    assert [key.rsplit(".", 3)[0] for key in keys(dump, "forward")] == expected
    if "data_mode" in settings:
        assert list(dump.data) == [f"{cell}.Dense.forward.0" for cell in expected]
        assert list(dump.data["Cell.0.Dense.forward.0"]) == ["input_args", "input_kwargs", "parameters"]


def test_tensor_list_saves_tensors_of_a_statistics_run(tmp_path: Path) -> None:
    net = nn.SequentialCell(nn.Dense(3, 3), nn.ReLU())
    dump = dump_of(tmp_path, net, lambda: net(rows()), task="statistics", settings={"tensor_list": ["Cell.1.ReLU"]})
    assert dump.files == {"Cell.1.ReLU.forward.0.input.0.npy", "Cell.1.ReLU.forward.0.output.0.npy"}


@pytest.mark.parametrize("storage", ["hdf5", "zarr"])
def test_other_stores(storage: str, tmp_path: Path) -> None:
    import msformat

    training = Training()
    with captured(tmp_path, training.net, level="mix", storage={"format": storage}):
        training.step()
    with msformat.open(tmp_path / "dump") as dump:
        half = dump[0]["Tensor.to.0.forward"].outputs[0]
        assert half.dtype_name == "BFloat16"
        assert (half.stored.dtype.name, half.bits().dtype.itemsize) == ("bfloat16", 2)


def test_async_dump_needs_a_list(tmp_path: Path) -> None:
    net = nn.SequentialCell(nn.Dense(3, 3))
    dump = dump_of(tmp_path, net, lambda: net(rows()), async_dump=True, settings={"list": ["Dense"]})
    assert shapes(dump.data["Cell.0.Dense.forward.0"]["output"]) == [(2, 3)]


def test_empty_and_scalar_tensors(tmp_path: Path) -> None:
    net = nn.SequentialCell(Shaped(lambda x: (x[0:0], x.sum(), Tensor(np.array([True, False])))))
    dump = dump_of(tmp_path, net, lambda: net(rows()))
    empty, scalar, flags = dump.data["Cell.0.Shaped.forward.0"]["output"]
    assert (empty["shape"], empty["Max"]) == ([0, 3], None)
    assert (scalar["shape"], scalar["Max"]) == ([], scalar["Min"])
    assert (flags["Max"], flags["Min"], flags["Mean"]) == (True, False, None)
