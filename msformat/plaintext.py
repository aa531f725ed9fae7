"""A stranger's text, made fit to be shown: on a terminal, in a page, in a figure, in a spreadsheet."""

from __future__ import annotations

import unicodedata

from msformat.credentials import hide_credentials

__all__ = ["csv_text", "plain", "shortened"]

_URL = 4096
# What a spreadsheet takes for the beginning of a formula; the last four are as wide as Chinese characters.
_FORMULA = ("=", "+", "-", "@", "\t", "\r", "\n", "\uff1d", "\uff0b", "\uff0d", "\uff20")


def plain(text: str) -> str:
    """Text with control characters (terminal escapes among them) and lone surrogates made visible, credentials not."""
    text = hide_credentials(text)
    if text.isascii() and text.isprintable():
        return text
    return "".join(
        char if char == " " or unicodedata.category(char)[0] not in "CZ" else char.encode("unicode_escape").decode()
        for char in text
    )


def shortened(text: str, most: int) -> str:
    """:func:`plain` text of about ``most`` characters; the middle is left out, since names differ at both ends."""
    # A stranger's name may be megabytes long: it is cut before it is looked at, but credentials go before the cut.
    if "://" in text:
        text = hide_credentials(text[:_URL])
    if len(text) > most:
        tail = most // 2
        text = f"{text[: most - tail - 1]}…{text[-tail:]}"
    return plain(text)


def csv_text(text: str) -> str:
    """Text for a cell of CSV; what a spreadsheet would calculate (``=cmd|…``) begins with ``'``, which it hides.

    Numbers stay, also those that strict JSON has as text (``-Infinity``). NUL, which ends a text for many readers, and
    which Python 3.10 neither writes nor reads, is spelled ``\\x00``.
    """
    text = text.replace("\0", "\\x00")
    return f"'{text}" if text.startswith(_FORMULA) and not _is_number(text) else text


def _is_number(text: str) -> bool:
    try:
        float(text)
    except ValueError:
        return False
    return True
