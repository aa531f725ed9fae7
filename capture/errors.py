"""The error that capture raises on purpose."""

from __future__ import annotations

from msformat import MsformatError

__all__ = ["CaptureError"]


class CaptureError(MsformatError, ValueError):
    """A configuration, an argument or a call that capture cannot follow; the message says what to write instead."""
