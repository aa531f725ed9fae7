"""Code that becomes a graph (torch.compile, torch.jit, torch.export): no Python runs inside it, so nothing is seen.

The dump of a compiled model would be silently empty; here somebody says so, by name. Compilers know functions by
identity, so PyTorch is as it was while they work, and while their code runs: nothing is compiled anew because capture
began or ended. What Dynamo leaves to Python (``torch.compiler.disable``) is recorded.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any, Protocol

import torch
import torch.jit

from capture.patches import Patches

if TYPE_CHECKING:
    from capture.observer import Observer

__all__ = ["GraphWatch", "Pausable"]

_TEXTS = {
    "compiled": "runs compiled: APIs and modules inside it are not recorded",
    "scripted": "is made a TorchScript graph: APIs and modules inside it are not recorded",
    "exported": "is exported: what runs meanwhile is not recorded",
}


class Pausable(Protocol):
    """What can be taken out of the way for a while."""

    def pause(self) -> None:
        """Put the original functions in their places."""

    def go_on(self) -> None:
        """Undo one :meth:`pause`."""


class _Switches(threading.local):
    """Who switched Dynamo on or off in a thread and is to switch it back, the innermost last.

    While Dynamo compiles, it is off and says so, but the stand-ins must stay away: only he who switched it ends it.
    """

    def __init__(self) -> None:
        self.made: list[tuple[int, Any, bool]] = []
        """Frame, what was set before it came, and whether compiled code runs since."""

    def on(self) -> bool:
        """Whether compiled code runs, or is being made."""
        return bool(self.made) and self.made[-1][2]

    def switched(self, frame: int, before: Any, callback: Any) -> None:
        """Note that a frame set a callback where another one was set; None is off."""
        index = next((n for n, (other, *_) in enumerate(self.made) if other == frame), None)
        if index is None:
            if (before is None) != (callback is None):
                self.made.append((frame, before, callback is not None))
            return
        _, found, _ = self.made[index]
        del self.made[index:]  # a frame that is left by an exception does not say so
        if callback is not found:
            self.made.append((frame, found, callback is not None))


class GraphWatch:
    """Warns of graphs made or run while capture is installed, and keeps stand-ins out of their way."""

    def __init__(self, observer: Observer, stand_ins: Pausable) -> None:
        self._observer = observer
        self._stand_ins = stand_ins
        self._patches = Patches()
        self._watches_dynamo = False
        self._switches = _Switches()

    def install(self) -> None:
        """Watch the entries to ``torch.jit``, ``torch.export`` and ``torch.compile``."""
        self._switches = _Switches()
        script = sys.modules["torch.jit._script"]
        # Every way to script ends in one of these two, also for a ``script`` that was bound early.
        if hasattr(script, "_script_impl"):
            self._patches.put(script, "_script_impl", self._pausing("scripted"))
        else:
            self._patches.put(torch.jit, "script", self._pausing("scripted"))
        self._patches.put(sys.modules["torch.jit._recursive"], "create_script_module", self._pausing(None))
        for name in ("trace", "trace_module"):
            self._patches.put(torch.jit, name, self._pausing("scripted"))
        if "torch.export" in sys.modules:
            self._patches.put(sys.modules["torch.export"], "export", self._pausing("exported"))
        self._patches.put(torch, "compile", self._compiling)
        self._watch_dynamo()

    def remove(self) -> None:
        """Stop watching."""
        self._patches.restore()
        self._watches_dynamo = False

    def _pausing(self, kind: str | None) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
        def make(function: Callable[..., Any]) -> Callable[..., Any]:
            @functools.wraps(function)
            def pausing(*args: Any, **kwargs: Any) -> Any:
                if kind is not None:
                    self._warn(kind, next(iter((*args, *kwargs.values())), None))
                self._stand_ins.pause()
                try:
                    return function(*args, **kwargs)
                finally:
                    self._stand_ins.go_on()

            return pausing

        return make

    def _compiling(self, function: Callable[..., Any]) -> Callable[..., Any]:
        without_stand_ins = self._pausing(None)(function)

        @functools.wraps(function)
        def compile_(*args: Any, **kwargs: Any) -> Any:
            compiled = without_stand_ins(*args, **kwargs)
            self._watch_dynamo()  # the first use of torch.compile loads it
            return compiled

        return compile_

    def _watch_dynamo(self) -> None:
        frames = sys.modules.get("torch._dynamo.eval_frame")
        if frames is None or self._watches_dynamo:
            return
        self._watches_dynamo = True
        # All compiled functions switch Dynamo on and off through one function, which may have a second name.
        switch = frames.set_eval_frame
        for name in ("set_eval_frame", "_maybe_set_eval_frame"):
            if getattr(frames, name, None) is switch:
                self._patches.put(frames, name, self._switching)

    def _switching(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def switch(callback: Any) -> Any:
            # Off first: Dynamo would compile what follows.
            before = function(None)
            self._switched(sys._getframe(1), before, callback)
            function(callback)
            return before

        return switch

    def _switched(self, frame: FrameType, before: Any, callback: Any) -> None:
        if frame.f_code.co_name == "_maybe_set_eval_frame":
            frame = frame.f_back or frame
        switches = self._switches
        was_on = switches.on()
        switches.switched(id(frame), before, callback)
        if switches.on() and not was_on:
            self._warn("compiled", _function_entered(frame))
            self._stand_ins.pause()
        elif was_on and not switches.on():
            self._stand_ins.go_on()

    def _warn(self, kind: str, what: Any) -> None:
        module = getattr(what, "__module__", None) or ""
        if not self._observer.running or (module.startswith("torch.") and not isinstance(what, torch.nn.Module)):
            return  # PyTorch makes graphs of its own functions, too
        where = getattr(what, "__qualname__", type(what).__qualname__)
        self._observer.problem(kind, where, f"{where} {_TEXTS[kind]}")


def _function_entered(frame: FrameType | None) -> Any:
    """The compiled function or module that the frames of Dynamo's entry are about."""
    found: Any = None
    while frame is not None and str(frame.f_globals.get("__name__", "")).startswith("torch."):
        owner = frame.f_locals.get("self")
        if isinstance(owner, torch.nn.Module):
            return vars(owner).get("_modules", {}).get("_orig_mod", owner)
        found = found or frame.f_locals.get("fn")
        frame = frame.f_back
    return found
