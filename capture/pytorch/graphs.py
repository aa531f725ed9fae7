"""Code that becomes a graph (torch.compile, torch.jit): what runs inside a graph calls no Python and is not seen.

The dump of a compiled model would be silently empty; here somebody says so, by name. Compilers that look functions up
by identity find the originals while they run.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from contextlib import AbstractContextManager
from types import FrameType
from typing import TYPE_CHECKING, Any

import torch
import torch.jit

from capture.pytorch.patches import Patches

if TYPE_CHECKING:
    from capture.observer import Observer

__all__ = ["GraphWatch"]

_COMPILED = "runs compiled: APIs and modules inside it are not recorded"
_SCRIPTED = "is scripted: APIs and modules inside it are not recorded"


class GraphWatch:
    """Warns of graphs made while capture is installed, and keeps stand-ins out of the way of ``torch.jit``.

    Parameters
    ----------
    paused
        Gives a block in which PyTorch's attributes are the original ones.
    """

    def __init__(self, observer: Observer, paused: Callable[[], AbstractContextManager[None]]) -> None:
        self._observer = observer
        self._paused = paused
        self._patches = Patches()
        self._handler: Any = None

    def install(self) -> None:
        """Watch the entries to ``torch.jit`` and ``torch.compile``."""
        script = sys.modules["torch.jit._script"]
        # Every way to script ends in one of these two, also for a ``script`` that was bound early.
        if hasattr(script, "_script_impl"):
            self._patches.put(script, "_script_impl", self._scripting)
        else:
            self._patches.put(torch.jit, "script", self._scripting)
        self._patches.put(sys.modules["torch.jit._recursive"], "create_script_module", self._making_module)
        self._patches.put(torch, "compile", self._compiling)
        self._watch_dynamo()

    def remove(self) -> None:
        """Stop watching."""
        self._patches.restore()
        if self._handler is not None:
            self._handler.remove_start_callback(self._compilation_starts)
            self._handler = None

    def _scripting(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def script(obj: Any, *args: Any, **kwargs: Any) -> Any:
            self._warn("scripted", getattr(obj, "__qualname__", type(obj).__qualname__), _SCRIPTED)
            with self._paused():
                return function(obj, *args, **kwargs)

        return script

    def _making_module(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def create(*args: Any, **kwargs: Any) -> Any:
            with self._paused():
                return function(*args, **kwargs)

        return create

    def _compiling(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def compile_(*args: Any, **kwargs: Any) -> Any:
            compiled = function(*args, **kwargs)
            self._watch_dynamo()  # the first use of torch.compile loads it
            return compiled

        return compile_

    def _watch_dynamo(self) -> None:
        module = sys.modules.get("torch._dynamo.callback")
        handler = getattr(module, "callback_handler", None)
        if self._handler is None and handler is not None:
            handler.register_start_callback(self._compilation_starts)
            self._handler = handler

    def _compilation_starts(self, *_: Any) -> None:
        self._warn("compiled", _function_compiled(sys._getframe(1)), _COMPILED)

    def _warn(self, kind: str, where: str, text: str) -> None:
        if self._observer.running:
            self._observer.problem(kind, where, f"{where} {text}")


def _function_compiled(frame: FrameType | None) -> str:
    """Name of what Dynamo is at work on: it is told only inside the compiler's own frames."""
    while frame is not None:
        code = frame.f_locals.get("code") if frame.f_globals.get("__name__") == "torch._dynamo.convert_frame" else None
        name = getattr(code, "co_qualname", None) or getattr(code, "co_name", None)
        if name:
            return str(name)
        frame = frame.f_back
    return "a function"
