"""Parsing and building names are inverse, whatever the names."""

from __future__ import annotations

import os

from hypothesis import example, given, settings
from hypothesis import strategies as st

from msformat.names import (
    API_PREFIXES,
    CATEGORIES,
    OpName,
    TensorName,
    build_data_name,
    build_entry,
    natural_key,
    parse_data_name,
    parse_entry,
    safe_data_name,
)

LIGHT = settings(deadline=None, max_examples=150)

# Words of the grammar itself come up often, so that every ambiguity does.
WORDS = """0 1 10 007 forward backward input output kwargs parameters parameters_grad debug tensor
    Module Cell Functional Primitive conv pt npy _grad ü a/b"""
word = st.sampled_from(["", "\n", *WORDS.split()])
dotted = st.lists(word, min_size=1, max_size=9).map(".".join)
anything = st.one_of(dotted, st.text(max_size=30), dotted.map(lambda s: s + ".pt"), dotted.map(lambda s: s + ".npy"))

identifier = st.from_regex(r"[A-Za-z_][A-Za-z0-9_]{0,8}", fullmatch=True)
index = st.integers(min_value=0, max_value=10**18 - 1)
module_path = st.lists(st.one_of(identifier, index.map(str), word.filter(bool)), min_size=1, max_size=5).map(".".join)
stage = st.sampled_from(["forward", "backward"])

apis = st.builds(
    OpName,
    st.one_of(st.sampled_from(sorted(API_PREFIXES - {"Primitive"})), identifier),
    identifier,
    st.none(),
    index,
    stage,
    st.just("api"),
)
primitives = st.builds(OpName, st.just("Primitive"), identifier, identifier, index, stage, st.just("api"))
kinds = st.sampled_from(["Module", "Cell"])
modules = st.builds(OpName, kinds, module_path, identifier, index, stage, st.just("module"))
gradients = st.builds(
    OpName,
    kinds,
    module_path,
    identifier,
    st.one_of(st.none(), index),
    st.just("parameters_grad"),
    st.just("module"),
)
variables = st.builds(OpName, st.just(""), st.text(), st.none(), index, st.just("debug"), st.just("saved"))
saved_122 = st.builds(OpName, st.just(""), identifier, st.none(), index, st.just(""), st.just("saved"))
names = st.one_of(apis, primitives, modules, gradients, variables, saved_122)


@LIGHT
@given(names)
def test_every_name_is_read_as_it_was_written(name: OpName) -> None:
    assert parse_entry(build_entry(name)) == name


@settings(deadline=None, max_examples=600)
@given(anything)
@example("Module..forward.0")
@example("Module.x..forward.0")
@example("Primitive..Mul.0.forward")
@example("..f.0.forward")
def test_every_key_that_parses_is_rebuilt(key: str) -> None:
    parsed = parse_entry(key)
    if parsed is not None:
        assert build_entry(parsed) == key


@settings(deadline=None, max_examples=600)
@given(anything)
@example("y.0.tensor..pt")
@example("y.0.tensor.")
@example("Module.a.B.parameters_grad..pt")
def test_every_tensor_name_that_parses_is_rebuilt_and_keeps_its_entry(data_name: str) -> None:
    parsed = parse_data_name(data_name)
    if parsed is None:
        return
    assert build_data_name(parsed) == data_name
    assert parse_entry(parsed.entry) is not None
    assert parse_data_name(data_name, parsed.entry) == parsed


leaf = st.one_of(identifier, index.map(str))
suffix = st.sampled_from([".pt", ".npy"])
paths = st.lists(leaf, min_size=1, max_size=4).map(tuple)


@LIGHT
@given(st.one_of(apis, primitives, modules), st.sampled_from(CATEGORIES), paths, suffix)
def test_tensors_of_calls(op: OpName, category: str, path: tuple[str, ...], end: str) -> None:
    name = TensorName(build_entry(op), category, path, end)
    parsed = parse_data_name(build_data_name(name), name.entry)
    assert parsed == name


@LIGHT
@given(st.one_of(gradients, variables, saved_122), paths, suffix)
def test_tensors_of_gradients_and_variables(op: OpName, path: tuple[str, ...], end: str) -> None:
    name = TensorName(build_entry(op), "" if op.stage else "tensor", path, end)
    assert parse_data_name(build_data_name(name), name.entry) == name


@LIGHT
@given(st.text(max_size=400), st.sampled_from(["", ".pt", ".npy"]))
def test_safe_names_are_plain_file_names(raw: str, end: str) -> None:
    safe = safe_data_name(raw + end)
    assert safe.endswith(end)
    assert safe not in ("", ".", "..")
    assert os.path.basename(safe) == safe
    assert len(os.fsencode(safe)) <= 255
    assert safe_data_name(safe) == safe


@LIGHT
@given(st.lists(st.one_of(st.integers(0, 10**30), st.text(max_size=6)), min_size=2, max_size=6))
def test_natural_order_is_total_and_numeric(items: list[int | str]) -> None:
    texts = [str(item) for item in items]
    keys = sorted(natural_key(text) for text in texts)
    assert [key[1] for key in keys] == sorted(texts, key=natural_key)
    numbers = sorted(item for item in items if isinstance(item, int))
    assert sorted((f"r{n}.x" for n in numbers), key=natural_key) == [f"r{n}.x" for n in numbers]
