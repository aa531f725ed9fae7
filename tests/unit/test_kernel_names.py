"""File names, directories and tables of kernel dumps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import msformat
from msformat.foreign.kernel_dump.filenames import is_hash_name, parse_kernel_name, sanitised
from msformat.foreign.kernel_dump.tables import parse_mapping, parse_statistics
from tests import kernel_files as kf
from tests.kernel_files import STAMP, Part

FLOAT = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        (f"Add.a_b.5.2.{STAMP}", {"op_type": "Add", "op_name": "a_b", "task_id": 5, "stream_id": 2}),
        (f"Add.a.7.{STAMP}", {"task_id": 7, "stream_id": None, "timestamp": STAMP}),
        (f"Add.a.65535.65535.{STAMP}", {"task_id": None, "stream_id": None}),
        ("Concat.c.0.0.550288648", {"timestamp": 550288648}),
        (f"Relu.r.3.5.{STAMP}.4.7.1.0", {"task_type": 4, "context_id": 7, "thread_id": 1, "device_id": 0}),
        ("exception_info.10.20.20250609144925349", {"stream_id": 10, "task_id": 20, "timestamp": 20250609144925349}),
        ("MatMul.m.7.20250609144925349", {"op_type": "MatMul", "task_id": 7}),
        (f"Add.a.0.0.{STAMP}.output.1.DefaultFormat.float16.npy",
         {"slot": "output", "index": 1, "format": "DefaultFormat", "dtype": "float16", "suffix": ".npy"}),
        (f"Add.a.0.0.{STAMP}.input.0.DefaultFormat.npy", {"slot": "input", "format": "DefaultFormat", "dtype": ""}),
        (f"Add.a.0.0.{STAMP}.input.0.npy", {"slot": "input", "format": "", "suffix": ".npy"}),
        (f"Cast.c.9.10.{STAMP}.output.1.ND.INT2", {"format": "ND", "dtype": "INT2", "suffix": ""}),
        (f"Conv2D.net.conv.0.0.{STAMP}.input.0.ND.FLOAT.npy", {"op_type": "Conv2D", "op_name": "net.conv", "index": 0}),
        (f"conv1.0.{STAMP}.npy", {"op_name": "conv1", "index": 0, "slot": "output"}),
    ],
)  # fmt: skip
def test_names(name: str, said: dict[str, Any]) -> None:
    found = parse_kernel_name(name)
    assert found is not None
    assert {field: getattr(found, field) for field in said} == said
    assert name.startswith(found.stem)


@pytest.mark.parametrize("name", ["libx.so.1.2.3", "dump.json", "a.b", "x.npy", "Add.a.1.2.x", "", "a.b.c.d.e"])
def test_other_names(name: str) -> None:
    assert parse_kernel_name(name) is None


def test_overflow_and_hashes() -> None:
    for kind in ("Opdebug", "OpDebug"):
        found = parse_kernel_name(f"{kind}.Node_OpDebug.13.18.{STAMP}")
        assert found is not None
        assert found.is_overflow
    assert is_hash_name("8714352940128837465")
    assert is_hash_name("01234567890123456789012345678901.npy")
    assert is_hash_name("9f86d081884c7d659a2feaa0c55ad015")
    assert not is_hash_name("Add")
    assert sanitised("Default/a b.c\\d") == "Default_a_b_c_d"


# --- directories -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("places", "units"),
    [
        (["step0/20241201103000/0", "step0/20241201103000/1", "step2/20241201103100/0"],
         ["step0/rank0", "step0/rank1", "step2/rank0"]),
        (["step0/20241201103000/0", "step0/20241201103059/0"], ["step0/rank0"]),
        (["3/20241201103000/7/model_1/1/0"], ["step3/rank7"]),
        (["20241201103000/7/model_1/1/4", "20241201103000/7/model_1/1/5"], ["step4/rank7", "step5/rank7"]),
        (["20241201103000/7/1/4"], ["step4/rank7"]),
        (["rank_0/Net/0/0", "rank_0/Net/1/0", "rank_0/Net/0/1", "rank_1/Net/0/0"],
         ["step0/rank0", "step0/rank1", "step1/rank0"]),
        (["rank_0/Net/0/constants", "rank_0/Net/0/0"], ["rank0", "step0/rank0"]),
        (["rank_0/debug_files/2", "rank_0/Net/0/2"], ["step2/rank0"]),
        (["rank_3/20241201103000/step_5"], ["step5/rank3"]),
        (["0_77/2/0_Layer/1_Op/before", "0_77/2/0_Layer/1_Op/after"], ["rank"]),
        (["."], ["rank"]),
    ],
)  # fmt: skip
def test_families(tmp_path: Path, places: list[str], units: list[str]) -> None:
    root = tmp_path / "dump"
    for at, place in enumerate(places):
        kf.write_dump(root / place, [Part.of(FLOAT + at)], name=f"Add.a{at}.1.2.{STAMP + at}")
    if units == ["rank"] and len(places) > 1:
        units = ["step2/rank0"]
    dump = msformat.open(root)
    assert sorted(unit.label for unit in dump) == sorted(units)
    assert dump.problems == ()
    found = {tensor.numpy()[0, 0] for unit in dump for tensor in unit.tensors()}
    assert found == {float(at) for at in range(len(places))}
    report = msformat.convert_dump(root, tmp_path / "out.h5")
    assert report.exit_code == 0
    assert [unit.label for unit in msformat.open(tmp_path / "out.h5")] == [unit.label for unit in dump]


def test_the_same_name_in_two_places_is_two_entries(tmp_path: Path) -> None:
    for at, graph in enumerate("01"):
        kf.write_dump(tmp_path / f"rank_0/Net/{graph}/0", [Part.of(FLOAT + at)])
    (unit,) = msformat.open(tmp_path)
    assert list(unit) == [kf.NAME, f"{kf.NAME}#2"]
    graphs = [entry.value["kernel"]["graph"].value for entry in unit.values()]
    assert graphs == ["0", "1"]
    assert [entry.inputs[0].numpy()[0, 0] for entry in unit.values()] == [0, 1]


def test_kernels_come_in_the_order_in_which_they_ran(tmp_path: Path) -> None:
    names = [f"{kind}.x.{task}.2.{STAMP - task}" for task, kind in enumerate(("Add", "Mul", "Abs"))]
    for name in names:
        kf.write_dump(tmp_path, [Part.of(FLOAT)], name=name)
    assert list(next(iter(msformat.open(tmp_path)))) == names[::-1]


def test_a_kernel_that_runs_twice_in_an_iteration(tmp_path: Path) -> None:
    """MindSpore gives each tensor a timestamp: an input after an output begins the next launch."""
    place = tmp_path / "rank_0/Net/0/0"
    place.mkdir(parents=True)
    for at, slot in enumerate(("input.0", "input.1", "output.0", "input.0", "input.1", "output.0")):
        np.save(place / f"Add.Default_Add-op1.0.0.{STAMP + at}.{slot}.DefaultFormat.Float32.npy", FLOAT + at)
    (unit,) = msformat.open(tmp_path)
    first, second = unit.values()
    assert [tensor.numpy()[0, 0] for tensor in first.tensors] == [0, 1, 2]
    assert [tensor.numpy()[0, 0] for tensor in second.tensors] == [3, 4, 5]


def test_arguments_and_strangers(tmp_path: Path) -> None:
    place = tmp_path / "in"
    kf.write_dump(place, [Part.of(FLOAT)], name=f"Add.op1.5.2.{STAMP}", op_name="op1")
    (place / "Add.op1.json").write_text('{"axis": -1}')
    (place / "notes.md").write_text("mine")
    (place / "Bad.op2.json").write_text("{")
    (unit,) = msformat.open(place)
    (entry,) = unit.values()
    assert entry.value["kernel"]["arguments"].value == {"axis": -1}
    assert any("left-alone" in note and "notes.md" in note for note in unit.store.notes)
    assert msformat.convert_dump(place, tmp_path / "out").exit_code == 0


def test_a_kernel_file_by_itself(tmp_path: Path) -> None:
    path = kf.write_dump(tmp_path / "step4/20241201103000/6", [Part.of(FLOAT)])
    (unit,) = msformat.open(path)
    assert unit.label == "step4/rank6"
    np.testing.assert_array_equal(unit[kf.NAME].inputs[0].numpy(), FLOAT)


# --- tables ----------------------------------------------------------------------------------------------------------

HEAD = "Op Type,Op Name,Task ID,Stream ID,Timestamp"
ONE_KERNEL = "Input/Output,Index,Data Size,Data Type,Format,Shape,Max Value"
ATB = "Op Name,Op Type,Op Id,Input/Output,Index,Dtype,Format,Shape,Max,Min,Mean,Norm,Tensor Path"


@pytest.mark.parametrize(
    ("head", "line", "said"),
    [
        (f"{HEAD},IO,Slot,Data Size,Data Type,Shape,Max Value,Min Value,L2 Value",
         'Add,a,0,0,9,input,1,24,float16,"(2,3)",5,0,7.5',
         ("Add.a.0.0.9", "input", 1, "float16", (2, 3), {"Max": 5, "Min": 0, "Norm": 7.5})),
        (f"{HEAD},Input/Output,Slot,Data Size,Data Type,Format,Shape,MD5",
         "Add,a,0,0,9,Output,0,24,DT_BF16,ND,(2,3),abc",
         ("Add.a.0.0.9", "output", 0, "bfloat16", (2, 3), {})),
        (f"{ONE_KERNEL},Min Value,Avg Value,Count",
         "Input,0,24,DT_FLOAT,ND,2x3,nan,-inf,1.5,6",
         ("", "input", 0, "float32", (2, 3), {"Max": np.nan, "Min": -np.inf, "Mean": 1.5})),
        (ONE_KERNEL, "Output,3,0,DT_STRING,ND,-,NA", ("", "output", 3, "string", None, {})),
        (f"Device and PID,Execution Count,{ATB}",
         "0_1,0,n,t,1,Input,0,float16,nd,36x128,1,0,0.5,2,p",
         ("t.n...", "input", 0, "float16", (36, 128), {"Max": 1, "Min": 0, "Mean": 0.5, "Norm": 2})),
        (f"{HEAD},IO,Slot,Data Size,Data Type,Shape,Max Value",
         'Add,a,0,0,9,input,0,4,float32,"()",null',
         ("Add.a.0.0.9", "input", 0, "float32", (), {"Max": None})),
    ],
)  # fmt: skip
def test_statistics(head: str, line: str, said: tuple[Any, ...]) -> None:
    (row,), bad = parse_statistics(f"{head}\n{line}\n".encode())
    stem, slot, index, dtype, shape, statistics = said
    assert (row.stem, row.slot, row.index, row.dtype, row.shape) == (stem, slot, index, dtype, shape)
    assert row.statistics.keys() == statistics.keys()
    for name, value in statistics.items():
        np.testing.assert_equal(row.statistics[name], value)
    assert bad == 0


def test_tables_in_parts_and_bad_lines() -> None:
    head = "Input/Output,Index,Data Size,Data Type,Format,Shape,Max Value"
    text = (
        f"{head}\nInput,0,4,DT_FLOAT,ND,1,2\n{head}\nInput,1,4,DT_FLOAT,ND,1,3\n,,\nhello\nInput,x,4,DT_FLOAT,ND,1,3\n"
    )
    rows, bad = parse_statistics(text.encode())
    assert [row.index for row in rows] == [0, 1]
    assert bad == 3
    assert parse_statistics(b"") == ([], 0)
    assert parse_statistics(b"\xff\xfe\x00,\x00")[0] == []


def test_a_table_of_a_kernel_without_tensors(tmp_path: Path) -> None:
    """Statistics mode: tables alone."""
    place = tmp_path / "in"
    place.mkdir()
    head = "Input/Output,Index,Data Size,Data Type,Format,Shape,Max Value,Min Value,Avg Value,Count,l2norm"
    lines = [head, "Input,0,24,DT_FLOAT,ND,2x3,5,0,2.5,6,7.5", "Output,0,24,DT_FLOAT,ND,2x3,6,1,3.5,6,9.5"]
    (place / f"{kf.NAME}.csv").write_text("\n".join(lines))
    (unit,) = msformat.open(place)
    assert unit.header.task == "statistics"
    entry = unit[kf.NAME]
    assert (entry.outputs[0].stats.max, entry.outputs[0].stats.norm) == (6, 9.5)
    assert not entry.outputs[0].has_data
    assert msformat.convert_dump(place, tmp_path / "out").exit_code == 0
    assert list(msformat.open(tmp_path / "out").table()["Max"]) == [5, 6]


def test_a_table_beside_a_binary_file(tmp_path: Path) -> None:
    kf.write_dump(tmp_path, [Part.of(FLOAT)])
    (tmp_path / f"{kf.NAME}.csv").write_text(
        "Input/Output,Index,Data Size,Data Type,Format,Shape,Max Value\nInput,0,24,DT_FLOAT,ND,2x3,5\n"
    )
    (unit,) = msformat.open(tmp_path)
    assert unit[kf.NAME].inputs[0].stats.max == 5
    np.testing.assert_array_equal(unit[kf.NAME].inputs[0].numpy(), FLOAT)


def test_mapping() -> None:
    text = b"1,Add.a.1.2.3\n1,Add.a.1.2.3\n/x/2,/y/Mul.b\nonly\n"
    assert parse_mapping(text) == ({"1": "Add.a.1.2.3", "2": "Mul.b"}, 1)


def test_a_bad_table_is_named(tmp_path: Path) -> None:
    kf.write_dump(tmp_path, [Part.of(FLOAT)])
    (tmp_path / "mapping.csv").write_text("only one column\n")
    (unit,) = msformat.open(tmp_path)
    (problem,) = unit.problems
    assert "bad-table" in problem
    assert "mapping.csv" in problem
