"""A block in which capture's own operations are nobody's business; and where in a training the program is."""

from __future__ import annotations

import sys
from types import FrameType, TracebackType
from typing import Any

import torch
from torch._C import DisableTorchFunction, _DisableTorchDispatch, _len_torch_dispatch_stack, _len_torch_function_stack
from torch._C import _functorch as functorch

__all__ = ["Quiet", "backward_is_running", "recompute_is_running"]

_grad_is_on = torch.is_grad_enabled
_set_grad = torch._C._set_grad_enabled
_task_id = torch._C._current_graph_task_id
_CHECKPOINT = "/torch/utils/checkpoint.py"


class Quiet:
    """Inside, operations are seen by no autograd graph, function mode, dispatch mode or functorch transform.

    What is not active is not switched off: looking costs a tenth of switching. Autocast needs nothing: none of the
    operations that capture uses is on its lists. Neither the random state nor the default dtype or device is used.
    """

    __slots__ = ("_grad", "_guards")

    def __enter__(self) -> None:
        self._guards: list[Any] = []
        if _len_torch_function_stack():
            self._enter(DisableTorchFunction())
        # Only now: a function mode would be told of this call.
        self._grad = _grad_is_on()
        if self._grad:
            _set_grad(False)  # noqa: FBT003 (a C function)
        if _len_torch_dispatch_stack():
            self._enter(_DisableTorchDispatch())
        if functorch.peek_interpreter_stack() is not None:
            self._enter(_NoTransforms())

    def _enter(self, guard: Any) -> None:
        guard.__enter__()
        self._guards.append(guard)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, where: TracebackType | None
    ) -> None:
        if self._grad and not self._guards:
            _set_grad(True)  # noqa: FBT003
            return
        while len(self._guards) > 1:
            self._guards.pop().__exit__(None, None, None)
        if self._grad:
            _set_grad(True)  # noqa: FBT003
        if self._guards:
            self._guards.pop().__exit__(None, None, None)


class _NoTransforms:
    """Takes the transforms of functorch from the thread's stack, and puts them back in their order."""

    def __enter__(self) -> None:
        self._layers: list[Any] = []
        while functorch.peek_interpreter_stack() is not None:
            self._layers.append(functorch.pop_dynamic_layer_stack())

    def __exit__(self, *_: object) -> None:
        while self._layers:
            functorch.push_dynamic_layer_stack(self._layers.pop())


def backward_is_running() -> bool:
    """Whether the engine runs a backward pass in this thread."""
    return bool(_task_id() != -1)


def recompute_is_running() -> bool:
    """Whether this is the forward that activation checkpointing runs during the backward pass."""
    if _task_id() == -1:
        return False
    frame: FrameType | None = sys._getframe(1)
    while frame is not None:
        if frame.f_code.co_filename.replace("\\", "/").endswith(_CHECKPOINT):
            return True
        frame = frame.f_back
    return False
