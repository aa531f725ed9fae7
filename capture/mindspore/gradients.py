"""Listening to gradients of tensors: one group a node of the graph; who came last is called first.

``Tensor.register_hook`` is never used: a function compiled by ``jit`` that is given such a tensor (or a parameter with
a hook) compiles the hook too, and fails. A hook on a node is seen by the backward only.

Nothing that a node keeps may reach a node or a tensor of the graph: such a cycle would never be collected. A group
holds callbacks only, and lives as long as its node.
"""

from __future__ import annotations

import weakref
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mindspore import Tensor

from capture.mindspore.graph import edge_of

if TYPE_CHECKING:
    from capture.observer import Observer

__all__ = ["GradientGroups"]

Fire = Callable[[Any], None]


class GradientGroups:
    """Listens to gradients; the hooks of cells and of functions share one.

    Parameters
    ----------
    observer
        Says whether anything is recorded now, and takes problems.

    Notes
    -----
    ``watch(tensor, fire)`` is the interface for everybody. Watchers of one tensor are called in reverse order of
    watching: of two cells that return the same tensor, the outer one comes first.
    """

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._groups: weakref.WeakValueDictionary[int, _Group] = weakref.WeakValueDictionary()
        self._before: list[Callable[[int], None]] = []

    def watch(self, tensor: Any, fire: Fire) -> bool:
        """Call ``fire(gradient)`` each time the gradient of a tensor, as the tensor is now, is complete.

        Hooks that the user has put on the tensor have run by then; later in-place changes of it do not matter. ``fire``
        must reach neither the tensor nor anything of its graph; what it raises is reported and goes no further.

        Returns
        -------
        bool
            False when the tensor has no gradient, or is a leaf, whose node is never run: gradients of leaves are what
            ``value_and_grad`` returns.
        """
        try:
            edge = edge_of(tensor) if isinstance(tensor, Tensor) else None
            if edge is None or isinstance(edge, str):
                return False
            self._group(edge[0], tensor._grad_node).watchers.append((edge[1], fire))
        except Exception as error:  # noqa: BLE001 (a hook never raises)
            self.failed("watch", error)
            return False
        return True

    def before_events(self, callback: Callable[[int], None]) -> None:
        """Call back with a node's sequence number before its watchers, and at every ``advance``."""
        self._before.append(callback)

    def advance(self, sequence: int) -> None:
        """Say that the node with this sequence number runs: what was made later is over.

        To be called before a backward event is recorded that no watcher brings (a hook on a node): backward passes of
        cells that could not know their end are recorded before it.
        """
        for callback in self._before:
            callback(sequence)

    def fire(self, watchers: list[tuple[Fire, Any]]) -> None:
        """Call watchers with their gradients."""
        if not self._observer.listening:
            return
        for fire, gradient in watchers:
            try:
                fire(gradient)
            except Exception as error:  # noqa: BLE001 (a hook never raises)
                self.failed("watcher", error)

    def failed(self, where: str, error: BaseException) -> None:
        """Report; the training goes on."""
        self._observer.problem(f"gradient hook {type(error).__name__}", where, str(error))

    def _group(self, sequence: int, node: Any) -> _Group:
        group = self._groups.get(sequence)
        if group is None:
            group = self._groups[sequence] = _Group(self, sequence)
            node.register_prehook(group)
        return group


class _Group:
    """Watchers of the outputs of one node. Called before the node runs."""

    __slots__ = ("__weakref__", "groups", "sequence", "watchers")

    def __init__(self, groups: GradientGroups, sequence: int) -> None:
        self.groups, self.sequence = groups, sequence
        self.watchers: list[tuple[int, Fire]] = []

    def __call__(self, gradients: tuple[Any, ...]) -> None:
        groups = self.groups
        try:
            groups.advance(self.sequence)
        except Exception as error:  # noqa: BLE001 (a hook never raises)
            groups.failed("advance", error)
        groups.fire(
            [(fire, gradients[number]) for number, fire in reversed(self.watchers) if gradients[number] is not None]
        )
