"""The part of zip that ``.pt`` needs: where stored members lie, and how to lay them out.

``zipfile`` would decompress whatever a stranger wrote and knows no alignment; here a member is an offset and a size in
a buffer, and anything but stored, plain, non-overlapping members is refused by name. Field layouts: PKWARE APPNOTE 6.3.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TypeAlias

from msformat.digest import crc32
from msformat.errors import CorruptTensorError, FormatError, UnsafeInputError

__all__ = ["ALIGNMENT", "Member", "looks_like_zip", "read_members", "zip_parts"]

Buffer: TypeAlias = "bytes | memoryview"

# torch aligns storages to 64 bytes so that they can be mapped and used in place.
ALIGNMENT = 64
# A tensor file has about seven members; a directory of millions is an attack on memory.
MAX_MEMBERS = 4096
_LOCAL = struct.Struct("<IHHHHHIIIHH")
_CENTRAL = struct.Struct("<IHHHHHHIIIHHHHHII")
_END = struct.Struct("<IHHHHIIH")
_END64 = struct.Struct("<IQHHIIQQQQ")
_LOCATOR64 = struct.Struct("<IIQI")
_LOCAL_MAGIC, _CENTRAL_MAGIC, _END_MAGIC = 0x04034B50, 0x02014B50, 0x06054B50
_END64_MAGIC, _LOCATOR64_MAGIC = 0x06064B50, 0x07064B50
_FULL16, _FULL32 = 0xFFFF, 0xFFFFFFFF
_METHODS = {8: "deflate", 9: "deflate64", 12: "bzip2", 14: "lzma", 93: "zstandard", 95: "xz"}


@dataclass(frozen=True, slots=True)
class Member:
    """A stored member: ``size`` bytes at ``offset`` of the file; ``crc`` is 0 where the writer left it out."""

    name: str
    offset: int
    size: int
    crc: int


def looks_like_zip(head: Buffer) -> bool:
    """Whether a file begins as a zip does, empty ones included."""
    return bytes(head[:4]) in (b"PK\x03\x04", b"PK\x05\x06")


def read_members(buffer: Buffer, source: str) -> dict[str, Member]:
    """Members of a zip that lies whole in ``buffer``, by name.

    Parameters
    ----------
    buffer
        The file, read or mapped.
    source
        What to call the file in messages.

    Raises
    ------
    CorruptTensorError
        The file is cut short.
    FormatError
        Compressed, encrypted or split members, or no zip at all.
    UnsafeInputError
        Members that overlap, repeat a name, or lie outside the file.
    """
    count, size, start, limit = _find_directory(buffer, source)
    members: dict[str, Member] = {}
    spans: list[tuple[int, int]] = []
    at = start
    for _ in range(count):
        if at + _CENTRAL.size > start + size:
            raise FormatError(f"{source}: the zip directory is shorter than its {count} members need")
        member, local, at = _central_entry(buffer, at, start, source)
        if member.name in members:
            raise UnsafeInputError(f"{source}: two zip members are named {member.name!r}")
        members[member.name] = member
        spans.append((local, member.offset + member.size))
    _check_spans(spans, limit, source)
    return members


def _find_directory(buffer: Buffer, source: str) -> tuple[int, int, int, int]:
    """Number of members, size and offset of the directory, and where data must have ended."""
    total = len(buffer)
    at = total - _END.size
    if bytes(buffer[max(at, 0) : at + 4]) != b"PK\x05\x06":  # a comment follows, or nothing good
        first = max(0, total - _END.size - _FULL16)
        at = bytes(buffer[first:]).rfind(b"PK\x05\x06") + first
        at = -1 if at < first else at
    if not 0 <= at <= total - _END.size:
        raise CorruptTensorError(f"{source}: the zip has no end record: the file is cut short")
    _, disk, first_disk, _, count, size, start, _ = _END.unpack_from(buffer, at)
    end = at
    if count == _FULL16 or _FULL32 in (size, start):
        count, size, start, end = _find_directory64(buffer, at, source)
    if disk not in (0, _FULL16) or first_disk not in (0, _FULL16):
        raise FormatError(f"{source}: is one part of a split zip")
    if count > MAX_MEMBERS:
        raise UnsafeInputError(f"{source}: declares {count} zip members, where a tensor has about seven")
    if start + size > end:
        raise UnsafeInputError(f"{source}: the zip directory at {start} (+{size}) lies outside the file")
    return count, size, start, start


def _find_directory64(buffer: Buffer, end: int, source: str) -> tuple[int, int, int, int]:
    at = end - _LOCATOR64.size
    if at >= 0:
        magic, _, where, _ = _LOCATOR64.unpack_from(buffer, at)
        if magic == _LOCATOR64_MAGIC and where + _END64.size <= at:
            magic, _, _, _, _, _, _, count, size, start = _END64.unpack_from(buffer, where)
            if magic == _END64_MAGIC:
                return count, size, start, where
    raise FormatError(f"{source}: the zip64 end record is missing or misplaced")


def _central_entry(buffer: Buffer, at: int, limit: int, source: str) -> tuple[Member, int, int]:
    """One directory entry: the member, where its local header lies, and where the next entry begins."""
    fields = _CENTRAL.unpack_from(buffer, at)
    magic, flags, method, crc, packed, size = fields[0], fields[3], fields[4], fields[7], fields[8], fields[9]
    name_length, extra_length, comment_length, local = fields[10], fields[11], fields[12], fields[16]
    if magic != _CENTRAL_MAGIC:
        raise FormatError(f"{source}: damaged zip directory at byte {at}")
    at += _CENTRAL.size
    raw_name = bytes(buffer[at : at + name_length])
    name = raw_name.decode("utf-8", "replace")
    extra = bytes(buffer[at + name_length : at + name_length + extra_length])
    if flags & 0x2041:
        raise FormatError(f"{source}: zip member {name!r} is encrypted")
    if method != 0:
        raise FormatError(
            f"{source}: zip member {name!r} is compressed ({_METHODS.get(method, method)}); torch never writes such"
        )
    size, packed, local = _wide_fields(extra, (size, packed, local), source)
    if size != packed:
        raise FormatError(f"{source}: zip member {name!r} is stored, yet has {packed} bytes for {size}")
    offset = _data_offset(buffer, local, raw_name, limit, source)
    return Member(name, offset, size, crc), local, at + name_length + extra_length + comment_length


def _wide_fields(extra: bytes, fields: tuple[int, int, int], source: str) -> tuple[int, int, int]:
    """Size, packed size and offset, from the zip64 extra where the plain field is full."""
    if _FULL32 not in fields:
        return fields
    at = 0
    while at + 4 <= len(extra):
        kind, length = struct.unpack_from("<HH", extra, at)
        if kind == 1:
            wide = [v for (v,) in struct.iter_unpack("<Q", extra[at + 4 : at + 4 + length // 8 * 8])]
            if len(wide) >= fields.count(_FULL32):
                size, packed, local = (wide.pop(0) if value == _FULL32 else value for value in fields)
                return size, packed, local
        at += 4 + length
    raise FormatError(f"{source}: a zip64 field is missing")


def _data_offset(buffer: Buffer, local: int, name: bytes, limit: int, source: str) -> int:
    """Where the data of a member begin; its local header must agree with the directory."""
    if local + _LOCAL.size > limit:
        raise UnsafeInputError(f"{source}: zip member {name!r} lies outside the file")
    fields = _LOCAL.unpack_from(buffer, local)
    begin = local + _LOCAL.size
    if fields[0] != _LOCAL_MAGIC or bytes(buffer[begin : begin + fields[9]]) != name:
        raise UnsafeInputError(f"{source}: the local header of zip member {name!r} does not match the directory")
    return int(begin + fields[9] + fields[10])


def _check_spans(spans: list[tuple[int, int]], limit: int, source: str) -> None:
    """Members, headers included, must lie apart and before the directory."""
    reached = 0
    for begin, end in sorted(spans):
        if begin < reached:
            raise UnsafeInputError(f"{source}: zip members overlap at byte {begin}")
        reached = end
    if reached > limit:
        raise UnsafeInputError(f"{source}: a zip member ends at byte {reached}, behind the directory at {limit}")


def zip_parts(members: Sequence[tuple[str, Sequence[Buffer]]]) -> list[Buffer]:
    """The parts of a stored zip, data aligned to 64 bytes, to be written one after the other.

    Parameters
    ----------
    members
        Name and the buffers of each member's data. The buffers are returned as they are, never copied.
    """
    parts: list[Buffer] = []
    directory = bytearray()
    at = 0
    for name, buffers in members:
        size = sum(len(buffer) for buffer in buffers)
        crc = 0
        for buffer in buffers:
            crc = crc32(buffer, crc)
        header = _local_header(name.encode(), at, size, crc)
        parts += [header, *buffers]
        directory += _directory_entry(name.encode(), at, size, crc)
        at += len(header) + size
    parts.append(bytes(directory) + _end_records(len(members), len(directory), at))
    return parts


def _local_header(name: bytes, at: int, size: int, crc: int) -> bytes:
    wide = struct.pack("<HHQQ", 1, 16, size, size) if size >= _FULL32 else b""
    shown = _FULL32 if wide else size
    # The padding is an extra field of its own ("FB", as torch names it), which takes at least its four-byte head.
    padding = -(at + _LOCAL.size + len(name) + len(wide) + 4) % ALIGNMENT
    extra = wide + struct.pack("<2sH", b"FB", padding) + b"Z" * padding
    fixed = _LOCAL.pack(_LOCAL_MAGIC, 45 if wide else 20, 0x0800, 0, 0, 0x21, crc, shown, shown, len(name), len(extra))
    return fixed + name + extra


def _directory_entry(name: bytes, at: int, size: int, crc: int) -> bytes:
    wide = b""
    if size >= _FULL32 or at >= _FULL32:
        wide = b"".join(struct.pack("<Q", value) for value in (size, size, at) if value >= _FULL32)
    extra = struct.pack("<HH", 1, len(wide)) + wide if wide else b""
    shown_size, shown_at = min(size, _FULL32), min(at, _FULL32)
    version = 45 if wide else 20
    return (
        _CENTRAL.pack(
            _CENTRAL_MAGIC, version, version, 0x0800, 0, 0, 0x21, crc, shown_size, shown_size,
            len(name), len(extra), 0, 0, 0, 0, shown_at,
        )
        + name
        + extra
    )  # fmt: skip


def _end_records(count: int, size: int, start: int) -> bytes:
    wide = b""
    if count >= _FULL16 or size >= _FULL32 or start >= _FULL32:
        end64 = _END64.pack(_END64_MAGIC, _END64.size - 12, 45, 45, 0, 0, count, count, size, start)
        wide = end64 + _LOCATOR64.pack(_LOCATOR64_MAGIC, 0, start + size, 1)
    shown = min(count, _FULL16)
    return wide + _END.pack(_END_MAGIC, 0, 0, shown, shown, min(size, _FULL32), min(start, _FULL32), 0)
