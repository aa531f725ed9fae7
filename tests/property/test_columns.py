"""Columns say what views of entries say, whatever the entries: the slow path is the judge of the fast one."""

from __future__ import annotations

import json
import math
import tempfile
import warnings
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from hypothesis import example, given, settings
from hypothesis import strategies as st

import msformat
from msformat.columnbuild import ColumnBuilder
from msformat.columnfile import ColumnFile, decode_columns, encode_columns
from msformat.errors import FormatError
from msformat.names import is_plain_call, parse_entry
from msformat.table import MISSING, Table
from tests.property.test_schema import _json, _nodes

_STATISTICS = ("Max", "Min", "Mean", "Norm")
_parts = st.sampled_from(
    ["Module", "Cell", "Functional", "x", "Linear", "forward", "backward", "parameters_grad", "debug", "0", "12", ""]
)
_entry_keys = st.lists(_parts, min_size=1, max_size=7).map(".".join) | st.text(max_size=5)
_slots = st.sampled_from(["input_args", "input_kwargs", "output", "parameters", "is_recompute", "", "a.b"])
_values = _nodes | _json | st.dictionaries(_slots | st.text(max_size=3), _nodes, max_size=4)
_records: st.SearchStrategy[dict[str, Any]] = st.fixed_dictionaries(
    {"type": st.just("torch.Tensor"), "dtype": st.just("torch.float32"), "shape": st.just([2])},
    optional={
        "Max": st.sampled_from([1, 2**53, 2**53 + 1, -(2**70), True, None, "nan", "x", 0.1, 1e300, -0.0, math.nan, []]),
        "md5": st.sampled_from(["0123abcd", "0123ABCD", "0x12", " 123abcd", "", None, 3]),
        "data_name": st.sampled_from(["k.output.0.pt", "other.pt", "", None, 1]),
    },
)
_documents = st.dictionaries(_entry_keys, _values | st.lists(_records, max_size=4), max_size=4)


def _spelled(value: Any) -> str:
    """Type and value; NaN and -0.0 as they are, missing told from the empty text."""
    return "missing" if value is MISSING else f"{type(value).__name__}:{value!r}"


def _spelled_all(values: Iterable[Any]) -> list[str]:
    return list(map(_spelled, values))


def _rows(table: Table) -> list[list[str]]:
    return list(map(_spelled_all, table))


def _slow(unit: msformat.Unit) -> Table:
    return Table.of_tensors(unit.tensors())


@settings(max_examples=300, deadline=None)
@given(_documents)
@example({"k": {"type": "torch.Tensor", "dtype": "d", "shape": [1]}})
@example({"Module.x.Linear.parameters_grad": {"w": [{"type": "t", "dtype": "d", "shape": [], "Max": 1.0}], "": []}})
@example({"x.0": {"output": [{"type": "t", "dtype": "d", "shape": [True]}, {"type": "t", "dtype": "d", "shape": [1]}]}})
@example({"\ud800": [{"type": "\udfff", "dtype": "d", "shape": [2**80], "md5": "\ud800", "data_name": "\ud800x"}]})
def test_the_table_is_that_of_the_entries(data: dict[str, Any]) -> None:
    with tempfile.TemporaryDirectory() as root, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        path = Path(root, "step0", "rank", "dump.json")
        path.parent.mkdir(parents=True)
        header = {"task": "statistics", "level": "mix", "framework": "pytorch", "dump_data_dir": None}
        path.write_text(json.dumps({**header, "data": data}, indent=1))
        unit = msformat.open(root)[0, None]
        fast, slow = unit.table(), _slow(unit)
        assert _rows(fast) == _rows(slow)
        plain = Table({name: slow[name] for name in _STATISTICS})
        for name in _STATISTICS:
            assert _spelled_all(fast.numbers(name).filled(7.5)) == _spelled_all(plain.numbers(name).filled(7.5))


@settings(max_examples=200, deadline=None)
@given(_documents)
def test_an_index_gives_back_what_went_in(data: dict[str, Any]) -> None:
    builder = ColumnBuilder()
    for key, value in data.items():
        builder.add(key, value)
    columns = builder.finish()
    file = ColumnFile("dump.json", 1 << 40, "digest", "seal", columns)
    encoded = encode_columns(file)
    found = decode_columns(encoded)
    assert encode_columns(found) == encoded
    assert found.columns.keys == columns.keys
    for before, after in zip(columns.table_columns().values(), found.columns.table_columns().values(), strict=True):
        assert _spelled_all(before.objects()) == _spelled_all(after.objects())


@settings(max_examples=200, deadline=None)
@given(st.dictionaries(_entry_keys, _values, min_size=1, max_size=2), st.data())
def test_a_damaged_index_is_refused(data: dict[str, Any], draw: st.DataObject) -> None:
    builder = ColumnBuilder()
    for key, value in data.items():
        builder.add(key, value)
    whole = encode_columns(ColumnFile("dump.json", 1 << 40, "digest", "seal", builder.finish()))
    encoded = bytearray(whole)
    at = draw.draw(st.integers(0, len(encoded) - 1))
    encoded[at] ^= draw.draw(st.integers(1, 255))
    try:
        found = decode_columns(bytes(encoded))
    except FormatError:
        return
    # Other space may stand where some aligns the data.
    assert encode_columns(found) == whole


@settings(max_examples=500, deadline=None)
@given(_entry_keys)
def test_a_plain_call_is_neither_saved_nor_gradients(key: str) -> None:
    if is_plain_call(key):
        name = parse_entry(key)
        assert name is None or (name.order != "saved" and name.stage != "parameters_grad")
