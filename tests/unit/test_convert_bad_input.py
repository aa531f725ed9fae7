"""Convert: what bad input costs, and how a later run goes on."""

from __future__ import annotations

import errno
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import msformat
from msformat.atomic import temporary_sibling
from msformat.dtypes import dtype_named
from msformat.errors import FormatError, StoreError
from msformat.filesystem import Item, LocalFileSystem
from msformat.model import Header
from msformat.writer import DumpWriter
from tests.small_dumps import (
    FORMS,
    FRAMES,
    convert_whole,
    load_json,
    record,
    run_convert,
    temporaries,
    tree_bytes,
    write_document,
    write_tree,
    write_unit,
)

Golden = Callable[[str], Path]


# --- bad input -------------------------------------------------------------------------------------------------------


def test_bad_tensors_are_named_and_the_rest_is_converted(tmp_path: Path) -> None:
    src = write_tree(tmp_path / "src", ["step0/rank"], count=4)
    data = src / "step0" / "rank" / "dump_tensor_data"
    names = [f"Functional.relu.{n}.forward.output.0.npy" for n in range(4)]
    (data / names[0]).write_bytes((data / names[0]).read_bytes()[:-7])
    (data / names[1]).write_bytes(
        b"\x93NUMPY\x01\x00\x46\x00{'descr': 'bfloat16', 'fortran_order': False, 'shape': (2,)}\n"
    )
    (data / names[2]).unlink()
    report = run_convert(src, tmp_path / "out.h5")
    assert report.exit_code == 1
    (unit,) = report.units
    assert unit.tensors == 1
    assert len(unit.problems) == 3
    assert all(
        any(name in text and f"relu.{n}.forward" in text for text in unit.problems) for n, name in enumerate(names[:3])
    )
    with h5py.File(tmp_path / "out.h5") as file:
        assert list(file["step0/rank/tensors"]) == [names[3]]
        assert len(json.loads(file["step0/rank/documents/dump.json"][:].tobytes())["data"]) == 4


@pytest.mark.parametrize("name", ["../../../etc/passwd", "/etc/passwd", "a/../../b.npy", "fifo.npy", "link.npy", "\0"])
def test_names_that_lead_outside_are_refused_by_name(tmp_path: Path, name: str) -> None:
    src = write_tree(tmp_path / "src", ["step0/rank"], count=2)
    unit = src / "step0" / "rank"
    os.mkfifo(unit / "dump_tensor_data" / "fifo.npy")
    (tmp_path / "secret.npy").write_bytes(
        (unit / "dump_tensor_data/Functional.relu.0.forward.output.0.npy").read_bytes()
    )
    (unit / "dump_tensor_data" / "link.npy").symlink_to(tmp_path / "secret.npy")
    document = load_json(unit / "dump.json")
    document["data"]["Functional.relu.0.forward"]["output"][0]["data_name"] = name
    write_document(unit / "dump.json", document)
    report = run_convert(src, tmp_path / "out")
    assert report.exit_code == 1
    assert any("Functional.relu.0.forward" in text for text in report.units[0].problems)
    out = tmp_path / "out" / "step0" / "rank"
    assert (out / "dump_tensor_data" / "Functional.relu.1.forward.output.0.npy").is_file()
    assert (out / "dump.json").read_bytes() == (unit / "dump.json").read_bytes()


@pytest.mark.parametrize("name", ["dump.json", "stack.json", "construct.json"])
def test_a_directory_in_the_place_of_a_document_is_named(tmp_path: Path, name: str) -> None:
    src = write_tree(tmp_path / "src", ["step0/rank0", "step0/rank1"])
    (src / "step0" / "rank0" / name).unlink()
    (src / "step0" / "rank0" / name).mkdir()
    report = run_convert(src, tmp_path / "out.h5")
    assert report.exit_code == 1
    assert [unit.tensors for unit in report.units] == [3, 3]
    bad, good = report.units
    assert len(bad.problems) == 1
    assert f"rank0/{name}: is not a regular file" in bad.problems[0]
    assert not good.problems


@pytest.mark.parametrize("name", FORMS)
def test_a_unit_that_may_not_be_read_costs_no_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    src = write_tree(tmp_path / "src", ["step0/rank0", "step0/rank1"])
    listing = LocalFileSystem.list

    def refuse(fs: LocalFileSystem, path: str) -> list[Item]:
        if fs.describe(path) == str(src / "step0/rank0/dump_tensor_data"):
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), fs.describe(path))
        return listing(fs, path)

    monkeypatch.setattr(LocalFileSystem, "list", refuse)
    report = run_convert(src, tmp_path / name, **FORMS[name])
    assert report.exit_code == 1
    bad, good = report.units
    assert bad.failed
    assert "rank0/dump_tensor_data" in bad.problems[0]
    assert (good.tensors, good.problems) == (3, [])
    assert [str(key) for key in msformat.open(tmp_path / name).units] == ["step0/rank1"]


def test_a_file_that_vanishes_while_sizes_are_added_up_costs_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    src = write_tree(tmp_path / "src", ["step0/rank0"])
    look = os.lstat

    def lose(path: Any, **more: Any) -> os.stat_result:
        if str(path) == str(src / "step0/rank0/stack.json"):
            raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(path))
        return look(path, **more)

    monkeypatch.setattr(os, "lstat", lose)
    report = convert_whole(src, tmp_path / "out")
    assert report.units[0].files_in == 5


def test_one_bad_rank_does_not_stop_the_others(tmp_path: Path) -> None:
    src = write_tree(tmp_path / "src", ["step0/rank0", "step0/rank1"])
    document = src / "step0" / "rank0" / "dump.json"
    document.write_bytes(document.read_bytes()[:-400])
    report = run_convert(src, tmp_path / "out", tensors="pt")
    assert report.exit_code == 1
    bad, good = report.units
    assert bad.problems
    assert bad.entries == 2
    assert not good.problems
    # Whole entries of the cut document are there, and every tensor it no longer names.
    out = tmp_path / "out" / "step0" / "rank0"
    assert len(load_json(out / "dump.json")["data"]) == 2
    assert len(list((out / "dump_tensor_data").iterdir())) == 3


def test_a_unit_that_cannot_be_opened_is_a_problem_of_its_own(tmp_path: Path) -> None:
    convert_whole(write_tree(tmp_path / "src"), tmp_path / "h5", to="hdf5")
    (tmp_path / "h5" / "step0" / "rank" / "dump.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100))
    for target in ("out", "out.zarr"):
        report = run_convert(tmp_path / "h5", tmp_path / target)
        assert report.exit_code == 1
        assert [unit.failed for unit in report.units] == [True, False]
        assert not temporaries(tmp_path)
    assert not (tmp_path / "out" / "step0").exists()


def test_nothing_converted_is_exit_code_2(tmp_path: Path) -> None:
    convert_whole(write_tree(tmp_path / "src", ["step0/rank"]), tmp_path / "h5", to="hdf5")
    (tmp_path / "h5" / "step0" / "rank" / "dump.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + bytes(100))
    report = run_convert(tmp_path / "h5", tmp_path / "out.zarr")
    assert report.exit_code == 2
    assert not (tmp_path / "out.zarr").exists()
    with pytest.raises(StoreError, match="no such file"):
        run_convert(tmp_path / "nothing", tmp_path / "out")
    (tmp_path / "empty").mkdir()
    with pytest.raises(FormatError, match="no dump found"):
        run_convert(tmp_path / "empty", tmp_path / "out")


def test_two_runs_in_one_step_are_told_apart_aloud(tmp_path: Path) -> None:
    src = write_tree(tmp_path / "src", ["step0/proc1", "step0/proc2"])
    report = run_convert(src, tmp_path / "out.h5")
    assert [unit.key for unit in report.units] == ["step0/proc1", "step0/proc2"]
    assert any("separate runs" in text for text in report.problems)


@pytest.mark.parametrize("backend", ["files", "hdf5", "zarr"])
def test_an_unfinished_dump_is_converted_from_its_journal(tmp_path: Path, backend: str) -> None:
    header = Header("tensor", "L1", "pytorch")
    bits = np.arange(6, dtype=np.float32)
    writer = DumpWriter(tmp_path / "src" / "step0" / "rank", header, backend=backend, sync_entries=1)
    writer.put_tensor("Torch.add.0.forward.output.0.npy", bits, dtype_named("float32"))
    value = {"input_args": [], "output": [record(bits, "Torch.add.0.forward.output.0.npy")]}
    writer.put_entry("Torch.add.0.forward", value)
    writer.put_stack(["Torch.add.0.forward"], FRAMES)
    writer.put_parent("Torch.add.0.forward", None)
    writer.commit()
    writer.close()
    report = run_convert(tmp_path / "src", tmp_path / "out")
    assert report.exit_code == 1
    assert any("never finished" in text for text in report.units[0].problems)
    out = tmp_path / "out" / "step0" / "rank"
    found = load_json(out / "dump.json")["data"]["Torch.add.0.forward"]
    assert json.dumps(found) == json.dumps(value)
    assert load_json(out / "stack.json") == {"0": [["Torch.add.0.forward"], FRAMES]}
    assert np.load(out / "dump_tensor_data" / "Torch.add.0.forward.output.0.npy").tolist() == bits.tolist()
    assert not (out / "journal.jsonl").exists()


# --- resuming --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("to", ["files", "hdf5", "zarr"])
def test_resume_keeps_finished_units(tmp_path: Path, to: str) -> None:
    src = write_tree(tmp_path / "src")
    convert_whole(src, tmp_path / "out", to=to, steps=frozenset({0}))
    before = {path: path.stat().st_ino for path in (tmp_path / "out").rglob("*")}
    report = convert_whole(src, tmp_path / "out", to=to, resume=True)
    assert [unit.skipped for unit in report.units] == [True, False]
    assert {path: path.stat().st_ino for path in before} == before


@pytest.mark.parametrize("name", FORMS)
def test_what_a_finished_unit_lacks_is_said_again(tmp_path: Path, name: str) -> None:
    src = write_tree(tmp_path / "src", ["step0/rank0", "step0/rank1"])
    lost = "Functional.relu.1.forward.output.0.npy"
    (src / "step0" / "rank0" / "dump_tensor_data" / lost).unlink()
    first = run_convert(src, tmp_path / name, **FORMS[name])
    again = run_convert(src, tmp_path / name, resume=True, **FORMS[name])
    assert [unit.skipped for unit in again.units] == [True, True]
    assert lost in first.units[0].problems[0]
    for report in (first, again):
        assert report.exit_code == 1
        assert [unit.problems for unit in report.units] == [first.units[0].problems, []]


@pytest.mark.parametrize("name", ["out.h5", "out.zarr"])
def test_resume_of_a_finished_file_does_nothing(tmp_path: Path, name: str) -> None:
    src = write_tree(tmp_path / "src")
    convert_whole(src, tmp_path / name)
    assert all(unit.skipped for unit in convert_whole(src, tmp_path / name, resume=True).units)
    with pytest.raises(StoreError, match="holds something else"):
        run_convert(write_tree(tmp_path / "other", count=2), tmp_path / name, resume=True)


@pytest.mark.parametrize("name", ["out.h5", "out.zarr"])
def test_resume_goes_on_in_what_a_killed_run_left(tmp_path: Path, name: str) -> None:
    src = write_tree(tmp_path / "src")
    whole = tmp_path / f"first{Path(name).suffix}"
    convert_whole(src, whole, steps=frozenset({0}))
    left = Path(temporary_sibling(tmp_path / name))
    whole.rename(left)
    inode = left.stat().st_ino
    convert_whole(src, tmp_path / name, resume=True)
    assert (tmp_path / name).stat().st_ino == inode
    convert_whole(tmp_path / name, tmp_path / "back")
    assert tree_bytes(tmp_path / "back") == tree_bytes(src)


@pytest.mark.parametrize("name", ["out.h5", "out.zarr"])
@pytest.mark.parametrize("what", ["other values", "more steps", "more entries", "damage"])
def test_resume_starts_again_where_what_is_left_is_of_another_dump(tmp_path: Path, name: str, what: str) -> None:
    src = write_tree(tmp_path / "src", ["step0/rank"])
    other = {
        "other values": lambda: write_unit(
            tmp_path / "o" / "step0" / "rank", {"Functional.relu.0.forward": np.zeros((3, 4), np.float32)}
        ),
        "more steps": lambda: write_tree(tmp_path / "o"),
        "more entries": lambda: write_tree(tmp_path / "o", ["step0/rank"], count=4),
        "damage": lambda: write_tree(tmp_path / "o", ["step0/rank"]),
    }[what]()
    first = tmp_path / f"first{Path(name).suffix}"
    convert_whole(other, first)
    left = Path(temporary_sibling(tmp_path / name))
    first.rename(left)
    if what == "damage":
        for path in [left] if left.is_file() else list(left.rglob("zarr.json")):
            path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    convert_whole(src, tmp_path / name, resume=True)
    assert not temporaries(tmp_path)
    convert_whole(tmp_path / name, tmp_path / "back")
    assert tree_bytes(tmp_path / "back") == tree_bytes(src)


def test_the_next_run_removes_what_a_killed_one_left(tmp_path: Path) -> None:
    src = write_tree(tmp_path / "src")
    (tmp_path / "out" / "step0").mkdir(parents=True)
    left = Path(temporary_sibling(tmp_path / "out" / "step0" / "rank"))
    write_unit(left, {"x": np.zeros(1)})
    (left.parent / ".rank.msformat-lock").touch()
    convert_whole(src, tmp_path / "out")
    assert not temporaries(tmp_path)
    assert tree_bytes(tmp_path / "out") == tree_bytes(src)
