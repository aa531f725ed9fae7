"""Gradients of single tensors, for ``PrecisionDebugger.save``."""

from __future__ import annotations

import logging
import sys
import weakref
from collections.abc import Callable
from types import FrameType
from typing import Any

from capture.errors import CaptureError
from capture.mindspore.graph import NO_GRAPH, SHOWS_GRAPH, edge_of
from capture.mindspore.passes import BackwardPasses, Pair

__all__ = ["GradientListener"]

_LOGGER = logging.getLogger("msformat.capture")
_COMPILED = (
    "its gradient is not recorded, as it was saved in compiled code (jit, GRAPH_MODE): use save and save_grad of "
    "capture.mindspore there"
)
# The function of MindSpore that runs Python for a compiled program.
_RUNS_PYTHON = "eval_script"


class GradientListener:
    """Brings gradients without a hook on a tensor, which a function under ``jit`` that gets the tensor would compile.

    Gradients of leaves (inputs and parameters) are what the backward pass returns; it is followed while somebody waits
    for one.
    """

    def __init__(self) -> None:
        self._passes = BackwardPasses(_report)
        self._passes.listen(on_result=self._arrived)
        self._waiting: dict[int, tuple[weakref.ReferenceType[Any], list[Callable[[Any], None]]]] = {}

    def on_gradient(self, tensor: Any, callback: Callable[[Any], None]) -> bool:
        """Call back with the tensor's gradient, once it is complete; False when it takes none.

        Raises
        ------
        CaptureError
            Nobody can bring it: it was saved in compiled code, or this MindSpore does not show its graph.
        """
        if not SHOWS_GRAPH:
            raise CaptureError(NO_GRAPH)
        edge = edge_of(tensor)
        if edge is None:
            if _is_compiled():
                raise CaptureError(_COMPILED)
            return False
        if isinstance(edge, str):
            self._wait(tensor, callback)
            return True
        number = edge[1]

        def hear(gradients: tuple[Any, ...]) -> None:
            if gradients[number] is not None:
                callback(gradients[number])

        tensor._grad_node.register_prehook(hear)
        return True

    def forget(self) -> None:
        """Wait for nothing any more."""
        self._waiting.clear()
        self._passes.remove()

    def _wait(self, leaf: Any, callback: Callable[[Any], None]) -> None:
        if not self._waiting:
            self._passes.install()
        known = self._waiting.get(id(leaf))
        if known is None or known[0]() is not leaf:
            known = self._waiting[id(leaf)] = weakref.ref(leaf), []
        known[1].append(callback)

    def _arrived(self, pairs: list[Pair]) -> None:
        """An outermost pass is over: whoever waits has been served, or the program did not ask for that gradient."""
        waiting, self._waiting = self._waiting, {}
        self._passes.remove()
        for leaf, gradient in pairs:
            known = waiting.get(id(leaf))
            if known is not None and known[0]() is leaf:
                for callback in known[1]:
                    callback(gradient)


def _is_compiled() -> bool:
    """Whether a compiled program calls us. Its tensors look like those of a function without gradients."""
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_name == _RUNS_PYTHON and str(frame.f_globals.get("__name__")).startswith("mindspore."):
            return True
        frame = frame.f_back
    return False


def _report(kind: str, where: str, text: str) -> None:
    _LOGGER.warning("capture: %s: %s", where or kind, text)
