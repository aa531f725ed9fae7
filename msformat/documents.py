"""The JSON documents of a unit: dump.json or debug.json, stack.json, construct.json."""

from __future__ import annotations

from msformat.dumpdoc import DumpDocument, encode_dump, encode_dump_texts, encode_entries, salvage
from msformat.treedoc import ConstructDocument, StackDocument, encode_stack

__all__ = [
    "ConstructDocument",
    "DumpDocument",
    "StackDocument",
    "encode_dump",
    "encode_dump_texts",
    "encode_entries",
    "encode_stack",
    "salvage",
]
