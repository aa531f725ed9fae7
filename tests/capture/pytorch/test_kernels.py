"""Level L2 with PyTorch: a double of torch_npu is switched on and off around one call, forward or backward.

The order of events is judged by autograd itself: hooks of the test on nodes, and functions of its own around the call.
"""

from __future__ import annotations

import gc
import json
import logging
import sys
import types
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn
from torch.nn import functional

import msformat
from capture.errors import CaptureError
from capture.pytorch import PrecisionDebugger
from capture.pytorch.debugger import module_dump
from tests.capture.kernel_device import TIME, VALUES
from tests.kernel_files import NAME, Part, write_dump

ON = ["synchronize", "init_dump", "set_dump", "synchronize"]
OFF = ["synchronize", "finalize_dump", "synchronize"]
# Nodes that belong to no call of these tests.
OUTSIDE = ("MarkedBackward", "AccumulateGrad")


class Npu(types.ModuleType):
    """``torch_npu.npu``: remembers what was called, and writes a kernel where it was told to."""

    def __init__(self) -> None:
        super().__init__("torch_npu.npu")
        self.events: list[str] = []
        self.configs: list[dict[str, Any]] = []
        self.is_on = False
        self.breaks: str | None = None

    def synchronize(self) -> None:
        self._note("synchronize")

    def init_dump(self) -> None:
        self._note("init_dump")

    def set_dump(self, path: str) -> None:
        self._note("set_dump")
        self.configs.append(json.loads(Path(path).read_text("utf-8")))
        self.is_on = True

    def finalize_dump(self) -> None:
        self._note("finalize_dump")
        if self.is_on:
            where = Path(self.configs[-1]["dump"]["dump_path"]) / TIME / "0"
            write_dump(where, [Part.of(VALUES)], [Part.of(VALUES)])
        self.is_on = False

    def _note(self, name: str) -> None:
        self.events.append(name)
        if name == self.breaks:
            raise RuntimeError("the device is gone")


@pytest.fixture
def npu(monkeypatch: pytest.MonkeyPatch) -> Npu:
    found, torch_npu = Npu(), types.ModuleType("torch_npu")
    torch_npu.npu = found  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch_npu", torch_npu)
    return found


@pytest.fixture
def debugger(tmp_path: Path) -> Iterator[Callable[..., PrecisionDebugger]]:
    made: list[PrecisionDebugger] = []

    def make(target: str, **keys: Any) -> PrecisionDebugger:
        path = tmp_path / "config.json"
        document = {"task": "tensor", "dump_path": str(tmp_path / "dump"), "level": "L2", **keys}
        path.write_text(json.dumps({**document, "tensor": {"list": [target]}}))
        made.append(PrecisionDebugger(path))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.fixture(autouse=True)
def _said(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="msformat.capture")


class Marked(torch.autograd.Function):
    """Passes on, and says when its backward runs."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, events: list[str], name: str) -> torch.Tensor:
        ctx.events, ctx.name = events, name
        return value.clone()

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        ctx.events.append(ctx.name)
        return gradient.clone(), None, None


def between(call: Callable[[torch.Tensor], Any], events: list[str], value: torch.Tensor) -> torch.Tensor:
    """A scalar made by a call between two functions that say when their backward runs."""
    output = call(Marked.apply(value, events, "before"))
    for tensor in output if isinstance(output, tuple) else (output,):
        name = type(tensor.grad_fn).__name__
        tensor.grad_fn.register_prehook(lambda *_, name=name: events.append(name))
    first = output[0] if isinstance(output, tuple) else output
    return Marked.apply(first, events, "after").sum()


# --- forward ---------------------------------------------------------------------------------------------------------


def test_the_device_dumps_while_the_forward_runs(npu: Npu, debugger: Any, tmp_path: Path) -> None:
    one = debugger("Functional.linear.1.forward")
    model = nn.Sequential(nn.Linear(3, 3), nn.ReLU(), nn.Linear(3, 2))
    for step in range(2):
        npu.events.clear()
        one.start(model)
        model(torch.ones(2, 3)).sum().backward()
        one.stop()
        one.step()
        assert npu.events == [*ON, *OFF]
        assert npu.configs[-1] == {
            "dump": {
                "dump_list": [], "dump_path": str(tmp_path / "dump" / f"step{step}"), "dump_mode": "all",
                "dump_op_switch": "on",
            }
        }  # fmt: skip
    one.close()
    entry_key = next(iter(msformat.open(tmp_path / "dump")[1]))
    assert entry_key.startswith("Add.Default_Add-op1")


def test_the_call_itself_lies_between(npu: Npu, debugger: Any) -> None:
    def user_function(value: torch.Tensor) -> torch.Tensor:
        npu.events.append("call")
        return value * 2

    place = types.SimpleNamespace(double=user_function)
    one = debugger("User.double.0.forward")
    one.register_custom_api(place, "double", "User")
    one.start()
    place.double(torch.ones(2))
    place.double(torch.ones(2))
    one.stop()
    assert npu.events == [*ON, "call", *OFF, "call"]
    assert place.double is user_function


def test_an_api_inside_another_is_not_counted(npu: Npu, debugger: Any) -> None:
    """As at level L1: names are those of its dump.json."""
    one = debugger("Functional.linear.0.forward")
    one.start()
    functional.multi_head_attention_forward(
        torch.ones(2, 1, 4), torch.ones(2, 1, 4), torch.ones(2, 1, 4), 4, 2, torch.ones(12, 4), torch.zeros(12), None,
        None, False, 0.0, torch.ones(4, 4), torch.zeros(4),
    )  # fmt: skip
    assert npu.events == []
    functional.linear(torch.ones(1, 2), torch.ones(2, 2))
    one.stop()
    assert npu.events == [*ON, *OFF]


def test_a_call_that_raises_is_over(npu: Npu, debugger: Any) -> None:
    one = debugger("Torch.matmul.0.forward")
    one.start()
    with pytest.raises(RuntimeError):
        torch.matmul(torch.ones(2, 3), torch.ones(2, 3))
    assert npu.events == [*ON, *OFF]


# --- backward --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("target", "call"),
    [
        ("Functional.linear.0", lambda value: functional.linear(value, torch.ones(3, 3, requires_grad=True))),
        ("Torch.mul.0", lambda value: torch.mul(value, value)),
        ("Functional.cross_entropy.0", lambda value: functional.cross_entropy(value, torch.tensor([0, 1]))),
        ("Torch.split.0", lambda value: torch.split(value, 2, dim=1)),
        ("Functional.softmax.0", lambda value: functional.softmax(value, dim=1)),
    ],
)
def test_the_device_dumps_while_the_backward_of_the_call_runs(npu: Npu, debugger: Any, target: str, call: Any) -> None:
    one = debugger(f"{target}.backward")
    one.start()
    loss = between(call, npu.events, torch.rand(2, 3, requires_grad=True))
    assert npu.events == [], "nothing of a forward is dumped"
    loss.backward()
    one.stop()
    begin, end = npu.events.index("init_dump"), npu.events.index("finalize_dump")
    after, before = npu.events.index("after"), npu.events.index("before")
    assert after < begin < end < before
    inside = [name for name in npu.events if "Backward" in name]
    assert inside
    assert [name for name in npu.events[begin:end] if "Backward" in name] == inside
    assert [name for name in npu.events if name not in ("after", "before") and "Backward" not in name] == [*ON, *OFF]


def test_all_nodes_of_a_call_lie_between(npu: Npu, debugger: Any) -> None:
    """A composite call makes many nodes; the last to run is the first that was made."""
    one = debugger("Functional.gaussian_nll_loss.0.backward")
    value, var = torch.rand(4, requires_grad=True), torch.rand(4, requires_grad=True)
    one.start()
    loss = functional.gaussian_nll_loss(Marked.apply(value, npu.events, "before"), torch.ones(4), var)
    seen, waiting = set(), [loss.grad_fn]
    while waiting:
        node = waiting.pop()
        if node is None or node in seen or type(node).__name__ in OUTSIDE:
            continue
        seen.add(node)
        node.register_prehook(lambda *_: npu.events.append("node"))
        waiting += [source for source, _ in node.next_functions]
    Marked.apply(loss, npu.events, "after").backward()
    one.stop()
    begin, end = npu.events.index("init_dump"), npu.events.index("finalize_dump")
    assert len(seen) > 5
    # The prehook that switches the device on was there first, so the outermost node is inside as well.
    assert npu.events[begin:end].count("node") == npu.events.count("node") == len(seen)
    assert npu.events.index("after") < begin < end < npu.events.index("before")


def test_gradients_and_random_numbers_are_those_of_a_run_without(npu: Npu, debugger: Any) -> None:
    """The peer runs the API a second time; here nothing is drawn, kept or computed twice."""

    def run(one: Any) -> tuple[Any, ...]:
        torch.manual_seed(7)
        model = nn.Sequential(nn.Linear(8, 8), nn.Dropout(0.5), nn.Linear(8, 2))
        if one is not None:
            one.start(model)
        loss = model(torch.rand(4, 8)).square().sum()
        loss.backward()
        if one is not None:
            one.stop()
        return loss.detach(), *(parameter.grad for parameter in model.parameters()), torch.get_rng_state()

    bare, dumped = run(None), run(debugger("Functional.dropout.0.backward"))
    assert npu.events == [*ON, *OFF]
    assert all(torch.equal(first, second) for first, second in zip(bare, dumped, strict=True))


def test_a_graph_that_runs_twice_is_dumped_once(npu: Npu, debugger: Any) -> None:
    one = debugger("Torch.mul.0.backward")
    one.start()
    value = torch.ones(2, requires_grad=True)
    loss = torch.mul(value, 3).sum()
    loss.backward(retain_graph=True)
    loss.backward()
    one.stop()
    assert npu.events == [*ON, *OFF]


def test_a_part_of_the_calls_graph_ends_with_the_pass(npu: Npu, debugger: Any) -> None:
    """The node made first inside the call belongs to an output that nobody uses."""

    def pair(value: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return value.exp(), value.sin()

    place = types.SimpleNamespace(pair=pair)
    one = debugger("User.pair.0.backward")
    one.register_custom_api(place, "pair", "User")
    one.start()
    _, second = place.pair(Marked.apply(torch.ones(2, requires_grad=True), npu.events, "before"))
    second.sum().backward()
    assert npu.events == [*ON, "before", *OFF]


def test_a_backward_after_stop_belongs_to_the_step(npu: Npu, debugger: Any) -> None:
    one = debugger("Torch.mul.0.backward")
    one.start()
    first = torch.mul(torch.ones(2, requires_grad=True), 3).sum()
    one.stop()
    first.backward()
    one.step()
    assert npu.events == [*ON, *OFF]
    one.start()
    second = torch.mul(torch.ones(2, requires_grad=True), 3).sum()
    one.stop()
    one.step()
    second.backward()
    assert npu.events == [*ON, *OFF], "its step is over"


def test_a_backward_that_raises_leaves_the_device_off(npu: Npu, debugger: Any) -> None:
    class Broken(torch.autograd.Function):
        @staticmethod
        def forward(ctx: Any, value: torch.Tensor) -> torch.Tensor:
            return value.clone()

        @staticmethod
        def backward(ctx: Any, gradient: torch.Tensor) -> Any:
            raise ArithmeticError("in the middle")

    def call(value: torch.Tensor) -> torch.Tensor:
        return Broken.apply(value.exp()).sin()

    place = types.SimpleNamespace(call=call)
    one = debugger("User.call.0.backward")
    one.register_custom_api(place, "call", "User")
    one.start()
    with pytest.raises(ArithmeticError):
        place.call(torch.ones(2, requires_grad=True)).sum().backward()
    one.stop()
    assert npu.events == [*ON, *OFF]


def test_a_crash_in_the_block_leaves_the_device_off(npu: Npu, debugger: Any) -> None:
    def call(value: torch.Tensor) -> torch.Tensor:
        raise KeyboardInterrupt

    place = types.SimpleNamespace(call=call)
    one = debugger("User.call.0.forward")
    one.register_custom_api(place, "call", "User")
    with pytest.raises(KeyboardInterrupt), one.capture():
        place.call(torch.ones(2))
    assert npu.events == [*ON, *OFF]


@pytest.mark.parametrize(
    "value",
    [torch.ones(2), torch.ones(2, requires_grad=True).detach(), torch.tensor([1])],
)
def test_a_call_without_a_backward_is_said(npu: Npu, debugger: Any, caplog: Any, value: torch.Tensor) -> None:
    one = debugger("Torch.mul.0.backward")
    one.start()
    torch.mul(value, 3)
    one.stop()
    assert npu.events == []
    assert "Torch.mul.0.backward: has no backward" in caplog.text


def test_an_output_that_is_an_input_has_no_backward_of_its_own(npu: Npu, debugger: Any, caplog: Any) -> None:
    one = debugger("Functional.dropout.0.backward")
    one.start()
    value = torch.ones(2, requires_grad=True) * 2
    functional.dropout(value, training=False).sum().backward()
    one.stop()
    assert npu.events == []
    assert "has no backward" in caplog.text


def test_hooks_keep_no_graph(npu: Npu, debugger: Any) -> None:
    one = debugger("Functional.linear.0.backward")
    one.start()
    value = torch.ones(2, 2, requires_grad=True)
    output = functional.linear(value, torch.ones(2, 2))
    gone = weakref.ref(output.grad_fn.next_functions[0][0].variable)
    del value, output
    gc.disable()
    try:
        assert gone() is None, "without a collection: there is no cycle"
    finally:
        gc.enable()
    one.stop()


# --- what cannot be --------------------------------------------------------------------------------------------------


def test_without_torch_npu_it_is_said_once_and_the_training_goes_on(debugger: Any, caplog: Any, tmp_path: Path) -> None:
    assert "torch_npu" not in sys.modules
    before = functional.relu, torch.Tensor.add
    one = debugger("Functional.relu.0.forward")
    for _ in range(3):
        one.start()
        assert (functional.relu, torch.Tensor.add) == before
        assert functional.relu is before[0]
        functional.relu(torch.ones(2))
        one.stop()
        one.step()
    one.close()
    assert len(caplog.records) == 1
    assert "no kernels are dumped, because torch_npu is not imported" in caplog.text
    assert "the training goes on without capture" in caplog.text
    assert not (tmp_path / "dump").exists()


def test_an_old_torch_npu_is_named(npu: Npu, debugger: Any, caplog: Any, monkeypatch: Any) -> None:
    monkeypatch.setattr(Npu, "set_dump", None)
    one = debugger("Functional.relu.0.forward")
    one.start()
    assert "torch_npu.npu has no set_dump" in caplog.text


@pytest.mark.parametrize("breaks", ["init_dump", "set_dump", "finalize_dump", "synchronize"])
@pytest.mark.parametrize("stage", ["forward", "backward"])
def test_a_broken_device_costs_the_training_nothing(
    npu: Npu, debugger: Any, caplog: Any, breaks: str, stage: str
) -> None:
    one = debugger(f"Torch.mul.0.{stage}")
    npu.breaks = breaks
    value = torch.ones(2, requires_grad=True)
    one.start()
    torch.mul(value, 3).sum().backward()
    one.stop()
    one.step()
    assert torch.equal(value.grad, torch.full((2,), 3.0))
    assert not npu.is_on or breaks == "finalize_dump"
    assert "the device is gone" in caplog.text
    assert npu.events.count("finalize_dump") == 1


def test_module_dump_is_refused(npu: Npu, debugger: Any) -> None:
    debugger("Torch.mul.0.forward")
    with pytest.raises(CaptureError, match="level L2"):
        module_dump(nn.Linear(2, 2), "x")


def test_functions_are_the_originals_after_stop(npu: Npu, debugger: Any) -> None:
    before = functional.relu, torch.mul, vars(torch.Tensor).get("__add__")
    one = debugger("Functional.relu.0.forward")
    one.start()
    assert functional.relu is not before[0]
    one.stop()
    assert (functional.relu, torch.mul, vars(torch.Tensor).get("__add__")) == before
    assert functional.relu is before[0]


def test_kernels_go_into_the_store(npu: Npu, debugger: Any, tmp_path: Path) -> None:
    one = debugger("Torch.mul.0.forward", storage={"format": "zarr", "kernels": "move"})
    one.start()
    torch.mul(torch.ones(2), 3)
    one.stop()
    one.step()
    one.close()
    unit = msformat.open(tmp_path / "dump")[0]
    assert unit.key.path == "step0/rank"
    assert unit.backend == "zarr"
    np.testing.assert_array_equal(unit[next(iter(unit))].inputs[0].numpy(), VALUES)
    assert not list((tmp_path / "dump").rglob(NAME))
