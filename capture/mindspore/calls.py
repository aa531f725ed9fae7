"""Calls of cells, heard by a stand-in for ``__call__`` of their classes.

Hooks of cells (``register_forward_hook``) are not used: ``jit`` compiles them with the cell and fails, a cell with a
``bprop`` refuses them, and an exception leaves them without a word (2.7.1). The stand-in sees keyword arguments, every
exception, and in GRAPH_MODE the call of the outermost cell; ``construct``, which is what MindSpore parses and compiles,
is left alone.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

from mindspore import nn

from capture.patches import Patches

__all__ = ["Around", "CellCalls"]

Around = Callable[[Callable[..., Any], Any, tuple[Any, ...], dict[str, Any]], Any]
"""``around(original, cell, args, kwargs)`` makes the call and returns its result."""


class CellCalls:
    """Calls of single cells, each with somebody around it."""

    def __init__(self) -> None:
        self._patches = Patches()
        self._patched: set[type] = set()
        self._known: dict[int, tuple[Any, type, Around]] = {}

    def __contains__(self, cell: object) -> bool:
        return id(cell) in self._known

    def add(self, cell: nn.Cell, around: Around) -> None:
        """Put somebody around the calls of a cell; a cell is kept in memory until it is taken out again."""
        owner = _definer(type(cell))
        if owner not in self._patched:
            self._patches.put(owner, "__call__", lambda original: self._stand_in(owner, original))
            self._patched.add(owner)
        self._known[id(cell)] = cell, owner, around

    def remove(self) -> None:
        """Take all out; every class has the ``__call__`` it had."""
        self._known.clear()
        self._patched.clear()
        self._patches.restore()

    def _stand_in(self, owner: type, original: Callable[..., Any]) -> Callable[..., Any]:
        known = self._known

        @functools.wraps(original)
        def __call__(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: N807 (it is one)
            found = known.get(id(self))
            # A class that calls its base's __call__ comes by twice; it is heard where it begins.
            if found is None or found[1] is not owner:
                return original(self, *args, **kwargs)
            return found[2](original, self, args, kwargs)

        return __call__


def _definer(kind: type) -> type:
    """The class whose ``__call__`` an instance of ``kind`` is called by."""
    return next(base for base in kind.__mro__ if "__call__" in vars(base))
