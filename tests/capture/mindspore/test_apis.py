"""Replaced functions of MindSpore: the peer's names, plain results, nothing left behind. MindSpore is the judge."""

from __future__ import annotations

import copy
import gc
import threading
import types
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import mindspore
import numpy as np
import pytest
from mindspore import Parameter, Tensor, mint, nn, ops
from mindspore.communication import comm_func
from mindspore.mint.nn import functional

from tests.capture.mindspore.recording import Bench, RecordingObserver

PLACES: dict[str, Any] = {
    "ops": ops, "Tensor": Tensor, "mint": mint, "functional": functional, "comm_func": comm_func,
    "distributed": mint.distributed, "JitExecutor_": mindspore._c_expression.JitExecutor_,
    "GraphExecutor_": mindspore._c_expression.GraphExecutor_,
}  # fmt: skip


def _own_attributes() -> dict[str, dict[str, int]]:
    """Identity of everything that stands in the places themselves; what is inherited does not."""
    return {name: {key: id(value) for key, value in vars(place).items()} for name, place in PLACES.items()}


def matrix(*shape: int) -> Tensor:
    count = int(np.prod(shape))
    return Tensor((np.arange(count, dtype=np.float32) - count / 2).reshape(shape) / 3)


@pytest.fixture
def bench() -> Bench:
    return Bench()


@pytest.fixture
def observer(bench: Bench) -> Iterator[RecordingObserver]:
    with bench.installed() as observer:
        yield observer


# --- names ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "key"),
    [
        (lambda x: ops.relu(input=x), "Functional.relu"),
        (lambda x: mint.add(x, 1.0), "Mint.add"),
        (lambda x: functional.silu(input=x), "MintFunctional.silu"),
        (lambda x: x + 1, "Tensor.__add__"),
        (lambda x: 2.0 * x, "Tensor.__rmul__"),
        (lambda x: x > 0, "Tensor.__gt__"),
        (lambda x: -x, "Tensor.__neg__"),
        (lambda x: x.__abs__(), "Tensor.__abs__"),
        (lambda x: x.reshape((-1,)), "Tensor.reshape"),
        (lambda x: x.astype(mindspore.float16), "Tensor.to"),
        (lambda x: x.float(), "Tensor.float"),
        (lambda x: ops.concat((x, x), axis=1), "Functional.concat"),
        (lambda x: ops.cross_entropy(x, Tensor([0, 1], mindspore.int32)), "Functional.cross_entropy"),
        (lambda x: nn.CrossEntropyLoss()(x, Tensor([0, 1], mindspore.int32)), "Functional.cross_entropy"),
        (lambda x: Tensor.from_numpy(np.ones(2, np.float32)), "Tensor.from_numpy"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_call_is_one_entry_under_the_peer_s_name(call: Any, key: str, observer: RecordingObserver) -> None:
    call(matrix(2, 3))
    assert observer.keys == [f"{key}.0.forward"]
    assert observer.problems == []


def test_arguments_as_they_were_given(observer: RecordingObserver) -> None:
    x = matrix(2, 2)
    x.sum(axis=-1, keepdims=True)
    args, kwargs = observer.inputs["Tensor.sum.0.forward"]
    assert args[0].tolist() == x.asnumpy().tolist()
    assert kwargs == {"axis": -1, "keepdims": True}
    assert observer.outputs["Tensor.sum.0.forward"].tolist() == x.asnumpy().sum(-1, keepdims=True).tolist()


def test_inputs_are_those_before_an_in_place_operation(observer: RecordingObserver) -> None:
    parameter = Parameter(Tensor(np.zeros(3, np.float32)), name="p")
    ops.assign(parameter, Tensor(np.ones(3, np.float32)))
    assert parameter.asnumpy().tolist() == [1, 1, 1]
    assert observer.inputs["Functional.assign.0.forward"][0][0].tolist() == [0, 0, 0]
    assert observer.outputs["Functional.assign.0.forward"].tolist() == [1, 1, 1]


# --- doing no harm ----------------------------------------------------------------------------------------------------


def test_everything_is_the_identical_object_afterwards(bench: Bench) -> None:
    before = _own_attributes()
    slots = Tensor.__add__, Tensor.__eq__, Tensor.reshape, ops.relu, mint.add
    for _ in range(3):
        with bench.installed():
            assert _own_attributes() != before
        assert _own_attributes() == before
        assert (Tensor.__add__, Tensor.__eq__, Tensor.reshape, ops.relu, mint.add) == slots


def test_installing_twice_and_removing_twice_does_no_harm(bench: Bench) -> None:
    before = _own_attributes()
    bench.hooks.remove()
    bench.hooks.install()
    bench.hooks.install()
    bench.hooks.remove()
    bench.hooks.remove()
    assert _own_attributes() == before


def test_a_replacement_by_somebody_else_stays(bench: Bench, monkeypatch: pytest.MonkeyPatch) -> None:
    def theirs(x: Tensor) -> Tensor:
        return x

    with bench.installed():
        monkeypatch.setattr(ops, "relu", theirs)
    assert ops.relu is theirs


class Net(nn.Cell):
    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3, has_bias=True)
        self.dense = nn.Dense(32, 4)
        self.softmax = ops.Softmax(-1)

    def construct(self, x: Tensor) -> Tensor:
        h = functional.relu(ops.relu(self.conv(x)))
        h = mint.add(h, 1.0).reshape((h.shape[0], -1))
        h = self.dense(h)
        h = ops.concat((h[:, 0:2], h[..., 2:] * h[..., 2:]), axis=1)
        h = h + h.astype(mindspore.bfloat16).astype(mindspore.float32)
        return self.softmax(h)


def _train(net: Net, steps: int = 3) -> list[bytes]:
    loss, optimizer = nn.CrossEntropyLoss(), nn.Adam(net.trainable_params(), 0.1)
    step = mindspore.value_and_grad(lambda x, y: loss(net(x), y), None, optimizer.parameters)
    found = []
    for number in range(steps):
        value, gradients = step(matrix(2, 1, 4, 4) * (number + 1), Tensor([1, 3], mindspore.int32))
        optimizer(gradients)
        found += [value.asnumpy().tobytes(), *(gradient.asnumpy().tobytes() for gradient in gradients)]
    return found + [parameter.asnumpy().tobytes() for parameter in net.trainable_params()]


def test_training_is_bitwise_the_same(bench: Bench) -> None:
    mindspore.set_seed(1)
    plain = _train(Net())
    mindspore.set_seed(1)
    net = Net()
    with bench.installed(net) as observer:
        captured = _train(net)
    assert captured == plain
    assert len(observer.keys) > 60
    assert observer.problems == []


def test_dropout_and_the_random_state_are_as_without(bench: Bench) -> None:
    """msprobe puts the identity in the place of dropout."""
    mindspore.set_seed(3)
    plain = [ops.dropout(matrix(8, 8), 0.5).asnumpy() for _ in range(2)]
    mindspore.set_seed(3)
    with bench.installed():
        captured = [ops.dropout(matrix(8, 8), 0.5).asnumpy() for _ in range(2)]
    assert np.array_equal(plain, captured)
    assert (plain[0] == 0).any()


def test_results_are_the_same_objects_and_types(observer: RecordingObserver) -> None:
    x = matrix(2, 2)
    assert ops.dropout(x, 0.5, training=False) is x
    assert type(ops.topk(x, 1)) is tuple
    assert isinstance(ops.relu, types.FunctionType)
    assert bool(Tensor(True)) is True
    assert (x == x.copy()).asnumpy().all()
    assert {x: 1}[x] == 1


def test_no_tensor_is_kept(bench: Bench) -> None:
    x = matrix(2, 2)
    with bench.installed():
        mindspore.grad(lambda x: ops.relu(x * x).sum())(x)
        y = ops.relu(x)
        reference = weakref.ref(y)
        del y
        gc.collect()
        assert reference() is None


def test_off_between_start_and_stop(bench: Bench) -> None:
    with bench.installed() as observer:
        observer.running = False
        ops.relu(matrix(2))
    assert observer.keys == []
    ops.relu(matrix(2))
    assert observer.keys == []


def test_other_threads_are_recorded_and_do_not_mix(observer: RecordingObserver) -> None:
    def work() -> None:
        for _ in range(20):
            ops.relu(matrix(3))

    threads = [threading.Thread(target=work) for _ in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(observer.keys) == sorted(f"Functional.relu.{number}.forward" for number in range(60))


# --- errors -----------------------------------------------------------------------------------------------------------


def test_a_call_that_raises_has_inputs_only(observer: RecordingObserver) -> None:
    with pytest.raises((TypeError, ValueError, RuntimeError)):
        ops.concat((matrix(2, 2), matrix(3, 5)), axis=0)
    ops.relu(matrix(2))
    assert observer.failed == ["Functional.concat.0.forward"]
    assert observer.keys == ["Functional.concat.0.forward", "Functional.relu.0.forward"]
    assert not observer.local.in_api


@pytest.mark.parametrize(
    ("fails", "key", "text"),
    [
        (lambda x: mint.norm(x, 2), "Mint.norm", "LinalgVectorNorm"),
        (lambda x: ops.gather(x, Tensor([7]), 0), "Functional.gather", "Gather"),
    ],
    ids=["no-kernel", "out-of-range"],
)
def test_a_kernel_that_fails_behind_the_program_fails_its_own_call(
    fails: Any, key: str, text: str, observer: RecordingObserver
) -> None:
    """The error comes out of the call that caused it, and nothing that follows is silenced (msprobe: everything)."""
    with pytest.raises(RuntimeError, match=text):
        fails(matrix(2, 2))
    assert observer.failed == [f"{key}.0.forward"]
    assert ops.relu(matrix(2)).asnumpy().tolist() == [0, 0]
    assert observer.outputs["Functional.relu.0.forward"].tolist() == [0, 0]


def test_an_error_from_before_capture_reaches_the_program(bench: Bench) -> None:
    bad = mint.norm(matrix(2, 2))
    with bench.installed() as observer:
        with pytest.raises(RuntimeError, match="LinalgVectorNorm"):
            ops.relu(matrix(2))
        assert ops.relu(matrix(2)).asnumpy().tolist() == [0, 0]
    del bad
    assert "Functional.relu.1.forward" in observer.outputs


# --- backward ---------------------------------------------------------------------------------------------------------


def _gradients(run: Callable[[Tensor], Tensor], x: Tensor) -> Any:
    return mindspore.grad(run)(x)


def test_gradients_of_outputs_and_inputs(observer: RecordingObserver) -> None:
    x = Tensor(np.array([1.0, -2.0], np.float32))
    _gradients(lambda x: (ops.relu(x) * 3).sum(), x)
    assert observer.keys[-3:] == ["Tensor.sum.0.backward", "Tensor.__mul__.0.backward", "Functional.relu.0.backward"]
    assert [one.tolist() for one in observer.inputs["Functional.relu.0.backward"]] == [[3, 3]]
    assert [one.tolist() for one in observer.outputs["Functional.relu.0.backward"]] == [[3, 0]]


def test_gradients_are_those_of_one_call_only(observer: RecordingObserver) -> None:
    """A tensor that is used twice has a gradient from each use; each call shows its own."""
    x = Tensor(np.array([1.0, 2.0], np.float32))
    total = _gradients(lambda x: (x * x + ops.exp(x)).sum(), x)
    first, second = observer.outputs["Tensor.__mul__.0.backward"]
    (third,) = observer.outputs["Functional.exp.0.backward"]
    assert (first.tolist(), second.tolist()) == ([1, 2], [1, 2])
    np.testing.assert_allclose(third, np.exp([1.0, 2.0]), rtol=1e-6)
    np.testing.assert_allclose(first + second + third, total.asnumpy(), rtol=1e-6)


def test_functions_of_many_operations_have_one_backward(observer: RecordingObserver) -> None:
    x, labels = matrix(2, 3), Tensor([0, 2], mindspore.int32)
    expected = mindspore.grad(lambda x: ops.cross_entropy(x, labels))(x).asnumpy()
    gradients = observer.outputs["Functional.cross_entropy.0.backward"]
    assert gradients[0].tolist() == expected.tolist()
    assert gradients[1:] == [None]
    assert [one.tolist() for one in observer.inputs["Functional.cross_entropy.0.backward"]] == [1.0]


def test_tensors_in_lists_have_their_gradients(observer: RecordingObserver) -> None:
    _gradients(lambda x: (ops.concat((x, x * 2)) * Tensor([1.0, 2.0, 3.0, 4.0])).sum(), Tensor([1.0, 1.0]))
    assert [one.tolist() for one in observer.outputs["Functional.concat.0.backward"]] == [[1, 2], [3, 4]]


def test_outputs_that_nobody_used_have_none(observer: RecordingObserver) -> None:
    _gradients(lambda x: ops.topk(x, 1)[0].sum(), matrix(4))
    given = observer.inputs["Functional.topk.0.backward"]
    assert given[0].tolist() == [1.0]
    assert observer.outputs["Functional.topk.0.backward"][0].tolist() == [0, 0, 0, 1]


def test_a_function_that_gives_its_input_back(observer: RecordingObserver) -> None:
    _gradients(lambda x: (ops.dropout(x * 2, training=False) * 5).sum(), matrix(2))
    assert [one.tolist() for one in observer.outputs["Functional.dropout.0.backward"]] == [[5, 5]]


def test_without_gradients_there_is_no_backward(observer: RecordingObserver) -> None:
    ops.relu(matrix(2))
    _gradients(lambda x: ops.relu(matrix(2)).sum() * 0 + x.sum(), matrix(2))

    def partly(x: Tensor) -> Tensor:
        with mindspore._no_grad():
            ops.relu(x)
        return x.sum()

    _gradients(partly, matrix(2))
    assert not any(key.startswith("Functional.relu") and key.endswith("backward") for key in observer.keys)


# --- primitives -------------------------------------------------------------------------------------------------------


def _kinds(net: Net) -> dict[int, type]:
    held = [value for _, cell in net.cells_and_names() for value in vars(cell).values()]
    return {id(value): type(value) for value in held if isinstance(value, ops.Primitive)}


def test_primitives_of_cells(bench: Bench) -> None:
    net = Net()
    kinds = _kinds(net)
    with bench.installed(net) as observer:
        assert isinstance(net.softmax, ops.Softmax)
        net(matrix(2, 1, 4, 4))
        assert type(copy.deepcopy(net.softmax)) is kinds[id(net.softmax)]
    primitives = [key for key in observer.keys if key.startswith("Primitive.")]
    assert primitives == [
        "Primitive.conv2d.Conv2D.0.forward",
        "Primitive.bias_add.BiasAdd.0.forward",
        "Primitive.shape_op.Shape.0.forward",
        "Primitive.matmul.MatMul.0.forward",
        "Primitive.bias_add.BiasAdd.1.forward",
        "Primitive.softmax.Softmax.0.forward",
    ]
    (x, weight), _ = observer.inputs["Primitive.matmul.MatMul.0.forward"]
    assert (x.shape, weight.shape) == ((2, 32), (4, 32))  # not the primitive itself
    assert _kinds(net) == kinds


def test_primitives_of_a_list_of_models_and_shared_ones(bench: Bench) -> None:
    first, second = Net(), Net()
    second.other = first.softmax
    with bench.installed([first, second]) as observer:
        second.other(matrix(2, 2))
    assert observer.keys == ["Primitive.softmax.Softmax.0.forward"]


# --- functions of the user --------------------------------------------------------------------------------------------


class Module:
    @staticmethod
    def double(x: Any) -> Any:
        return x * 2


def test_custom_functions(bench: Bench) -> None:
    module = types.SimpleNamespace(scale=lambda x, by=1: ops.relu(x) * by)
    original = module.scale
    bench.hooks.add_custom(module, "scale", "User")
    bench.hooks.add_custom(Module, "double", "Mine")
    with bench.installed() as observer:
        module.scale(matrix(2), by=3)
        Module.double(matrix(2))
        bench.hooks.remove_custom(module, "scale")
        assert module.scale is original
        module.scale(matrix(2))
    assert observer.forwards[:2] == ["User.scale.0.forward", "Mine.double.0.forward"]
    assert observer.inputs["User.scale.0.forward"][1] == {"by": 3}
    assert observer.forwards[2:] == ["Functional.relu.0.forward", "Tensor.__mul__.0.forward"]
    assert isinstance(vars(Module)["double"], staticmethod)
    with pytest.raises(TypeError, match="nothing to record"):
        bench.hooks.add_custom(types.SimpleNamespace(x=3), "x", "User")


def test_custom_functions_have_gradients(bench: Bench) -> None:
    outside = Tensor(np.array([5.0, 7.0], np.float32))
    module = types.SimpleNamespace(scale=lambda x: ops.exp(x) * outside + x)
    bench.hooks.add_custom(module, "scale", "User")
    with bench.installed() as observer:
        x = Tensor(np.array([0.0, 0.0], np.float32))
        total = mindspore.grad(lambda x: module.scale(x * 1).sum())(x)
    assert [one.tolist() for one in observer.outputs["User.scale.0.backward"]] == [total.asnumpy().tolist()]
