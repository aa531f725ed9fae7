"""PrecisionDebugger for a torch that runs on MindSpore."""

from __future__ import annotations

from typing import Any

from capture.mindspore import debugger as mindspore_debugger
from capture.mindtorch.environment import TorchEnvironment
from capture.mindtorch.framework import MindTorchFramework
from capture.mindtorch.hooks import MindTorchHooks
from capture.torch_hooks import TorchLikeDebugger

__all__ = ["PrecisionDebugger", "module_dump", "module_dump_end"]


class PrecisionDebugger(TorchLikeDebugger, mindspore_debugger.PrecisionDebugger):
    """Records modules (L0), APIs (L1), both (mix) or saved variables (debug) of a program on mindtorch or MSAdapter.

    See :class:`capture.debugger.DebuggerBase` for the arguments and methods, docs/config.md for config.json.

    Raises
    ------
    CaptureError
        Also when ``torch`` is PyTorch or was not imported yet.
    """

    framework_name = "mindtorch"
    framework: MindTorchFramework
    _hooks: Any

    def _make_framework(self) -> MindTorchFramework:
        self._environment = TorchEnvironment.current()
        return MindTorchFramework(self._environment)

    def _make_hooks(self) -> Any:
        observer = self._session.observer
        return MindTorchHooks(observer, self.framework, self._environment, level=self.config.level)

    def _is_module(self, value: object) -> bool:
        return isinstance(value, self._environment.module_class)


def module_dump(module: Any, dump_name: str) -> None:
    """Record one module, not what is inside it, under ``Module.{dump_name}.{class}``, until :func:`module_dump_end`.

    APIs are not recorded meanwhile. A module that its level records anyway stays recorded as it is.

    Raises
    ------
    CaptureError
        No debugger was made, or an argument is of the wrong type.
    """
    PrecisionDebugger.latest().begin_module_dump(module, dump_name)


def module_dump_end() -> None:
    """End what :func:`module_dump` began."""
    PrecisionDebugger.latest().end_module_dump()
