"""All hooks of a MindSpore program together: cells and parameters (L0, mix), functions (L1, mix)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from capture.mindspore.apis import ApiHooks
from capture.mindspore.backward import CellBackwards
from capture.mindspore.cells import CellHooks
from capture.mindspore.gradients import GradientGroups
from capture.mindspore.graph_hooks import GraphHooks
from capture.mindspore.kernels import KernelBackwards, KernelRecorder
from capture.mindspore.passes import BackwardPasses

if TYPE_CHECKING:
    from capture.mindspore.tensors import MindSporeFramework
    from capture.observer import Observer

__all__ = ["MindSporeHooks"]


class MindSporeHooks:
    """Sets the hooks that a level needs and takes off every one of them again.

    Parameters
    ----------
    observer, framework
        Where events go; whose tensors they are about.
    level
        ``L0``, ``L1``, ``L2`` or ``mix``.
    graph
        Taps on compiled cells, None where there are none.
    """

    def __init__(
        self, observer: Observer, framework: MindSporeFramework, *, level: str, graph: GraphHooks | None = None
    ) -> None:
        self._graph = graph
        self._hooks_apis, self._hooks_cells = level in ("L1", "L2", "mix"), level in ("L0", "mix")
        self._passes = BackwardPasses(observer.problem)
        self._backwards = CellBackwards(observer, framework, GradientGroups(observer), self._passes)
        if level == "L2":
            self._apis = ApiHooks(observer, framework, KernelBackwards(observer, self._passes), KernelRecorder)
        else:
            self._apis = ApiHooks(observer, framework, self._backwards)
        self._cells = CellHooks(observer, framework, self._backwards, self._passes)

    def install(self, model: Any) -> None:
        """Set the hooks: on every cell below ``model`` (or below each of a list), and on MindSpore's functions."""
        if self._graph is not None:
            self._graph.start()
            if self._graph.records_all:
                return
        self._passes.install()
        if self._hooks_cells:
            self._cells.install(model)
        if self._hooks_apis:
            self._apis.install(model)

    def finish(self) -> None:
        """Record what no hook brought."""
        if self._graph is not None:
            self._graph.finish()
        self._backwards.reset()
        self._cells.finish()

    def new_step(self) -> None:
        """Let go of what a step left waiting."""
        self._apis.drop_pending()

    def remove(self) -> None:
        """Take them off; a function of MindSpore is the object it was."""
        self._apis.remove()
        self._cells.remove()
        self._passes.remove()

    def never_fired(self) -> list[str]:
        """Paths of cells that were hooked and never called."""
        found = self._cells.never_fired()
        return found if self._graph is None else [path for path in found if not self._graph.has_fired(path)]

    def add_custom(self, module: Any, api_name: str, prefix: str) -> None:
        """Record calls of ``module.api_name`` too."""
        self._apis.add_custom(module, api_name, prefix)

    def remove_custom(self, module: Any, api_name: str) -> None:
        """Undo ``add_custom``."""
        self._apis.remove_custom(module, api_name)
