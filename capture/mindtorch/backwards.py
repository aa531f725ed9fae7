"""How the backward of calls is followed: by the graph where MindSpore shows it, by hooks on tensors where not."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

from capture.mindspore.backward import CellBackwards
from capture.mindspore.gradients import GradientGroups
from capture.mindtorch.calls import CallBackwards
from capture.mindtorch.tensorhooks import SHOWS_GRAPH

if TYPE_CHECKING:
    from capture.framework import Framework
    from capture.mindspore.passes import BackwardPasses
    from capture.module_calls import BackwardListener
    from capture.observer import Observer

__all__ = ["Backwards", "make_backwards"]


class Backwards(Protocol):
    """Follows the backward of calls of modules and of functions."""

    def begin(self, args: tuple[Any, ...], *, is_closed: bool = False) -> Any:
        """A call begins with these positional arguments; None when it will have no backward."""

    def end(self, inputs: Any, output: Any, listener: BackwardListener) -> bool:
        """The call has ended; False when it will have no backward."""

    def reset(self) -> None:
        """Close what is open; capture stops."""


def make_backwards(observer: Observer, framework: Framework, passes: BackwardPasses) -> Backwards:
    """What this MindSpore allows."""
    if SHOWS_GRAPH:
        return CellBackwards(observer, framework, GradientGroups(observer), passes)
    return CallBackwards(observer, passes)
