"""The columnar index of containers: what plain tools see of it, and that nothing wrong in it ever reaches a table."""

from __future__ import annotations

import json
import pickle
import tracemalloc
from dataclasses import replace
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
import safetensors.numpy

import msformat
from msformat.columnfile import decode_columns, encode_columns
from msformat.columnindex import find_columns
from msformat.errors import FormatError
from msformat.model import Header
from msformat.stores.base import COLUMNS
from msformat.stores.registry import open_store
from msformat.table import Table
from msformat.verify import verify
from msformat.writer import DumpWriter
from tests.golden.test_reader import Golden
from tests.judges import judge
from tests.small_dumps import convert_whole, tree_bytes, write_tree

zarr = judge("zarr")

BACKENDS = ("hdf5", "zarr")
SUFFIX = {"hdf5": "h5", "zarr": "zarr"}


@pytest.fixture(autouse=True)
def small_documents(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that small ones have an index, too."""
    monkeypatch.setattr("msformat.columnindex._LEAST_DOCUMENT", 0)


def _rows(table: Table) -> list[str]:
    return [repr(tuple(row)) for row in table]


def _slow(unit: msformat.Unit) -> list[str]:
    return _rows(Table.of_tensors(unit.tensors()))


def _container(tmp_path: Path, backend: str) -> str:
    target = tmp_path / f"dump.{SUFFIX[backend]}"
    convert_whole(write_tree(tmp_path / "tree", units=("step0/rank",)), target)
    return str(target)


def _index(path: str, backend: str) -> bytes:
    with open_store(backend, path, group="step0/rank") as store:
        data = store.get_document(COLUMNS)
        assert data is not None
        return bytes(data)


def _put(path: str, backend: str, name: str, data: bytes) -> None:
    """With plain tools, as somebody would who knows nothing of the index."""
    if backend == "hdf5":
        with h5py.File(path, "r+") as file:
            documents: Any = file["step0/rank/documents"]
            del documents[name]
            documents[name] = np.frombuffer(data, np.uint8)
        return
    group: Any = zarr.open_group(path, mode="r+")["step0/rank/documents"]
    del group[name]
    group.create_array(name, shape=(len(data),), dtype="u1")[:] = np.frombuffer(data, np.uint8)


def _problems(path: str) -> str:
    return " ".join(problem for unit in verify(path).units for problem in unit.problems)


@pytest.mark.parametrize("backend", BACKENDS)
@pytest.mark.parametrize("name", ["torch_8.1.0_mix_tensor", "mindspore_8.1.0_mix_md5", "torch_1.2.2_debug_statistics"])
def test_tables_come_from_the_index(
    golden: Golden, tmp_path: Path, backend: str, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / f"dump.{SUFFIX[backend]}"
    convert_whole(golden(name), path)
    expected = [_rows(unit.table()) for unit in msformat.open(golden(name))]
    dump = msformat.open(path)
    assert [_slow(unit) for unit in dump] == expected
    monkeypatch.setattr("msformat.unit.load_contents", None)  # no document is looked at
    assert [_rows(unit.table()) for unit in msformat.open(path)] == expected
    unit = next(iter(msformat.open(path)))
    kept = unit.table(filter="*forward*")
    assert _rows(kept) == [row for row in expected[0] if "forward" in row]


@pytest.mark.parametrize("backend", BACKENDS)
def test_plain_tools_read_it(tmp_path: Path, backend: str) -> None:
    path = _container(tmp_path, backend)
    if backend == "hdf5":
        with h5py.File(path) as file:
            data = file[f"step0/rank/documents/{COLUMNS}"][:].tobytes()
    else:
        data = zarr.open_group(path, mode="r")[f"step0/rank/documents/{COLUMNS}"][:].tobytes()  # type: ignore[index,union-attr]
    arrays = safetensors.numpy.load(data)
    table = msformat.open(path)[0, None].table()
    assert arrays["Max"].tolist() == list(table["Max"])
    keys = json.loads(arrays["keys"].tobytes())
    assert np.repeat(keys, arrays["counts"]).tolist() == list(table["entry"])
    slots = json.loads(arrays["slot.values"].tobytes())
    assert [slots[code] for code in arrays["slot"]] == list(table["slot"])


@pytest.mark.parametrize("backend", BACKENDS)
def test_it_is_no_document(tmp_path: Path, backend: str) -> None:
    path = _container(tmp_path, backend)
    with msformat.open(path)[0, None] as unit:
        assert unit.documents == ("construct.json", "dump.json", "stack.json")
    convert_whole(Path(path), tmp_path / "back", to="files")
    assert tree_bytes(tmp_path / "back") == tree_bytes(tmp_path / "tree")
    assert not _problems(path)


@pytest.mark.parametrize("backend", ["files", *BACKENDS])
def test_a_writer_writes_it_into_containers(tmp_path: Path, backend: str) -> None:
    record = {
        "type": "torch.Tensor",
        "dtype": "torch.float32",
        "shape": [2],
        "Max": float("nan"),
        "Min": None,
        "Norm": 1,
    }
    with DumpWriter(tmp_path / "step0/rank", Header("statistics", "L1", "pytorch"), backend=backend) as writer:
        writer.put_entry("Functional.relu.0.forward", {"input_args": [record], "input_kwargs": {}, "output": [record]})
    unit = msformat.open(tmp_path)[0, None]
    assert (find_columns(unit.store) is not None) == (backend != "files")
    assert _rows(unit.table()) == _slow(unit)
    assert len(unit.table()) == 2
    assert not _problems(str(tmp_path))


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_small_document_needs_none(tmp_path: Path, backend: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("msformat.columnindex._LEAST_DOCUMENT", 1 << 20)
    unit = msformat.open(_container(tmp_path, backend))[0, None]
    assert unit.document(COLUMNS) is None
    assert _rows(unit.table()) == _slow(unit)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_index_of_another_document_is_ignored(tmp_path: Path, backend: str) -> None:
    path = _container(tmp_path, backend)
    with open_store(backend, path, group="step0/rank") as store:
        document = bytes(store.get_document("dump.json") or b"")
    changed = document.replace(b'"Max": 1.0', b'"Max": 7.0')  # of the same length
    assert changed != document
    _put(path, backend, "dump.json", changed)
    assert set(msformat.open(path)[0, None].table()["Max"]) == {7.0}
    assert "stale" in _problems(path)


@pytest.mark.parametrize("backend", BACKENDS)
def test_the_same_document_packed_anew_keeps_its_index(tmp_path: Path, backend: str) -> None:
    path = _container(tmp_path, backend)
    with open_store(backend, path, group="step0/rank") as store:
        document = bytes(store.get_document("dump.json") or b"")
        seal = store.document_seal("dump.json")
    _put(path, backend, "dump.json", document * 1)
    with open_store(backend, path, group="step0/rank") as store:
        assert backend == "hdf5" or store.document_seal("dump.json") != seal
        assert find_columns(store) is not None
    assert not _problems(path)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_damaged_index_is_ignored(tmp_path: Path, backend: str) -> None:
    path = _container(tmp_path, backend)
    with msformat.open(path)[0, None] as unit:
        expected = _slow(unit)
    data = bytearray(_index(path, backend))
    data[-3] ^= 1
    _put(path, backend, COLUMNS, bytes(data))
    assert _rows(msformat.open(path)[0, None].table()) == expected
    assert "damaged" in _problems(path)


@pytest.mark.parametrize("backend", BACKENDS)
def test_an_index_that_lies_is_named(tmp_path: Path, backend: str) -> None:
    path = _container(tmp_path, backend)
    file = decode_columns(_index(path, backend))
    values, kinds, others = file.columns.statistics["Max"]
    lying = replace(file.columns, statistics={**file.columns.statistics, "Max": (values + 1, kinds, others)})
    _put(path, backend, COLUMNS, encode_columns(replace(file, columns=lying)))
    assert "something else" in _problems(path)


def _forge(path: Path, change: dict[str, np.ndarray]) -> bytes:
    """An index whose digest is right, with other arrays."""
    file = decode_columns(_index(_container(path, "hdf5"), "hdf5"))
    columns = file.columns
    codes, slots = columns.coded["slot"]
    values, kinds, others = columns.statistics["Max"]
    maximum = change.get("values", values), change.get("kinds", kinds), others
    forged = replace(
        columns,
        counts=change.get("counts", columns.counts),
        coded={**columns.coded, "slot": (change.get("codes", codes), slots)},
        statistics={**columns.statistics, "Max": maximum},
    )
    return encode_columns(replace(file, columns=forged))


@pytest.mark.parametrize(
    "change",
    [
        {"counts": np.full(3, 2**32 - 1, np.uint32)},
        {"counts": np.zeros(3, np.uint8)},
        {"counts": np.zeros(2, np.uint8)},
        {"codes": np.full(3, 200, np.uint8)},
        {"codes": np.zeros(4, np.uint8)},
        {"codes": np.zeros(3, np.float32)},
        {"kinds": np.full(3, 5, np.uint8)},
        {"kinds": np.full(3, 6, np.uint8)},
        {"kinds": np.full(3, 1, np.uint8), "values": np.full(3, np.nan, np.float32)},
        {"kinds": np.full(3, 5, np.uint8), "values": np.full(3, -1.0, np.float32)},
        {"values": np.zeros(3, np.uint32)},
        {"values": np.zeros(2, np.float64)},
    ],
)
def test_a_forged_index_is_refused(tmp_path: Path, change: dict[str, Any]) -> None:
    with pytest.raises(FormatError):
        decode_columns(_forge(tmp_path, change))


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"\xff" * 8,
        (1 << 40).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"{}",
        (2).to_bytes(8, "little") + b"[]",
        bytes(range(7, 71)),
    ],
    ids=["empty", "endless", "long", "blank", "list", "noise"],
)
def test_what_is_no_index_is_refused(data: bytes) -> None:
    with pytest.raises(FormatError):
        decode_columns(data)


def test_a_table_goes_to_other_processes_and_is_cut_lazily(tmp_path: Path) -> None:
    table = msformat.open(_container(tmp_path, "hdf5"))[0, None].table()
    assert _rows(pickle.loads(pickle.dumps(table))) == _rows(table)
    assert _rows(table[1:]) == _rows(table)[1:]
    assert _rows(table[table.numbers("Max").filled(0) > 5]) == []
    assert repr(tuple(table[-1])) == _rows(table)[-1]
    with pytest.raises(IndexError):
        table[3]
    both = Table.concat([table, table])
    assert both.numbers("Max").tolist() == table.numbers("Max").tolist() * 2


def test_a_forged_index_takes_no_memory(tmp_path: Path) -> None:
    """Rows that are not there are refused before room for them is made."""
    data = _forge(tmp_path, {"counts": np.full(3, 2**32 - 1, np.uint32)})
    tracemalloc.start()
    try:
        with pytest.raises(FormatError):
            decode_columns(data)
        assert tracemalloc.get_traced_memory()[1] < 1 << 20
    finally:
        tracemalloc.stop()
