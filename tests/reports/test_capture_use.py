"""Reports on the use of msprobe (R020 to R041): their cases through PrecisionDebugger for PyTorch.

PyTorch without capture judges what a program computes, the values themselves what is on disk.
"""

from __future__ import annotations

import gc
import weakref
from pathlib import Path
from typing import Any

import pytest

import msformat
from capture.errors import CaptureError
from tests.reports.cases import counted_calls, everywhere

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.nn import functional  # noqa: E402
from torch.nn.functional import relu as early_relu  # noqa: E402

from capture.pytorch import module_dump, module_dump_end  # noqa: E402
from tests.reports.capturing import (  # noqa: E402
    BATCH,
    captured,
    debugging,
    gradients,
    same_bits,
    train,
    two_layers,
)


def test_r020_a_buffer_by_position_and_by_name(tmp_path: Path) -> None:
    """Capture has no ignore rules; what a buffer received is recorded, however it was given."""
    import torch.distributed as dist

    dist.init_process_group("gloo", init_method=f"file://{tmp_path}/meet", rank=0, world_size=1)

    def run() -> None:
        for given in ((), ("tensor",)):
            parts = [torch.zeros(2)]
            x = torch.ones(2)
            if given:
                dist.all_gather(tensor_list=parts, tensor=x, async_op=True).wait()
            else:
                dist.all_gather(parts, x, async_op=True).wait()

    try:
        unit = captured(tmp_path / "d", run, level="L1")
    finally:
        dist.destroy_process_group()
    by_position, by_name = unit["Distributed.all_gather.0.forward"], unit["Distributed.all_gather.1.forward"]
    assert by_position.inputs[0][0].numpy().tolist() == by_name.kwargs["tensor_list"][0].numpy().tolist() == [0, 0]
    assert by_position.outputs[0][0].numpy().tolist() == by_name.outputs[0][0].numpy().tolist() == [1, 1]


def test_r021_a_step_without_data_leaves_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = two_layers()
    with debugging(tmp_path / "d") as debugger:
        for work in (False, True, False, False):
            debugger.start(model)
            if work:
                model(BATCH)
            debugger.stop()
            debugger.step()
        debugger.set_init_step(10)
        debugger.start(model)
        model(BATCH)
        debugger.stop()
        debugger.step()
        debugger.start(model)
    assert sorted(path.name for path in (tmp_path / "d").iterdir()) == ["step1", "step10"]
    assert msformat.open(tmp_path / "d").steps == (1, 10)
    assert caplog.text.count("nothing was captured") == 1


def test_r022_what_matches_nothing_is_said_by_capture(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = two_layers()

    def three_steps(name: str, **config: Any) -> str:
        caplog.clear()
        with debugging(tmp_path / name, **config) as debugger:
            for _ in range(3):
                debugger.start(model)
                model(BATCH)
                debugger.stop()
                debugger.step()
        return caplog.text

    said = three_steps("ranks", rank=[4, 5])
    assert "[4, 5]" in said
    assert "single process" in said
    said = three_steps("steps", step=[7])
    assert "[7]" in said
    assert "2" in said.partition("the last one was")[2]
    said = three_steps("names", list=["nomatch"])
    assert "'nomatch' matched nothing" in said
    assert "Module.0.Linear" in said
    assert not any((tmp_path / name).exists() for name in ("ranks", "steps", "names"))


def test_r025_modules_called_through_forward_are_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.block = nn.Linear(3, 2)

        def forward(self, x: Any) -> Any:
            return self.block.forward(x)

    model = Net()
    with debugging(tmp_path / "d") as debugger:
        debugger.start(model)
        model(BATCH)
        debugger.stop()
        debugger.step()
    assert "block" in caplog.text
    assert "never called" in caplog.text
    assert "nothing was captured" in caplog.text
    assert not (tmp_path / "d/step0").exists()


def test_r025_what_is_never_called_by_design_is_not_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    layer = nn.TransformerEncoderLayer(4, 2, 8, batch_first=True)
    captured(tmp_path / "d", lambda: layer(torch.ones(2, 3, 4)), nn.Sequential(layer, nn.ModuleList()))
    assert caplog.text == ""


@pytest.mark.filterwarnings("ignore:The .grad attribute")  # of Dynamo's own
def test_r026_a_compiled_graph_is_partial_capture(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = two_layers()
    model[2] = torch.compile(model[2], backend="eager")
    unit = captured(tmp_path / "d", lambda: train(model), model, level="mix")
    assert "partial capture" in caplog.text
    assert "2: " in caplog.text
    assert "Module.0.Linear.forward.0" in unit
    for target in (tmp_path / "d", *everywhere(tmp_path / "d")):
        assert b"partial capture" in bytes(msformat.open(target)[0].document("dump_error_info.log"))


class FakeGraph:
    """Stands in for ``torch.cuda.CUDAGraph``: what was made into it runs again without Python's functions."""

    def __init__(self) -> None:
        self.replays = 0

    def capture_begin(self) -> None:
        """Nothing is computed from here on."""

    def replay(self) -> int:
        self.replays += 1
        return self.replays


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_r026_replays_of_a_device_graph_are_said(
    tmp_path: Path, level: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Simulated: no test has a GPU."""
    monkeypatch.setattr(torch.cuda, "CUDAGraph", FakeGraph)
    methods = FakeGraph.capture_begin, FakeGraph.replay
    model, graph = two_layers(), FakeGraph()
    graph.replay()
    with debugging(tmp_path / "d", level=level) as debugger:
        for _ in range(2):
            debugger.start(model)
            graph.capture_begin()
            model(BATCH)
            assert [graph.replay(), graph.replay()] == [graph.replays - 1, graph.replays]
            debugger.stop()
            debugger.step()
            assert (FakeGraph.capture_begin, FakeGraph.replay) == methods
            graph.replay()
    assert caplog.text.count("is replayed: nothing inside it is recorded (partial capture)") == 1
    assert caplog.text.count("of what runs into it types and shapes are recorded, no values") == 1
    for target in (tmp_path / "d", *everywhere(tmp_path / "d")):
        assert b"torch.cuda.CUDAGraph: a graph of the device is replayed" in bytes(
            msformat.open(target)[0].document("dump_error_info.log") or b""
        )


def test_r029_the_input_of_an_in_place_module(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(3, 4), nn.ReLU(inplace=True), nn.Linear(4, 2))
    wanted = model[0](BATCH).detach()
    unit = captured(tmp_path / "d", lambda: train(model), model)
    entry = unit["Module.1.ReLU.forward.0"]
    assert (wanted < 0).any()
    assert torch.equal(entry.inputs[0].to_torch(), wanted)
    assert torch.equal(entry.outputs[0].to_torch(), wanted.relu())
    assert torch.equal(unit["Module.0.Linear.forward.0"].outputs[0].to_torch(), wanted)
    backward = unit["Module.1.ReLU.backward.0"]
    assert torch.equal(backward.outputs[0].to_torch(), backward.inputs[0].to_torch() * (wanted > 0))


def test_r030_a_function_that_was_imported_before(tmp_path: Path) -> None:
    model = two_layers()
    unit = captured(tmp_path / "d", lambda: early_relu(model(BATCH)), model, level="mix")
    assert {"Module.0.Linear.forward.0", "Functional.relu.1.forward"} <= set(unit)


@pytest.mark.parametrize(
    ("given", "wanted"), [("0", [0]), ("1-3", [1, 2, 3]), (["0", "2-3"], [0, 2, 3]), ([], [0, 1, 2, 3])]
)
def test_r032_spellings_of_steps(tmp_path: Path, given: Any, wanted: list[int]) -> None:
    with debugging(tmp_path / "d", level="L1", step=given) as debugger:
        for _ in range(4):
            debugger.start()
            torch.add(torch.ones(1), 1)
            debugger.stop()
            debugger.step()
    assert list(msformat.open(tmp_path / "d").steps) == wanted


@pytest.mark.parametrize("key", ["step", "rank"])
@pytest.mark.parametrize("given", [[True], [1.0], [-1], ["x"], True])
def test_r032_what_is_no_step_or_rank(tmp_path: Path, key: str, given: Any) -> None:
    with pytest.raises(CaptureError, match=key), debugging(tmp_path / "d", **{key: given}):
        pass


def test_r033_outputs_that_are_inputs(tmp_path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            torch.manual_seed(0)
            self.first = nn.Linear(3, 3)
            self.drop = nn.Dropout(0.0)
            self.identity = nn.Identity()
            self.last = nn.Linear(3, 2)

        def forward(self, x: Any) -> Any:
            inner = functional.dropout(self.first(x), p=0.0)
            same.append(functional.dropout(inner, p=0.5, training=False) is inner)
            return self.last(self.identity(self.drop(inner)))

    same: list[bool] = []
    model = Net()
    inner = model.first(BATCH).detach().requires_grad_()
    model.last(inner).square().sum().backward()
    unit = captured(tmp_path / "d", lambda: train(model), model, level="mix")
    value, gradient = inner.detach(), inner.grad
    for name in ("drop.Dropout", "identity.Identity"):
        forward, backward = unit[f"Module.{name}.forward.0"], unit[f"Module.{name}.backward.0"]
        assert all(torch.equal(one.to_torch(), value) for one in (forward.inputs[0], forward.outputs[0]))
        assert all(torch.equal(one.to_torch(), gradient) for one in (backward.inputs[0], backward.outputs[0]))
    assert same == [True]
    for name in ("Functional.dropout.0", "Functional.dropout.1"):
        backward = unit[f"{name}.backward"]
        assert all(torch.equal(one.to_torch(), gradient) for one in (backward.inputs[0], *backward.outputs))
    first, last = unit["Module.first.Linear.backward.0"], unit["Module.last.Linear.backward.0"]
    assert torch.equal(first.inputs[0].to_torch(), gradient)
    assert torch.equal(last.outputs[0].to_torch(), gradient)


def test_r034_functions_are_themselves(tmp_path: Path) -> None:
    names = [(functional, "gelu"), (torch, "add"), (torch, "empty"), (torch.Tensor, "add"), (functional, "relu")]
    before = [getattr(owner, name) for owner, name in names]
    model = two_layers()
    with debugging(tmp_path / "d", level="L0") as debugger:
        debugger.start(model)
        assert all(getattr(owner, name) is one for (owner, name), one in zip(names, before, strict=True))
    with debugging(tmp_path / "e", level="mix") as debugger:
        debugger.start(model)
        for (owner, name), one in zip(names, before, strict=True):
            found = getattr(owner, name)
            assert (found == one, found.__name__, hash(found)) == (True, name, hash(one))
        with torch.device("meta"):
            assert torch.empty(2).is_meta
        torch.set_default_device("meta")
        try:
            assert torch.empty(2).is_meta
        finally:
            torch.set_default_device(None)
        assert not torch.empty(2).is_meta
        debugger.stop()
        assert all(getattr(owner, name) is one for (owner, name), one in zip(names, before, strict=True))


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_r036_no_cycle_holds_a_tensor(tmp_path: Path, level: str) -> None:
    model = two_layers()
    alive: list[Any] = []
    watching = model[0].register_forward_hook(lambda *arguments: alive.append(weakref.ref(arguments[-1])))
    try:
        with debugging(tmp_path / "d", level=level, task="statistics") as debugger:
            for step in range(30):
                debugger.start(model)
                train(model)
                debugger.stop()
                debugger.step()
                assert sum(one() is not None for one in alive) == 0, step
                if step == 0:
                    gc.collect()
                    gc.disable()
            gc.set_debug(gc.DEBUG_SAVEALL)
            gc.collect()
            kinds = {type(one).__name__ for one in gc.garbage}
    finally:
        gc.set_debug(0)
        gc.garbage.clear()
        gc.enable()
        watching.remove()
    assert kinds.isdisjoint({"Tensor", "Parameter", "HostTensor", "EntryRecord", "ndarray", "frame"})


def test_r037_other_steps_cost_nothing(tmp_path: Path) -> None:
    model = two_layers()
    with debugging(tmp_path / "d", level="mix", step=[100]) as debugger:
        add = torch.add
        for _ in range(100):
            with counted_calls() as counted:
                debugger.start(model)
                debugger.stop()
            debugger.start(model)
            assert torch.add is add
            assert torch.overrides._get_current_function_mode_stack() == []
            assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())
            assert not any(parameter._post_accumulate_grad_hooks for parameter in model.parameters())
            debugger.stop()
            debugger.step()
            assert counted["call"] + counted["c_call"] < 200, counted
        debugger.start(model)
        assert model[0]._forward_hooks
        model(BATCH)
        debugger.stop()
        debugger.step()
    assert msformat.open(tmp_path / "d").steps == (100,)


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
@pytest.mark.parametrize("mode", [["forward"], ["all"]])
def test_r041_no_gradient_changes_by_a_bit(tmp_path: Path, level: str, mode: list[str]) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.stem = nn.Conv2d(1, 4, 3, padding=1)
            self.left = nn.Sequential(nn.Conv2d(4, 4, 3, padding=1), nn.BatchNorm2d(4), nn.ReLU(inplace=True))
            self.right = nn.Sequential(nn.Conv2d(4, 4, 1), nn.BatchNorm2d(4))

        def forward(self, x: Any) -> Any:
            x = self.stem(x)
            return self.left(x) + self.right(x) + x

    def run() -> list[Any]:
        torch.manual_seed(1)
        model = Net()
        batch = torch.randn(3, 1, 8, 8)
        with debugging(tmp_path / "d", level=level, task="statistics", data_mode=mode) as debugger:
            if captures:
                debugger.start(model)
            out = model(batch)
            graph = names_of(out.grad_fn)
            out.square().sum().backward()
            if captures:
                debugger.stop()
                debugger.step()
        norm = nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        return [*gradients(model), *model.buffers(), norm, graph]

    captures = False
    plain = run()
    captures = True
    found = run()
    assert plain.pop() == found.pop()
    assert same_bits(plain, found)


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_what_was_stopped_before_its_backward_has_one_until_the_step_ends(
    tmp_path: Path, level: str, caplog: pytest.LogCaptureFixture
) -> None:
    """As msprobe documents it for ``forward_backward_dump_end``: the code block alone, with its backward."""
    model = two_layers()
    with debugging(tmp_path / "d", level=level, task="statistics") as debugger:
        debugger.start(model)
        block = model(BATCH)
        debugger.stop()
        block.square().sum().backward(retain_graph=True)
        debugger.step()
        assert not caplog.records
        debugger.start(model)
        (block.sum() + model(BATCH).sum()).backward()
        debugger.stop()
        debugger.step()
    assert sum("call step() after the backward pass" in record.message for record in caplog.records) == 1
    unit = msformat.open(tmp_path / "d")[0]
    modules = {f"Module.{name}.backward.0" for name in ("0.Linear", "1.ReLU", "2.Linear")}
    apis = {f"Functional.{name}.backward" for name in ("linear.0", "relu.0", "linear.1")}
    wanted = {"L0": modules, "L1": apis, "mix": modules | apis}[level]
    assert {name for name in unit if "backward" in name} == wanted
    assert not any("square" in name or "sum" in name for name in unit)


@pytest.mark.parametrize("begins_before_start", [False, True])
def test_module_dump_records_a_module_alone(tmp_path: Path, begins_before_start: bool) -> None:
    """msprobe's example of ``module_dump``; it records the module too when that comes before ``start``."""
    model = two_layers()
    with debugging(tmp_path / "d", level="L1", task="statistics") as debugger:
        if begins_before_start:
            module_dump(model, "mine")
        debugger.start()
        batch = BATCH.mul(1)
        module_dump(model, "mine")
        out = model(batch)
        module_dump_end()
        module_dump(model, "mine")
        more = model(batch)
        module_dump_end()
        (out + more).square().sum().backward()
        debugger.stop()
        debugger.step()
        debugger.start()
        model(BATCH)
        debugger.stop()
        debugger.step()
    first, second = (list(unit) for unit in msformat.open(tmp_path / "d"))
    before = [] if begins_before_start else ["Tensor.mul.0.forward"]
    module, after = "Module.mine.Sequential", ["Tensor.__add__.0", "Tensor.square.0", "Tensor.sum.0"]
    forwards = [*before, f"{module}.forward.0", f"{module}.forward.1", *(f"{name}.forward" for name in after)]
    backwards = [*(f"{name}.backward" for name in reversed(after)), f"{module}.backward.1", f"{module}.backward.0"]
    assert first == [*forwards, *backwards]
    assert second == ["Functional.linear.0.forward", "Functional.relu.0.forward", "Functional.linear.1.forward"]


def test_module_dump_of_a_module_that_is_recorded_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = nn.Sequential(two_layers())
    with debugging(tmp_path / "d", level="L0", task="statistics") as debugger:
        debugger.start(model)
        module_dump(model[0], "mine")
        train(model)
        module_dump_end()
        debugger.stop()
        debugger.step()
    assert "module_dump has no effect: it is recorded already" in caplog.text
    assert "Module.0.Sequential.forward.0" in msformat.open(tmp_path / "d")[0]


def names_of(node: Any) -> list[str]:
    """The autograd graph in order, by the names of its nodes."""
    return [] if node is None else [node.name(), *(one for child, _ in node.next_functions for one in names_of(child))]
