"""Reports on MindSpore's hooks and dumps (R080 to R094), as far as they concern what is stored."""

from __future__ import annotations

import json
from pathlib import Path

import h5py
import numpy as np
import pytest

import msformat
from msformat import FormatError
from tests.reports.cases import FLOAT32, call, everywhere, plain_record, run, run_python, write_documents, writer

NET = "Cell.net.Net.forward.0"


def npy_unit(unit: Path, arrays: dict[str, np.ndarray], dtype: str) -> Path:
    """Saved variables as MindSpore leaves them: ``.npy`` files named by debug.json."""
    (unit / "dump_tensor_data").mkdir(parents=True)
    data = {}
    for key, array in arrays.items():
        np.save(unit / "dump_tensor_data" / f"{key}.npy", array)
        data[key] = {**plain_record(array.shape, dtype, data_name=f"{key}.npy"), "type": "mindspore.Tensor"}
    return write_documents(unit, data, name="debug.json", level="debug", framework="mindspore")


def test_r080_bfloat16_in_float32_files(tmp_path: Path) -> None:
    exact = (np.arange(6, dtype=np.uint32) * 12345 << 16).view(np.float32).reshape(2, 3)
    unit = npy_unit(tmp_path / "d/step0/rank0", {"z_grad.3.debug": exact, "bad.0.debug": exact}, "BFloat16")
    bad = unit / "dump_tensor_data/bad.0.debug.npy"
    bad.write_bytes(bad.read_bytes().replace(b"'<f4'", b"'bf2'"))
    for name in ("o.h5", "o.zarr", "o"):
        done = run("convert", tmp_path / "d", tmp_path / name)
        assert done.code == 1
        (line,) = done.err.splitlines()
        assert "bad.0.debug.npy" in line
        assert "'bf2'" in line
        tensor = msformat.open(tmp_path / name)[0]["z_grad.3.debug"].value
        assert (tensor.dtype_name, tensor.numpy().dtype.name) == ("BFloat16", "bfloat16")
        assert np.array_equal(tensor.numpy().astype(np.float32), exact)
    plain = np.load(tmp_path / "o/step0/rank0/dump_tensor_data/z_grad.3.debug.npy")
    assert (plain.dtype, plain.tobytes()) == (exact.dtype, exact.tobytes())


def test_r080_r084_loose_files_of_a_static_graph(tmp_path: Path) -> None:
    """Both parts of a mixed run are read and converted, and their origin stays; a broken file costs itself only."""
    exact = (np.arange(6, dtype=np.uint32) * 12345 << 16).view(np.float32).reshape(2, 3)
    loose = tmp_path / "d/graph/step0/rank0"
    loose.mkdir(parents=True)
    for name in ("x_float32_0", "bad_bfloat16_1", "cut_float32_2", "z_grad_bfloat16_3", "empty_float32_4"):
        np.save(loose / f"{name}.npy", exact)
    bad, cut = loose / "bad_bfloat16_1.npy", loose / "cut_float32_2.npy"
    bad.write_bytes(bad.read_bytes().replace(b"'<f4'", b"'bf2'"))
    cut.write_bytes(cut.read_bytes()[:-8])
    (loose / "empty_float32_4.npy").write_bytes(b"")
    write_documents(tmp_path / "d/step0/rank0", {NET: call()}, framework="mindspore")
    for name in ("o.h5", "o.zarr", "o"):
        done = run("convert", tmp_path / "d", tmp_path / name)
        assert done.code == 1
        lines = done.err.splitlines()
        named = ("bad_bfloat16_1.npy", "cut_float32_2.npy", "empty_float32_4.npy")
        assert [file in line for file, line in zip(named, lines, strict=True)] == [True, True, True]
        dump = msformat.open(tmp_path / name)
        assert [str(key) for key in dump.units] == ["step0/rank0", "graph/step0/rank0"]
        unit = dump[0, 0, "graph"]
        assert list(unit) == ["x.0.debug", "z_grad.0.debug"]
        assert unit["x.0.debug"].value.numpy().tobytes() == exact.tobytes()
        tensor = unit["z_grad.0.debug"].value
        assert (tensor.dtype_name, tensor.numpy().dtype.name) == ("BFloat16", "bfloat16")
        assert np.array_equal(tensor.numpy().astype(np.float32), exact)


def test_r081_a_cut_file_and_an_empty_one(tmp_path: Path) -> None:
    arrays = {f"{name}.0.debug": np.arange(100, dtype=np.float32) for name in "abc"}
    data = npy_unit(tmp_path / "d/step0/rank0", arrays, "Float32") / "dump_tensor_data"
    (data / "b.0.debug.npy").write_bytes((data / "b.0.debug.npy").read_bytes()[:200])
    (data / "c.0.debug.npy").write_bytes(b"")
    done = run("convert", tmp_path / "d", tmp_path / "o.h5")
    assert done.code == 1
    assert [name in line for name, line in zip("bc", done.err.splitlines(), strict=True)] == [True, True]
    with h5py.File(tmp_path / "o.h5") as file:
        assert list(file["step0/rank0/tensors"]) == ["a.0.debug.npy"]


def test_r082_two_processes_never_share_a_unit(tmp_path: Path) -> None:
    with writer(tmp_path / "step0/rank") as to:
        to.put_entry("a.0.debug", [plain_record()])
        code = """
import sys, msformat
try:
    to = msformat.DumpWriter(sys.argv[1], msformat.Header("tensor", "debug", "mindspore"), document="debug.json")
    to.put_entry("b.0.debug", None)
except msformat.StoreError as error:
    print(error)
"""
        done = run_python(code, tmp_path / "step0/rank")
        assert "still being written by process" in done.stdout
    assert list(json.loads((tmp_path / "step0/rank/debug.json").read_text())["data"]) == ["a.0.debug"]


def test_r084_r086_one_cell_in_both_parts_stays_two(tmp_path: Path) -> None:
    wanted = {"step0/rank0": 1.0, "graph/step0/rank0": 2.0}
    for path, largest in wanted.items():
        write_documents(tmp_path / "d" / path, {NET: call(plain_record(Max=largest))}, framework="mindspore")
    for place in (tmp_path / "d", *everywhere(tmp_path / "d")):
        dump = msformat.open(place)
        assert {unit.key.path: unit[NET].inputs[0].stats.max for unit in dump} == wanted
        assert dump[0, 0, "graph"][NET].inputs[0].stats.max == 2.0
        assert list(dump.table()["unit"]) == list(wanted)


@pytest.mark.parametrize("slots", [("input",), ("output",), ("input", "output")])
def test_r085_backward_slots_are_told_apart(tmp_path: Path, slots: tuple[str, ...]) -> None:
    """Dump mode ``input`` or ``output`` records one slot: the other is not there, rather than swapped or doubled."""
    values = {"input": 1.0, "output": 2.0}
    key = "Cell.net.Net.backward.0"
    entry = {slot: [plain_record(Max=values[slot])] for slot in slots}
    write_documents(tmp_path / "d/step0/rank0", {key: entry}, framework="mindspore")
    for target in everywhere(tmp_path / "d"):
        found = msformat.open(target)[0][key]
        assert [tensor.stats.max for tensor in found.inputs] == [1.0] * ("input" in slots)
        assert [tensor.stats.max for tensor in found.outputs] == [2.0] * ("output" in slots)
        assert list(found.json()) == list(slots)


def test_r094_none_and_numbers_as_keys(tmp_path: Path) -> None:
    x = np.arange(3, dtype=np.float32)

    def record(name: str) -> dict[str, object]:
        return plain_record((3,), data_name=name)

    with writer(tmp_path / "d/step0/rank0") as to:
        for name in ("a.0.debug.0.pt", "a.0.debug.1.0.pt", "b.0.debug.3.pt"):
            to.put_tensor(name, x, FLOAT32)
        to.put_entry("a.0.debug", (record("a.0.debug.0.pt"), [record("a.0.debug.1.0.pt"), None]))
        to.put_entry("b.0.debug", {3: record("b.0.debug.3.pt"), np.int64(4): None})
    for target in everywhere(tmp_path / "d"):
        unit = msformat.open(target)[0]
        first, (second, third) = unit["a.0.debug"].value
        assert (first.path, second.path, third) == ("0", "1.0", None)
        assert unit["b.0.debug"].value["3"].numpy().tolist() == [0, 1, 2]
        assert unit["b.0.debug"].value["4"] is None


def test_r094_keys_that_become_one_are_refused(tmp_path: Path) -> None:
    """JSON would keep the last of the two, and a tensor would be gone without a word."""
    with writer(tmp_path / "step0/rank0") as to:
        to.put_entry("a.0.debug", None)
        for value in ({3: [None], "3": None}, [{"x": {None: None, "null": None}}], {True: None, "true": None}):
            with pytest.raises(FormatError, match="not distinct as text"):
                to.put_entry("b.0.debug", value)
    assert list(msformat.open(tmp_path)[0]) == ["a.0.debug"]
