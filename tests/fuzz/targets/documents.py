"""dump.json: json is the judge, the reader of pieces and that of the whole agree, and every entry comes back."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

from msformat import jsonindex, jsonstream, schema
from msformat.documents import DumpDocument, encode_dump, salvage
from msformat.errors import FormatError, MsformatError
from msformat.jsonindex import Index
from tests.fuzz.mutators import change_json
from tests.fuzz.samples import golden_members
from tests.fuzz.target import Target

_SMALL_PIECE = 256


def check(data: bytes, place: Path) -> None:
    """A document that a stranger made."""
    whole, pieces = _index(data, pieces=False), _index(data, pieces=True)
    assert (whole is None) == (pieces is None)
    if whole is not None and pieces is not None:
        assert _listed(whole) == _listed(pieces)
    try:
        document = DumpDocument.parse(data, "d")
    except MsformatError:
        _check_salvage(data)
        return
    _check_entries(document, data)
    _check_salvage(data[: len(data) * 2 // 3])


def _index(data: bytes, *, pieces: bool) -> Index | None:
    least = 1 if pieces else 1 << 62
    with mock.patch.multiple(jsonstream, _LEAST=least, _PIECE=_SMALL_PIECE):
        try:
            return jsonindex.index_document(data, "d")
        except MsformatError:
            return None


def _listed(index: Index) -> list[Any]:
    """Keys, order and bytes."""
    parts = [(key, bytes(part)) for key, part in index.entries.items()]
    return [list(index.header), parts, index.repeated]


def _check_entries(document: DumpDocument, data: bytes) -> None:
    try:
        expected = json.loads(data)
    except ValueError:
        # An entry is looked into when it is asked for; until then the others are as good as ever.
        assert document.problems or not all(_decodes(document, key) for key in document)
        return
    entries = expected.get("data") or {}
    # A key that occurs twice keeps its first place in json, and so it does here.
    assert list(document) == list(entries)
    try:
        values = {key: document.json(key) for key in document}
        assert _spelled(values) == _spelled(entries)
        for key in document:
            assert _spelled(schema.dump_entry(document[key])) == _spelled(values[key])
        text = b"".join(encode_dump(document.header, values.items()))
    except MsformatError:
        return
    assert text == json.dumps(expected, indent=1).encode()
    assert _listed(jsonindex.index_document(text, "d"))[0] == list(expected)


def _decodes(document: DumpDocument, key: str) -> bool:
    try:
        document.entry(key)
    except MsformatError:
        return False
    return True


def _spelled(value: Any) -> str:
    """Types, order, NaN and -0.0 included."""
    return json.dumps(value)


def _check_salvage(data: bytes) -> None:
    """What is saved of a damaged document reads, and stands in it."""
    document, sentence = salvage(data, "d")
    assert document is None or isinstance(document, DumpDocument)
    assert (document is not None and not sentence) or isinstance(sentence, str)
    for key in document or ():
        assert document is not None
        try:
            document.entry(key)
        except FormatError:
            continue
        assert document.raw(key) in data


def seeds() -> Iterator[bytes]:
    """Real ones, and layouts that only look like theirs."""
    for _, content in golden_members("dump.json", 1 << 16):
        document = json.loads(content)
        document["data"] = dict(list(document["data"].items())[:4])
        yield json.dumps(document, indent=1).encode()
    yield from (content for _, content in golden_members("debug.json", 1 << 13))
    yield b'{\n "task": "x",\n "data": {\n  "a": {\n  "b": NaN,\n  "c": -Infinity},\n  "d": "\\ud800"\n }\n}'
    yield b'{\n "data": {\n  "a": 1,\n  "a": 2\n },\n "data": {\n  "b": 1\n }\n}'


TARGET = Target(
    check,
    seeds,
    change_json,
    (b'\n "data": {\n  "', b',\n  "', b"\n }", b"NaN", b"-Infinity", b'"\\ud800"', b'"type"', b'"dtype"', b'"shape"',
     b'"data_name"', b'"Max"', b"1e400", b"-0.0", b"[[[[", b"null", b'"data"'),
    most_bytes=8192,
)  # fmt: skip
