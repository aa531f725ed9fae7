"""JSON as Python writes it, fast; JSON from strangers, safely.

msprobe writes its documents by ``json.dump(…, indent=1)``: non-ASCII escaped, floats as Python's ``repr`` spells them,
NaN and infinities as the bare tokens ``NaN``, ``Infinity``, ``-Infinity``. :func:`canonical` gives the same bytes many
times faster: the C encoder of :mod:`json` knows no indent, so its compact text is indented afterwards by msgspec.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from itertools import count
from typing import Any, TypeAlias

import msgspec
import numpy as np

from msformat.errors import FormatError, SchemaError, UnsafeInputError
from msformat.model import MAX_DEPTH

__all__ = [
    "Buffer",
    "Masked",
    "bounded_int",
    "canonical",
    "check_bom",
    "compact",
    "constant_spans",
    "describe",
    "find_constants",
    "guard_recursion",
    "indent",
    "mask_constants",
    "parse_json",
    "parse_object",
    "quick_compact",
    "quick_compact_all",
    "tokens",
]

Buffer: TypeAlias = "bytes | bytearray | memoryview"

# Python's own limit (3.11 and later) is 4,300; 3.10 may have none and takes quadratic time.
_MAX_DIGITS = 4300
_TOO_MANY_DIGITS = 10**_MAX_DIGITS
# Up to here a parser in C meets Python's recursion limit before the end of its stack.
_SAFE_RECURSION = 10_000
_CONSTANT = re.compile(rb"NaN|Infinity")
_BEFORE = frozenset(b" \t\r\n:,[")
_AFTER = frozenset(b" \t\r\n,]}")
# A string, or one structural character. A lone quote is a string that never ends.
_TOKEN = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*"|[\[\]{},"]', re.DOTALL)
# In MessagePack: a float64 with the highest exponent.
_NOT_FINITE = re.compile(rb"\xcb[\x7f\xff][\xf0-\xff]")
# Numbers that Python may spell otherwise; in arrays and in objects. Patterns that begin with a fixed letter are fast.
_AFTER_COMMA = re.compile(rb",-?(?:0\.0000|[0-9.]+e)")
_AFTER_BRACKET = re.compile(rb"\[-?(?:0\.0000|[0-9.]+e)")
_BEFORE_TEXT = (b":", b",", b"[", b"{")
_ENCODER = msgspec.json.Encoder()
_MEMBER = re.compile(rb'":(-?(?:0\.0000\d+|[0-9.]+e-?\d+))')
_encode = json.JSONEncoder(separators=(",", ":")).encode


# --- writing ---------------------------------------------------------------------------------------------------------


def compact(obj: Any) -> bytes:
    """One line of ASCII without spaces; numbers spelled as in :func:`canonical`.

    Scalars of numpy become Python's, and integers of more digits than readers take become their text in hexadecimal.

    Raises
    ------
    FormatError
        The object has parts that JSON does not know, holds itself, or is nested too deep.
    """
    try:
        return _encode(obj).encode("ascii")
    except RecursionError as error:
        raise UnsafeInputError("containers lie too deep to be written as JSON") from error
    except (TypeError, ValueError) as error:
        failure = error
    try:
        return _encode(_plain(obj)).encode("ascii")
    except (TypeError, ValueError):
        raise FormatError(f"cannot be written as JSON: {failure}") from failure


def quick_compact(obj: Any) -> bytes:
    """:func:`compact` of dicts with text keys, lists, text, numbers and None, five times as fast.

    msgspec spells all of these as Python does, except what is looked for here: numbers near zero or with an exponent,
    which are spelled anew, and NaN, infinities and unusual characters, which are left to Python.

    Raises
    ------
    FormatError
        As :func:`compact`. Objects of other types may be written in msgspec's way instead.
    """
    try:
        text = _quick_text(obj)
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError):
        text = None
    return compact(obj) if text is None else text


def quick_compact_all(objects: Sequence[Any]) -> list[bytes]:
    """:func:`quick_compact` of many; one pass for all of them where nothing is unusual."""
    try:
        lines = _quick_text(objects, _ENCODER.encode_lines) if all(type(obj) is dict for obj in objects) else None
    except (msgspec.MsgspecError, TypeError, ValueError, OverflowError, RecursionError):
        lines = None
    # No text holds a line break: it would be written with a backslash.
    return [quick_compact(obj) for obj in objects] if lines is None else lines.split(b"\n")[: len(objects)]


def _quick_text(obj: Any, encode: Callable[[Any], bytes] = msgspec.json.encode) -> bytes | None:
    """None or ValueError where Python may spell something otherwise."""
    text = encode(obj)
    if not text.isascii() or b"\\" in text or b"\x7f" in text or text[:1] not in (b"{", b"["):
        return None
    if _AFTER_COMMA.search(text) or _AFTER_BRACKET.search(text):
        return None
    # NaN and infinities are null, too.
    if b"null" in text and _NOT_FINITE.search(msgspec.msgpack.encode(obj)):
        return None
    return _respelled(text)


def _respelled(text: bytes) -> bytes:
    """Numbers as Python spells them, all by one call."""
    parts = _MEMBER.split(text)
    # No backslash in the text: a quote behind one of these may begin a text, and what follows may be its letters.
    if any(before[-1:] in _BEFORE_TEXT for before in parts[:-1:2]):
        raise ValueError("unclear")
    numbers = repr(list(map(float, parts[1::2])))[1:-1].split(", ")
    parts[1::2] = [b'":%b' % number.encode() for number in numbers] if len(parts) > 1 else []
    return b"".join(parts)


def _plain(root: Any) -> Any:
    """A copy of plain containers and values, without recursion; what is none stays for the encoder to refuse."""
    top: list[Any] = [root]
    pending: list[tuple[Any, Any]] = [(top, 0)]
    seen: dict[int, Any] = {}
    while pending:
        parent, slot = pending.pop()
        value = parent[slot]
        # A container met before is the same again, so that one that holds itself still does and is refused.
        if isinstance(value, (dict, list, tuple)):
            new = seen.get(id(value))
            if new is None:
                if isinstance(value, dict):
                    new = {_plain_leaf(key): child for key, child in value.items()}
                else:
                    new = list(value)
                seen[id(value)] = new
                pending.extend((new, at) for at in (new if isinstance(new, dict) else range(len(new))))
            parent[slot] = new
        else:
            parent[slot] = _plain_leaf(value)
    return top[0]


def _plain_leaf(value: Any) -> Any:
    if isinstance(value, np.floating):
        return float(value)  # item() of a longdouble stays one
    if isinstance(value, np.generic):
        value = value.item()
    if isinstance(value, int) and abs(value) >= _TOO_MANY_DIGITS:
        return hex(value)
    return value


def canonical(obj: Any) -> bytes:
    """``json.dumps(obj, indent=1).encode()``, byte for byte.

    Raises
    ------
    FormatError
        As :func:`compact`.
    """
    return indent(compact(obj))


def indent(text: bytes) -> bytes:
    """The text of :func:`compact` as :func:`canonical` gives it.

    Raises
    ------
    UnsafeInputError
        Containers lie too deep.
    """
    try:
        return _indent(text)
    except RecursionError as error:
        raise UnsafeInputError("containers lie too deep to be written as JSON") from error
    except msgspec.DecodeError:
        # Lone surrogates are JSON to Python, not to msgspec.
        return json.dumps(json.loads(text), indent=1).encode("ascii")


def _indent(text: bytes) -> bytes:
    positions = find_constants(text)
    if not positions:
        return msgspec.json.format(text, indent=1)
    # msgspec knows no NaN: numbers that occur nowhere in the text stand in for the tokens while it works.
    standins = _standins(text)
    parts: list[bytes] = []
    start = 0
    for position in positions:
        token = _constant_at(text, position)
        parts += (text[start:position], standins[token])
        start = position + len(token)
    indented = msgspec.json.format(b"".join((*parts, text[start:])), indent=1)
    for token, standin in standins.items():
        indented = indented.replace(standin, token)
    return indented


def _standins(text: bytes) -> dict[bytes, bytes]:
    # "e" between digits, no sign: Python never spells a float like that, so only strings can hold it.
    unused = (number for number in (b"%de1" % value for value in count(100)) if number not in text)
    return {token: next(unused) for token in (b"NaN", b"Infinity")}


# --- bare NaN and Infinity -------------------------------------------------------------------------------------------


def find_constants(text: bytes | bytearray) -> list[int]:
    """Offsets of the tokens ``NaN`` and ``Infinity`` (behind its sign, if any) that stand outside of strings.

    Whether a place is inside a string follows from the quotes since the last place that is known: the hit before, or
    the last line break, because a JSON string holds none. Linear in the length of the text.
    """
    found: list[int] = []
    if b"NaN" not in text and b"Infinity" not in text:
        return found
    known, inside = 0, False
    for hit in _CONSTANT.finditer(text):
        position = hit.start()
        line = text.rfind(b"\n", known, position)
        if line >= 0:
            known, inside = line, False
        inside ^= _odd_quotes(text[known:position])
        known = position
        if not inside and _stands_alone(text, position, hit.end()):
            found.append(position)
    return found


def constant_spans(text: bytes) -> list[tuple[int, int]]:
    """First and end of each bare ``NaN``, ``Infinity`` and ``-Infinity``, its sign included."""
    spans: list[tuple[int, int]] = []
    for position in find_constants(text):
        is_negative = text[max(position - 1, 0) : position] == b"-"
        spans.append((position - is_negative, position + len(_constant_at(text, position))))
    return spans


def _odd_quotes(part: bytes | bytearray) -> bool:
    if b"\\" in part:
        part = part.replace(b"\\\\", b"").replace(b'\\"', b"")
    return part.count(b'"') % 2 == 1


def _constant_at(text: bytes | bytearray, position: int) -> bytes:
    return b"NaN" if text[position] == ord("N") else b"Infinity"


def _stands_alone(text: bytes | bytearray, start: int, end: int) -> bool:
    if text[start - 1 : start] == b"-" and text[start] == ord("I"):
        start -= 1
    return (start == 0 or text[start - 1] in _BEFORE) and (end == len(text) or text[end] in _AFTER)


@dataclass(frozen=True, slots=True)
class Masked:
    """A copy of a text in which each bare NaN or Infinity is a number of the same length, and where those are."""

    text: bytearray
    positions: list[int]


def mask_constants(data: Buffer) -> Masked | None:
    """Make a text with bare NaN or Infinity readable for strict parsers; None where there is no such token."""
    text = bytearray(data)
    positions = find_constants(text)
    if not positions:
        return None
    for position in positions:
        length = len(_constant_at(text, position))
        text[position : position + length] = b"0.0".ljust(length, b"0")
    return Masked(text, positions)


# --- reading ---------------------------------------------------------------------------------------------------------


def parse_json(data: Buffer, source: str, *, max_depth: int = MAX_DEPTH) -> Any:
    """Decode JSON from a stranger; NaN and Infinity are welcome.

    Parameters
    ----------
    data
        UTF-8 without a byte order mark.
    source
        Where it came from, for messages.
    max_depth
        Containers inside one another.

    Raises
    ------
    SchemaError
        Not UTF-8, or no JSON: says at which byte.
    UnsafeInputError
        Nested too deep, or an integer of too many digits.
    """
    guard_recursion(data, source, max_depth)
    try:
        value = msgspec.json.decode(data)
    except RecursionError as error:
        raise _too_deep(source, max_depth) from error
    except (msgspec.MsgspecError, UnicodeDecodeError):
        value = _python_loads(data, source, max_depth)
    # An entry has a dozen brackets: counting them is far cheaper than walking its values.
    if not isinstance(data, bytes) or data.count(b"[") + data.count(b"{") > max_depth:
        _check_depth(value, source, max_depth)
    return value


def parse_object(data: Buffer, source: str) -> dict[str, Any]:
    """:func:`parse_json` of a document that must be an object.

    Raises
    ------
    SchemaError
        As :func:`parse_json`, and for any other JSON value.
    """
    value = parse_json(data, source)
    if not isinstance(value, dict):
        raise SchemaError(source, "", expected="an object", found=describe(value))
    return value


def _python_loads(data: Buffer, source: str, max_depth: int) -> Any:
    """Python's parser: knows NaN and lone surrogates, and says best what is wrong."""
    check_bom(data, source)
    try:
        text = bytes(data).decode("utf-8")
    except UnicodeDecodeError as error:
        raise SchemaError(source, "", expected="UTF-8", found=f"other bytes at byte {error.start}") from error
    try:
        return json.loads(text, parse_int=bounded_int)
    except RecursionError as error:
        raise _too_deep(source, max_depth) from error
    except json.JSONDecodeError as error:
        at = len(text[: error.pos].encode("utf-8", "surrogatepass"))
        raise SchemaError(source, "", expected="JSON", found=f"{error.msg} at byte {at} of {len(data)}") from error
    except UnsafeInputError as error:
        raise UnsafeInputError(f"{source}: {error}") from error


def check_bom(data: Buffer, source: str) -> None:
    """Refuse a byte order mark by name; JSON has none (RFC 8259, section 8.1)."""
    if bytes(data[:3]) == b"\xef\xbb\xbf" or bytes(data[:2]) in (b"\xff\xfe", b"\xfe\xff"):
        raise SchemaError(source, "", expected="UTF-8 without a byte order mark", found="a byte order mark at byte 0")


def bounded_int(digits: str) -> int:
    """An integer of JSON, unless it is so long that reading it would hang (UnsafeInputError)."""
    if len(digits.lstrip("-")) > _MAX_DIGITS:
        raise UnsafeInputError(f"an integer of {len(digits)} digits, more than the {_MAX_DIGITS} allowed")
    return int(digits)


def _too_deep(source: str, max_depth: int) -> UnsafeInputError:
    return UnsafeInputError(f"{source}: containers lie more than {max_depth} deep")


def tokens(data: Buffer, start: int = 0, end: int | None = None) -> Iterator[re.Match[bytes]]:
    """Strings and structural characters (``[]{},``) in order; a lone quote is a string that never ends, and the last.

    Slow (a Python step a token): for damaged or suspicious text.
    """
    for token in _TOKEN.finditer(data, start, len(data) if end is None else end):
        yield token
        if token.group() == b'"':
            return


def guard_recursion(data: Buffer, source: str, max_depth: int = MAX_DEPTH) -> None:
    """Look for deep nesting before a parser in C overflows its stack, where the program raised Python's limit.

    Raises
    ------
    UnsafeInputError
        Nested too deep.
    """
    if sys.getrecursionlimit() <= _SAFE_RECURSION:
        return
    depth = 0
    for token in tokens(data):
        character = token.group()
        depth += (character in (b"[", b"{")) - (character in (b"]", b"}"))
        if depth > max_depth:
            raise _too_deep(source, max_depth)


def _check_depth(value: Any, source: str, max_depth: int) -> None:
    """Walk containers level by level, so that nothing recurses."""
    level = [value] if isinstance(value, (dict, list)) else []
    for _ in range(max_depth):
        if not level:
            return
        level = [
            child
            for parent in level
            for child in (parent.values() if type(parent) is dict else parent)
            if type(child) in (dict, list)
        ]
    if level:
        raise _too_deep(source, max_depth)


def describe(value: Any) -> str:
    """A JSON value in words, for messages."""
    names = {dict: "an object", list: "an array", str: "a string", bool: "a boolean", type(None): "null"}
    kind = names.get(type(value), "a number")
    if value is None or isinstance(value, (dict, list)):
        return kind
    if isinstance(value, int) and value.bit_length() > 256:  # Python may refuse to spell it
        return f"{kind} of {value.bit_length()} bits"
    text = repr(value)
    return f"{kind} {text if len(text) <= 60 else text[:57] + '...'}"
