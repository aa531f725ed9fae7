"""Hooks on cells: forward by a stand-in for their call, backward by listening to the graph (see backward)."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mindspore import GRAPH_MODE, get_context, nn

from capture.mindspore.calls import CellCalls
from capture.mindspore.jit import tracing
from capture.mindspore.parameters import ParameterGradients, own_parameters
from capture.module_calls import ModuleListener, models_of

if TYPE_CHECKING:
    from capture.mindspore.backward import CellBackwards
    from capture.mindspore.graph import CallInputs
    from capture.mindspore.passes import BackwardPasses
    from capture.mindspore.tensors import MindSporeFramework
    from capture.observer import ModuleCall, Observer

__all__ = ["CellHooks"]

_NEVER_CALLED = (nn.CellList, nn.CellDict)
_GRAPH_MODE = (
    "GRAPH_MODE: cells inside a graph are not called one by one, so only what is called from outside is recorded. "
    "set_context(mode=PYNATIVE_MODE) records all; save and save_grad of capture.mindspore work inside a graph"
)


class _Running:
    """One call of a cell that has begun and not ended."""

    __slots__ = ("call", "inputs")

    def __init__(self, call: ModuleCall, inputs: CallInputs | None) -> None:
        self.call, self.inputs = call, inputs


class CellHooks:
    """Sets and removes what listens to a model's cells and to the gradients of their parameters.

    Parameters
    ----------
    observer
        Where events go.
    framework
        Whose tensors they are about.
    backwards
        Follows the backward of calls; hooks of functions share it.
    passes
        Brings the gradients of parameters, while somebody has it installed.
    """

    def __init__(
        self, observer: Observer, framework: MindSporeFramework, backwards: CellBackwards, passes: BackwardPasses
    ) -> None:
        self._observer, self._framework, self._backwards = observer, framework, backwards
        self._parameters = ParameterGradients(observer)
        passes.listen(on_result=self._parameters.arrived)
        self._calls = CellCalls()
        self._is_tracing = tracing()
        self._silent: dict[str, None] = {}
        self._had_backward = False

    # --- set and remove ----------------------------------------------------------------------------------------------

    def install(self, models: Any) -> None:
        """Listen to every cell below a model, or below each model of a list or tuple; not to the models themselves."""
        self.remove()
        if get_context("mode") == GRAPH_MODE:
            self._observer.problem("graph mode", "", _GRAPH_MODE)
        for base, model in models_of(models):
            try:
                self._hook_all(model, base)
            except Exception as error:  # noqa: BLE001 (cells_and_names is the model's own, and may be replaced)
                self._observer.problem("not hooked", base or type(model).__name__, f"{type(error).__name__}: {error}")

    def _hook_all(self, model: nn.Cell, base: str) -> None:
        for path, cell in model.cells_and_names():
            if cell is not model and cell not in self._calls:
                self._hook(cell, f"{base}{path}")

    def finish(self) -> None:
        """Record what nothing brought; called before recording stops."""
        self._parameters.finish(had_backward=self._had_backward)

    def remove(self) -> None:
        """Take everything off again."""
        self._calls.remove()
        self._parameters.forget()
        self._silent.clear()
        self._had_backward = False

    def never_fired(self) -> list[str]:
        """Paths of cells that were listened to and never called: unused, or only their ``construct`` was."""
        return list(self._silent)

    def _hook(self, cell: nn.Cell, path: str) -> None:
        prefix = f"Cell.{path}.{type(cell).__name__}"
        try:
            self._calls.add(cell, _Hook(self, path, prefix))
            self._parameters.add(prefix, cell)
        except Exception as error:  # noqa: BLE001 (a class of its own mind costs itself only)
            self._observer.problem("not hooked", path, str(error))
            return
        if not isinstance(cell, _NEVER_CALLED):
            self._silent[path] = None

    # --- events ------------------------------------------------------------------------------------------------------

    def enter(self, hook: _Hook, args: tuple[Any, ...], kwargs: dict[str, Any]) -> _Running | None:
        """A cell is called; None when nothing of it is recorded."""
        self._silent.pop(hook.path, None)
        observer = self._observer
        if not observer.running or observer.local.busy:
            return None
        if self._is_tracing():
            observer.problem("traced", hook.path, "calls while jit(capture_mode='trace') looks are not recorded")
            return None
        call = observer.begin_module(hook.prefix, args, kwargs)
        if call is None:
            return None
        wants_backward = observer.wants_backward(call)
        return _Running(call, self.attempt(hook.path, self._backwards.begin, args) if wants_backward else None)

    def leave(self, hook: _Hook, running: _Running, cell: nn.Cell, output: Any) -> None:
        """A cell's call has returned."""
        self._observer.end_module(running.call, output, own_parameters(cell))
        self._parameters.add(hook.prefix, cell)
        if running.inputs is not None:
            self._backwards.end(running.inputs, output, _CellListener(self, running.call))

    def abort(self, running: _Running) -> None:
        """A cell's call has raised."""
        self._observer.abort_module(running.call)

    def attempt(self, where: str, work: Callable[..., Any], *details: Any) -> Any:
        """Do work of a hook; what it raises is reported, and the training goes on."""
        try:
            return work(*details)
        except Exception as error:  # noqa: BLE001 (a hook never raises)
            self._observer.problem(f"cell hook {type(error).__name__}", where, str(error))
            return None

    def give_back(self) -> None:
        """Raise what a kernel of the program raised while capture waited for it."""
        self._framework.give_back()

    def note_backward(self) -> None:
        """The backward of a cell has begun."""
        self._had_backward = True

    @property
    def observer(self) -> Observer:
        """Where events go."""
        return self._observer


class _Hook:
    """Around the calls of one cell."""

    __slots__ = ("hooks", "path", "prefix")

    def __init__(self, hooks: CellHooks, path: str, prefix: str) -> None:
        self.hooks, self.path, self.prefix = hooks, path, prefix

    def __call__(
        self, original: Callable[..., Any], cell: nn.Cell, args: tuple[Any, ...], kwargs: dict[str, Any]
    ) -> Any:
        hooks = self.hooks
        running = hooks.attempt(self.path, hooks.enter, self, args, kwargs)
        try:
            output = original(cell, *args, **kwargs)
        except BaseException:
            if running is not None:
                hooks.attempt(self.path, hooks.abort, running)
            raise
        if running is not None:
            hooks.attempt(self.path, hooks.leave, self, running, cell, output)
            hooks.give_back()
        return output


class _CellListener(ModuleListener):
    """Notes that there was a backward."""

    __slots__ = ("hooks",)

    def __init__(self, hooks: CellHooks, call: ModuleCall) -> None:
        super().__init__(hooks.observer, call)
        self.hooks = hooks

    def opened(self) -> None:
        """The cell's backward begins."""
        self.hooks.note_backward()
        super().opened()
