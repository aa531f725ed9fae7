"""Follows a program that has imported torch; imported only then."""

from __future__ import annotations

from typing import Any

from capture.pytorch import PrecisionDebugger
from capture.pytorch.followed import FollowedTraining, StepKind

__all__ = ["TorchProgram", "follow"]


class TorchProgram(FollowedTraining):
    """A training, with words for the end of the program."""

    def why_nothing(self) -> str:
        """Why no step was captured, and what to do."""
        config = self.debugger.config
        if self.is_second:
            return "the program has a PrecisionDebugger of its own, which captures"
        if config.steps is not None and self.debugger.step_number:
            return f"step {sorted(config.steps)} was never reached; the last one was {self.debugger.step_number - 1}"
        if self.step_kind == "forward":
            return "no module with parameters was called in this process"
        if self.idle_steps:
            return (
                f"{self.idle_steps} steps of optimizers came without the call of a model that trains (a module with "
                "parameters, in training mode, with gradients)"
            )
        return (
            "no optimizer of torch stepped after the call of a model in this process; --step-is forward takes each "
            "call of the model for a step, and processes that the program starts itself are not captured (torchrun is)"
        )


def follow(given: dict[str, Any], step_kind: StepKind, optimizer: str, first_step: int) -> TorchProgram:
    """Begin to follow.

    Parameters
    ----------
    given
        Arguments of ``PrecisionDebugger``.
    step_kind, optimizer
        As for :class:`capture.pytorch.followed.FollowedTraining`.
    first_step
        Number of the first step.
    """
    debugger = PrecisionDebugger(**given)
    debugger.set_init_step(first_step)
    followed = TorchProgram(debugger, step_kind, optimizer)
    followed.install()
    return followed
