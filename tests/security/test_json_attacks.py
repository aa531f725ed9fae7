"""Documents made to exhaust, crash or mislead a reader: each ends in a named error, soon."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from msformat.documents import ConstructDocument, DumpDocument, StackDocument, salvage
from msformat.errors import FormatError, SchemaError, UnsafeInputError
from msformat.jsontext import parse_json

DEEP = 200_000

_parsers: list[Callable[[bytes, str], Any]] = [
    parse_json,
    DumpDocument.parse,
    StackDocument.parse,
    ConstructDocument.parse,
    salvage,
]


@pytest.mark.parametrize("parse", _parsers)
@pytest.mark.parametrize(
    "data",
    [
        b"[" * DEEP,
        b"[" * DEEP + b"]" * DEEP,
        b'{"data":' + b'{"a":' * DEEP + b"1" + b"}" * DEEP + b"}",
        b'{"data": {"k": ' + b"[" * DEEP + b"NaN" + b"]" * DEEP + b"}}",
        b'{"data": {"k\\ud800": ' + b"[" * DEEP + b"]" * DEEP + b"}}",
        b'{"task": ' + b"[" * DEEP + b"]" * DEEP + b"}",
    ],
)
def test_nesting_never_ends_in_a_recursion_error(parse: Callable[[bytes, str], Any], data: bytes) -> None:
    try:
        result = parse(data, "dump.json")
    except FormatError:
        return
    # Salvage reports instead of raising; it must not claim to have read the deep value.
    assert parse is salvage
    assert result[1]


def test_an_entry_deeper_than_the_cap_is_refused_when_it_is_asked_for() -> None:
    deep = b"[" * 400 + b"]" * 400
    document = DumpDocument.parse(b'{"data": {"good": null, "deep": ' + deep + b"}}", "dump.json")
    assert document["good"].value is None
    with pytest.raises(UnsafeInputError, match="'deep'"):
        document["deep"]


def test_a_raised_recursion_limit_does_not_let_the_stack_overflow() -> None:
    script = f"""
import sys
sys.setrecursionlimit(10**7)
from msformat.documents import DumpDocument
from msformat.errors import UnsafeInputError
from msformat.jsontext import parse_json
n = {DEEP * 5}
for parse, data in ((parse_json, b"[" * n), (DumpDocument.parse, b'{{"data": {{"k": ' + b"[" * n + b"]" * n + b"}}}}")):
    try:
        parse(data, "x")
    except UnsafeInputError:
        continue
    sys.exit(3)
"""
    done = subprocess.run([sys.executable, "-c", script], check=False, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("digits", [5_000, 2_000_000])
@pytest.mark.parametrize("sign", [b"", b"-"])
def test_an_endless_integer_is_a_named_error(digits: int, sign: bytes) -> None:
    number = sign + b"1" * digits
    started = time.monotonic()
    with pytest.raises(UnsafeInputError, match="digits"):
        parse_json(b"[" + number + b"]", "x")
    document = DumpDocument.parse(b'{"data": {"k": [' + number + b', NaN], "good": null}}', "dump.json")
    with pytest.raises(UnsafeInputError, match="digits"):
        document["k"]
    assert document["good"].value is None
    assert time.monotonic() - started < 5


@pytest.mark.parametrize(
    "data",
    [
        b'{"data": {"k": "' + b'\\"' * 200_000,
        b'{"data": {"k": "' + b"NaN" * 200_000,
        b'{"data": {"k": [' + b'"NaN\\"",' * 100_000,
        b'{"data": {"k": [' + b"NaN," * 100_000,
        b'{"data": {"k": [' + b'"NaN", NaN,\n' * 100_000,
        b'{"data": {' + b',\n  "' * 100_000,
        b'"' * 1_000_000,
        b"\0" * 1_000_000,
        b'{"a": "' + b"\\" * 1_000_001,
    ],
)
def test_reading_and_salvage_take_linear_time(data: bytes) -> None:
    started = time.monotonic()
    with pytest.raises(SchemaError):
        DumpDocument.parse(data, "dump.json")
    salvage(data, "dump.json")
    assert time.monotonic() - started < 10


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b" ",
        b"null",
        b"[]",
        b"7",
        b"NaN",
        b'"data"',
        b"\xff\xfe{}",
        b"{",
        b'{"data": 5}',
        b'{"data": []}',
        b'{"data": NaN}',
    ],
)
def test_what_is_no_dump_document_is_a_schema_error(data: bytes) -> None:
    with pytest.raises(SchemaError, match=r"dump\.json"):
        DumpDocument.parse(data, "dump.json")


def test_bytes_that_are_not_utf8_are_named_with_the_entry() -> None:
    document = DumpDocument.parse(b'{"data": {"bad": {"type": "str", "value": "\xff"}, "good": null}}', "dump.json")
    assert document["good"].value is None
    with pytest.raises(SchemaError, match=r"'bad'.*UTF-8"):
        document["bad"]
    with pytest.raises(SchemaError, match="UTF-8"):
        DumpDocument.parse(b'{"data": {"\xff": null}}', "dump.json")


def test_a_raw_line_break_in_a_string_fools_nobody() -> None:
    """Line breaks end the search for quotes; a text that has one inside a string is no JSON anyway."""
    for data in (b'{"data": {"a\n NaN ": null}}', b'{"data": {"a": ["x\n, NaN ,"], "b": NaN}}'):
        with pytest.raises(SchemaError):
            DumpDocument.parse(data, "dump.json")


_SEED = {
    "task": "NaN",
    "data": {
        "a NaN": {"input": [1.5, math.nan, 'NaN, \\" Infinity', -math.inf], "empty": [{}, [], None, True]},
        "b\\": -0.25,
        "é": "\ud800",
    },
    "late": {"x": -12},
}
_splices = st.lists(
    st.tuples(
        st.integers(0, 260),
        st.integers(0, 3),
        st.sampled_from(
            [
                b"",
                b'"',
                b"\\",
                b",",
                b"}",
                b"{",
                b"[",
                b"]",
                b":",
                b"\n",
                b" ",
                b"NaN",
                b"-",
                b"0",
                b"1e999",
                b"\xff",
                b"\0",
            ]
        ),
    ),
    max_size=3,
)


def _read_all(text: bytes) -> tuple[list[str], str]:
    document = DumpDocument.parse(text, "dump.json")
    return list(document), repr([document.json(key) for key in document])


def _expected(text: bytes) -> tuple[list[str], str] | None:
    """What Python's json says; None where it refuses."""
    try:
        obj = json.loads(text.decode("utf-8"))
    except ValueError:
        return None
    data = obj.get("data", {}) if isinstance(obj, dict) else 0
    if data is not None and not isinstance(data, dict):
        return None
    return list(data or {}), repr(list((data or {}).values()))


@settings(max_examples=600, deadline=None)
@given(_splices, st.sampled_from([None, 1]), st.booleans(), st.booleans())
def test_damaged_text_is_read_as_python_reads_it_or_refused(
    splices: list[tuple[int, int, bytes]], indent: int | None, surrogate: bool, constants: bool
) -> None:
    text = json.dumps(_SEED, indent=indent).encode()
    if not surrogate:
        text = text.replace(b"\\ud800", b"x")
    if not constants:
        text = text.replace(b": NaN", b": 1").replace(b", NaN,", b", 2,").replace(b"-Infinity]", b"3]")
    for place, length, new in splices:
        text = text[:place] + new + text[place + length :]
    expected = _expected(text)
    try:
        found = _read_all(text)
    except FormatError:
        assert expected is None
    else:
        assert found == expected
