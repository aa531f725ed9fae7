"""A real training that is killed in the middle of a captured step: what the journal has is readable, bit for bit."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

import msformat
from capture.pytorch import PrecisionDebugger
from tests.crash.workload import AT_RISK, BACKENDS

ROOT = Path(__file__).parents[2]
LAYERS, DIES_AT = 160, 150


def model() -> torch.nn.Sequential:
    torch.manual_seed(7)
    return torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(LAYERS)))


def data() -> torch.Tensor:
    return torch.linspace(-1, 1, 24).reshape(3, 8)


class Death(torch.nn.Module):
    """Stands for the layer in which the process dies, in the second step."""

    def __init__(self, how: str, debugger: PrecisionDebugger) -> None:
        super().__init__()
        self.how, self.debugger, self.calls = how, debugger, 0

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.calls += 1
        if self.calls == 2:
            self.debugger.wait()
            if self.how == "kill":
                os.kill(os.getpid(), signal.SIGKILL)
            if self.how == "_exit":
                os._exit(17)
            raise RuntimeError("the loss is NaN")
        return x


def train(root: str, backend: str, how: str) -> None:
    """Runs in a process of its own."""
    config = Path(root) / "config.json"
    config.write_text(f'{{"task": "tensor", "level": "L0", "storage": {{"format": "{backend}"}}}}')
    debugger = PrecisionDebugger(str(config), dump_path=str(Path(root) / "dump"))
    net = model()
    net.insert(DIES_AT, Death(how, debugger))
    for _ in range(2):
        debugger.start(model=net)
        net(data()).sum().backward()
        debugger.stop()
        debugger.step()


def outputs() -> list[torch.Tensor]:
    """Of each layer, by torch alone."""
    found, x = [], data()
    with torch.no_grad():
        for layer in model():
            x = layer(x)
            found.append(x)
    return found


@pytest.mark.parametrize("how", ["kill", "_exit", "raise"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_training_that_dies_in_a_forward(tmp_path: Path, backend: str, how: str) -> None:
    command = [sys.executable, "-m", "tests.crash.test_capture_training", str(tmp_path), backend, how]
    environment = {**os.environ, "PYTHONPATH": str(ROOT)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == {"kill": -signal.SIGKILL, "_exit": 17, "raise": 1}[how], done.stderr
    expected = outputs()
    with msformat.open(tmp_path / "dump") as dump:
        first, second = dump
        assert first.complete
        assert len(list(first)) == 2 * (LAYERS + 1) + LAYERS  # forward, backward, and gradients of parameters
        assert not second.complete
        found = [name for name in second if ".Linear.forward." in name]
        assert found == [f"Module.{number}.Linear.forward.0" for number in range(len(found))]
        # Each layer leaves two entries until its backward: its forward and the place of its gradients.
        assert DIES_AT >= len(found) >= (DIES_AT if how == "raise" else DIES_AT - AT_RISK // 2)
        for name, value in zip(found, expected, strict=False):
            np.testing.assert_array_equal(second[name].outputs[0].numpy(), value.numpy())
    (_, report) = msformat.recover_dump(tmp_path / "dump").units
    assert report.is_whole


if __name__ == "__main__":
    train(*sys.argv[1:])
