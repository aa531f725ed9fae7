"""dump.json, stack.json and construct.json, judged by Python's json."""

from __future__ import annotations

import json
import math
import mmap
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from msformat.documents import ConstructDocument, DumpDocument, StackDocument, encode_dump, encode_stack, salvage
from msformat.errors import EntryNotFoundError, FormatError, SchemaError
from msformat.model import Header, Opaque

TENSOR = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2, 3], "Max": 1.0, "Min": -1e-05, "Mean": 0.5}
NAN_TENSOR = {**TENSOR, "Max": math.nan, "Min": -math.inf, "Mean": math.inf}
HEADER = {"task": "statistics", "level": "L1", "framework": "pytorch", "dump_data_dir": None}
ENTRIES: dict[str, Any] = {
    "Functional.relu.0.forward": {"input_args": [TENSOR], "input_kwargs": {}, "output": [NAN_TENSOR]},
    'odd NaN, "quoted": Infinity\\': {
        "input": [{"type": "str", "value": ': NaN, "x\\": -Infinity\n'}],
        "output": [None],
    },
    "梯度.0.debug": [],
    "y_grad.0.debug": None,
    "x.0.debug": TENSOR,
}


def _layouts(document: Any) -> list[bytes]:
    texts = [
        json.dumps(document, indent=1),
        json.dumps(document, separators=(",", ":")),
        json.dumps(document, indent=4, ensure_ascii=False),
        json.dumps(document, indent=1).replace("\n", "\r\n"),
    ]
    return [text.encode() for text in texts]


def _document(**changes: Any) -> dict[str, Any]:
    return {**HEADER, "data": ENTRIES, **changes}


@pytest.mark.parametrize("text", _layouts(_document()))
def test_every_layout_reads_as_json_reads_it(text: bytes) -> None:
    document = DumpDocument.parse(text, "dump.json")
    assert list(document) == list(ENTRIES)
    assert len(document) == len(ENTRIES)
    assert document.problems == ()
    for key, value in ENTRIES.items():
        assert repr(document.json(key)) == repr(value)
        assert document.raw(key) in text
        assert repr(json.loads(document.raw(key))) == repr(value)
    assert document.header == Header("statistics", "L1", "pytorch", None, {}, (*HEADER, "data"))


def test_a_mapped_file_is_read_in_place(tmp_path: Path) -> None:
    path = tmp_path / "dump.json"
    clean = {key: value for key, value in ENTRIES.items() if "relu" not in key}
    path.write_bytes(json.dumps({**HEADER, "data": clean}, indent=1).encode())
    with path.open("rb") as stream, mmap.mmap(stream.fileno(), 0, access=mmap.ACCESS_READ) as mapped:
        document = DumpDocument.parse(memoryview(mapped), "dump.json")
        assert document.json("x.0.debug") == TENSOR
        # Values are views of the map: it cannot be closed while they live.
        with pytest.raises(BufferError):
            mapped.close()
        del document


_keys = st.text(max_size=6) | st.sampled_from(["NaN", '"NaN": NaN', "a\\", "\ud800", "data", "Infinity"])
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | _keys,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_keys, inner, max_size=3),
    max_leaves=12,
)


@settings(max_examples=200, deadline=None)
@given(
    st.dictionaries(_keys, _json, max_size=4),
    st.dictionaries(_keys.filter(lambda key: key != "data"), _json, max_size=4),
    st.integers(0, 4),
    st.sampled_from([None, 1]),
)
def test_any_document_reads_as_json_reads_it(
    data: dict[str, Any], header: dict[str, Any], place: int, indent: int | None
) -> None:
    items = list(header.items())
    items.insert(place, ("data", data))
    obj = dict(items)
    text = json.dumps(obj, indent=indent).encode()
    document = DumpDocument.parse(text, "dump.json")
    assert list(document) == list(data)
    assert repr([document.json(key) for key in document]) == repr(list(data.values()))
    written = b"".join(encode_dump(document.header, ((key, document.json(key)) for key in document)))
    assert written == json.dumps(obj, indent=1).encode()


@pytest.mark.parametrize("data", [{}, None])
@pytest.mark.parametrize("indent", [None, 1])
def test_a_structure_dump_has_no_entries(data: Any, indent: int | None) -> None:
    text = json.dumps({"data": data, **HEADER, "later": [1]}, indent=indent).encode()
    document = DumpDocument.parse(text, "dump.json")
    assert list(document) == []
    assert document.header.extra["later"] == [1]
    expected = json.dumps({"data": data, **HEADER, "later": [1]}, indent=1).encode()
    assert b"".join(encode_dump(document.header, [])) == expected


def test_data_may_be_missing() -> None:
    document = DumpDocument.parse(json.dumps(HEADER).encode(), "dump.json")
    assert len(document) == 0
    assert b"".join(encode_dump(document.header, [])) == json.dumps(HEADER, indent=1).encode()
    with_entry = json.loads(b"".join(encode_dump(document.header, [("k", None)])))
    assert with_entry == {**HEADER, "data": {"k": None}}
    assert b"".join(encode_dump(DumpDocument.parse(b"{}", "x").header, [])) == b"{}"


def test_a_new_header_is_written_in_the_order_of_the_format() -> None:
    written = b"".join(encode_dump(Header("tensor", "mix", "mindspore", "/d"), iter(ENTRIES.items())))
    expected = {"task": "tensor", "level": "mix", "framework": "mindspore", "dump_data_dir": "/d", "data": ENTRIES}
    assert written == json.dumps(expected, indent=1).encode()


def test_a_long_document_is_written_in_pieces_that_fit_together() -> None:
    entries = {f"{number}.{key}": value for number in range(700) for key, value in ENTRIES.items()}
    entries["\ud800"] = {"lone surrogate": ["\udc00", math.nan, {}]}
    pieces = list(encode_dump(Header("tensor", "mix", "pytorch"), entries.items()))
    assert len(pieces) > 8
    expected = {"task": "tensor", "level": "mix", "framework": "pytorch", "dump_data_dir": None, "data": entries}
    assert b"".join(pieces) == json.dumps(expected, indent=1).encode()


def test_what_cannot_be_encoded_is_named() -> None:
    with pytest.raises(FormatError, match="entry 'bad'"):
        list(encode_dump(Header("tensor", "mix", "pytorch"), [("bad", {1, 2})]))


def test_of_repeated_keys_the_last_counts_and_all_are_reported() -> None:
    text = b'{"task": "a", "task": "b", "data": {"k": 1, "l": NaN, "k": [2], "k": [3]}}'
    for variant in (text, text.replace(b"NaN", b"0"), text.replace(b"NaN", b'"\\ud800"')):
        document = DumpDocument.parse(variant, "dump.json")
        assert list(document) == list(json.loads(variant)["data"])
        assert document.json("k") == [3]
        assert document.header.task == "b"
        assert ["'task'" in document.problems[0], "'k'" in document.problems[1]] == [True, True]
        assert len(document.problems) == 2


def test_unknown_entries_name_near_ones() -> None:
    document = DumpDocument.parse(json.dumps(_document()).encode(), "dump.json")
    with pytest.raises(EntryNotFoundError, match=r"Functional\.relu\.0\.forward"):
        document["Functional.relu.0.forwrad"]
    assert document.get("nothing") is None
    assert "nothing" not in document
    assert document.get("y_grad.0.debug").value is None


def test_header_values_of_odd_types_survive() -> None:
    obj = {"task": 5, "framework": None, "dump_data_dir": ["x"], "level": math.nan, "data": {}}
    document = DumpDocument.parse(json.dumps(obj).encode(), "dump.json")
    assert (document.header.task, document.header.framework, document.header.dump_data_dir) == ("", "", None)
    assert b"".join(encode_dump(document.header, [])) == json.dumps(obj, indent=1).encode()


# --- salvage ---------------------------------------------------------------------------------------------------------


def _complete(text: bytes, cut: int, whole: DumpDocument, ends: dict[str, int]) -> list[str]:
    """Entries of which all bytes lie before the cut."""
    return [key for key in whole if ends[key] <= cut]


@pytest.mark.parametrize("text", _layouts(_document(late={"a": [1]})))
def test_a_document_cut_anywhere_gives_its_complete_entries(text: bytes) -> None:
    whole = DumpDocument.parse(text, "dump.json")
    ends: dict[str, int] = {}
    at = text.index(b'"data"')
    for key in whole:
        name = json.dumps(key).encode() if b"\\u68af" in text else json.dumps(key, ensure_ascii=False).encode()
        at = text.index(whole.raw(key), text.index(name, at) + len(name)) + len(whole.raw(key))
        ends[key] = at
    for cut in range(len(text) - 1):
        document, sentence = salvage(text[:cut], "dump.json")
        expected = _complete(text, cut, whole, ends)
        assert sentence, cut
        found = [] if document is None else list(document)
        assert found == expected, (cut, text[:cut])
        for key in found:
            assert document is not None
            assert document.raw(key) == whole.raw(key)


def test_a_whole_document_needs_no_salvage() -> None:
    text = json.dumps(_document(), indent=1).encode()
    document, sentence = salvage(text, "dump.json")
    assert document is not None
    assert sentence == ""
    assert list(document) == list(ENTRIES)


@pytest.mark.parametrize("text", _layouts(_document())[:2])
def test_entries_before_a_damaged_byte_are_saved(text: bytes) -> None:
    at = text.index(b"y_grad.0.debug")
    for damage in (b"\0" * (len(text) - at), b'"' + text[at + 1 :], b"\x01" + text[at + 1 :]):
        document, sentence = salvage(text[:at] + damage, "dump.json")
        assert document is not None
        assert list(document) == list(ENTRIES)[:3]
        assert f"of {len(text)}" in sentence
        assert "3 complete entries" in sentence


@pytest.mark.parametrize("data", [b"", b"no json", b"\0" * 100, b"[1, 2", b'{"task', b'{"task": "x", "data": 5'])
def test_where_nothing_is_left_salvage_says_so(data: bytes) -> None:
    document, sentence = salvage(data, "dump.json")
    assert document is None or len(document) == 0
    assert "dump.json" in sentence


# --- stack.json ------------------------------------------------------------------------------------------------------

FRAMES = ["File a.py, line 1, in f, \n x()", "File b.py, line 2, in g, \n f()"]


def test_both_dialects_of_stacks() -> None:
    new = json.dumps({"0": [["a", "b"], FRAMES], "1": [["c"], []]}, indent=1).encode()
    old = json.dumps({"a": FRAMES, "b": FRAMES, "c": []}, indent=1).encode()
    from_new, from_old = StackDocument.parse(new, "stack.json"), StackDocument.parse(old, "stack.json")
    assert (from_new.dialect, from_old.dialect) == ("8.1", "1.2")
    for document in (from_new, from_old):
        assert document.frames("b") == tuple(FRAMES)
        assert document.frames("c") == ()
        assert document.frames("d") is None
        assert encode_stack(document.groups, "8.1") == new
        assert encode_stack(document.groups, "1.2") == old
        assert document.problems == []


def test_an_empty_stack_document() -> None:
    document = StackDocument.parse(b"{}", "stack.json")
    assert document.groups == []
    assert encode_stack(document.groups, document.dialect) == b"{}"


def test_an_entry_with_two_stacks_is_reported() -> None:
    document = StackDocument.parse(b'{"0": [["a"], ["x"]], "1": [["a"], ["y"]]}', "stack.json")
    assert document.frames("a") == ("x",)
    assert "'a'" in document.problems[0]


@pytest.mark.parametrize(
    ("text", "pointer"),
    [
        ("[]", ""),
        ("null", ""),
        ('{"0": 5}', "/0"),
        ('{"0": null}', "/0"),
        ('{"0": "text"}', "/0"),
        ('{"0": [["a"], ["x"], ["y"]]}', "/0"),
        ('{"0": [["a"], ["x"]], "a": ["x"]}', "/a"),
        ('{"0": [["a"], [3]]}', "/0"),
        ('{"a/b~c": [3]}', "/a~1b~0c"),
    ],
)
def test_odd_stacks_are_schema_errors(text: str, pointer: str) -> None:
    with pytest.raises(SchemaError) as caught:
        StackDocument.parse(text.encode(), "stack.json")
    assert caught.value.pointer == pointer


# --- construct.json --------------------------------------------------------------------------------------------------


def test_construct_is_a_forest() -> None:
    parents = {"b": "a", "a": None, "c": "b", "d": None, "e": "gone"}
    document = ConstructDocument.parse(json.dumps(parents).encode(), "construct.json")
    assert dict(document) == parents
    assert document.roots == ("a", "d", "e")
    assert document.children("a") == ("b",)
    assert list(document.tree()) == [(0, "a"), (1, "b"), (2, "c"), (0, "d"), (0, "e")]
    assert document.encode() == json.dumps(parents, indent=1).encode()
    assert len(document.problems) == 1
    assert "'gone'" in document.problems[0]


def test_cycles_are_reported_and_walked_once() -> None:
    parents = {"tail": "x", "x": "y", "y": "z", "z": "x", "self": "self", "top": None}
    document = ConstructDocument(parents, "construct.json")
    assert sorted(key for _, key in document.tree()) == sorted(parents)
    assert document.roots == ("x", "self", "top")
    assert [name in problem for name, problem in zip(["'x'", "'self'"], document.problems, strict=True)] == [True, True]


def test_a_chain_of_5000_is_walked_without_recursion() -> None:
    parents = {str(number): str(number - 1) if number else None for number in range(5000)}
    for order in (parents, dict(reversed(parents.items()))):
        document = ConstructDocument.parse(json.dumps(order).encode(), "construct.json")
        assert list(document.tree()) == [(number, str(number)) for number in range(5000)]
    ring = ConstructDocument({**parents, "0": "4999"}, "construct.json")
    assert [depth for depth, _ in ring.tree()] == list(range(5000))


@given(st.dictionaries(st.integers(0, 9).map(str), st.none() | st.integers(0, 11).map(str)))
@settings(max_examples=200, deadline=None)
def test_any_construct_document_is_walked_completely(parents: dict[str, str | None]) -> None:
    document = ConstructDocument(parents, "construct.json")
    walked = list(document.tree())
    assert sorted(key for _, key in walked) == sorted(parents)
    for depth, key in walked:
        assert (depth == 0) == (key in document.roots)


@pytest.mark.parametrize("text", ["[]", "null", '{"a": 5}', '{"a": ["b"]}', '{"a": {}}'])
def test_odd_construct_documents_are_schema_errors(text: str) -> None:
    with pytest.raises(SchemaError):
        ConstructDocument.parse(text.encode(), "construct.json")


def test_bare_values_survive_as_opaque() -> None:
    document = DumpDocument.parse(b'{"data": {"k": {"is_recompute": true, "x": "bare"}}}', "dump.json")
    entry = document["k"]
    assert entry.is_recompute is True
    assert entry.slots == {"x": Opaque("bare")}
