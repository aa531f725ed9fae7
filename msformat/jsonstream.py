"""The index of a large document as msprobe writes it, piece by piece: one pass, and no more memory than the keys.

A line of two spaces and a quote begins an entry, so the text can be cut before one. That a cut fell between two entries
is not believed but seen, for a stranger may make it look so elsewhere: every piece has to be members of an object.
Whatever does not fit ends the attempt, and :mod:`msformat.jsonindex` takes the document as a whole.
"""

from __future__ import annotations

import contextlib
import mmap
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from msformat.jsontext import Buffer, mask_constants

__all__ = ["Key", "Places", "Streamed", "address", "release", "stream_index"]

# Below, one pass more costs nothing.
_LEAST = 1 << 20
# Small enough for the processor's cache: a piece is copied, searched and parsed.
_PIECE = 1 << 20
_END = 64 << 10
_OPENING = b'\n "data": {\n  "'
_BETWEEN = b',\n  "'
# Place and length of a value in one number of 63 bits.
_LENGTH_BITS = 28
_MAPPED = 64 << 20
# Bytes of the text around a key: line break, two spaces and a quote before it, a quote, a colon and a space after it.
_BEFORE, _AFTER = 4, 3


class Places(Mapping[str, memoryview]):
    """Values of a document by key: views of the text, made when asked for."""

    def __init__(self, text: memoryview, places: dict[str, int]) -> None:
        self._text = text
        self._places = places
        self._touched = 0

    def __getitem__(self, key: str) -> memoryview:
        place = self._places[key]
        start, length = place >> _LENGTH_BITS, place & ((1 << _LENGTH_BITS) - 1)
        self._touched += length
        if self._touched > _MAPPED:
            self._touched = length
            release(self._text)
        return self._text[start : start + length]

    def __contains__(self, key: object) -> bool:
        return key in self._places

    def __iter__(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)


@dataclass(frozen=True, slots=True)
class Streamed:
    """What :func:`stream_index` finds.

    Attributes
    ----------
    outline
        The document without its entries (``"data": {}``).
    brace
        Where in it the object ``data`` begins.
    entries
        The entries.
    """

    outline: bytes
    brace: int
    entries: Places


def release(text: memoryview) -> None:
    """Let the system take back the memory of a mapped file that was read; it stays readable."""
    mapped = text.obj
    if isinstance(mapped, mmap.mmap) and len(text) > _MAPPED and hasattr(mmap, "MADV_DONTNEED"):
        with contextlib.suppress(OSError, ValueError):
            mapped.madvise(mmap.MADV_DONTNEED)


def stream_index(data: Buffer) -> Streamed | None:
    """Where the entries of a document lie; None where it is small, or not laid out as msprobe does, or has a fault."""
    text = memoryview(data).cast("B")
    if not _LEAST <= len(text) < 1 << 63 - _LENGTH_BITS:
        return None
    opening = bytes(text[:_END]).find(_OPENING)
    tail = bytes(text[-_END:])
    closing = tail.rfind(b"\n }")
    if opening < 0 or closing < 0:
        return None
    start, end = opening + len(_OPENING) - _BEFORE, len(text) - len(tail) + closing
    places = _places_between(text, start, end)
    if places is None:
        return None
    outline = bytes(text[:start]) + bytes(text[end + 2 :])
    return Streamed(outline, start - 1, Places(text, places))


def _places_between(text: memoryview, start: int, end: int) -> dict[str, int] | None:
    places: dict[str, int] = {}
    count, released = 0, start
    for first, piece in _pieces(text, start, end):
        found = _members(piece)
        if found is None:
            return None
        keys, starts, lengths = found
        places.update(zip(keys, ((starts + (first - 1) << _LENGTH_BITS) | lengths).tolist(), strict=True))
        count += len(keys)
        # A key that occurs twice, or a value of an unusual size.
        if count != len(places) or int(lengths.max()) >= 1 << _LENGTH_BITS:
            return None
        if first - released > _MAPPED:
            released = first
            release(text)
    return places


def _pieces(text: memoryview, start: int, end: int) -> Iterator[tuple[int, bytearray]]:
    """The text cut between entries, as it seems, each piece with braces around it and where it began."""
    size = _PIECE
    while start < end:
        piece = bytearray(b"{")
        piece += text[start : min(start + size, end)]
        if start + size >= end:
            piece += b"}"
            yield start, piece
            return
        at = piece.rfind(_BETWEEN)
        if at < 0:
            size *= 2
            continue
        del piece[at + 1 :]
        piece[at] = ord("}")
        yield start, piece
        start, size = start + at, _PIECE


class Key(str):
    """A type of our own, so that msgspec calls the hook for each key, repeated ones too."""

    __slots__ = ()


def _members(piece: bytearray) -> tuple[list[str], NDArray[np.int64], NDArray[np.int64]] | None:
    """Keys of an object's members, and where in it their values lie; None where it is none, or has no members."""
    readable = piece
    found = _decode(readable, str)
    if found is None:
        masked = mask_constants(piece)
        readable = piece if masked is None else masked.text
        found = None if masked is None else _decode(readable, str)
    if not found:
        return None
    keys, lengths = list(found), _lengths(found)
    starts = _usual_starts(np.frombuffer(piece, np.uint8), keys, lengths)
    return (keys, starts, lengths) if starts is not None else _unusual_members(readable)


def _unusual_members(piece: bytearray) -> tuple[list[str], NDArray[np.int64], NDArray[np.int64]] | None:
    found = _decode(piece, Key)
    base = address(piece)
    starts = np.fromiter((address(raw) - base for raw in (found or {}).values()), np.int64)
    return ([str(key) for key in found], starts, _lengths(found)) if found else None


def _lengths(found: Mapping[str, msgspec.Raw]) -> NDArray[np.int64]:
    return np.fromiter((memoryview(raw).nbytes for raw in found.values()), np.int64, len(found))


def _decode(text: bytearray, kind: type[str]) -> dict[str, msgspec.Raw] | None:
    """Members by key; none for a key that occurs twice, where the keys are of a type that shows it."""
    seen = 0

    def count(_: type, key: str) -> Key:
        nonlocal seen
        seen += 1
        return Key(key)

    try:
        found: dict[str, msgspec.Raw] = msgspec.json.decode(text, type=dict[kind, msgspec.Raw], dec_hook=count)  # type: ignore[valid-type]
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
    return found if kind is str or len(found) == seen else None


def _usual_starts(piece: NDArray[np.uint8], keys: list[str], lengths: NDArray[np.int64]) -> NDArray[np.int64] | None:
    """Where values lie if every key stands in its line as it is, without an escape; None if one does not.

    Each value ends where the next line begins, so one comparison a key, in order, is a proof for all of them. A key
    that occurs twice leaves a part of the text over.
    """
    key_lengths = np.fromiter(map(len, keys), np.int64, len(keys))
    # One byte before the first, the brace, as the comma before any other.
    ends = np.cumsum(key_lengths + lengths + (_BEFORE + _AFTER + 1))
    starts = ends - lengths
    if ends[-1] != len(piece) - 1:
        return None
    begins = starts - key_lengths - (_BEFORE + _AFTER)
    # No space before a value, so it begins there; and no escape at the end of a key, so that is its end.
    is_usual = (piece[ends[:-1]] == ord(",")).all() and (piece[starts - 4] != ord("\\")).all()
    is_usual = is_usual and (piece[starts] > ord(" ")).all()
    for offset, character in enumerate(b'\n  "'):
        is_usual = is_usual and (piece[begins + offset] == character).all()
    for offset, character in enumerate(b'": '):
        is_usual = is_usual and (piece[starts - _AFTER + offset] == character).all()
    return starts if is_usual else None


def address(part: Any) -> int:
    """Where a buffer begins in memory. A raw value does not say its offset, but it is a view of the text."""
    return int(np.frombuffer(part, dtype=np.uint8).__array_interface__["data"][0])
