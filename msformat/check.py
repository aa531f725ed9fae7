"""Strict checks of what is about to be written: the same rules as the JSON Schema files beside this module.

Every check raises :class:`~msformat.errors.SchemaError` with a JSON pointer to the first offending value. Nothing
recurses. One thing JSON Schema cannot say: a ``shape`` of ``[2.0]`` is refused here, to a schema 2.0 is an integer.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from functools import partial
from importlib import resources
from typing import Any, TypeAlias

from msformat.errors import FormatError, SchemaError
from msformat.jsontext import describe
from msformat.model import MAX_DEPTH, STATISTICS

__all__ = [
    "DOCUMENTS",
    "check_construct",
    "check_debug",
    "check_document",
    "check_dump",
    "check_entry",
    "check_header",
    "check_stack",
    "json_schema",
]

FRAMEWORKS = ("pytorch", "mindspore", "mindtorch")
LEVELS = ("L0", "L1", "L2", "mix", "debug")

_Rule: TypeAlias = "tuple[Callable[[Any], bool], str]"
_DIGEST = re.compile(r"[0-9a-f]{8}|0x[0-9a-f]{16}")
_FILE_NAME = re.compile(r"[^/\\\x00]+")
_GROUP = re.compile(r"[0-9]+")


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and value != ""


def _is_statistic(value: Any) -> bool:
    # Strict JSON (msformat.strictjson) has no other words for the last three.
    return value is None or isinstance(value, (bool, int, float)) or value in ("NaN", "Infinity", "-Infinity")


def _is_shape(value: Any) -> bool:
    return isinstance(value, list) and all(type(length) is int and length >= 0 for length in value)


def _is_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


def _matches(pattern: re.Pattern[str], value: Any) -> bool:
    return isinstance(value, str) and pattern.fullmatch(value) is not None


_HEADER_RULES: dict[str, _Rule] = {
    "task": (_is_text, "the name of a task"),
    "level": (lambda value: value in LEVELS, f"one of {', '.join(LEVELS)}"),
    "framework": (lambda value: value in FRAMEWORKS, f"one of {', '.join(FRAMEWORKS)}"),
    "dump_data_dir": (lambda value: value is None or isinstance(value, str), "a path or null"),
    "data": (lambda value: isinstance(value, dict), "an object"),
}
_TENSOR_REQUIRED: dict[str, _Rule] = {
    "type": (_is_text, "the name of a type"),
    "dtype": (_is_text, "the name of an element type"),
    "shape": (_is_shape, "an array of lengths"),
}
_TENSOR_OPTIONAL: dict[str, _Rule] = {
    **dict.fromkeys(STATISTICS, (_is_statistic, "a number, a boolean or null")),
    "requires_grad": (lambda value: isinstance(value, bool), "a boolean"),
    "md5": (partial(_matches, _DIGEST), "eight hex digits, or 0x and 16"),
    "data_name": (partial(_matches, _FILE_NAME), "a file name"),
}
_VALUE_KEYS = ("value", "format", "group_ranks")


# --- dump.json and debug.json ----------------------------------------------------------------------------------------


def check_header(obj: Any, source: str) -> None:
    """Check everything of a dump document but its entries.

    Raises
    ------
    SchemaError
        With a JSON pointer.
    """
    _check_object(obj, source, "")
    _apply(_HEADER_RULES, obj, source, "", required=True)


def check_dump(obj: Any, source: str) -> None:
    """Check a whole dump.json (or debug.json).

    Raises
    ------
    SchemaError
        With a JSON pointer.
    """
    check_header(obj, source)
    for key, value in obj["data"].items():
        if not _is_text(key):
            raise SchemaError(source, "/data", expected="entry keys", found=describe(key))
        check_entry(key, value, source)


def check_debug(obj: Any, source: str) -> None:
    """Check a whole debug.json: a dump document of level ``debug``.

    Raises
    ------
    SchemaError
        With a JSON pointer.
    """
    check_dump(obj, source)
    if obj["level"] != "debug":
        raise SchemaError(source, "/level", expected="'debug'", found=describe(obj["level"]))


def check_entry(key: str, obj: Any, source: str) -> None:
    """Check one entry; the pointer starts at the document (``/data/{key}``).

    Raises
    ------
    SchemaError
        With a JSON pointer.
    """
    pointer = f"/data/{_escape(key)}"
    # Only here may a bare value stand among nodes.
    flag = obj.get("is_recompute") if isinstance(obj, dict) and not _is_record(obj) else None
    if isinstance(flag, bool):
        obj = {**obj, "is_recompute": None}
    pending: list[tuple[str, Any, int]] = [(pointer, obj, 0)]
    while pending:
        at, value, depth = pending.pop()
        if depth > MAX_DEPTH:
            raise SchemaError(source, at, expected=f"at most {MAX_DEPTH} containers in one another", found="more")
        pending.extend((where, child, depth + 1) for where, child in reversed(_node_children(value, at, source)))


def _node_children(value: Any, pointer: str, source: str) -> list[tuple[str, Any]]:
    """Check one node; the nodes inside it, if it is a container."""
    if value is None:
        return []
    if isinstance(value, list):
        return [(f"{pointer}/{index}", child) for index, child in enumerate(value)]
    if not isinstance(value, dict):
        raise SchemaError(source, pointer, expected="a record, an array, an object or null", found=describe(value))
    _check_object(value, source, pointer)
    if not _is_record(value):
        return [(f"{pointer}/{_escape(key)}", child) for key, child in value.items()]
    _check_record(value, source, pointer)
    return []


def _is_record(value: dict[str, Any]) -> bool:
    return isinstance(value.get("type"), str)


def _check_record(record: dict[str, Any], source: str, pointer: str) -> None:
    if "dtype" in record or "shape" in record:
        _apply(_TENSOR_REQUIRED, record, source, pointer, required=True)
        _apply(_TENSOR_OPTIONAL, record, source, pointer, required=False)
    elif record["type"] != "torch.ProcessGroup" and not any(key in record for key in _VALUE_KEYS):
        keys = ", ".join(map(repr, record))
        raise SchemaError(source, pointer, expected="a value beside the type", found=f"only the keys {keys}")


# --- stack.json and construct.json -----------------------------------------------------------------------------------


def check_stack(obj: Any, source: str) -> None:
    """Check a stack.json of either dialect; the two are never mixed.

    Raises
    ------
    SchemaError
        With a JSON pointer.
    """
    _check_object(obj, source, "")
    grouped = any(isinstance(value, list) and value and isinstance(value[0], list) for value in obj.values())
    for key, value in obj.items():
        pointer = f"/{_escape(key)}"
        if not grouped and not _is_texts(value):
            raise SchemaError(source, pointer, expected="an array of frames", found=describe(value))
        if grouped and not _matches(_GROUP, key):
            raise SchemaError(source, pointer, expected="the number of a group", found=f"the key {key!r}")
        if grouped and not (isinstance(value, list) and len(value) == 2 and all(map(_is_texts, value))):
            raise SchemaError(source, pointer, expected="[[entry keys], [frames]]", found=describe(value))


def check_construct(obj: Any, source: str) -> None:
    """Check a construct.json.

    Raises
    ------
    SchemaError
        With a JSON pointer.
    """
    _check_object(obj, source, "")
    for key, parent in obj.items():
        if parent is not None and not isinstance(parent, str):
            raise SchemaError(source, f"/{_escape(key)}", expected="an entry key or null", found=describe(parent))


# --- all of them -----------------------------------------------------------------------------------------------------

DOCUMENTS: Mapping[str, Callable[[Any, str], None]] = {
    "dump": check_dump,
    "debug": check_debug,
    "stack": check_stack,
    "construct": check_construct,
}


def check_document(name: str, obj: Any, source: str) -> None:
    """Check a document by its name without ``.json``.

    Raises
    ------
    SchemaError
        With a JSON pointer.
    FormatError
        There is no such document.
    """
    _known(name)
    DOCUMENTS[name](obj, source)


def json_schema(name: str) -> dict[str, Any]:
    """The JSON Schema (draft 2020-12) of a document: ``dump``, ``debug``, ``stack`` or ``construct``.

    Each is complete in itself: no reference leads to another file.

    Raises
    ------
    FormatError
        There is no such document.
    """
    _known(name)
    text = resources.files("msformat").joinpath("schemas", f"{name}.schema.json").read_text(encoding="utf-8")
    schema: dict[str, Any] = json.loads(text)
    return schema


def _known(name: str) -> None:
    if name not in DOCUMENTS:
        raise FormatError(f"no document {name!r}; there are {', '.join(DOCUMENTS)}")


def _check_object(obj: Any, source: str, pointer: str) -> None:
    if not isinstance(obj, dict):
        raise SchemaError(source, pointer, expected="an object", found=describe(obj))
    for key in obj:
        if not isinstance(key, str):
            raise SchemaError(source, pointer, expected="keys that are strings", found=f"the key {key!r}")


def _apply(rules: dict[str, _Rule], obj: dict[str, Any], source: str, pointer: str, *, required: bool) -> None:
    for key, (accepts, expected) in rules.items():
        if key not in obj:
            if required:
                raise SchemaError(source, pointer, expected=f"the key {key!r}", found="an object without it")
        elif not accepts(obj[key]):
            raise SchemaError(source, f"{pointer}/{key}", expected=expected, found=describe(obj[key]))


def _escape(key: str) -> str:
    """A key as one step of a JSON pointer (RFC 6901)."""
    return key.replace("~", "~0").replace("/", "~1")
