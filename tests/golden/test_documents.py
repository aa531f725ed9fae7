"""The documents of real dumps of msprobe 1.2.2, 8.1.0 and 26.2.0 come back byte for byte."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import jsonschema
import pytest

from msformat import schema
from msformat.documents import ConstructDocument, DumpDocument, StackDocument, encode_dump, encode_stack, salvage
from msformat.jsontext import canonical, parse_json
from msformat.model import Opaque, walk_nodes
from tests.conftest import golden_names

Golden = Callable[[str], Path]


def _documents(root: Path, *names: str) -> list[Path]:
    return sorted(path for path in root.rglob("*.json") if path.name in names)


def _judge(name: str) -> Any:
    return jsonschema.Draft202012Validator(schema.json_schema(name))


@pytest.mark.parametrize("name", golden_names)
def test_every_document_is_canonical_and_follows_its_schema(golden: Golden, name: str) -> None:
    paths = _documents(golden(name), "dump.json", "debug.json", "stack.json", "construct.json")
    assert paths
    for path in paths:
        text = path.read_bytes()
        obj = parse_json(text, str(path))
        assert repr(obj) == repr(json.loads(text))
        assert canonical(obj) == text
        schema.check_document(path.stem, obj, str(path))
        _judge(path.stem).validate(obj)


@pytest.mark.parametrize("name", golden_names)
def test_dump_documents_are_written_again_as_they_were(golden: Golden, name: str) -> None:
    for path in _documents(golden(name), "dump.json", "debug.json"):
        text = path.read_bytes()
        document = DumpDocument.parse(text, str(path))
        assert document.problems == ()
        assert {key: document.json(key) for key in document}.keys() == json.loads(text)["data"].keys()
        assert b"".join(encode_dump(document.header, ((key, document.json(key)) for key in document))) == text
        through_the_model = ((key, schema.dump_entry(entry)) for key, entry in document.items())
        assert b"".join(encode_dump(document.header, through_the_model)) == text


@pytest.mark.parametrize("name", golden_names)
def test_nothing_in_a_real_dump_is_opaque(golden: Golden, name: str) -> None:
    for path in _documents(golden(name), "dump.json", "debug.json"):
        document = DumpDocument.parse(path.read_bytes(), str(path))
        for key, entry in document.items():
            for where, leaf in walk_nodes(entry.value):
                assert where == ("is_recompute",) or not isinstance(leaf, Opaque), (key, where)


@pytest.mark.parametrize("name", golden_names)
def test_stack_and_construct_are_written_again_as_they_were(golden: Golden, name: str) -> None:
    for path in _documents(golden(name), "stack.json"):
        stack = StackDocument.parse(path.read_bytes(), str(path))
        assert stack.problems == []
        assert stack.dialect == ("1.2" if "_1.2.2_" in name and stack.groups else "8.1")
        assert encode_stack(stack.groups, stack.dialect) == path.read_bytes()
    for path in _documents(golden(name), "construct.json"):
        construct = ConstructDocument.parse(path.read_bytes(), str(path))
        assert construct.problems == []
        assert construct.encode() == path.read_bytes()
        assert sorted(key for _, key in construct.tree()) == sorted(construct)


def test_stacks_survive_a_change_of_dialect(golden: Golden) -> None:
    for path in _documents(golden("torch_8.1.0_mix_tensor"), "stack.json"):
        stack = StackDocument.parse(path.read_bytes(), str(path))
        old = StackDocument.parse(encode_stack(stack.groups, "1.2"), "1.2")
        assert old.dialect == "1.2"
        assert encode_stack(old.groups, "8.1") == path.read_bytes()


@pytest.mark.parametrize("name", ["torch_8.1.0_mix_tensor", "torch_1.2.2_debug_tensor", "mindspore_8.1.0_L1_values"])
def test_a_real_document_cut_at_many_places_gives_its_complete_entries(golden: Golden, name: str) -> None:
    path = _documents(golden(name), "dump.json", "debug.json")[0]
    text = path.read_bytes()
    whole = DumpDocument.parse(text, "whole")
    for cut in range(0, len(text) - 1, len(text) // 60):
        document, sentence = salvage(text[:cut], "cut")
        keys = [] if document is None else list(document)
        assert sentence
        assert keys == list(whole)[: len(keys)]
        # The next entry, if there is one, ends behind the cut.
        if len(keys) < len(whole):
            following = whole.raw(list(whole)[len(keys)])
            assert text.find(following, _end_of(text, whole, len(keys))) + len(following) > cut
        for key in keys:
            assert document is not None
            assert document.raw(key) == whole.raw(key)


def _end_of(text: bytes, whole: DumpDocument, count: int) -> int:
    """Where the first ``count`` entries end; then comes the next key."""
    at = 0
    for key in list(whole)[:count]:
        name = json.dumps(key).encode() + b": "
        at = text.index(name + whole.raw(key), at) + len(name) + len(whole.raw(key))
    return at
