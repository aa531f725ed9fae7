"""Hooks on single tensors of MindSpore, past the methods that mindtorch puts in their place (its ``register_hook`` asks
for an attribute that no tensor has).

Used where MindSpore shows no graph (before 2.7.1). There, functions compiled by ``jit`` take hooked tensors; later
versions compile the hook too and fail, but those have a graph whose nodes can be listened to.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from mindspore._c_expression import PyNativeExecutor_, TensorPy

from capture.mindspore.graph import SHOWS_GRAPH

if TYPE_CHECKING:
    from capture.observer import Observer

__all__ = ["SHOWS_GRAPH", "TensorGroups", "hook", "is_inner", "records_gradients"]

_executor = PyNativeExecutor_.get_instance()
_register: Callable[[Any, Callable[[Any], Any]], int] = TensorPy.register_hook
_remove: Callable[[int], None] = TensorPy.remove_hook
_has_auto_grad: Callable[[Any], bool] = TensorPy._has_auto_grad

# What waits for one gradient: called with it, and with everybody who waits for it.
Watcher = Callable[[Any, "list[Any]"], None]
_MOST_WATCHERS = 1 << 12


def records_gradients() -> bool:
    """Whether what runs now will have a backward."""
    return bool(_executor.requires_grad())


def is_inner(tensor: Any) -> bool:
    """Whether an operation with a backward made the tensor; False for leaves and constants."""
    return bool(_has_auto_grad(tensor))


def hook(tensor: Any, callback: Callable[[Any], None]) -> bool:
    """Call back with the tensor's gradients; False when it takes none."""
    if not (is_inner(tensor) or getattr(tensor, "requires_grad", False)):
        return False

    def observe(gradient: Any) -> Any:
        callback(gradient)
        return gradient  # MindSpore takes what a hook returns for the gradient

    _register(tensor, observe)
    return True


class TensorGroups:
    """Watchers of tensors: one hook a tensor, however many calls it is an input or an output of.

    Watchers of one tensor are called in reverse order of watching: of two modules that return the same tensor the outer
    one comes first, and a module that takes a tensor is over before the one that made it begins.

    Parameters
    ----------
    observer
        Says whether anything is recorded now, and takes problems.
    """

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._groups: dict[int, _Group] = {}
        self._leaves: list[_Group] = []

    def watch(self, tensor: Any, watcher: Watcher, *, anew: bool = False) -> None:
        """Call the watcher with the tensor's gradient when it is complete: the sum over all of its uses.

        Parameters
        ----------
        anew
            The tensor is another one in the graph than before, though the same object: it was written to in place.
        """
        group = self._groups.get(id(tensor))
        if anew or group is None or group.tensor() is not tensor:
            group = self._put(tensor)
        group.watchers.append(watcher)

    def fire(self, watchers: list[Watcher], gradient: Any) -> None:
        """Call watchers with a gradient."""
        if not self._observer.listening:
            return
        for watcher in watchers:
            try:
                watcher(gradient, watchers)
            except Exception as error:  # noqa: BLE001 (a hook never raises)
                self.failed("watcher", error)

    def reset(self) -> None:
        """Take the hooks off leaves, which outlive a step. Hooks in graphs die with their graphs."""
        leaves, self._leaves, self._groups = self._leaves, [], {}
        for group in leaves:
            group.remove()

    def failed(self, where: str, error: BaseException) -> None:
        """Report; the training goes on."""
        self._observer.problem(f"gradient hook {type(error).__name__}", where, str(error))

    def _put(self, tensor: Any) -> _Group:
        key = id(tensor)
        group = _Group(self, weakref.ref(tensor, lambda dead: self._forget(key, dead)))
        group.number = _register(tensor, group)
        self._groups[key] = group
        if not is_inner(tensor):
            self._leaves.append(group)
        return group

    def _forget(self, key: int, dead: weakref.ref[Any]) -> None:
        """A tensor has died; its place may have been taken since. Its gradient may still come."""
        group = self._groups.get(key)
        if group is not None and group.tensor is dead:
            del self._groups[key]


class _Group:
    """Watchers of one tensor. It holds neither the tensor nor anything of its graph."""

    __slots__ = ("groups", "number", "tensor", "watchers")

    def __init__(self, groups: TensorGroups, tensor: weakref.ref[Any]) -> None:
        self.groups, self.tensor = groups, tensor
        self.number: int | None = None
        # A leaf has many graphs, some of which never run backward.
        self.watchers: deque[Watcher] = deque(maxlen=_MOST_WATCHERS)

    def remove(self) -> None:
        """Take the hook off; a tensor that has died took it along."""
        if self.number is not None and self.tensor() is not None:
            _remove(self.number)

    def __call__(self, gradient: Any) -> Any:
        watchers = list(reversed(self.watchers))
        self.watchers.clear()
        self.groups.fire(watchers, gradient)
        return gradient  # MindSpore takes what a hook returns for the gradient
