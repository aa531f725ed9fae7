"""The reader on small dumps made by hand: json and numpy write them, the reader is judged by what was written."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import msformat
from msformat import lazy
from msformat.filesystem import LocalFileSystem
from tests.judges import judge
from tests.unit.reader_dumps import RELU, VALUES, X, entries, record, write_tensor, write_unit

torch = judge("torch")

# --- a dump and its units ---------------------------------------------------------------------------------------------


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


# --- entries ----------------------------------------------------------------------------------------------------------


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


# --- no data ----------------------------------------------------------------------------------------------------------


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


# --- values against documents -----------------------------------------------------------------------------------------


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
    assert torch.bfloat16 == tensor.to_torch().dtype  # torch first: without it, the test ends here
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


@pytest.mark.parametrize("name", ["stack.json", "construct.json"])
def test_a_side_document_that_may_not_be_read_costs_itself(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    unit = write_unit(tmp_path / "step0/rank0", entries())
    (unit / name).write_text("{}")
    mapped = LocalFileSystem.map

    def refuse(fs: LocalFileSystem, path: str, **more: Any) -> Any:
        if path == name:
            raise PermissionError(errno.EACCES, os.strerror(errno.EACCES), fs.describe(path))
        return mapped(fs, path, **more)

    monkeypatch.setattr(LocalFileSystem, "map", refuse)
    with msformat.open(tmp_path) as dump:
        found = dump[0, 0]
        assert len(found) > 0
        assert any("left out" in text and name in text for text in found.problems)
        with pytest.warns(UserWarning, match=name):
            assert not (found.stack if name == "stack.json" else found.parent)(RELU)
