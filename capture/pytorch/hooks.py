"""All hooks of a PyTorch program together: modules and parameters (L0, mix), functions (L1, mix)."""

from __future__ import annotations

import weakref
from typing import Any

import torch
from torch._C import DisableTorchFunction

from capture.observer import Observer
from capture.pytorch.apis import ApiHooks
from capture.pytorch.gradients import GradientGroups
from capture.pytorch.kernels import KernelRecorder
from capture.pytorch.modules import ModuleHooks
from capture.pytorch.tensors import TorchFramework
from capture.pytorch.wrappers import ApiRecorder

__all__ = ["TorchHooks"]


class _SharedGradients:
    """Hooks of functions and of modules that meet on one tensor fire in one order: outer calls first."""

    def __init__(self, groups: GradientGroups) -> None:
        self.on_gradient = groups.watch
        self.advance = groups.advance


class TorchHooks:
    """Sets the hooks that a level needs and takes off every one of them again.

    Parameters
    ----------
    observer, framework
        Where events go; whose tensors they are about.
    level
        ``L0``, ``L1``, ``L2`` or ``mix``.
    """

    def __init__(self, observer: Observer, framework: TorchFramework, *, level: str) -> None:
        self._hooks_apis, self._hooks_modules = level in ("L1", "L2", "mix"), level in ("L0", "mix")
        groups = GradientGroups(observer)
        recorder = KernelRecorder if level == "L2" else ApiRecorder
        self._apis = ApiHooks(observer, _SharedGradients(groups), recorder)
        self._modules = ModuleHooks(observer, framework, groups)
        self._are_set = False
        self._alone: tuple[weakref.ReferenceType[torch.nn.Module], str] | None = None

    def install(self, model: Any) -> None:
        """Set the hooks: on every module below ``model`` (or below each of a list), and on torch's functions."""
        self._are_set = True
        if self._hooks_modules:
            with DisableTorchFunction():  # a function mode of the user is told of nothing that is done here
                self._modules.install(model)
        if self._hooks_apis:
            self._apis.install()
        self._leave_alone()

    def finish(self) -> None:
        """Record what no hook brought."""
        with DisableTorchFunction():
            self._modules.finish()

    def new_step(self) -> None:
        """Let go of what a step left waiting."""
        self._apis.drop_pending()

    def remove(self) -> None:
        """Take them off; a function of torch is the object it was."""
        self._are_set = False
        self._apis.remove()
        with DisableTorchFunction():
            self._modules.remove()

    def never_fired(self) -> list[str]:
        """Paths of modules that were hooked and never called."""
        return self._modules.never_fired()

    def add_custom(self, module: Any, api_name: str, prefix: str) -> None:
        """Record calls of ``module.api_name`` too."""
        self._apis.add_custom(module, api_name, prefix)

    def remove_custom(self, module: Any, api_name: str) -> None:
        """Undo ``add_custom``."""
        self._apis.remove_custom(module, api_name)

    def begin_module_dump(self, module: torch.nn.Module, name: str) -> None:
        """Record one module alone, APIs not at all, until ``end_module_dump``; that may begin before a start."""
        self._alone = weakref.ref(module), name
        if self._are_set:
            self._modules.remove_one()
            self._leave_alone()

    def end_module_dump(self) -> None:
        """Record as before again."""
        self._alone = None
        self._modules.remove_one()
        if self._are_set and self._hooks_apis:
            self._apis.install()

    def _leave_alone(self) -> None:
        module, name = (self._alone[0](), self._alone[1]) if self._alone is not None else (None, "")
        if module is not None and self._modules.install_one(module, name):
            self._apis.remove()
