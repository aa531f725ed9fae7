"""Large documents are indexed piece by piece: json is the judge, and a layout that only looks right is no trap."""

from __future__ import annotations

import json
import mmap
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st

from msformat import jsonstream
from msformat.documents import DumpDocument
from msformat.errors import FormatError
from msformat.jsonstream import stream_index
from msformat.schema import dump_header

HEADER = {"task": "statistics", "level": "mix", "framework": "pytorch", "dump_data_dir": None}


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that a few lines are a large document of many pieces."""
    monkeypatch.setattr(jsonstream, "_LEAST", 1)
    monkeypatch.setattr(jsonstream, "_PIECE", 64)


def _spelled(value: Any) -> str:
    """Types, order, NaN and -0.0 included."""
    return json.dumps(value)


def _check(text: bytes) -> None:
    """The document is what json says, or refused by both."""
    try:
        expected = json.loads(text)
        assert isinstance(expected["data"], dict)
    except (ValueError, KeyError, TypeError, AssertionError):
        return
    document = DumpDocument.parse(text, "d")
    assert list(document) == list(expected["data"])
    assert [_spelled(document.json(key)) for key in document] == list(map(_spelled, expected["data"].values()))
    assert _spelled(dump_header(document.header)) == _spelled({**expected, "data": {}})


_values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5) | st.just('\n  "x": 1,\n }'),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=12,
)
_keys = st.text(max_size=6) | st.sampled_from(["a", "b\\", 'c"', '": ', "中文", "\ud800", "data", ""])


@settings(max_examples=300, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.dictionaries(_keys, _values, min_size=1), st.booleans(), st.booleans(), st.none() | _values)
@example({"a": {"data": {"b": 1}}}, False, True, {"data": {"x": {}}})
def test_documents_are_what_json_says(data: dict[str, Any], is_ascii: bool, is_last: bool, more: Any) -> None:
    document = {**HEADER, "data": data, "more": more} if not is_last else {**HEADER, "more": more, "data": data}
    try:
        text = json.dumps(document, indent=1, ensure_ascii=is_ascii).encode()
    except UnicodeEncodeError:  # lone surrogates are escaped, or no UTF-8
        text = json.dumps(document, indent=1).encode()
    _check(text)


@pytest.mark.parametrize("value", [float("nan"), float("-inf"), "NaN", 1.5])
def test_the_stream_is_used(value: Any) -> None:
    data = {f"Functional.relu.{at}.forward": {"output": [{"Max": value, "shape": [at]}]} for at in range(50)}
    text = json.dumps({**HEADER, "data": data}, indent=1).encode()
    found = stream_index(text)
    assert found is not None
    assert json.loads(found.outline) == {**HEADER, "data": {}}
    assert [_spelled(json.loads(bytes(part))) for part in found.entries.values()] == list(map(_spelled, data.values()))


@pytest.mark.parametrize(
    "text",
    [
        b'{\n "task": {\n "data": {\n  "a": 1\n }\n },\n "data": {}\n}',
        b'{\n "x": {\n "data": {\n  "a": 1\n }\n}, "data": {"b": 2}\n }',
        b'{\n "data": {\n  "a": {\n  "b": 1,\n  "c": 2},\n  "d": 3\n }\n}',
        b'{\n "data": {\n  "a": [1,\n  "b"],\n  "c": "x"\n }\n}',
        b'{\n "data": {\n  "a":    [1,2],"b":3,"c":4,"d":5,\n  "e": 6\n }\n}',
        b'{\n "data": {\n  "a": 1,\n  "a": 2,\n  "b": 3\n }\n}',
        b'{\n "data": {\n  "a": 1\n },\n "data": {\n  "b": 1\n }\n}',
        b'{\n "data": {\n  "a": 1\n },\n "more": {\n  "b": {\n }\n }\n}',
        b'{\n "data": {\n  "a": 1   ,\n  "b": 2   \n }\n}',
        b'{\n "data": {\n  "\\u0061\\"b": 1,\n  "c\\\\": 2\n }\n}',
        b'{\n "data": {\n  "a": "' + b"x" * 5000 + b'",\n  "b": 2\n }\n}',
    ],
)
def test_a_layout_that_looks_right_is_no_trap(text: bytes) -> None:
    json.loads(text)
    _check(text)


@pytest.mark.parametrize("cut", range(1, 140, 7))
def test_what_is_cut_off_is_refused(cut: int) -> None:
    text = json.dumps({**HEADER, "data": {"a": {"b": [1, 2, 3]}, "c": {"d": "e"}}}, indent=1).encode()
    with pytest.raises(FormatError):
        DumpDocument.parse(text[:-cut], "d")


def test_a_map_gives_its_memory_back_and_stays_readable(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(jsonstream, "_MAPPED", 1 << 12)
    data = {f"k{at}": {"x": "y" * 100, "n": at} for at in range(500)}
    path = tmp_path / "dump.json"
    path.write_text(json.dumps({**HEADER, "data": data}, indent=1))
    with path.open("rb") as stream:
        text = memoryview(mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ))
    document = DumpDocument.parse(text, "d")
    assert {key: document.json(key) for key in document} == data
    assert document.json("k3") == data["k3"]


_CHILD = """
import re, sys
import msformat
with msformat.open(sys.argv[1])[0, None] as unit:
    count = sum(1 for key in unit)
    for entry in unit.values():
        pass
    # What getrusage says would begin with the memory of this process's parent.
    print(count, int(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1]) * 1024)
"""


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="how memory is counted")
def test_memory_is_a_fraction_of_a_large_document(tmp_path: Path) -> None:
    """A document of 400 MB, with few entries so that the test is quick: read to its end in less than half of that."""
    path = tmp_path / "step0" / "rank" / "dump.json"
    path.parent.mkdir(parents=True)
    filler = json.dumps({"x": {"input_args": [{"type": "str", "value": "y" * 200}] * 2000}}, indent=1)[1:-2]
    header = json.dumps(HEADER, indent=1)[:-2]
    with path.open("w") as stream:
        stream.write(header + ',\n "data": {')
        body = "\n".join(f" {line}" for line in filler.split("\n")[1:])
        for at in range(800):
            stream.write(("," if at else "") + "\n" + body.replace('"x"', f'"Functional.f.{at}.forward"', 1))
        stream.write("\n }\n}")
    size = path.stat().st_size
    assert size > 300 << 20
    done = subprocess.run([sys.executable, "-c", _CHILD, tmp_path], capture_output=True, text=True, check=True)
    count, peak = map(int, done.stdout.split())
    assert count == 800
    assert peak < size / 2
