"""PrecisionDebugger for MindSpore."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mindspore import nn

from capture.debugger import DebuggerBase, either
from capture.errors import CaptureError
from capture.mindspore.calls import CellCalls
from capture.mindspore.hooks import MindSporeHooks
from capture.mindspore.tensors import MindSporeFramework
from capture.record import Recorder
from capture.saving import Saver

if TYPE_CHECKING:
    from typing_extensions import Self

__all__ = ["PrecisionDebugger"]


class PrecisionDebugger(DebuggerBase):
    """Records cells (L0), APIs (L1), both (mix) or saved variables (debug) of a MindSpore program in PyNative mode.

    See :class:`capture.debugger.DebuggerBase` for the arguments and methods, docs/config.md for config.json.
    """

    framework_name = "mindspore"
    framework: MindSporeFramework
    _hooks: MindSporeHooks | None

    @classmethod
    def made_last(cls) -> Self | None:
        """The debugger made last, None when there is none."""
        return cls._latest.get(cls)  # type: ignore[return-value]

    @either
    def stop(self) -> None:
        """Stop recording; what a kernel of the program raised meanwhile comes out here at the latest."""
        super().stop()
        self.framework.give_back()

    def _make_framework(self) -> MindSporeFramework:
        return MindSporeFramework()

    def _make_hooks(self) -> MindSporeHooks:
        return MindSporeHooks(self._session.observer, self.framework, level=self.config.level)

    def _check_model(self, model: Any) -> None:
        for part in model if isinstance(model, (list, tuple)) else [model]:
            if not isinstance(part, nn.Cell):
                raise CaptureError(
                    f"start(model=…): a mindspore.nn.Cell or a list of them is needed, not {type(part).__qualname__}"
                )

    def _count_tokens(self, model: Any, on_token: Callable[[int], None]) -> Callable[[], None]:
        first = model[0] if isinstance(model, (list, tuple)) else model
        calls = CellCalls()
        calls.add(first, _Counter(on_token))
        return calls.remove

    def _make_saver(self) -> Saver:
        return Saver(self.framework, Recorder(self.framework, on_problem=self._session.problem), self.config)

    def _custom_apis(self, *, register: bool, module: Any, api_name: str, prefix: str) -> None:
        if self._hooks is None:
            self._hooks = self._make_hooks()
        if register:
            self._hooks.add_custom(module, api_name, prefix)
        else:
            self._hooks.remove_custom(module, api_name)


class _Counter:
    """Around the calls of the model: says their number before each."""

    def __init__(self, on_token: Callable[[int], None]) -> None:
        self._on_token = on_token
        self._number = -1

    def __call__(self, original: Callable[..., Any], cell: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._number += 1
        self._on_token(self._number)
        return original(cell, *args, **kwargs)
