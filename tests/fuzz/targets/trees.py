"""stack.json and construct.json: what is read comes back, and a tree names every entry once, cycles or not."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

from msformat.documents import ConstructDocument, StackDocument, encode_stack
from msformat.errors import MsformatError
from tests.fuzz.mutators import change_json
from tests.fuzz.samples import golden_members
from tests.fuzz.target import Target


def check(data: bytes, place: Path) -> None:
    """The document of a stranger, which is read as either."""
    _check_stack(data)
    _check_construct(data)


def _check_stack(data: bytes) -> None:
    try:
        stack = StackDocument.parse(data, "s")
    except MsformatError:
        return
    again = StackDocument.parse(encode_stack(stack.groups, stack.dialect), "s")
    known = {entry for entries, _ in stack.groups for entry in entries}
    assert {entry: again.frames(entry) for entry in known} == {entry: stack.frames(entry) for entry in known}
    # Equal stacks became one: a second time there is nothing left to join.
    assert encode_stack(again.groups, again.dialect) == encode_stack(stack.groups, stack.dialect)


def _check_construct(data: bytes) -> None:
    try:
        construct = ConstructDocument.parse(data, "c")
    except MsformatError:
        return
    parents = dict(construct.items())
    assert json.loads(data) == parents
    assert sorted(entry for _, entry in construct.tree()) == sorted(parents)
    # Whoever has a parent that is there lies right below it, but for the head of a cycle, which is named.
    for depth, entry in construct.tree():
        assert depth == 0 or parents[entry] in parents
    assert dict(ConstructDocument.parse(construct.encode(), "c")) == parents


def seeds() -> Iterator[bytes]:
    """Real ones, and cycles."""
    for suffix in ("stack.json", "construct.json"):
        for _, content in golden_members(suffix, 1 << 17):
            yield json.dumps(dict(list(json.loads(content).items())[:3]), indent=1).encode()
    yield b'{"a": "b", "b": "a", "c": "c", "d": "x", "e": null}'
    yield b'{"0": [["a", "b"], ["f"]], "1": [["a"], ["f"]], "2": [[], []]}'


TARGET = Target(
    check, seeds, change_json, (b'"Module.a.B.forward.0"', b"null", b"[[", b"]]", b'": ["'), most_bytes=16384
)
