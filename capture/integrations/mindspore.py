"""A callback for ``mindspore.train.Model``."""

from __future__ import annotations

from typing import Any

from mindspore.train import Callback

from capture.integrations.loop import LoopCallback
from capture.mindspore import PrecisionDebugger

__all__ = ["PrecisionCallback"]


class PrecisionCallback(LoopCallback, Callback):  # type: ignore[misc]
    """Captures each step of ``Model.train`` and ``Model.fit``, numbered by ``cur_step_num``, the first one as 0.

    See :class:`capture.integrations.loop.LoopCallback` for the arguments. The model is the network that the ``Model``
    was made of. With ``dataset_sink_mode`` a step is what runs between two callbacks: ``sink_size`` batches.
    """

    debugger_class = PrecisionDebugger
    _steps_done = 0
    _steps_before: int | None = 0

    def on_train_begin(self, run_context: Any) -> None:
        """A training begins, most likely at its first step."""
        del run_context
        self._steps_before = None

    def on_train_epoch_begin(self, run_context: Any) -> None:
        """A resumed training goes on counting; that it begins with a later epoch is not in ``cur_step_num``."""
        parameters = run_context.original_args()
        if self._steps_before is None:
            is_counted = parameters.cur_step_num > 0
            self._steps_before = 0 if is_counted else (parameters.cur_epoch_num - 1) * parameters.batch_num
            self._steps_done = self._steps_before + int(parameters.cur_step_num)

    def on_train_step_begin(self, run_context: Any) -> None:
        """Begin a step; networks are compiled after this."""
        if self.capture.trains:
            self.capture.begin(run_context.original_args().network, self._steps_done)

    def on_train_step_end(self, run_context: Any) -> None:
        """End it."""
        self._steps_done = (self._steps_before or 0) + int(run_context.original_args().cur_step_num)
        if self.capture.trains:
            self.capture.end()

    def on_eval_step_begin(self, run_context: Any) -> None:
        """Begin a batch of an evaluation."""
        if not self.capture.trains:
            parameters = run_context.original_args()
            self.capture.begin(getattr(parameters, "network", None) or parameters.eval_network)

    def on_eval_step_end(self, run_context: Any) -> None:
        """End it."""
        del run_context
        if not self.capture.trains:
            self.capture.end()

    def __exit__(self, *error: Any) -> None:
        """The training or evaluation is over, or died."""
        self.capture.end_loop(error[1] if len(error) > 1 else None)
