"""A callback for Lightning's ``Trainer``, whichever name the library was installed under."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from capture.integrations.loop import LoopCallback
from capture.pytorch import PrecisionDebugger
from msformat import BackendMissingError

__all__ = ["PrecisionCallback"]

_NAMES = ("lightning.pytorch", "pytorch_lightning")


def _callback_class() -> type:
    """The base of the library that the program uses: the two hold copies of the same classes."""
    for name in sorted(_NAMES, key=lambda name: name not in sys.modules):
        try:
            found: type = importlib.import_module(name).Callback
        except ImportError:
            continue
        return found
    raise BackendMissingError("lightning", "lightning", "capture.integrations.lightning")


class PrecisionCallback(LoopCallback, _callback_class()):  # type: ignore[misc]
    """Captures each step of a ``Trainer``: all batches up to an optimizer step, numbered by ``global_step``.

    See :class:`capture.integrations.loop.LoopCallback` for the arguments. The model is the LightningModule. Several
    optimizers that step in one batch (manual optimization) make one unit of it, and ``global_step`` counts each.
    """

    debugger_class = PrecisionDebugger
    _begun_at = 0

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """What an earlier training left in the middle of a step ends here."""
        del trainer, pl_module
        if self.capture.trains:
            self.capture.end_loop()

    def on_train_batch_start(self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int) -> None:
        """Begin a step, or go on with one that accumulates gradients."""
        del batch, batch_idx
        if self.capture.trains:
            if not self.capture.is_open:
                self._begun_at = trainer.global_step
            self.capture.begin(pl_module, self._begun_at)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int) -> None:
        """End the step if an optimizer has stepped."""
        del pl_module, outputs, batch, batch_idx
        if self.capture.trains and trainer.global_step != self._begun_at:
            self.capture.end()

    def on_validation_start(self, trainer: Any, pl_module: Any) -> None:
        """A validation may come between two batches of a step."""
        del trainer, pl_module
        if self.capture.trains:
            self.capture.pause()

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:
        """Wait for the disk."""
        del trainer, pl_module
        if self.capture.trains:
            self.capture.end_loop()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:
        """The training or evaluation died."""
        del trainer, pl_module
        self.capture.end_loop(exception)

    def on_validation_batch_start(
        self, trainer: Any, pl_module: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """Begin a batch of an evaluation."""
        del batch, batch_idx, dataloader_idx
        if not self.capture.trains and not trainer.sanity_checking:
            self.capture.begin(pl_module)

    def on_validation_batch_end(
        self, trainer: Any, pl_module: Any, outputs: Any, batch: Any, batch_idx: int, dataloader_idx: int = 0
    ) -> None:
        """End it."""
        del trainer, pl_module, outputs, batch, batch_idx, dataloader_idx
        if not self.capture.trains:
            self.capture.end()

    on_test_batch_start = on_predict_batch_start = on_validation_batch_start
    on_test_batch_end = on_predict_batch_end = on_validation_batch_end
