"""One kernel dump file of any binary form: its header is read, its blocks only located."""

from __future__ import annotations

from dataclasses import replace

from msformat.errors import FormatError
from msformat.filesystem import FileSystem, LocalFileSystem
from msformat.foreign.kernel_dump.atb import ATB_MAGIC, read_atb_file
from msformat.foreign.kernel_dump.header import parse_dump_data
from msformat.foreign.kernel_dump.nano import NANO_MAGIC, parse_nano_head
from msformat.foreign.kernel_dump.placing import doubt_places, place_blocks, repair_sizes
from msformat.foreign.kernel_dump.record import Doubt, DoubtName, Record

__all__ = ["read_records"]

_PREFIX = 8
# The writer refuses longer headers.
_LONGEST_HEADER = (1 << 31) - 1
_FIRST_READ = 1 << 14
# From here on a header is mapped, not read.
_MAP_FROM = 64 << 20
_MOST_RECORDS = 10_000
# In all records of a file: two bytes of header make a kilobyte of objects.
_MOST_BLOCKS = 200_000
_FIRST_FIELD = 0x0A


def read_records(fs: FileSystem, path: str, size: int | None = None) -> list[Record]:
    """Records of a file, at least one; what follows the first was appended under the same name.

    Parameters
    ----------
    fs, path
        The file.
    size
        Its bytes, where known.

    Raises
    ------
    FormatError
        It is no kernel dump, or one that is cut or damaged where nothing can be trusted any more.
    """
    source = fs.describe(path)
    size = fs.size(path) if size is None else size
    if size < _PREFIX:
        raise FormatError(f"{source}: has only {size} bytes, no kernel dump is shorter than 9")
    head = _window(fs, path, 0, min(size, _FIRST_READ), memoryview(b""))
    if bytes(head[: len(ATB_MAGIC)]) == ATB_MAGIC:
        return read_atb_file(fs, path, size, source)
    if not 1 <= _length(head) <= min(size - _PREFIX, _LONGEST_HEADER):
        return [_version_1(fs, path, size, head, source)]
    return _prefixed(fs, path, size, head, source)


def _length(head: memoryview) -> int:
    return int.from_bytes(head[:_PREFIX], "little")


def _window(fs: FileSystem, path: str, start: int, length: int, head: memoryview) -> memoryview:
    """``length`` bytes of a file from ``start``; ``head`` is its beginning, read before."""
    if start + length <= len(head):
        return head[start : start + length]
    if length > _MAP_FROM and isinstance(fs, LocalFileSystem):
        found = memoryview(fs.map(path))[start : start + length]
    else:
        found = memoryview(fs.read(path, start, length))
    if len(found) < length:
        raise FormatError(f"{fs.describe(path)}: became shorter while it was read")
    return found


def _version_1(fs: FileSystem, path: str, size: int, head: memoryview, source: str) -> Record:
    """The whole file is one message that holds its data."""
    if head[0] != _FIRST_FIELD:
        raise FormatError(f"{source}: no kernel dump: a header of {_length(head)} bytes in a file of {size}")
    try:
        record, inline = parse_dump_data(_window(fs, path, 0, size, head), 0, size, source, family="v1")
    except FormatError as error:
        why = f"a header of {_length(head)} bytes in a file of {size}, nor is the whole file a message"
        raise FormatError(f"{source}: no kernel dump: {why} ({error})") from error
    blocks = (block.at(start, size=length) for block, (start, length) in zip(record.blocks, inline, strict=True))
    return replace(record, blocks=tuple(blocks))


def _prefixed(fs: FileSystem, path: str, size: int, head: memoryview, source: str) -> list[Record]:
    """Length, header, data: version 2 and nano. A record that follows was appended by a second dump."""
    records: list[Record] = []
    at = blocks = 0
    while at < size:
        try:
            record, end = _record(fs, path, at, size, head if at == 0 else memoryview(b""), source)
        except FormatError:
            if not records:
                raise
            records[-1] = _left_over(records[-1], at, size, source)
            break
        blocks += len(record.blocks)
        if len(records) >= _MOST_RECORDS or (records and blocks > _MOST_BLOCKS):
            records[-1] = _left_over(records[-1], at, size, source)
            break
        records.append(record)
        at = end
    if len(records) > 1:
        doubt = Doubt(DoubtName.appended_record, f"{source}: holds {len(records)} dumps under one name")
        records[0] = replace(records[0], doubts=(*records[0].doubts, doubt))
    return records


def _record(fs: FileSystem, path: str, at: int, size: int, head: memoryview, source: str) -> tuple[Record, int]:
    """The record that begins at a byte, and where it ends."""
    prefix = _window(fs, path, at, min(2 * _PREFIX, size - at), head)
    length = _length(prefix)
    if len(prefix) <= _PREFIX or not 1 <= length <= min(size - at - _PREFIX, _LONGEST_HEADER):
        raise FormatError(f"{source}: a header of {length} bytes where {size - at} are left")
    window = _window(fs, path, at + _PREFIX, length, head)
    if int.from_bytes(prefix[_PREFIX : _PREFIX + 4], "little") == NANO_MAGIC:
        record = parse_nano_head(window, source)
    else:
        record = parse_dump_data(window, 0, length, source, family="v2").record
    start = at + _PREFIX + length
    placed, used = place_blocks(record, start, size - start, source)
    if used < size - start:
        repaired = repair_sizes(record, start, size - start, source)
        if repaired is not None:
            return repaired, size
    return placed, start + used


def _left_over(record: Record, at: int, size: int, source: str) -> Record:
    text = f"{source}: {size - at} bytes behind the last block are left over and are no further dump"
    doubted = doubt_places(record, source)
    return replace(doubted, doubts=(*doubted.doubts, Doubt(DoubtName.left_over, text)))
