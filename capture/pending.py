"""Asynchronous communication: what a call has brought is known only once somebody waited for its handles."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from capture.patches import Patches

if TYPE_CHECKING:
    from capture.observer import ApiCall, Observer

__all__ = ["PendingWorks"]


class _Pending:
    """A call whose handles are not all waited for, with what it writes to."""

    __slots__ = ("call", "handles", "values")

    def __init__(self, call: ApiCall, values: Any, handles: list[Any]) -> None:
        self.call, self.values, self.handles = call, values, handles


class PendingWorks:
    """Asynchronous calls under way. The only place where capture holds tensors: until wait, stop or step.

    Nobody is waited for on the user's behalf (msprobe does), because that would order what the program left unordered.

    Parameters
    ----------
    observer
        Where outputs go, and what is said of calls that nobody waited for.
    """

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._patches = Patches()
        # The handles are held as well, so that a number in here means the object it was taken from.
        self._pending: dict[int, list[_Pending]] = {}

    def watch(self, owner: Any) -> None:
        """Hear of every ``wait`` of a class of handles, until :meth:`remove`."""
        self._patches.put(owner, "wait", self._watching)

    def remove(self) -> None:
        """Stop watching."""
        self._patches.restore()

    def add(self, call: ApiCall, values: Any, handles: list[Any]) -> None:
        """Have the values recorded as the call's output when all handles have been waited for."""
        pending = _Pending(call, values, handles)
        for handle in handles:
            self._pending.setdefault(id(handle), []).append(pending)

    def drop(self) -> None:
        """Let go of calls that nobody waited for: their output is not known to be there."""
        left = {id(pending): pending for waiting in self._pending.values() for pending in waiting}
        self._pending = {}
        for pending in left.values():
            text = "nobody waited for this call before the step ended: its output is not captured"
            self._observer.problem("not waited", pending.call.forward, text)
            self._observer.fail_api(pending.call)

    def _watching(self, wait: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(wait)
        def watched(handle: Any, /, *args: Any, **kwargs: Any) -> Any:
            result = wait(handle, *args, **kwargs)
            if self._pending:
                self._waited(handle)
            return result

        return watched

    def _waited(self, handle: Any) -> None:
        for pending in self._pending.pop(id(handle), ()):
            pending.handles = [other for other in pending.handles if other is not handle]
            if not pending.handles:
                self._observer.end_api(pending.call, pending.values)
