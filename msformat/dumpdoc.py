"""dump.json and debug.json: entries decoded on demand, written as a stream, saved from a truncated file."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, TypeVar

from msformat import jsonindex, schema
from msformat.errors import EntryNotFoundError, FormatError, SchemaError, UnsafeInputError
from msformat.jsontext import Buffer, canonical, compact, describe, indent, parse_json, tokens
from msformat.model import Entry, Header

__all__ = ["DumpDocument", "encode_dump", "encode_dump_texts", "encode_entries", "salvage"]

_Default = TypeVar("_Default")
# Looking for near matches compares with each key.
_MOST_CANDIDATES = 5000
# A value that ends with the text: complete only if no further byte could belong to it, so no number.
_LAST_LITERAL = re.compile(rb"\s*:\s*(null|true|false)\s*")
_BATCH = 1 << 18
_BEFORE_ENTRIES = len(b'{\n "data": {')
_CLOSING = {b"[": b"]", b"{": b"}"}


class DumpDocument(Mapping[str, Entry]):
    """Entries of a dump document by key, in order.

    Made by :meth:`parse`. Keeps a reference to the text it was made from (a mapped file stays mapped).

    Attributes
    ----------
    source
        Where the text came from, for messages.
    header
        What stands around ``data``.
    problems
        What is odd but does not hinder reading, a sentence each.
    """

    def __init__(self, index: jsonindex.Index, header: Header, source: str, problems: tuple[str, ...]) -> None:
        self._entries = index.entries
        self.header = header
        self.source = source
        self.problems = problems

    @classmethod
    def parse(cls, data: Buffer, source: str) -> DumpDocument:
        """Index a document; entries are decoded when they are asked for.

        Parameters
        ----------
        data
            The text. Must not change while the document lives.
        source
            Where it came from, for messages.

        Raises
        ------
        SchemaError
            No JSON object, or ``data`` is neither an object nor null nor missing.
        UnsafeInputError
            Nested too deep.
        """
        index = jsonindex.index_document(data, source)
        outside = {
            key: {} if key == "data" and _is_object(part) else _value(part, f"{source}: header {key!r}")
            for key, part in index.header.items()
        }
        if outside.get("data") is not None and not isinstance(outside["data"], dict):
            raise SchemaError(source, "/data", expected="an object", found=describe(outside["data"]))
        problems = tuple(f"key {key!r} occurs more than once; the last value counts" for key in index.repeated)
        return cls(index, schema.load_header(outside), source, problems)

    def __len__(self) -> int:
        return len(self._entries)

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __getitem__(self, key: str) -> Entry:
        return self.entry(key)

    def get(self, key: str, default: _Default | None = None) -> Entry | _Default | None:  # type: ignore[override]
        """The entry, or ``default`` without looking for near matches."""
        return self.entry(key) if key in self._entries else default

    def entry(self, key: str) -> Entry:
        """The entry of a key, decoded anew each time.

        Raises
        ------
        EntryNotFoundError
            No such key; names near ones.
        SchemaError, UnsafeInputError
            As :func:`~msformat.jsontext.parse_json`.
        """
        return schema.load_entry(key, self.json(key), self.source)

    def json(self, key: str) -> Any:
        """The entry as JSON gives it; raises as :meth:`entry`."""
        return _value(self._part(key), f"{self.source}: entry {key!r}")

    def texts(self, keys: Iterable[str] | None = None) -> Iterator[tuple[str, bytes]]:
        """Keys and :meth:`raw` bytes of these entries, or of all."""
        return ((key, self.raw(key)) for key in (self if keys is None else keys))

    def raw(self, key: str) -> bytes:
        """The entry's bytes, exactly as they stand in the text."""
        return bytes(self._part(key))

    def _part(self, key: str) -> jsonindex.Part:
        try:
            return self._entries[key]
        except KeyError:
            near = self._entries if len(self._entries) <= _MOST_CANDIDATES else ()
            raise EntryNotFoundError(key, self.source, near) from None


def _is_object(part: jsonindex.Part) -> bool:
    return bytes(memoryview(part)[:1]) == b"{"


def _value(part: jsonindex.Part, source: str) -> Any:
    return parse_json(memoryview(part), source)


# --- writing ---------------------------------------------------------------------------------------------------------


def encode_dump(header: Header, items: Iterable[tuple[str, Any]]) -> Iterator[bytes]:
    """The canonical bytes of a document, in pieces.

    Parameters
    ----------
    header
        ``data`` is written at its place in ``key_order``.
    items
        Keys and JSON values, in order; taken one at a time, so that a document need not fit into memory.

    Raises
    ------
    FormatError
        A value that JSON cannot hold.
    """
    return encode_dump_texts(header, encode_entries(items))


def encode_entries(items: Iterable[tuple[str, Any]]) -> Iterator[tuple[str, bytes]]:
    """Keys and compact texts of entries, one at a time.

    Raises
    ------
    FormatError
        A value that JSON cannot hold; names the entry.
    """
    for key, value in items:
        try:
            yield key, compact(value)
        except FormatError as error:
            raise FormatError(f"entry {key!r}: {error}") from error


def encode_dump_texts(header: Header, texts: Iterable[tuple[str, bytes]]) -> Iterator[bytes]:
    """:func:`encode_dump` of values that are encoded already, as :func:`~msformat.jsontext.compact` does it."""
    rest = iter(texts)
    first = next(rest, None)
    outside = schema.dump_header(header)
    if first is not None:
        # Entries go before whatever stood in their place (null, or nothing).
        outside["data"] = {}
        rest = chain([first], rest)
    if not outside:
        yield b"{}"
        return
    opening = b"{\n "
    for name, value in outside.items():
        yield opening + canonical(name) + b": "
        if name == "data" and first is not None:
            yield from _indented_entries(rest)
        else:
            yield _deeper(canonical(value), b"\n ")
        opening = b",\n "
    yield b"\n}"


def _indented_entries(texts: Iterable[tuple[str, bytes]]) -> Iterator[bytes]:
    opening = b"{"
    for members in _batches(texts):
        # In the place of an entry, so that the indentation comes out right: cut from the first line break to the last.
        indented = indent(b'{"data":{%b}}' % members)
        yield opening + indented[_BEFORE_ENTRIES : -len(b"\n }\n}")]
        opening = b","
    yield b"\n }"


def _batches(texts: Iterable[tuple[str, bytes]]) -> Iterator[bytes]:
    """Members of an object, some at a time: each call of the parser has its price, and so has a copy of everything."""
    members: list[bytes] = []
    size = 0
    for key, text in texts:
        members.append(b"%b:%b" % (compact(key), text))
        size += len(text)
        if size >= _BATCH:
            yield b",".join(members)
            members, size = [], 0
    if members:
        yield b",".join(members)


def _deeper(text: bytes, line_break: bytes) -> bytes:
    # Strings hold no raw line break.
    return text.replace(b"\n", line_break)


# --- truncated documents ---------------------------------------------------------------------------------------------


def salvage(data: Buffer, source: str) -> tuple[DumpDocument | None, str]:
    """What is left of a damaged document: the complete entries before the first broken byte.

    Returns
    -------
    document
        None when not even the beginning of the document is there.
    sentence
        Where it broke and how much was saved; ``""`` for a document that is whole.
    """
    try:
        return DumpDocument.parse(data, source), ""
    except UnsafeInputError as error:
        return None, f"{error}; nothing could be saved"
    except FormatError as error:
        failure = error
    text = bytes(data)
    offset = jsonindex.break_offset(text)
    broken = len(text) if offset is None else offset
    place = f"{source}: broken at byte {broken} of {len(text)}"
    end, closing = _last_boundary(text, broken)
    if not closing:
        return None, f"{failure}; nothing could be saved"
    try:
        document = DumpDocument.parse(text[:end] + closing, source)
    except FormatError:
        return None, f"{place}: {failure}; nothing could be saved"
    return document, f"{place}: {len(document)} complete entries were saved, what follows is lost"


def _last_boundary(text: bytes, broken: int) -> tuple[int, bytes]:
    """The last place before ``broken`` at which the document can be closed without cutting a value, and how."""
    start, opened = _near_start(text, broken)
    boundary, closing, last = start, b"".join(opened), start
    for token in tokens(text, start, broken):
        character, last = token.group(), token.end()
        if character in _CLOSING:
            opened.append(_CLOSING[character])
        elif opened and character == opened[-1]:
            opened.pop()
        elif character == b'"':
            return boundary, closing
        if len(character) == 1 and 1 <= len(opened) <= 2:
            boundary = token.start() if character == b"," else last
            closing = b"".join(reversed(opened))
    literal = _LAST_LITERAL.fullmatch(text, last, broken)
    if literal is not None and 1 <= len(opened) <= 2:
        boundary, closing = literal.end(1), b"".join(reversed(opened))
    return boundary, closing


def _near_start(text: bytes, broken: int) -> tuple[int, list[bytes]]:
    """A place late in the text where the brackets still open are known, and what closes them; else the beginning.

    Spares the slow walk in indented documents: a comma, a line break and two spaces stand between entries.
    """
    comma = text.rfind(b',\n  "', 0, broken)
    if comma >= 0 and jsonindex.break_offset(text[:comma] + b"}}") is None:
        return comma, [b"}", b"}"]
    return 0, []
