"""Callbacks for ``mindspore.train.Model``, which hides the loop that start, stop and step would stand in."""

from __future__ import annotations

from typing import Any

from mindspore.train import Callback

from capture.mindspore.debugger import PrecisionDebugger

__all__ = ["MsprobeInitStep", "MsprobeStep"]


class MsprobeStep(Callback):  # type: ignore[misc]
    """Calls ``start`` before every step of a training, ``stop`` and ``step`` after it.

    Parameters
    ----------
    debugger
        Levels L0 and mix need its ``model``: ``debugger.start(model)`` before the training, or
        ``PrecisionDebugger(model=…)``.

    Notes
    -----
    With ``dataset_sink_mode`` a step is what runs between two callbacks: ``sink_size`` batches.
    """

    def __init__(self, debugger: PrecisionDebugger) -> None:
        super().__init__()
        self.debugger = debugger

    def on_train_begin(self, run_context: Any) -> None:
        """Begin the first step: what is compiled must be compiled with capture there."""
        del run_context
        self.debugger.start()

    def on_train_step_begin(self, run_context: Any) -> None:
        """Begin a step."""
        del run_context
        self.debugger.start()

    def on_train_step_end(self, run_context: Any) -> None:
        """End a step."""
        del run_context
        self.debugger.stop()
        self.debugger.step()


class MsprobeInitStep(Callback):  # type: ignore[misc]
    """Lets the numbers of steps go on where a resumed training does, also those of kernel dumps (level L2)."""

    def on_train_begin(self, run_context: Any) -> None:
        """Take over the number of the step that comes."""
        number = int(run_context.original_args().cur_step_num)
        debugger = PrecisionDebugger.made_last()
        if debugger is not None:
            debugger.set_init_step(number)
        try:
            from mindspore._c_expression import _set_init_iter  # noqa: PLC0415 (not in every build)
        except ImportError:
            return
        _set_init_iter(number)
