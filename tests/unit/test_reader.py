"""The reader on small dumps made by hand: json and numpy write them, the reader is judged by what was written."""

from __future__ import annotations

import concurrent.futures
import json
import multiprocessing
import pickle
import shutil
import threading
import tracemalloc
import warnings
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest
import torch
from torch.utils.data import DataLoader, Dataset

import msformat
from msformat import lazy
from msformat.stores.registry import open_store

RELU = "Functional.relu.0.forward"
X = f"{RELU}.input.0.npy"
VALUES = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


def record(array: np.ndarray, data_name: str | None = None, **more: Any) -> dict[str, Any]:
    """A tensor record as msprobe writes it."""
    found = {"type": "torch.Tensor", "dtype": f"torch.{array.dtype}", "shape": list(array.shape), **more}
    return found if data_name is None else {**found, "data_name": data_name}


def entries() -> dict[str, Any]:
    """A relu with a kwarg and scalars."""
    slots = {
        "input_args": [record(VALUES, X, Max=23.0, Min=0.0, Mean=11.5, Norm=65.0), {"type": "int", "value": 3}, None],
        "input_kwargs": {"inplace": {"type": "bool", "value": False}},
        "is_recompute": False,
        "output": [record(VALUES)],
    }
    return {RELU: slots}


def write_unit(directory: Path, data: dict[str, Any], *, name: str = "dump.json", **header: Any) -> Path:
    """A unit in the canonical layout."""
    directory.mkdir(parents=True, exist_ok=True)
    top = {"task": "tensor", "level": "mix", "framework": "pytorch", "dump_data_dir": None, **header, "data": data}
    (directory / name).write_text(json.dumps(top, indent=1))
    return directory


def write_tensor(directory: Path, name: str, values: np.ndarray) -> None:
    (directory / "dump_tensor_data").mkdir(exist_ok=True)
    np.save(directory / "dump_tensor_data" / name, values)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Two steps of two ranks."""
    for step in (0, 1):
        for rank in (2, 10):
            unit = write_unit(tmp_path / "d" / f"step{step}" / f"rank{rank}", entries())
            write_tensor(unit, X, VALUES)
    return tmp_path / "d"


@pytest.fixture(params=["files", "hdf5", "zarr"])
def stored(request: pytest.FixtureRequest, tree: Path) -> Path:
    """One unit in each store; documents and bits go in through the store's own writer."""
    backend = request.param
    source = tree / "step0" / "rank2"
    if backend == "files":
        return source
    target = tree.parent / {"hdf5": "one.h5", "zarr": "one.zarr"}[backend]
    with open_store(backend, str(target), mode="w", group="step0/rank2") as store:
        store.put(X, VALUES, msformat.dtype_named("float32"))
        store.put_document("dump.json", (source / "dump.json").read_bytes())
    return target


# --- a dump and its units --------------------------------------------------------------------------------------------


def test_units_in_numeric_order(tree: Path) -> None:
    dump = msformat.open(tree)
    assert [key.path for key in dump.units] == ["step0/rank2", "step0/rank10", "step1/rank2", "step1/rank10"]
    assert dump.steps == (0, 1)
    assert dump.ranks == ("rank2", "rank10")
    assert len(dump) == 4
    assert [unit.key for unit in dump] == list(dump.units)
    assert dump.units[0] in dump
    assert dump.path == str(tree)
    assert "4 units, 2 steps, 2 ranks" in repr(dump)


def test_many_ways_to_one_unit(tree: Path) -> None:
    dump = msformat.open(str(tree))
    unit = dump[1, 10]
    assert unit.key.path == "step1/rank10"
    assert dump[1, "rank10"] is unit
    assert dump[1, 10, ""] is unit
    assert dump["step1/rank10"] is unit
    assert dump[unit.key] is unit
    assert dump.unit(unit.key) is unit
    assert msformat.open(tree / "step1" / "rank10")[1][RELU].key == RELU


@pytest.mark.parametrize(
    "index", [7, (0, 3), (0, None), (0, "proc1"), (0, 2, "graph"), "step9/rank1", "nonsense", (1, 2, 3, 4)]
)
def test_a_unit_that_is_not_there(tree: Path, index: Any) -> None:
    dump = msformat.open(tree)
    with pytest.raises(KeyError, match="no unit") as caught:
        dump[index]
    assert isinstance(caught.value, msformat.UnitNotFoundError)
    if index != (1, 2, 3, 4):
        assert "[0, 2], [0, 10], [1, 2], [1, 10]" in str(caught.value)


def test_an_index_that_leaves_open_which(tree: Path) -> None:
    with pytest.raises(msformat.UnitNotFoundError, match=r"matches 2: \[0, 2\], \[0, 10\]"):
        msformat.open(tree)[0]


def test_rank_none_and_branches(tmp_path: Path) -> None:
    for path in ("graph/step0/rank", "pynative/step0/rank", "pynative/step1/rank"):
        write_unit(tmp_path / "d" / path, {})
    dump = msformat.open(tmp_path / "d")
    assert dump[1, None].key.branch == "pynative"
    assert dump[1] is dump[1, "rank"]
    assert dump[0, None, "graph"].key.branch == "graph"
    with pytest.raises(msformat.UnitNotFoundError, match=r"matches 2: \[0, 'rank', 'graph'\]"):
        dump[0]


def test_a_unit_without_step(tmp_path: Path) -> None:
    write_unit(tmp_path / "d" / "rank", {}, name="debug.json")
    dump = msformat.open(tmp_path / "d")
    assert dump[None] is dump[None, "rank"]
    assert dump.steps == ()


def test_a_dump_that_is_not_there(tmp_path: Path) -> None:
    with pytest.raises(msformat.StoreError):
        msformat.open(tmp_path / "nowhere")
    with pytest.raises(msformat.FormatError):
        msformat.open(tmp_path)


def test_one_bad_unit_stops_no_other(tree: Path) -> None:
    (tree / "step0" / "rank2" / "dump.json").write_text("no JSON at all")
    dump = msformat.open(tree)
    assert sum(len(dump[key]) for key in dump.units[1:]) == 3
    with pytest.raises(msformat.FormatError, match=r"rank2"):
        len(dump[0, 2])
    assert len(dump.problems) == 1
    assert dump.problems[0].startswith("step0/rank2: ")
    with pytest.warns(UserWarning, match="step0/rank2: left out"):
        assert len(dump.table()) == 6


# --- entries ---------------------------------------------------------------------------------------------------------


def test_an_entry_in_every_store(stored: Path) -> None:
    unit = msformat.open(stored)[0, 2]
    assert list(unit) == [RELU]
    entry = unit[RELU]
    x, three, nothing = entry.inputs
    assert (three.type, three.value, nothing) == ("int", 3, None)
    assert entry.kwargs["inplace"].value is False
    assert entry.outputs[0].data_name is None
    assert entry.parameters == {}
    assert entry.is_recompute is False
    assert entry.name is not None
    assert entry.name.path == "relu"
    assert set(entry.value) == {"input_args", "input_kwargs", "output"}
    assert entry.json() == entries()[RELU]
    assert [(t.slot, t.path) for t in entry.tensors] == [("input_args", "0"), ("output", "0")]
    assert unit.backend == {"": "files", ".h5": "hdf5", ".zarr": "zarr"}[stored.suffix]
    assert unit.usage.bytes > 0
    assert unit.documents == ("dump.json",)
    assert json.loads(bytes(unit.document("dump.json") or b""))["data"] == entries()
    assert (x.shape, x.dtype_name, x.dtype, x.requires_grad) == (
        (2, 3, 4),
        "torch.float32",
        msformat.parse_dtype("float32"),
        None,
    )
    assert x.stats is not None
    assert (x.stats.max, x.digest) == (23.0, None)
    unit.close()
    assert np.array_equal(x.numpy(), VALUES)  # opened again by itself
    unit.close()


def test_a_tensor_in_every_store(stored: Path) -> None:
    with msformat.open(stored) as dump:
        x = dump[0, 2].tensor(X)
        assert x.has_data
        assert x.nbytes == VALUES.nbytes
        assert np.array_equal(x[0, ::-1, 1], VALUES[0, ::-1, 1])
        assert np.array_equal(np.asarray(x), VALUES)
        assert np.array_equal(np.asarray(x, dtype=np.float64), VALUES)
        assert torch.equal(x.to_torch((1, ..., slice(2))), torch.from_numpy(VALUES)[1, ..., :2])
        owned = x.numpy()
        owned += 1
        assert np.array_equal(x.numpy(), VALUES)
        assert "input_args.0" in repr(x)


def test_backward_and_gradients(tmp_path: Path) -> None:
    data = {
        "Module.fc.Linear.backward.0": {"input": [record(VALUES)], "output": [None, record(VALUES)]},
        "Module.fc.Linear.parameters_grad": {
            "weight": [record(VALUES, "Module.fc.Linear.parameters_grad.weight.pt")],
            "bias": [None],
        },
        "Module.fc.Linear.forward.0": {
            "input_args": [],
            "input_kwargs": {},
            "output": [],
            "parameters": {"weight": record(VALUES)},
        },
    }
    unit = msformat.open(write_unit(tmp_path / "step0" / "rank", data))[0]
    backward, gradients, forward = unit.values()
    assert [t.slot for t in backward.inputs] == ["input"]
    assert backward.outputs[0] is None
    assert backward.outputs[1].path == "1"
    weight = gradients.parameters["weight"]
    assert (weight.slot, weight.path, gradients.parameters["bias"]) == ("parameters_grad", "weight", None)
    assert gradients.inputs == ()
    assert forward.parameters["weight"].slot == "parameters"
    assert forward.inputs == forward.outputs == ()


def test_saved_variables_and_names_nobody_knows(tmp_path: Path) -> None:
    data = {
        "loss.0.debug": record(VALUES, "loss.0.debug.npy"),
        "d.0.debug": {"input_args": [record(VALUES, "d.0.debug.input_args.0.npy")]},
        "n.0.debug": None,
        "strange": {"input_args": [record(VALUES, "whatever")], "extra": [{"b": record(VALUES)}]},
    }
    unit = msformat.open(write_unit(tmp_path / "step0" / "rank", data, name="debug.json"))[0]
    loss, tree, nothing, strange = unit.values()
    assert loss.value.slot == loss.value.path == ""
    assert tree.value["input_args"][0].path == "input_args.0"
    assert (tree.inputs, nothing.value, nothing.tensors) == ((), None, ())
    assert strange.name is None
    assert strange.inputs[0].data_name == "whatever"
    assert strange.tensors[1].path == "0.b"
    assert unit.tensor("whatever").entry.key == "strange"
    assert unit.tensor("d.0.debug.input_args.0.npy").slot == ""


def test_dump_and_debug_in_one_unit(tmp_path: Path) -> None:
    directory = write_unit(tmp_path / "step0" / "rank", {**entries(), "a.0.debug": None})
    write_unit(directory, {"y.0.debug": record(VALUES), "a.0.debug": record(VALUES)}, name="debug.json", level="debug")
    unit = msformat.open(directory)[0]
    assert list(unit) == [RELU, "a.0.debug", "y.0.debug"]
    assert len(unit) == 3
    assert unit["a.0.debug"].value is None
    assert unit.header.level == "mix"
    assert unit.documents == ("debug.json", "dump.json")


def test_a_dump_behind_a_url(tree: Path) -> None:
    import fsspec

    memory = fsspec.filesystem("memory")
    for path in (tree / "step0").rglob("*.*"):
        memory.pipe_file(f"/reader-test/{path.relative_to(tree)}", path.read_bytes())
    dump = msformat.open("memory://reader-test")
    assert [unit.key.path for unit in dump] == ["step0/rank2", "step0/rank10"]
    assert np.array_equal(dump[0, 10][RELU].inputs[0][1], VALUES[1])
    assert dump[0, 2].usage.files == 2
    assert dump[0, 2].usage.bytes > VALUES.nbytes


def test_near_matches(tree: Path) -> None:
    unit = msformat.open(tree)[0, 2]
    with pytest.raises(msformat.EntryNotFoundError, match=r"near matches: 'Functional\.relu\.0\.forward'"):
        unit["Functional.relu.1.forward"]
    with pytest.raises(msformat.TensorNotFoundError, match="near matches"):
        unit.tensor(f"{RELU}.input.1.npy")
    assert unit.get("nothing") is None
    assert unit.get("nothing", 5) == 5
    assert "nothing" not in unit
    assert 3 not in unit


# --- no data ---------------------------------------------------------------------------------------------------------


def test_why_there_are_no_data(tree: Path) -> None:
    directory = tree / "step0" / "rank2"
    unit = msformat.open(directory)[0, 2]
    output = unit[RELU].outputs[0]
    assert not output.has_data
    with pytest.raises(msformat.TensorNotFoundError, match=r"task 'tensor' saved no data of it"):
        output.numpy()
    (directory / "dump_tensor_data" / X).unlink()
    x = msformat.open(directory)[0, 2][RELU].inputs[0]
    assert not x.has_data
    with pytest.raises(msformat.TensorNotFoundError, match=X) as caught:
        x.numpy()
    if hasattr(caught.value, "__notes__"):
        assert caught.value.__notes__ == [f"while reading {RELU!r} from {directory}"]


def test_a_statistics_run_opens_no_store(tmp_path: Path) -> None:
    data = {RELU: {"input_args": [record(VALUES, Max=1.0)], "input_kwargs": {}, "output": []}}
    unit = msformat.open(write_unit(tmp_path / "step0" / "rank", data, task="statistics"))[0]
    assert not unit[RELU].inputs[0].has_data
    assert list(unit.store.keys()) == []
    assert unit.orphans() == ()
    with pytest.raises(msformat.TensorNotFoundError, match="task 'statistics'"):
        unit[RELU].inputs[0].bits()


def test_orphans(tree: Path) -> None:
    write_tensor(tree / "step0" / "rank2", "nobody.npy", VALUES)
    assert msformat.open(tree)[0, 2].orphans() == ("nobody.npy",)


@pytest.mark.parametrize("name", ["../../../../secret.npy", "/etc/passwd", "a/../../b.npy"])
def test_names_that_lead_outside_are_no_data(tree: Path, name: str) -> None:
    np.save(tree.parent / "secret.npy", VALUES)
    directory = write_unit(tree / "step0" / "rank2", {RELU: {"input_args": [record(VALUES, name)], "output": []}})
    x = msformat.open(directory)[0, 2][RELU].inputs[0]
    assert not x.has_data
    with pytest.raises(msformat.MsformatError):
        x.numpy()


# --- values against documents ----------------------------------------------------------------------------------------


def _mindspore_unit(directory: Path, values: np.ndarray) -> msformat.Tensor:
    name = "Mint.add.0.forward.input.0.npy"
    meta = {"type": "mindspore.Tensor", "dtype": "BFloat16", "shape": list(values.shape), "data_name": name}
    unit = write_unit(directory, {"Mint.add.0.forward": {"input_args": [meta], "output": []}}, framework="mindspore")
    write_tensor(unit, name, values)
    return msformat.open(unit)[0].tensor(name)


def test_mindspore_bfloat16_is_narrowed(tmp_path: Path) -> None:
    values = np.array([[1.5, -0.0], [np.inf, 3.0]], np.float32)
    tensor = _mindspore_unit(tmp_path / "step0" / "rank", values)
    assert tensor.numpy().dtype == ml_dtypes.bfloat16
    assert np.array_equal(tensor.numpy().astype(np.float32), values)
    assert tensor.bits().dtype == np.uint16
    assert tensor.to_torch().dtype == torch.bfloat16
    assert tensor[0, 0].shape == ()


def test_what_is_no_bfloat16_is_said(tmp_path: Path) -> None:
    tensor = _mindspore_unit(tmp_path / "step0" / "rank", np.array([1.1], np.float32))
    with pytest.warns(UserWarning, match="left float32"):
        assert tensor.numpy()[0] == np.float32(1.1)


def test_values_are_those_of_the_store(tree: Path) -> None:
    write_tensor(tree / "step0" / "rank2", X, VALUES[0])
    x = msformat.open(tree)[0, 2].tensor(X)
    assert x.shape == (2, 3, 4)
    assert x.numpy().shape == (3, 4)


def test_every_foreign_error_gets_one_note() -> None:
    with pytest.raises(ZeroDivisionError) as caught, lazy.reading("outer", "there"), lazy.reading("inner", "here"):
        raise ZeroDivisionError
    if hasattr(caught.value, "__notes__"):
        assert caught.value.__notes__ == ["while reading 'inner' from here"]


def test_without_notes_the_message_carries_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(lazy, "_add_note", None)
    with (
        pytest.raises(msformat.StoreError, match=r"^broken \(while reading 'e' from here\)$"),
        lazy.reading("e", "here"),
    ):
        raise msformat.StoreError("broken")


# --- stacks and trees ------------------------------------------------------------------------------------------------


def test_stack_and_tree(tmp_path: Path) -> None:
    outer, inner = "Module.a.A.forward.0", "Module.a.b.B.forward.0"
    directory = write_unit(tmp_path / "step0" / "rank", {inner: {}, outer: {}, "Module.a.A.parameters_grad": {}})
    (directory / "stack.json").write_text(json.dumps({"0": [[outer, inner], ["File f, line 1"]]}))
    (directory / "construct.json").write_text(json.dumps({inner: outer, outer: None, "Module.gone.G.forward.0": outer}))
    unit = msformat.open(directory)[0]
    assert unit.stack(inner) == unit[outer].stack == ("File f, line 1",)
    assert unit.stack("Module.a.A.parameters_grad") is None
    assert unit[inner].parent == outer
    assert unit.children(outer) == (inner, "Module.gone.G.forward.0")
    assert unit.children() == (outer, "Module.a.A.parameters_grad")
    assert str(unit.tree()).splitlines() == [
        "Module.a.A.forward.0",
        "  Module.a.b.B.forward.0",
        "  Module.gone.G.forward.0",
        "Module.a.A.parameters_grad",
    ]
    assert [node.has_entry for node in unit.tree()] == [True, True, False, True]
    assert len(unit.tree()) == 4
    assert unit.problems == ()


def test_a_tree_with_cycles_ends(tmp_path: Path) -> None:
    directory = write_unit(tmp_path / "step0" / "rank", {"top": None})
    (directory / "construct.json").write_text(json.dumps({"a": "b", "b": "c", "c": "a", "self": "self", "top": None}))
    unit = msformat.open(directory)[0]
    assert sorted(node.key for node in unit.tree()) == ["a", "b", "c", "self", "top"]
    assert len(unit.problems) == 2


def test_a_tree_5000_deep(tmp_path: Path) -> None:
    directory = write_unit(tmp_path / "step0" / "rank", {})
    (directory / "construct.json").write_text(
        json.dumps({str(n): str(n + 1) if n < 5000 else None for n in range(5001)})
    )
    nodes = list(msformat.open(directory)[0].tree())
    assert (nodes[0].key, nodes[-1].key, nodes[-1].depth) == ("5000", "0", 5000)


@pytest.mark.parametrize("text", ["[]", '{"0": 5}', "null", "{", '{"a": [[1], 2]}'])
def test_odd_stack_and_construct_are_left_out_and_said(tree: Path, text: str) -> None:
    directory = tree / "step0" / "rank2"
    for name in ("stack.json", "construct.json"):
        (directory / name).write_text(text)
    unit = msformat.open(directory)[0, 2]
    assert len(unit.problems) == 2
    with pytest.warns(UserWarning, match="call stacks left out"):
        assert unit.stack(RELU) is None
    with pytest.warns(UserWarning, match="call tree is left out"):
        assert unit.parent(RELU) is None
    with pytest.warns(UserWarning, match="call tree is left out"):
        assert [node.key for node in unit.tree()] == [RELU]
    assert unit[RELU].inputs[0].has_data


# --- incomplete units ------------------------------------------------------------------------------------------------


def test_a_truncated_document_is_salvaged(tree: Path) -> None:
    path = tree / "step0" / "rank2" / "dump.json"
    data = {**entries(), "Functional.relu.1.forward": entries()[RELU]}
    write_unit(path.parent, data)
    text = path.read_bytes()
    path.write_bytes(text[: text.index(b"relu.1") + 200])
    dump = msformat.open(tree)
    unit = dump[0, 2]
    assert list(unit) == [RELU]
    assert not unit.complete
    assert "1 complete entries" in (unit.incomplete_reason or "")
    assert np.array_equal(unit[RELU].inputs[0].numpy(), VALUES)
    assert len(dump.problems) == 1


def _writer(directory: Path, backend: str = "files", **more: Any) -> msformat.DumpWriter:
    return msformat.DumpWriter(directory, msformat.Header("tensor", "mix", "pytorch"), backend=backend, **more)


@pytest.mark.parametrize("backend", ["files", "hdf5", "zarr"])
def test_a_unit_whose_writer_died_opens_like_a_finished_one(tmp_path: Path, backend: str) -> None:
    writer = _writer(tmp_path / "step0" / "rank3", backend)
    writer.put_tensor(X, VALUES, msformat.dtype_named("float32"))
    writer.put_entry(RELU, entries()[RELU])
    writer.put_stack([RELU], ["File f, line 1"])
    writer.put_parent(RELU, "Module.a.A.forward.0")
    writer.commit()
    live = msformat.open(tmp_path)[0, 3]
    assert "being written" in (live.incomplete_reason or "")
    writer.close()
    unit = msformat.open(tmp_path)[0, 3]
    assert list(unit) == [RELU]
    assert not unit.complete
    assert unit.incomplete_reason is not None
    assert unit.header.framework == "pytorch"
    assert unit.stack(RELU) == ("File f, line 1",)
    assert unit.parent(RELU) == "Module.a.A.forward.0"
    assert np.array_equal(unit[RELU].inputs[0].numpy(), VALUES)
    assert unit.problems == (unit.incomplete_reason,)


def test_a_journal_left_beside_a_finished_document(tmp_path: Path) -> None:
    directory = tmp_path / "step0" / "rank3"
    writer = _writer(directory)
    writer.put_tensor(X, VALUES, msformat.dtype_named("float32"))
    writer.put_entry(RELU, entries()[RELU])
    writer.commit()
    journal = (directory / "journal.jsonl").read_bytes()
    writer.finish()
    assert msformat.open(tmp_path)[0, 3].problems == ()
    (directory / "journal.jsonl").write_bytes(journal)
    unit = msformat.open(tmp_path)[0, 3]
    assert unit.complete
    assert len(unit.problems) == 1
    assert "left over" in unit.problems[0]


def test_a_journal_that_knows_more_than_the_document(tmp_path: Path) -> None:
    writer = _writer(tmp_path / "step0" / "rank3", document="debug.json")
    writer.put_entry("loss.0.debug", None)
    writer.close()
    write_unit(tmp_path / "step0" / "rank3", entries())
    unit = msformat.open(tmp_path)[0, 3]
    assert list(unit) == [RELU, "loss.0.debug"]
    assert not unit.complete


def test_a_container_that_died_before_its_first_byte(tmp_path: Path) -> None:
    writer = _writer(tmp_path / "step0" / "rank3", "hdf5")
    writer.put_tensor(X, VALUES, msformat.dtype_named("float32"))
    writer.put_entry(RELU, entries()[RELU])
    writer.commit()
    writer.close()
    for path in (tmp_path / "step0" / "rank3").glob("dump.h5"):
        path.write_bytes(b"")
    unit = msformat.open(tmp_path)[0, 3]
    assert list(unit) == [RELU]
    assert not unit.complete
    with pytest.raises(msformat.StoreError):
        unit[RELU].inputs[0].numpy()


def test_a_damaged_journal_alone_is_an_error_that_names_it(tmp_path: Path) -> None:
    directory = tmp_path / "step0" / "rank3"
    directory.mkdir(parents=True)
    (directory / "journal.jsonl").write_bytes(b"00000000 {}\n00000000 {}\n")
    dump = msformat.open(tmp_path)
    with pytest.raises(msformat.FormatError, match="journal"):
        len(dump[0, 3])
    assert len(dump.problems) == 1


# --- processes and threads -------------------------------------------------------------------------------------------


def _sum_of(tensor: msformat.Tensor) -> float:
    return float(tensor.numpy().sum())


def test_everything_pickles(stored: Path) -> None:
    dump = msformat.open(stored)
    x = dump[0, 2].tensor(X)
    assert x.has_data
    for again in (pickle.loads(pickle.dumps(dump))[0, 2].tensor(X), pickle.loads(pickle.dumps(x))):
        assert np.array_equal(again.numpy(), VALUES)
        assert (again.slot, again.path, again.entry.key) == (x.slot, x.path, x.entry.key)
    assert len(pickle.dumps(dump[0, 2])) < 2000
    assert pickle.loads(pickle.dumps(dump[0, 2][RELU])).inputs[0].shape == (2, 3, 4)


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork on this system")
@pytest.mark.timeout(60)
def test_forked_workers_open_for_themselves(stored: Path) -> None:
    x = msformat.open(stored)[0, 2].tensor(X)
    assert _sum_of(x) == VALUES.sum()  # opened here, then forked
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12, about fork and threads
        with multiprocessing.get_context("fork").Pool(2) as pool:
            assert pool.map(_sum_of, [x] * 8) == [VALUES.sum()] * 8
    assert _sum_of(x) == VALUES.sum()


class _Slices(Dataset):  # type: ignore[type-arg]
    def __init__(self, tensor: msformat.Tensor) -> None:
        self.tensor = tensor

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.tensor.to_torch(np.unravel_index(index, (2, 3, 4)))  # type: ignore[no-any-return]


@pytest.mark.timeout(60)
def test_a_data_loader_with_two_workers(stored: Path) -> None:
    x = msformat.open(stored)[0, 2].tensor(X)
    assert x.has_data
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        batches = list(DataLoader(_Slices(x), batch_size=6, num_workers=2))
    assert torch.equal(torch.cat(batches), torch.from_numpy(VALUES).reshape(-1))


@pytest.mark.timeout(60)
def test_many_threads_read_one_unit(stored: Path) -> None:
    unit = msformat.open(stored)[0, 2]
    barrier = threading.Barrier(8)

    def read(number: int) -> bool:
        barrier.wait()
        return all(np.array_equal(unit[RELU].inputs[0][number % 2], VALUES[number % 2]) for _ in range(20))

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, range(8)))


def test_a_value_is_made_once_for_all_threads() -> None:
    made: list[int] = []
    barrier = threading.Barrier(4)
    value = lazy.Lazy(lambda: made.append(1) or len(made), survives_fork=False)

    def use(_: int) -> Any:
        barrier.wait()
        return value.get()

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert set(pool.map(use, range(4))) == {1}
    assert value.take() == 1
    assert value.get() == 2


def test_a_unit_lives_as_long_as_its_tensors(tree: Path) -> None:
    x = msformat.open(tree)[0, 2].tensor(X)
    shutil.copytree(tree, tree.parent / "copy")
    assert np.array_equal(x.numpy(), VALUES)


# --- size ------------------------------------------------------------------------------------------------------------


def test_the_first_of_100_000_entries_costs_no_other(tmp_path: Path) -> None:
    slots = json.dumps({"input_args": [record(VALUES, Max=1.0)] * 3, "input_kwargs": {}, "output": [record(VALUES)]})
    keys = [f"Functional.some_long_name.{n}.forward" for n in range(100_000)]
    directory = write_unit(tmp_path / "step0" / "rank", {})
    text = '{"task": "statistics", "level": "L1", "framework": "pytorch", "dump_data_dir": null, "data": {'
    (directory / "dump.json").write_text(text + ",\n".join(f'"{key}": {slots}' for key in keys) + "}}")
    size = (directory / "dump.json").stat().st_size
    tracemalloc.start()
    try:
        unit = msformat.open(directory)[0]
        assert unit[keys[0]].inputs[0].shape == (2, 3, 4)
        peak = tracemalloc.get_traced_memory()[1]
        with pytest.raises(msformat.EntryNotFoundError, match="near matches"):
            unit["Functional.some_long_name.77777.forwrad"]
    finally:
        tracemalloc.stop()
    assert size > 40_000_000
    # Decoded, each of the 400,000 tensor records takes some hundred bytes of Python objects.
    assert peak < 1.5 * size
