"""The error that capture raises on purpose, and errors that are not its own."""

from __future__ import annotations

from msformat import MsformatError

__all__ = ["CaptureError", "is_foreign", "mark_foreign"]


class CaptureError(MsformatError, ValueError):
    """A configuration, an argument or a call that capture cannot follow; the message says what to write instead."""


def mark_foreign(error: BaseException) -> None:
    """Note that the program itself went wrong: its error came out where capture waited, and has to reach it."""
    vars(error)["_capture_is_foreign"] = True


def is_foreign(error: BaseException) -> bool:
    """Whether the error was marked."""
    return "_capture_is_foreign" in vars(error)
