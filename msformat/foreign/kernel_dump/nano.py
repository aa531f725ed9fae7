"""Nano files, which small systems write: a head of tag-length-value records in place of protobuf.

Element types are numbers of the GE enumeration, not those of ``DumpData``.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from typing import Any, NamedTuple

from msformat.errors import FormatError
from msformat.foreign.kernel_dump.enums import format_name, ge_type_name
from msformat.foreign.kernel_dump.record import Block, Record

__all__ = ["NANO_MAGIC", "parse_nano_head"]

NANO_MAGIC = 0x5A5A5A5A
_INPUTS, _OUTPUTS = 4, 5
_SHAPE, _ORIGINAL_SHAPE, _ORIGINAL_NAME = 0, 1, 2
_INPUT = struct.Struct("<iiiQQQI")
_OUTPUT = struct.Struct("<iiiiiiQQQI")
_TLV = struct.Struct("<II")
_COUNT = struct.Struct("<I")
_MOST_DIMS = 64
_ADDRESS_TYPES = ("traditional", "no tiling", "raw", "nano io", "nano weight", "nano work")


class _Span(NamedTuple):
    tag: int
    start: int
    end: int


def parse_nano_head(buffer: memoryview, source: str) -> Record:
    """Parse the head, ``u32 0x5A5A5A5A`` at its beginning; blocks come without places.

    Raises
    ------
    FormatError
        It is damaged.
    """
    magic, version = _unpack(_TLV, buffer, 0, len(buffer), source)
    if magic != NANO_MAGIC:
        raise FormatError(f"{source}: no head of a nano dump")
    blocks: list[Block] = []
    counts = {"input": 0, "output": 0}
    for span in _spans(buffer, _TLV.size, len(buffer), source):
        if span.tag in (_INPUTS, _OUTPUTS):
            slot = "input" if span.tag == _INPUTS else "output"
            found = list(_tensors(buffer, span, slot, counts[slot], source))
            counts[slot] += len(found)
            blocks += found
    blocks.sort(key=lambda block: block.slot != "input")
    return Record("nano", tuple(blocks), version=str(version))


def _unpack(form: struct.Struct, buffer: memoryview, at: int, end: int, source: str) -> tuple[Any, ...]:
    if at + form.size > end:
        raise FormatError(f"{source}: damaged nano head: it ends inside a record at byte {at}")
    return form.unpack_from(buffer, at)


def _spans(buffer: memoryview, at: int, end: int, source: str) -> Iterator[_Span]:
    while at < end:
        tag, length = _unpack(_TLV, buffer, at, end, source)
        at += _TLV.size
        if length > end - at:
            raise FormatError(f"{source}: damaged nano head: record {tag} claims {length} bytes of {end - at}")
        yield _Span(tag, at, at + length)
        at += length


def _tensors(buffer: memoryview, span: _Span, slot: str, first: int, source: str) -> Iterator[Block]:
    (count,) = _unpack(_COUNT, buffer, span.start, span.end, source)
    at = span.start + _COUNT.size
    form = _INPUT if slot == "input" else _OUTPUT
    for index in range(first, first + count):
        head = _unpack(form, buffer, at, span.end, source)
        at += form.size
        if head[-1] > span.end - at:
            raise FormatError(f"{source}: damaged nano head: {slot} {index} claims {head[-1]} bytes of {span.end - at}")
        yield _block(buffer, slot, index, head, _Span(0, at, at + head[-1]), source)
        at += head[-1]
    if at != span.end:
        raise FormatError(f"{source}: damaged nano head: {span.end - at} bytes behind the last {slot}")


def _block(buffer: memoryview, slot: str, index: int, head: tuple[int, ...], span: _Span, source: str) -> Block:
    data_type, layout, address_type, *rest = head
    address, offset, size = rest[-4:-1]
    extra: dict[str, Any] = {"address_type": _address_type(address_type)}
    if offset:
        extra["offset"] = offset
    if slot == "output":
        original_index, original_type, original_format = rest[:3]
        extra["original_op"] = {
            "name": "",
            "output_index": original_index,
            "data_type": ge_type_name(original_type),
            "format": format_name(original_format),
        }
    shapes: dict[int, tuple[int, ...]] = {}
    for inner in _spans(buffer, span.start, span.end, source):
        if inner.tag in (_SHAPE, _ORIGINAL_SHAPE):
            shapes[inner.tag] = _shape(buffer, inner, source)
        elif inner.tag == _ORIGINAL_NAME and "original_op" in extra:
            extra["original_op"]["name"] = bytes(buffer[inner.start : inner.end]).decode("utf-8", "backslashreplace")
    return Block(
        slot, index, ge_type_name(data_type), format_name(layout), size,
        shape=shapes.get(_SHAPE), original_shape=shapes.get(_ORIGINAL_SHAPE), address=address,
        original_format=extra["original_op"]["format"] if slot == "output" else None, extra=extra,
    )  # fmt: skip


def _address_type(number: int) -> str:
    return _ADDRESS_TYPES[number] if 0 <= number < len(_ADDRESS_TYPES) else f"unknown_{number}"


def _shape(buffer: memoryview, span: _Span, source: str) -> tuple[int, ...]:
    count, rest = divmod(span.end - span.start, 8)
    if rest or count > _MOST_DIMS:
        raise FormatError(f"{source}: damaged nano head: a shape of {span.end - span.start} bytes")
    return struct.unpack_from(f"<{count}Q", buffer, span.start)
