"""The callback for Lightning, in real trainings, under both names of the library."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import lightning.pytorch as lightning
import pytest
import pytorch_lightning
import torch
from torch import nn

from capture.integrations.lightning import PrecisionCallback
from capture.pytorch import PrecisionDebugger
from tests.capture.integrations.dumps import bits, entries, steps, unfinished

ROWS = torch.arange(32.0).reshape(8, 4) / 32


class _Net:
    """Two layers; a validation that calls them too."""

    def __init__(self) -> None:
        super().__init__()
        torch.manual_seed(0)
        self.layers = nn.Sequential(nn.Linear(4, 4), nn.ReLU())
        self.head = nn.Linear(4, 1)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        return self.head(self.layers(rows))  # type: ignore[no-any-return]

    def training_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
        return self(batch).square().mean()  # type: ignore[no-any-return]

    def validation_step(self, batch: torch.Tensor, _: int) -> torch.Tensor:
        return self(batch)  # type: ignore[no-any-return]

    test_step = predict_step = validation_step

    def configure_optimizers(self) -> torch.optim.Optimizer:
        return torch.optim.SGD(self.parameters(), lr=0.1, momentum=0.9)


class Net(_Net, lightning.LightningModule):
    """For ``lightning.pytorch``."""


class OldNet(_Net, pytorch_lightning.LightningModule):
    """For ``pytorch_lightning``, whose classes are others."""


class Adversaries(Net):
    """Two optimizers that step by hand."""

    def __init__(self) -> None:
        super().__init__()
        self.automatic_optimization = False

    def training_step(self, batch: torch.Tensor, _: int) -> None:
        for optimizer in self.optimizers():
            optimizer.zero_grad()
            self.manual_backward(self(batch).square().mean())
            optimizer.step()

    def configure_optimizers(self) -> list[torch.optim.Optimizer]:  # type: ignore[override]
        return [torch.optim.SGD(part.parameters(), lr=0.1) for part in (self.layers, self.head)]


class Broken(Net):
    """Raises in its third batch, with the forward pass behind it."""

    def training_step(self, batch: torch.Tensor, number: int) -> torch.Tensor:
        loss = super().training_step(batch, number)
        if number == 2:
            raise ZeroDivisionError("planted")
        return loss


def loader(rows: int = 2) -> Any:
    return torch.utils.data.DataLoader(ROWS, batch_size=rows)  # type: ignore[arg-type]


def trainer(place: Path, *callbacks: Any, library: Any = lightning, **more: Any) -> Any:
    given = {
        "default_root_dir": place, "max_epochs": 1, "accelerator": "cpu", "devices": 1, "logger": False,
        "enable_checkpointing": False, "enable_progress_bar": False, "enable_model_summary": False,
    }  # fmt: skip
    return library.Trainer(callbacks=list(callbacks), **{**given, **more})


def fit(place: Path, *callbacks: Any, net: Net | None = None, validates: bool = False, **more: Any) -> Net:
    net = net or Net()
    trainer(place, *callbacks, **more).fit(net, loader(), loader(4) if validates else None)
    return net


def by_hand(path: Path, level: str) -> Net:
    """The loop that Lightning runs."""
    net = Net()
    optimizer = net.configure_optimizers()
    debugger = PrecisionDebugger(dump_path=path, level=level)
    for batch in loader():
        debugger.start(net)
        optimizer.zero_grad()
        net.training_step(batch, 0).backward()
        optimizer.step()
        debugger.stop()
        debugger.step()
    debugger.close()
    return net


def test_a_dump_is_that_of_a_loop_written_by_hand(tmp_path: Path) -> None:
    net = fit(tmp_path, PrecisionCallback(dump_path=tmp_path / "dump", level="L0"))
    assert bits(net) == bits(by_hand(tmp_path / "hand", "L0"))
    assert steps(tmp_path / "dump") == steps(tmp_path / "hand") == ["step0", "step1", "step2", "step3"]
    for step in range(4):
        assert entries(tmp_path / "dump", step) == entries(tmp_path / "hand", step)


def test_functions_and_modules_of_the_model_are_those_of_a_loop_by_hand(tmp_path: Path) -> None:
    """At level mix; around the model Lightning calls functions of its own."""
    fit(tmp_path, PrecisionCallback(dump_path=tmp_path / "dump", level="mix"))
    by_hand(tmp_path / "hand", "mix")
    for step in range(4):
        hand, captured = entries(tmp_path / "hand", step), entries(tmp_path / "dump", step)
        assert set(hand) <= set(captured)
        assert {key: captured[key] for key in hand} == hand


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"accumulate_grad_batches": 2},
        {"precision": "bf16-mixed"},
        {"gradient_clip_val": 0.1},
        {"validates": True, "val_check_interval": 1},
        {"net": Adversaries},
    ],
    ids=["plain", "accumulated", "bf16", "clipped", "validated", "manual"],
)
def test_weights_are_the_same_bits_with_and_without(tmp_path: Path, more: dict[str, Any]) -> None:
    kind = more.pop("net", Net)

    def run(*callbacks: Any) -> tuple[Any, ...]:
        return bits(fit(tmp_path, *callbacks, net=kind(), **more)), torch.get_rng_state().numpy().tobytes()

    assert run(PrecisionCallback(dump_path=tmp_path / "dump", level="mix")) == run()
    assert len(steps(tmp_path / "dump")) == (2 if "accumulate_grad_batches" in more else 4)


def test_a_step_is_an_optimizer_step_and_a_validation_in_it_is_no_part_of_it(tmp_path: Path) -> None:
    callback = PrecisionCallback(dump_path=tmp_path / "dump", level="mix")
    fit(tmp_path, callback, accumulate_grad_batches=2, validates=True, val_check_interval=1)
    assert steps(tmp_path / "dump") == ["step0", "step1"]
    for step in range(2):
        found = entries(tmp_path / "dump", step)
        calls = [key for key in found if key.startswith("Module.head.Linear.forward")]
        assert calls == ["Module.head.Linear.forward.0", "Module.head.Linear.forward.1"]
        assert {found[key]["input_args"][0]["shape"][0] for key in calls} == {2}


def test_several_optimizers_in_a_batch_are_one_step(tmp_path: Path) -> None:
    fit(tmp_path, PrecisionCallback(dump_path=tmp_path / "dump", level="L0"), net=Adversaries())
    assert steps(tmp_path / "dump") == ["step0", "step2", "step4", "step6"]
    assert "Module.head.Linear.forward.1" in entries(tmp_path / "dump", 2)


def test_evaluation_is_captured_only_when_asked(tmp_path: Path) -> None:
    callback = PrecisionCallback(dump_path=tmp_path / "dump", level="L0", during="evaluation")
    net, training = Net(), trainer(tmp_path, callback, num_sanity_val_steps=1)
    training.fit(net, loader(), loader(4))
    callback.debugger.wait()
    assert len(steps(tmp_path / "dump")) == 2
    training.test(net, loader(4), verbose=False)
    training.predict(net, loader(4))
    callback.close()
    assert len(steps(tmp_path / "dump")) == 6
    for step in range(6):
        found = entries(tmp_path / "dump", step)
        assert found["Module.head.Linear.forward.0"]["output"][0]["shape"] == [4, 1]
        assert not [key for key in found if "backward" in key]


def test_mixed_precision_is_recorded_as_it_runs(tmp_path: Path) -> None:
    fit(tmp_path, PrecisionCallback(dump_path=tmp_path / "dump", level="mix"), precision="bf16-mixed")
    found = entries(tmp_path / "dump", 0)
    assert found["Module.head.Linear.forward.0"]["output"][0]["dtype"] == "torch.bfloat16"


def test_a_resumed_training_goes_on_counting(tmp_path: Path) -> None:
    first = trainer(tmp_path)
    net = Net()
    first.fit(net, loader())
    first.save_checkpoint(tmp_path / "half.ckpt")
    callback = PrecisionCallback(dump_path=tmp_path / "dump", level="L0")
    trainer(tmp_path, callback, max_epochs=2).fit(Net(), loader(), ckpt_path=tmp_path / "half.ckpt")
    assert steps(tmp_path / "dump") == ["step4", "step5", "step6", "step7"]


def test_a_checkpoint_does_not_know_of_it(tmp_path: Path) -> None:
    training = trainer(tmp_path, PrecisionCallback(dump_path=tmp_path / "dump", level="L0", step=[0]))
    training.fit(Net(), loader())
    training.save_checkpoint(tmp_path / "whole.ckpt")
    assert torch.load(tmp_path / "whole.ckpt", weights_only=False)["callbacks"] == {}


def test_an_exception_ends_the_step(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    net = Broken()
    with pytest.raises(ZeroDivisionError), caplog.at_level(logging.WARNING, "msformat.capture"):
        fit(tmp_path, PrecisionCallback(dump_path=tmp_path / "dump", level="L0"), net=net)
    assert steps(tmp_path / "dump") == ["step0", "step1", "step2"]
    assert unfinished(tmp_path / "dump") == [2]
    assert "step 2 was not finished and is marked incomplete (ZeroDivisionError: planted)" in caplog.text
    assert not any(module._forward_hooks for module in net.modules())


def test_only_wanted_steps_are_captured(tmp_path: Path) -> None:
    fit(tmp_path, PrecisionCallback(dump_path=tmp_path / "dump", level="L0", step="1-2"))
    assert steps(tmp_path / "dump") == ["step1", "step2"]


def test_the_other_name_of_the_library(tmp_path: Path) -> None:
    """Both are imported here, and the base class is that of one; a trainer of the other takes the callback, too."""
    try:
        trainer(tmp_path, lightning.Callback(), library=pytorch_lightning)
    except (TypeError, ValueError):
        pytest.skip("this Lightning takes no callback of its other name, ours or its own")
    net = OldNet()
    callback = PrecisionCallback(dump_path=tmp_path / "dump", level="L0")
    trainer(tmp_path, callback, library=pytorch_lightning).fit(net, loader())
    assert bits(net) == bits(by_hand(tmp_path / "hand", "L0"))
    assert entries(tmp_path / "dump", 3) == entries(tmp_path / "hand", 3)


pytestmark = [
    # Its own, with a torch that is newer.
    pytest.mark.filterwarnings("ignore:.*LeafSpec:FutureWarning"),
    pytest.mark.filterwarnings("ignore::lightning.fabric.utilities.warnings.PossibleUserWarning"),
    pytest.mark.filterwarnings("ignore::lightning_fabric.utilities.warnings.PossibleUserWarning"),
]
