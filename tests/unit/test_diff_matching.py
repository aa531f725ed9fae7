"""Which entries and units of two dumps belong together."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import msformat
from msformat.compare.mapping import parse_mapping
from msformat.compare.model import DiffResult, EntryResult
from msformat.compare.moved import moved_paths
from msformat.compare.order import execution_order
from msformat.compare.translate import bare_operation
from msformat.layout import find_units
from msformat.names import OpName, parse_entry
from tests.small_dumps import HEADER, record, write_document, write_tree, write_unit

Arrays = Mapping[str, NDArray[Any]]


def values(seed: int, shape: tuple[int, ...] = (3, 4)) -> NDArray[Any]:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float32)


def diff(tmp_path: Path, a: Arrays, b: Arrays, *, parents: tuple[Any, Any] = ({}, {}), **options: Any) -> DiffResult:
    for name, entries, tree in (("a", a, parents[0]), ("b", b, parents[1])):
        write_unit(tmp_path / name / "step0" / "rank", entries, parents={**dict.fromkeys(entries), **tree})
    return msformat.diff(tmp_path / "a", tmp_path / "b", msformat.DiffOptions(**options))


def pairs(found: DiffResult) -> dict[str, tuple[str | None, str]]:
    entries: list[EntryResult] = [entry for unit in found.units for entry in unit.entries]
    return {entry.key: (entry.b, entry.match) for entry in entries}


def test_the_same_keys(tmp_path: Path) -> None:
    entries = {f"Functional.relu.{n}.forward": values(n) for n in range(3)}
    found = diff(tmp_path, entries, entries)
    assert pairs(found) == {key: (key, "key") for key in entries}
    assert found.exit_code == 0


@pytest.mark.parametrize(
    ("ours", "theirs", "how"),
    [
        ("Module.module.layers.0.fc.Linear.forward.0", "Module.layers.0.fc.Linear.forward.0", "prefix"),
        ("Module.layers.0.fc.Linear.forward.0", "Module._orig_mod.layers.0.fc.Linear.forward.0", "prefix"),
        ("Module.encoder.layers.3.fc.Linear.forward.0", "Module.backbone.layers.3.fc.Linear.forward.0", "path"),
        ("Module.layers.3.fc.Linear.forward.0", "Module.model.layers.3.fc.Linear.forward.0", "path"),
        ("Module.fc.Linear.forward.0", "Module.fc.LoraLinear.forward.0", "path"),
        ("Cell.layers.0.fc.Dense.forward.0", "Module.layers.0.fc.Linear.forward.0", "framework"),
        ("Cell.network._backbone.fc.Dense.backward.0", "Module.fc.Linear.backward.0", "prefix"),
        ("Mint.add.0.forward", "Torch.add.0.forward", "order"),
        ("MintFunctional.relu.0.backward", "Functional.relu.0.backward", "order"),
        ("Tensor.__iadd__.0.forward", "Tensor.add.0.forward", "order"),
        ("Primitive.matmul.MatMul.0.forward", "Torch.matmul.0.forward", "order"),
        ("loss.0.debug", "loss.0", "key"),
    ],
)  # fmt: skip
def test_other_names_of_one_call(tmp_path: Path, ours: str, theirs: str, how: str) -> None:
    found = diff(tmp_path, {ours: values(0)}, {theirs: values(0)})
    assert pairs(found) == {ours: (theirs, how)}
    assert found.exit_code == 0


@pytest.mark.parametrize(
    ("ours", "theirs"),
    [
        ("Module.layers.3.fc.Linear.forward.0", "Module.layers.4.fc.Linear.forward.0"),
        ("Module.a.layers.3.fc.Linear.forward.0", "Module.2.layers.3.fc.Linear.forward.0"),
        ("Module.a.fc.Linear.forward.0", "Module.b.fc.Conv2d.forward.0"),
        ("Functional.relu.0.forward", "Functional.gelu.0.forward"),
        ("Functional.relu.0.forward", "Functional.relu.0.backward"),
        ("Module.fc.Linear.forward.0", "Module.fc.Linear.forward.1"),
    ],
)  # fmt: skip
def test_other_calls(tmp_path: Path, ours: str, theirs: str) -> None:
    found = diff(tmp_path, {ours: values(0)}, {theirs: values(0)})
    assert {(one.a, one.b, one.match) for one in found.units[0].entries} == {
        (ours, None, "none"),
        (None, theirs, "none"),
    }
    assert found.exit_code == 2


def test_an_ambiguous_move_is_none() -> None:
    """Two modules that end alike: nobody knows which is which."""
    ours = {"a.fc": "Linear", "b.fc": "Linear"}
    assert moved_paths(ours, {"c.fc": "Linear"}) == {}
    assert moved_paths({"a.fc": "Linear"}, {"c.fc": "Linear", "d.fc": "Linear"}) == {}
    assert moved_paths({"a.fc": "Dense", "a.norm": "LayerNorm"}, {"c.fc": "Linear", "c.norm": "LayerNorm"}) == {
        "a.fc": "c.fc",
        "a.norm": "c.norm",
    }


def test_one_more_call_shifts_nothing_elsewhere(tmp_path: Path) -> None:
    """Calls are counted inside the module that makes them."""
    first, second = "Module.first.Block.forward.0", "Module.second.Block.forward.0"
    a = {
        "Functional.relu.0.forward": values(0),
        first: values(1),
        "Functional.relu.1.forward": values(2),
        second: values(3),
    }
    b = {
        "Functional.relu.0.forward": values(0),
        "Functional.relu.1.forward": values(9, (7,)),  # new, and of another shape
        first: values(1),
        "Functional.relu.2.forward": values(2),
        second: values(3),
    }
    inside_a = {"Functional.relu.0.forward": first, "Functional.relu.1.forward": second}
    inside_b = {**inside_a, "Functional.relu.1.forward": first, "Functional.relu.2.forward": second}
    found = diff(tmp_path, a, b, parents=(inside_a, inside_b), ignore_missing=True)
    assert pairs(found)["Functional.relu.1.forward"][0] is None or (
        pairs(found)["Functional.relu.1.forward"] == ("Functional.relu.2.forward", "order")
    )
    by_a = {entry.a: entry.b for entry in found.units[0].entries}
    assert by_a["Functional.relu.1.forward"] == "Functional.relu.2.forward"
    assert [entry.b for entry in found.units[0].entries if entry.a is None] == ["Functional.relu.1.forward"]
    assert found.exit_code == 0


def test_a_backward_follows_its_forward(tmp_path: Path) -> None:
    """Without a tree and with one more call: shapes tell which forward is new, its backward goes with it."""
    a = {"Functional.relu.0.forward": values(0), "Functional.relu.0.backward": values(5)}
    b = {
        "Functional.relu.0.forward": values(8, (2, 2)),
        "Functional.relu.1.forward": values(0),
        "Functional.relu.0.backward": values(7),
        "Functional.relu.1.backward": values(5),
    }
    found = diff(tmp_path, a, b)
    by_a = {entry.a: entry.b for entry in found.units[0].entries if entry.a}
    assert by_a == {
        "Functional.relu.0.forward": "Functional.relu.1.forward",
        "Functional.relu.0.backward": "Functional.relu.1.backward",
    }


def test_entries_of_one_side_stand_where_they_were(tmp_path: Path) -> None:
    a = {"Functional.a.0.forward": values(0), "Functional.c.0.forward": values(2)}
    b = {"Functional.a.0.forward": values(0), "Functional.b.0.forward": values(1), "Functional.c.0.forward": values(2)}
    found = diff(tmp_path, a, b)
    assert [entry.key for entry in found.units[0].entries] == list(b)
    assert found.exit_code == 1
    assert found.divergence is not None
    assert (found.divergence.entry.b, found.divergence.reasons) == ("Functional.b.0.forward", ("only in b",))


# --- a user's mapping -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("mapping", "ours", "theirs"),
    [
        ({"modules": {"decoder.blocks": "layers"}}, "Module.decoder.blocks.2.fc.Linear.forward.0",
         "Module.layers.2.fc.Linear.forward.0"),
        ({"apis": {"Functional.dense": "Functional.bilinear"}}, "Functional.dense.0.forward",
         "Functional.bilinear.0.forward"),
        ({"entries": {"Module.a.X.forward.0": "Module.z.Y.forward.3"}}, "Module.a.X.forward.0",
         "Module.z.Y.forward.3"),
        ({"fc1.Dense": "dense.Linear"}, "Cell.fc1.Dense.forward.0", "Module.dense.Linear.forward.0"),
        ([{"ms_api": "Functional.softmax_x", "pt_api": "Functional.softmax"}], "Functional.softmax_x.0.forward",
         "Functional.softmax.0.forward"),
        ({"TopLayer": {"enc": "encoder"}, "Encoder": {"attn.core": "self_attention"}},
         "Cell.enc.attn.core.Core.forward.0", "Module.encoder.self_attention.Attention.forward.0"),
    ],
)  # fmt: skip
def test_names_that_a_user_knows_better(tmp_path: Path, mapping: Any, ours: str, theirs: str) -> None:
    context = {"Module.enc.Encoder.forward.0": values(1)} if "Encoder" in str(mapping) else {}
    other = {"Module.encoder.Encoder.forward.0": values(1)} if context else {}
    place = tmp_path / "names.json"
    place.write_text(json.dumps(mapping))
    found = diff(
        tmp_path, {**context, ours: values(0)}, {**other, theirs: values(0)}, mapping=msformat.load_mapping(place)
    )
    assert pairs(found)[ours] == (theirs, "mapping")
    assert found.exit_code == 0


def test_a_mapping_in_yaml(tmp_path: Path) -> None:
    place = tmp_path / "names.yaml"
    place.write_text("modules:\n  a: b\nparameters:\n  gamma: weight\n")
    found = msformat.load_mapping(place)
    assert found.parameter("norm.gamma") == "norm.weight"
    assert found.modules == {"a": "b"}


@pytest.mark.parametrize("text", ["[1]", "{", '{"modules": [1]}', '"x"', '{"a": null}', '[{"pt_api": "x"}]'])
def test_a_file_that_is_no_mapping(tmp_path: Path, text: str) -> None:
    for suffix in (".json", ".yaml"):
        place = tmp_path / f"names{suffix}"
        place.write_text(text)
        with pytest.raises(msformat.FormatError, match="names"):
            msformat.load_mapping(place)


def test_yaml_never_makes_objects(tmp_path: Path) -> None:
    place = tmp_path / "names.yaml"
    place.write_text("a: !!python/object/apply:os.system ['true']\n")
    with pytest.raises(msformat.FormatError):
        msformat.load_mapping(place)


@pytest.mark.parametrize("tag", ["int", "float", "bool", "timestamp"])
def test_words_of_yaml_are_text(tmp_path: Path, tag: str) -> None:
    """``no`` is no truth value, ``010`` no eight, and a tag that does not fit breaks nothing."""
    place = tmp_path / "names.yaml"
    place.write_text(f"modules:\n  a: no\n  b: 010\n  c: !!{tag} x\n  d: !!{tag} ''\napis:\nentries: ~\n")
    assert msformat.load_mapping(place).modules == {"a": "no", "b": "010", "c": "x", "d": ""}


@pytest.mark.parametrize("more", ["[{0}]", "{{<<: [{0}]}}"], ids=["aliases", "merges"])
def test_yaml_that_grows_without_end(tmp_path: Path, more: str) -> None:
    """Forty levels of nine aliases: more than any memory, written out."""
    lines = ["a0: &a0 {x: y}", *(f"a{n}: &a{n} {more.format(','.join([f'*a{n - 1}'] * 9))}" for n in range(1, 40))]
    place = tmp_path / "names.yaml"
    place.write_text("\n".join(lines))
    with pytest.raises(msformat.FormatError, match="name"):
        msformat.load_mapping(place)


def test_a_path_of_very_many_parts() -> None:
    """Looking for each run of its parts would take hours."""
    path = ".".join(["a"] * 20_000)
    name = parse_entry(f"Module.{path}.b.c.Linear.forward.0")
    for value in ({"modules": {"b.c": "d"}}, {"Cell": {path[:1]: "a"}, "Linear": {"b.c": "d"}}):
        parse_mapping(value, "names").name("x", name, {})
    found = parse_mapping({"modules": {"b.c": "d"}}, "names").name("x", name, {})
    assert found is not None
    assert found.path == f"{path}.d"


def test_yaml_in_a_circle(tmp_path: Path) -> None:
    place = tmp_path / "names.yaml"
    place.write_text("a: &a [*a]\n")
    with pytest.raises(msformat.FormatError):
        msformat.load_mapping(place)


def test_tensors_of_an_entry_find_each_other(tmp_path: Path) -> None:
    """By place; parameters by the names of frameworks; arguments by position here and by name there; a user's say."""
    shared = np.arange(6, dtype=np.float32).reshape(2, 3)
    swapped = [shared + 1, shared + 2]
    for name, entry in (
        ("a", {"input_args": [shared, shared * 2], "input_kwargs": {}, "output": swapped,
               "parameters": {"gamma": shared * 3, "beta": shared * 4}}),
        ("b", {"input_args": [shared], "input_kwargs": {"other": shared * 2}, "output": swapped[::-1],
               "parameters": {"weight": shared * 3, "bias": shared * 4}}),
    ):  # fmt: skip
        write_entry(tmp_path / name / "step0" / "rank", "Module.norm.LayerNorm.forward.0", entry)
    key = "Module.norm.LayerNorm.forward.0.output"
    mapping = parse_mapping({"tensors": {f"{key}.0": f"{key}.1", f"{key}.1": f"{key}.0"}}, "names")
    found = msformat.diff(tmp_path / "a", tmp_path / "b", msformat.DiffOptions(mapping=mapping))
    assert {tensor.verdict for tensor in found.units[0].tensors} == {"same"}
    assert len(list(found.units[0].tensors)) == 6


def write_entry(unit: Path, key: str, entry: Mapping[str, Any]) -> None:
    """One entry with arrays at any place."""
    data = unit / "dump_tensor_data"
    data.mkdir(parents=True)
    count = 0

    def node(value: Any) -> Any:
        nonlocal count
        if isinstance(value, dict):
            return {name: node(item) for name, item in value.items()}
        if isinstance(value, list):
            return [node(item) for item in value]
        if isinstance(value, np.ndarray):
            name, count = f"t{count}.npy", count + 1
            np.save(data / name, value)
            return record(value, name)
        return {"type": type(value).__name__, "value": value}

    write_document(unit / "dump.json", {**HEADER, "data": {key: node(dict(entry))}})


@pytest.mark.parametrize(
    ("a", "b", "verdict"),
    [(1e-5, 1e-2, "different"), (1, 2, "different"), (True, False, "different"), (0.1, 0.1 + 1e-12, "close"),
     ("cuda:0", "npu:0", "close"), (float("nan"), float("nan"), None), (1, 1.0, "close")],
)  # fmt: skip
def test_plain_arguments(tmp_path: Path, a: Any, b: Any, verdict: str | None) -> None:
    array = np.ones(3, np.float32)
    for name, value in (("a", a), ("b", b)):
        write_entry(tmp_path / name / "step0" / "rank", "Functional.layer_norm.0.forward",
                    {"input_args": [array, value], "input_kwargs": {}, "output": [array]})  # fmt: skip
    (entry,) = msformat.diff(tmp_path / "a", tmp_path / "b").units[0].entries
    assert [scalar.verdict for scalar in entry.scalars] == ([verdict] if verdict else [])
    if verdict:
        assert entry.scalars[0].name == "Functional.layer_norm.0.forward.input.1"
    without = msformat.diff(tmp_path / "a", tmp_path / "b", msformat.DiffOptions(scalars=False))
    assert without.exit_code == 0


# --- order ------------------------------------------------------------------------------------------------------------


def entry(key: str) -> EntryResult:
    return EntryResult(key, key, "key")


@pytest.mark.parametrize("order", ["begin", "end"])
def test_execution_order_is_told_by_the_tree(order: str) -> None:
    """Outer calls begin before and end after what runs inside them, wherever the document lists them."""
    inner, outer = entry("Functional.relu.0.forward"), entry("Module.a.A.forward.0")
    last = entry("Functional.gelu.0.forward")
    entries = [outer, inner, last] if order == "begin" else [inner, outer, last]
    parents = [None, 0, None] if order == "begin" else [1, None, None]
    events = [(entries[event.entry].key, event.is_begin) for event in execution_order(entries, parents)]
    assert events == [
        (outer.key, True),
        (inner.key, True),
        (inner.key, False),
        (outer.key, False),
        (last.key, True),
        (last.key, False),
    ]


def test_gradients_of_parameters_come_with_the_backward() -> None:
    """msprobe 8.1.0 lists them behind the forward."""
    keys = ["Module.a.A.forward.0", "Module.a.A.parameters_grad", "Functional.x.0.forward", "Module.a.A.backward.0"]
    entries = [entry(key) for key in keys]
    ends = [entries[e.entry].key for e in execution_order(entries, [None] * 4) if not e.is_begin]
    assert ends.index("Module.a.A.parameters_grad") > ends.index("Functional.x.0.forward")


def test_a_circle_of_parents_is_cut() -> None:
    entries = [entry(f"Module.m{n}.M.forward.0") for n in range(4)]
    events = execution_order(entries, [1, 2, 0, 3])
    assert len(events) == 8
    assert {event.entry for event in events} == {0, 1, 2, 3}


def test_a_chain_of_50000_parents() -> None:
    """R130: no recursion."""
    entries = [entry(f"Module.m{n}.M.forward.0") for n in range(50_000)]
    events = execution_order(entries, [None, *range(49_999)])
    assert events[0].entry == 0
    assert events[-1].entry == 0


def test_the_first_divergence_is_first_in_execution(tmp_path: Path) -> None:
    """The outer module's output differs as well, and stands first in the document."""
    outer, inner, fine = "Module.a.A.forward.0", "Module.a.b.B.forward.0", "Module.a.0.C.forward.0"
    a = {outer: values(0) + 1, fine: values(1), inner: values(2) + 1}
    b = {outer: values(0), fine: values(1), inner: values(2)}
    tree = {inner: outer, fine: outer}
    headline = diff(tmp_path, a, b, parents=(tree, tree)).divergence
    assert headline is not None
    assert (headline.entry.key, headline.module, headline.role) == (inner, "a.b", "output")
    assert headline.parents == (outer,)
    assert [found.key for found in headline.before] == [fine]
    assert "File a.py" in headline.stack_a[0]


# --- units ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ours", "theirs", "labels"),
    [
        (["step0/rank", "step1/rank"], ["step0/rank", "step1/rank"], ["step0/rank", "step1/rank"]),
        (["step0/rank"], ["step0/rank0"], ["step0/rank against step0/rank0"]),
        (["step0/rank"], ["step0/proc4711"], ["step0/rank against step0/proc4711"]),
        (["step0/rank10", "step0/rank2"], ["step0/rank2", "step0/rank10"], ["step0/rank2", "step0/rank10"]),
        (["step3/rank"], ["step7/rank"], ["step3/rank against step7/rank"]),
    ],
)
def test_units_find_each_other(tmp_path: Path, ours: list[str], theirs: list[str], labels: list[str]) -> None:
    write_tree(tmp_path / "a", ours)
    write_tree(tmp_path / "b", theirs)
    found = msformat.diff(tmp_path / "a", tmp_path / "b")
    assert [unit.label for unit in found.units] == labels
    assert all(unit.a is not None and unit.b is not None for unit in found.units)


def test_a_unit_that_one_side_lacks(tmp_path: Path) -> None:
    write_tree(tmp_path / "a", ["step0/rank", "step1/rank"])
    write_tree(tmp_path / "b", ["step0/rank"])
    found = msformat.diff(tmp_path / "a", tmp_path / "b")
    assert found.exit_code == 1
    assert found.units[1].problems == ("only in a",)
    only = msformat.diff(tmp_path / "a", tmp_path / "b", msformat.DiffOptions(steps=frozenset({0})))
    assert only.exit_code == 0
    with pytest.raises(msformat.FormatError, match="no unit"):
        msformat.diff(tmp_path / "a", tmp_path / "b", msformat.DiffOptions(steps=frozenset({9})))


def test_units_in_processes_of_their_own(tmp_path: Path) -> None:
    write_tree(tmp_path / "a", ["step0/rank0", "step0/rank1"])
    write_tree(tmp_path / "b", ["step0/rank0", "step0/rank1"])
    alone = msformat.diff(tmp_path / "a", tmp_path / "b")
    shared = msformat.diff(tmp_path / "a", tmp_path / "b", msformat.DiffOptions(jobs=2))
    # As text: NaN in the documents' statistics is no longer the same object.
    assert [repr(unit.entries) for unit in shared.units] == [repr(unit.entries) for unit in alone.units]


def test_real_dumps_of_every_framework_are_the_same_as_themselves(golden: Callable[[str], Path]) -> None:
    for name in ("torch_1.2.2_mix_tensor", "mindspore_8.1.0_mix_tensor", "mindtorch_26.2.0_mix_tensor",
                 "torch_26.2.0_debug_tensor", "mindspore_26.2.0_nested_mixed"):  # fmt: skip
        found = msformat.diff(golden(name), golden(name))
        assert found.exit_code == 0, name
        assert set(found.counts) <= {"same", "unknown"}
        assert all(entry.match == "key" for unit in found.units for entry in unit.entries)
        assert len(found.units) == len(find_units(golden(name))[0])


def test_bare_operations() -> None:
    same = ["Tensor.__iadd__.0.forward", "Tensor.__radd__.0.forward", "Mint.add.0.forward", "Primitive.x.Add.0.forward"]
    names: list[OpName | None] = [parse_entry(key) for key in same]
    assert {bare_operation(name) for name in names if name is not None} == {"add"}


def test_names_of_devices_are_not_where_runs_part(tmp_path: Path) -> None:
    array = np.ones(3, np.float32)
    for name, device in (("a", "npu:0"), ("b", "cuda:0")):
        write_entry(tmp_path / name / "step0" / "rank", "Tensor.to.0.forward",
                    {"input_args": [array, device], "input_kwargs": {}, "output": [array]})  # fmt: skip
    found = msformat.diff(tmp_path / "a", tmp_path / "b")
    assert (found.exit_code, found.divergence, found.first_bits) == (0, None, None)
