"""When a backward pass begins and ends, and the gradients it gives.

Every backward of PyNative goes through ``_pynative_executor.grad``: ``grad``, ``value_and_grad``, ``GradOperation``,
``vjp``, ``TrainOneStepCell``, the inner pass of a recomputed cell (MindSpore 2.7.1 and 2.10.0; 2.7.1 has ``grad_aux``
beside it). What it returns are the gradients of inputs and weights as the program gets them, all uses added up, so a
parameter needs no hook. Hooks on parameters would also be compiled into every function under ``jit``.
"""

from __future__ import annotations

import inspect
import threading
from collections.abc import Callable, Iterator
from typing import Any

from mindspore import Tensor
from mindspore.ops.composite import base as composite

from capture.mindspore.graph import tensors_of
from capture.patches import Patches

__all__ = ["BackwardPasses", "Pair"]

Pair = tuple[Any, Any]
"""A leaf (input or parameter) and its gradient."""
_METHODS = ("grad", "grad_aux")


class _Stack(threading.local):
    """Numbers of the passes that run in this thread, innermost last."""

    def __init__(self) -> None:
        self.running: list[int] = []


class BackwardPasses:
    """Tells when backward passes begin and end, while installed.

    Parameters
    ----------
    on_problem
        Told what could not be installed, and failures of listeners.
    """

    def __init__(self, on_problem: Callable[[str, str, str], None]) -> None:
        self._problem = on_problem
        self._stack = _Stack()
        self._count = 0
        self._on_end: list[Callable[[int, bool], None]] = []
        self._on_result: list[Callable[[list[Pair]], None]] = []
        self._patches = Patches()

    @property
    def current(self) -> int:
        """Number of the innermost pass that runs in this thread, 0 outside of any."""
        running = self._stack.running
        return running[-1] if running else 0

    def listen(
        self,
        on_end: Callable[[int, bool], None] | None = None,
        on_result: Callable[[list[Pair]], None] | None = None,
    ) -> None:
        """Call ``on_end(number, failed)`` at the end of each pass, ``on_result(pairs)`` with what an outer one gave."""
        if on_end is not None:
            self._on_end.append(on_end)
        if on_result is not None:
            self._on_result.append(on_result)

    def install(self) -> None:
        """Begin to follow. The executor is one object, so its attribute is replaced and no function of a module."""
        self.remove()
        executor = getattr(composite, "_pynative_executor", None)
        if executor is None or not callable(getattr(executor, "grad", None)):
            text = "this MindSpore runs its backward elsewhere: gradients of parameters are not recorded"
            self._problem("backward not followed", "", text)
            return
        for name in _METHODS:
            if callable(getattr(executor, name, None)):
                self._patches.put(executor, name, self._following)

    def remove(self) -> None:
        """The executor is as it was."""
        self._patches.restore()

    def _following(self, original: Callable[..., Any]) -> Callable[..., Any]:
        # 2.10 has a flag before the arguments of the function.
        has_flag = "has_aux" in inspect.signature(original).parameters

        def grad(*args: Any, **kwargs: Any) -> Any:
            number = self._begin()
            failed = True
            try:
                result = original(*args, **kwargs)
                failed = False
            finally:
                self._end(number, failed=failed)
            if not self._stack.running:
                self._hand_over((*args[:4], *args[4 + has_flag :]), result)
            return result

        return grad

    def _begin(self) -> int:
        self._count += 1
        self._stack.running.append(self._count)
        return self._count

    def _end(self, number: int, *, failed: bool) -> None:
        for callback in self._on_end:
            self._guarded(callback, number, failed)
        self._stack.running.remove(number)

    def _hand_over(self, args: tuple[Any, ...], result: Any) -> None:
        def hand_over() -> None:
            pairs = list(_pairs(args, result))
            for callback in self._on_result:
                callback(pairs)

        self._guarded(hand_over)

    def _guarded(self, work: Callable[..., None], *details: Any) -> None:
        try:
            work(*details)
        except Exception as error:  # noqa: BLE001 (a hook never raises)
            self._problem(f"end of backward {type(error).__name__}", "", str(error))


def _pairs(args: tuple[Any, ...], result: Any) -> Iterator[Pair]:
    """Leaves with their gradients; ``args`` are function, operation, weights, position and the function's own."""
    operation, weights, position = args[1:4]
    inputs, of_weights = _split(operation, result)
    if of_weights is not None and weights is not None:
        yield from zip(tensors_of(_listed(weights)), tensors_of(_listed(of_weights)), strict=True)
    if inputs is not None:
        leaves, gradients = tensors_of(_asked(operation, position, args[4:])), tensors_of(inputs)
        if len(leaves) == len(gradients):
            yield from zip(leaves, gradients, strict=True)


def _split(operation: Any, result: Any) -> tuple[Any, Any]:
    """Gradients of inputs and of weights; None for what was not asked for."""
    by_list = operation.get_by_list
    by_input = operation.get_all or getattr(operation, "get_by_position", False)
    if by_list and by_input:
        return result[0], result[1]
    return (None, result) if by_list else (result, None)


def _asked(operation: Any, position: Any, arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """The inputs whose gradients were asked for."""
    if getattr(operation, "get_by_position", False):
        positions = position if isinstance(position, (tuple, list)) else (position,)
        return tuple(arguments[number] for number in positions if number < len(arguments))
    if operation.get_all:
        return arguments[:-1] if operation.sens_param else arguments
    return arguments[:1]


def _listed(value: Any) -> Any:
    return value if isinstance(value, Tensor) else tuple(value)
