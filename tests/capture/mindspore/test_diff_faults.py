"""One network in MindSpore with a planted fault, against the same in PyTorch: ``diff`` names the guilty layer first.

torch and MindSpore bring libraries that do not agree in one process: PyTorch's dump is made by another.
"""

from __future__ import annotations

import importlib.util
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore as ms
import numpy as np
import pytest
from mindspore import nn, ops

import msformat
from tests.capture.mindspore.dumping import dump_of

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("torch") is None, reason="PyTorch makes the reference"),
    pytest.mark.timeout(600),
]

LAYERS, WIDTH = 4, 8
ROOT = Path(__file__).resolve().parents[3]
TORCH = """
import sys
import numpy as np
import torch
from torch import nn
from pathlib import Path
from tests.reports.capturing import captured

LAYERS, WIDTH = 4, 8
weights = np.load(sys.argv[1])

class Layer(nn.Module):
    def __init__(self):
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH, eps=1e-5)
        self.up = nn.Linear(WIDTH, 2 * WIDTH)
        self.act = nn.ReLU()
        self.down = nn.Linear(2 * WIDTH, WIDTH)

    def forward(self, x):
        return x + self.down(self.act(self.up(self.norm(x))))

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layers = nn.ModuleList([Layer() for _ in range(LAYERS)])

    def forward(self, x):
        for layer in self.layers:
            x = layer(x)
        return x

net = Net()
with torch.no_grad():
    for name, parameter in net.named_parameters():
        parameter.copy_(torch.from_numpy(weights[name]))
batch = torch.from_numpy(weights["batch"])
for level in ("L0", "mix"):
    for task in ("statistics", "tensor"):
        place = Path(sys.argv[2]) / f"{level} {task}"
        net.zero_grad()
        captured(place, lambda: net(batch).sum().backward(), net, level=level, task=task)
"""


def weights() -> dict[str, Any]:
    """By PyTorch's names."""
    random = np.random.default_rng(0)
    shapes = {"norm.weight": (WIDTH,), "norm.bias": (WIDTH,), "up.weight": (2 * WIDTH, WIDTH), "up.bias": (2 * WIDTH,)}
    shapes |= {"down.weight": (WIDTH, 2 * WIDTH), "down.bias": (WIDTH,)}
    found = {
        f"layers.{layer}.{name}": (0.5 + random.random(shape)).astype(np.float32) * (1 if "norm" in name else 0.1)
        for layer in range(LAYERS)
        for name, shape in shapes.items()
    }
    return {**found, "batch": random.standard_normal((3, WIDTH)).astype(np.float32)}


class Layer(nn.Cell):
    def __init__(self, values: dict[str, Any]) -> None:
        super().__init__()
        gamma, beta = ms.Tensor(values["norm.weight"]), ms.Tensor(values["norm.bias"])
        self.norm = nn.LayerNorm((WIDTH,), gamma_init=gamma, beta_init=beta, epsilon=1e-5)
        self.up = nn.Dense(WIDTH, 2 * WIDTH, ms.Tensor(values["up.weight"]), ms.Tensor(values["up.bias"]))
        self.act = nn.ReLU()
        self.down = nn.Dense(2 * WIDTH, WIDTH, ms.Tensor(values["down.weight"]), ms.Tensor(values["down.bias"]))

    def construct(self, x: Any) -> Any:
        return x + self.down(self.act(self.up(self.norm(x))))


class Net(nn.Cell):
    def __init__(self, values: dict[str, Any]) -> None:
        super().__init__()
        cut = [f"layers.{layer}." for layer in range(LAYERS)]
        self.layers = nn.CellList(
            [Layer({name.removeprefix(head): v for name, v in values.items() if name.startswith(head)}) for head in cut]
        )

    def construct(self, x: Any) -> Any:
        for layer in self.layers:
            x = layer(x)
        return x


@pytest.fixture(scope="module")
def reference(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Dumps of PyTorch, by level and task."""
    place = tmp_path_factory.mktemp("torch")
    np.savez(place / "weights.npz", **weights())
    command = [sys.executable, "-c", TORCH, str(place / "weights.npz"), str(place)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return place


def wrong_epsilon(net: Net) -> None:
    """What MindSpore's default is to PyTorch's, in the large."""
    old = net.layers[3].norm
    new = nn.LayerNorm((WIDTH,), gamma_init=old.gamma.value(), beta_init=old.beta.value(), epsilon=1e-2)
    net.layers[3].norm = new


def swapped_weight(net: Net) -> None:
    weight = net.layers[1].up.weight
    values = weight.asnumpy().copy()
    values[[0, 1]] = values[[1, 0]]
    weight.set_data(ms.Tensor(values))


def captured(place: Path, fault: Callable[[Net], None] | None, level: str, task: str) -> Path:
    values = weights()
    net = Net(values)
    if fault is not None:
        fault(net)
    batch = ms.Tensor(values["batch"])
    run = ms.value_and_grad(lambda x: ops.sum(net(x)), None, net.trainable_params())
    dump_of(place, net, lambda: run(batch), level=level, task=task)
    return place / "dump"


@pytest.mark.parametrize("level", ["L0", "mix"])
@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_a_wrong_epsilon(tmp_path: Path, reference: Path, level: str, task: str) -> None:
    bad = captured(tmp_path, wrong_epsilon, level, task)
    found = msformat.diff(bad, reference / f"{level} {task}")
    assert found.frameworks == ("mindspore", "pytorch")
    headline = found.divergence
    assert headline is not None
    assert (headline.module, headline.role) == ("layers.3.norm", "output")
    assert found.exit_code == 1


def test_a_swapped_weight(tmp_path: Path, reference: Path) -> None:
    headline = msformat.diff(captured(tmp_path, swapped_weight, "L0", "tensor"), reference / "L0 tensor").divergence
    assert headline is not None
    assert (headline.module, headline.role) == ("layers.1.up", "parameter")


def test_without_a_fault_nothing_differs(tmp_path: Path, reference: Path) -> None:
    found = msformat.diff(captured(tmp_path, None, "L0", "tensor"), reference / "L0 tensor")
    assert found.divergence is None
    assert found.exit_code == 0
    matched = [entry for entry in found.units[0].entries if entry.match == "framework"]
    assert {entry.module for entry in matched} >= {
        f"layers.{n}.{name}" for n in range(LAYERS) for name in ("norm", "up")
    }
    tensors = [tensor for entry in matched for tensor in entry.tensors]
    assert {tensor.role for tensor in tensors if tensor.verdict in ("same", "close")} >= {
        "input",
        "output",
        "parameter",
    }
