"""PrecisionDebugger for PyTorch."""

from __future__ import annotations

import torch

from capture.debugger import DebuggerBase
from capture.pytorch.hooks import TorchHooks
from capture.pytorch.kernels import NpuDevice
from capture.pytorch.tensors import TorchFramework
from capture.torch_hooks import TorchLikeDebugger

__all__ = ["PrecisionDebugger", "module_dump", "module_dump_end"]


class PrecisionDebugger(TorchLikeDebugger, DebuggerBase):
    """Records modules (L0), APIs (L1), both (mix), kernels (L2) or saved variables (debug) of a PyTorch program.

    See :class:`capture.debugger.DebuggerBase` for the arguments and methods, docs/config.md for config.json.
    """

    framework_name = "pytorch"
    framework: TorchFramework

    def _make_framework(self) -> TorchFramework:
        return TorchFramework(precision=self.config.precision)

    def _make_device(self) -> NpuDevice:
        return NpuDevice()

    def _make_hooks(self) -> TorchHooks:
        return TorchHooks(self._session.observer, self.framework, level=self.config.level)

    def _is_module(self, value: object) -> bool:
        return isinstance(value, torch.nn.Module)

    def _runs_no_hooks(self, module: object) -> bool:
        return isinstance(module, torch.jit.ScriptModule)


def module_dump(module: torch.nn.Module, dump_name: str) -> None:
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
