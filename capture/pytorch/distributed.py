"""Communication: results stand in the arguments, and of an asynchronous call only once somebody waited for it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch.distributed

from capture.patches import Patches
from capture.pytorch.wrappers import Api

if TYPE_CHECKING:
    from capture.observer import ApiCall, Observer
    from capture.pytorch.wrappers import ApiRecorder

__all__ = ["KNOWN_BY_IDENTITY", "CommunicationApi", "PendingWorks"]

# ``batch_isend_irecv`` asks whether the function of a P2POp is one of these.
KNOWN_BY_IDENTITY = frozenset(("torch.distributed.distributed_c10d", name) for name in ("isend", "irecv"))


class _Pending:
    """A call whose works are not all waited for, with what it writes to."""

    __slots__ = ("call", "values", "works")

    def __init__(self, call: ApiCall, values: tuple[Any, ...], works: list[Any]) -> None:
        self.call = call
        self.values = values
        self.works = works


class PendingWorks:
    """Asynchronous calls under way. The only place where capture holds tensors: until wait, stop or step.

    Nobody is waited for on the user's behalf, because that would order what the program left unordered.
    """

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._patches = Patches()
        # The works are held as well, so that a number in here means the object it was taken from.
        self._pending: dict[int, list[_Pending]] = {}

    def install(self) -> None:
        """Watch ``Work.wait``."""
        if torch.distributed.is_available():
            self._patches.put(torch._C._distributed_c10d.Work, "wait", self._watching)
            self._patches.put(torch.distributed.P2POp, "__init__", _holding_originals)

    def remove(self) -> None:
        """Stop watching."""
        self._patches.restore()

    def add(self, call: ApiCall, values: tuple[Any, ...], works: list[Any]) -> None:
        """Have the values recorded as the call's output when all works have been waited for."""
        pending = _Pending(call, values, works)
        for work in works:
            self._pending.setdefault(id(work), []).append(pending)

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


def _holding_originals(init: Callable[..., None]) -> Callable[..., None]:
    """Stand in for ``P2POp.__init__``: what an operation holds is compared by identity, also after capture."""

    @functools.wraps(init)
    def hold(operation: Any, op: Any, *args: Any, **kwargs: Any) -> None:
        init(operation, op.original if isinstance(op, Api) else op, *args, **kwargs)

    return hold


class CommunicationApi(Api):
    """Stands for a function of ``torch.distributed``."""

    __slots__ = ("pending",)

    def __init__(
        self, original: Callable[..., Any], name: str, place: str, recorder: ApiRecorder, pending: PendingWorks
    ) -> None:
        super().__init__(original, "Distributed", name, place, recorder)
        self.pending = pending

    def finish(
        self,
        call: ApiCall,
        args: tuple[Any, ...],
        kwargs: Mapping[str, Any],
        output: Any,
        sequence: int,  # noqa: ARG002 (a collective returns no gradient)
    ) -> None:
        """Record the arguments as the output, now or when the works that were returned have been waited for."""
        values = (*args, *kwargs.values())
        works = [work for work in (output if isinstance(output, list) else [output]) if hasattr(work, "wait")]
        if works:
            self.pending.add(call, values, works)
        else:
            self.observer.end_api(call, values)
