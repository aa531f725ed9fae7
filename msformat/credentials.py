"""What must not be shown: users and passwords in URLs, and what signed URLs are signed with."""

from __future__ import annotations

import re

__all__ = ["hide_credentials"]

_USER = re.compile(r"(?<=://)[^/@\s]*@")
# A name ends where another may begin, so that no character is looked at twice: text of a stranger may be nothing else.
_PARAMETER = re.compile(r"[?&]([^=&?\s]*)=(?=[^&\s'\"])")
_SECRET = re.compile(r"(?i)signature|credential|token|secret|password|key|sig")
_VALUE = re.compile(r"[^&\s'\"]+")


def hide_credentials(text: str) -> str:
    """A text for people, with ``***`` in the place of every credential in a URL."""
    return _unsigned(_USER.sub("***@", text)) if "://" in text else text


def _unsigned(text: str) -> str:
    kept, at = list[str](), 0
    for name in _PARAMETER.finditer(text):
        value = _VALUE.match(text, name.end()) if name.start() >= at and _SECRET.search(name[1]) else None
        if value is not None:
            kept += [text[at : name.end()], "***"]
            at = value.end()
    return "".join(kept) + text[at:]
