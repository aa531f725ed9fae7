"""Functions that MindSpore compiles: their calls are recorded, and the compiler never meets a stand-in.

``jit`` and graph mode parse the source of a function and look its names up where they stand. While that happens the
original functions are in their places. Where the graph is made by running the function (``capture_mode`` trace), what
runs is not recorded; where it is made of bytecode, the originals stay in place for the whole call.
"""

from __future__ import annotations

import functools
import sys
import threading
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, Protocol

from mindspore import _c_expression as compiled
from mindspore.nn import Cell

from capture.mindspore.wrappers import Api
from capture.patches import Patches

if TYPE_CHECKING:
    from capture.mindspore.wrappers import ApiRecorder

__all__ = ["BytecodeWatch", "JitWatch", "Pausable", "tracing"]


class Pausable(Protocol):
    """What keeps out of the way while a graph is made."""

    def pause(self) -> None:
        """Put the original functions in their places."""

    def go_on(self) -> None:
        """Undo one pause."""


class _Noted(threading.local):
    """The arguments of the call that is about to be compiled, as the program gave them."""

    def __init__(self) -> None:
        self.call: tuple[Any, tuple[Any, ...], dict[str, Any]] | None = None


class BytecodeWatch:
    """Puts stand-ins aside while a function under ``jit(capture_mode="bytecode")`` runs; its graph is made meanwhile.

    Parameters
    ----------
    stand_ins
        Keep out of the way.
    on_problem
        Told that such a call is not recorded.
    """

    def __init__(self, stand_ins: Pausable, on_problem: Callable[[str, str, str], None]) -> None:
        self._stand_ins, self._problem = stand_ins, on_problem
        self._patches = Patches()
        self._installed = False

    def install(self) -> None:
        """Watch; without effect when it is done."""
        bytecode = getattr(_module("graph._utils.pijit_context", "common._pijit_context"), "PIJitCaptureContext", None)
        if bytecode is None or self._installed:
            return
        self._installed = True
        self._patches.put(bytecode, "__enter__", self._entering)
        self._patches.put(bytecode, "__exit__", self._leaving)

    def remove(self) -> None:
        """Put everything back."""
        self._patches.restore()
        self._installed = False

    def _entering(self, enter: Callable[..., Any]) -> Callable[..., Any]:
        stand_ins, problem = self._stand_ins, self._problem

        @functools.wraps(enter)
        def __enter__(context: Any) -> Any:  # noqa: N807 (that is its name)
            where = f"Jit.{getattr(context.fn, '__name__', '')}"
            problem("bytecode", where, "calls of jit(capture_mode='bytecode') are not recorded, nor cells in them")
            stand_ins.pause()
            try:
                return enter(context)
            except BaseException:
                stand_ins.go_on()
                raise

        return __enter__

    def _leaving(self, leave: Callable[..., Any]) -> Callable[..., Any]:
        stand_ins = self._stand_ins

        @functools.wraps(leave)
        def __exit__(context: Any, *error: Any) -> Any:  # noqa: N807 (that is its name)
            try:
                return leave(context, *error)
            finally:
                stand_ins.go_on()

        return __exit__


class JitWatch:
    """Records calls of compiled functions, and says when a graph is made.

    Parameters
    ----------
    recorder
        Where calls go.
    stand_ins
        Are put aside while a graph is made.
    """

    def __init__(self, recorder: ApiRecorder, stand_ins: Pausable) -> None:
        self._recorder, self._observer, self._stand_ins = recorder, recorder.observer, stand_ins
        self._patches = Patches()
        self._bytecode = BytecodeWatch(stand_ins, self._problem)
        self._noted = _Noted()

    def install(self) -> None:
        """Watch the executors of compiled functions, wherever this version of MindSpore has them."""
        api = _module("graph.api", "common.api")
        if hasattr(api, "_JitExecutor"):
            self._patches.put(api._JitExecutor, "__call__", self._calling)
            self._patches.put(api, "_handle_func_args", self._noting)
        else:
            text = "this MindSpore runs compiled functions elsewhere: their calls are not recorded"
            self._observer.problem("jit not followed", "", text)
        for name in ("JitExecutor_", "GraphExecutor_"):
            executor = getattr(compiled, name, None)
            if hasattr(executor, "compile"):
                self._patches.put(executor, "compile", self._compiling)
        self._bytecode.install()

    def remove(self) -> None:
        """Put everything back."""
        self._bytecode.remove()
        self._patches.restore()
        self._noted = _Noted()

    def _noting(self, handle: Callable[..., Any]) -> Callable[..., Any]:
        """MindSpore makes keyword arguments positional before it calls; they are recorded as they were given."""

        @functools.wraps(handle)
        def note(func: Any, *args: Any, **kwargs: Any) -> Any:
            if kwargs and self._observer.running:
                self._noted.call = func, args, kwargs
            return handle(func, *args, **kwargs)

        return note

    def _calling(self, call: Callable[..., Any]) -> Callable[..., Any]:
        observer, recorder = self._observer, self._recorder
        local = observer.local

        @functools.wraps(call)
        def record(executor: Any, *args: Any, **kwargs: Any) -> Any:
            noted, self._noted.call = self._noted.call, None
            if not observer.running or local.in_api or local.busy:
                return call(executor, *args, **kwargs)
            api = Api(lambda *_, **__: call(executor, *args, **kwargs), "Jit", _name_of(executor), is_closed=False)
            if recorder.is_making_a_graph(api):
                return call(executor, *args, **kwargs)
            given = (args, kwargs) if noted is None or noted[0] is not executor.fn else noted[1:]
            return recorder.record(api, *given)

        return record

    def _compiling(self, compile_graph: Callable[..., Any]) -> Callable[..., Any]:
        stand_ins = self._stand_ins

        def compile(executor: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: A001 (that is its name)
            stand_ins.pause()
            try:
                return compile_graph(executor, *args, **kwargs)
            finally:
                stand_ins.go_on()

        return compile

    def _problem(self, kind: str, where: str, text: str) -> None:
        """Of the program's own calls while it is recorded."""
        if self._observer.running and not self._observer.local.busy:
            self._observer.problem(kind, where, text)


def tracing() -> Callable[[], bool]:
    """What tells whether MindSpore makes a graph of the operations that run now."""
    context = getattr(_module("graph.jit_context", "common.jit_context"), "jit_context", None)
    if context is None:
        return lambda: False
    return lambda: context() is not None


def _module(*names: str) -> Any:
    """The first of these modules of MindSpore that is loaded: what 2.10 moved, it warns about where it was."""
    return next((sys.modules[f"mindspore.{name}"] for name in names if f"mindspore.{name}" in sys.modules), None)


def _name_of(executor: Any) -> str:
    """The function's name, or the class of the cell whose ``construct`` it is."""
    owner, name = executor.obj, str(executor.fn.__name__)
    return type(owner).__name__ if isinstance(owner, Cell) and name == "construct" else name
