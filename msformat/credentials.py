"""What must not be shown: users and passwords in URLs, and what signed URLs are signed with."""

from __future__ import annotations

import re

__all__ = ["hide_credentials"]

_USER = re.compile(r"(?<=://)[^/@\s]*@")
_SIGNED = re.compile(r"(?i)([?&][^=&\s]*(?:signature|credential|token|secret|password|key|sig)[^=&\s]*=)[^&\s'\"]+")


def hide_credentials(text: str) -> str:
    """A text for people, with ``***`` in the place of every credential in a URL."""
    return _SIGNED.sub(r"\1***", _USER.sub("***@", text)) if "://" in text else text
