"""Reports on hooks in PyTorch (R044 to R070): their cases through PrecisionDebugger.

PyTorch without capture judges what a program computes, autograd and the values themselves what is on disk.
"""

from __future__ import annotations

import contextlib
import os
import threading
import weakref
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import pytest

import msformat
from capture.errors import CaptureError

torch = pytest.importorskip("torch")

from torch import nn  # noqa: E402
from torch.utils.checkpoint import checkpoint  # noqa: E402

from tests.reports.capturing import BATCH, captured, debugging, train, two_layers  # noqa: E402


class Calling(nn.Module):
    """A module that is one function."""

    def __init__(self, function: Any) -> None:
        super().__init__()
        self.function = function

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.function(*args, **kwargs)


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_r044_an_in_place_operation_after_a_hooked_module(tmp_path: Path, level: str) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Conv2d(1, 2, 1), nn.ReLU(inplace=True))
    batch = torch.randn(1, 1, 3, 3)
    wanted = model[0](batch).detach().relu_() * 2 * (model[0](batch) > 0)
    unit = captured(tmp_path / "d", lambda: train(model, batch), model, level=level)
    backward = unit["Module.0.Conv2d.backward.0"]
    assert torch.equal(backward.inputs[0].to_torch(), wanted.detach())


@pytest.mark.parametrize("task", ["tensor", "statistics"])
def test_r045_an_activation_that_is_overwritten_later(tmp_path: Path, task: str) -> None:
    model = two_layers(inplace=True)
    wanted = model[0](BATCH).detach()

    def run() -> None:
        y = model[2](model[1](model[0](BATCH)))
        y.data.add_(100)
        with torch.no_grad():
            y.add_(1)

    unit = captured(tmp_path / "d", run, model, task=task, async_dump=True)
    linear, last = unit["Module.0.Linear.forward.0"].outputs[0], unit["Module.2.Linear.forward.0"].outputs[0]
    assert linear.stats.min == wanted.min().item() < 0
    assert last.stats.max < 50
    if task == "tensor":
        assert torch.equal(linear.to_torch(), wanted)


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_r046_outputs_that_are_inputs_stay_so(tmp_path: Path, level: str) -> None:
    checked: list[bool] = []

    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.first, self.pass_on = nn.Linear(3, 3), Calling(lambda x: x)

        def forward(self, x: Any) -> Any:
            inp = self.first(x)
            out = self.pass_on(inp)
            checked.append(out is inp)
            return out

    model = Net()
    captured(tmp_path / "d", lambda: train(model), model, level=level)
    assert checked == [True]


def test_r048_gradients_of_parameters_are_complete(tmp_path: Path) -> None:
    model = two_layers()
    unit = captured(tmp_path / "d", lambda: train(model), model)
    for at in (0, 2):
        found = unit[f"Module.{at}.Linear.parameters_grad"].parameters
        for name, parameter in model[at].named_parameters():
            assert torch.equal(found[name].to_torch(), parameter.grad)


def test_r049_a_shared_parameter_under_checkpointing(tmp_path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.one, self.two = nn.Linear(3, 3), nn.Linear(3, 3)
            self.two.weight = self.one.weight

        def forward(self, x: Any) -> Any:
            return self.two(checkpoint(self.one, x, use_reentrant=False))

    model = Net()

    def run() -> None:
        train(model, BATCH.clone().requires_grad_())

    unit = captured(tmp_path / "d", run, model)
    for name in ("one", "two"):
        entry = unit[f"Module.{name}.Linear.parameters_grad"]
        assert len(entry.value["weight"]) == 1
        assert torch.equal(entry.parameters["weight"].to_torch(), model.one.weight.grad)


def test_r049_what_accumulates_in_two_passes(tmp_path: Path) -> None:
    model = two_layers()
    partial: list[Any] = []

    def run() -> None:
        train(model)
        partial.append(model[0].weight.grad.clone())
        train(model)

    unit = captured(tmp_path / "d", run, model)
    final, earlier = unit["Module.0.Linear.parameters_grad"].value["weight"]
    assert torch.equal(final.to_torch(), model[0].weight.grad)
    assert torch.equal(earlier.to_torch(), partial[0])


@pytest.mark.parametrize("use_reentrant", [False, True])
def test_r054_recomputed_forwards_are_flagged(tmp_path: Path, use_reentrant: bool) -> None:
    class Unet(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.down, self.up = nn.Linear(3, 3), nn.Linear(3, 3)

        def forward(self, x: Any) -> Any:
            return x + checkpoint(lambda y: self.up(self.down(y)), x, use_reentrant=use_reentrant)

    model = nn.Sequential(Unet(), Unet())
    unit = captured(tmp_path / "d", lambda: train(model, BATCH.clone().requires_grad_()), model, level="mix")
    for at in (0, 1):
        passes = [unit[f"Module.{at}.down.Linear.forward.{number}"] for number in (0, 1)]
        assert [one.is_recompute for one in passes] == [False, True]
        assert torch.equal(passes[0].outputs[0].to_torch(), passes[1].outputs[0].to_torch())
    linear = [unit[key].is_recompute for key in unit if key.startswith("Functional.linear") and "forward" in key]
    assert linear.count(False) == 4


def test_r056_what_needs_no_gradient(tmp_path: Path) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.embedding = nn.Embedding(5, 3).requires_grad_(False)
            self.frozen = nn.Linear(3, 3).requires_grad_(False)
            self.head = nn.Linear(3, 2)

        def forward(self, ids: Any) -> Any:
            with torch.no_grad():
                self.head(torch.ones(3))
            return self.head(self.frozen(self.embedding(ids)))

    model = Net()
    unit = captured(tmp_path / "d", lambda: train(model, torch.tensor([1, 4])), model, level="mix")
    assert {f"Module.{name}.forward.0" for name in ("embedding.Embedding", "frozen.Linear", "head.Linear")} <= set(unit)
    assert not any(
        key.startswith(("Module.embedding", "Module.frozen")) for key in unit if "grad" in key or "backward" in key
    )
    assert len(unit["Module.head.Linear.backward.1"].inputs) == 1
    assert torch.equal(unit["Module.head.Linear.parameters_grad"].parameters["bias"].to_torch(), model.head.bias.grad)
    assert unit.problems == ()


def test_r057_modules_outside_of_the_model(tmp_path: Path) -> None:
    model = two_layers()
    criterion = nn.DataParallel(nn.MSELoss())
    target = torch.zeros(2, 2)

    def run() -> None:
        criterion(model(BATCH), target).backward()

    unit = captured(tmp_path / "d", run, model, level="mix")
    assert "Functional.mse_loss.0.forward" in unit
    assert unit.parent("Functional.mse_loss.0.forward") is None
    both = captured(tmp_path / "e", run, [model, criterion])
    assert {"Module.0.0.Linear.forward.0", "Module.1.module.MSELoss.forward.0"} <= set(both)
    assert torch.equal(both["Module.1.module.MSELoss.backward.0"].inputs[0].to_torch(), torch.tensor(1.0))


def test_r058_a_relative_path_and_another_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    model = two_layers()
    with debugging(Path("a/b/dump")) as debugger:
        (tmp_path / "elsewhere").mkdir()
        for _ in range(2):
            debugger.start(model)
            os.chdir(tmp_path / "elsewhere")
            train(model)
            debugger.stop()
            debugger.step()
    assert msformat.open(tmp_path / "a/b/dump").steps == (0, 1)
    assert list((tmp_path / "elsewhere").iterdir()) == []


class StoppedError(Exception):
    """Raised by a model."""


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_r060_nothing_is_kept_of_a_step(tmp_path: Path, level: str) -> None:
    model = two_layers()
    alive: list[Any] = []

    def note(*arguments: Any) -> None:
        alive.append(weakref.ref(arguments[-1]))

    def run(step: int) -> None:
        if step % 3 == 0:
            with torch.no_grad():
                model(BATCH)
        elif step % 3 == 1:
            x = BATCH.clone().requires_grad_()
            (gradient,) = torch.autograd.grad(model(x).square().sum(), x, create_graph=True)
            gradient.square().sum().backward()
        else:
            model(BATCH)
            raise StoppedError

    watching = model[0].register_forward_hook(note)
    with debugging(tmp_path / "d", level=level, task="statistics") as debugger:
        for step in range(12):
            debugger.start(model)
            with contextlib.suppress(StoppedError):
                run(step)
            debugger.stop()
            debugger.step()
            assert [one() for one in alive] == [None] * len(alive), step
            model.zero_grad()
    watching.remove()
    assert len(alive) == 12
    assert len(msformat.open(tmp_path / "d")) == 12


def test_r060_waiting_data_are_bounded(tmp_path: Path) -> None:
    from capture.queue import WriteQueue

    most = 0
    wanted = threading.Event()
    submit, wait = WriteQueue.submit, WriteQueue._wait_for_change

    def watched(queue: Any, job: Any, nbytes: int = 0) -> Any:
        nonlocal most

        def late() -> None:
            """A writer so slow that it begins when the training waits for it, or has come to its end."""
            wanted.wait(60)
            job()

        submit(queue, late if nbytes else job, nbytes)
        most = max(most, queue.waiting_bytes)

    def waiting(queue: Any, nbytes: int) -> None:
        wanted.set()
        wait(queue, nbytes)

    def run() -> None:
        model(torch.ones(256, 256))
        wanted.set()

    model = nn.Sequential(*(nn.Linear(256, 256) for _ in range(100)))  # 50 MiB of weights and activations
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WriteQueue, "submit", watched)
        patch.setattr(WriteQueue, "_wait_for_change", waiting)
        unit = captured(tmp_path / "d", run, model, max_queue_bytes="1 MiB", data_mode=["forward"])
    assert len([key for key in unit if "forward" in key]) == 100
    assert 0 < most <= 20 << 20  # one batch: what is larger than the limit goes alone


@pytest.mark.parametrize("given", ["Linear", ["Linear"], ["0.Linear"], ["Module.0.Linear.forward.0"]])
def test_r061_filters_by_text_and_by_list(tmp_path: Path, given: Any) -> None:
    if isinstance(given, str):
        with pytest.raises(CaptureError, match="list"), debugging(tmp_path / "d", list=given):
            pass
        return
    model = two_layers()
    unit = captured(tmp_path / "d", lambda: model(BATCH), model, list=given)
    forward = {key for key in unit if ".forward." in key}
    assert "Module.0.Linear.forward.0" in forward
    assert ("Module.2.Linear.forward.0" in forward) is (given == ["Linear"])
    assert not any("ReLU" in key for key in forward)


def test_r061_a_filter_that_matches_nothing(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = two_layers()
    with debugging(tmp_path / "d", list=["l1", "Linear"]) as debugger:
        debugger.start(model)
        model(BATCH)
        debugger.stop()
        debugger.step()
    assert "'l1' matched nothing" in caplog.text
    assert "'Linear' matched nothing" not in caplog.text


def test_r062_statistics_keep_no_tensor(tmp_path: Path) -> None:
    model = nn.Sequential(*(nn.Linear(8, 8) for _ in range(100)))
    alive: list[Any] = []
    most = 0

    def note(*arguments: Any) -> None:
        nonlocal most
        alive.append(weakref.ref(arguments[-1]))
        most = max(most, sum(one() is not None for one in alive[-20:]))

    with debugging(tmp_path / "d", task="statistics") as debugger, torch.no_grad():
        for _ in range(3):
            debugger.start(model)
            watching = [one.register_forward_hook(note) for one in model]
            model(torch.ones(2, 8))
            for handle in watching:
                handle.remove()
            debugger.stop()
            assert all(one() is None for one in alive)
            debugger.step()
    assert most <= 3  # the output, the input, and what the loop of the container holds


def test_r064_objects_that_point_back_and_a_forward_that_fails(tmp_path: Path) -> None:
    class Node:
        def __init__(self, value: Any) -> None:
            self.value, self.parent = value, self

        def __getattr__(self, name: str) -> Any:
            raise AssertionError(f"asked for {name}")

    fails = [False]

    def build(x: Any) -> Any:
        if fails[0]:
            raise StoppedError
        return Node(x)

    model = nn.Sequential(nn.Linear(3, 3), Calling(build))
    with debugging(tmp_path / "d", level="mix") as debugger:
        for fails[0] in (False, True, False):
            debugger.start(model)
            with contextlib.suppress(StoppedError):
                assert isinstance(model(BATCH), Node)
            model[0](BATCH)
            debugger.stop()
            debugger.step()
            assert not any(part._forward_hooks or part._forward_pre_hooks for part in model.modules())
    dump = msformat.open(tmp_path / "d")
    key = "Module.1.Calling.forward.0"
    assert "Node" in str(dump[0][key].json()["output"])
    assert "Module.0.Linear.forward.0" in dump[1]
    assert set(dump[0]) == set(dump[2])
    assert dump[2].parent(key) is None
    # What comes after the failure, in the same step, is not inside of what failed.
    assert [unit.parent("Module.0.Linear.forward.1") for unit in dump] == [None] * 3


def test_r068_no_hook_returns_anything(tmp_path: Path) -> None:
    """Hooks that return the very tensor they were given change how autograd goes on: every one of ours is asked."""
    returned: list[Any] = []

    def watching(register: Any) -> Any:
        def watched(self: Any, hook: Any, *args: Any, **kwargs: Any) -> Any:
            def call(*values: Any, **named: Any) -> Any:
                found = hook(*values, **named)
                returned.append(found)
                return found

            return register(self, call, *args, **kwargs)

        return watched

    places = [
        (nn.Module, "register_forward_hook"),
        (nn.Module, "register_forward_pre_hook"),
        (torch.Tensor, "register_hook"),
        (torch.Tensor, "register_post_accumulate_grad_hook"),
    ]
    model = two_layers()
    with pytest.MonkeyPatch.context() as patch:
        for owner, name in places:
            patch.setattr(owner, name, watching(getattr(owner, name)))
        captured(tmp_path / "d", lambda: train(model), model, level="mix")
    assert len(returned) >= 10
    assert set(map(type, returned)) == {type(None)}


def test_r069_a_generator_is_not_consumed(tmp_path: Path) -> None:
    def count(x: Any) -> Iterator[Any]:
        yield from (x, x + 1, x + 2)

    model = nn.Sequential(Calling(count))
    results: list[Any] = []

    def run() -> None:
        results.extend(model[0](torch.zeros(1)))

    unit = captured(tmp_path / "d", run, model)
    assert [one.item() for one in results] == [0, 1, 2]
    assert unit["Module.0.Calling.forward.0"].json()["output"] == [{"type": "generator", "value": None}]


class Pair(NamedTuple):
    left: Any
    right: int


@dataclass
class Output:
    logits: Any
    loss: Any = None
    cache: tuple[int, ...] = (1, 2)


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_r070_outputs_keep_their_type_and_names(tmp_path: Path, level: str) -> None:
    class Net(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.pair = Calling(lambda x: Pair(x * 2, 7))
            self.output = Calling(lambda pair: Output(pair.left.sum()))
            self.ints = Calling(lambda x: (x, 3, "a"))

        def forward(self, x: Any) -> Any:
            pair = self.pair(x)
            output = self.output(pair)
            return pair, output, self.ints(output.logits)

    model = Net()
    batch = BATCH.clone().requires_grad_()
    results: list[Any] = []

    def run() -> None:
        results.extend(model(batch))
        results[2][0].backward()

    unit = captured(tmp_path / "d", run, model, level=level)
    assert [type(one) for one in results] == [Pair, Output, tuple]
    assert torch.equal(batch.grad, torch.full((2, 3), 2.0))
    pair = unit["Module.output.Calling.forward.0"].inputs[0]
    assert (set(pair), pair["right"].value) == ({"left", "right"}, 7)
    output = unit["Module.output.Calling.forward.0"].outputs[0]
    assert (set(output), output["loss"]) == ({"logits", "loss", "cache"}, None)
    assert [one.value for one in unit["Module.ints.Calling.forward.0"].outputs[1:]] == [3, "a"]
    backward = unit["Module.pair.Calling.backward.0"]
    assert torch.equal(backward.inputs[0].to_torch(), torch.ones(2, 3))
    assert torch.equal(backward.outputs[0].to_torch(), batch.grad)


def test_r066_what_a_copy_overlaps_with(tmp_path: Path) -> None:
    """The case needs a GPU. On a CPU: bits belong to capture from the hook on, whoever writes to the tensor next."""
    x = torch.zeros(1 << 20)
    with debugging(tmp_path / "d", level="debug", async_dump=True) as debugger:
        for number in range(8):
            x.fill_(number)
            debugger.save(x, "x")
            x.fill_(-1)
        debugger.step()
    unit = msformat.open(tmp_path / "d")[0]
    for number in range(8):
        assert torch.equal(unit[f"x.{number}.debug"].value.to_torch(), torch.full((1 << 20,), float(number)))


def test_r066_a_copy_that_comes_late_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    """Simulated, for want of a GPU: the CPU plays a device whose copies are carried out when their event is awaited."""
    from capture.framework import Wanted
    from capture.pytorch.tensors import TorchFramework

    framework, x = TorchFramework(pinned=True), torch.arange(12.0).reshape(3, 4)
    late: list[Any] = []
    empty, copy = torch.empty, torch.Tensor.copy_

    class Event:
        def record(self) -> None:
            """What was begun before belongs to it."""

        def synchronize(self) -> None:
            while late:
                copy(*late.pop(0))

    monkeypatch.setattr(torch.cpu, "Event", Event, raising=False)
    monkeypatch.setattr(torch.cpu, "device", contextlib.nullcontext, raising=False)
    monkeypatch.setattr(torch, "empty", lambda *args, pin_memory, **more: empty(*args, **more).fill_(7))
    monkeypatch.setattr(torch.Tensor, "record_stream", lambda *_: None)
    monkeypatch.setattr(torch.Tensor, "copy_", lambda to, source, non_blocking: late.append((to, source.clone())))
    wanted = Wanted(statistics=True, data=True, md5=False)
    found = [framework._on_device(part, {}, list(part.shape), wanted) for part in (x, x.t(), x[1:, 2])]
    assert len(late) == 3
    assert all((host.bits == 7).all() for _, host, _ in found if host is not None)
    framework.resolve([(node, pending) for node, _, pending in found])
    assert late == []
    for (node, host, _), part in zip(found, (x, x.t(), x[1:, 2]), strict=True):
        assert host is not None
        assert host.bits.tolist() == part.tolist()
        assert (node["Max"], node["Min"]) == (part.max().item(), part.min().item())
