"""Communication: results stand in the arguments, and of an asynchronous call only once somebody waited for it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from capture.mindspore.wrappers import Api, ApiRecorder, original_of
from capture.pending import PendingWorks

if TYPE_CHECKING:
    from capture.observer import ApiCall, Observer

__all__ = ["KNOWN_BY_IDENTITY", "BackendWorks", "CommunicationApi", "holding_originals"]

# ``batch_isend_irecv`` asks whether the function of a P2POp is one of these.
KNOWN_BY_IDENTITY = frozenset(("torch.distributed.distributed_c10d", name) for name in ("isend", "irecv"))


class BackendWorks(PendingWorks):
    """Watches each class of works from its first work on: which there are is up to the backend."""

    def __init__(self, observer: Observer) -> None:
        super().__init__(observer)
        self._watched: set[type] = set()

    def add(self, call: ApiCall, values: Any, handles: list[Any]) -> None:
        """Have the values recorded as the call's output when all handles have been waited for."""
        super().add(call, values, handles)
        for handle in handles:
            owner = next(base for base in type(handle).__mro__ if "wait" in vars(base))
            if owner not in self._watched:
                self._watched.add(owner)
                self.watch(owner)

    def drop(self) -> None:
        """Let go of calls that nobody waited for, and stop watching."""
        self._watched.clear()
        self.remove()
        super().drop()


def holding_originals(method: Any) -> Any:
    """Stand in for ``P2POp.__new__`` and ``__init__``: what an operation holds is compared by identity, also later."""
    function = method.__func__ if isinstance(method, staticmethod) else method

    @functools.wraps(function)
    def hold(operation: Any, op: Any, *args: Any, **kwargs: Any) -> Any:
        return function(operation, original_of(op), *args, **kwargs)

    return staticmethod(hold) if isinstance(method, staticmethod) else hold


class CommunicationApi(Api):
    """A function of ``torch.distributed``."""

    __slots__ = ("_pending",)

    def __init__(self, original: Callable[..., Any], prefix: str, name: str, pending: PendingWorks) -> None:
        super().__init__(original, prefix, name)
        self._pending = pending

    def finish(
        self, recorder: ApiRecorder, call: ApiCall, args: tuple[Any, ...], kwargs: Mapping[str, Any], output: Any
    ) -> None:
        """Record the arguments as the output, now or when the works that were returned have been waited for."""
        values = (*args, *kwargs.values())
        works = [work for work in (output if isinstance(output, list) else [output]) if hasattr(work, "wait")]
        if works:
            self._pending.add(call, values, works)
        else:
            recorder.observer.end_api(call, values)
