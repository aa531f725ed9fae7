"""A callback for ``transformers.Trainer`` and what is derived from it."""

from __future__ import annotations

import weakref
from typing import Any

from capture.integrations.loop import LoopCallback, LoopCapture
from capture.module_calls import inert
from capture.pytorch import PrecisionDebugger
from msformat import BackendMissingError

try:
    from transformers import TrainerCallback
except ImportError as error:
    raise BackendMissingError("transformers", "huggingface", "capture.integrations.huggingface") from error

__all__ = ["PrecisionCallback"]


class PrecisionCallback(LoopCallback, TrainerCallback):  # type: ignore[misc]
    """Captures each step of a ``Trainer``: all micro-batches up to an optimizer step, numbered by ``global_step``.

    See :class:`capture.integrations.loop.LoopCallback` for the arguments. The model is the Trainer's own, without the
    wrappers of distributed training, so that names are the same in any number of processes.

    Notes
    -----
    A Trainer tells no callback of an exception. What was captured is safe, but hooks stay on the model until the next
    training or the end of the process: a program that catches the exception and goes on says ``callback.close()``.
    """

    debugger_class = PrecisionDebugger
    _watched: Any = None
    _watching: Any = None

    def on_init_end(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        """An evaluation has no event before its first batch: the call of the model has to do."""
        del args, state, control
        self._watch(model)

    def on_train_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        """What an earlier training left in the middle of a step ends here."""
        del args, state, control
        self._watch(model)
        if self.capture.trains:
            self.capture.end_loop()

    def on_step_begin(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        """Begin a step."""
        del args, control
        if self.capture.trains:
            self.capture.begin(model, state.global_step)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """End it; an evaluation would come after this."""
        del args, state, control
        if self.capture.trains:
            self.capture.end()

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:
        """Wait for the disk."""
        del args, state, control
        if self.capture.trains:
            self.capture.end_loop()

    def on_prediction_step(self, args: Any, state: Any, control: Any, model: Any = None, **_: Any) -> None:
        """End a batch of an evaluation."""
        del args, state, control
        self._watch(model)
        if not self.capture.trains:
            self.capture.end()

    def close(self) -> None:
        """Stop, take the hook off the model, and finish everything now."""
        self._unwatch()
        super().close()

    def _watch(self, model: Any) -> None:
        if self.capture.trains or model is None or model is self._watched:
            return
        self._unwatch()
        self._watching = model.register_forward_pre_hook(_EvaluationBegins(self.capture))
        self._watched = model

    def _unwatch(self) -> None:
        if self._watching is not None:
            self._watching.remove()
        self._watching = self._watched = None


class _EvaluationBegins:
    """Forward pre-hook of the model."""

    def __init__(self, capture: LoopCapture) -> None:
        self._capture = weakref.ref(capture)

    def __call__(self, model: Any, _: object) -> None:
        capture = self._capture()
        if capture is not None and not model.training and not capture.is_open:
            capture.begin(model)

    def __reduce__(self) -> tuple[Any, ...]:
        return inert()
