"""Calls of modules, whatever the framework: which of them run, and who hears of their backward."""

from __future__ import annotations

import sys
import threading
from contextlib import nullcontext
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from capture.observer import ModuleCall, Observer

__all__ = ["BackwardListener", "ModuleListener", "ModuleRun", "RunningModules", "inert", "models_of", "own_parameters"]


class BackwardListener(Protocol):
    """Who is told about the backward of a call. It must reach nothing of the graph."""

    def opened(self) -> None:
        """The first gradient of an output is there."""

    def closed(self, grad_outputs: tuple[Any, ...], grad_inputs: tuple[Any, ...]) -> None:
        """Gradients of outputs and inputs, one an output or input that requires one; None where none came."""

    def dropped(self) -> None:
        """The backward raised before the call closed."""


class ModuleListener:
    """Hands the backward of a module's call to the observer."""

    __slots__ = ("call", "observer")

    def __init__(self, observer: Observer, call: ModuleCall) -> None:
        self.observer, self.call = observer, call

    def opened(self) -> None:
        """The module's backward begins."""
        self.observer.open_module_backward(self.call)

    def closed(self, grad_outputs: tuple[Any, ...], grad_inputs: tuple[Any, ...]) -> None:
        """It is over."""
        self.observer.module_backward(self.call, grad_outputs, grad_inputs)

    def dropped(self) -> None:
        """It raised."""
        stack = self.observer.local.stack
        if self.call.backward in stack:
            stack.remove(self.call.backward)


class ModuleRun:
    """One call of a module that has begun and not ended.

    Attributes
    ----------
    hook
        Whose call it is.
    call
        The observer's ticket.
    inputs
        What the framework needs to follow the backward, or None.
    """

    __slots__ = ("_handled", "call", "hook", "inputs")

    def __init__(self, hook: object, call: ModuleCall, inputs: Any) -> None:
        self.hook, self.call, self.inputs = hook, call, inputs
        # An exception that was being handled before is no failure of this call. Its identity alone: it holds frames.
        self._handled = id(sys.exc_info()[1])

    @property
    def has_raised(self) -> bool:
        """Whether the forward is being left by an exception; to be asked in its last hook."""
        error = sys.exc_info()[1]
        return error is not None and id(error) != self._handled


class _Stack(threading.local):
    """Runs of this thread, innermost last."""

    def __init__(self) -> None:
        self.runs: list[ModuleRun] = []


class RunningModules:
    """The calls that forward hooks have seen begin and not yet end, thread by thread."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._stack = _Stack()

    def begin(self, hook: object, call: ModuleCall, inputs: Any) -> None:
        """A module is called."""
        self._stack.runs.append(ModuleRun(hook, call, inputs))

    def end(self, hook: object) -> ModuleRun | None:
        """The innermost run of this hook, which ends. Runs above it were left by an exception that tells nobody."""
        runs = self._stack.runs
        for index in range(len(runs) - 1, -1, -1):
            if runs[index].hook is hook:
                found = runs[index]
                self._abort(runs[index + 1 :])
                del runs[index:]
                return found
        return None

    def abandon(self) -> None:
        """Capture stops: what still runs in this thread stays without an output."""
        runs, self._stack.runs = self._stack.runs, []
        self._abort(runs)

    def _abort(self, left: list[ModuleRun]) -> None:
        for run in reversed(left):
            self._observer.abort_module(run.call)


def models_of(models: Any) -> list[tuple[str, Any]]:
    """Each model with what its modules' paths begin with: nothing, or its place in a list or tuple of models."""
    if isinstance(models, (list, tuple)):
        return [(f"{index}.", model) for index, model in enumerate(models)]
    return [("", models)]


def own_parameters(module: Any) -> dict[str, Any]:
    """The parameters that a module of torch itself has."""
    return {name: parameter for name, parameter in module._parameters.items() if parameter is not None}


def inert() -> tuple[Any, ...]:
    """How a copied or pickled model remembers a hook: as something that does nothing and needs no capture to load."""
    return getattr, (nullcontext(), "__exit__")
