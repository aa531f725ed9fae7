"""Communication: results stand in the arguments, and of an asynchronous call only once somebody waited for it."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

import torch.distributed

from capture.pending import PendingWorks
from capture.pytorch.wrappers import Api

if TYPE_CHECKING:
    from capture.observer import ApiCall
    from capture.pytorch.wrappers import ApiRecorder

__all__ = ["KNOWN_BY_IDENTITY", "CommunicationApi", "TorchWorks"]

# ``batch_isend_irecv`` asks whether the function of a P2POp is one of these.
KNOWN_BY_IDENTITY = frozenset(("torch.distributed.distributed_c10d", name) for name in ("isend", "irecv"))


class TorchWorks(PendingWorks):
    """Watches ``Work.wait``."""

    def install(self) -> None:
        """Begin to watch."""
        if torch.distributed.is_available():
            self.watch(torch._C._distributed_c10d.Work)
            self._patches.put(torch.distributed.P2POp, "__init__", _holding_originals)


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
