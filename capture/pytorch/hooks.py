"""All hooks of a PyTorch program together: modules and parameters (L0, mix), functions (L1, mix)."""

from __future__ import annotations

from typing import Any

from torch._C import DisableTorchFunction

from capture.observer import Observer
from capture.pytorch.apis import ApiHooks
from capture.pytorch.device_graphs import DeviceGraphs
from capture.pytorch.gradients import GradientGroups
from capture.pytorch.kernels import KernelRecorder
from capture.pytorch.modules import ModuleHooks
from capture.pytorch.tensors import TorchFramework
from capture.pytorch.wrappers import ApiRecorder
from capture.torch_hooks import TorchLikeHooks

__all__ = ["TorchHooks"]


class _SharedGradients:
    """Hooks of functions and of modules that meet on one tensor fire in one order: outer calls first."""

    def __init__(self, groups: GradientGroups) -> None:
        self.on_gradient = groups.watch
        self.advance = groups.advance


class TorchHooks(TorchLikeHooks):
    """Sets the hooks that a level needs and takes off every one of them again.

    Parameters
    ----------
    observer, framework
        Where events go; whose tensors they are about.
    level
        ``L0``, ``L1``, ``L2`` or ``mix``.
    """

    def __init__(self, observer: Observer, framework: TorchFramework, *, level: str) -> None:
        groups = GradientGroups(observer)
        recorder = KernelRecorder if level == "L2" else ApiRecorder
        self._apis = ApiHooks(observer, _SharedGradients(groups), recorder)
        self._modules = ModuleHooks(observer, framework, groups)
        self._graphs = DeviceGraphs(observer)
        super().__init__(self._apis, self._modules, level=level)

    def install(self, model: Any) -> None:
        """Set the hooks: on every module below ``model`` (or below each of a list), and on torch's functions."""
        self._graphs.install()
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

    def remove(self) -> None:
        """Take them off; a function of torch is the object it was."""
        self._are_set = False
        self._apis.remove()
        self._graphs.remove()
        with DisableTorchFunction():
            self._modules.remove()
