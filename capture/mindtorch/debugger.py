"""PrecisionDebugger for a torch that runs on MindSpore."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from capture.errors import CaptureError
from capture.mindspore import debugger as mindspore_debugger
from capture.mindtorch.environment import TorchEnvironment
from capture.mindtorch.framework import MindTorchFramework
from capture.mindtorch.hooks import MindTorchHooks

__all__ = ["PrecisionDebugger", "module_dump", "module_dump_end"]


class PrecisionDebugger(mindspore_debugger.PrecisionDebugger):
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

    def _check_model(self, model: Any) -> None:
        for part in model if isinstance(model, (list, tuple)) else [model]:
            if not isinstance(part, self._environment.module_class):
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

    def begin_module_dump(self, module: Any, name: str) -> None:
        """See :func:`module_dump`."""
        if not isinstance(module, self._environment.module_class):
            raise CaptureError(f"module_dump: a torch.nn.Module is needed, not {type(module).__qualname__}")
        if not isinstance(name, str):
            raise CaptureError(f"module_dump: the name is a string, not {type(name).__qualname__}")
        if self.config.level == "L2":
            raise CaptureError("module_dump: level L2 dumps kernels of one API and records no modules")
        if self._hooks is None:
            self._hooks = self._make_hooks()
        self._hooks.begin_module_dump(module, name)

    def end_module_dump(self) -> None:
        """See :func:`module_dump_end`."""
        if self._hooks is not None:
            self._hooks.end_module_dump()


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
