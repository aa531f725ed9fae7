"""Follows a training that calls nothing of capture: where its steps begin and end, and what its model is.

A step begins with the call of a model that trains, and ends when an optimizer has stepped. Between steps there is a
stand-in for ``Module.__call__``; within one, and inside of any call, there is none.
"""

from __future__ import annotations

import atexit
import functools
import logging
import os
import weakref
from collections.abc import Callable, Iterator
from typing import Any, Literal

import torch
from torch import nn

from capture.errors import CaptureError
from capture.integrations.loop import LoopCapture
from capture.patches import Patches
from capture.pytorch.debugger import PrecisionDebugger
from capture.pytorch.releases import GradScaler, is_compiling
from capture.pytorch.trained import trained_models

__all__ = ["FollowedTraining", "StepKind"]

StepKind = Literal["optimizer", "forward"]

_LOGGER = logging.getLogger("msformat.capture")


class FollowedTraining:
    """Starts, stops and steps a debugger by itself; where the program makes one of its own, that one captures.

    Parameters
    ----------
    debugger
        What records.
    step_kind
        ``optimizer``: up to the step of an optimizer. ``forward``: from one call of the model to its next, also in an
        evaluation.
    optimizer
        The class of the optimizer whose steps count; empty: of any.
    """

    def __init__(self, debugger: PrecisionDebugger, step_kind: StepKind = "optimizer", optimizer: str = "") -> None:
        self.debugger, self.step_kind = debugger, step_kind
        self._capture = LoopCapture(debugger)
        self._optimizer_class = optimizer
        self._optimizers: list[weakref.ReferenceType[Any]] = []
        self._patches, self._calls = Patches(), Patches()
        self._pid = os.getpid()
        self._models: list[weakref.ReferenceType[nn.Module]] = []
        self._known_optimizers = -1
        self._heard = 0
        self._step_module: weakref.ReferenceType[nn.Module] | None = None
        self._is_off = self._is_skipping = False
        self._says_at_end = False
        self.error: BaseException | None = None
        self.idle_steps = 0
        self.is_second = False
        debugger.step_aside()

    @property
    def captured(self) -> int:
        """How many steps were captured."""
        return self.debugger.captured_steps

    def install(self) -> None:
        """Begin to follow; torch was imported just now, and the program has made nothing yet."""
        self._patches.put(torch.optim.Optimizer, "__init__", self._seeing)
        self._patches.put(GradScaler, "step", self._scaling)
        self._calls.put(nn.Module, "__call__", self._hearing)

    def remove(self) -> None:
        """Follow no more."""
        self._is_off = True
        self._calls.restore()
        self._patches.restore()

    def finish(self) -> None:
        """The program is over, or died of ``error``."""
        if os.getpid() != self._pid:
            return
        if self.step_kind == "forward" and self.error is None:
            self._capture.end()
        self._capture.end_loop(self.error)

    # --- stand-ins ---------------------------------------------------------------------------------------------------

    def _seeing(self, init: Callable[..., None]) -> Callable[..., None]:
        """Stand in for ``Optimizer.__init__``: a hook of the optimizer's own is heard before hooks of all are."""

        @functools.wraps(init)
        def see(optimizer: Any, *args: Any, **kwargs: Any) -> None:
            init(optimizer, *args, **kwargs)
            try:
                optimizer.register_step_post_hook(self._stepped)
                self._optimizers.append(weakref.ref(optimizer))
                self._is_skipping = self._is_skipping and self._may_skip
                if self._listens:
                    self._calls.resume()
            except Exception as error:  # noqa: BLE001 (a class of its own mind is not followed)
                _LOGGER.warning("steps of %s are not seen: %s", type(optimizer).__name__, error)

        return see

    def _scaling(self, step: Callable[..., Any]) -> Callable[..., Any]:
        """Stand in for ``GradScaler.step``, which leaves the optimizer out when a gradient overflowed."""

        @functools.wraps(step)
        def scale(scaler: Any, optimizer: Any, *args: Any, **kwargs: Any) -> Any:
            heard = self._heard
            result = step(scaler, optimizer, *args, **kwargs)
            if self._heard == heard:
                self._stepped(optimizer)
            return result

        return scale

    def _hearing(self, call: Callable[..., Any]) -> Callable[..., Any]:
        """Stand in for ``Module.__call__`` while a step may begin. Calls inside of the call are left alone."""

        @functools.wraps(call)
        def hear(module: nn.Module, *args: Any, **kwargs: Any) -> Any:
            # Dynamo takes this for a constant, and sees nothing of the rest.
            if is_compiling():
                return call(module, *args, **kwargs)
            self._calls.suspend()
            try:
                self._called(module)
                return call(module, *args, **kwargs)
            finally:
                if self._listens:
                    self._calls.resume()

        return hear

    # --- events ------------------------------------------------------------------------------------------------------

    @property
    def _listens(self) -> bool:
        if self._is_off or self._is_skipping:
            return False
        return self.step_kind == "forward" or not self._capture.is_open

    @property
    def _may_skip(self) -> bool:
        """Whether the next step is not wanted, and is over when the only optimizer has stepped."""
        wanted = self.debugger.config.steps
        return len(self._optimizers) == 1 and wanted is not None and self.debugger.step_number not in wanted

    def _called(self, module: nn.Module) -> None:
        """A module is called, by none that is heard already."""
        try:
            if not self._listens or not self._begins_step(module) or not self._is_alone():
                return
            if self._capture.is_open:
                self._capture.end()
            self._step_module = weakref.ref(module)
            self._capture.begin(self._model_of(module))
            if not self._says_at_end:
                # Later than the session's own, and so before it at the end of the process.
                self._says_at_end = True
                atexit.register(self.finish)
        except Exception as error:  # noqa: BLE001 (a program outlives its capture)
            self._failed(error)

    def _begins_step(self, module: nn.Module) -> bool:
        if self.step_kind == "forward":
            known = self._step_module() if self._step_module is not None else None
            return known is module or (known is None and any(True for _ in module.parameters()))
        is_training = module.training and torch.is_grad_enabled()
        return is_training and any(parameter.requires_grad for parameter in module.parameters())

    def _stepped(self, optimizer: Any, *_: Any) -> None:
        """An optimizer has stepped, or was left out by its scaler."""
        if is_compiling() or self.step_kind != "optimizer" or self._is_off:
            return
        self._heard += 1
        if self._optimizer_class and type(optimizer).__name__ != self._optimizer_class:
            return
        if not self._capture.is_open and not self._is_skipping:
            self._stepped_idly(optimizer)
            return
        try:
            if self._is_skipping:
                self.debugger.step()
            self._capture.end()
            self._is_skipping = self._may_skip
        except Exception as error:  # noqa: BLE001 (a program outlives its capture)
            self._failed(error)
        if self._listens:
            self._calls.resume()

    def _stepped_idly(self, optimizer: Any) -> None:
        self.idle_steps += 1
        if self.captured and self.idle_steps == 1 and self.debugger.config.level in ("L1", "mix"):
            _LOGGER.warning(
                "%s stepped after the end of a step, and what it does is not recorded: "
                "--optimizer CLASS says whose step is the end",
                type(optimizer).__name__,
            )

    def _model_of(self, called: nn.Module) -> Any:
        """What the optimizers train; looked for again when there are more of them, or the program let go of it."""
        if self.debugger.config.level not in ("L0", "mix"):
            return None
        known = [reference() for reference in self._models]
        models = [model for model in known if model is not None]
        if self._known_optimizers != len(self._optimizers) or len(models) != len(known):
            self._known_optimizers = len(self._optimizers)
            models = trained_models(called, self._parameters())
            self._models = [weakref.ref(model) for model in models]
            _LOGGER.info("the model is %s", ", ".join(type(model).__name__ for model in models))
        return models[0] if len(models) == 1 else models

    def _parameters(self) -> Iterator[Any]:
        for reference in self._optimizers:
            optimizer = reference()
            for group in optimizer.param_groups if optimizer is not None else ():
                yield from group["params"]

    def _is_alone(self) -> bool:
        """Whether this is the process that was launched, and the program captures nothing itself."""
        if os.getpid() != self._pid:
            _LOGGER.warning("a training in a process forked by the program is not captured: launch each with torchrun")
        elif type(self.debugger).made_last() is not None:
            self.is_second = True
        else:
            return True
        self.remove()
        return False

    def _failed(self, error: Exception) -> None:
        self.remove()
        if isinstance(error, CaptureError) and self.debugger.config.on_error == "raise":
            raise error
        _LOGGER.error("capture ends, the program goes on: %s", error)
