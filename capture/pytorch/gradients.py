"""Listening to gradients of tensors: one group a node of the graph; who came last is called first.

Nothing that a node keeps may reach a node or a tensor of the graph: such a cycle would never be collected. A group
holds callbacks only, and lives as long as its node.
"""

from __future__ import annotations

import threading
import weakref
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

import torch

__all__ = ["GradientGroups", "GradientObserver", "is_transformed"]

Fire = Callable[[Any], None]
# A leaf outlives its graphs: what a forward without a backward leaves there is bounded.
_MOST_WATCHERS_OF_A_LEAF = 64


class GradientObserver(Protocol):
    """What hooks on gradients need of :class:`capture.observer.Observer`."""

    @property
    def listening(self) -> bool:
        """Whether gradients are recorded now."""

    @property
    def local(self) -> Any:
        """State of the thread, with ``busy``."""

    @property
    def problem(self) -> Callable[[str, str, str], None]:
        """Says a failure, once a kind."""


class GradientGroups:
    """Listens to gradients; the hooks of modules and of APIs share one.

    Parameters
    ----------
    observer
        Says whether anything is recorded now, and takes problems.

    Notes
    -----
    ``watch(tensor, fire)`` is the interface for everybody. Watchers of one tensor are called in reverse order of
    watching: of two modules that return the same tensor, the outer one comes first.
    """

    def __init__(self, observer: GradientObserver) -> None:
        self._observer = observer
        self._leaves: dict[int, _LeafGroup] = {}
        self._key = f"capture.gradients.{id(self)}"
        self._before: list[Callable[[int, int | None], None]] = []

    def watch(self, tensor: Any, fire: Fire) -> bool:
        """Call ``fire(gradient)`` each time the gradient of a tensor, as the tensor is now, is complete.

        Hooks that the user has put on the tensor have run by then; later in-place changes of it do not matter. ``fire``
        must reach neither the tensor nor anything of its graph; what it raises is reported and goes no further.

        Returns
        -------
        bool
            False when the tensor has no gradient, or none that can be listened to (inside ``vmap`` and its like).
        """
        try:
            if not isinstance(tensor, torch.Tensor) or not tensor.requires_grad or is_transformed():
                return False
            node = tensor.grad_fn
            if node is None:
                self._leaf_group(tensor).watchers.append(fire)
            else:
                self._group(node).watchers.append((tensor.output_nr, fire))
        except Exception as error:  # noqa: BLE001 (a hook never raises)
            self.failed("watch", error)
            return False
        return True

    def before_events(self, callback: Callable[[int, int | None], None]) -> None:
        """Call back with a node's sequence number and thread before its watchers, and at every ``advance``."""
        self._before.append(callback)

    def advance(self, sequence: int, thread: int | None = None) -> None:
        """Say that the node with this sequence number runs: what was made later in the same thread is over.

        To be called before a backward event is recorded that no watcher brings (a hook on a node): module backwards
        that could not know their end are recorded before it.

        Parameters
        ----------
        sequence
            ``node._sequence_nr()``.
        thread
            ``threading.get_ident()`` of the forward that made the node, as each thread counts for itself; None when all
            of the model's forward runs in one thread.
        """
        for callback in self._before:
            callback(sequence, thread)

    def fire(self, watchers: list[tuple[Fire, Any]]) -> None:
        """Call watchers with their gradients."""
        if not self._observer.listening:
            return
        for fire, gradient in watchers:
            try:
                fire(gradient)
            except Exception as error:  # noqa: BLE001 (a hook never raises)
                self.failed("watcher", error)

    def reset(self) -> None:
        """Take the hooks off leaves. Hooks in graphs die with their graphs."""
        leaves, self._leaves = self._leaves, {}
        for group in leaves.values():
            group.handle.remove()

    def failed(self, where: str, error: BaseException) -> None:
        """Report; the training goes on."""
        self._observer.problem(f"gradient hook {type(error).__name__}", where, str(error))

    def _group(self, node: Any) -> _Group:
        group = node.metadata.get(self._key)
        if group is None:
            group = node.metadata[self._key] = _Group(self, node._sequence_nr())
            node.register_prehook(group)
        return group  # type: ignore[no-any-return]

    def _leaf_group(self, tensor: torch.Tensor) -> _LeafGroup:
        group = self._leaves.get(id(tensor))
        if group is None or group.tensor() is not tensor:
            group = self._leaves[id(tensor)] = _LeafGroup(self, tensor, partial(_forget, self._leaves, id(tensor)))
        return group


def is_transformed() -> bool:
    """Whether a transform of functorch runs: its tensors have gradients of their own making."""
    return torch._C._functorch.peek_interpreter_stack() is not None


class _Group:
    """Watchers of the outputs of one node. Called by the engine before the node runs."""

    __slots__ = ("groups", "sequence", "thread", "watchers")

    def __init__(self, groups: GradientGroups, sequence: int) -> None:
        self.groups, self.sequence, self.thread = groups, sequence, threading.get_ident()
        self.watchers: list[tuple[int, Fire]] = []

    def __call__(self, gradients: tuple[Any, ...]) -> None:
        groups = self.groups
        try:
            groups.advance(self.sequence, self.thread)
        except Exception as error:  # noqa: BLE001 (a hook never raises)
            groups.failed("advance", error)
        groups.fire(
            [(fire, gradients[number]) for number, fire in reversed(self.watchers) if gradients[number] is not None]
        )


class _LeafGroup:
    """Watchers of one leaf. A leaf has many graphs: they are told about the next gradient only."""

    __slots__ = ("groups", "handle", "tensor", "watchers")
    # Saying so keeps torch.save from warning about a hook.
    __torch_unserializable__ = True

    def __init__(self, groups: GradientGroups, tensor: torch.Tensor, on_death: Callable[[Any], None]) -> None:
        self.groups, self.tensor = groups, weakref.ref(tensor, on_death)
        self.watchers: deque[Fire] = deque(maxlen=_MOST_WATCHERS_OF_A_LEAF)
        self.handle: Any = tensor.register_hook(self)  # type: ignore[no-untyped-call]

    def __call__(self, gradient: Any) -> None:
        watchers = [(fire, gradient) for fire in reversed(self.watchers)]
        self.watchers.clear()
        self.groups.fire(watchers)


def _forget(leaves: dict[int, _LeafGroup], key: int, tensor: weakref.ref[torch.Tensor]) -> None:
    """A leaf has died; its place may have been taken since."""
    group = leaves.get(key)
    if group is not None and group.tensor is tensor:
        del leaves[key]
