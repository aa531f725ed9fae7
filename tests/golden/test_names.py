"""Every entry key and tensor name that a real msprobe wrote is understood and rebuilt exactly."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from msformat.names import API_PREFIXES, build_data_name, build_entry, parse_data_name, parse_entry
from tests.conftest import golden_names

SLOTS = {"input_args": "input", "input": "input", "input_kwargs": "kwargs", "output": "output"}


def documents(root: Path) -> Iterator[dict[str, Any]]:
    for name in ("dump.json", "debug.json"):
        for path in sorted(root.rglob(name)):
            yield json.loads(path.read_text())


def tensors(node: Any, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], str]]:
    """Place in the structure and ``data_name`` of every tensor below a JSON value."""
    if isinstance(node, dict) and isinstance(node.get("data_name"), str):
        yield path, node["data_name"]
    items = node.items() if isinstance(node, dict) else enumerate(node) if isinstance(node, list) else ()
    for key, child in items:
        yield from tensors(child, (*path, str(key)))


@pytest.mark.parametrize("name", golden_names)
def test_entry_keys(name: str, golden: Callable[[str], Path]) -> None:
    for document in documents(golden(name)):
        for key in document["data"]:
            op = parse_entry(key)
            assert op is not None, key
            assert build_entry(op) == key
            assert (op.order == "saved") == (document["level"] == "debug"), key
            if op.order == "api":
                assert op.kind in API_PREFIXES | {"User", "usermod"}, key
            if op.order == "module":
                assert op.kind == ("Cell" if document["framework"] == "mindspore" else "Module"), key
                assert op.class_name is not None
                assert op.class_name[0].isupper(), key


@pytest.mark.parametrize("name", golden_names)
def test_tensor_names_say_where_the_tensor_stands(name: str, golden: Callable[[str], Path]) -> None:
    root = golden(name)
    for document in documents(root):
        for key, value in document["data"].items():
            for path, data_name in tensors(value):
                parsed = parse_data_name(data_name)
                assert parsed is not None, data_name
                assert build_data_name(parsed) == data_name
                assert parsed == parse_data_name(data_name, key)
                assert parsed.entry == key
                assert parsed.suffix == (".npy" if "mindspore" in name or "mindtorch" in name else ".pt")
                assert (parsed.category, parsed.path) == expected_place(document["level"], key, path)
    for file in root.rglob("dump_tensor_data/*"):
        found = parse_data_name(file.name)
        assert found is not None, file.name
        assert build_data_name(found) == file.name


def expected_place(level: str, key: str, path: tuple[str, ...]) -> tuple[str, tuple[str, ...]]:
    """Category and path by the documents alone: slot, then indices and keys; gradients are a list of one each."""
    if level == "debug":
        return ("" if key.endswith(".debug") else "tensor"), path
    if "parameters_grad" in key:
        return "", path[:1]
    return SLOTS.get(path[0], path[0]), path[1:]
