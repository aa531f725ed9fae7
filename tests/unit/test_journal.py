"""The journal: what is whole comes back, a torn tail is dropped, damage is named, a live writer is left alone."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import pytest

from msformat import journal
from msformat.errors import CorruptJournalError, FormatError, StoreError
from msformat.journal import JournalWriter, encode_entry, encode_record, read_journal, replay

HEADER = {"task": "tensor", "level": "L1", "framework": "pytorch", "dump_data_dir": None}


def make(path: Path, *lines: bytes) -> Path:
    writer = JournalWriter(path, document="dump.json", backend="hdf5", header=HEADER)
    writer.append(lines)
    writer.close()
    return path


def raw_line(text: str) -> bytes:
    """A line by the description in the docstring alone, so that writer and reader cannot be wrong together."""
    payload = text.encode()
    return f"{zlib.crc32(payload):08x} ".encode() + payload + b"\n"


def header_line(**changes: Any) -> bytes:
    return raw_line(json.dumps({"kind": "header", "version": 1, "document": "dump.json", "backend": "files",
                                "header": HEADER, **changes}))  # fmt: skip


def test_written_lines_follow_the_description(tmp_path: Path) -> None:
    path = make(tmp_path / "j", encode_entry("Ä.0.debug", b'{"Max":NaN}'))
    first, second = path.read_bytes().splitlines(keepends=True)
    assert second == raw_line('{"kind":"entry","key":"\\u00c4.0.debug","value":{"Max":NaN}}')
    record = json.loads(first[9:])
    assert first[:9] == f"{zlib.crc32(first[9:-1]):08x} ".encode()
    assert record.pop("pid") == os.getpid()
    assert record.pop("host") == socket.gethostname()
    assert record == {"kind": "header", "version": 1, "document": "dump.json", "backend": "hdf5", "header": HEADER}


def test_replay_adds_up_in_first_seen_order(tmp_path: Path) -> None:
    path = make(
        tmp_path / "j",
        encode_entry("a", b"1"),
        encode_entry("b", b"[null]"),
        encode_record({"kind": "stack", "entries": ["a"], "frames": ["f", "g"]}),
        encode_record({"kind": "stack", "entries": ["b"], "frames": ["h"]}),
        encode_record({"kind": "stack", "entries": ["c"], "ref": 0}),
        encode_record({"kind": "parent", "child": "a", "parent": None}),
        encode_record({"kind": "parent", "child": "b", "parent": "a"}),
        encode_entry("a", b'{"again":true}'),
        encode_record({"kind": "parent", "child": "a", "parent": "b"}),
        encode_record({"kind": "problem", "message": "not captured"}),
        encode_record({"kind": "close", "reason": "KeyboardInterrupt"}),
    )
    found = replay(journal.iter_records(path))
    assert list(found.entries.items()) == [("a", {"again": True}), ("b", [None])]
    assert found.stack_groups == [(["a", "c"], ["f", "g"]), (["b"], ["h"])]
    assert list(found.parents.items()) == [("a", "b"), ("b", "a")]
    assert (found.header, found.document_name, found.backend) == (HEADER, "dump.json", "hdf5")
    assert (found.problems, found.reason) == (["not captured"], "KeyboardInterrupt")
    assert read_journal(path).reason == "KeyboardInterrupt"


def test_every_truncation_is_a_torn_tail(tmp_path: Path) -> None:
    whole = make(tmp_path / "whole", encode_entry("a", b"1"), encode_entry("b", b"2")).read_bytes()
    ends = [i + 1 for i, byte in enumerate(whole) if byte == 0x0A]
    cut = tmp_path / "cut"
    for length in range(len(whole) + 1):
        cut.write_bytes(whole[:length])
        found = read_journal(cut)
        # A record without its newline is whole all the same: its CRC says so.
        complete = sum(length >= end - 1 for end in ends)
        assert len(found.records) == complete
        assert found.torn == (length not in {0, *ends, *(end - 1 for end in ends)})


@pytest.mark.parametrize("tail", [b"\0" * 4096, b"garbage\n", b"00000000 {}\n", b"\xff\xfe", b"{"])
def test_bad_last_line_is_torn(tmp_path: Path, tail: bytes) -> None:
    path = make(tmp_path / "j", encode_entry("a", b"1"))
    path.write_bytes(path.read_bytes() + tail)
    found = read_journal(path)
    assert (len(found.records), found.torn) == (2, True)


def test_every_flipped_byte_in_the_middle_is_named(tmp_path: Path) -> None:
    path = make(tmp_path / "j", encode_entry("a", b"1"), encode_entry("b", b"2"), encode_entry("c", b"3"))
    whole = path.read_bytes()
    lines = whole.splitlines(keepends=True)
    start = len(lines[0])
    for position in range(start, start + len(lines[1])):
        damaged = bytearray(whole)
        damaged[position] ^= 0x15
        path.write_bytes(damaged)
        with pytest.raises(CorruptJournalError, match="line 2 does not match its CRC") as caught:
            read_journal(path)
        assert str(path) in str(caught.value)


@pytest.mark.parametrize(
    "record",
    [
        [],
        {},
        {"kind": "pickle"},
        {"kind": ["entry"]},
        {"kind": "header", "version": 1, "document": "dump.json", "backend": "files", "header": {}},
        {"kind": "entry", "key": 3, "value": 1},
        {"kind": "entry", "key": "a"},
        {"kind": "stack", "entries": "abc", "frames": []},
        {"kind": "stack", "entries": [1], "frames": []},
        {"kind": "stack", "entries": [], "frames": None},
        {"kind": "stack", "entries": [], "ref": 0},
        {"kind": "stack", "entries": [], "ref": -1},
        {"kind": "stack", "entries": [], "ref": True},
        {"kind": "parent", "child": "a"},
        {"kind": "parent", "child": "a", "parent": 1},
        {"kind": "parents", "parents": ["a"]},
        {"kind": "parents", "parents": {"a": 1}},
        {"kind": "problem", "message": None},
        {"kind": "close"},
    ],
)
@pytest.mark.parametrize("last", [True, False])
def test_forged_records_are_refused(tmp_path: Path, record: Any, last: bool) -> None:
    path = tmp_path / "j"
    path.write_bytes(header_line() + raw_line(json.dumps(record)) + (b"" if last else encode_entry("a", b"1")))
    with pytest.raises(CorruptJournalError, match="line 2 is"):
        read_journal(path)


@pytest.mark.parametrize(
    "text",
    ["nonsense", "[" * 100_000, '{"kind":"entry","key":"a","value":' + "[" * 300 + "]" * 300 + "}", "9" * 10_000, ""],
)
def test_hostile_json_is_a_named_error(tmp_path: Path, text: str) -> None:
    path = tmp_path / "j"
    path.write_bytes(header_line() + raw_line(text))
    with pytest.raises(CorruptJournalError, match="line 2"):
        read_journal(path)


@pytest.mark.parametrize(
    "changes",
    [{"document": "../dump.json"}, {"document": None}, {"backend": "../x"}, {"backend": 3}, {"header": []}],
)
def test_forged_headers_are_refused(tmp_path: Path, changes: dict[str, Any]) -> None:
    path = tmp_path / "j"
    path.write_bytes(header_line(**changes))
    with pytest.raises(CorruptJournalError, match="line 1"):
        read_journal(path)


def test_later_versions_are_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "j"
    path.write_bytes(header_line(version=2))
    with pytest.raises(FormatError, match="journal version 2"):
        read_journal(path)


def test_records_before_the_header_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "j"
    path.write_bytes(encode_entry("a", b"1"))
    with pytest.raises(CorruptJournalError, match="line 1 is not the header"):
        read_journal(path)


def test_long_lines_are_refused_on_both_sides(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(journal, "MAX_LINE", 1000)
    with pytest.raises(FormatError, match="'long'"):
        encode_entry("long", b'"' + b"x" * 1000 + b'"')
    path = tmp_path / "j"
    path.write_bytes(header_line() + raw_line(json.dumps({"kind": "problem", "message": "x" * 1000})) + header_line())
    with pytest.raises(CorruptJournalError, match="line 2"):
        read_journal(path)


def test_empty_and_missing_journals(tmp_path: Path) -> None:
    path = tmp_path / "j"
    with pytest.raises(StoreError, match="cannot read"):
        read_journal(path)
    path.touch()
    found = read_journal(path)
    assert (found.records, found.torn, found.reason) == ([], False, None)
    assert replay(found.records).header is None


def test_a_fifo_does_not_hang_the_reader(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "j")
    with pytest.raises(FormatError, match="not a regular file"):
        read_journal(tmp_path / "j")


def test_permissions_follow_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        path = make(tmp_path / "j")
    finally:
        os.umask(before)
    assert path.stat().st_mode & 0o777 == 0o640


# --- the lock --------------------------------------------------------------------------------------------------------


def test_a_batch_is_on_disk_when_append_returns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    waited: list[int] = []
    made = JournalWriter(tmp_path / "journal.jsonl", document="dump.json", backend="files", header=HEADER)
    monkeypatch.setattr(os, "fsync", lambda descriptor: waited.append(os.fstat(descriptor).st_size))
    made.append([encode_record({"kind": "problem", "message": "x"})])
    assert waited == [made.size]
    monkeypatch.undo()
    made.remove()


def test_a_live_writer_keeps_others_out(tmp_path: Path) -> None:
    path = tmp_path / "j"
    writer = JournalWriter(path, document="dump.json", backend="files", header=HEADER)
    assert journal.is_live(path)
    with pytest.raises(StoreError, match=f"still being written by process {os.getpid()} on"):
        JournalWriter(path, document="dump.json", backend="files", header=HEADER)
    writer.close()
    assert not journal.is_live(path)
    with pytest.raises(StoreError, match="msformat recover"):
        JournalWriter(path, document="dump.json", backend="files", header=HEADER)
    assert len(read_journal(path).records) == 1


def test_remove_and_close_are_final(tmp_path: Path) -> None:
    path = tmp_path / "j"
    writer = JournalWriter(path, document="dump.json", backend="files", header=HEADER)
    writer.remove()
    writer.remove()
    writer.close()
    assert not path.exists()
    with pytest.raises(StoreError, match="cannot append"):
        writer.append([encode_entry("a", b"1")])


def test_the_lock_dies_with_the_process_even_if_a_forked_child_lives(tmp_path: Path) -> None:
    path = tmp_path / "j"
    code = (
        "import os, sys, time\n"
        "from msformat.journal import JournalWriter\n"
        "writer = JournalWriter(sys.argv[1], document='dump.json', backend='files', header={})\n"
        "pid = os.fork()\n"
        "if pid == 0:\n"
        "    os.write(1, b'%d\\n' % os.getpid())\n"  # only now has the child let go of its copy
        "    os.close(1)\n"
        "    time.sleep(60)\n"
        "    os._exit(0)\n"
        "time.sleep(60)\n"
    )
    process = subprocess.Popen([sys.executable, "-c", code, str(path)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    child = int(process.stdout.readline())
    try:
        assert journal.is_live(path)
        process.kill()
        process.wait()
        os.kill(child, 0)  # the child lives on
        assert not journal.is_live(path)
    finally:
        process.stdout.close()
        os.kill(child, 9)


def test_half_a_batch_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "j"
    writer = JournalWriter(path, document="dump.json", backend="files", header=HEADER)
    whole = path.read_bytes()

    def fails(descriptor: int, data: memoryview) -> int:
        if len(data) > 10:
            return real(descriptor, data[:-10])
        raise OSError(28, "No space left on device")

    real = os.write
    with monkeypatch.context() as patched:
        patched.setattr(os, "write", fails)
        with pytest.raises(StoreError, match="No space left"):
            writer.append([encode_entry("a", b"1"), encode_entry("b", b"2")])
    assert path.read_bytes() == whole
    writer.append([encode_record({"kind": "close", "reason": "disk full"})])
    writer.close()
    assert read_journal(path).reason == "disk full"
