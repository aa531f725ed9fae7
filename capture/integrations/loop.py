"""What the callbacks of all libraries share: start, stop and step around the steps of a loop that is not ours."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING, Any, ClassVar, Literal, TypeAlias

from capture.errors import CaptureError, is_foreign

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from capture.debugger import DebuggerBase

__all__ = ["Loop", "LoopCallback", "LoopCapture"]

Loop: TypeAlias = Literal["training", "evaluation"]

_LOGGER = logging.getLogger("msformat.capture")


class LoopCapture:
    """Captures one of a library's loops, step by step.

    A step is a unit of the dump. What goes wrong before the first step of a training is raised, as long as nothing is
    lost by that; later it is said once, capture ends, and the training goes on (``on_error: raise`` turns that round).

    Parameters
    ----------
    debugger
        What records.
    during
        Which loop.

    Raises
    ------
    CaptureError
        ``during`` names no loop.
    """

    def __init__(self, debugger: DebuggerBase, during: Loop = "training") -> None:
        if during not in ("training", "evaluation"):
            raise CaptureError(f"during={during!r}: 'training' or 'evaluation' is needed")
        self.debugger = debugger
        # What the debugger was given itself; what it is lent for a step is not kept behind it.
        self._own_model = debugger.model
        self.trains = during == "training"
        self.is_open = False
        self._has_begun = False
        self._is_off = False

    def begin(self, model: Any, number: int | None = None) -> None:
        """A step begins, or goes on after a pause.

        Parameters
        ----------
        model
            As for ``PrecisionDebugger.start``; a model that the debugger was given itself is preferred.
        number
            Steps that the training has done before, also in earlier processes; None: one more than the last.

        Raises
        ------
        CaptureError
            Before the first step: what ``PrecisionDebugger.start`` raises.
        """
        if self._is_off:
            return
        debugger = self.debugger
        try:
            if not self.is_open and number is not None and number != debugger.step_number:
                debugger.set_init_step(number)
            debugger.start(self._own_model if self._own_model is not None else model)
            self.is_open = self._has_begun = True
        except Exception as error:  # noqa: BLE001 (a training outlives its capture)
            self._failed(error)

    def pause(self) -> None:
        """Something else runs in the middle of a step; ``begin`` goes on with it."""
        if self.is_open:
            self._guarded(self.debugger.stop)

    def end(self) -> None:
        """The step is over."""
        if self.is_open:
            self._close(self.debugger.step)

    def end_loop(self, error: BaseException | None = None) -> None:
        """The loop is over, or died: what is recorded gets written, and a step in the middle is marked incomplete.

        Parameters
        ----------
        error
            What ended it; None when it came to its end.
        """
        if self.is_open:
            number = self.debugger.step_number
            self._close(self.debugger.abandon, error if error is not None else "the end of the training")
            _LOGGER.warning("step %s was not finished and is marked incomplete (%s)", number, _cause(error))
        if self._has_begun:
            self._guarded(self.debugger.wait)

    def _close(self, method: Callable[..., None], *arguments: Any) -> None:
        self.is_open = False
        self._guarded(method, *arguments)
        self.debugger.model = self._own_model

    def _guarded(self, method: Callable[..., None], *arguments: Any) -> None:
        try:
            method(*arguments)
        except Exception as error:  # noqa: BLE001 (a training outlives its capture)
            self._failed(error)

    def _failed(self, error: Exception) -> None:
        is_early = not self._has_begun and isinstance(error, CaptureError)
        # What the program itself did wrong came out here because capture waited for it.
        if is_foreign(error) or is_early or self.debugger.config.on_error == "raise":
            raise error
        self._is_off, self.is_open = True, False
        self.debugger.model = self._own_model
        _LOGGER.error("capture ends, training goes on: %s: %s", type(error).__name__, error)


class LoopCallback:
    """What a callback is made of, whatever its library; to be named before the library's own base.

    Parameters
    ----------
    config_path, task, dump_path, level, model, step
        As for ``PrecisionDebugger``, where no ``model`` means the one that is trained. None at all: the debugger that
        was made last.
    during
        ``training``; or ``evaluation``: each batch of an evaluation is a unit, and the training is left alone.

    Raises
    ------
    CaptureError
        A bad configuration; in the first step also a dump that lies where this one would go.

    Attributes
    ----------
    debugger
        What records; ``debugger.wait()`` and ``debugger.close()`` work as ever.
    """

    debugger_class: ClassVar[type[DebuggerBase]]

    def __init__(
        self,
        config_path: str | os.PathLike[str] | None = None,
        task: str | None = None,
        dump_path: str | os.PathLike[str] | None = None,
        level: str | None = None,
        model: Any = None,
        step: Any = None,
        *,
        during: Loop = "training",
    ) -> None:
        super().__init__()
        settings = (config_path, task, dump_path, level, model, step)
        self._made_of = settings, during
        # Without any, the class gives the debugger that was made last.
        is_new = any(value is not None for value in settings)
        self.debugger = self.debugger_class.another(*settings) if is_new else self.debugger_class()
        self.capture = LoopCapture(self.debugger, during)

    def __reduce__(self) -> tuple[Any, ...]:
        """A copy in another process (a trainer may start some) makes a debugger of its own."""
        settings, during = self._made_of
        return _made_again, (type(self), settings, during)

    def close(self) -> None:
        """Stop, and finish everything now; at the end of the process this happens by itself."""
        self.capture.end_loop()
        self.debugger.close()


def _made_again(kind: type[LoopCallback], settings: tuple[Any, ...], during: Loop) -> LoopCallback:
    return kind(*settings, during=during)


def _cause(error: BaseException | None) -> str:
    return "the training ended" if error is None else f"{type(error).__name__}: {error}"
