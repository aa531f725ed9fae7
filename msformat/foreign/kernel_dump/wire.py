"""Protocol-buffer wire format, as much as a dump header needs: fields as numbers and ranges, nothing copied.

Source: the encoding guide of protocol buffers. Group markers (3, 4) and wire types that do not exist (6, 7) are
refused, as is anything that reaches beyond its message; fields of unknown number are skipped.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from msformat.errors import FormatError

__all__ = ["Origin", "WireField", "packed_numbers", "read_fields", "signed32"]

_VARINT, _FIXED64, _BYTES, _FIXED32 = 0, 1, 2, 5
_MASK = (1 << 64) - 1
_LARGEST_FIELD = (1 << 29) - 1


# A header of many tensors has a few hundred thousand; each is decoded in Python.
_MOST_FIELDS = 5_000_000


class Origin:
    """What errors call a message, and how many fields it may still have.

    Parameters
    ----------
    text
        Name of the file.
    """

    __slots__ = ("_left", "_text")

    def __init__(self, text: str) -> None:
        self._text = text
        self._left = _MOST_FIELDS

    def __str__(self) -> str:
        return self._text

    def count(self) -> None:
        """One more field.

        Raises
        ------
        FormatError
            There were more than any header has.
        """
        self._left -= 1
        if self._left < 0:
            raise FormatError(f"{self._text}: more than {_MOST_FIELDS} fields in one header")


class WireField(NamedTuple):
    """One field of a message.

    Attributes
    ----------
    number, wire
        Field number and wire type.
    value
        Of a varint or fixed field; the length of a length-delimited one.
    start, end
        Where the content of a length-delimited field lies in the buffer.
    """

    number: int
    wire: int
    value: int
    start: int
    end: int


def read_fields(buffer: memoryview, start: int, end: int, source: str | Origin) -> Iterator[WireField]:
    """Fields of the message in ``buffer[start:end]``, in order. An :class:`Origin` counts them.

    Raises
    ------
    FormatError
        It is no message; says at which byte it stops being one.
    """
    at = start
    while at < end:
        if isinstance(source, Origin):
            source.count()
        tag, after = _varint(buffer, at, end, source)
        number, wire = tag >> 3, tag & 7
        if not 1 <= number <= _LARGEST_FIELD:
            raise FormatError(f"{source}: no protobuf message: field number {number} at byte {at}")
        field = _field(buffer, number, wire, after, end, source)
        yield field
        at = field.end


def _field(buffer: memoryview, number: int, wire: int, at: int, end: int, source: str | Origin) -> WireField:
    if wire == _VARINT:
        value, after = _varint(buffer, at, end, source)
        return WireField(number, wire, value, at, after)
    if wire == _BYTES:
        length, after = _varint(buffer, at, end, source)
        if length > end - after:
            raise FormatError(
                f"{source}: no protobuf message: field {number} at byte {at} claims {length} bytes of {end - after}"
            )
        return WireField(number, wire, length, after, after + length)
    if wire in (_FIXED32, _FIXED64):
        after = at + (4 if wire == _FIXED32 else 8)
        if after > end:
            raise FormatError(f"{source}: no protobuf message: it ends inside field {number} at byte {at}")
        return WireField(number, wire, int.from_bytes(buffer[at:after], "little"), at, after)
    raise FormatError(f"{source}: no protobuf message: wire type {wire} at byte {at}")


def _varint(buffer: memoryview, at: int, end: int, source: str | Origin) -> tuple[int, int]:
    value = shift = 0
    while at < end and shift < 70:
        byte = buffer[at]
        at += 1
        value |= (byte & 0x7F) << shift
        if byte < 0x80:
            return value & _MASK, at
        shift += 7
    why = "a number of more than ten bytes" if shift >= 70 else "it ends inside a number"
    raise FormatError(f"{source}: no protobuf message: {why} at byte {at}")


def packed_numbers(buffer: memoryview, field: WireField, source: str | Origin, most: int) -> list[int]:
    """Numbers of a repeated integer field in either form: packed, or one a field.

    Raises
    ------
    FormatError
        A number is broken, or there are more than ``most``.
    """
    if field.wire == _VARINT:
        return [field.value]
    numbers: list[int] = []
    at = field.start if field.wire == _BYTES else field.end
    while at < field.end:
        number, at = _varint(buffer, at, field.end, source)
        numbers.append(number)
        if len(numbers) > most:
            raise FormatError(f"{source}: a list of more than {most} numbers at byte {field.start}")
    return numbers


def signed32(value: int) -> int:
    """An int32 field: negative ones travel as 64-bit two's complement in ten bytes."""
    low = value & 0xFFFFFFFF
    return low - (1 << 32) if low >= 1 << 31 else low
