"""The callback for ``mindspore.train.Model``, in real trainings in both modes."""

from __future__ import annotations

import json
import logging
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import mindspore
import numpy as np
import pytest
from mindspore import nn, ops
from mindspore.dataset import GeneratorDataset
from mindspore.train import Callback, Model

import msformat
from capture.integrations.mindspore import PrecisionCallback
from capture.mindspore import PrecisionDebugger
from tests.capture.mindspore.networks import bits


def network() -> nn.SequentialCell:
    mindspore.set_seed(1)
    first, second = nn.Dense(3, 4), nn.Dense(4, 2)
    for number, parameter in enumerate((*first.get_parameters(), *second.get_parameters())):
        values = np.arange(parameter.size, dtype=np.float32).reshape(parameter.shape)
        parameter.set_data(mindspore.Tensor(values / 16 - number / 4))
    return nn.SequentialCell(first, nn.ReLU(), second)


ROWS = [(np.full((3,), number / 4, np.float32), np.ones((2,), np.float32)) for number in range(6)]


def dataset() -> Any:
    return GeneratorDataset(ROWS, ["data", "label"], shuffle=False).batch(2)


def train(net: nn.Cell, *callbacks: Callback, epochs: int = 1, **more: Any) -> Model:
    optimizer = nn.Momentum(net.trainable_params(), learning_rate=0.1, momentum=0.9)
    model = Model(net, loss_fn=nn.MSELoss(), optimizer=optimizer, metrics={"loss"})
    model.train(epochs, dataset(), callbacks=list(callbacks), dataset_sink_mode=False, **more)
    return model


def weights(net: nn.Cell) -> list[bytes]:
    return [bits(parameter) for parameter in net.get_parameters()]


def entries(path: Path, step: int) -> dict[str, Any]:
    document = path / f"step{step}" / "rank" / "dump.json"
    return json.loads(document.read_text())["data"] if document.exists() else {}  # type: ignore[no-any-return]


def steps(path: Path) -> list[str]:
    return sorted(child.name for child in path.glob("step*"))


def test_a_dump_is_that_of_a_loop_written_by_hand(tmp_path: Path) -> None:
    net = network()
    train(net, PrecisionCallback(dump_path=tmp_path / "dump", level="L0"))

    by_hand, loss = network(), nn.MSELoss()
    by_hand.set_train()
    optimizer = nn.Momentum(by_hand.trainable_params(), learning_rate=0.1, momentum=0.9)
    gradients_of = mindspore.value_and_grad(lambda data, label: loss(by_hand(data), label), None, optimizer.parameters)
    debugger = PrecisionDebugger(dump_path=tmp_path / "hand", level="L0")
    for data, label in dataset():
        debugger.start(by_hand)
        optimizer(gradients_of(data, label)[1])
        debugger.stop()
        debugger.step()
    debugger.close()

    assert weights(net) == weights(by_hand)
    assert steps(tmp_path / "dump") == steps(tmp_path / "hand") == ["step0", "step1", "step2"]
    for step in range(3):
        assert entries(tmp_path / "dump", step) == entries(tmp_path / "hand", step)


@pytest.mark.parametrize("mode", [mindspore.PYNATIVE_MODE, mindspore.GRAPH_MODE], ids=["pynative", "graph"])
def test_weights_are_the_same_bits_with_and_without(tmp_path: Path, mode: int) -> None:
    mindspore.set_context(mode=mode)
    net, plain = network(), network()
    train(net, PrecisionCallback(dump_path=tmp_path / "dump", level="L0"))
    train(plain)
    assert weights(net) == weights(plain)
    assert steps(tmp_path / "dump") == ["step0", "step1", "step2"]
    found = entries(tmp_path / "dump", 1)
    assert {"Cell.0.Dense.forward.0", "Cell.2.Dense.backward.0"} <= set(found)
    assert found["Cell.0.Dense.forward.0"]["input_args"][0]["Max"] == 0.75


def test_steps_go_on_over_epochs_and_where_a_training_is_resumed(tmp_path: Path) -> None:
    train(network(), PrecisionCallback(dump_path=tmp_path / "dump", level="L0", step=[1, 4]), epochs=2)
    assert steps(tmp_path / "dump") == ["step1", "step4"]
    resumed = PrecisionCallback(dump_path=tmp_path / "resumed", level="L0")
    train(network(), resumed, epochs=3, initial_epoch=2)
    assert steps(tmp_path / "resumed") == ["step6", "step7", "step8"]


def test_evaluation_is_captured_only_when_asked(tmp_path: Path) -> None:
    net = network()
    asked = PrecisionCallback(dump_path=tmp_path / "asked", level="L0", during="evaluation")
    trained = PrecisionCallback(dump_path=tmp_path / "dump", level="L0")
    optimizer = nn.Momentum(net.trainable_params(), learning_rate=0.1, momentum=0.9)
    model = Model(net, loss_fn=nn.MSELoss(), optimizer=optimizer, metrics={"loss"})
    model.fit(1, dataset(), dataset(), callbacks=[trained, asked], dataset_sink_mode=False)
    assert steps(tmp_path / "dump") == steps(tmp_path / "asked") == ["step0", "step1", "step2"]
    assert not [key for key in entries(tmp_path / "asked", 0) if "backward" in key]
    model.eval(dataset(), callbacks=[asked], dataset_sink_mode=False)
    asked.close()
    assert len(steps(tmp_path / "asked")) == 6
    assert [key for key in entries(tmp_path / "dump", 0) if "Dense.forward" in key] == [
        "Cell.0.Dense.forward.0",
        "Cell.2.Dense.forward.0",
    ]


class Breaks(nn.MSELoss):
    """Raises in the second step, when the network has run."""

    def __init__(self) -> None:
        super().__init__()
        self.calls = 0

    def construct(self, logits: Any, labels: Any) -> Any:
        self.calls += 1
        if self.calls == 2:
            raise ZeroDivisionError("planted")
        return super().construct(logits, labels)


def test_an_exception_ends_the_step(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    net = network()
    model = Model(net, loss_fn=Breaks(), optimizer=nn.SGD(net.trainable_params()))
    callback = PrecisionCallback(dump_path=tmp_path / "dump", level="L0")
    with pytest.raises(ZeroDivisionError), caplog.at_level(logging.WARNING, "msformat.capture"):
        model.train(1, dataset(), callbacks=[callback], dataset_sink_mode=False)
    assert "step 1 was not finished and is marked incomplete (ZeroDivisionError: planted)" in caplog.text
    assert steps(tmp_path / "dump") == ["step0", "step1"]
    units = {unit.key.step: unit.complete for unit in msformat.open(tmp_path / "dump")}
    assert units == {0: True, 1: False}
    callback.close()


class Fails(Callback):
    """Starts a kernel that fails, behind the end of a step."""

    def on_train_step_end(self, run_context: Any) -> None:
        del run_context
        ops.cholesky(-ops.ones((3, 3)))


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_an_error_of_the_program_is_not_taken_for_one_of_capture(
    tmp_path: Path, level: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Kernels run behind the program: an error comes out where somebody waits, here capture at the step's end."""
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    net = network()
    with pytest.raises(RuntimeError, match="positive definite"):
        train(net, Fails(), PrecisionCallback(dump_path=tmp_path / "dump", level=level))
    assert "capture ends" not in caplog.text
    # Nothing is left on the cells, and the next debugger may capture.
    train(net, PrecisionCallback(dump_path=tmp_path / "next", level=level))
    assert steps(tmp_path / "next") == ["step0", "step1", "step2"]


LAUNCHED = """
import sys
import numpy as np
from mindspore import nn
from mindspore.dataset import GeneratorDataset
from mindspore.train import LossMonitor, Model

rows = [(np.full((3,), number, np.float32), np.ones((2,), np.float32)) for number in range(6)]
net = nn.SequentialCell(nn.Dense(3, 4), nn.Dense(4, 2))
model = Model(net, loss_fn=nn.MSELoss(), optimizer=nn.SGD(net.trainable_params()))
data = GeneratorDataset(rows, ["data", "label"], shuffle=False).batch(2)
if "model" in sys.argv:
    model.train(1, data, callbacks=LossMonitor(), dataset_sink_mode=False)
"""


def test_the_launcher_captures_what_model_trains(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(LAUNCHED)
    root = str(Path(__file__).resolve().parents[3])

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "capture", "run", "--level", "L0", "--dump-path", "dump", *arguments]
        environment = {**os.environ, "PYTHONPATH": root}
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False, env=environment)

    done = run("train.py")
    assert done.returncode == 0, done.stderr
    assert "nothing was captured: no step of Model.train or Model.fit ran in this process" in done.stderr
    done = run("train.py", "model")
    assert done.stdout.count("loss is") == 3
    assert "3 steps captured into" in done.stderr
    assert steps(tmp_path / "dump") == ["step0", "step1", "step2"]
    assert "Cell.1.Dense.backward.0" in entries(tmp_path / "dump", 2)
