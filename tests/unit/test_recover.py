"""Recovery: from the journal, from truncated documents, from tensors alone; nothing is invented in silence."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from msformat.atomic import temporary_sibling
from msformat.dtypes import dtype_named
from msformat.errors import CorruptJournalError, StoreError
from msformat.finish import store_location
from msformat.layout import UnitLocation, find_units
from msformat.model import Header
from msformat.reader import open_dump
from msformat.recover import rebuild_from_orphans, recover, recover_unit
from msformat.stores.registry import open_store
from msformat.writer import DumpWriter
from tests.crash.workload import BACKENDS, HEADER, put, step, steps

FLOAT32 = dtype_named("float32")


def unfinished(root: Path, backend: str = "files", count: int = 5) -> Path:
    unit = root / "step0" / "rank"
    writer = DumpWriter(unit, HEADER, backend=backend)
    for one in steps(3, count):
        put(writer, one)
    writer.close("killed for the test")
    return unit


def location(root: Path) -> UnitLocation:
    return find_units(root)[0][0]


def document(unit: UnitLocation, name: str = "dump.json") -> Any:
    with open_store(unit.backend, unit.location) as store:
        data = store.get_document(name)
        return None if data is None else json.loads(bytes(data))


def log_of(unit: UnitLocation) -> str:
    """Where a dump says how it came to be."""
    with open_store(unit.backend, unit.location) as store:
        return bytes(store.get_document("dump_error_info.log") or b"").decode()


# --- from the journal ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_recovered_equals_finished(tmp_path: Path, backend: str) -> None:
    """The documents of a dump that was killed and recovered are those of one that was not, log aside."""
    for name in ("killed", "whole"):
        unit = tmp_path / "place" / "step0" / "rank"
        writer = DumpWriter(unit, HEADER, backend=backend)
        for one in steps(3, 9):
            put(writer, one)
        if name == "whole":
            writer.finish()
        else:
            writer.close()
            assert recover(tmp_path / "place").exit_code == 0
        (tmp_path / "place").rename(tmp_path / name)
    whole, killed = location(tmp_path / "whole"), location(tmp_path / "killed")
    for document_name in ("dump.json", "stack.json", "construct.json"):
        with open_store(backend, whole.location) as a, open_store(backend, killed.location) as b:
            assert bytes(a.get_document(document_name) or b"") == bytes(b.get_document(document_name) or b"!")


@pytest.mark.parametrize("backend", BACKENDS)
def test_report(tmp_path: Path, backend: str) -> None:
    unfinished(tmp_path, backend)
    found = recover(tmp_path)
    (unit,) = found.units
    assert (unit.state, unit.entries, unit.tensors, unit.orphans, unit.is_torn) == ("recovered", 5, 10, 0, False)
    assert unit.problems == ["the writer stopped: killed for the test"]
    assert json.dumps(found.as_json())
    again = recover(tmp_path)
    assert (again.units[0].state, again.units[0].entries, again.exit_code) == ("complete", 5, 0)
    assert "the writer stopped: killed for the test" in log_of(location(tmp_path))


def test_torn_tail_is_reported(tmp_path: Path) -> None:
    journal = unfinished(tmp_path) / "journal.jsonl"
    lines = journal.read_bytes().splitlines(keepends=True)
    last = max(at for at, line in enumerate(lines) if b'"kind":"entry"' in line)
    journal.write_bytes(b"".join(lines[:last]) + lines[last][:40])
    report = recover_unit(location(tmp_path))
    assert (report.state, report.entries, report.is_torn, report.orphans) == ("recovered", 4, True, 2)
    assert any("cut off" in text for text in report.problems)
    assert any("2 tensors belong to no entry" in text for text in report.problems)


def test_damage_in_the_middle_changes_nothing(tmp_path: Path) -> None:
    unit = unfinished(tmp_path)
    journal = unit / "journal.jsonl"
    damaged = journal.read_bytes().replace(b"op1", b"opX", 1)
    journal.write_bytes(damaged)
    before = sorted(path.name for path in unit.rglob("*"))
    with pytest.raises(CorruptJournalError, match="line 5 does not match"):
        recover_unit(location(tmp_path))
    assert journal.read_bytes() == damaged
    assert sorted(path.name for path in unit.rglob("*")) == before
    found = recover(tmp_path)
    assert (found.units[0].state, found.exit_code) == ("failed", 1)


def test_missing_tensors_are_reported_and_entries_kept(tmp_path: Path) -> None:
    unit = unfinished(tmp_path)
    lost = next((unit / "dump_tensor_data").iterdir())
    lost.unlink()
    found = recover(tmp_path)
    report = found.units[0]
    assert (report.state, report.entries, report.missing, found.exit_code) == ("recovered", 5, (lost.name,), 1)


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_live_writer_is_left_alone(tmp_path: Path, backend: str) -> None:
    unit = tmp_path / "step0" / "rank"
    with DumpWriter(unit, HEADER, backend=backend) as writer:
        put(writer, step(3, 0))
        writer.commit()
        with pytest.raises(StoreError, match="still being written by process"):
            recover_unit(location(tmp_path))
        found = recover(tmp_path)
        assert (found.units[0].state, found.exit_code) == ("failed", 1)
        put(writer, step(3, 1))
    assert len(document(location(tmp_path))["data"]) == 2


def test_one_bad_unit_does_not_stop_the_others(tmp_path: Path) -> None:
    for number, rank in enumerate(("rank0", "rank1")):
        writer = DumpWriter(tmp_path / "step0" / rank, HEADER)
        put(writer, step(3, number))
        writer.close()
    journal = tmp_path / "step0" / "rank0" / "journal.jsonl"
    journal.write_bytes(b"nonsense\n" + journal.read_bytes())
    found = recover(tmp_path)
    assert [unit.state for unit in found.units] == ["failed", "recovered"]
    assert found.exit_code == 1


def test_leftovers_of_the_dead_writer_go_and_nothing_else(tmp_path: Path) -> None:
    unit = unfinished(tmp_path)
    Path(temporary_sibling(unit / "dump.json")).write_text("half")
    Path(temporary_sibling(unit / "dump_tensor_data" / "x.pt")).write_text("half")
    Path(temporary_sibling(unit / "folder")).mkdir()
    (unit / ".hidden").write_text("mine")
    (unit / "dump_tensor_data" / ".msformat").write_text("mine")
    recover_unit(location(tmp_path))
    names = {path.name for path in unit.rglob("*")}
    assert {".hidden", ".msformat"} < names
    assert not any("msformat-partial" in name for name in names)


@pytest.mark.parametrize("backend", BACKENDS)
def test_statistics_without_any_store(tmp_path: Path, backend: str) -> None:
    """The journal alone knows which store was to be made."""
    writer = DumpWriter(tmp_path / "step0" / "rank", Header("statistics", "L1", "pytorch"), backend=backend)
    writer.put_entry("Functional.relu.0.forward", {"input_args": [], "output": []})
    writer.close()
    assert recover(tmp_path).exit_code == 0
    found = location(tmp_path)
    assert found.backend == backend
    assert document(found)["dump_data_dir"] is None


def test_nothing_promised_leaves_nothing_pretended(tmp_path: Path) -> None:
    unit = tmp_path / "step0" / "rank"
    unit.mkdir(parents=True)
    (unit / "journal.jsonl").write_bytes(b"0000")
    report = recover_unit(location(tmp_path))
    assert (report.state, report.entries, report.is_torn) == ("empty", 0, True)
    assert list(unit.iterdir()) == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_orphans_beside_a_journal(tmp_path: Path, backend: str) -> None:
    unit = tmp_path / "step0" / "rank"
    writer = DumpWriter(unit, HEADER, backend=backend)
    put(writer, step(3, 0))
    values = np.arange(6, dtype=np.float32)
    writer.put_tensor("Functional.late.0.forward.input.0.pt", values, FLOAT32)
    writer.close()
    copy = tmp_path / "copy"
    shutil.copytree(tmp_path / "step0", copy / "step0")
    plain = recover_unit(location(tmp_path / "step0" / "rank"))
    assert (plain.entries, plain.orphan_names) == (1, ("Functional.late.0.forward.input.0.pt",))
    rebuilt = recover_unit(location(copy), orphans=True)
    assert (rebuilt.entries, rebuilt.orphans, rebuilt.tensors) == (2, 0, 3)
    record = document(location(copy))["data"]["Functional.late.0.forward"]["input_args"][0]
    assert (record["Max"], record["Min"], record["Mean"]) == (5.0, 0.0, 2.5)


# --- truncated documents ---------------------------------------------------------------------------------------------


def test_every_cut_of_a_real_document(golden: Callable[[str], Path], tmp_path: Path) -> None:
    source = golden("torch_8.1.0_L1_tensor") / "step0" / "rank"
    whole = (source / "dump.json").read_bytes()
    entries = json.loads(whole)["data"]
    for number, length in enumerate(np.random.default_rng(5).integers(len(whole) // 10, len(whole) - 1, 8)):
        unit = tmp_path / f"cut{number}" / "step0" / "rank"
        shutil.copytree(source, unit)
        (unit / "dump.json").write_bytes(whole[:length])
        report = recover_unit(location(tmp_path / f"cut{number}"))
        assert report.state == "salvaged"
        assert "complete entries were saved" in report.problems[0]
        assert (unit / "dump.json.broken").read_bytes() == whole[:length]
        found = json.loads((unit / "dump.json").read_text())["data"]
        assert list(found) == list(entries)[: len(found)]
        assert all(found[key] == entries[key] for key in found)
        # Every entry whose closing brace was still there was saved.
        assert len(found) >= sum(whole.find(json.dumps(key).encode()) < length for key in entries) - 1
        assert report.orphans == len(list((unit / "dump_tensor_data").iterdir())) - report.tensors
        assert (unit / "stack.json").read_bytes() == (source / "stack.json").read_bytes()
        assert recover_unit(location(tmp_path / f"cut{number}")).state == "complete"


def test_a_second_broken_document_does_not_replace_the_first(golden: Callable[[str], Path], tmp_path: Path) -> None:
    source = golden("torch_8.1.0_L1_tensor") / "step0" / "rank"
    unit = tmp_path / "step0" / "rank"
    shutil.copytree(source, unit)
    (unit / "dump.json.broken").write_text("an older one")
    (unit / "dump.json").write_bytes((source / "dump.json").read_bytes()[:5000])
    recover_unit(location(tmp_path))
    assert (unit / "dump.json.broken").read_text() == "an older one"
    assert len((unit / "dump.json.broken.1").read_bytes()) == 5000


# --- tensors alone ---------------------------------------------------------------------------------------------------


def strip(node: Any) -> Any:
    """What tensors alone can tell of an argument tree: records without what only the document knew."""
    if isinstance(node, dict) and "dtype" in node:
        return {key: node[key] for key in ("dtype", "shape", "data_name")}
    if isinstance(node, dict):
        return {key: strip(value) for key, value in node.items() if has_tensor(value)}
    if isinstance(node, list):
        kept = [strip(value) if has_tensor(value) else None for value in node]
        while kept and kept[-1] is None:
            kept.pop()
        return kept
    return None


def has_tensor(node: Any) -> bool:
    if isinstance(node, dict):
        return "data_name" in node or any(map(has_tensor, node.values()))
    return isinstance(node, list) and any(map(has_tensor, node))


@pytest.mark.parametrize(
    ("name", "header"),
    [
        ("torch_8.1.0_mix_tensor", ("tensor", "mix", "pytorch")),
        ("torch_8.1.0_L0_tensor", ("tensor", "L0", "pytorch")),
        ("torch_8.1.0_L1_tensor", ("tensor", "L1", "pytorch")),
        ("torch_26.2.0_mix_tensor", ("tensor", "mix", "pytorch")),
        ("torch_8.1.0_debug_tensor", ("tensor", "debug", "pytorch")),
        ("torch_1.2.2_debug_tensor", ("tensor", "debug", "pytorch")),
        ("mindspore_8.1.0_L0_tensor", ("tensor", "L0", "mindspore")),
        ("mindtorch_8.1.0_mix_tensor", ("tensor", "mix", "mindtorch")),
    ],
)
def test_rebuilt_from_a_peers_tensors(
    golden: Callable[[str], Path], tmp_path: Path, name: str, header: tuple[str, str, str]
) -> None:
    """msprobe died before it wrote its document: what names and headers tell is put where the document had it."""
    shutil.copytree(golden(name), tmp_path / "dump")
    unit = location(tmp_path / "dump")
    directory = Path(unit.location)
    original = next(
        json.loads((directory / n).read_text()) for n in ("dump.json", "debug.json") if (directory / n).exists()
    )
    for path in directory.glob("*.json"):
        path.unlink()
    lost = recover_unit(location(directory))
    assert (lost.state, lost.is_whole) == ("lost", False)
    assert not list(directory.glob("*.json"))
    report = rebuild_from_orphans(location(directory))
    assert report.state == "rebuilt"
    assert report.orphans == 0
    assert any("the order of calls, scalar and None arguments, call stacks" in text for text in report.problems)
    found = document(location(directory), "debug.json" if header[1] == "debug" else "dump.json")
    assert (found["task"], found["level"], found["framework"]) == header
    wanted = {key: strip(value) for key, value in original["data"].items() if has_tensor(value)}
    got = {key: strip(value) for key, value in found["data"].items()}
    assert got.keys() == wanted.keys()
    for key, value in wanted.items():
        assert same_but_for_spelling(got[key], value), key
    statistics_agree(original["data"], found["data"])


def same_but_for_spelling(got: Any, wanted: Any) -> bool:
    """Equal, where MindSpore's bfloat16 comes back as the float32 that its file holds."""
    if isinstance(wanted, dict) and "dtype" in wanted:
        names = {got["dtype"].rpartition(".")[2].lower(), wanted["dtype"].rpartition(".")[2].lower()}
        return got["shape"] == wanted["shape"] and got["data_name"] == wanted["data_name"] and (
            len(names) == 1 or names == {"float32", "bfloat16"}
        )  # fmt: skip
    if isinstance(wanted, dict):
        return got.keys() == wanted.keys() and all(same_but_for_spelling(got[key], wanted[key]) for key in wanted)
    if isinstance(wanted, list):
        return len(got) == len(wanted) and all(map(same_but_for_spelling, got, wanted))
    return bool(got == wanted)


def records(node: Any) -> dict[str, Any]:
    if isinstance(node, dict) and "data_name" in node:
        return {node["data_name"]: node}
    children = node.values() if isinstance(node, dict) else node if isinstance(node, list) else ()
    return {name: record for child in children for name, record in records(child).items()}


def statistics_agree(original: Any, found: Any) -> None:
    theirs, ours = records(original), records(found)
    for name, record in ours.items():
        if record["dtype"].rpartition(".")[2].lower() != "float32" or "BFloat16" in theirs[name]["dtype"]:
            continue
        for key in ("Max", "Min", "Mean", "Norm"):
            if theirs[name][key] is not None:
                assert record[key] == pytest.approx(theirs[name][key], rel=1e-4, abs=1e-6, nan_ok=True), (name, key)


@pytest.mark.parametrize("backend", BACKENDS)
def test_rebuilt_in_every_store(tmp_path: Path, backend: str) -> None:
    unit = tmp_path / "step0" / "rank"
    unit.mkdir(parents=True)
    names = [
        "Functional.cat.3.forward.input.0.2.pt",
        "Functional.cat.3.forward.output.0.pt",
        "Functional.cat.3.forward.kwargs.dim.pt",
        "Module.a.b.Linear.parameters_grad.weight.pt",
        "Module.a.b.Linear.forward.1.parameters.weight.pt",
        "Module.a.b.Linear.backward.1.output.1.pt",
    ]
    with open_store(backend, store_location(unit, backend), mode="a") as store:
        for number, name in enumerate(names):
            store.put(name, np.full(2, number, np.float32), FLOAT32)
        store.put("stranger.pt", np.zeros(1, np.float32), FLOAT32)
    report = rebuild_from_orphans(location(tmp_path))
    assert (report.state, report.entries, report.tensors, report.orphan_names) == ("rebuilt", 4, 6, ("stranger.pt",))
    found = location(tmp_path)
    data = document(found)["data"]
    cat = data["Functional.cat.3.forward"]
    assert list(cat) == ["input_args", "input_kwargs", "output"]
    assert cat["input_args"][0][:2] == [None, None]
    assert cat["input_args"][0][2]["data_name"] == names[0]
    assert cat["input_kwargs"]["dim"]["Max"] == 2.0
    assert data["Module.a.b.Linear.parameters_grad"]["weight"][0]["data_name"] == names[3]
    forward = data["Module.a.b.Linear.forward.1"]
    assert forward["parameters"]["weight"]["data_name"] == names[4]
    assert list(forward) == ["input_args", "input_kwargs", "output", "parameters"]
    backward = data["Module.a.b.Linear.backward.1"]
    assert (backward["input"], backward["output"][0], backward["output"][1]["data_name"]) == ([], None, names[5])
    assert document(found, "stack.json") == {}
    with open_dump(tmp_path) as dump:
        assert dump[0].complete
    assert "stranger.pt" in log_of(found)


def test_hostile_names_and_broken_files_among_orphans(tmp_path: Path) -> None:
    unit = tmp_path / "step0" / "rank"
    tensors = unit / "dump_tensor_data"
    tensors.mkdir(parents=True)
    np.save(tensors / "Functional.a.0.forward.input.999999999.npy", np.zeros(1))
    np.save(tensors / "Functional.b.0.forward.input.0.npy", np.zeros(1))
    np.save(tensors / "Functional.b.0.forward.input.0.1.npy", np.zeros(1))
    np.save(tensors / ("d.0.debug" + ".0" * 100 + ".npy"), np.zeros(1))
    (tensors / "Functional.c.0.forward.input.0.npy").write_bytes(b"\x93NUMPY\x01\x00")
    (tensors / "Functional.c.1.forward.input.0.pt").write_bytes(b"")
    report = rebuild_from_orphans(location(tmp_path))
    assert report.state == "rebuilt"
    data = json.loads((unit / "dump.json").read_text())["data"]
    assert list(data["Functional.a.0.forward"]["input_args"]) == ["999999999"]
    text = "\n".join(report.problems)
    assert "'Functional.c.0.forward.input.0.npy' has no entry: it cannot be read" in text
    assert "another tensor stands where its name puts it" in text
    assert report.orphans == 3


def test_only_strangers_are_no_dump(tmp_path: Path) -> None:
    tensors = tmp_path / "step0" / "rank" / "dump_tensor_data"
    tensors.mkdir(parents=True)
    np.save(tensors / "weights.npy", np.zeros(1))
    found = recover(tmp_path, orphans=True)
    assert (found.units[0].state, found.exit_code) == ("failed", 1)
    assert [path.name for path in tensors.parent.iterdir()] == ["dump_tensor_data"]


def test_an_unreadable_document_is_kept_beside_the_rebuilt_one(golden: Callable[[str], Path], tmp_path: Path) -> None:
    unit = tmp_path / "step0" / "rank"
    shutil.copytree(golden("torch_8.1.0_L1_tensor") / "step0" / "rank", unit)
    (unit / "dump.json").write_bytes(b"\0" * 100)
    assert recover_unit(location(tmp_path)).state == "lost"
    assert (unit / "dump.json").read_bytes() == b"\0" * 100
    report = rebuild_from_orphans(location(tmp_path))
    assert report.state == "rebuilt"
    assert (unit / "dump.json.broken").read_bytes() == b"\0" * 100
    assert json.loads((unit / "dump.json").read_text())["level"] == "L1"


def test_a_whole_dump_is_left_alone(golden: Callable[[str], Path]) -> None:
    root = golden("torch_8.1.0_L1_tensor")
    before = {path: path.stat().st_mtime_ns for path in root.rglob("*")}
    found = recover(root, orphans=True)
    assert {unit.state for unit in found.units} == {"complete"}
    assert found.exit_code == 0
    assert {path: path.stat().st_mtime_ns for path in root.rglob("*")} == before
