"""Convert: which units and entries, what is rewritten, interrupts, processes and the report."""

from __future__ import annotations

import json
import os
import signal
import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from msformat.atomic import temporary_sibling
from msformat.convert import ConvertOptions, convert
from msformat.destination import remove_temporary
from msformat.errors import FormatError, StoreError
from msformat.plan import _kept_ancestors
from msformat.stores.base import Store
from msformat.stores.files import FilesStore
from msformat.stores.hdf5 import Hdf5Store
from msformat.transfer import _Pipe, _Read
from tests.judges import judge
from tests.small_dumps import (
    FRAMES,
    HEADER,
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

torch = judge("torch")

Golden = Callable[[str], Path]


# --- where to --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "to", "made"),
    [
        ("out", None, "out/step0/rank/dump.json"),
        ("out", "files", "out/step0/rank/dump.json"),
        ("out", "hdf5", "out/step0/rank/dump.h5"),
        ("out", "zarr", "out/step0/rank/dump.zarr/zarr.json"),
        ("out.h5", None, "out.h5"),
        ("out.hdf5", "hdf5", "out.hdf5"),
        ("out.zarr", None, "out.zarr/step0/rank/zarr.json"),
        ("new/deeper/out.h5", None, "new/deeper/out.h5"),
    ],
)
def test_form_and_backend_follow_the_name(tmp_path: Path, name: str, to: str | None, made: str) -> None:
    src = write_tree(tmp_path / "src", ["step0/rank"])
    convert_whole(src, tmp_path / name, to=to)
    assert (tmp_path / made).is_file()
    assert not temporaries(tmp_path)


def test_a_suffix_that_contradicts_the_option_is_refused(tmp_path: Path) -> None:
    src = write_tree(tmp_path / "src")
    with pytest.raises(StoreError, match="suffix says hdf5"):
        run_convert(src, tmp_path / "out.h5", to="zarr")


@pytest.mark.parametrize(
    "options",
    [{"to": "tar"}, {"tensors": "csv"}, {"dialect": "9"}, {"jobs": 0}],
    ids=lambda options: next(iter(options)),
)
def test_options_that_make_no_sense_are_refused(options: dict[str, Any]) -> None:
    with pytest.raises(FormatError):
        ConvertOptions(**options)


def test_a_unit_and_a_document_in_it_are_sources_too(tmp_path: Path) -> None:
    src = write_tree(tmp_path / "src")
    for number, source in enumerate((src / "step1" / "rank", src / "step1" / "rank" / "dump.json")):
        report = convert_whole(source, tmp_path / f"{number}.h5")
        assert [unit.key for unit in report.units] == ["step1/rank"]


# --- what ------------------------------------------------------------------------------------------------------------


def test_steps_and_ranks_choose_units(tmp_path: Path) -> None:
    units = [f"step{step}/{rank}" for step in (0, 1, 2, 10) for rank in ("rank0", "rank1", "rank10")]
    src = write_tree(tmp_path / "src", units, count=1)
    report = convert_whole(src, tmp_path / "a", steps=frozenset({10, 0}), ranks=frozenset({1, "rank10"}))
    assert [unit.key for unit in report.units] == ["step0/rank1", "step0/rank10", "step10/rank1", "step10/rank10"]
    with pytest.raises(FormatError, match="there are step0/rank0"):
        run_convert(src, tmp_path / "b", steps=frozenset({7}))
    assert not (tmp_path / "b").exists()


@pytest.mark.parametrize("pattern", ["relu", "*.relu.*", ("nothing", "Functional.relu.[0-9].forward")])
def test_a_filter_cuts_every_document_and_the_tensors(tmp_path: Path, pattern: Any) -> None:
    array = np.ones((2, 2), np.float32)
    parents = {
        "Functional.relu.0.forward": "Module.act.ReLU.forward.0",
        "Module.act.ReLU.forward.0": "Module.net.Net.forward.0",
        "Module.net.Net.forward.0": None,
        "Functional.relu.1.forward": "Functional.relu.0.forward",
    }
    write_unit(tmp_path / "src" / "step0" / "rank", dict.fromkeys(parents, array), parents=parents)
    convert_whole(tmp_path / "src", tmp_path / "out", filter=pattern)
    unit = tmp_path / "out" / "step0" / "rank"
    kept = ["Functional.relu.0.forward", "Functional.relu.1.forward"]
    assert list(load_json(unit / "dump.json")["data"]) == kept
    assert load_json(unit / "stack.json") == {"0": [kept, FRAMES]}
    # Parents that are left out are skipped up to the nearest that stays.
    assert load_json(unit / "construct.json") == {kept[0]: None, kept[1]: kept[0]}
    assert sorted(path.name for path in (unit / "dump_tensor_data").iterdir()) == [
        f"{key}.output.0.npy" for key in kept
    ]


def test_a_filter_that_matches_nothing_says_so(tmp_path: Path) -> None:
    source = write_tree(tmp_path / "src")
    for target in ("out", "out.h5"):
        with pytest.raises(FormatError, match="no entry matches 'no such entry'"):
            run_convert(source, tmp_path / target, filter=("no such entry",))
        assert not (tmp_path / target).exists()


def test_unchanged_documents_are_the_same_bytes_however_odd(tmp_path: Path) -> None:
    unit = write_unit(
        tmp_path / "src" / "step0" / "rank", {}, extra={"dump_error_info.log": b"one\xff\n", "notes.txt": b"n"}
    )
    # Neither msprobe's indent nor a schema that is known: copied, not understood and written again.
    (unit / "dump.json").write_text('{"task":"x",  "odd": 1e5, "data": {"k": {"zzz": [NaN, -Infinity, 1.10]}}}\n')
    (unit / "stack.json").write_text('["what"]')
    convert_whole(tmp_path / "src", tmp_path / "a.h5")
    convert_whole(tmp_path / "a.h5", tmp_path / "b.zarr")
    convert_whole(tmp_path / "b.zarr", tmp_path / "c")
    assert tree_bytes(tmp_path / "c") == tree_bytes(tmp_path / "src")


def test_npy_becomes_pt_and_npy_again(tmp_path: Path) -> None:
    src = write_tree(tmp_path / "src")
    convert_whole(src, tmp_path / "pt", tensors="pt")
    unit = tmp_path / "pt" / "step0" / "rank"
    name = "Functional.relu.0.forward.output.0"
    loaded = torch.load(unit / "dump_tensor_data" / f"{name}.pt", weights_only=True)
    original = np.load(src / "step0" / "rank" / "dump_tensor_data" / f"{name}.npy")
    assert np.array_equal(loaded.numpy(), original)
    document = load_json(unit / "dump.json")
    assert document["data"]["Functional.relu.0.forward"]["output"][0]["data_name"] == f"{name}.pt"
    # Only names change: everything else, NaN included, is as it was.
    assert (unit / "dump.json").read_text().replace(".pt", ".npy") == (src / "step0/rank/dump.json").read_text()
    convert_whole(tmp_path / "pt", tmp_path / "npy.zarr", tensors="npy")
    convert_whole(tmp_path / "npy.zarr", tmp_path / "npy")
    assert tree_bytes(tmp_path / "npy") == tree_bytes(src)


def test_two_tensors_never_get_one_name(tmp_path: Path) -> None:
    unit = write_unit(tmp_path / "src" / "step0" / "rank", {"a.0.debug": np.zeros(2, np.float32)})
    document = load_json(unit / "dump.json")
    twin = record(np.ones(2, np.float32), "a.0.debug.output.0.pt")
    document["data"]["a.0.debug"]["output"].append(twin)
    write_document(unit / "dump.json", document)
    torch.save(torch.ones(2), unit / "dump_tensor_data" / "a.0.debug.output.0.pt")
    convert_whole(tmp_path / "src", tmp_path / "out", tensors="npy")
    out = tmp_path / "out" / "step0" / "rank"
    names = [item["data_name"] for item in load_json(out / "dump.json")["data"]["a.0.debug"]["output"]]
    assert len(set(names)) == 2
    with FilesStore(str(out)) as store:
        assert [store.get(name).numpy().tolist() for name in names] == [[0, 0], [1, 1]]


@pytest.mark.parametrize("suffix", ["npy", "pt"])
@pytest.mark.parametrize("order", ["npy first", "pt first"])
def test_names_that_differ_by_suffix_alone_stay_apart_in_either_order(tmp_path: Path, suffix: str, order: str) -> None:
    unit = write_unit(tmp_path / "src" / "step0" / "rank", {"a.0.debug": np.zeros(2, np.float32)})
    torch.save(torch.ones(2), unit / "dump_tensor_data" / "a.0.debug.output.0.pt")
    document = load_json(unit / "dump.json")
    outputs = document["data"]["a.0.debug"]["output"]
    outputs.append(record(np.ones(2, np.float32), "a.0.debug.output.0.pt"))
    wanted = [[0, 0], [1, 1]]
    if order == "pt first":
        outputs.reverse()
        wanted.reverse()
    write_document(unit / "dump.json", document)
    convert_whole(tmp_path / "src", tmp_path / "out", tensors=suffix)
    out = tmp_path / "out" / "step0" / "rank"
    names = [item["data_name"] for item in load_json(out / "dump.json")["data"]["a.0.debug"]["output"]]
    with FilesStore(str(out)) as store:
        assert [store.get(name).numpy().tolist() for name in names] == wanted


def test_dialects_change_documents_names_and_directories(golden: Golden, tmp_path: Path) -> None:
    source = golden("torch_26.2.0_mix_tensor")
    convert_whole(source, tmp_path / "8.1", dialect="8.1")
    unit = tmp_path / "8.1" / "step0" / "rank"
    keys = list(load_json(unit / "dump.json")["data"])
    assert "Module.shared.Linear.parameters_grad" in keys
    assert (unit / "dump_tensor_data" / "Module.shared.Linear.parameters_grad.weight.pt").is_file()
    convert_whole(tmp_path / "8.1", tmp_path / "26.h5", dialect="26")
    with h5py.File(tmp_path / "26.h5") as file:
        again = file["step0/proc0/documents/dump.json"][:].tobytes()
    original = next(iter((source / "step0").iterdir()))
    assert again == (original / "dump.json").read_bytes()


def test_1_2_stacks_are_grouped_for_8_1(golden: Golden, tmp_path: Path) -> None:
    convert_whole(golden("torch_1.2.2_mix_tensor"), tmp_path / "out", dialect="8.1")
    stack = load_json(tmp_path / "out" / "step0" / "rank" / "stack.json")
    original = load_json(golden("torch_1.2.2_mix_tensor") / "step0" / "rank" / "stack.json")
    assert {entry: frames for entries, frames in stack.values() for entry in entries} == original
    assert list(stack) == [str(number) for number in range(len(stack))]


def test_saved_variables_of_1_2_get_a_step(golden: Golden, tmp_path: Path) -> None:
    convert_whole(golden("torch_1.2.2_debug_tensor"), tmp_path / "out", dialect="8.1")
    names = {path.name for path in (tmp_path / "out" / "step0" / "rank" / "dump_tensor_data").iterdir()}
    assert {"y.0.debug.pt", "dict_variable.0.debug.key2.0.pt"} <= names
    report = convert_whole(tmp_path / "out", tmp_path / "back", dialect="1.2")
    assert [unit.key for unit in report.units] == ["rank"]
    original = golden("torch_1.2.2_debug_tensor") / "rank"
    assert (tmp_path / "back" / "rank" / "debug.json").read_bytes() == (original / "debug.json").read_bytes()


# --- verification, interrupts, processes -----------------------------------------------------------------------------


@pytest.mark.parametrize("target", ["out", "out.h5"])
def test_what_does_not_read_back_is_not_kept(tmp_path: Path, target: str, monkeypatch: pytest.MonkeyPatch) -> None:
    src = write_tree(tmp_path / "src", ["step0/rank"])
    store = FilesStore if target == "out" else Hdf5Store
    real = store._write

    def flip(self: Store, key: str, bits: Any, *rest: Any, **options: Any) -> None:
        real(self, key, bits[::-1].copy() if "relu.1" in key else bits, *rest, **options)  # type: ignore[arg-type]

    monkeypatch.setattr(store, "_write", flip)
    if target == "out":
        report = run_convert(src, tmp_path / target)
        assert report.exit_code == 2
        assert "relu.1" in report.units[0].problems[0]
    else:
        with pytest.raises(StoreError, match=r"relu\.1"):
            run_convert(src, tmp_path / target)
    assert not list((tmp_path / target).rglob("*"))
    assert not temporaries(tmp_path)


@pytest.mark.parametrize("target", ["out", "out.h5", "out.zarr"])
def test_an_interrupt_leaves_nothing(tmp_path: Path, target: str) -> None:
    src = write_tree(tmp_path / "src", count=50)

    def interrupt(unit: str, done: int, total: int) -> None:
        if unit == "step1/rank" and done > total / 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        convert(src, tmp_path / target, ConvertOptions(), interrupt)
    assert not temporaries(tmp_path)
    if target == "out":
        assert [path.name for path in (tmp_path / target).iterdir()] == ["step0"]
    else:
        assert not (tmp_path / target).exists()
    assert threading.active_count() == 1 or all(thread.name != "msformat-read" for thread in threading.enumerate())


@pytest.mark.parametrize("target", ["out", "out.zarr"])
def test_processes_give_the_same_as_one(tmp_path: Path, target: str) -> None:
    src = write_tree(tmp_path / "src", ["step0/rank0", "step0/rank1", "step1/rank0"])
    calls: list[str] = []
    report = convert(src, tmp_path / target, ConvertOptions(jobs=2), lambda unit, done, total: calls.append(unit))
    assert report.exit_code == 0, report.as_json()
    assert [unit.key for unit in report.units] == ["step0/rank0", "step0/rank1", "step1/rank0"]
    assert set(calls) == {unit.key for unit in report.units}
    back = tmp_path / target
    if target != "out":
        convert_whole(back, tmp_path / "back")
        back = tmp_path / "back"
    assert tree_bytes(back) == tree_bytes(src)


def test_an_executor_of_the_callers_runs_the_units(tmp_path: Path) -> None:
    src = write_tree(tmp_path / "src", [f"step{step}/rank" for step in range(4)])
    with ThreadPoolExecutor(2) as executor:
        report = convert(src, tmp_path / "out", ConvertOptions(), executor=executor)
        assert executor.submit(int).result() == 0
    assert report.exit_code == 0
    assert tree_bytes(tmp_path / "out") == tree_bytes(src)


def test_progress_ends_at_the_total(tmp_path: Path) -> None:
    seen: dict[str, list[tuple[int, int]]] = {}
    src = write_tree(tmp_path / "src")
    convert(src, tmp_path / "o.h5", None, lambda unit, done, total: seen.setdefault(unit, []).append((done, total)))
    assert set(seen) == {"step0/rank", "step1/rank"}
    for pairs in seen.values():
        assert pairs[0] == (0, 144)
        assert pairs[-1] == (144, 144)
        assert [done for done, _ in pairs] == sorted(done for done, _ in pairs)


def test_a_dry_run_writes_nothing(tmp_path: Path) -> None:
    src = write_tree(tmp_path / "src")
    report = convert_whole(src, tmp_path / "deep" / "out.h5", dry_run=True)
    assert [(unit.key, unit.entries, unit.tensors, unit.files_out) for unit in report.units] == [
        ("step0/rank", 3, 3, 0),
        ("step1/rank", 3, 3, 0),
    ]
    assert not (tmp_path / "deep").exists()


def test_the_report_counts(tmp_path: Path) -> None:
    src = write_tree(tmp_path / "src", ["step0/rank"])
    (unit,) = convert_whole(src, tmp_path / "out", to="hdf5").units
    files = tree_bytes(src)
    assert (unit.files_in, unit.bytes_in) == (len(files), sum(map(len, files.values())))
    assert unit.files_out == 1
    assert unit.bytes_out == (tmp_path / "out" / "step0" / "rank" / "dump.h5").stat().st_size
    assert (unit.entries, unit.tensors, unit.verified) == (3, 3, True)
    report = convert_whole(src, tmp_path / "unverified", verify=False)
    assert report.units[0].verified is None
    json.dumps(report.as_json(), allow_nan=False)


def test_links_can_be_refused(tmp_path: Path) -> None:
    same = np.zeros((100, 100), np.float32)
    write_unit(tmp_path / "src" / "step0" / "rank", {"a": same, "b": same})
    convert_whole(tmp_path / "src", tmp_path / "linked")
    convert_whole(tmp_path / "src", tmp_path / "copied", links=False)
    inodes = {
        place: {path.stat().st_ino for path in (tmp_path / place).rglob("*.npy")} for place in ("linked", "copied")
    }
    assert {place: len(found) for place, found in inodes.items()} == {"linked": 1, "copied": 2}


def test_the_queue_is_bounded_and_lets_a_giant_through_alone() -> None:
    pipe = _Pipe(100)

    def item(size: int) -> _Read:
        bits = type("Bits", (), {"bits": np.zeros(size, np.uint8)})()
        return _Read(None, bits, "")  # type: ignore[arg-type]

    assert pipe.put(item(1000))
    thread = threading.Thread(target=lambda: [pipe.put(item(60)), pipe.put(item(60)), pipe.put(None)])
    thread.start()
    time.sleep(0.05)
    assert len(pipe._items) == 1
    sizes = []
    while (taken := pipe.take()) is not None:
        assert pipe._used <= 100
        sizes.append(taken.bits.bits.nbytes if taken.bits else 0)
    thread.join()
    assert sizes == [1000, 60, 60]
    pipe.close()
    assert not pipe.put(item(1))


def test_header_and_unknown_keys_survive_a_rewrite(tmp_path: Path) -> None:
    unit = write_unit(tmp_path / "src" / "step0" / "rank", {"a.0.forward": np.zeros(2, np.float32)})
    document = load_json(unit / "dump.json")
    document = {"first": [1], **document, "last": {"x": None}}
    document["data"]["a.0.forward"]["output"][0]["xor"] = "0x1"
    document["data"]["a.0.forward"]["unknown"] = {"deep": [{"data_name": "a.0.forward.output.0.npy", "z": 1}]}
    write_document(unit / "dump.json", document)
    convert_whole(tmp_path / "src", tmp_path / "out", tensors="pt")
    again = (tmp_path / "out" / "step0" / "rank" / "dump.json").read_text()
    assert again.replace(".pt", ".npy") == (unit / "dump.json").read_text()
    assert HEADER["dump_data_dir"] in again


def test_sigint_of_a_whole_process_group_is_a_keyboard_interrupt(tmp_path: Path) -> None:
    """What Ctrl-C does on a terminal, delivered while units are on their way."""
    src = write_tree(tmp_path / "src", count=30)

    def press(unit: str, done: int, total: int) -> None:
        if done == 0:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt):
        convert(src, tmp_path / "out.h5", ConvertOptions(), press)
    assert not (tmp_path / "out.h5").exists()
    assert not temporaries(tmp_path)


@settings(deadline=None, max_examples=200)
@given(st.dictionaries(st.sampled_from("abcdeABC"), st.sampled_from([*"abcdeABC", None, "?"])))
def test_a_kept_entry_moves_to_its_nearest_kept_ancestor(construct: dict[str, str | None]) -> None:
    def nearest(child: str) -> str | None:
        seen, parent = {child}, construct[child]
        while parent is not None and not parent.isupper():
            if parent in seen:
                return None
            seen.add(parent)
            parent = construct.get(parent)
        return parent

    found = _kept_ancestors(construct, str.isupper)
    assert list(found.items()) == [(child, nearest(child)) for child in construct if child.isupper()]


def test_temporaries_of_a_temporary_go_with_it(tmp_path: Path) -> None:
    """What an interrupt leaves of a store that was just making its file."""
    temporary = Path(temporary_sibling(tmp_path / "out.h5"))
    half_made = Path(temporary_sibling(temporary))
    others = [tmp_path / "mine.txt", Path(temporary_sibling(tmp_path / "other.h5"))]
    for path in (half_made, *others):
        path.write_bytes(b"")
    remove_temporary(str(temporary))
    assert sorted(tmp_path.iterdir()) == sorted(others)
