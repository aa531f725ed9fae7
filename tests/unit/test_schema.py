"""Model values from JSON, and the strict checks, judged by jsonschema."""

from __future__ import annotations

import copy
import dataclasses
import json
import math
from collections.abc import Callable, Iterator
from typing import Any

import jsonschema
import pytest

from msformat import schema
from msformat.errors import FormatError, SchemaError, UnsafeInputError
from msformat.model import Entry, Header, Opaque, Scalar, Stats, TensorMeta, walk_nodes, walk_tensors

TENSOR = {
    "type": "torch.Tensor",
    "dtype": "torch.float32",
    "shape": [2, 3],
    "Max": 1.0,
    "Min": None,
    "Mean": math.nan,
    "Norm": 2,
    "requires_grad": True,
    "md5": "0123abcd",
    "data_name": "Functional.relu.0.forward.input.0.pt",
}


def _load(obj: Any) -> Any:
    return schema.load_entry("k", obj, "dump.json").value


def _round_trip(obj: Any) -> None:
    again = schema.dump_entry(schema.load_entry("k", obj, "dump.json"))
    assert json.dumps(again) == json.dumps(obj)


def test_a_tensor_record_becomes_a_tensor() -> None:
    meta = _load(TENSOR)
    assert meta.stats.max == 1.0
    assert meta.stats.min is None
    assert math.isnan(meta.stats.mean)
    assert (meta.type, meta.dtype, meta.shape) == ("torch.Tensor", "torch.float32", (2, 3))
    assert (meta.requires_grad, meta.digest, meta.data_name) == (True, "0123abcd", TENSOR["data_name"])
    assert meta.extra == {}
    _round_trip(TENSOR)


def test_nan_null_and_missing_statistics_are_three_things() -> None:
    base = {"type": "mindspore.Tensor", "dtype": "Float32", "shape": []}
    assert _load(base).stats is None
    nan, null, missing = _load({**base, "Max": math.nan}), _load({**base, "Max": None}), _load({**base, "Min": 1})
    assert math.isnan(nan.stats.max)
    assert null.stats.max is None
    assert "max" not in null.stats.absent
    assert missing.stats.max is None
    assert missing.stats.absent == {"max", "mean", "norm"}
    text = _load({**base, "Max": "NaN"})
    assert text.stats.max == "NaN"
    for record in ({**base, "Max": math.nan}, {**base, "Max": None}, {**base, "Min": 1}, {**base, "Max": "NaN"}, base):
        _round_trip(record)


def test_odd_values_of_known_keys_stay_in_extra() -> None:
    odd = {
        **TENSOR,
        "Max": [1],
        "requires_grad": None,
        "md5": 5,
        "data_name": None,
        "placements": [{"Shard": {"dim": 0}}],
    }
    meta = _load(odd)
    assert meta.extra == {key: odd[key] for key in ("Max", "requires_grad", "md5", "data_name", "placements")}
    assert meta.data_name is None
    assert "max" in meta.stats.absent
    _round_trip(odd)


def test_replaced_fields_are_written() -> None:
    meta = _load(TENSOR)
    bare = dataclasses.replace(meta, data_name=None, digest=None)
    assert schema.dump_node(bare) == {k: v for k, v in TENSOR.items() if k not in ("data_name", "md5")}
    null_name = _load({**TENSOR, "data_name": None})
    assert schema.dump_node(dataclasses.replace(null_name, data_name="x.pt")) == {**TENSOR, "data_name": "x.pt"}
    plain = _load({"type": "torch.Tensor", "dtype": "torch.bool", "shape": []})
    full = dataclasses.replace(plain, stats=Stats(True, False, None, None), digest="00000000", data_name="x.pt")
    assert list(schema.dump_node(full)) == ["type", "dtype", "shape", "Max", "Min", "Mean", "Norm", "md5", "data_name"]


def test_new_values_are_written_in_the_order_of_the_format() -> None:
    meta = TensorMeta("torch.Tensor", "torch.int8", (1,), Stats(1, 1, 1.0, 1.0), False, "00000000", "x.pt")
    assert list(schema.dump_node(meta)) == list(TENSOR)
    assert schema.dump_node(Scalar("int", 3)) == {"type": "int", "value": 3}
    assert list(schema.dump_header(Header("tensor", "L1", "pytorch"))) == [
        "task",
        "level",
        "framework",
        "dump_data_dir",
        "data",
    ]


@pytest.mark.parametrize(
    ("record", "value", "value_key"),
    [
        ({"type": "int", "value": 3}, 3, "value"),
        ({"value": [None, 8, None], "type": "slice"}, [None, 8, None], "value"),
        ({"type": "torch.memory_format", "format": "contiguous_format"}, "contiguous_format", "format"),
        ({"type": "torch.ProcessGroup", "group_ranks": [0, 1], "group_id": "x"}, [0, 1], "group_ranks"),
        ({"type": "torch.ProcessGroup"}, None, None),
        ({"type": "float", "value": None}, None, "value"),
    ],
)
def test_scalars(record: dict[str, Any], value: Any, value_key: str) -> None:
    scalar = _load(record)
    assert isinstance(scalar, Scalar)
    assert (scalar.value, scalar.value_key) == (value, value_key)
    _round_trip(record)


@pytest.mark.parametrize(
    "odd",
    [
        5,
        "text",
        False,
        {"type": "torch.Tensor", "dtype": "x", "shape": "?"},
        {"type": "torch.Tensor", "dtype": "x", "shape": [-1]},
        {"type": "torch.Tensor", "dtype": "x", "shape": [True]},
        {"type": "torch.Tensor", "dtype": "x", "shape": [2.0]},
        {"type": "torch.Tensor", "dtype": None, "shape": []},
        {"type": "torch.Tensor", "shape": []},
    ],
)
def test_what_has_no_known_shape_is_opaque(odd: Any) -> None:
    assert _load(odd) == Opaque(odd)
    assert _load({"input": [odd]}) == {"input": (Opaque(odd),)}
    _round_trip({"input": [odd], "odd": odd})


def test_a_dict_of_the_user_may_have_any_key() -> None:
    """``type`` and ``dtype`` are ordinary names of arguments; msprobe writes records under them, never strings."""
    arguments = {
        "type": {"type": "str", "value": "sum"},
        "dtype": {"type": "mindspore.dtype", "value": "Float16"},
        "shape": [None],
    }
    node = _load({"input_kwargs": arguments})
    assert isinstance(node["input_kwargs"]["type"], Scalar)
    _round_trip({"input_kwargs": arguments})


def test_slots_of_an_entry() -> None:
    call = schema.load_entry(
        "Functional.relu.0.forward",
        {"input_args": [TENSOR], "input_kwargs": {}, "is_recompute": False, "output": []},
        "d",
    )
    assert list(call.slots) == ["input_args", "input_kwargs", "output"]
    assert call.is_recompute is False
    assert call.name is not None
    saved = schema.load_entry("x.0.debug", {"output": TENSOR}, "d")
    assert saved.slots == {}
    assert saved.is_recompute is None
    assert schema.load_entry("x_grad.0.debug", None, "d").slots == {}


def test_walks_give_paths_in_order() -> None:
    entry = schema.load_entry("k", {"a": [TENSOR, {"b": [None, TENSOR]}], "c": {}, "d": TENSOR}, "d")
    assert [path for path, _ in walk_tensors(entry.value)] == [("a", "0"), ("a", "1", "b", "1"), ("d",)]
    assert [path for path, _ in walk_nodes(entry.value)] == [
        ("a", "0"), ("a", "1", "b", "0"), ("a", "1", "b", "1"), ("c",), ("d",)
    ]  # fmt: skip


def _nested(depth: int, core: Any) -> Any:
    for level in range(depth):
        core = [core] if level % 2 else {"x": core}
    return core


def test_60_levels_are_fine_and_a_million_are_refused() -> None:
    deep = _nested(60, TENSOR)
    _round_trip(deep)
    assert [len(path) for path, _ in walk_tensors(_load(deep))] == [60]
    schema.check_entry("k", deep, "d")
    abyss: Any = []
    for _ in range(100_000):
        abyss = [abyss]
    with pytest.raises(UnsafeInputError, match="entry 'k'"):
        schema.load_entry("k", abyss, "dump.json")
    with pytest.raises(SchemaError, match="containers"):
        schema.check_entry("k", abyss, "dump.json")
    node: Any = ()
    for _ in range(1000):
        node = (node, None)
    with pytest.raises(UnsafeInputError):
        list(walk_tensors(node))
    with pytest.raises(UnsafeInputError):
        schema.dump_entry(Entry("k", node))
    while abyss:  # a list this deep cannot even be freed at once by every Python
        abyss = abyss.pop()


# --- strict checks and the JSON Schema files -------------------------------------------------------------------------

DOCUMENTS: dict[str, Any] = {
    "dump": {
        "task": "tensor",
        "level": "mix",
        "framework": "pytorch",
        "dump_data_dir": None,
        "data": {
            "Functional.relu.0.forward": {
                "input_args": [copy.deepcopy(TENSOR), {"type": "int", "value": 3}, None, [[]]],
                "input_kwargs": {"a/b": {"type": "torch.memory_format", "format": "x"}, "dtype": {}},
                "is_recompute": False,
                "output": [{"type": "torch.ProcessGroup"}],
            },
            "x.0.debug": None,
            "y.0.debug": copy.deepcopy(TENSOR),
        },
    },
    "debug": {
        "task": "tensor",
        "level": "debug",
        "framework": "mindspore",
        "dump_data_dir": "/d",
        "data": {"x.0": [copy.deepcopy(TENSOR)]},
    },
    "stack": {"0": [["a", "b"], ["frame"]], "1": [[], []]},
    "construct": {"a": None, "b": "a"},
}
_REPLACEMENTS = [
    None, True, 3, -1, 1.5, math.nan, "", "text", "NaN", "a/b", "0123abcd", "0x0123456789abcdef",
    [], ["a"], [3], [[]], {},
    {"type": "x"}, {"type": 5}, {"type": "x", "value": 1}, {"type": "x", "shape": []}, {"value": 3}, TENSOR,
]  # fmt: skip


def _places(value: Any) -> Iterator[tuple[Any, Any]]:
    pairs = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, child in pairs:
        yield value, name
        yield from _places(child)


def _mutations(document: Any) -> Iterator[Any]:
    """The document with one value replaced, removed, or added."""
    for number, (_, _) in enumerate(list(_places(document))):
        for change in range(len(_REPLACEMENTS) + 2):
            mutant = copy.deepcopy(document)
            parent, name = list(_places(mutant))[number]
            if change < len(_REPLACEMENTS):
                parent[name] = copy.deepcopy(_REPLACEMENTS[change])
            elif change == len(_REPLACEMENTS):
                del parent[name]
            elif isinstance(parent, dict):
                parent["unknown"] = parent[name]
            else:
                parent.append(parent[name])
            yield mutant
    yield from _REPLACEMENTS


def _accepts(check: Callable[[Any], None], obj: Any) -> bool:
    try:
        check(obj)
    except (SchemaError, jsonschema.ValidationError):
        return False
    return True


@pytest.mark.parametrize("name", DOCUMENTS)
def test_checks_and_json_schema_agree_on_mutants(name: str) -> None:
    judge = jsonschema.Draft202012Validator(schema.json_schema(name))
    verdicts = {True: 0, False: 0}
    for mutant in _mutations(DOCUMENTS[name]):
        expected = judge.is_valid(mutant)
        assert _accepts(lambda obj: schema.check_document(name, obj, "d"), mutant) == expected, mutant
        verdicts[expected] += 1
    assert min(verdicts.values()) >= 10, verdicts


@pytest.mark.parametrize("name", DOCUMENTS)
def test_json_schemas_are_valid_and_self_contained(name: str) -> None:
    loaded = schema.json_schema(name)
    jsonschema.Draft202012Validator.check_schema(loaded)
    jsonschema.validate(DOCUMENTS[name], loaded)
    assert loaded["$schema"] == "https://json-schema.org/draft/2020-12/schema"
    schema.check_document(name, DOCUMENTS[name], "d")


def test_unknown_documents_have_no_schema() -> None:
    for ask in (schema.json_schema, lambda name: schema.check_document(name, {}, "d")):
        with pytest.raises(FormatError, match="construct"):
            ask("../dump")


@pytest.mark.parametrize(
    ("change", "pointer", "expected", "found"),
    [
        (lambda d: d.pop("task"), "", "the key 'task'", "without it"),
        (lambda d: d.update(framework="caffe"), "/framework", "pytorch", "'caffe'"),
        (lambda d: d.update(data=[]), "/data", "an object", "an array"),
        (lambda d: d["data"]["y.0.debug"].update(shape=[2, -1]), "/data/y.0.debug/shape", "lengths", "an array"),
        (lambda d: d["data"]["y.0.debug"].update(Max="nan"), "/data/y.0.debug/Max", "a number", "'nan'"),
        (
            lambda d: d["data"]["y.0.debug"].update(data_name="../x"),
            "/data/y.0.debug/data_name",
            "a file name",
            "'../x'",
        ),
        (lambda d: d["data"].update({"a/b~": {"x": [5]}}), "/data/a~1b~0/x/0", "a record", "a number 5"),
        (lambda d: d["data"].update({"k": {"x": {1: None}}}), "/data/k/x", "strings", "the key 1"),
        (lambda d: d["data"].update({"k": {"type": "int"}}), "/data/k", "a value", "'type'"),
    ],
)
def test_errors_say_where_and_what(change: Callable[[Any], Any], pointer: str, expected: str, found: str) -> None:
    document = copy.deepcopy(DOCUMENTS["dump"])
    change(document)
    with pytest.raises(SchemaError) as caught:
        schema.check_dump(document, "dump.json")
    assert caught.value.pointer == pointer
    assert expected in caught.value.expected
    assert found in caught.value.found
