"""JSON of values that are no tensor and hold none. Nothing here calls code of a value's own type.

Only types are looked at, and builtin slots (``int.__index__``, ``str.__str__``) are called instead of methods that a
subclass may have replaced: a value may be a lazy proxy, a generator or half-made.
"""

from __future__ import annotations

import math
import types
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, Final, NamedTuple

import numpy as np

from capture.framework import HostTensor, Wanted
from msformat import DType, DTypeError, canonical_crc32, dtype_from_numpy, tensor_stats

__all__ = [
    "NOT_A_LEAF",
    "SCALARS",
    "Fields",
    "NotALeaf",
    "array_record",
    "clean_text",
    "named_items",
    "not_captured",
    "numpy_scalar",
    "opaque",
    "plain",
    "slice_node",
    "type_name",
]


class NotALeaf:
    """Type of :data:`NOT_A_LEAF`."""

    __slots__ = ()


NOT_A_LEAF: Final = NotALeaf()
"""What ``Framework.leaf`` returns for a value that is not the framework's."""


class Fields(NamedTuple):
    """What ``Framework.leaf`` returns for a value with parts: they are recorded as a dict of these names would be."""

    parts: Mapping[str, Any]


# Beyond this a number is text: HDF5 and most JSON readers hold no more.
_INTEGERS = range(-(1 << 63), 1 << 64)
# str(int) refuses more than 4300 digits unless told otherwise, and takes time in the square of their number.
_DECIMAL_BITS = 4096
_HEX_BITS = 1 << 16


def type_name(kind: type) -> str:
    """``module.QualName``; builtins without their module."""
    module, name = type.__getattribute__(kind, "__module__"), type.__getattribute__(kind, "__qualname__")
    return clean_text(name if module == "builtins" or not isinstance(module, str) else f"{module}.{name}")


def not_captured(kind: str, reason: str) -> dict[str, Any]:
    """A node that says why there is nothing in it."""
    return {"type": kind, "value": None, "not_captured": clean_text(reason)}


def opaque(value: object) -> dict[str, Any]:
    """A value of which only the type is recorded; functions and classes by their name."""
    kind = type(value)
    name = None
    if kind in _NAMED:
        name = clean_text(f"{value.__module__}.{value.__qualname__}")  # type: ignore[attr-defined]
    return {"type": type_name(kind), "value": name}


def clean_text(text: str) -> str:
    """A plain str that UTF-8 can hold: lone surrogates become escapes."""
    text = str.__str__(text)
    if text.isascii():
        return text
    return text.encode("utf-8", "backslashreplace").decode("utf-8")


def plain(value: Any) -> dict[str, Any]:
    """Node of a bool, int, float, str or a subclass of theirs (an enum, say), by its builtin value."""
    kind = type(value)
    for base, unwrap in _BASES:
        if isinstance(value, base):
            return {"type": clean_text(kind.__name__), "value": unwrap(value)}
    return opaque(value)


def _integer(value: int) -> int | str:
    number = int.__index__(value)
    if number in _INTEGERS:
        return number
    bits = number.bit_length()
    if bits <= _DECIMAL_BITS:
        return str(number)
    return hex(number) if bits <= _HEX_BITS else f"an integer of {bits} bits"


def _int_node(value: int) -> dict[str, Any]:
    return {"type": "int", "value": _integer(value)}


def _complex_node(value: complex) -> dict[str, Any]:
    return {"type": "complex", "value": str(value)}  # JSON has no complex numbers


def slice_node(value: slice, number: Callable[[object], Any] | None = None) -> dict[str, Any]:
    """Node of a slice.

    Parameters
    ----------
    number
        Makes a number of a bound that is no integer, or None. Without it a float is kept, and a tensor, or whatever
        else a program slices with, is not asked for its number.
    """
    bounds = (value.start, value.stop, value.step)
    return {"type": "slice", "value": [None if bound is None else _bound(bound, number) for bound in bounds]}


def _bound(bound: object, number: Callable[[object], Any] | None) -> Any:
    if isinstance(bound, (int, np.integer)):
        return _integer(int(bound))
    if number is not None:
        return number(bound)
    return bound if type(bound) is float else None


def numpy_scalar(value: np.generic) -> dict[str, Any]:
    """Node of a numpy scalar: its Python value, or text where JSON has none."""
    item = value.item()
    if isinstance(item, int) and not isinstance(item, bool):
        item = _integer(item)
    elif not isinstance(item, (bool, float)):
        item = clean_text(str(item))
    return {"type": type(value).__name__, "value": item}


# --- arrays ----------------------------------------------------------------------------------------------------------


def array_record(value: np.ndarray[Any, Any], wanted: Wanted) -> tuple[dict[str, Any], HostTensor | None]:
    """Node and bits of a numpy array.

    Parameters
    ----------
    value
        Any array; a subclass is taken by its data.
    wanted
        As for tensors.
    """
    array = np.ndarray.view(value, np.ndarray)
    node: dict[str, Any] = {"type": "numpy.ndarray", "dtype": str(array.dtype), "shape": list(array.shape)}
    node |= dict.fromkeys(("Max", "Min", "Mean", "Norm"))
    try:
        dtype = dtype_from_numpy(array.dtype)
    except DTypeError as error:
        return node | {"not_captured": clean_text(str(error))}, None
    if not (wanted.statistics or wanted.md5 or wanted.data):
        return node, None
    bits = _bits(array, dtype, copy=wanted.data)
    if wanted.statistics:
        found = tensor_stats(bits, dtype)
        node |= {"Max": found.max, "Min": found.min, "Mean": found.mean, "Norm": found.norm}
        if array.dtype == np.bool_ and array.size:
            # As numpy counts truth values, and msprobe with it; of tensors they have none.
            share = np.count_nonzero(array) / array.size
            node |= {"Mean": share, "Norm": math.sqrt(np.count_nonzero(array))}
    if wanted.md5:
        node["md5"] = canonical_crc32(bits, dtype)
    return node, HostTensor(bits, dtype) if wanted.data else None


def _bits(array: np.ndarray[Any, Any], dtype: DType, *, copy: bool) -> np.ndarray[Any, Any]:
    little = array.astype(dtype.numpy, order="C", copy=copy)
    return dtype.to_bits(little)


# --- keys of mappings ------------------------------------------------------------------------------------------------


def named_items(
    items: Iterable[tuple[object, Any]], leaf: Callable[[object], Any], none: str = "None"
) -> Iterator[tuple[str, Any]]:
    """Items of a mapping under names: strings as they are, other keys as text, all different.

    ``{1: a, "1": b}`` gives ``1 (int)`` and ``1``: a string is never renamed.
    """
    held = list(items)
    taken = {clean_text(key) for key, _ in held if isinstance(key, str)}
    strings: set[str] = set()
    for number, (key, value) in enumerate(held):
        if isinstance(key, str):
            name = _fresh(clean_text(key), "str", strings)
            strings.add(name)
        else:
            text = none if key is None else _key_text(key, number, leaf)
            name = _fresh(text, type(key).__name__, taken)
        taken.add(name)
        yield name, value


def _fresh(text: str, kind: str, taken: set[str]) -> str:
    if text not in taken:
        return text
    others = (f"{text} ({kind} {number})" for number in range(2, len(taken) + 3))
    return next(name for name in chain([f"{text} ({kind})"], others) if name not in taken)


def _key_text(key: object, number: int, leaf: Callable[[object], Any]) -> str:
    """Text of a key that is no string; an object of unknown type is not asked, it gets its place as a number."""
    if key is None or type(key) in (bool, float, complex):
        return str(key)
    if isinstance(key, int):
        return str(_integer(key))
    if type(key) is tuple:
        parts = [repr(part) if type(part) is str else _key_text(part, number, leaf) for part in key]
        return clean_text(f"({', '.join(parts)}{',' if len(parts) == 1 else ''})")
    node = leaf(key)
    if isinstance(node, dict) and isinstance(node.get("value"), str):
        return clean_text(node["value"])
    return f"{type_name(type(key))}#{number}"


# --- tables ----------------------------------------------------------------------------------------------------------

_NAMED = (types.FunctionType, types.BuiltinFunctionType, type)
_BASES: tuple[tuple[type, Callable[[Any], Any]], ...] = (
    (int, _integer),
    (float, float.__float__),
    (str, clean_text),
)

SCALARS: Final[dict[type, Callable[[Any], Any]]] = {
    type(None): lambda _value: None,
    bool: lambda value: {"type": "bool", "value": value},
    int: _int_node,
    float: lambda value: {"type": "float", "value": value},
    str: lambda value: {"type": "str", "value": clean_text(value)},
    complex: _complex_node,
    slice: slice_node,
    type(...): lambda _value: {"type": "ellipsis", "value": "..."},
}
"""Exact type to what makes its node."""
