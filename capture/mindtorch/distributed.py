"""Communication: results stand in the arguments, and of an asynchronous call only once somebody waited for it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from capture.mindspore.wrappers import Api, ApiRecorder, original_of
from capture.patches import Patches

if TYPE_CHECKING:
    from capture.observer import ApiCall, Observer

__all__ = ["KNOWN_BY_IDENTITY", "CommunicationApi", "PendingWorks", "holding_originals"]

# ``batch_isend_irecv`` asks whether the function of a P2POp is one of these.
KNOWN_BY_IDENTITY = frozenset(("torch.distributed.distributed_c10d", name) for name in ("isend", "irecv"))


class _Pending:
    """A call whose works are not all waited for, with what it writes to."""

    __slots__ = ("call", "values", "works")

    def __init__(self, call: ApiCall, values: tuple[Any, ...], works: list[Any]) -> None:
        self.call, self.values, self.works = call, values, works


class PendingWorks:
    """Asynchronous calls under way: tensors are held until somebody waits, or capture stops. Nobody is waited for.

    Parameters
    ----------
    observer
        Where events go.
    """

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._patches = Patches()
        self._watched: set[type] = set()
        # The works are held as well, so that a number in here means the object it was taken from.
        self._pending: dict[int, list[_Pending]] = {}

    def add(self, call: ApiCall, values: tuple[Any, ...], works: list[Any]) -> None:
        """Have the values recorded as the call's output when all works have been waited for."""
        pending = _Pending(call, values, works)
        for work in works:
            self._pending.setdefault(id(work), []).append(pending)
            # Which classes there are is up to the backend; each is watched from its first work on.
            owner = next(base for base in type(work).__mro__ if "wait" in vars(base))
            if owner not in self._watched:
                self._watched.add(owner)
                self._patches.put(owner, "wait", self._watching)

    def drop(self) -> None:
        """Let go of calls that nobody waited for: their output is not known to be there."""
        left = {id(pending): pending for waiting in self._pending.values() for pending in waiting}
        self._pending = {}
        self._watched.clear()
        self._patches.restore()
        for pending in left.values():
            text = "nobody waited for this call before capture stopped: its output is not captured"
            self._observer.problem("not waited", pending.call.forward, text)
            self._observer.fail_api(pending.call)

    def _watching(self, wait: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(wait)
        def watched(work: Any, /, *args: Any, **kwargs: Any) -> Any:
            result = wait(work, *args, **kwargs)
            if self._pending:
                self._waited(work)
            return result

        return watched

    def _waited(self, work: Any) -> None:
        for pending in self._pending.pop(id(work), ()):
            pending.works = [other for other in pending.works if other is not work]
            if not pending.works:
                self._observer.end_api(pending.call, pending.values)


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
