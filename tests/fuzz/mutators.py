"""Changes inside of a structure: lengths and checksums are made to fit again, so that what lies behind them is met."""

from __future__ import annotations

import json
import zlib
from collections.abc import Callable
from random import Random
from typing import Any

from msformat.errors import MsformatError
from msformat.stores.zarr_codecs import crc32c
from msformat.stores.zipmembers import read_members, zip_parts
from tests.fuzz.samples import pack_tree, unpack_tree
from tests.fuzz.target import Change

__all__ = ["change_json", "change_lines", "change_shard", "change_text", "change_tree", "change_zip"]

_NUMBERS = (0, 1, -1, 2, 7, 63, 64, 255, 1 << 16, (1 << 31) - 1, 1 << 31, 1 << 32, (1 << 63) - 1, 1 << 63, 10**30, 0.5)
_TEXTS = ("", "a", "..", "/", "\0", "float32", "bfloat16", "int4", "complex64", "NaN", "\ud800", "x" * 300, "1", "ü")
_VALUES: tuple[Any, ...] = (*_NUMBERS, *_TEXTS, None, True, False, float("nan"), float("-inf"), [], {}, [[]], [0] * 9)


# --- JSON ----------------------------------------------------------------------------------------------------------


def change_json(data: bytes, change: Change, random: Random) -> bytes:
    """One value of a document changed; bytes of it, now and then, or where it is none."""
    if random.random() < 0.3:
        return change(data)
    try:
        value = json.loads(data)
    except (ValueError, RecursionError):
        return change(data)
    slots = list(_slots(value))
    if not slots:
        return change(data)
    _change_slot(*random.choice(slots), slots, change, random)
    try:
        return json.dumps(value, indent=random.choice((None, 1, 1))).encode()
    except (ValueError, RecursionError):  # it was put into itself
        return data


def _slots(root: Any) -> Any:
    """Every place of a value in its container, outer ones first."""
    pending = [root]
    while pending:
        parent = pending.pop(0)
        if isinstance(parent, (dict, list)):
            for slot in list(parent) if isinstance(parent, dict) else range(len(parent)):
                yield parent, slot
                pending.append(parent[slot])


def _change_slot(parent: Any, slot: Any, slots: list[Any], change: Change, random: Random) -> None:
    kind = random.randrange(6)
    if kind == 0:
        parent[slot] = random.choice(_VALUES)
    elif kind == 1:
        other, place = random.choice(slots)
        parent[slot] = other.get(place) if isinstance(other, dict) else other[place]
    elif kind == 2:
        del parent[slot]
    elif kind == 3 and isinstance(parent, dict):
        parent[random.choice((*_TEXTS, *map(str, parent)))] = parent.pop(slot)
    elif kind == 4 and isinstance(parent, list):
        parent.insert(slot, random.choice(_VALUES))
    elif isinstance(parent[slot], str):
        parent[slot] = change_text(parent[slot], change)
    else:
        parent[slot] = random.choice(_NUMBERS)


def change_text(text: str, change: Change) -> str:
    """Some text, its bytes changed."""
    return change(text.encode("utf-8", "surrogatepass")).decode("utf-8", "replace")


# --- lines with checksums -------------------------------------------------------------------------------------------


def change_lines(
    data: bytes, change: Change, random: Random, payload: Callable[[bytes], bytes], seal: Callable[[bytes], bytes]
) -> bytes:
    """Lines with checksums: one is changed inside, or lines are dropped, doubled, swapped or torn.

    Parameters
    ----------
    payload
        What a line's checksum is of.
    seal
        The line of a payload.
    """
    lines = data.splitlines(keepends=True)
    if not lines or random.random() < 0.1:
        return change(data)
    at = random.randrange(len(lines))
    kind = random.randrange(8)
    if kind == 0:
        del lines[at]
    elif kind == 1:
        lines.insert(at, lines[random.randrange(len(lines))])
    elif kind == 2:
        other = random.randrange(len(lines))
        lines[at], lines[other] = lines[other], lines[at]
    elif kind == 3:
        lines[at] = lines[at][: random.randrange(len(lines[at]) + 1)]
    else:
        lines[at] = seal(change_json(payload(lines[at]), change, random).replace(b"\n", b""))
    return b"".join(lines)


def seal_index_line(text: bytes) -> bytes:
    """A line of ``index.jsonl``: the checksum is its last member."""
    return text + b',"crc32":"%08x"}\n' % zlib.crc32(text)


# --- trees of files ---------------------------------------------------------------------------------------------------


def change_tree(data: bytes, change: Change, random: Random, inside: Callable[[str, bytes], bytes]) -> bytes:
    """A tree of files (:func:`~tests.fuzz.samples.pack_tree`): one is changed inside, dropped, renamed or doubled."""
    files = unpack_tree(data)
    if not files:
        return change(data)
    name = random.choice(sorted(files))
    kind = random.randrange(12)
    if kind == 0:
        del files[name]
    elif kind == 1:
        files[change_text(name, change)] = files.pop(name)
    elif kind == 2:
        files[random.choice(sorted(files))] = files[name]
    else:
        files[name] = inside(name, files[name])
    try:
        return pack_tree(files)
    except (ValueError, UnicodeError):  # no name of a member
        return data


def change_shard(data: bytes, change: Change, random: Random) -> bytes:
    """A shard of Zarr: its index behind the chunks, with the checksum that fits."""
    for count in (32, 8, 4, 2, 1):
        index = data[-(16 * count + 4) :]
        if len(index) == 16 * count + 4 and crc32c(index[:-4]) == int.from_bytes(index[-4:], "little"):
            numbers = bytearray(index[:-4])
            at = 8 * random.randrange(2 * count)
            numbers[at : at + 8] = random.choice(_spans(len(data))).to_bytes(8, "little")
            new = bytes(numbers) if random.random() < 0.7 else change(bytes(numbers))
            return data[: -len(index)] + new + crc32c(new).to_bytes(4, "little")
    return change(data)


def _spans(length: int) -> tuple[int, ...]:
    return (0, 1, length, length - 1, 1 << 32, 1 << 63, (1 << 64) - 1, (1 << 64) - 2, length // 2)


# --- zip ------------------------------------------------------------------------------------------------------------


def change_zip(data: bytes, change: Change, random: Random) -> bytes:
    """A stored zip: one member is changed, and the directory is written anew; now and then the bytes themselves."""
    if random.random() < 0.3:
        return change(data)
    try:
        members = read_members(data, "")
    except MsformatError:
        return change(data)
    files = {name: data[member.offset : member.offset + member.size] for name, member in members.items()}
    if not files:
        return change(data)
    # The description is where most can go wrong.
    name = random.choice(sorted(files) + [each for each in files if each.endswith("data.pkl")] * 6)
    if random.random() < 0.1:
        files[change_text(name, change)] = files.pop(name)
    else:
        files[name] = change(files[name])
    return b"".join(zip_parts([(each, [content]) for each, content in files.items()]))
