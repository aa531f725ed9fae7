"""Follows a program that has imported MindSpore; imported only then."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from typing import Any

from mindspore.train import Callback, Model

from capture.integrations.mindspore import PrecisionCallback
from capture.patches import Patches

__all__ = ["MindSporeProgram", "follow"]


class MindSporeProgram:
    """Gives the trainings of ``mindspore.train.Model`` the callback that an edited program would give them."""

    def __init__(self, callback: PrecisionCallback) -> None:
        self._callback = callback
        self._patches = Patches()
        self._is_second = False
        callback.debugger.step_aside()
        self.error: BaseException | None = None

    @property
    def captured(self) -> int:
        """How many steps were captured."""
        return self._callback.debugger.captured_steps

    def install(self) -> None:
        """Begin to follow."""
        for name in ("train", "fit"):
            self._patches.put(Model, name, self._with_callback)

    def why_nothing(self) -> str:
        """Why no step was captured, and what to do."""
        if self._is_second:
            return "the program has a PrecisionDebugger of its own, which captures"
        config, number = self._callback.debugger.config, self._callback.debugger.step_number
        if config.steps is not None and number:
            return f"step {sorted(config.steps)} was never reached; the last one was {number - 1}"
        return (
            "no step of Model.train or Model.fit ran in this process; in a loop of the program's own, edit it: "
            "debugger = capture.mindspore.PrecisionDebugger(config_path=…), start(net), stop() and step()"
        )

    def _with_callback(self, method: Callable[..., Any]) -> Callable[..., Any]:
        signature = inspect.signature(method)

        @functools.wraps(method)
        def train(*args: Any, **kwargs: Any) -> Any:
            if type(self._callback.debugger).made_last() is not None:
                self._is_second = True
                return method(*args, **kwargs)
            given = signature.bind_partial(*args, **kwargs)
            before = given.arguments.get("callbacks")
            before = [before] if isinstance(before, Callback) else list(before or ())
            given.arguments["callbacks"] = [*before, self._callback]
            return method(*given.args, **given.kwargs)

        return train


def follow(given: dict[str, Any]) -> MindSporeProgram:
    """Begin to follow.

    Parameters
    ----------
    given
        Arguments of ``PrecisionDebugger``.
    """
    followed = MindSporeProgram(PrecisionCallback(**given))
    followed.install()
    return followed
