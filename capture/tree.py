"""Who called whom: the stack of running modules of each thread, and the parents that construct.json records."""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["CallState", "ThreadState", "backward_name"]

_FORWARD, _BACKWARD = ".forward.", ".backward."


class CallState:
    """Which modules run, and whether capture itself is at work.

    Attributes
    ----------
    busy
        Capture's own code runs: what it calls is nobody's model.
    in_api
        A recorded API runs: APIs inside it are parts of it and not recorded.
    stack
        Entry keys of the running modules, innermost last.
    root
        Parent of what runs outside of any module: ``optimizer`` inside an optimizer's step, else None.
    """

    def __init__(self) -> None:
        self.busy = False
        self.in_api = False
        self.stack: list[str] = []
        self.root: str | None = None

    def parent(self) -> str | None:
        """Key of the innermost running module."""
        return self.stack[-1] if self.stack else self.root

    def leave(self, name: str) -> None:
        """Take a module off, and with it what was left on top: a forward ended by an exception tells nobody."""
        if name in self.stack:
            del self.stack[self.stack.index(name) :]

    @contextmanager
    def at_work(self) -> Iterator[None]:
        """Capture's own operations, in the body, are not recorded."""
        before, self.busy = self.busy, True
        try:
            yield
        finally:
            self.busy = before


class ThreadState(CallState, threading.local):
    """What belongs to one thread."""


def backward_name(forward: str | None) -> str | None:
    """The backward key of a module's forward key; anything else is its own (``optimizer``, a backward key, None)."""
    if forward is None or _FORWARD not in forward:
        return forward
    before, _, number = forward.rpartition(_FORWARD)
    return f"{before}{_BACKWARD}{number}"
