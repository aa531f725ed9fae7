"""The documents that make a unit whole, for the writer at its end and for recovery after a crash."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from msformat.columnindex import put_columns
from msformat.documents import encode_dump_texts, encode_entries, encode_stack
from msformat.jsontext import canonical
from msformat.model import Header
from msformat.stores.base import Store

__all__ = [
    "CONTAINERS",
    "DATA_DIRECTORY",
    "ERROR_LOG",
    "Surroundings",
    "finished_header",
    "named_tensors",
    "put_document_texts",
    "put_documents",
    "store_location",
]

DATA_DIRECTORY = "dump_tensor_data"
ERROR_LOG = "dump_error_info.log"
CONTAINERS = {"hdf5": "dump.h5", "zarr": "dump.zarr"}


def store_location(unit_dir: str | os.PathLike[str], backend: str) -> str:
    """Where a store of that backend lies for a unit: the directory itself, or a container in it."""
    if backend == "files":
        return os.fspath(unit_dir)
    return os.path.join(unit_dir, CONTAINERS.get(backend, f"dump.{backend}"))


@dataclass(frozen=True, slots=True)
class Surroundings:
    """What goes into the documents beside dump.json.

    Attributes
    ----------
    stack_groups
        (entry keys, frames) of each call stack, in first-seen order.
    parents
        Entry key to the key of its parent, or None.
    problems
        What was not captured.
    """

    stack_groups: Sequence[tuple[Sequence[str], Sequence[str]]] = ()
    parents: Mapping[str, str | None] = field(default_factory=dict)
    problems: Sequence[str] = ()


def put_documents(
    store: Store, document: str, header: Header, items: Iterable[tuple[str, Any]], around: Surroundings | None
) -> None:
    """Write the documents of a unit, the one that makes it whole last.

    debug.json stands alone, as msprobe writes it, unless there is something to say beside it. ``around`` None leaves
    the other documents as they are.
    """
    put_document_texts(store, document, header, encode_entries(items), around)


def put_document_texts(
    store: Store, document: str, header: Header, texts: Iterable[tuple[str, bytes]], around: Surroundings | None
) -> None:
    """:func:`put_documents` of entries that are encoded already (:func:`msformat.documents.encode_dump_texts`)."""
    documents = {} if around is None else _surrounding_documents(around, always=document == "dump.json")
    entries = list(texts) if store.keeps_columns else texts
    documents[document] = b"".join(encode_dump_texts(header, entries))
    store.put_documents(documents)
    if isinstance(entries, list):
        put_columns(store, document, documents[document], entries)


def _surrounding_documents(around: Surroundings, *, always: bool) -> dict[str, bytes]:
    documents: dict[str, bytes] = {}
    if always or around.stack_groups:
        documents["stack.json"] = encode_stack(around.stack_groups, "8.1")
    if always or around.parents:
        documents["construct.json"] = canonical(dict(around.parents))
    if around.problems:
        documents[ERROR_LOG] = "".join(f"{text}\n" for text in around.problems).encode("utf-8", "replace")
    return documents


def finished_header(header: Header, unit_dir: str, *, has_tensors: bool) -> Header:
    """The header with ``dump_data_dir`` as msprobe has it: a path when tensors were saved, else null."""
    if not has_tensors:
        return replace(header, dump_data_dir=None)
    return replace(header, dump_data_dir=header.dump_data_dir or os.path.join(unit_dir, DATA_DIRECTORY))


def named_tensors(value: Any) -> Iterator[str]:
    """Data names in the JSON value of an entry, in any order."""
    pending = [value]
    while pending:
        node = pending.pop()
        if isinstance(node, list):
            pending.extend(node)
        elif isinstance(node, dict) and not isinstance(node.get("type"), str):
            pending.extend(node.values())
        elif isinstance(node, dict) and isinstance(node.get("data_name"), str):
            yield node["data_name"]
