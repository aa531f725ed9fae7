"""Reading one value of a configuration: a function takes what stands there and gives what it means.

Each raises ``ValueError`` with a text that goes on after ``{file}: {key}: ``; it never names the key itself.
"""

from __future__ import annotations

import difflib
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from numbers import Integral
from typing import Any, TypeAlias

__all__ = [
    "DataMode",
    "Reader",
    "boolean",
    "choice",
    "data_mode",
    "default_queue_bytes",
    "names",
    "numbers",
    "path",
    "risk",
    "size",
    "suggestion",
    "summary_mode",
]

Reader: TypeAlias = Callable[[Any], Any]

# As far as the peer counts; a slip like "0-9999999999" must not become a set of ten thousand million numbers.
_LAST = 1_000_000
_RANGE = re.compile(r"\s*([0-9]{1,9})\s*(?:-\s*([0-9]{1,9})\s*)?", re.ASCII)
_SIZE = re.compile(r"\s*([0-9]{1,18}(?:\.[0-9]+)?)\s*([kmgt]?)(i?)b?\s*", re.ASCII | re.IGNORECASE)
_MODES = ("all", "forward", "backward", "input", "output")
# What MindSpore can compute of a kernel's tensor (msprobe 26.2.0 takes the same words).
_STATISTICS = (
    "max", "min", "mean", "l2norm", "count", "negative zero count", "positive zero count", "nan count",
    "negative inf count", "positive inf count", "zero count", "hash", "md5",
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class DataMode:
    """What of each call is recorded. ``forward`` with ``input`` means inputs of forward calls and nothing else."""

    forward: bool = True
    backward: bool = True
    input: bool = True
    output: bool = True


def suggestion(word: str, known: Iterable[str]) -> str:
    """``; did you mean 'level'?``, or nothing when no known word is near."""
    by_lower = {name.lower(): name for name in known}
    near = difflib.get_close_matches(word.lower(), by_lower, n=1, cutoff=0.6)
    return f"; did you mean {by_lower[near[0]]!r}?" if near else ""


def boolean(value: Any) -> bool:
    """True or False; 0, 1 and ``"true"`` are none."""
    if not isinstance(value, bool):
        raise ValueError(f"{value!r} is neither true nor false")
    return value


def choice(*allowed: str) -> Reader:
    """A reader of one of some words."""

    def read(value: Any) -> str:
        if isinstance(value, str) and value in allowed:
            return value
        near = suggestion(value, allowed) if isinstance(value, str) else ""
        raise ValueError(f"{value!r} is none of {', '.join(allowed)}{near}")

    return read


def risk(value: Any) -> str:
    """``CORE``, ``FOCUS`` or ``ALL``."""
    return str(choice("CORE", "FOCUS", "ALL")(value))


def path(value: Any) -> str:
    """An absolute path: resolved now, so that a later ``chdir`` of the training changes nothing."""
    text = os.fspath(value) if isinstance(value, (str, os.PathLike)) else None
    if not isinstance(text, str) or not text.strip() or "\0" in text or not _is_of_file_system(text):
        raise ValueError(f"{value!r} is no path")
    return os.path.abspath(text)


def _is_of_file_system(text: str) -> bool:
    try:
        os.fsencode(text)
    except UnicodeEncodeError:  # half a character of JSON (``\\ud800``)
        return False
    return True


def names(value: Any) -> tuple[str, ...]:
    """A list of names, repeats left out."""
    if isinstance(value, str):
        raise ValueError(f"{value!r} is one text, a list of names is needed: [{value!r}]")
    if not isinstance(value, (list, tuple)):
        raise ValueError(f"{value!r} is no list of names")
    for name in value:
        if not isinstance(name, str) or not name.strip():
            raise ValueError(f"{name!r} in the list is no name")
    return tuple(dict.fromkeys(value))


def data_mode(value: Any) -> DataMode:
    """``all``, or any of the four; where only one kind is restricted, both of the other are meant."""
    chosen = names(value)
    for name in chosen:
        choice(*_MODES)(name)
    if "all" in chosen and len(chosen) > 1:
        raise ValueError(f"{list(chosen)!r}: 'all' stands alone")
    if not chosen or chosen == ("all",):
        return DataMode()
    directions, sides = {"forward", "backward"} & {*chosen}, {"input", "output"} & {*chosen}
    directions, sides = directions or {"forward", "backward"}, sides or {"input", "output"}
    return DataMode("forward" in directions, "backward" in directions, "input" in sides, "output" in sides)


def summary_mode(value: Any) -> str | tuple[str, ...]:
    """``statistics``, ``md5``, or a list of statistics."""
    if isinstance(value, str):
        return str(choice("statistics", "md5")(value))
    chosen = names(value)
    for name in chosen:
        choice(*_STATISTICS)(name)
    return chosen or "statistics"


def numbers(value: Any) -> frozenset[int] | None:
    """Steps or ranks: 3, ``"3"``, ``"4-6"``, or a list of these. None, an empty list: all of them."""
    items = value if isinstance(value, (list, tuple, range, set, frozenset)) else [value]
    found: set[int] = set()
    for item in items:
        found.update(_numbers_of(item))
    return frozenset(found) or None


def _numbers_of(item: Any) -> range:
    match = _RANGE.fullmatch(item) if isinstance(item, str) else None
    if match is not None:
        first, last = int(match[1]), int(match[2] or match[1])
    elif not isinstance(item, bool) and isinstance(item, Integral):
        first = last = int(item)
    else:
        raise ValueError(f'{item!r} is no number: write whole numbers from 0, "3", "4-6", or a list of these')
    if not 0 <= first <= _LAST or last > _LAST:
        raise ValueError(f"{item!r} is outside 0 … {_LAST}")
    if last < first:
        raise ValueError(f'{item!r} runs backwards; write "{last}-{first}"')
    return range(first, last + 1)


def size(value: Any) -> int:
    """Bytes: a whole number, or a text such as ``512 MB`` or ``2GiB``."""
    match = _SIZE.fullmatch(value) if isinstance(value, str) else None
    if match is not None:
        base = 1024 if match[3] else 1000
        found = int(float(match[1]) * base ** " kmgt".index(match[2].lower() or " "))
    elif isinstance(value, int) and not isinstance(value, bool):
        found = value
    else:
        raise ValueError(f"{value!r} is no size: write a number of bytes, or a text such as '2 GiB'")
    if found < 1:
        raise ValueError(f"{value!r}: at least one byte is needed")
    return found


def default_queue_bytes() -> int:
    """1 GiB, or an eighth of the machine's memory where that is less."""
    try:
        memory = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (AttributeError, OSError, ValueError):  # no POSIX, or a system that does not say
        return 1 << 30
    return min(1 << 30, max(memory, 1 << 26) // 8)
