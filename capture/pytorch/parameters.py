"""Gradients of parameters: after they were accumulated, so that what is recorded is what ``parameter.grad`` holds."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch import nn
from torch.nn.parameter import is_lazy

from capture.observer import Observer

__all__ = ["ParameterHooks"]


class _Owner:
    """One module's name for a parameter."""

    __slots__ = ("name", "prefix")

    def __init__(self, prefix: str, name: str) -> None:
        self.prefix, self.name = prefix, name


class _Parameter:
    """A parameter, everyone who owns it, and its gradient as it was when capture began."""

    __slots__ = ("before", "fired", "handle", "owners", "ref")

    def __init__(self, parameter: torch.Tensor) -> None:
        self.ref = weakref.ref(parameter)
        self.owners: list[_Owner] = []
        self.before = _state(parameter.grad)
        self.fired = False
        self.handle: Any = None


class ParameterHooks:
    """Hooks of the parameters of modules. A parameter that several modules share has one hook, and a record in each.

    Parameters
    ----------
    observer
        Where gradients go.
    """

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._parameters: dict[int, _Parameter] = {}
        self._names: set[tuple[str, str]] = set()

    def install(self, prefix: str, module: nn.Module) -> None:
        """Hook the parameters that a module itself has; ``prefix`` is ``Module.{path}.{class}``.

        Called again after each forward, for parameters that are trained since. One that replaces a hooked one for a
        while is left alone: FSDP2 does that in forward, and the gradients that count are those of its shards.
        """
        for name, parameter in module._parameters.items():
            if (prefix, name) not in self._names and _is_trained(parameter):
                self._add(_Owner(prefix, name), parameter)

    def finish(self, *, had_backward: bool) -> None:
        """Record gradients that appeared without a hook being called; after a backward that left none at all, say so.

        FSDP2 writes the gradients of its shards itself. ``torch.autograd.grad`` accumulates none.
        """
        missing = [known for known in self._parameters.values() if not known.fired]
        for known in missing:
            parameter = known.ref()
            gradient = None if parameter is None else parameter.grad
            if gradient is not None and _state(gradient) != known.before:
                self._send(known, gradient)
        if had_backward and missing and not any(known.fired for known in self._parameters.values()):
            count = len(self._parameters)
            text = f"0 of {count} parameter gradients: a wrapper (FSDP) or torch.autograd.grad keeps them elsewhere"
            self._observer.problem("no parameter gradients", "", text)

    def remove(self) -> None:
        """Take the hooks off."""
        parameters, self._parameters = self._parameters, {}
        self._names.clear()
        for known in parameters.values():
            if known.handle is not None:
                known.handle.remove()

    def _add(self, owner: _Owner, parameter: Any) -> None:
        self._names.add((owner.prefix, owner.name))
        known = self._parameters.get(id(parameter))
        if known is None or known.ref() is not parameter:
            known = self._parameters[id(parameter)] = _Parameter(parameter)
            try:
                known.handle = parameter.register_post_accumulate_grad_hook(_Hook(self, known))
            except Exception as error:  # noqa: BLE001 (no leaf, or a class of its own mind)
                self._observer.problem("no gradient hook", f"{owner.prefix}.{owner.name}", str(error))
        known.owners.append(owner)

    def accumulated(self, known: _Parameter, gradient: Any) -> None:
        """A parameter's gradient has been accumulated."""
        if self._observer.running and gradient is not None:
            self._send(known, gradient)

    def failed(self, error: BaseException) -> None:
        """Report; the training goes on."""
        self._observer.problem(f"parameter hook {type(error).__name__}", "", str(error))

    def _send(self, known: _Parameter, gradient: Any) -> None:
        known.fired = True
        for owner in known.owners:
            self._observer.parameter_gradient(owner.prefix, owner.name, gradient)


class _Hook:
    """Post-accumulate hook of one parameter."""

    __slots__ = ("hooks", "known")
    # Saying so keeps torch.save from warning about a hook.
    __torch_unserializable__ = True

    def __init__(self, hooks: ParameterHooks, known: _Parameter) -> None:
        self.hooks, self.known = hooks, known

    def __call__(self, parameter: torch.Tensor) -> None:
        try:
            self.hooks.accumulated(self.known, parameter.grad)
        except Exception as error:  # noqa: BLE001 (a hook never raises)
            self.hooks.failed(error)


def _is_trained(parameter: torch.Tensor | None) -> bool:
    """A lazy parameter takes no hook before the forward that gives it a shape."""
    if parameter is None or not parameter.requires_grad:
        return False
    return parameter.is_leaf and not is_lazy(parameter)


def _state(gradient: torch.Tensor | None) -> tuple[int, int] | None:
    """Tells whether a gradient is another one, or was added to."""
    return None if gradient is None else (id(gradient), gradient._version)
