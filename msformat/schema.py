"""JSON objects to model values and back.

Reading is tolerant: what has no known shape becomes :class:`~msformat.model.Opaque` and survives. ``dump_*`` is the
exact inverse of ``load_*``, unknown keys and the order of keys included. Writing is strict: the ``check_*`` functions
of :mod:`msformat.check` (also importable from here) refuse what the format does not know.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from msformat.check import (
    check_construct,
    check_document,
    check_dump,
    check_entry,
    check_header,
    check_stack,
    json_schema,
)
from msformat.errors import UnsafeInputError
from msformat.model import MAX_DEPTH, STATISTICS, Entry, Header, Node, Opaque, Scalar, Stats, TensorMeta

__all__ = [
    "check_construct",
    "check_document",
    "check_dump",
    "check_entry",
    "check_header",
    "check_stack",
    "dump_entry",
    "dump_header",
    "dump_node",
    "is_tensor",
    "json_schema",
    "load_entry",
    "load_header",
    "load_node",
]

_VALUE_KEYS = ("value", "format", "group_ranks")
_HEADER_KEYS = ("task", "level", "framework", "dump_data_dir")
_TENSOR_KEYS = ("type", "dtype", "shape", *STATISTICS, "requires_grad", "md5", "data_name")


# --- entries and nodes -----------------------------------------------------------------------------------------------


def load_entry(key: str, obj: Any, source: str) -> Entry:
    """The entry behind a key and its JSON value.

    Raises
    ------
    UnsafeInputError
        Nested too deep; the message names source and key.
    """
    try:
        return Entry(key, load_node(obj))
    except UnsafeInputError as error:
        raise UnsafeInputError(f"{source}: entry {key!r}: {error}") from error


def dump_entry(entry: Entry) -> Any:
    """The JSON value of an entry: the inverse of :func:`load_entry`."""
    return dump_node(entry.value)


def load_node(obj: Any) -> Node:
    """The node behind a JSON value.

    Raises
    ------
    UnsafeInputError
        Containers lie more than :data:`~msformat.model.MAX_DEPTH` deep.
    """
    node: Node = _convert(obj, _load_leaf)
    return node


def dump_node(node: Node) -> Any:
    """The JSON value of a node."""
    return _convert(node, _dump_leaf)


_CONTAINER = object()


def _convert(root: Any, leaf: Callable[[Any], Any]) -> Any:
    """Rebuild a tree without recursion; ``leaf`` gives the new value, or ``_CONTAINER`` for what to descend into.

    Containers are made mutable first; lists become tuples (nodes) on the way back where ``leaf`` loads.
    """
    top: list[Any] = [None]
    made: list[tuple[Any, Any, Any]] = []
    pending: list[tuple[Any, Any, Any, int]] = [(root, top, 0, 0)]
    while pending:
        value, parent, slot, depth = pending.pop()
        new = leaf(value)
        if new is _CONTAINER:
            if depth >= MAX_DEPTH:
                raise UnsafeInputError(f"containers lie more than {MAX_DEPTH} deep")
            new, children = _empty_like(value)
            pending.extend((child, new, name, depth + 1) for name, child in children)
            made.append((new, parent, slot))
        parent[slot] = new
    if leaf is _load_leaf:
        _freeze_lists(made)
    return top[0]


def _empty_like(value: Any) -> tuple[Any, list[tuple[Any, Any]]]:
    """A new container of the same size with its keys in order, and what belongs into it."""
    if isinstance(value, Mapping):
        return dict.fromkeys(value), list(value.items())
    return [None] * len(value), list(enumerate(value))


def _freeze_lists(made: list[tuple[Any, Any, Any]]) -> None:
    # Inner containers were made after the outer ones.
    for new, parent, slot in reversed(made):
        if isinstance(new, list):
            parent[slot] = tuple(new)


def _load_leaf(value: Any) -> Any:
    if value is None:
        return None
    if isinstance(value, (list, tuple)):
        return _CONTAINER
    if not isinstance(value, dict):
        return Opaque(value)
    # No argument is ever recorded as a bare string, so a string under "type" marks a record and not the user's dict.
    if not isinstance(value.get("type"), str):
        return _CONTAINER
    if "dtype" in value or "shape" in value:
        return _load_tensor(value) if is_tensor(value) else Opaque(value)
    return _load_scalar(value)


def _dump_leaf(node: Any) -> Any:
    if node is None:
        return None
    if isinstance(node, TensorMeta):
        return _dump_tensor(node)
    if isinstance(node, Scalar):
        return _dump_scalar(node)
    return node.raw if isinstance(node, Opaque) else _CONTAINER


# --- records ---------------------------------------------------------------------------------------------------------


def is_tensor(record: dict[str, Any]) -> bool:
    """Whether a record describes a tensor: a spelling of its type, and a shape."""
    shape = record.get("shape")
    return (
        isinstance(record.get("dtype"), str)
        and isinstance(shape, list)
        and all(type(length) is int and length >= 0 for length in shape)
    )


# Types of the values that model.TensorMeta holds in fields of its own; anything else stays in ``extra``.
_STATISTIC_TYPES = (float, int, bool, type(None), str)
_FIELD_TYPES: dict[str, tuple[type, ...]] = {
    "type": (str,),
    "dtype": (str,),
    "shape": (list,),
    **dict.fromkeys(STATISTICS, _STATISTIC_TYPES),
    "requires_grad": (bool,),
    "md5": (str,),
    "data_name": (str,),
}


def _load_tensor(record: dict[str, Any]) -> TensorMeta:
    extra = {key: value for key, value in record.items() if type(value) not in _FIELD_TYPES.get(key, ())}
    known = record if not extra else {key: value for key, value in record.items() if key not in extra}
    return TensorMeta(
        type=record["type"],
        dtype=record["dtype"],
        shape=tuple(record["shape"]),
        stats=_load_stats(known),
        requires_grad=known.get("requires_grad"),
        digest=known.get("md5"),
        data_name=known.get("data_name"),
        extra=extra,
        key_order=tuple(record),
    )


def _load_stats(known: dict[str, Any]) -> Stats | None:
    absent = frozenset(name for key, name in STATISTICS.items() if key not in known)
    if len(absent) == len(STATISTICS):
        return None
    return Stats(known.get("Max"), known.get("Min"), known.get("Mean"), known.get("Norm"), absent)


def _tensor_record(meta: TensorMeta) -> dict[str, Any]:
    """Known keys that are set, in the order of the format."""
    record: dict[str, Any] = {"type": meta.type, "dtype": meta.dtype, "shape": list(meta.shape)}
    if meta.stats is not None:
        for key, name in STATISTICS.items():
            if name not in meta.stats.absent:
                record[key] = getattr(meta.stats, name)
    rest = {"requires_grad": meta.requires_grad, "md5": meta.digest, "data_name": meta.data_name}
    record.update((key, value) for key, value in rest.items() if value is not None)
    return record


def _dump_tensor(meta: TensorMeta) -> dict[str, Any]:
    return _ordered({**meta.extra, **_tensor_record(meta)}, meta.key_order or _TENSOR_KEYS)


def _load_scalar(record: dict[str, Any]) -> Scalar:
    value_key = next((key for key in _VALUE_KEYS if key in record), None)
    value = None if value_key is None else record[value_key]
    extra = {key: other for key, other in record.items() if key not in ("type", value_key)}
    return Scalar(record["type"], value, extra, tuple(record), value_key)


def _dump_scalar(scalar: Scalar) -> dict[str, Any]:
    record: dict[str, Any] = {"type": scalar.type}
    if scalar.value_key is not None:
        record[scalar.value_key] = scalar.value
    return _ordered({**record, **scalar.extra}, scalar.key_order or tuple(record))


def _ordered(record: dict[str, Any], order: tuple[str, ...]) -> dict[str, Any]:
    """The record with its keys in ``order``; those not named there follow in their own order."""
    if tuple(record) == order:
        return record
    named = {key: record[key] for key in order if key in record}
    return named | {key: value for key, value in record.items() if key not in named}


# --- header ----------------------------------------------------------------------------------------------------------


def load_header(obj: Mapping[str, Any]) -> Header:
    """The header of a dump document; ``obj`` is the whole document, or all of it but the entries (``data: {}``)."""
    extra = {key: value for key, value in obj.items() if not _has_header_type(key, value)}
    return Header(
        task=_text(obj, "task"),
        level=_text(obj, "level"),
        framework=_text(obj, "framework"),
        dump_data_dir=_text(obj, "dump_data_dir") if isinstance(obj.get("dump_data_dir"), str) else None,
        extra=extra,
        key_order=tuple(obj),
    )


def _has_header_type(key: str, value: Any) -> bool:
    if key == "data":
        return isinstance(value, Mapping)
    return key in _HEADER_KEYS and (isinstance(value, str) or (key == "dump_data_dir" and value is None))


def _text(obj: Mapping[str, Any], key: str) -> str:
    value = obj.get(key)
    return value if isinstance(value, str) else ""


def dump_header(header: Header) -> dict[str, Any]:
    """The document without entries: ``data`` is ``{}`` (or what stands there instead, as null), at its place.

    The inverse of :func:`load_header` for documents without entries.
    """
    record: dict[str, Any] = dict(header.extra)
    order = (*_HEADER_KEYS, *header.extra, "data") if header.key_order is None else header.key_order
    for key in _HEADER_KEYS:
        value = getattr(header, key)
        if value or (key not in record and key in order):
            record[key] = value
    if "data" not in record and "data" in order:
        record["data"] = {}
    return _ordered(record, order)
