"""Catches functions that a program bound before they were replaced (``from torch.nn.functional import relu``).

PyTorch calls a function mode with the function itself, whatever name it was reached by, so a table from function to
name tells what runs. The mode belongs to the thread that installed it; in other threads a function bound early is not
seen. Functions that no mode sees (``torch.distributed``) are recorded through their attributes only.
"""

from __future__ import annotations

import contextlib
import functools
import inspect
import sys
import threading
from collections.abc import Callable, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

from torch._C import (
    _get_function_stack_at,
    _len_torch_function_stack,
    _pop_torch_function_stack,
    _push_on_torch_function_stack,
)
from torch.overrides import TorchFunctionMode, _get_current_function_mode_stack, _pop_mode, _push_mode
from torch.utils._device import DeviceContext

from capture.pytorch.releases import default_device_is_lowest, is_compiling
from capture.pytorch.wrappers import Api

if TYPE_CHECKING:
    from capture.pytorch.wrappers import ApiRecorder

__all__ = ["EarlyBound", "handing_over_originals"]

# Methods that PyTorch runs for operators that the peer does not replace.
_BEHIND_OPERATORS = frozenset({"abs", "bitwise_and", "bitwise_not", "div_", "neg", "positive"})

# Modules whose frames stand between a function written in Python and the mode that it gives itself to.
_ON_THE_WAY = ("torch.overrides", "torch.utils._device", "torch.distributed.c10d_logger", __name__)


class EarlyBound(TorchFunctionMode):
    """Records calls of original functions that no stand-in is recording already.

    It goes to the bottom of the thread's stack of modes, so that a mode of the user, entered before or after, is always
    the one that the user's ``with`` takes off. Only the default device insists on being below.
    """

    def __init__(self, recorder: ApiRecorder) -> None:
        super().__init__()
        self._recorder = recorder
        self._observer = recorder.observer
        self._local = recorder.observer.local
        self._table: dict[int, Api] = {}
        self._installed = False
        self._thread = 0

    def name_functions(self, apis: Sequence[Api]) -> None:
        """Set whose originals are looked for; of two names of one function the first counts."""
        # By identity, because hashing what is not ours might run code of the user.
        self._table = {id(api.original): api for api in reversed(apis) if not _is_operator(api)}

    def install(self) -> None:
        """Enter the current thread's stack of modes."""
        self._installed = True
        self._thread = threading.get_ident()
        stack = [mode for mode in _take_stack() if mode is not self]
        below = sum(map(_insists_on_the_bottom, stack))
        _put_stack([*stack[:below], self, *stack[below:]])

    def remove(self) -> None:
        """Leave the stack of modes; in another thread, pass everything on from now on."""
        self._installed = False
        _put_stack(_take_stack())

    def step_aside(self) -> bool:
        """Leave the top of the stack while a call is recorded; False when the mode is not there.

        Nothing inside the call is to be named, and without any mode PyTorch does not even ask.
        """
        size = _len_torch_function_stack()
        try:
            if not size or _get_function_stack_at(size - 1) is not self:
                return False
            top = _pop_torch_function_stack()
        except RuntimeError:  # a signal handler has stopped the capture meanwhile
            return False
        if top is not self:
            _push_on_torch_function_stack(top)
        return top is self

    def step_back(self) -> None:
        """Return after :meth:`step_aside`, unless the call removed the mode or installed it anew."""
        if self._installed:
            if _len_torch_function_stack():
                self.install()
            else:
                _push_on_torch_function_stack(self)

    def pause(self) -> None:
        """Leave the stack for a while, if this is the thread whose stack it is."""
        if threading.get_ident() == self._thread:
            self.remove()

    def go_on(self) -> None:
        """Undo :meth:`pause`."""
        if threading.get_ident() == self._thread:
            self.install()

    @property
    def installed(self) -> bool:
        """Whether the mode is wanted on a stack."""
        return self._installed

    def __torch_function__(
        self, func: Callable[..., Any], types: Any, args: tuple[Any, ...] = (), kwargs: dict[str, Any] | None = None
    ) -> Any:
        """Record the function if a name is known for it, and call it in either case."""
        kwargs = kwargs or {}
        if is_compiling() or not self._observer.running:
            return func(*args, **kwargs)
        api = self._table.get(id(func))
        local = self._local
        if api is None or local.in_api or local.busy or not self._installed:
            return func(*args, **kwargs)
        if _is_pytorch_inside(sys._getframe(1), func):
            return func(*args, **kwargs)
        return self._recorder.record(api, args, kwargs)


def _insists_on_the_bottom(mode: TorchFunctionMode) -> bool:
    """Only ``set_default_device`` leaves the attribute behind; ``with torch.device(...)`` is a mode like others."""
    return default_device_is_lowest and isinstance(mode, DeviceContext) and "old_device" in vars(mode)


def _is_operator(api: Api) -> bool:
    """Whether an operator may be behind a call: a mode is shown ``-x`` as ``Tensor.neg``."""
    return api.prefix == "Tensor" and (api.name.startswith("__") or api.name in _BEHIND_OPERATORS)


def _take_stack() -> list[TorchFunctionMode]:
    """Take all modes off this thread, lowest first, without those of ours that are done."""
    stack: list[TorchFunctionMode] = _get_current_function_mode_stack()  # type: ignore[no-untyped-call]
    # A signal handler that stops the capture may have taken off some of them by now: it puts back what it finds.
    with contextlib.suppress(RuntimeError):
        for _ in stack:
            _pop_mode()  # type: ignore[no-untyped-call]
    return [mode for mode in stack if not (isinstance(mode, EarlyBound) and not mode.installed)]


def _put_stack(modes: Sequence[TorchFunctionMode]) -> None:
    for mode in modes:
        _push_mode(mode)  # type: ignore[no-untyped-call]


def handing_over_originals(handle: Callable[..., Any]) -> Callable[..., Any]:
    """Stand in for ``handle_torch_function``: modes and subclasses are given the function, not what stands for it."""

    @functools.wraps(handle)
    def handle_torch_function(public_api: Any, *args: Any, **kwargs: Any) -> Any:
        return handle(public_api.original if isinstance(public_api, Api) else public_api, *args, **kwargs)

    return handle_torch_function


def _is_pytorch_inside(frame: FrameType | None, function: Callable[..., Any]) -> bool:
    """Whether PyTorch's own code makes the call: that is no function the user bound, and the peer does not see it.

    Its modules do hold builtin functions for the user (``activation=F.gelu``). Of a function written in Python that
    they hold (``F.relu``), what it calls is recorded instead: that is the peer's name for it.
    """
    code = getattr(inspect.unwrap(function), "__code__", None)
    while frame is not None and (frame.f_code is code or frame.f_globals.get("__name__") in _ON_THE_WAY):
        frame = frame.f_back
    caller = "" if frame is None else str(frame.f_globals.get("__name__", ""))
    if not caller.startswith("torch."):
        return False
    return code is not None or not caller.startswith("torch.nn.modules.") or caller == "torch.nn.modules.rnn"
