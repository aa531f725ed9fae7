"""An observer that writes down what module hooks tell it, and models to hook."""

from __future__ import annotations

import dataclasses
import threading
from collections import Counter, namedtuple
from collections.abc import Callable
from typing import Any, cast

import torch
from torch import nn

from capture.observer import ModuleCall, Observer
from capture.pytorch.modules import ModuleHooks
from capture.pytorch.tensors import TorchFramework
from capture.tree import ThreadState

Gradients = list["torch.Tensor | None"]
Pair = namedtuple("Pair", "left right")


class Ticket:
    """What an observer gives for a module call."""

    def __init__(self, prefix: str, number: int) -> None:
        self.prefix, self.forward, self.backward = prefix, f"{prefix}.forward.{number}", f"{prefix}.backward.{number}"


class Watching:
    """Notes names and values; keeps copies, never the tensors it is given."""

    def __init__(self) -> None:
        self.running = True
        self.local = ThreadState()
        self.forwards: list[str] = []
        self.aborted: list[str] = []
        self.backwards: list[tuple[str, Gradients, Gradients]] = []
        self.parameters: list[tuple[str, str, torch.Tensor]] = []
        self.problems: list[tuple[str, str, str]] = []
        self.parents: dict[str, str | None] = {}
        self.keeps = True
        self._counts: Counter[str] = Counter()
        self._mutex = threading.Lock()

    @property
    def listening(self) -> bool:
        return self.running

    def problem(self, kind: str, where: str, text: str) -> None:
        self.problems.append((kind, where, text))

    def begin_module(self, prefix: str, args: Any, kwargs: Any) -> Ticket:
        with self._mutex:
            ticket = Ticket(prefix, self._counts[prefix])
            self._counts[prefix] += 1
        self.parents[ticket.forward] = self.local.parent()
        self.local.stack.append(ticket.forward)
        return ticket

    def wants_backward(self, call: Ticket) -> bool:
        return True

    def end_module(self, call: Ticket, output: Any, parameters: dict[str, Any]) -> None:
        self.local.leave(call.forward)
        self.forwards.append(call.forward)

    def abort_module(self, call: Ticket) -> None:
        self.local.leave(call.forward)
        self.aborted.append(call.forward)

    def open_module_backward(self, call: Ticket) -> None:
        self.local.stack.append(call.backward)

    def module_backward(self, call: Ticket, grad_outputs: tuple[Any, ...], grad_inputs: tuple[Any, ...]) -> None:
        if call.backward in self.local.stack:
            self.local.stack.remove(call.backward)
        if self.keeps:
            self.backwards.append((call.backward, _copies(grad_outputs), _copies(grad_inputs)))

    def parameter_gradient(self, prefix: str, parameter: str, gradient: Any) -> None:
        if self.keeps:
            self.parameters.append((prefix, parameter, gradient.detach().clone()))

    @property
    def keys(self) -> list[str]:
        return [key for key, _, _ in self.backwards]

    def gradients(self, key: str) -> tuple[Gradients, Gradients]:
        """Of outputs and inputs, as recorded last."""
        return {name: (given, taken) for name, given, taken in self.backwards}[key]


def _copies(gradients: tuple[Any, ...]) -> Gradients:
    return [None if gradient is None else gradient.detach().clone() for gradient in gradients]


def hooked(model: Any, watching: Watching | None = None) -> tuple[Watching, ModuleHooks]:
    """Hooks on a model."""
    watching = watching or Watching()
    hooks = ModuleHooks(cast("Observer", watching), TorchFramework())
    hooks.install(model)
    return watching, hooks


def ticket(watching: Watching, prefix: str) -> ModuleCall:
    return cast("ModuleCall", watching.begin_module(prefix, (), {}))


class Do(nn.Module):
    """A module made of a function and children."""

    def __init__(self, work: Callable[..., Any], **children: nn.Module) -> None:
        super().__init__()
        self.work = work
        for name, child in children.items():
            setattr(self, name, child)

    def forward(self, *args: Any, **kwargs: Any) -> Any:
        return self.work(self, *args, **kwargs)


@dataclasses.dataclass
class Result:
    logits: torch.Tensor
    extra: Any = None


class Scale(torch.autograd.Function):
    """A function with a derivative of its own."""

    @staticmethod
    def forward(ctx: Any, value: torch.Tensor, factor: float) -> torch.Tensor:
        ctx.factor = factor
        return value * factor

    @staticmethod
    def backward(ctx: Any, *gradients: Any) -> Any:
        return gradients[0] * ctx.factor, None


def linear() -> nn.Linear:
    return nn.Linear(8, 8)


def rows(*shape: int) -> torch.Tensor:
    return torch.randn(*(shape or (4, 8)))


def weigh(value: torch.Tensor) -> torch.Tensor:
    """A loss under which every element has another gradient."""
    return (value * torch.linspace(-1, 1, value.numel()).reshape(value.shape)).sum()


def bits_equal(one: torch.Tensor | None, other: torch.Tensor | None) -> bool:
    if one is None or other is None:
        return one is other
    return one.dtype == other.dtype and one.shape == other.shape and torch.equal(one, other)
