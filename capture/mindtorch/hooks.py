"""All hooks of a program on mindtorch together: modules and parameters (L0, mix), functions (L1, mix)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from capture.mindspore.jit import tracing
from capture.mindspore.kernels import KernelBackwards, KernelRecorder
from capture.mindspore.passes import BackwardPasses
from capture.mindspore.wrappers import ApiRecorder
from capture.mindtorch.apis import TorchApis
from capture.mindtorch.backwards import make_backwards
from capture.mindtorch.modules import ModuleHooks
from capture.mindtorch.tensorhooks import SHOWS_GRAPH
from capture.torch_hooks import TorchLikeHooks

if TYPE_CHECKING:
    from capture.mindtorch.environment import TorchEnvironment
    from capture.mindtorch.framework import MindTorchFramework
    from capture.observer import Observer

__all__ = ["MindTorchHooks"]


class MindTorchHooks(TorchLikeHooks):
    """Sets the hooks that a level needs and takes off every one of them again.

    Parameters
    ----------
    observer, framework
        Where events go; whose tensors they are about.
    environment
        The torch of the program.
    level
        ``L0``, ``L1``, ``L2`` or ``mix``.
    """

    def __init__(
        self, observer: Observer, framework: MindTorchFramework, environment: TorchEnvironment, *, level: str
    ) -> None:
        self._passes = BackwardPasses(observer.problem)
        self._backwards = make_backwards(observer, framework, self._passes)
        listens = level == "L2" and SHOWS_GRAPH
        followed = KernelBackwards(observer, self._passes) if listens else self._backwards
        kind = KernelRecorder if level == "L2" else ApiRecorder
        recorder = kind(observer, framework, followed, tracing())
        self._apis = TorchApis(observer, recorder, environment)
        self._modules = ModuleHooks(observer, self._backwards, self._passes, framework.give_back)
        super().__init__(self._apis, self._modules, level=level)

    def install(self, model: Any) -> None:
        """Set the hooks: on every module below ``model`` (or below each of a list), and on torch's functions."""
        self._are_set = True
        self._passes.install()
        if self._hooks_modules:
            self._modules.install(model)
        if self._hooks_apis:
            self._apis.install()
        self._leave_alone()

    def finish(self) -> None:
        """Record what no hook brought."""
        self._backwards.reset()
        self._modules.finish()

    def remove(self) -> None:
        """Take them off; a function of torch is the object it was."""
        self._are_set = False
        self._apis.remove()
        self._modules.remove()
        self._backwards.reset()
        self._passes.remove()
