"""Communication: results may stand in the arguments, and of an asynchronous call only once somebody waited for it."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from capture.mindspore.wrappers import Api, ApiRecorder, original_of
from capture.pending import PendingWorks

if TYPE_CHECKING:
    from capture.observer import ApiCall

__all__ = ["CommunicationApi", "CommunicationHandles"]

# Each has classes of its own, or those of another, from version to version.
_PLACES = (
    "mindspore.communication.comm_func",
    "mindspore.ops.function.comm_func",
    "mindspore.mint.distributed.distributed",
)
_HANDLES = ("CommHandle", "CommHandle_")


class CommunicationHandles(PendingWorks):
    """Watches ``CommHandle.wait``, and what ``P2POp`` is given."""

    def install(self) -> None:
        """Begin to watch."""
        modules = [sys.modules[place] for place in _PLACES if place in sys.modules]
        for handle in {vars(module)[name] for module in modules for name in _HANDLES if name in vars(module)}:
            self.watch(handle)
        for operation in {module.P2POp for module in modules if hasattr(module, "P2POp")}:
            self._patches.put(operation, "__new__", _making_originals)
            self._patches.put(operation, "__init__", _holding_originals)


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
