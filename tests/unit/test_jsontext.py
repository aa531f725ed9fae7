"""jsontext against Python's own json, which msprobe writes with."""

from __future__ import annotations

import json
import math
import re
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from msformat.errors import FormatError, SchemaError, UnsafeInputError
from msformat.jsontext import (
    canonical,
    compact,
    find_constants,
    indent,
    mask_constants,
    parse_json,
    parse_object,
    quick_compact,
)

# Words that look like tokens, pieces of escapes, and half of a surrogate pair: what a text search stumbles over.
_awkward = st.sampled_from(
    [
        "NaN",
        ": NaN,",
        '"',
        "\\",
        '\\"',
        '\\\\"',
        "-Infinity",
        "Infinity]",
        "\n",
        "100e1",
        "\ud800",
        "\udc00",
        "é",
        "梯度",
        "\0",
        "\x7f",
        ",1e-5,",
        "[0.00001]",
        '":1e-5,',
    ]
)
_texts = st.lists(_awkward | st.text(max_size=3), max_size=4).map("".join)
_floats = st.floats() | st.sampled_from([1e-05, 1e16, 1e22, -0.0, 5e-324, 1.7976931348623157e308, math.nan, -math.inf])
_leaves = st.none() | st.booleans() | st.integers() | st.integers(-(10**60), 10**60) | _floats | _texts
_values = st.recursive(
    _leaves, lambda inner: st.lists(inner, max_size=4) | st.dictionaries(_texts, inner, max_size=4), max_leaves=25
)


def _same(left: Any, right: Any) -> bool:
    """Equal, the types too, and NaN equal to itself."""
    return repr(left) == repr(right)


@settings(max_examples=250, deadline=None)
@given(_values)
@example([])
@example({})
@example({"a": [], "b": {}, "c": [[{}]]})
@example([math.nan, "\ud800", "NaN"])
@example({"100e1": math.nan, "101e1": math.inf})
@example([10**4000, -(10**30)])
def test_canonical_equals_json_dumps(obj: Any) -> None:
    assert canonical(obj) == json.dumps(obj, indent=1).encode()


@settings(max_examples=100, deadline=None)
@given(_values)
def test_compact_equals_json_dumps_without_spaces(obj: Any) -> None:
    text = compact(obj)
    assert text == json.dumps(obj, separators=(",", ":")).encode()
    assert b"\n" not in text


# Plain texts mostly, so that the quick way is not left at once; numbers at the borders of Python's spellings.
_plain_floats = st.floats(allow_nan=False, allow_infinity=False) | st.floats(-1e-3, 1e-3) | st.floats(1e14, 1e18)
_plain_values = st.recursive(
    st.none() | st.booleans() | st.integers() | _plain_floats | _floats | st.sampled_from(["a", ",1e-5,", ":1e5"]),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(["Max", "e", ":1e5", "x"]), inner),
    max_leaves=12,
)


@settings(max_examples=400, deadline=None)
@given(_plain_values | _values)
@example({"Max": 1e-05, "Min": 1e16, "Mean": -9.99e-05, "Norm": 0.0001, "e": 1.5e300, "f": -0.0})
@example({"a": [1e-05]})
@example([None, {"a": math.nan}])
@example({"a": None, "b": -math.inf})
@example(1e-05)
@example({":1e5": ":1e5,", ":": 1e-05, "": 1e-05})
def test_quick_compact_equals_compact(obj: Any) -> None:
    assert quick_compact(obj) == compact(obj)
    assert indent(quick_compact(obj)) == json.dumps(obj, indent=1).encode()


def test_quick_compact_leaves_odd_things_to_compact() -> None:
    circular: list[Any] = []
    circular.append(circular)
    deep: Any = None
    for _ in range(100_000):
        deep = [deep]
    for refused in (circular, deep, {"a": object()}):
        with pytest.raises(FormatError):
            quick_compact(refused)
    for odd in ({"a": 10**5000}, {"a": np.float32(0.1), "b": np.float64(1e-5), "c": np.int64(3)}, {"a": (1, 2)}):
        assert quick_compact(odd) == compact(odd)
    while deep:
        deep = deep[0]


@settings(max_examples=200, deadline=None)
@given(_values, st.sampled_from([None, 1, 4]), st.booleans(), st.booleans())
def test_parse_json_equals_json_loads(obj: Any, indent: int | None, ascii_only: bool, crlf: bool) -> None:
    text = json.dumps(obj, indent=indent, ensure_ascii=ascii_only)
    if crlf:
        text = text.replace("\n", "\r\n")
    try:
        data = text.encode()
    except UnicodeEncodeError:  # a lone surrogate has no UTF-8
        data = json.dumps(obj).encode()
    assert _same(parse_json(data, "x.json"), json.loads(data))


def _constants_by_tokenising(text: bytes) -> list[int]:
    """The slow, obvious way: skip strings whole."""
    pattern = re.compile(rb'"(?:[^"\\]|\\.)*"|(NaN|Infinity)', re.DOTALL)
    return [found.start(1) for found in pattern.finditer(text) if found.group(1)]


@settings(max_examples=250, deadline=None)
@given(_values, st.sampled_from([None, 1]), st.booleans())
def test_constants_are_found_outside_of_strings_only(obj: Any, indent: int | None, crlf: bool) -> None:
    text = json.dumps(obj, indent=indent).encode()
    if crlf:
        text = text.replace(b"\n", b"\r\n")
    assert find_constants(text) == _constants_by_tokenising(text)


@settings(max_examples=200, deadline=None)
@given(_values)
def test_masked_text_is_strict_json_of_the_same_length(obj: Any) -> None:
    text = json.dumps(obj, indent=1).encode()
    masked = mask_constants(text)
    if masked is None:
        return

    def refuse(token: str) -> Any:
        raise AssertionError(token)

    assert len(masked.text) == len(text)
    json.loads(masked.text, parse_constant=refuse)


@pytest.mark.parametrize(
    "text", [b"[1NaN]", b"[NaN5]", b"[-NaN]", b"[xNaN]", b"[NaNa]", b"[5-Infinity]", b"[--Infinity]", b"[Infinity.0]"]
)
def test_masking_makes_no_json_out_of_what_is_none(text: bytes) -> None:
    with pytest.raises(SchemaError, match="expected JSON"):
        parse_json(text, "x.json")
    masked = mask_constants(text)
    if masked is not None:
        with pytest.raises(ValueError, match=r"."):
            json.loads(masked.text)


@pytest.mark.parametrize(
    ("data", "expected", "found"),
    [
        (b"", "JSON", "at byte 0 of 0"),
        (b'{"a": [1, 2', "JSON", "at byte 11 of 11"),
        (b'{"a": 1} x', "JSON", "Extra data at byte 9"),
        ('{"é": tru}'.encode(), "JSON", "at byte 7"),
        (b'\xef\xbb\xbf{"a": 1}', "UTF-8 without a byte order mark", "byte order mark"),
        ('{"a": 1}'.encode("utf-16"), "UTF-8 without a byte order mark", "byte order mark"),
        (b'{"a": "\xff"}', "UTF-8", "at byte 7"),
    ],
)
def test_what_is_no_json_is_named_with_its_place(data: bytes, expected: str, found: str) -> None:
    with pytest.raises(SchemaError) as caught:
        parse_json(data, "dump.json")
    assert caught.value.expected == expected
    assert found in caught.value.found
    assert "dump.json" in str(caught.value)


@pytest.mark.parametrize("data", [b"[]", b"null", b"3", b'"text"', b"NaN"])
def test_parse_object_wants_an_object(data: bytes) -> None:
    with pytest.raises(SchemaError, match="expected an object"):
        parse_object(data, "dump.json")


def test_depth_is_counted_in_containers() -> None:
    assert parse_json(b"[[1]]", "x", max_depth=2) == [[1]]
    assert parse_json(b"1", "x", max_depth=0) == 1
    with pytest.raises(UnsafeInputError, match="2 deep"):
        parse_json(b'[{"a": []}]', "x", max_depth=2)


def test_numbers_out_of_range_read_as_python_reads_them() -> None:
    assert parse_json(b"[1e400, -1e400, 1e-400]", "x") == [math.inf, -math.inf, 0.0]
    assert canonical(parse_json(b"[1e400, -0]", "x")) == json.dumps(json.loads("[1e400, -0]"), indent=1).encode()


@pytest.mark.parametrize("obj", [{1, 2}, {"a": object()}, {(1, 2): 3}])
def test_what_json_cannot_hold_is_a_format_error(obj: Any) -> None:
    with pytest.raises(FormatError, match="cannot be written as JSON"):
        compact(obj)


def test_an_object_that_holds_itself_is_a_format_error() -> None:
    loop: list[Any] = []
    loop.append(loop)
    with pytest.raises(FormatError):
        canonical(loop)
