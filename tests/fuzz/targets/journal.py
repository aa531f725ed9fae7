"""Journals: a second reader of the lines agrees, records come back, and recovery stays inside the unit."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from pathlib import Path
from random import Random

from msformat.errors import MsformatError
from msformat.journal import encode_record, read_journal
from msformat.layout import find_units
from msformat.reader import open_dump
from msformat.recover import recover_unit
from msformat.replay import Record, Replayed, replay
from tests.fuzz.mutators import change_lines
from tests.fuzz.samples import golden_members
from tests.fuzz.target import Change, Target

_HEADER = {
    "kind": "header", "version": 1, "document": "dump.json", "backend": "files", "pid": 1, "host": "h",
    "header": {"task": "statistics", "level": "L1", "framework": "pytorch", "dump_data_dir": None, "data": {}},
}  # fmt: skip


def check(data: bytes, place: Path) -> None:
    """The journal of a unit that holds nothing else."""
    unit = place / "dump" / "step0" / "rank"
    unit.mkdir(parents=True)
    path = unit / "journal.jsonl"
    path.write_bytes(data)
    try:
        found = read_journal(path)
    except MsformatError:
        return
    assert _plain(found.records) == _plain(_whole_lines(data))
    assert found.torn == (len(found.records) < len(data.splitlines(keepends=True)) and data != b"")
    path.write_bytes(b"".join(map(encode_record, found.records)))
    assert _plain(read_journal(path).records) == _plain(found.records)
    path.write_bytes(data)
    _recover(place / "dump", replay(found.records))


def _whole_lines(data: bytes) -> list[Record]:
    found = []
    for line in data.split(b"\n"):
        crc, _, payload = line.partition(b" ")
        if crc != b"%08x" % zlib.crc32(payload):
            break
        found.append(json.loads(payload))
    return found


def _plain(records: list[Record]) -> list[str]:
    """NaN and -0.0 are compared, too."""
    return [json.dumps(record, sort_keys=True) for record in records]


def _recover(root: Path, found: Replayed) -> None:
    """An unfinished unit opens, is finished, and says the same."""
    try:
        with open_dump(root) as dump:
            assert [list(unit) for unit in dump] == [list(found.entries)]
        (location,), _ = find_units(root)
        report = recover_unit(location)
        if report.state != "recovered":
            return
        with open_dump(root) as dump:
            (unit,) = dump
            assert unit.complete
            assert list(unit) == list(found.entries)
    except MsformatError:
        return


def seeds() -> Iterator[bytes]:
    """Journals of what real dumps say."""
    for name, content in golden_members("dump.json", 1 << 20):
        document = json.loads(content)
        data = document.pop("data")
        lines = [encode_record({**_HEADER, "header": {**document, "data": {}}})]
        for key, value in list(data.items())[:3]:
            lines.append(encode_record({"kind": "entry", "key": key, "value": value}))
            lines.append(encode_record({"kind": "parent", "child": key, "parent": None}))
        lines.append(encode_record({"kind": "stack", "entries": list(data)[:2], "frames": [name]}))
        lines.append(encode_record({"kind": "stack", "entries": list(data)[2:3], "ref": 0}))
        lines.append(encode_record({"kind": "problem", "message": "lost"}))
        lines.append(encode_record({"kind": "close", "reason": "left"}))
        yield b"".join(lines)
    yield encode_record(_HEADER) + encode_record({"kind": "parents", "parents": {"a": "b", "b": None}})
    yield encode_record({**_HEADER, "backend": "zarr"}) + encode_record({"kind": "entry", "key": "a", "value": None})
    yield encode_record({**_HEADER, "backend": "hdf5", "document": "debug.json"})


def mutate(data: bytes, change: Change, random: Random) -> bytes:
    """Records whose checksums fit."""
    return change_lines(data, change, random, _payload, _line)


def _payload(line: bytes) -> bytes:
    return line[9:].removesuffix(b"\n")


def _line(payload: bytes) -> bytes:
    return b"%08x %b\n" % (zlib.crc32(payload), payload)


TARGET = Target(check, seeds, mutate, most_bytes=8192)
