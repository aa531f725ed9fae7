"""From the arguments and results of a call to JSON, statistics and bits: one walk over nested values.

Walked are lists, tuples, dicts and mappings, namedtuples and dataclasses, and nothing else: a generator is not
consumed, an object of unknown type is not asked for its length, its items or its attributes. A value that cannot be
recorded costs itself only and says why.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterable, Mapping
from functools import partial
from itertools import islice
from typing import Any, TypeAlias

import numpy as np

from capture.framework import Framework, HostTensor, Wanted
from capture.values import (
    NOT_A_LEAF,
    SCALARS,
    Fields,
    array_record,
    clean_text,
    named_items,
    not_captured,
    numpy_scalar,
    opaque,
    plain,
    slice_node,
    type_name,
)

__all__ = ["EntryRecord", "Recorder"]


class EntryRecord:
    """One entry on its way to the dump.

    Attributes
    ----------
    key
        Entry key.
    value
        Its slots, in canonical order.
    tensors
        Raw ``data_name``, bits, and the node that gets the final name, of every tensor to be stored.
    pending
        Nodes whose statistics are still on the device, with what ``Framework.resolve`` needs.
    done
        Whether everything of it was recorded.
    """

    __slots__ = ("done", "key", "pending", "tensors", "value")

    def __init__(self, key: str) -> None:
        self.key = key
        self.value: dict[str, Any] = {}
        self.tensors: list[tuple[str, HostTensor, dict[str, Any]]] = []
        self.pending: list[tuple[dict[str, Any], object]] = []
        self.done = False

    @property
    def nbytes(self) -> int:
        """Bytes of host tensors that are not stored yet; what occurs twice counts once."""
        return sum(host.nbytes for host in {host for _, host, _ in self.tensors} if host.bits is not None)


_Handler: TypeAlias = "Callable[[_Walk, Any, str], Any]"


class Recorder:
    """Walks values for one framework.

    Parameters
    ----------
    framework
        Whose tensors may occur.
    max_depth
        Containers inside one another; what lies deeper is not recorded. msprobe 8.1.0 gives up at 50.
    on_problem
        Told the kind of a problem, the name of the value and what happened; the value says so too.
    """

    # Lists that share their parts double at every level: depth alone bounds nothing.
    MAX_VALUES = 1 << 16
    # Types made on the fly would otherwise fill the table for ever.
    _MAX_TYPES = 4096

    def __init__(
        self, framework: Framework, *, max_depth: int = 50, on_problem: Callable[[str, str, str], None]
    ) -> None:
        self.framework = framework
        self.max_depth = max_depth
        self.on_problem = on_problem
        self._handlers: dict[type, _Handler] = {}
        rules = framework.rules
        self._opaque = _null if rules.odd_is_null else opaque
        self._scalars: dict[type, Callable[[Any], Any]] = {**SCALARS, slice: partial(slice_node, number=rules.bound)}
        if rules.odd_is_null:
            self._scalars[complex] = _null
        self.named = rules.named

    def values(self, value: Any, name: str, entry: EntryRecord, wanted: Wanted) -> Any:
        """JSON of a nested value; its tensors go to the entry.

        Parameters
        ----------
        value
            Anything.
        name
            ``{entry key}.{category}``: the tensor at ``value[0]["left"]`` gets the raw name ``{name}.0.left{suffix}``.
        entry
            Gets tensors and pending statistics.
        wanted
            What tensors are recorded with.
        """
        return _Walk(self, entry, wanted).node(value, name)

    def handler(self, value: Any) -> _Handler:
        """What records values of this type."""
        found = self._handlers.get(type(value))
        if found is None:
            found = self._classify(value)
            if len(self._handlers) >= self._MAX_TYPES:
                self._handlers.clear()
            self._handlers[type(value)] = found
        return found

    def _classify(self, value: Any) -> _Handler:
        kind = type(value)
        if kind is _Unreadable:
            return _Walk.unreadable
        if self.framework.is_tensor(value):
            return _Walk.tensor
        if kind in self._scalars:
            return _scalar(self._scalars[kind])
        if issubclass(kind, np.ndarray):
            return _Walk.array
        if issubclass(kind, np.generic):
            return _scalar(numpy_scalar)
        if self.framework.leaf(value) is not NOT_A_LEAF:
            return _Walk.leaf
        return _container_handler(kind) or _scalar(plain if issubclass(kind, (int, float, str)) else self._opaque)


def _null(_value: object) -> None:
    """What the format does not know, in dumps that leave it out."""


def _scalar(make: Callable[[Any], Any]) -> _Handler:
    return lambda _walk, value, _name: make(value)


def _container_handler(kind: type) -> _Handler | None:
    """In the order of msprobe: fields go before items."""
    if issubclass(kind, tuple) and _field_names(kind) is not None:
        return _Walk.named_tuple
    if dataclasses.is_dataclass(kind):
        return _Walk.data_class
    if issubclass(kind, (list, tuple)):
        return _Walk.sequence
    if issubclass(kind, dict):
        return _Walk.dictionary
    return _Walk.mapping if issubclass(kind, Mapping) else None


def _field_names(kind: type) -> tuple[str, ...] | None:
    names = getattr(kind, "_fields", None)
    return names if isinstance(names, tuple) and all(isinstance(name, str) for name in names) else None


class _Walk:
    """One walk over one value."""

    __slots__ = ("_entry", "_handlers", "_left", "_open", "_recorder", "_suffix", "_wanted")

    def __init__(self, recorder: Recorder, entry: EntryRecord, wanted: Wanted) -> None:
        self._recorder = recorder
        self._handlers = recorder._handlers
        self._entry = entry
        self._wanted = wanted
        self._suffix = recorder.framework.suffix
        self._left = recorder.MAX_VALUES
        self._open: set[int] = set()  # containers around the value in hand

    def node(self, value: Any, name: str) -> Any:
        """JSON of one value, whatever it is."""
        try:
            found = self._handlers.get(type(value)) or self._recorder.handler(value)
            return found(self, value, name)
        except Exception as error:  # noqa: BLE001 (any type may raise anything; only this value is lost)
            return self._failed(value, name, error)

    def _failed(self, value: Any, name: str, error: Exception) -> dict[str, Any]:
        kind = "unreadable attribute" if type(value) is _Unreadable else type_name(type(value))
        reason = f"{type(error).__name__}: {error}"
        self._recorder.on_problem(f"not captured: {kind}", name, clean_text(reason))
        return not_captured(kind, reason)

    # --- leaves ------------------------------------------------------------------------------------------------------

    def tensor(self, value: Any, name: str) -> dict[str, Any]:
        node, host, pending = self._recorder.framework.describe(value, self._wanted)
        if "not_captured" in node:
            self._recorder.on_problem(f"not captured: {type_name(type(value))}", name, node["not_captured"])
        if host is not None:
            self._entry.tensors.append((name + self._suffix, host, node))
        if pending is not None:
            self._entry.pending.append((node, pending))
        return node

    def array(self, value: Any, name: str) -> dict[str, Any]:
        node, host = array_record(value, self._wanted)
        if host is not None:
            self._entry.tensors.append((name + self._suffix, host, node))
        return node

    def unreadable(self, value: _Unreadable, name: str) -> Any:
        return self._failed(value, name, value.error)

    def leaf(self, value: Any, name: str) -> Any:
        node = self._recorder.framework.leaf(value)
        if node is NOT_A_LEAF:
            return opaque(value)
        return self._items(value, node.parts.items(), name) if isinstance(node, Fields) else node

    # --- containers --------------------------------------------------------------------------------------------------

    def sequence(self, value: Any, name: str) -> Any:
        cut = self._enter(value, name)
        if cut is not None:
            return cut
        try:
            # A copy: another thread may be appending, and __iter__ of a subclass may do anything.
            parts = list(list.__iter__(value) if isinstance(value, list) else tuple.__iter__(value))
            return [self.node(part, f"{name}.{index}") for index, part in enumerate(parts)]
        finally:
            self._open.discard(id(value))

    def named_tuple(self, value: Any, name: str) -> Any:
        fields = _field_names(type(value)) or ()
        parts = tuple(tuple.__iter__(value))
        if len(fields) != len(parts):
            return self.sequence(value, name)
        return self._items(value, zip(fields, parts, strict=True), name)

    def data_class(self, value: Any, name: str) -> Any:
        fields = [field.name for field in dataclasses.fields(value)]
        return self._items(value, [(field, _attribute(value, field)) for field in fields], name)

    def dictionary(self, value: Any, name: str) -> Any:
        return self._items(value, dict.items(value), name)

    def mapping(self, value: Any, name: str) -> Any:
        items = ((key, value[key]) for key in islice(iter(value), self._left))
        return self._items(value, items, name)

    def _items(self, value: Any, items: Iterable[tuple[Any, Any]], name: str) -> Any:
        cut = self._enter(value, name)
        if cut is not None:
            return cut
        try:
            held = list(items)
            if not all(type(key) is str and key.isascii() for key, _ in held):
                framework = self._recorder.framework
                held = list(named_items(held, framework.leaf, framework.rules.none_key))
            if self._recorder.named:
                return {key: self._under(key, part, f"{name}.{key}") for key, part in held}
            return {key: self.node(part, f"{name}.{key}") for key, part in held}
        finally:
            self._open.discard(id(value))

    def _under(self, key: str, value: Any, name: str) -> Any:
        """JSON of a value that may be recorded by its key."""
        make = self._recorder.named.get(key)
        node = NOT_A_LEAF if make is None else make(value)
        return self.node(value, name) if node is NOT_A_LEAF else node

    def _enter(self, value: Any, name: str) -> dict[str, Any] | None:
        """Note a container as open; a node that says so where the walk ends here."""
        self._left -= 1 + (len(value) if type(value) in (list, tuple, dict) else 1)
        reason = ""
        if id(value) in self._open:
            reason = "it contains itself"
        elif len(self._open) >= self._recorder.max_depth:
            reason = f"containers lie more than {self._recorder.max_depth} deep"
        elif self._left < 0:
            reason = f"more than {self._recorder.MAX_VALUES} values in one argument"
        if not reason:
            self._open.add(id(value))
            return None
        kind = type_name(type(value))
        self._recorder.on_problem("value cut short", name, reason)
        return not_captured(kind, reason)


class _Unreadable:
    """Stands for an attribute that could not be read."""

    __slots__ = ("error",)

    def __init__(self, error: Exception) -> None:
        self.error = error


def _attribute(value: Any, field: str) -> Any:
    try:
        return getattr(value, field)
    except Exception as error:  # noqa: BLE001 (properties and lazy fields raise what they like)
        return _Unreadable(error)
