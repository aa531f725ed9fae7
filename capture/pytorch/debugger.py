"""PrecisionDebugger for PyTorch."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from capture.debugger import DebuggerBase
from capture.errors import CaptureError
from capture.pytorch.hooks import TorchHooks
from capture.pytorch.kernels import NpuDevice
from capture.pytorch.tensors import TorchFramework
from capture.record import Recorder
from capture.saving import Saver

__all__ = ["PrecisionDebugger", "module_dump", "module_dump_end"]


class PrecisionDebugger(DebuggerBase):
    """Records modules (L0), APIs (L1), both (mix), kernels (L2) or saved variables (debug) of a PyTorch program.

    See :class:`capture.debugger.DebuggerBase` for the arguments and methods, docs/config.md for config.json.
    """

    framework_name = "pytorch"
    framework: TorchFramework
    _hooks: TorchHooks | None

    def _make_framework(self) -> TorchFramework:
        return TorchFramework(precision=self.config.precision)

    def _make_device(self) -> NpuDevice:
        return NpuDevice()

    def _make_hooks(self) -> TorchHooks:
        return TorchHooks(self._session.observer, self.framework, level=self.config.level)

    def _check_model(self, model: Any) -> None:
        for part in model if isinstance(model, (list, tuple)) else [model]:
            if not isinstance(part, torch.nn.Module) or isinstance(part, torch.jit.ScriptModule):
                raise CaptureError(
                    f"start(model=…): a torch.nn.Module or a list of them is needed, not {type(part).__qualname__}"
                )

    def _count_tokens(self, model: Any, on_token: Callable[[int], None]) -> Callable[[], None]:
        first = model[0] if isinstance(model, (list, tuple)) else model
        number = -1

        def count(*_: object) -> None:
            nonlocal number
            number += 1
            on_token(number)

        handle = first.register_forward_pre_hook(count)
        return handle.remove  # type: ignore[no-any-return]

    def _make_saver(self) -> Saver:
        return Saver(self.framework, Recorder(self.framework, on_problem=self._session.problem), self.config)

    def _custom_apis(self, *, register: bool, module: Any, api_name: str, prefix: str) -> None:
        if self._hooks is None:
            self._hooks = self._make_hooks()
        if register:
            self._hooks.add_custom(module, api_name, prefix)
        else:
            self._hooks.remove_custom(module, api_name)

    def begin_module_dump(self, module: torch.nn.Module, name: str) -> None:
        """See :func:`module_dump`."""
        if self.config.level == "L2":
            raise CaptureError("module_dump: level L2 dumps kernels of one API and records no modules")
        if self._hooks is None:
            self._hooks = self._make_hooks()
        self._hooks.begin_module_dump(module, name)

    def end_module_dump(self) -> None:
        """See :func:`module_dump_end`."""
        if self._hooks is not None:
            self._hooks.end_module_dump()


def module_dump(module: torch.nn.Module, dump_name: str) -> None:
    """Record one module, not what is inside it, under ``Module.{dump_name}.{class}``, until :func:`module_dump_end`.

    APIs are not recorded meanwhile. A module that its level records anyway stays recorded as it is.

    Raises
    ------
    CaptureError
        No debugger was made, or an argument is of the wrong type.
    """
    if not isinstance(module, torch.nn.Module):
        raise CaptureError(f"module_dump: a torch.nn.Module is needed, not {type(module).__qualname__}")
    if not isinstance(dump_name, str):
        raise CaptureError(f"module_dump: the name is a string, not {type(dump_name).__qualname__}")
    PrecisionDebugger.latest().begin_module_dump(module, dump_name)


def module_dump_end() -> None:
    """End what :func:`module_dump` began."""
    PrecisionDebugger.latest().end_module_dump()
