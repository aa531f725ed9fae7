"""What a caller hands in by mistake is refused at the door, by name: found in the middle, it costs the work so far."""

from __future__ import annotations

import json
import math
import os
from collections.abc import Iterable
from numbers import Integral, Real
from typing import Any

import numpy as np

from msformat.dtypes import DType
from msformat.errors import DTypeError, FormatError, StoreError

__all__ = [
    "check_bits",
    "listed_texts",
    "path_text",
    "require_at_least",
    "require_distinct_keys",
    "require_instance",
    "require_one_of",
    "require_real",
    "require_texts",
    "settle_selection",
    "several_texts",
]


def path_text(path: str | os.PathLike[str]) -> str:
    """A path or URL as text. Bytes, which ``os`` gives to who asks with bytes, are what the file system calls it.

    Raises
    ------
    StoreError
        It holds a NUL, as no path does.
    """
    text = os.fsdecode(path)
    if "\0" in text:
        raise StoreError(f"{text!r}: no path holds a NUL")
    return text


def require_instance(name: str, value: object, kind: type) -> None:
    """Refuse an object of another kind.

    Raises
    ------
    FormatError
        It is none; says what it is.
    """
    if not isinstance(value, kind):
        raise FormatError(f"{name}: a {kind.__name__} is needed, this is a {type(value).__name__}: {value!r:.80}")


def require_one_of(name: str, value: object, allowed: tuple[str, ...]) -> None:
    """Refuse what is none of some words.

    Raises
    ------
    FormatError
        Names them.
    """
    if value not in allowed:
        raise FormatError(f"{name}={value!r}: choose one of {', '.join(allowed)}")


def require_at_least(least: int, **numbers: object) -> None:
    """Refuse what is no whole number, or a smaller one.

    Raises
    ------
    FormatError
        Names it.
    """
    for name, value in numbers.items():
        if isinstance(value, bool) or not isinstance(value, Integral):
            raise FormatError(f"{name}={value!r}: a whole number is needed")
        if value < least:
            raise FormatError(f"{name}={value}: at least {least}")


def require_real(least: float | None = None, **numbers: object) -> None:
    """Refuse what is no number, NaN, or a smaller one than ``least``.

    Raises
    ------
    FormatError
        Names it.
    """
    start = "" if least is None else f" from {least:g} on"
    for name, value in numbers.items():
        is_none = isinstance(value, bool) or not isinstance(value, Real) or math.isnan(value)
        if is_none or (least is not None and value < least):  # type: ignore[operator]
            raise FormatError(f"{name}={value!r}: a threshold is a number{start}")


def _wanted_set(name: str, wanted: Any, *, words: bool = False) -> frozenset[Any] | None:
    """Steps or ranks as a set, whatever kind of collection they came in; None for all.

    Parameters
    ----------
    name
        What the caller calls them.
    wanted
        Whole numbers, of numpy too.
    words
        Whether labels (``"rank"``, ``"proc4711"``) may be among them.

    Raises
    ------
    FormatError
        One number or text alone (a text would be taken letter by letter), or something else among them.
    """
    if wanted is None:
        return None
    kinds = "numbers or labels" if words else "numbers"
    if isinstance(wanted, (str, bytes)) or not isinstance(wanted, Iterable):
        raise FormatError(f"{name}={wanted!r}: a set of {kinds} is needed, as {{0, 1}}")
    found = list(wanted)
    for item in found:
        is_number = isinstance(item, Integral) and not isinstance(item, bool)
        if not (is_number or (words and isinstance(item, str))):
            raise FormatError(f"{name}: {item!r} is none of the {kinds} that are needed")
    return frozenset(found)


def several_texts(name: str, given: Any) -> tuple[str, ...]:
    """One text or several as a tuple.

    Raises
    ------
    FormatError
        Something else, or among them.
    """
    if isinstance(given, str):
        return (given,)
    if isinstance(given, bytes) or not isinstance(given, Iterable):
        raise FormatError(f"{name}={given!r}: a text, or several, is needed")
    found = tuple(given)
    for item in found:
        if not isinstance(item, str):
            raise FormatError(f"{name}: {item!r} is no text")
    return found


def settle_selection(options: Any) -> None:
    """Check ``steps``, ``ranks`` and ``filter`` of frozen options, and keep them: a generator gives all but once."""
    patterns = several_texts("filter", options.filter)
    object.__setattr__(options, "steps", _wanted_set("steps", options.steps))
    object.__setattr__(options, "ranks", _wanted_set("ranks", options.ranks, words=True))
    object.__setattr__(options, "filter", options.filter if isinstance(options.filter, str) else patterns)


def listed_texts(name: str, texts: Iterable[str]) -> list[str]:
    """Texts as a list.

    Raises
    ------
    FormatError
        One alone, which would be taken letter by letter; or something else among them.
    """
    if isinstance(texts, str):
        raise FormatError(f"{name}={texts!r}: one text, a list is needed: [{texts!r}]")
    found = list(texts)
    require_texts(*found)
    return found


def require_texts(*values: object) -> None:
    """Refuse what the journal's reader would refuse.

    Raises
    ------
    FormatError
        One of them is no text.
    """
    for value in values:
        if not isinstance(value, str):
            raise FormatError(f"{value!r} is no string")


def require_distinct_keys(root: Any, source: str) -> None:
    """Refuse a dict whose keys become one in JSON (``3`` and ``"3"``): a value would be lost without a word.

    Raises
    ------
    FormatError
        Names the keys.
    """
    pending = [root]
    while pending:
        value = pending.pop()
        if isinstance(value, dict):
            if not all(type(key) is str for key in value):
                spelled = [
                    json.dumps(key) if key is None or isinstance(key, (bool, float)) else str(key) for key in value
                ]
                if len(set(spelled)) < len(spelled):
                    raise FormatError(f"{source}: keys {list(value)!r} are not distinct as text")
            pending.extend(value.values())
        elif isinstance(value, (list, tuple)):
            pending.extend(value)


def check_bits(key: object, bits: Any, dtype: object) -> None:
    """Refuse what no store could keep as a tensor of that name and type.

    Raises
    ------
    DTypeError
        ``bits`` are no array of ``dtype.storage``, or have a mask, which no store keeps; or ``dtype`` is a spelling and
        no :class:`DType`.
    FormatError
        The name is no text: no store could give it back, and one would notice only at the end.
    """
    require_texts(key)
    if not isinstance(dtype, DType):
        raise DTypeError(f"tensor {key!r}: dtype is {dtype!r}, not a DType; parse_dtype() makes one of a spelling")
    if type(bits) is not np.ndarray:
        _check_kind(key, bits, dtype)
    if bits.dtype != dtype.storage or (dtype.lanes > 1 and bits.shape[-1:] != (dtype.lanes,)):
        raise DTypeError(f"tensor {key!r}: {bits.dtype} {bits.shape} are no bits of {dtype.name}")


def _check_kind(key: object, bits: Any, dtype: DType) -> None:
    if isinstance(bits, np.ma.MaskedArray) and np.ma.is_masked(bits):
        raise DTypeError(f"tensor {key!r}: no store keeps the mask of a masked array: filled() gives values without")
    if not isinstance(bits, (np.ndarray, np.generic)):
        raise DTypeError(f"tensor {key!r}: a {type(bits).__name__} is no array of the bits of {dtype.name}")
