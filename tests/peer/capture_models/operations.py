"""Models of the suite whose operations are hard to record."""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 (the name everyone writes)
from torch import nn

from tests.peer.capture_models.networks import Built, data


class Experts(nn.Module):
    """Each token goes to two of four experts; one of them gets none."""

    def __init__(self) -> None:
        super().__init__()
        self.router = nn.Linear(4, 4)
        self.experts = nn.ModuleList(nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 4)) for _ in range(4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        hidden = torch.tensor([False, False, False, True])
        scores = self.router(x).masked_fill(hidden, float("-inf")).softmax(dim=-1)
        weights, chosen = torch.topk(scores, 2, dim=-1)
        out = torch.zeros_like(x)
        for number, expert in enumerate(self.experts):
            token, place = torch.where(chosen == number)
            if token.numel() > 0:
                out = out.index_add(0, token, expert(x[token]) * weights[token, place, None])
        return out


class Routed(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.embed = nn.Linear(4, 4)
        self.moe = Experts()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.embed(x)
        return x + self.moe(x)


def build_moe() -> Built:
    model = Routed()

    def run_step(step: int) -> None:
        model(data(6, 4, step=step)).pow(2).sum().backward()

    return model, run_step


class InPlace(nn.Module):
    """Operations that overwrite their input, operators among them, and slices that are written."""

    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(4, 4)
        self.fc2 = nn.Linear(4, 4)
        self.act = nn.ReLU(inplace=True)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = self.fc1(x) + 0
        x.add_(1).mul_(0.5)
        x += 1
        x *= x.detach() > 0
        x = self.act(x * 2)
        y = torch.zeros(3, 4)
        y[:, 1:3] = x[:, 1:3]
        y[0].copy_(x[0])
        y.masked_fill_(y > 3, 3.0)
        torch.add(y.detach(), 1, out=torch.zeros(3, 4))
        F.relu_(y.detach().clone())
        return self.fc2(F.relu(y, inplace=True))


def build_inplace() -> Built:
    model = InPlace()

    def run_step(step: int) -> None:
        model(data(3, 4, step=step)).mean().backward()

    return model, run_step


class Kinds(nn.Module):
    """Complex, integer, boolean, half precision and double tensors; empty and 0-d ones."""

    def __init__(self) -> None:
        super().__init__()
        self.fc = nn.Linear(8, 8)
        self.phase = nn.Parameter(torch.polar(torch.ones(8), torch.linspace(0, 3, 8)))
        self.register_buffer("table", torch.arange(16))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        spectrum = torch.fft.fft(self.fc(x)) * self.phase
        pairs = torch.view_as_real(spectrum)
        kept = torch.complex(pairs[..., 0], pairs[..., 1]).abs() + spectrum.real
        index = torch.argmax(kept, dim=-1)
        counted = torch.bincount(index, minlength=8)
        bits = (self.table & 5) | (self.table << 1)
        shuffled = torch.gather(self.table, 0, bits % 16).to(torch.int16) // 3
        wanted = F.one_hot(index, 8).bool() ^ (counted > 1)
        half = kept.to(torch.float16) * 0.5
        brain = kept.bfloat16() + half.to(torch.bfloat16)
        double = brain.double().mean() + shuffled.sum() + torch.zeros(0, 3).sum()
        return torch.where(wanted, kept, -kept).sum() * 0.01 + double.float() + brain.float().std()


def build_kinds() -> Built:
    model = Kinds()

    def run_step(step: int) -> None:
        model(data(2, 8, step=step)).backward()

    return model, run_step


class NoGrad(nn.Module):
    """Frozen parts, parts under no_grad, a detached target, an output nothing is learned from."""

    def __init__(self) -> None:
        super().__init__()
        self.frozen = nn.Linear(4, 4).requires_grad_(requires_grad=False)
        self.teacher = nn.Sequential(nn.Linear(4, 4), nn.Tanh())
        self.student = nn.Linear(4, 4)
        self.unused = nn.Linear(4, 2)
        self.half_frozen = nn.Linear(4, 4)
        self.half_frozen.weight.requires_grad_(requires_grad=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        with torch.no_grad():
            target = self.teacher(x)
            target = target / (target.norm() + 1)
        x = self.frozen(x)
        self.unused(x)
        return F.mse_loss(self.half_frozen(self.student(x)), target)


def build_no_grad() -> Built:
    model = NoGrad()

    def run_step(step: int) -> None:
        with torch.no_grad():
            model(data(3, 4, step=step))
        model(data(3, 4, step=step + 10)).backward()

    return model, run_step


class Scale(torch.autograd.Function):
    """A function with its own backward, which uses operations."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, factor: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(x, factor)
        return x * factor

    @staticmethod
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        x, factor = ctx.saved_tensors
        return grad * factor, (grad * x).sum(dim=0)


class Scaled(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.factor = nn.Parameter(torch.linspace(1, 2, 4))

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return Scale.apply(x, self.factor)


class Custom(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.fc1 = nn.Linear(4, 4)
        self.scaled = Scaled()
        self.fc2 = nn.Linear(4, 1)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.fc2(torch.sigmoid(self.scaled(self.fc1(x))))


def build_custom_function() -> Built:
    model = Custom()

    def run_step(step: int) -> None:
        model(data(3, 4, step=step)).mean().backward()

    return model, run_step


class Branches(nn.Module):
    """A module without parameters around modules, an identity, and inputs used twice."""

    def __init__(self) -> None:
        super().__init__()
        self.left = nn.Sequential(nn.Linear(4, 4), nn.Identity())
        self.right = nn.ModuleDict({"ab": nn.Linear(4, 4)})
        self.bilinear = nn.Bilinear(4, 4, 2)
        self.loss = nn.MSELoss()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        left = self.left(x)
        right = self.right["ab"](left + left)
        both = self.bilinear(left, right.view_as(left))
        return self.loss(both, torch.ones_like(both))


def build_branches() -> Built:
    """Input that requires a gradient, gradients by ``torch.autograd.grad``, then an evaluation without backward."""
    model = Branches()

    def run_step(step: int) -> None:
        x = data(3, 4, step=step).requires_grad_()
        torch.autograd.grad(model(x), x)
        model(x).backward()
        model.eval()
        with torch.no_grad():
            model(x)
        model.train()

    return model, run_step
