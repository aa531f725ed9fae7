"""A model with one planted fault, captured good and bad: ``diff`` names the guilty layer first."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import nn

import msformat
from tests.reports.capturing import captured

LAYERS, WIDTH, HEADS = 5, 16, 4


class Head(nn.Module):
    """One head of attention, in bfloat16."""

    def __init__(self) -> None:
        super().__init__()
        self.query = nn.Linear(WIDTH, WIDTH // HEADS, dtype=torch.bfloat16)
        self.key = nn.Linear(WIDTH, WIDTH // HEADS, dtype=torch.bfloat16)
        self.value = nn.Linear(WIDTH, WIDTH // HEADS, dtype=torch.bfloat16)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x.to(torch.bfloat16)
        scores = self.query(x) @ self.key(x).transpose(-2, -1)
        return (torch.softmax(scores, -1) @ self.value(x)).float()


class Layer(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.norm = nn.LayerNorm(WIDTH)
        self.heads = nn.ModuleList([Head() for _ in range(HEADS)])
        self.out = nn.Linear(WIDTH, WIDTH)
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 2 * WIDTH), nn.GELU(), nn.Linear(2 * WIDTH, WIDTH))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        normed = self.norm(x)
        x = x + self.out(torch.cat([head(normed) for head in self.heads], -1))
        return x + self.mlp(x)


class Net(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layers = nn.ModuleList([Layer() for _ in range(LAYERS)])

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        for layer in self.layers:
            x = layer(x)
        return x


def network() -> Net:
    """Always the same weights."""
    torch.manual_seed(0)
    return Net()


def wrong_epsilon(net: Net) -> None:
    norm = net.layers[3].norm
    assert isinstance(norm, nn.LayerNorm)
    norm.eps = 1e-2


def overflow(net: Net) -> None:
    """Scores of one head leave the range of bfloat16, and softmax makes NaN of them."""
    head = net.layers[2].heads[1]  # type: ignore[index,union-attr]
    with torch.no_grad():
        head.query.weight.mul_(1e30)  # type: ignore[union-attr]
        head.key.weight.mul_(1e30)  # type: ignore[union-attr]


def swapped_weight(net: Net) -> None:
    mlp = net.layers[1].mlp
    assert isinstance(mlp, nn.Sequential)
    with torch.no_grad():
        weight = mlp[0].weight
        assert isinstance(weight, nn.Parameter)
        weight[[0, 1]] = weight[[1, 0]].clone()


def dump_of(place: Path, fault: Callable[[Net], None] | None, *, level: str, task: str) -> Path:
    net = network()
    if fault is not None:
        fault(net)
    torch.manual_seed(1)
    batch = torch.randn(2, 3, WIDTH)
    captured(place, lambda: net(batch).square().sum().backward(), net, level=level, task=task)
    return place


# Fault, guilty module, what parts first at level mix and L0, what it is to its call.
FAULTS = {
    "epsilon": (wrong_epsilon, "layers.3.norm", "output"),
    "overflow": (overflow, "layers.2.heads.1.query", "parameter"),
    "swapped weight": (swapped_weight, "layers.1.mlp.0", "parameter"),
}


@pytest.mark.parametrize("level", ["L0", "mix"])
@pytest.mark.parametrize("task", ["statistics", "tensor"])
@pytest.mark.parametrize("fault", ["epsilon", "overflow"])
def test_the_guilty_layer_is_named_first(tmp_path: Path, fault: str, task: str, level: str) -> None:
    plant, module, role = FAULTS[fault]
    bad = dump_of(tmp_path / "bad", plant, level=level, task=task)
    good = dump_of(tmp_path / "good", None, level=level, task=task)
    # A wrong epsilon is an argument of the function at level mix: without plain arguments it shows in the output.
    found = msformat.diff(bad, good, msformat.DiffOptions(scalars=False))
    assert found.exit_code == 1
    headline = found.divergence
    assert headline is not None
    assert (headline.module, headline.role) == (module, role)
    assert headline.entry.a == headline.entry.b
    assert headline.before, "what was still good"
    assert all(entry.verdict == "same" for entry in headline.before)
    if level == "mix":
        assert any("test_diff_faults" in frame for frame in headline.stack_a)
        assert any(module.rpartition(".")[0] in parent for parent in headline.parents)


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_a_swapped_weight_has_the_same_statistics_and_other_values(tmp_path: Path, level: str) -> None:
    """Two rows that changed places: the statistics of the weight stay, those of what is made of it do not."""
    named = {}
    for task in ("statistics", "tensor"):
        bad = dump_of(tmp_path / f"bad {task}", swapped_weight, level=level, task=task)
        good = dump_of(tmp_path / f"good {task}", None, level=level, task=task)
        headline = msformat.diff(bad, good).divergence
        assert headline is not None
        named[task] = headline.module, headline.role
    assert named["tensor"] == ("layers.1.mlp.0", "parameter")
    assert named["statistics"][0] in ("layers.1.mlp.0", "layers.1.mlp.2", "layers.1.mlp")


def test_a_wrong_epsilon_is_said_as_the_argument_it_is(tmp_path: Path) -> None:
    bad = dump_of(tmp_path / "bad", wrong_epsilon, level="mix", task="statistics")
    good = dump_of(tmp_path / "good", None, level="mix", task="statistics")
    headline = msformat.diff(bad, good).divergence
    assert headline is not None
    assert headline.module == "layers.3.norm"
    assert headline.scalar is not None
    assert (headline.scalar.a, headline.scalar.b) == ("0.01", "1e-05")


def test_the_place_of_the_first_nan(tmp_path: Path) -> None:
    """The overflow is in one head's scores: NaN stand where softmax made them, and nowhere before."""
    bad = dump_of(tmp_path / "bad", overflow, level="mix", task="tensor")
    good = dump_of(tmp_path / "good", None, level="mix", task="tensor")
    unit = msformat.diff(bad, good).units[0]
    softmax = [entry for entry in unit.entries if entry.key.startswith("Torch.softmax") and "forward" in entry.key]
    broken = [entry for entry in softmax if any(tensor.special_mismatch for tensor in entry.tensors)]
    assert broken[0].module == "layers.2.heads.1"
    output = next(tensor for tensor in broken[0].tensors if tensor.role == "output")
    raw = msformat.open(bad)[0][broken[0].key].outputs[0].float32()
    assert output.special_a is not None
    assert output.special_a.nan == int(torch.isnan(torch.from_numpy(raw)).sum())
    assert torch.isnan(torch.tensor(raw[output.special_a.first[0]]))
    assert output.special_b is not None
    assert output.special_b.total == 0


def test_two_good_runs_are_the_same(tmp_path: Path) -> None:
    first = dump_of(tmp_path / "first", None, level="mix", task="tensor")
    second = dump_of(tmp_path / "second", None, level="mix", task="tensor")
    found = msformat.diff(first, second)
    assert found.exit_code == 0
    assert set(found.counts) == {"same"}
    assert found.divergence is None
    assert found.first_bits is None


def test_a_dump_of_the_wrapped_model_against_the_plain_one(tmp_path: Path) -> None:
    """DistributedDataParallel puts ``module.`` before every path."""

    class Wrapper(nn.Module):
        def __init__(self, module: nn.Module) -> None:
            super().__init__()
            self.module = module

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            return self.module(x)  # type: ignore[no-any-return]

    places = []
    for name, fault in (("bad", wrong_epsilon), ("good", None)):
        net: nn.Module = network()
        if fault is not None:
            fault(net)  # type: ignore[arg-type]
            net = Wrapper(net)
        torch.manual_seed(1)
        batch = torch.randn(2, 3, WIDTH)
        places.append(tmp_path / name)
        captured(places[-1], lambda net=net, batch=batch: net(batch).sum().backward(), net, level="mix")  # type: ignore[misc]
    found = msformat.diff(*places, msformat.DiffOptions(scalars=False))
    headline = found.divergence
    assert headline is not None
    assert (headline.module, headline.role) == ("module.layers.3.norm", "output")
    lone = [entry.key for unit in found.units for entry in unit.entries if entry.match == "none"]
    assert all(key.startswith("Module.module.Net.") for key in lone), lone
