"""Where the values of a large JSON object lie, without decoding them.

Four ways, the fast one first; all give the same index:

0. a large document that is laid out as msprobe does, piece by piece (:mod:`msformat.jsonstream`);
1. msgspec with a raw value a key, on the text as it is (mapped files are not copied);
2. the same on a copy in which bare NaN and Infinity are numbers of the same length: offsets stay true, values are
   always decoded from the original;
3. Python's own parser, for lone surrogates (``"\\ud800"``), which msgspec refuses and Python writes.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, TypeAlias

import msgspec

from msformat.errors import SchemaError, UnsafeInputError
from msformat.jsonstream import Key, address, stream_index
from msformat.jsontext import Buffer, bounded_int, check_bom, guard_recursion, mask_constants
from msformat.model import MAX_DEPTH

__all__ = ["Index", "Part", "break_offset", "index_document"]

# The bytes of one value, in place.
Part: TypeAlias = "bytes | memoryview | msgspec.Raw"

_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
# Bytes that are not UTF-8 raise the second in older releases of msgspec.
_Refusal = (msgspec.DecodeError, UnicodeDecodeError)
_BYTE = re.compile(r"\(byte (\d+)\)")
_SPACE = re.compile(r"[ \t\n\r]*")


@dataclass(frozen=True, slots=True)
class Index:
    """Values of a document by key.

    Attributes
    ----------
    header
        Every top-level key in order; ``data`` is there too.
    entries
        Keys of the object under ``data``; empty when that is no object, or missing.
    repeated
        Keys that occur more than once, header first. The last value counts, as everywhere in JSON.
    """

    header: dict[str, Part]
    entries: Mapping[str, Part]
    repeated: list[str]


def index_document(data: Buffer, source: str) -> Index:
    """Index a dump document.

    Raises
    ------
    SchemaError
        No JSON object; says at which byte.
    UnsafeInputError
        Nested too deep.
    """
    guard_recursion(data, source)
    check_bom(data, source)
    try:
        return _streamed_index(data) or _quick_index(data, source)
    except RecursionError as error:
        raise UnsafeInputError(f"{source}: containers lie more than {MAX_DEPTH} deep") from error


def _streamed_index(data: Buffer) -> Index | None:
    found = stream_index(data)
    if found is None:
        return None
    try:
        outline = _strict_index(found.outline, "")
    except (SchemaError, *_Refusal):
        return None
    body = outline.header.get("data")
    # The entries are those of the document's own "data", and of no object further in.
    if outline.repeated or body is None or address(body) - address(found.outline) != found.brace:
        return None
    return Index(outline.header, found.entries, [])


def _quick_index(data: Buffer, source: str) -> Index:
    failure: Exception
    try:
        return _strict_index(data, source)
    except _Refusal as error:
        failure = error
    masked = mask_constants(data)
    if masked is not None:
        try:
            return _moved(_strict_index(masked.text, source), masked.text, memoryview(data).cast("B"))
        except _Refusal as error:
            failure = error
    if _SURROGATE.search(data):
        return _python_index(data, source)
    raise SchemaError(source, "", expected="JSON", found=_what_broke(failure, len(data)))


def break_offset(data: Buffer) -> int | None:
    """The byte at which a text stops being the beginning of JSON, None where it is whole.

    Bare NaN and Infinity are welcome.
    """
    masked = mask_constants(data)
    try:
        msgspec.json.decode(data if masked is None else masked.text, type=msgspec.Raw)
    except msgspec.DecodeError as error:
        return _byte_of(error, len(data))
    except RecursionError:
        # Where is not said; nothing of it is worth a search.
        return 0
    return None


def _byte_of(error: Exception, length: int) -> int:
    found = _BYTE.search(str(error))
    return int(found.group(1)) if found else length


def _what_broke(error: Exception, length: int) -> str:
    if not length:
        return "nothing (0 bytes)"
    text = str(error)
    if "truncated" in text:
        return f"a text that ends too early, at byte {length}"
    if "utf-8" in text.lower():
        return "a key that is not UTF-8"
    reason = _BYTE.sub("", text.removeprefix("JSON is malformed: ")).strip()
    return f"{reason} at byte {_byte_of(error, length)} of {length}"


# --- msgspec ---------------------------------------------------------------------------------------------------------


def _raw_object(data: Buffer | msgspec.Raw) -> tuple[dict[str, Part], list[str]]:
    """Raw values by key in order, and the keys that occur more than once."""
    seen: list[str] = []

    def remember(_: type, key: str) -> Key:
        seen.append(key)
        return Key(key)

    found = msgspec.json.decode(data, type=dict[Key, msgspec.Raw], dec_hook=remember)
    if len(seen) == len(found):
        return dict(zip(seen, found.values(), strict=True)), []
    repeated = [key for key, times in Counter(seen).items() if times > 1]
    return {str(key): raw for key, raw in found.items()}, repeated


def _strict_index(data: Buffer, source: str) -> Index:
    try:
        header, repeated = _raw_object(data)
    except msgspec.ValidationError as error:
        raise SchemaError(source, "", expected="an object", found=_kind(bytes(data[:64]))) from error
    entries: dict[str, Part] = {}
    if "data" in header and bytes(memoryview(header["data"])[:1]) == b"{":
        entries, more = _raw_object(header["data"])
        repeated += more
    return Index(header, entries, repeated)


def _kind(start: bytes) -> str:
    kinds = {b"[": "an array", b'"': "a string", b"n": "null", b"t": "a boolean", b"f": "a boolean"}
    return kinds.get(start.lstrip(b" \t\r\n")[:1], "a number")


def _moved(index: Index, copy: bytearray, original: memoryview) -> Index:
    """The same index into the original text; the copy can go."""
    base = address(copy)

    def original_part(part: Part) -> Part:
        start = address(part) - base
        return original[start : start + len(memoryview(part))]

    return Index(
        {key: original_part(part) for key, part in index.header.items()},
        {key: original_part(part) for key, part in index.entries.items()},
        index.repeated,
    )


# --- Python ----------------------------------------------------------------------------------------------------------


def _python_index(data: Buffer, source: str) -> Index:
    try:
        text = bytes(data).decode("utf-8")
        header, repeated, end = _scan_object(text, 0)
        if _skip(text, end) != len(text):
            raise json.JSONDecodeError("trailing characters", text, end)
        entries: dict[str, Part] = {}
        if "data" in header and header["data"][:1] == b"{":
            entries, more, _ = _scan_object(bytes(header["data"]).decode("utf-8"), 0)
            repeated += more
    except UnicodeDecodeError as error:
        raise SchemaError(source, "", expected="UTF-8", found=f"other bytes at byte {error.start}") from error
    except json.JSONDecodeError as error:
        at = len(error.doc[: error.pos].encode("utf-8"))
        raise SchemaError(source, "", expected="JSON", found=f"{error.msg} at byte {at} of {len(data)}") from error
    except UnsafeInputError as error:
        raise UnsafeInputError(f"{source}: {error}") from error
    return Index(dict(header), entries, repeated)


def _scan_object(text: str, start: int) -> tuple[dict[str, Any], list[str], int]:
    """Bytes of the values of an object, the keys that occur more than once, and where the object ends."""
    decoder = json.JSONDecoder(parse_int=bounded_int)
    values: dict[str, bytes] = {}
    repeated: dict[str, None] = {}
    at = _skip(text, _expect(text, _skip(text, start), "{"))
    more = text[at : at + 1] != "}"
    while more:
        _expect(text, at, '"')
        key, at = decoder.raw_decode(text, at)
        at = _skip(text, _expect(text, _skip(text, at), ":"))
        _, end = decoder.raw_decode(text, at)
        if key in values:
            repeated[key] = None
        values[key] = text[at:end].encode("utf-8")
        at = _skip(text, end)
        more = text[at : at + 1] == ","
        at = _skip(text, at + 1) if more else at
    return values, list(repeated), _expect(text, at, "}")


def _skip(text: str, at: int) -> int:
    found = _SPACE.match(text, at)
    return at if found is None else found.end()


def _expect(text: str, at: int, character: str) -> int:
    if text[at : at + 1] != character:
        raise json.JSONDecodeError(f"Expecting {character!r}", text, at)
    return at + 1
