"""Small kernel dumps that would grow: links that lead back, tables, arguments and headers of many parts."""

from __future__ import annotations

import json
import os
import struct
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import msformat
from msformat.errors import FormatError
from msformat.filesystem import LocalFileSystem, open_filesystem
from msformat.foreign.kernel_dump import collect
from msformat.foreign.kernel_dump.binary import read_records
from msformat.foreign.kernel_dump.header import parse_dump_data
from msformat.foreign.kernel_dump.nano import parse_nano_head
from msformat.foreign.kernel_dump.record import Record
from msformat.foreign.kernel_dump.tables import parse_mapping, parse_statistics
from msformat.model import MAX_DEPTH
from tests import kernel_files as kf
from tests.kernel_files import Part

FLOAT = np.arange(6, dtype=np.float32).reshape(2, 3)


def one(directory: Path, at: int = 0, name: str = "Add.a") -> Path:
    return kf.write_dump(directory, [Part.of(FLOAT + at)], name=f"{name}.1.2.{kf.STAMP + at}", op_name="")


def only(path: Path) -> Any:
    (unit,) = msformat.open(path)
    return unit


def test_links_that_lead_back_up_are_entered_once(tmp_path: Path) -> None:
    place = tmp_path / "0"
    one(place)
    for at in range(10):
        (place / str(at)).symlink_to(".")
    began = time.perf_counter()
    unit = only(tmp_path)
    assert len(unit) == 1
    assert sum("another name of a directory" in note for note in unit.store.notes) == 10
    assert time.perf_counter() - began < 60


def test_directories_that_are_not_entered_are_named(tmp_path: Path) -> None:
    one(tmp_path)
    (tmp_path / "of mine").mkdir()
    assert any("of mine [left-alone]" in note for note in only(tmp_path).store.notes)


def test_a_second_table_of_a_name_is_named(tmp_path: Path) -> None:
    for graph in ("0", "1"):
        place = tmp_path / "rank_0/net" / graph / "5"
        one(place, int(graph))
        (place / "notes.csv").write_text(graph)
    unit = only(tmp_path)
    assert bytes(unit.store.get_document("notes.csv")) == b"0"
    assert any("1/5/notes.csv: is not kept" in note for note in unit.store.notes)


def test_nano_heads_take_time_by_their_length() -> None:
    tensor = struct.pack("<iiiQQQI", 0, 2, 3, 0, 0, 0, 0)
    body = struct.pack("<I", 20_000) + tensor * 20_000
    empty = struct.pack("<III", 4, 4, 0)
    head = struct.pack("<IIII", 0x5A5A5A5A, 0, 4, len(body)) + body + empty * 50_000
    began = time.process_time()
    record = parse_nano_head(memoryview(head), "x")
    assert (len(record.blocks), record.blocks[-1].index) == (20_000, 19_999)
    assert time.process_time() - began < 15  # with the square of it, minutes


def test_headers_have_a_limit_of_fields_and_of_text(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("msformat.foreign.kernel_dump.wire._MOST_FIELDS", 1000)
    monkeypatch.setattr("msformat.foreign.kernel_dump.header._LONGEST_TEXT", 1000)
    for head in (b"\x78\x00" * 1001, kf.text(3, b"\x78\x00" * 1001), kf.text(9, "x" * 1001)):
        with pytest.raises(FormatError, match=r"more than 1000 fields|a text of 1001 bytes"):
            parse_dump_data(memoryview(head), 0, len(head), "x", family="v2")


def test_appended_records_share_a_limit_of_tensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("msformat.foreign.kernel_dump.binary._MOST_BLOCKS", 100)
    head = b"\x1a\x00" * 40
    path = tmp_path / kf.NAME
    path.write_bytes((struct.pack("<Q", len(head)) + head) * 9)
    records = read_records(open_filesystem(str(tmp_path)), kf.NAME)
    assert len(records) == 2
    assert [doubt.name.value for doubt in records[-1].doubts] == ["left-over"]


def test_a_unit_has_a_limit_of_tensors(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(collect, "_MOST_TENSORS", 3)
    for at in range(5):
        one(tmp_path, at)
    unit = only(tmp_path)
    assert (len(unit), len(unit.problems)) == (3, 2)
    assert all("more than 3 tensors" in problem for problem in unit.problems)


class _Shrinking(LocalFileSystem):
    """A file that is cut between its listing and the reading of it."""

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        return super().read(path, start, length)[: keep[0]]


keep = [0]


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 16, 40])
def test_a_file_that_shrinks_while_it_is_read_is_refused(tmp_path: Path, length: int) -> None:
    path = kf.write_dump(tmp_path, [Part.of(FLOAT)])
    keep[0] = length
    with pytest.raises(FormatError, match=r"became shorter"):
        read_records(_Shrinking(str(tmp_path)), kf.NAME, path.stat().st_size)


@pytest.mark.parametrize("error", [IndexError("x"), struct.error("x"), RecursionError("x"), ZeroDivisionError("x")])
def test_whatever_a_file_makes_a_reader_raise_spoils_that_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def fail(fs: Any, path: str, size: int) -> list[Record]:
        if "Bad" in path:
            raise error
        return read_records(fs, path, size)

    one(tmp_path)
    one(tmp_path, name="Bad.a")
    monkeypatch.setattr(collect, "read_records", fail)
    unit = only(tmp_path)
    assert (list(unit), len(unit.problems)) == ([f"Add.a.1.2.{kf.STAMP}"], 1)


@pytest.mark.parametrize("depth", [MAX_DEPTH - 9, MAX_DEPTH - 8, MAX_DEPTH - 3, MAX_DEPTH, MAX_DEPTH + 1])
def test_deep_arguments_spoil_no_document(tmp_path: Path, depth: int) -> None:
    place = tmp_path / "in"
    one(place)
    (place / "Add.a.json").write_text("[" * depth + "]" * depth)
    report = msformat.convert_dump(place, tmp_path / "out.h5")
    assert (report.exit_code, report.units[0].entries) == (0 if depth <= MAX_DEPTH - 8 else 1, 1)
    entry = only(tmp_path / "out.h5")[f"Add.a.1.2.{kf.STAMP}"]
    np.testing.assert_array_equal(entry.inputs[0].numpy(), FLOAT)


def test_arguments_of_many_launches_are_read_once_and_stay_small(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("msformat.foreign.kernel_dump.arguments._MOST_REPEATED", 3000)
    for at in range(50):
        one(tmp_path, at)
    (tmp_path / "Add.a.json").write_text(json.dumps("x" * 998))
    reads: list[str] = []
    read = LocalFileSystem.read

    def counted(self: LocalFileSystem, path: str, *more: Any) -> bytes:
        reads.append(path)
        return read(self, path, *more)

    monkeypatch.setattr(LocalFileSystem, "read", counted)
    unit = only(tmp_path)
    assert sum("arguments" in entry.value["kernel"] for entry in unit.values()) == 4
    assert any("given with the first of them" in note for note in unit.store.notes)
    assert reads.count("Add.a.json") == 1


def test_tables_have_a_limit_of_rows(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    head = "Op Type,Op Name,Task ID,Stream ID,Timestamp,IO,Slot,Data Type,Shape,Max"
    rows = [f"Mul,b,1,2,{kf.STAMP + at},input,0,float32,,1" for at in range(9)]
    data = "\n".join([head, *rows]).encode()
    assert [len(found) if isinstance(found, list) else found for found in parse_statistics(data, 4)] == [4, 5]
    monkeypatch.setattr("msformat.foreign.kernel_dump.side_files._MOST_ROWS", 4)
    one(tmp_path)
    (tmp_path / "statistic.csv").write_bytes(data)
    unit = only(tmp_path)
    assert len(unit) == 5
    assert any("5 lines are not read, behind 4 rows [bad-table]" in problem for problem in unit.problems)


def test_a_table_as_large_as_a_disk_spoils_nothing(tmp_path: Path) -> None:
    place = tmp_path / "in"
    one(place)
    for name in ("statistic.csv", "mapping.csv", f"Add.a.1.2.{kf.STAMP}.csv"):
        with open(place / name, "wb") as stream:
            os.truncate(stream.fileno(), 1 << 40)
    report = msformat.convert_dump(place, tmp_path / "out")
    assert (report.exit_code, report.units[0].entries, report.units[0].failed) == (1, 1, False)


def test_only_names_that_are_there_are_kept_of_a_mapping(tmp_path: Path) -> None:
    text = "".join(f"{at},x{at}\n" for at in range(1000)).encode()
    assert parse_mapping(text, {"5", "7"}) == ({"5": "x5", "7": "x7"}, 0)
    kf.write_dump(tmp_path, [Part.of(FLOAT)], name="5")
    (tmp_path / "mapping.csv").write_text("5,../../Add.a.1.2.1735011096426349\n6,/etc/passwd\n")
    assert list(only(tmp_path)) == ["Add.a.1.2.1735011096426349"]


def test_line_breaks_in_names_lose_no_kernel(tmp_path: Path) -> None:
    one(tmp_path, name="Add.a\nb")
    assert list(only(tmp_path)) == [f"Add.a\nb.1.2.{kf.STAMP}#1"]


def _atb(length: int, more: str = "$Object.data=0,4\n") -> bytes:
    return f"$Version=1.0\n$Object.Length={length}\nformat=2\ndtype=0\ndims=1\n{more}$End=1\n".encode()


def test_an_atb_length_beyond_the_file_hides_nothing(tmp_path: Path) -> None:
    place = tmp_path / "atb_dump_data/data/3_77/5/0_Layer/1_Op/before"
    place.mkdir(parents=True)
    (place / "intensor0.bin").write_bytes(_atb(10**17) + bytes(4) + b"a second record")
    unit = only(tmp_path)
    assert unit["0_Layer.1_Op"].inputs[0].numpy() == [0]
    assert any("beyond the end" in problem and "left-over" in problem for problem in unit.problems)


def test_atb_parameters_that_are_bad_are_named(tmp_path: Path) -> None:
    place = tmp_path / "atb_dump_data/data/3_77/5/0_Layer/1_Op/before"
    place.mkdir(parents=True)
    (place / "intensor0.bin").write_bytes(_atb(4) + bytes(4))
    (place.parent / "op_param.json").write_text("{")
    assert any("op_param.json" in problem for problem in only(tmp_path).problems)


def test_atb_aliases_are_looked_up(tmp_path: Path) -> None:
    """With every alias compared to every file, a minute and more."""
    for layer in range(40):
        place = tmp_path / f"atb_dump_data/data/3_77/5/{layer}_Layer/before"
        place.mkdir(parents=True)
        for number in range(100):
            alias = _atb(0, f"data={layer}_Layer_intensor{number - 1}.bin\n")
            (place / f"intensor{number}.bin").write_bytes(
                alias if number % 2 else _atb(4) + np.float32(layer).tobytes()
            )
    began = time.process_time()
    unit = only(tmp_path)
    assert unit.problems == ()
    assert unit["7_Layer"].inputs[99].numpy() == [7]
    assert time.process_time() - began < 40
