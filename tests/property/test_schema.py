"""Loading and dumping are inverse, for what msprobe writes and for anything else."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

from msformat import schema
from msformat.errors import SchemaError
from msformat.model import Entry, Opaque, Scalar, TensorMeta, walk_nodes

# Names the format knows, so that records come out whole, odd, or nearly right.
_record = ["type", "dtype", "shape", "Max", "Min", "Mean", "Norm", "requires_grad", "md5", "data_name"]
_scalar = ["value", "format", "group_ranks", "is_recompute", "input_args"]
_header = ["task", "level", "framework", "dump_data_dir", "data"]
_known = st.sampled_from([*_record, *_scalar, *_header])
_keys = _known | st.text(max_size=4)
_leaves = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=4) | st.just("NaN")
_json = st.recursive(
    _leaves, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_keys, inner, max_size=5), max_leaves=20
)


def _shuffled(required: dict[str, Any], optional: dict[str, Any]) -> st.SearchStrategy[dict[str, Any]]:
    """Records with their keys in any order and unknown ones at any place."""
    known = st.fixed_dictionaries(required, optional=optional)
    whole = st.tuples(known, st.dictionaries(st.text(max_size=3), _json, max_size=2)).map(
        lambda both: both[1] | both[0]
    )
    return whole.flatmap(lambda record: st.permutations(list(record.items())).map(dict))


_statistic = st.none() | st.booleans() | st.integers() | st.floats() | st.just("NaN")
_tensors = _shuffled(
    {"type": st.just("torch.Tensor"), "dtype": st.text(), "shape": st.lists(st.integers(0, 9), max_size=3)},
    dict.fromkeys(["Max", "Min", "Mean", "Norm"], _statistic | _json)
    | {"requires_grad": st.booleans() | _json, "md5": st.text() | _json, "data_name": st.text() | _json},
)
_scalars = _shuffled({"type": st.text()}, dict.fromkeys(["value", "format", "group_ranks"], _json))
_nodes = st.recursive(
    st.none() | _tensors | _scalars | _leaves,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_keys, inner, max_size=3),
    max_leaves=8,
)


def _text(obj: Any) -> str:
    """Order of keys, types and NaN included."""
    return json.dumps(obj)


@settings(max_examples=200, deadline=None)
@given(_nodes | _json)
def test_entries_come_back_as_they_were(obj: Any) -> None:
    before = _text(obj)
    entry = schema.load_entry("k", obj, "d")
    assert _text(schema.dump_entry(entry)) == before
    assert _text(obj) == before


@settings(max_examples=100, deadline=None)
@given(_tensors)
def test_a_whole_record_is_always_a_tensor(record: dict[str, Any]) -> None:
    assert isinstance(schema.load_node(record), TensorMeta)


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(_keys, _json, max_size=7))
@example({})
@example({"data": {}})
@example({"task": "", "dump_data_dir": None})
@example({"dump_data_dir": False, "data": None, "task": 0})
def test_headers_come_back_as_they_were(obj: dict[str, Any]) -> None:
    if isinstance(obj.get("data"), dict):
        obj["data"] = {}
    assert _text(schema.dump_header(schema.load_header(obj))) == _text(obj)


@settings(max_examples=200, deadline=None)
@given(_nodes | _json)
def test_what_passes_the_strict_check_has_nothing_opaque(obj: Any) -> None:
    try:
        schema.check_entry("k", obj, "d")
    except SchemaError:
        return
    for path, leaf in walk_nodes(schema.load_node(obj)):
        assert path == ("is_recompute",) or not isinstance(leaf, Opaque)


@settings(max_examples=200, deadline=None)
@given(_nodes)
def test_a_second_load_gives_equal_values(obj: Any) -> None:
    first = schema.load_entry("k", obj, "d")
    second = schema.load_entry("k", schema.dump_entry(first), "d")
    assert repr(first) == repr(second)
    assert isinstance(first, Entry)


def test_key_order_of_scalars_is_kept() -> None:
    record = {"value": 1, "note": "x", "type": "int"}
    scalar = schema.load_node(record)
    assert isinstance(scalar, Scalar)
    assert list(schema.dump_node(scalar)) == ["value", "note", "type"]
