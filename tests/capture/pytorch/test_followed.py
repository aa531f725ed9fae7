"""Where the steps of a training begin and end that calls nothing of capture, and what its model is."""

from __future__ import annotations

import contextlib
import copy
import gc
import logging
import math
import pickle
import weakref
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from capture.pytorch import PrecisionDebugger
from capture.pytorch.followed import FollowedTraining, StepKind
from capture.pytorch.releases import GradScaler
from msformat.cli import main
from tests.capture.integrations.dumps import bits, entries, steps, unfinished
from tests.judges import torch_is_before


@contextlib.contextmanager
def followed(path: Path, step_kind: StepKind = "optimizer", optimizer: str = "", **config: Any) -> Iterator[Any]:
    """What the launcher does around a program."""
    debugger = PrecisionDebugger(dump_path=path, **{"level": "mix", **config})
    training = FollowedTraining(debugger, step_kind, optimizer)
    training.install()
    try:
        yield training
    except BaseException as error:
        training.error = error
        raise
    finally:
        training.remove()
        training.finish()
        debugger.close()


def network() -> nn.Sequential:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 4), nn.ReLU(), nn.Linear(4, 1))


def batches(count: int = 3) -> list[torch.Tensor]:
    return [torch.full((2, 4), float(number + 1)) for number in range(count)]


def plain(debugger: PrecisionDebugger | None = None) -> nn.Module:
    """A program; edited where it gets a debugger."""
    model, loss_of = network(), nn.MSELoss()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
    for batch in batches():
        if debugger is not None:
            debugger.start(model)
        loss_of(model(batch), torch.ones(2, 1)).backward()
        optimizer.step()
        if debugger is not None:
            debugger.stop()
            debugger.step()
        optimizer.zero_grad()
        model.eval()
        with torch.no_grad():
            model(batch)
        loss_of(model(batch), torch.ones(2, 1))  # an evaluation that forgot no_grad
        model.train()
    return model


def accumulating() -> nn.Module:
    model = network()
    optimizer = torch.optim.AdamW(model.parameters())
    for number, batch in enumerate(batches(4)):
        model(batch).sum().backward()
        if number % 2:
            optimizer.step()
            optimizer.zero_grad()
    return model


def scheduled() -> nn.Module:
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.StepLR(optimizer, 1)
    for batch in batches():
        model(batch).sum().backward()
        optimizer.step()
        scheduler.step()
    return model


def closing() -> nn.Module:
    """The optimizer calls the model."""
    model = network()
    optimizer = torch.optim.LBFGS(model.parameters(), max_iter=2)
    for batch in batches():

        def closure(batch: torch.Tensor = batch) -> torch.Tensor:
            optimizer.zero_grad()
            loss = model(batch).square().sum()
            loss.backward()
            return loss

        optimizer.step(closure)
    return model


def scaled() -> nn.Module:
    """The gradients of the second step overflow, and the scaler leaves the optimizer out."""
    model = network()
    optimizer, scaler = torch.optim.SGD(model.parameters(), lr=0.1), torch.amp.GradScaler("cpu", init_scale=4.0)
    for number, batch in enumerate(batches()):
        scaler.scale(model(batch).sum() * (torch.inf if number == 1 else 1)).backward()
        scaler.step(optimizer)
        scaler.update()
        optimizer.zero_grad()
    return model


def two_optimizers() -> nn.Module:
    """One behind the other in each step."""
    model = network()
    optimizers = torch.optim.SGD(model[0].parameters(), lr=0.1), torch.optim.Adam(model[2].parameters())
    for batch in batches():
        model(batch).sum().backward()
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()
    return model


PROGRAMS: list[Callable[[], nn.Module]] = [plain, accumulating, scheduled, closing, scaled, two_optimizers]
SCALES_ON_A_CPU = not torch_is_before("2.3")


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_a_dump_is_that_of_the_edited_program(tmp_path: Path, level: str) -> None:
    """Every entry with its statistics, and the weights bit by bit; an evaluation is in neither."""
    debugger = PrecisionDebugger(dump_path=tmp_path / "edited", level=level)
    edited = plain(debugger)
    debugger.close()
    with followed(tmp_path / "dump", level=level):
        model = plain()
    assert bits(model) == bits(edited)
    assert steps(tmp_path / "dump") == ["step0", "step1", "step2"]
    for step in range(3):
        assert entries(tmp_path / "dump", step) == entries(tmp_path / "edited", step)
        assert entries(tmp_path / "dump", step)


@pytest.mark.parametrize("program", PROGRAMS, ids=lambda program: program.__name__)
def test_weights_are_the_same_bits_with_and_without(tmp_path: Path, program: Callable[[], nn.Module]) -> None:
    if program is scaled and not SCALES_ON_A_CPU:
        pytest.skip("scalers came to CPUs with 2.3")
    torch.manual_seed(5)
    before, state = bits(program()), torch.get_rng_state().numpy().tobytes()
    torch.manual_seed(5)
    with followed(tmp_path / "dump"):
        after = bits(program())
    assert (after, torch.get_rng_state().numpy().tobytes()) == (before, state)
    assert len(steps(tmp_path / "dump")) == (2 if program is accumulating else 3)


def test_nothing_is_left_behind(tmp_path: Path) -> None:
    before = nn.Module.__call__, torch.optim.Optimizer.__init__, GradScaler.step, torch.relu
    with followed(tmp_path / "dump"):
        plain()
    assert (nn.Module.__call__, torch.optim.Optimizer.__init__, GradScaler.step, torch.relu) == before


def test_a_step_accumulates_up_to_the_optimizer(tmp_path: Path) -> None:
    with followed(tmp_path / "dump"):
        accumulating()
    calls = [key for key in entries(tmp_path / "dump", 1) if key.startswith("Module.2.Linear.forward")]
    assert calls == ["Module.2.Linear.forward.0", "Module.2.Linear.forward.1"]


@pytest.mark.skipif(not SCALES_ON_A_CPU, reason="scalers came to CPUs with 2.3")
def test_a_step_that_the_scaler_skipped_is_a_step(tmp_path: Path) -> None:
    with followed(tmp_path / "dump"):
        scaled()
    for step in range(3):
        found = entries(tmp_path / "dump", step)
        assert "Module.0.Linear.forward.1" not in found
        assert found["Module.0.Linear.forward.0"]["input_args"][0]["Max"] == step + 1
    assert entries(tmp_path / "dump", 1)["Module.2.Linear.backward.0"]["input"][0]["Max"] == math.inf


@pytest.mark.skipif(not SCALES_ON_A_CPU, reason="scalers came to CPUs with 2.3")
def test_a_step_of_a_scaler_counts_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Whether it calls the optimizer or leaves it out; steps that are not wanted are counted, too."""
    with followed(tmp_path / "all"):
        scaled()
    with followed(tmp_path / "last", step=[2]):
        scaled()
    assert "stepped after the end of a step" not in caplog.text
    assert steps(tmp_path / "last") == ["step2"]
    assert entries(tmp_path / "last", 2) == entries(tmp_path / "all", 2)


def test_of_several_optimizers_one_may_be_named(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with followed(tmp_path / "first"):
        two_optimizers()
    assert "Adam stepped after the end of a step" in caplog.text
    with followed(tmp_path / "second", optimizer="Adam"):
        two_optimizers()
    for step in range(3):
        first, second = entries(tmp_path / "first", step), entries(tmp_path / "second", step)
        assert {key for key in first if key.startswith("Module")} == {key for key in second if key.startswith("Module")}
        assert [key for key in second if "addcmul" in key or "lerp" in key]
        assert not [key for key in first if "addcmul" in key or "lerp" in key]


# --- the model -------------------------------------------------------------------------------------------------------


class Holder(nn.Module):
    """Calls its parts one by one, and is never called itself."""

    def __init__(self) -> None:
        super().__init__()
        self.encoder, self.decoder = nn.Sequential(nn.Linear(4, 4)), nn.Linear(4, 1)

    def loss(self, batch: torch.Tensor) -> torch.Tensor:
        return self.decoder(self.encoder(batch)).sum()  # type: ignore[no-any-return]


def modules(path: Path) -> set[str]:
    return {key.rsplit(".", 3)[0] for key in entries(path, 0) if key.startswith("Module") and ".forward." in key}


def test_the_model_is_what_holds_the_parameters_also_if_only_its_parts_are_called(tmp_path: Path) -> None:
    with followed(tmp_path / "dump", level="L0"):
        model = Holder()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        model.loss(batches()[0]).backward()
        optimizer.step()
    assert modules(tmp_path / "dump") == {"Module.encoder", "Module.encoder.0", "Module.decoder"}


def test_several_models_stand_in_the_order_of_their_optimizers(tmp_path: Path) -> None:
    with followed(tmp_path / "dump", level="L0"):
        critic, maker, teacher = network(), network(), network().requires_grad_(requires_grad=False)
        copied = copy.deepcopy(maker)
        view = nn.Sequential(*list(maker)[:2])
        optimizers = torch.optim.SGD(maker.parameters(), lr=0.1), torch.optim.SGD(critic.parameters(), lr=0.1)
        (critic(batches()[0]) + maker(batches()[0]) + teacher(batches()[0])).sum().backward()
        optimizers[0].step()
        del copied, view
    assert modules(tmp_path / "dump") == {f"Module.{model}.{layer}" for model in "01" for layer in "012"}
    first = entries(tmp_path / "dump", 0)
    order = [key for key in first if key in ("Module.0.0.Linear.forward.0", "Module.1.0.Linear.forward.0")]
    assert order == ["Module.1.0.Linear.forward.0", "Module.0.0.Linear.forward.0"]


def test_one_model_after_the_other_is_captured_and_none_is_kept(tmp_path: Path) -> None:
    def train() -> weakref.ReferenceType[nn.Module]:
        return weakref.ref(plain())

    with followed(tmp_path / "dump", level="L0"):
        trained = train(), train()
        gc.collect()
        assert [model() for model in trained] == [None, None]
    for step in range(3):
        assert entries(tmp_path / "dump", step + 3) == entries(tmp_path / "dump", step)
        assert entries(tmp_path / "dump", step)


def test_a_wrapper_for_several_processes_is_looked_through(tmp_path: Path) -> None:
    store = torch.distributed.HashStore()
    torch.distributed.init_process_group("gloo", store=store, rank=0, world_size=1)
    try:
        with followed(tmp_path / "dump", level="L0"):
            model = nn.parallel.DistributedDataParallel(network())
            optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
            model(batches()[0]).sum().backward()
            optimizer.step()
    finally:
        torch.distributed.destroy_process_group()
    found = entries(tmp_path / "dump", 0, "rank0")
    assert "Module.2.Linear.forward.0" in found
    assert not [key for key in found if "module." in key]


# --- other ways to train ---------------------------------------------------------------------------------------------


def inference() -> None:
    model = network().eval()
    with torch.inference_mode():
        for batch in batches():
            model(batch)
            nn.MSELoss()(batch, batch)


def by_hand() -> None:
    """No optimizer of torch."""
    model = network()
    for batch in batches():
        model(batch).sum().backward()
        with torch.no_grad():
            for parameter in model.parameters():
                parameter -= parameter.grad * 0.1
                parameter.grad = None


@pytest.mark.parametrize("program", [inference, by_hand])
def test_each_call_of_the_model_may_be_a_step(tmp_path: Path, program: Callable[[], None]) -> None:
    with followed(tmp_path / "dump", "forward"):
        program()
    assert steps(tmp_path / "dump") == ["step0", "step1", "step2"]
    assert unfinished(tmp_path / "dump") == []
    for step in range(3):
        found = entries(tmp_path / "dump", step)
        assert found["Module.0.Linear.forward.0"]["input_args"][0]["Max"] == step + 1
        assert "Module.0.Linear.forward.1" not in found
        assert ("Module.2.Linear.backward.0" in found) == (program is by_hand)


def test_a_program_without_an_optimizer_is_one_unfinished_step(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with followed(tmp_path / "dump") as training:
        by_hand()
    assert training.captured == 1
    assert unfinished(tmp_path / "dump") == [0]
    assert "step 0 was not finished and is marked incomplete" in caplog.text


def test_an_exception_ends_the_step(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def program() -> None:
        model = network()
        torch.optim.SGD(model.parameters(), lr=0.1)
        model(batches()[0])
        raise ZeroDivisionError("planted")

    with pytest.raises(ZeroDivisionError), followed(tmp_path / "dump"):
        program()
    assert unfinished(tmp_path / "dump") == [0]
    main(["info", str(tmp_path / "dump")])
    assert "step 0 ended by ZeroDivisionError: planted" in "".join(capsys.readouterr())


def test_only_wanted_steps_are_captured(tmp_path: Path) -> None:
    with followed(tmp_path / "dump", step=[1]):
        plain()
    assert steps(tmp_path / "dump") == ["step1"]
    with followed(tmp_path / "two", step=[1]):
        two_optimizers()
    assert steps(tmp_path / "two") == ["step1"]


def test_between_unwanted_steps_torch_is_its_own(tmp_path: Path) -> None:
    own = nn.Module.__call__
    heard = []
    with followed(tmp_path / "dump", step=[3]):
        model = network()
        optimizers = [torch.optim.SGD(model[0].parameters(), lr=0.1)]
        for number in range(6):
            if number == 5:
                optimizers.append(torch.optim.SGD(model[2].parameters(), lr=0.1))
            heard.append(nn.Module.__call__ is not own)
            model(batches()[0]).sum().backward()
            for optimizer in optimizers:
                optimizer.step()
    # The first says what there is; a second optimizer makes it unclear what a step is.
    assert heard == [True, False, False, True, False, True]
    assert steps(tmp_path / "dump") == ["step3"]


@pytest.mark.filterwarnings("ignore:.torch.jit:DeprecationWarning")
@pytest.mark.skipif(torch_is_before("2.2"), reason="Dynamo of PyTorch 2.1 refuses what stands for a builtin function")
def test_compiled_training_steps_compile_as_before(tmp_path: Path) -> None:
    """Dynamo meets nothing of ours: one graph, no break, no more compilations than without."""
    counts: list[int] = []

    def program() -> bytes:
        torch.compiler.reset()
        model, compilations = network(), []

        def backend(graph: Any, _: Any) -> Any:
            compilations.append(graph)
            return graph.forward

        loss_of = torch.compile(lambda batch: model(batch).square().mean(), backend=backend, fullgraph=True)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        step = torch.compile(optimizer.step, backend=backend)
        for batch in batches():
            loss_of(batch).backward()
            step()
            optimizer.zero_grad()
        counts.append(len(compilations))
        return b"".join(bits(model))

    before = program()
    with followed(tmp_path / "dump"):
        assert program() == before
    assert counts[0] == counts[1]


@pytest.mark.skipif(torch_is_before("2.2"), reason="Dynamo of PyTorch 2.1 takes the hooks off optimizers")
def test_a_model_that_is_compiled_is_named(tmp_path: Path) -> None:
    torch.compiler.reset()
    with followed(tmp_path / "dump", level="mix"):
        model = torch.compile(network(), backend="eager")
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        for batch in batches():
            model(batch).sum().backward()
            optimizer.step()
    assert steps(tmp_path / "dump") == ["step0", "step1", "step2"]


def test_a_program_that_captures_itself_is_left_to_it(tmp_path: Path) -> None:
    with followed(tmp_path / "dump") as training:
        debugger = PrecisionDebugger(dump_path=tmp_path / "own", level="L0")
        plain(PrecisionDebugger.latest())
        debugger.close()
    assert steps(tmp_path / "own") == ["step0", "step1", "step2"]
    assert (training.captured, training.is_second) == (0, True)


def test_a_dump_in_the_way_costs_the_capture_alone(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    with followed(tmp_path / "dump"):
        plain()
    with followed(tmp_path / "dump") as training:
        model = plain()
    assert bits(model) == bits(plain())
    assert training.captured == 0
    assert "capture ends, the program goes on" in caplog.text


def test_optimizers_and_models_are_copied_and_saved_without_it(tmp_path: Path) -> None:
    with followed(tmp_path / "dump"):
        model = network()
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        copy.deepcopy((model, optimizer))
        saved = pickle.dumps((model, optimizer))
    assert b"capture" not in saved


@pytest.fixture(autouse=True)
def _optimizers_have_hooks(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dynamo of PyTorch 2.1 takes them off all optimizers of the process, for good; tests before may have compiled."""
    if torch_is_before("2.2"):
        for kind in vars(torch.optim).values():
            step = vars(kind).get("step") if isinstance(kind, type) else None
            # Said to have what calls the hooks around it, which is a function "wrapper".
            if getattr(step, "hooked", False) and step.__code__.co_name != "wrapper":
                monkeypatch.setattr(step, "hooked", False)


@pytest.fixture(autouse=True)
def _none_made_before(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the process of a program."""
    monkeypatch.setattr(PrecisionDebugger, "_latest", {})


@pytest.fixture(autouse=True)
def _said(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="msformat.capture")
