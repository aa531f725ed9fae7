"""PrecisionDebugger for MindSpore."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mindspore import nn

from capture.debugger import DebuggerBase, either
from capture.errors import CaptureError
from capture.kernel.graph import GraphKernelSession, NoHooks
from capture.kernel.target import looks_like_api
from capture.mindspore.calls import CellCalls
from capture.mindspore.graph_hooks import GraphHooks
from capture.mindspore.hooks import MindSporeHooks
from capture.mindspore.kernel_graph import MindSporeRuntime
from capture.mindspore.kernels import kernel_device
from capture.mindspore.tensors import MindSporeFramework

if TYPE_CHECKING:
    from typing_extensions import Self

    from capture.kernel.device import KernelDevice
    from capture.session import Session

__all__ = ["PrecisionDebugger"]


class PrecisionDebugger(DebuggerBase):
    """Records cells (L0), APIs (L1), both (mix) or saved variables (debug) of a MindSpore program in PyNative mode.

    At level L2, kernels of one API, or of static graphs.

    See :class:`capture.debugger.DebuggerBase` for the arguments and methods, docs/config.md for config.json. Where the
    program has imported a ``torch`` that runs on MindSpore, this is :class:`capture.mindtorch.PrecisionDebugger`.
    """

    framework_name = "mindspore"
    framework: MindSporeFramework
    _hooks: MindSporeHooks | NoHooks | None
    _graph: GraphHooks | None = None

    def __new__(cls, *arguments: Any, **named: Any) -> Self:
        """As msprobe does, of the class for what the program runs on."""
        return super().__new__(_class_for(cls), *arguments, **named)  # type: ignore[return-value]

    @classmethod
    def made_last(cls) -> Self | None:
        """The debugger made last, None when there is none."""
        return cls._latest.get(_class_for(cls))  # type: ignore[return-value]

    @either
    def start(self, model: Any = None, token_range: list[int] | tuple[int, int] | None = None) -> None:
        """Begin to record this step; see :meth:`capture.debugger.DebuggerBase.start`.

        Cells that are compiled (GRAPH_MODE, ``jit``) are recorded too, if this comes before they are called first.
        """
        given = model if model is not None else self.model
        if given is not None and self.framework_name == "mindspore" and self.config.level in ("L0", "mix"):
            self._check_model(given)
            if self._graph is None:
                self._graph = GraphHooks(self._session)
            self._graph.prepare(given)
        super().start(model, token_range)

    @either
    def step(self) -> None:
        """End the step; see :meth:`capture.debugger.DebuggerBase.step`."""
        if self._graph is None:
            super().step()
            return
        self.stop()
        self._session.has_entries_elsewhere = self._graph.has_content
        super().step()
        self._graph.step()

    @either
    def abandon(self, reason: BaseException | str) -> None:
        """End a step that did not come to its end; see :meth:`capture.debugger.DebuggerBase.abandon`."""
        super().abandon(reason)
        if self._graph is not None:
            self._graph.remove()
            self._graph.abandon(reason)

    @either
    def wait(self, timeout: float | None = None) -> None:
        """Come back when everything recorded so far is on disk (or after ``timeout`` seconds)."""
        super().wait(timeout)
        if self._graph is not None:
            self._graph.wait(timeout)

    @either
    def close(self) -> None:
        """Finish everything now; at the end of the process this happens by itself."""
        if self._graph is not None:
            self._graph.close()
        super().close()

    @either
    def stop(self) -> None:
        """Stop recording; what a kernel of the program raised meanwhile comes out here at the latest."""
        super().stop()
        if self._graph is not None:
            self._graph.remove()
        self.framework.give_back()

    def _make_framework(self) -> MindSporeFramework:
        return MindSporeFramework()

    def _make_session(self) -> Session:
        if self._dumps_graphs:
            return GraphKernelSession(self.config, self.framework, MindSporeRuntime(self.config))
        return super()._make_session()

    @property
    def _dumps_graphs(self) -> bool:
        """At level L2 an entry name of an API means PyNative mode, anything else static graphs."""
        return (
            self.config.level == "L2"
            and self.framework_name == "mindspore"
            and not any(looks_like_api(name) for name in self.config.list)
        )

    def _make_device(self) -> KernelDevice:
        return kernel_device()

    def _make_hooks(self) -> MindSporeHooks | NoHooks:
        if self._dumps_graphs:
            return NoHooks()
        return MindSporeHooks(self._session.observer, self.framework, level=self.config.level, graph=self._graph)

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


def _class_for(kind: type[PrecisionDebugger]) -> type[PrecisionDebugger]:
    """The class that this program needs: it depends on whose ``torch``, if any, was imported."""
    if kind is not PrecisionDebugger or "torch" not in sys.modules:
        return kind
    mindtorch = importlib.import_module("capture.mindtorch")
    found: type[PrecisionDebugger] = mindtorch.PrecisionDebugger if mindtorch.is_mindtorch() else kind
    return found


class _Counter:
    """Around the calls of the model: says their number before each."""

    def __init__(self, on_token: Callable[[int], None]) -> None:
        self._on_token = on_token
        self._number = -1

    def __call__(self, original: Callable[..., Any], cell: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        self._number += 1
        self._on_token(self._number)
        return original(cell, *args, **kwargs)
