"""Values of many tensors of a unit, one after the other, for less than what each costs alone."""

from __future__ import annotations

import warnings
from collections.abc import Callable, Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, TypeAlias

from numpy.typing import NDArray

from msformat.entries import Entry, Tensor
from msformat.lazy import reading
from msformat.logical import logical_bits
from msformat.names import parse_data_name
from msformat.stores.base import StoredTensor
from msformat.stores.many import READ_ERRORS, Found, attempt, get_many

if TYPE_CHECKING:
    from msformat.unit import Unit

__all__ = ["OnError", "read_many"]

OnError: TypeAlias = "Callable[[str, Exception], object]"

# With what a store holds of each, 64 MiB at most.
_BATCH = 512


def read_many(
    unit: Unit, tensors: Iterable[str | Tensor], on_error: OnError | None
) -> Iterator[tuple[str, NDArray[Any]]]:
    """Names and values in the order of ``tensors``; see :meth:`msformat.unit.Unit.read`."""
    waiting, types = map(_checked, tensors), _DeclaredTypes(unit)
    while batch := list(islice(waiting, _BATCH)):
        for (item, name), stored in zip(map(_named, batch), _stored(unit, batch), strict=True):
            try:
                values = _values(unit, stored, item.dtype_name if isinstance(item, Tensor) else types.of(name))
            except READ_ERRORS as error:
                _report(unit, name, error, on_error)
            else:
                yield name, values


def _named(item: str | Tensor) -> tuple[str | Tensor, str]:
    """A tensor that was not saved has no name but its place."""
    return item, (item.data_name or item.label) if isinstance(item, Tensor) else item


def _checked(item: Any) -> str | Tensor:
    if not isinstance(item, (str, Tensor)):
        raise TypeError(f"read() takes names and tensors, not {type(item).__name__}: {item!r:.80}")
    return item


def _stored(unit: Unit, batch: list[str | Tensor]) -> list[Found]:
    found = iter(get_many(unit.store, [name for item in batch if (name := _key(unit, item)) is not None]))
    return [next(found) if _key(unit, item) is not None else attempt(_alone, item) for item in batch]


def _key(unit: Unit, item: str | Tensor) -> str | None:
    """The name of what this unit's store has. Another unit has other values under the same name."""
    if isinstance(item, str):
        return item
    other = item.entry.unit
    return item.data_name if other is unit or other.location == unit.location else None


def _alone(item: Any) -> StoredTensor:
    stored: StoredTensor = item.stored  # where there are no data, says why
    return stored


def _values(unit: Unit, stored: Found, declared: str | None) -> NDArray[Any]:
    if isinstance(stored, Exception):
        raise stored
    found = logical_bits(stored, declared)
    if found.note:
        warnings.warn(f"{unit.path}: {found.note}", stacklevel=3)
    return found.dtype.from_bits(found.bits)


def _report(unit: Unit, name: str, error: Exception, on_error: OnError | None) -> None:
    try:
        with reading(name, unit.path):
            raise error
    except READ_ERRORS:
        if on_error is not None:
            on_error(name, error)
        else:
            warnings.warn(f"left out: {name}: {error}", stacklevel=3)


class _DeclaredTypes:
    """Element types as the documents spell them; names of one entry mostly come one after the other."""

    def __init__(self, unit: Unit) -> None:
        self._unit = unit
        self._types: dict[str | None, str] = {}

    def of(self, name: str) -> str | None:
        """The type of a stored tensor, None where no document names it."""
        if name not in self._types:
            named = parse_data_name(name)
            if named is None or not self._knows(name, self._unit.get(named.entry)):
                self._knows(name, self._unit.entry_of(name))
        return self._types.get(name)

    def _knows(self, name: str, entry: Entry | None) -> bool:
        self._types = {t.data_name: t.dtype_name for t in entry.tensors} if entry is not None else {}
        return name in self._types
