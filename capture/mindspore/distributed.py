"""Communication: results may stand in the arguments, and of an asynchronous call only once somebody waited for it."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from capture.mindspore.wrappers import Api, ApiRecorder, original_of
from capture.patches import Patches

if TYPE_CHECKING:
    from capture.observer import ApiCall, Observer

__all__ = ["CommunicationApi", "PendingWorks"]

# Each has classes of its own, or those of another, from version to version.
_PLACES = (
    "mindspore.communication.comm_func",
    "mindspore.ops.function.comm_func",
    "mindspore.mint.distributed.distributed",
)


class _Pending:
    """A call whose handles are not all waited for, with what it writes to."""

    __slots__ = ("call", "handles", "values")

    def __init__(self, call: ApiCall, values: Any, handles: list[Any]) -> None:
        self.call, self.values, self.handles = call, values, handles


class PendingWorks:
    """Asynchronous calls under way. The only place where capture holds tensors: until wait, stop or step.

    Nobody is waited for on the user's behalf (msprobe does), because that would order what the program left unordered.
    """

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._patches = Patches()
        # The handles are held as well, so that a number in here means the object it was taken from.
        self._pending: dict[int, list[_Pending]] = {}

    def install(self) -> None:
        """Watch ``CommHandle.wait``, and what ``P2POp`` is given."""
        modules = [sys.modules[place] for place in _PLACES if place in sys.modules]
        for handle in {vars(module)[name] for module in modules for name in _HANDLES if name in vars(module)}:
            self._patches.put(handle, "wait", self._watching)
        for operation in {module.P2POp for module in modules if hasattr(module, "P2POp")}:
            self._patches.put(operation, "__new__", _making_originals)
            self._patches.put(operation, "__init__", _holding_originals)

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


class CommunicationApi(Api):
    """One function of ``mint.distributed`` or ``communication.comm_func``."""

    __slots__ = ("_pending",)

    def __init__(self, original: Callable[..., Any], prefix: str, name: str, pending: PendingWorks) -> None:
        super().__init__(original, prefix, name)
        self._pending = pending

    def finish(
        self, recorder: ApiRecorder, call: ApiCall, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any
    ) -> None:
        """Record the outcome, now or when the handles that were returned have been waited for.

        Functions of ``mint.distributed`` write to their arguments, which are the outcome then.
        """
        values = (*args, *kwargs.values()) if self.prefix == "MintDistributed" else output
        parts = output if isinstance(output, (tuple, list)) else (output,)
        handles = [part for part in parts if hasattr(part, "wait")]
        if handles and call.entry is not None:
            self._pending.add(call, values, handles)
        else:
            recorder.observer.end_api(call, values)


def _making_originals(new: Any) -> Any:
    """Stand in for ``P2POp.__new__``, which asks whether the function is ``isend`` or ``irecv`` itself."""
    function = getattr(new, "__func__", new)

    @functools.wraps(function)
    def make(cls: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
        return function(cls, original_of(op), *args, **kwargs)

    return staticmethod(make)


def _holding_originals(init: Callable[..., None]) -> Callable[..., None]:
    """Stand in for ``P2POp.__init__``: what an operation holds outlives capture."""

    @functools.wraps(init)
    def hold(operation: Any, op: Any, *args: Any, **kwargs: Any) -> None:
        init(operation, original_of(op), *args, **kwargs)

    return hold


_HANDLES = ("CommHandle", "CommHandle_")
