"""Call trees, odd documents, journals and truncated documents: what is there is read, what is wrong is said."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import msformat
from tests.unit.reader_dumps import RELU, VALUES, X, entries, write_unit

# --- stacks and trees -------------------------------------------------------------------------------------------------


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


# --- incomplete units -------------------------------------------------------------------------------------------------


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
