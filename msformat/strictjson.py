"""Documents as RFC 8259 has JSON: the bare words NaN, Infinity and -Infinity become strings of the same letters.

Nothing else changes, not even a blank. Readers of this package know both, ``float()`` of Python does, and so does
pandas, by which msprobe 8.1.0 compares statistics. What was a number and what was a string is told by the place:
statistics are numbers, and a value stands beside its type.
"""

from __future__ import annotations

from collections.abc import Iterator

from msformat.jsontext import Buffer, constant_spans

__all__ = ["has_bare_words", "strict_pieces"]

_PIECE = 1 << 20


def has_bare_words(data: Buffer) -> bool:
    """Whether a text has a NaN or an infinity outside of strings."""
    return any(constant_spans(piece) for piece in _lines(data))


def strict_pieces(data: Buffer) -> Iterator[bytes]:
    """The text in strict JSON, some lines at a time.

    Parameters
    ----------
    data
        A JSON text; what is broken in it stays as it is.
    """
    for piece in _lines(data):
        parts: list[bytes] = []
        start = 0
        for first, end in constant_spans(piece):
            parts += (piece[start:first], b'"', piece[first:end], b'"')
            start = end
        yield b"".join((*parts, piece[start:]))


def _lines(data: Buffer) -> Iterator[bytes]:
    """The text cut behind line breaks, which no string of JSON holds."""
    text = memoryview(data).cast("B")
    start, size = 0, _PIECE
    while start < len(text):
        piece = bytes(text[start : start + size])
        end = len(piece) if start + size >= len(text) else piece.rfind(b"\n") + 1
        if not end:
            size *= 2
            continue
        yield piece[:end]
        start, size = start + end, _PIECE
