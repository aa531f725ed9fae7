"""``DumpData``: the protobuf message of dump files of version 2, and the whole file of version 1."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from typing import Any, NamedTuple, TypeAlias

from msformat.errors import FormatError
from msformat.foreign.kernel_dump.enums import format_name, proto_type_name
from msformat.foreign.kernel_dump.record import Block, Record
from msformat.foreign.kernel_dump.wire import Origin, WireField, packed_numbers, read_fields, signed32

__all__ = ["Message", "parse_dump_data"]

# No operator has as many; a header of two bytes a tensor must not become gigabytes of objects.
_MOST_BLOCKS = 100_000
_MOST_DIMS = 64
# The log of an exception dump is the longest there is.
_LONGEST_TEXT = 16 << 20
_VARINT, _BYTES = 0, 2

Values: TypeAlias = "dict[str, Any]"


class Message(NamedTuple):
    """A header and where the inline data of its blocks lie.

    Attributes
    ----------
    record
        Blocks without places.
    inline
        Start and length of the bytes inside the message, a pair a block in the same order (version 1); (0, 0) for none.
    """

    record: Record
    inline: tuple[tuple[int, int], ...]


# field number -> name of what it holds; kinds: n number, i int32, t text, d bytes, s shape, m message
_OUTPUT = {
    1: "n:type", 2: "n:format", 3: "s:shape", 4: "m:original_op", 5: "d:data", 6: "n:size", 7: "s:original_shape",
    8: "i:sub_format", 9: "n:address", 10: "m:dim_range", 11: "n:offset", 12: "n:arg_index",
}  # fmt: skip
_INPUT = {
    1: "n:type", 2: "n:format", 3: "s:shape", 4: "d:data", 5: "n:size", 6: "s:original_shape", 7: "i:sub_format",
    8: "n:address", 9: "n:offset", 10: "n:arg_index", 11: "n:input_type",
}  # fmt: skip
_BUFFER = {1: "n:buffer_type", 2: "d:data", 3: "n:size"}
_SPACE = {1: "n:space_type", 2: "d:data", 3: "n:size", 4: "n:arg_index"}
_DUMP_DATA = {
    1: "t:version", 2: "n:dump_time", 3: "m:output", 4: "m:input", 5: "m:buffer", 6: "t:op_name", 7: "m:attr",
    8: "m:space", 9: "t:message",
}  # fmt: skip
_ORIGINAL_OP = {1: "t:name", 2: "n:output_index", 3: "n:type", 4: "n:format"}
_DIM_RANGE = {1: "n:start", 2: "n:end"}
_ATTR = {1: "t:name", 2: "t:value"}
_SLOTS = {"input": _INPUT, "output": _OUTPUT, "buffer": _BUFFER, "space": _SPACE}
_INPUT_TYPES = (
    "", "general", "input", "output", "workspace", "AscendC log", "MC2 ctx", "tiling", "L1", "L2", "overflow addr",
    "FFTS addr", "shape",
)  # fmt: skip


def parse_dump_data(buffer: memoryview, start: int, end: int, source: str, *, family: str) -> Message:
    """Parse a ``DumpData`` message.

    Raises
    ------
    FormatError
        It is none, or claims to hold absurdly many tensors.
    """
    origin = Origin(source)
    values = _decode(buffer, start, end, _DUMP_DATA, origin)
    parts = [
        _block(buffer, slot, index, span, origin) for slot in _SLOTS for index, span in enumerate(values.get(slot, ()))
    ]
    attrs = [_decode(buffer, span[0], span[1], _ATTR, origin) for span in values.get("attr", ())]
    record = Record(
        family,
        tuple(block for block, _ in parts),
        version=values.get("version", ""),
        dump_time=values.get("dump_time", 0),
        op_name=values.get("op_name", ""),
        attributes={attr.get("name", ""): attr.get("value", "") for attr in attrs},
        message=values.get("message", ""),
    )
    return Message(record, tuple(inline for _, inline in parts))


def _decode(buffer: memoryview, start: int, end: int, names: Mapping[int, str], source: Origin) -> Values:
    """Known fields of a message by name; the last of several counts, messages are collected."""
    values: Values = {}
    count = 0
    for field in read_fields(buffer, start, end, source):
        kind, _, name = names.get(field.number, "").partition(":")
        if not kind or field.wire != (_VARINT if kind in "ni" else _BYTES):
            continue  # an unknown field, or one of another type than expected, which protobuf treats as unknown
        if kind == "m":
            count += 1
            if count > _MOST_BLOCKS:
                raise FormatError(f"{source}: more than {_MOST_BLOCKS} tensors in one header")
            values.setdefault(name, []).append((field.start, field.end))
        else:
            values[name] = _READERS[kind](buffer, field, source)
    return values


def _text(buffer: memoryview, field: WireField, source: Origin) -> str:
    if field.value > _LONGEST_TEXT:
        raise FormatError(f"{source}: a text of {field.value} bytes in the header")
    return bytes(buffer[field.start : field.end]).decode("utf-8", "backslashreplace")


def _shape(buffer: memoryview, field: WireField, source: Origin) -> tuple[int, ...]:
    dims: list[int] = []
    for inner in read_fields(buffer, field.start, field.end, source):
        if inner.number == 1:
            dims += packed_numbers(buffer, inner, source, _MOST_DIMS)
        if len(dims) > _MOST_DIMS:
            raise FormatError(f"{source}: a shape of more than {_MOST_DIMS} axes")
    return tuple(dims)


_READERS: dict[str, Callable[[memoryview, WireField, Origin], Any]] = {
    "n": lambda _, field, __: field.value,
    "i": lambda _, field, __: signed32(field.value),
    "t": _text,
    "d": lambda _, field, __: (field.start, field.end - field.start),
    "s": _shape,
}


def _block(
    buffer: memoryview, slot: str, index: int, span: tuple[int, int], source: Origin
) -> tuple[Block, tuple[int, int]]:
    values = _decode(buffer, span[0], span[1], _SLOTS[slot], source)
    inline: tuple[int, int] = values.pop("data", (0, 0))
    is_tensor = slot in ("input", "output")
    original = _original_op(buffer, values.pop("original_op", ()), source)
    number = values.pop("format", 0)
    block = Block(
        slot,
        index,
        type_name=proto_type_name(values.pop("type", 0)) if is_tensor else "uint8",
        format_name=format_name(number) if is_tensor else "ND",
        size=values.pop("size", 0),
        shape=values.pop("shape", None),
        original_shape=values.pop("original_shape", None),
        sub_format=values.pop("sub_format", number >> 8 & 0xFFFF),
        address=values.pop("address", 0),
        original_format=format_name(original["format"]) if "format" in original else None,
        extra=dict(_storage_kind(slot, values)) | dict(_extra(buffer, values, original, source)),
    )
    return block, inline


def _original_op(buffer: memoryview, spans: list[tuple[int, int]] | tuple[()], source: Origin) -> Values:
    return _decode(buffer, spans[-1][0], spans[-1][1], _ORIGINAL_OP, source) if spans else {}


def _extra(buffer: memoryview, values: Values, original: Values, source: Origin) -> Iterator[tuple[str, Any]]:
    """What is left of a block's message, in words."""
    ranges = [_decode(buffer, span[0], span[1], _DIM_RANGE, source) for span in values.pop("dim_range", ())]
    if ranges:
        yield "dim_range", [[item.get("start", 0), item.get("end", 0)] for item in ranges]
    if original:
        yield (
            "original_op",
            {
                "name": original.get("name", ""),
                "output_index": original.get("output_index", 0),
                "data_type": proto_type_name(original.get("type", 0)),
                "format": format_name(original.get("format", 0)),
            },
        )
    kind = values.pop("input_type", 0)
    if kind:
        yield "input_type", _INPUT_TYPES[kind] if kind < len(_INPUT_TYPES) else f"unknown_{kind}"
    yield from ((name, value) for name, value in values.items() if value)


def _storage_kind(slot: str, values: Values) -> Iterator[tuple[str, str]]:
    """What a buffer or workspace is; 0, which proto3 leaves out, has a meaning."""
    name, first = {"buffer": ("buffer_type", "L1"), "space": ("space_type", "LOG")}.get(slot, ("", ""))
    if name:
        number = values.pop(name, 0)
        yield name, first if number == 0 else f"unknown_{number}"
