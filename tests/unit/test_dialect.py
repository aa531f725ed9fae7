"""Dialects: told apart on real dumps of three msprobe versions, translated so that the versions' own dumps agree."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from msformat.dialect import DIALECTS, Dialect, Translator, detect_dialect, stack_pairs, translate_units
from msformat.units import UnitKey
from tests.conftest import golden_names

Golden = Callable[[str], Path]
_VERSIONS: dict[str, Dialect] = {"1.2.2": "1.2", "8.1.0": "8.1", "26.2.0": "26"}


def _units(root: Path) -> list[Path]:
    return sorted({path.parent for pattern in ("dump.json", "debug.json") for path in root.rglob(pattern)})


def _load(unit: Path, name: str) -> Any:
    path = unit / name
    return json.loads(path.read_text()) if path.exists() else None


def _document(unit: Path) -> tuple[dict[str, Any], bool]:
    dump = _load(unit, "dump.json")
    return (dump, False) if dump is not None else (_load(unit, "debug.json"), True)


def _names(value: Any) -> Iterator[str]:
    if isinstance(value, dict):
        if isinstance(value.get("data_name"), str):
            yield value["data_name"]
        for item in value.values():
            yield from _names(item)
    elif isinstance(value, list):
        for item in value:
            yield from _names(item)


def _translator(document: dict[str, Any], source: Dialect, target: Dialect, *, is_debug: bool) -> Translator:
    return Translator.over(document["data"], source, target, is_debug=is_debug)


def _translated(unit: Path, source: Dialect, target: Dialect) -> tuple[set[str], set[str]]:
    """Entry keys and tensor names of a unit in another dialect."""
    document, is_debug = _document(unit)
    translator = _translator(document, source, target, is_debug=is_debug)
    names = {translator.data_name(name, key) for key, value in document["data"].items() for name in _names(value)}
    return {translator.key(key) for key in document["data"]}, names


@pytest.mark.parametrize("name", golden_names)
def test_the_writer_of_a_real_dump_is_known(name: str, golden: Golden) -> None:
    expected = _VERSIONS[name.split("_")[1]]
    for unit in _units(golden(name)):
        document, is_debug = _document(unit)
        found = detect_dialect(
            document["data"].items(),
            stack=_load(unit, "stack.json"),
            rank=unit.name,
            framework=document["framework"],
            is_debug=is_debug,
        )
        # An empty stack.json of 1.2.2 tells nothing, and there is nothing to translate.
        assert found == expected or not document["data"]


@pytest.mark.parametrize("kind", ["mix_tensor", "L0_tensor", "mix_md5"])
def test_the_writer_is_known_without_the_directory_name(kind: str, golden: Golden) -> None:
    for unit in _units(golden(f"torch_26.2.0_{kind}")):
        document, _ = _document(unit)
        assert detect_dialect(document["data"].items(), framework="pytorch") == "26"


@pytest.mark.parametrize(
    ("framework", "kind"),
    [
        ("torch", "mix_tensor"),
        ("torch", "L0_tensor"),
        ("torch", "mix_md5"),
        ("mindspore", "mix_tensor"),
        ("mindspore", "L0_tensor"),
    ],
)
def test_gradients_of_26_are_named_as_8_1_names_them_and_back(framework: str, kind: str, golden: Golden) -> None:
    old = _units(golden(f"{framework}_8.1.0_{kind}"))[0]
    new = _units(golden(f"{framework}_26.2.0_{kind}"))[0]

    def gradients(texts: set[str]) -> set[str]:
        return {text for text in texts if ".parameters_grad" in text}

    for source, target, unit, other in (("26", "8.1", new, old), ("8.1", "26", old, new)):
        keys, names = _translated(unit, source, target)  # type: ignore[arg-type]
        document, _ = _document(other)
        assert gradients(keys) == gradients(set(document["data"])) != set()
        there = {name for value in document["data"].values() for name in _names(value)}
        assert gradients(names) == gradients(there)


def test_saved_variables_of_1_2_are_named_as_8_1_names_them_and_back(golden: Golden) -> None:
    old = _units(golden("torch_1.2.2_debug_tensor"))[0]
    new = _units(golden("torch_8.1.0_debug_tensor"))[0]
    old_document, new_document = _document(old)[0], _document(new)[0]
    keys, names = _translated(old, "1.2", "8.1")
    # 8.1.0 drops the whole dict_variable (format page, section 5) and restarts its counters in every step.
    assert keys >= set(new_document["data"])
    assert names >= {name for value in new_document["data"].values() for name in _names(value)}
    keys, names = _translated(new, "8.1", "1.2")
    assert keys <= set(old_document["data"])
    assert names <= {name for value in old_document["data"].values() for name in _names(value)}


@pytest.mark.parametrize("name", golden_names)
def test_every_translation_is_undone_by_its_opposite(name: str, golden: Golden) -> None:
    source = _VERSIONS[name.split("_")[1]]
    for unit in _units(golden(name)):
        document, is_debug = _document(unit)
        for target in DIALECTS:
            there = _translator(document, source, target, is_debug=is_debug)
            back = Translator.over(map(there.key, document["data"]), target, source, is_debug=is_debug)
            for key, value in document["data"].items():
                new = there.key(key)
                assert back.key(new) == key
                assert all(back.data_name(there.data_name(text, key), new) == text for text in _names(value))
            stack = _load(unit, "stack.json")
            if stack:
                frames = dict(stack_pairs(back.stack(there.stack(stack))))
                assert frames == dict(stack_pairs(stack))
            construct = _load(unit, "construct.json")
            if construct:
                assert back.construct(there.construct(construct)) == construct


def test_a_stack_of_8_1_survives_1_2_byte_for_byte(golden: Golden) -> None:
    unit = _units(golden("torch_8.1.0_mix_tensor"))[0]
    stack = _load(unit, "stack.json")
    document, _ = _document(unit)
    there = _translator(document, "8.1", "1.2", is_debug=False)
    back = _translator(document, "1.2", "8.1", is_debug=False)
    positions = {key: number for number, key in enumerate(document["data"])}
    flat = there.stack(stack, positions.__getitem__)
    assert list(flat) == sorted(flat, key=positions.__getitem__)
    assert json.dumps(back.stack(flat)) == json.dumps(stack)


def test_all_gradients_of_several_backward_passes_are_kept() -> None:
    keys = [f"Module.fc.Linear.parameters_grad.{n}" for n in range(3)]
    there = Translator.over(keys, "26", "8.1", is_debug=False)
    old = [there.key(key) for key in keys]
    assert old == ["Module.fc.Linear.parameters_grad", *keys[1:]]
    assert there.data_name(f"{keys[0]}.weight.pt", keys[0]) == "Module.fc.Linear.parameters_grad.weight.pt"
    assert there.data_name(f"{keys[1]}.weight.pt", keys[1]) == f"{keys[1]}.weight.pt"
    back = Translator.over(old, "8.1", "26", is_debug=False)
    assert [back.key(key) for key in old] == keys
    assert detect_dialect([(key, {}) for key in old]) == "8.1"


def test_no_entry_takes_the_place_of_another() -> None:
    keys = ["Module.fc.Linear.parameters_grad.0", "Module.fc.Linear.parameters_grad"]
    there = Translator.over(keys, "26", "8.1", is_debug=False)
    assert [there.key(key) for key in keys] == keys
    saved = ["y.0", "y.0.debug"]
    assert len({Translator.over(saved, "1.2", "8.1", is_debug=True).key(key) for key in saved}) == 2


def test_a_variable_named_like_an_api_call_comes_back() -> None:
    keys = ["Functional.relu.0.forward.3.debug", "Module.a.B.forward.0.debug", "x.0.debug"]
    there = Translator.over(keys, "8.1", "1.2", is_debug=True)
    back = Translator.over([there.key(key) for key in keys], "1.2", "8.1", is_debug=True)
    assert [back.key(there.key(key)) for key in keys] == keys
    assert there.key("x.0.debug") == "x.0"


def test_recomputed_calls_stay_marked_in_26() -> None:
    there = Translator.over(["a"], "8.1", "26", is_debug=False)
    assert there.value({"output": [], "is_recompute": False}) == {"output": []}
    assert there.value({"output": [], "is_recompute": True}) == {"output": [], "is_recompute": True}
    assert there.value(None) is None


def test_documents_of_a_strange_shape_stay_as_they_are() -> None:
    there = Translator.over(["Module.a.B.parameters_grad.0"], "26", "8.1", is_debug=False)
    documents: list[Any] = [[], {}, 3, None, {"0": 5}, {"0": [["a"]]}, "x"]
    for strange in documents:
        assert there.stack(strange) == strange
    assert there.construct([1]) == [1]
    assert there.construct({"a": 3}) == {"a": 3}


def _rank(path: str, target: Dialect, others: tuple[str, ...] = (), *, is_debug: bool = False) -> tuple[str, list[str]]:
    keys = [_key(text) for text in (path, *others)]
    renamed, notes = translate_units([(key, is_debug) for key in keys], target)
    return renamed[keys[0]].path, notes


def _key(path: str) -> UnitKey:
    *step, rank = path.split("/")
    return UnitKey(int(step[0].removeprefix("step")) if step else None, rank)


@pytest.mark.parametrize(
    ("path", "target", "expected"),
    [
        ("step0/rank", "26", "step0/proc0"),
        ("step0/rank3", "26", "step0/rank3"),
        ("step0/proc4711", "8.1", "step0/rank"),
        ("step0/proc4711", "1.2", "step0/rank"),
        ("step0/proc4711", "26", "step0/proc4711"),
        ("step7/rank0", "1.2", "step7/rank0"),
    ],
)
def test_directories_of_a_single_process(path: str, target: Dialect, expected: str) -> None:
    assert _rank(path, target) == (expected, [])


def test_two_runs_are_never_merged_into_one_rank() -> None:
    path, notes = _rank("step0/proc1", "8.1", ("step0/proc2",))
    assert path == "step0/proc1"
    assert any("proc1" in note for note in notes)


def test_saved_variables_lose_their_step_in_1_2_only_when_there_is_one() -> None:
    assert _rank("step0/rank", "1.2", is_debug=True) == ("rank", [])
    path, notes = _rank("step0/rank", "1.2", ("step1/rank",), is_debug=True)
    assert path == "step0/rank"
    assert notes
    assert _rank("rank", "8.1", is_debug=True) == ("step0/rank", [])
    assert _rank("rank", "26", is_debug=True) == ("step0/proc0", [])
