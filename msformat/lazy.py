"""Small helpers of the reader: things made on first use, and errors that say what was being read."""

from __future__ import annotations

import contextlib
import os
import threading
from collections.abc import Callable, Iterator
from typing import Any, Generic, TypeVar

from msformat.errors import MsformatError

__all__ = ["Lazy", "reading"]

T = TypeVar("T")
_add_note = getattr(BaseException, "add_note", None)  # None before Python 3.11


class Lazy(Generic[T]):
    """A value made on first use, by one thread only.

    Parameters
    ----------
    make
        Makes the value. When it raises, the next use tries again.
    survives_fork
        Whether a forked child may use what its parent made. Open files it must not share: it makes its own.
    """

    def __init__(self, make: Callable[[], T], *, survives_fork: bool) -> None:
        self._make = make
        self._survives_fork = survives_fork
        self._held: tuple[int, T] | None = None
        # A lock that another thread held while this process was forked stays locked for ever: hence one a process.
        self._locks: dict[int, Any] = {}

    def get(self) -> T:
        """The value."""
        held = self._held
        if held is not None and self._is_ours(held[0]):
            return held[1]
        with self._lock():
            held = self._held
            if held is None or not self._is_ours(held[0]):
                self._held = held = (os.getpid(), self._make())
            return held[1]

    def take(self) -> T | None:
        """Forget the value and return it; None where there is none of ours."""
        with self._lock():
            held, self._held = self._held, None
        return held[1] if held is not None and self._is_ours(held[0]) else None

    def _is_ours(self, process: int) -> bool:
        return self._survives_fork or process == os.getpid()

    def _lock(self) -> Any:
        return self._locks.setdefault(os.getpid(), threading.RLock())


@contextlib.contextmanager
def reading(what: str, source: str) -> Iterator[None]:
    """Give any error that passes one note: ``while reading 'Module.…' from …``."""
    try:
        yield
    except Exception as error:
        _note(error, f"while reading {what!r} from {source}")
        raise


def _note(error: Exception, note: str) -> None:
    if getattr(error, "_msformat_noted", False):
        return
    with contextlib.suppress(AttributeError):  # an exception with slots
        error._msformat_noted = True  # type: ignore[attr-defined]
    if _add_note is not None:
        _add_note(error, note)
    elif isinstance(error, MsformatError) and error.args and isinstance(error.args[0], str):
        error.args = (f"{error.args[0]} ({note})", *error.args[1:])
