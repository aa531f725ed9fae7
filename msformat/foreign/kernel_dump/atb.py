"""ATB tensor files (``.bin``): lines ``name=value``, then the bytes of one tensor directly behind ``$End=1``."""

from __future__ import annotations

import re

from msformat.errors import FormatError
from msformat.filesystem import FileSystem
from msformat.foreign.kernel_dump.enums import format_name, ge_type_name
from msformat.foreign.kernel_dump.record import Block, Doubt, DoubtName, Record

__all__ = ["ATB_MAGIC", "read_atb_file"]

ATB_MAGIC = b"$Version="
_END = b"$End=1\n"
_USUAL_HEADER, _MOST_HEADER = 1 << 10, 1 << 16
_MOST_RECORDS = 10_000
_NUMBER = re.compile(r"-?[0-9]{1,18}")


def read_atb_file(fs: FileSystem, path: str, size: int, source: str) -> list[Record]:
    """Records of a file; the writer appends, so that a second run leaves two.

    Raises
    ------
    FormatError
        It is damaged or cut.
    """
    records: list[Record] = []
    at = 0
    while at < size:
        head = _head(fs, path, at, size)
        if records and (not head.startswith(ATB_MAGIC) or len(records) >= _MOST_RECORDS):
            text = f"{source}: {size - at} bytes behind the last tensor are left over"
            records[-1] = _with_doubt(records[-1], Doubt(DoubtName.left_over, text))
            break
        record, length = _parse(head, at, size, source)
        records.append(record)
        at += length
        if at > size:
            text = f"{source}: $Object.Length reaches {at - size} bytes beyond the end of the file"
            records[-1] = _with_doubt(record, Doubt(DoubtName.left_over, text))
    return records


def _head(fs: FileSystem, path: str, at: int, size: int) -> bytes:
    """The text in front of a tensor; little more than that is read, as a file may hold thousands."""
    head = fs.read(path, at, min(_USUAL_HEADER, size - at))
    if _END not in head and len(head) == _USUAL_HEADER:
        head = fs.read(path, at, min(_MOST_HEADER, size - at))
    return head


def _with_doubt(record: Record, doubt: Doubt) -> Record:
    return Record(record.family, record.blocks, record.version, doubts=(*record.doubts, doubt), alias=record.alias)


def _parse(head: bytes, at: int, size: int, source: str) -> tuple[Record, int]:
    """One record that begins with ``head``, and how many bytes it takes."""
    end = head.find(_END)
    if not head.startswith(ATB_MAGIC) or end < 0:
        raise FormatError(f"{source}: no ATB tensor: no line $End=1 in its first {len(head)} bytes")
    fields = _fields(head[:end], source)
    start = at + end + len(_END)
    shape = _numbers(fields.get("dims", ""), source)
    block = Block("input", 0, ge_type_name(_number(fields, "dtype", source)),
                  format_name(_number(fields, "format", source)), shape=shape)  # fmt: skip
    version = fields.get("$Version", "")
    if "data" in fields:
        return Record("atb", (block,), version, alias=fields["data"]), end + len(_END)
    offset, length = _place(fields, source)
    if start + offset + length > size:
        raise FormatError(f"{source}: the tensor has {length} bytes, there are {max(0, size - start - offset)}")
    whole = max(offset + length, _number(fields, "$Object.Length", source))
    return Record("atb", (block.at(start + offset, length),), version), end + len(_END) + whole


def _fields(text: bytes, source: str) -> dict[str, str]:
    lines = text.decode("utf-8", "backslashreplace").split("\n")
    fields: dict[str, str] = {}
    for line in lines:
        name, equals, value = line.strip().partition("=")
        if name and not equals:
            raise FormatError(f"{source}: no ATB tensor: the line {line[:40]!r} has no '='")
        fields[name] = value.strip()
    return fields


def _number(fields: dict[str, str], name: str, source: str) -> int:
    text = fields.get(name, "")
    if not _NUMBER.fullmatch(text):
        raise FormatError(f"{source}: no ATB tensor: {name}={text[:40]!r} is no number")
    return int(text)


def _numbers(text: str, source: str) -> tuple[int, ...]:
    parts = [part.strip() for part in text.split(",")] if text.strip() else []
    if len(parts) > 64 or not all(part.isascii() and part.isdigit() and len(part) <= 18 for part in parts):
        raise FormatError(f"{source}: no ATB tensor: dims={text[:80]!r} is no shape")
    return tuple(map(int, parts))


def _place(fields: dict[str, str], source: str) -> tuple[int, int]:
    place = _numbers(fields.get("$Object.data", ""), source)
    if len(place) != 2:
        raise FormatError(f"{source}: no ATB tensor: $Object.data={fields.get('$Object.data', '')[:40]!r}")
    return place[0], place[1]
