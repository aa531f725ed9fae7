"""Columns of a table: kept as small arrays, made into Python objects when somebody looks at them."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

__all__ = [
    "BOOL",
    "FLOAT",
    "INT",
    "LACKING",
    "MISSING",
    "NULL",
    "OTHER",
    "CodedColumn",
    "Codes",
    "Column",
    "ConcatColumn",
    "ConstantColumn",
    "DigestColumn",
    "NameColumn",
    "ObjectColumn",
    "StatisticColumn",
    "element_count",
    "number_of",
    "objects_of",
]

Codes = NDArray[np.integer[Any]]

# What stands behind a number of a statistic column. OTHER is an index into a list of values no float64 holds.
FLOAT, INT, BOOL, NULL, LACKING, OTHER = range(6)


class _Missing(str):
    """The empty text, so that it prints and serialises as nothing; told apart by identity."""

    __slots__ = ()

    def __repr__(self) -> str:
        return "<missing>"

    def __reduce__(self) -> str:
        return "MISSING"


#: A statistic that the document does not have at all. Null is None, and NaN is NaN: three different things.
MISSING = _Missing()


class Column(ABC):
    """Values of one column. :meth:`objects` is what they are; everything else saves making them."""

    __slots__ = ("_objects",)

    def __init__(self) -> None:
        self._objects: NDArray[Any] | None = None

    @abstractmethod
    def __len__(self) -> int: ...

    @abstractmethod
    def take(self, index: Any) -> Column:
        """The same of a slice, mask or array of row numbers."""

    @abstractmethod
    def _make(self) -> NDArray[Any]:
        """A 1-d object array."""

    def objects(self) -> NDArray[Any]:
        """The values as a 1-d object array, the same one each time."""
        if self._objects is None:
            self._objects = self._make()
        return self._objects

    def item(self, row: int) -> Any:
        """One value."""
        if self._objects is not None:
            return self._objects[row]
        return self.take(np.asarray([row])).objects()[0]

    def numbers(self) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        """The values as float64, and where there is none."""
        found = [number_of(value) for value in self.objects()]
        values = np.array([math.nan if value is None else value for value in found], dtype=np.float64)
        return values, np.array([value is None for value in found], dtype=np.bool_)


def number_of(value: Any) -> float | None:
    """A statistic as a float, None for null and missing."""
    if value is None or value is MISSING:
        return None
    try:
        return float(value)
    except OverflowError:  # an int beyond float64
        return math.inf if value > 0 else -math.inf
    except ValueError:  # text that is no number
        return None


def element_count(shape: Sequence[int]) -> float:
    """How many elements a tensor has, as a float: the axes of a document may be of any length."""
    return 0.0 if 0 in shape else math.prod(number_of(length) or 0.0 for length in shape)


def objects_of(values: Sequence[Any] | NDArray[Any]) -> NDArray[Any]:
    """A 1-d object array; numpy would make two axes of a list of equally long shapes."""
    if isinstance(values, np.ndarray) and values.dtype == object:
        return values
    return np.fromiter(values, dtype=object, count=len(values))


class ObjectColumn(Column):
    """Values as they are."""

    __slots__ = ()
    _objects: NDArray[Any]

    def __init__(self, values: Sequence[Any] | NDArray[Any]) -> None:
        self._objects = objects_of(values)

    def __len__(self) -> int:
        return len(self._objects)

    def take(self, index: Any) -> Column:
        return ObjectColumn(self._objects[index])

    def _make(self) -> NDArray[Any]:
        return self._objects


class ConstantColumn(Column):
    """One value in every row."""

    __slots__ = ("_length", "_value")

    def __init__(self, value: Any, length: int) -> None:
        super().__init__()
        self._value = value
        self._length = length

    def __len__(self) -> int:
        return self._length

    def take(self, index: Any) -> Column:
        return ConstantColumn(self._value, len(np.broadcast_to(np.uint8(0), (self._length,))[index]))

    def _make(self) -> NDArray[Any]:
        made = np.empty(self._length, dtype=object)
        made.fill(self._value)
        return made


class CodedColumn(Column):
    """Few different values, each row the number of one."""

    __slots__ = ("_codes", "_values")

    def __init__(self, codes: Codes, values: NDArray[Any]) -> None:
        super().__init__()
        self._codes = codes
        self._values = values

    def __len__(self) -> int:
        return len(self._codes)

    def take(self, index: Any) -> Column:
        return CodedColumn(self._codes[index], self._values)

    def _make(self) -> NDArray[Any]:
        return self._values[self._codes]


class NameColumn(Column):
    """Names that mostly begin with the key of their entry: a value of one text in a tuple is what follows that."""

    __slots__ = ("_codes", "_entries", "_keys", "_values")

    def __init__(self, codes: Codes, values: NDArray[Any], entries: Codes, keys: NDArray[Any]) -> None:
        super().__init__()
        self._codes = codes
        self._values = values
        self._entries = entries
        self._keys = keys

    def __len__(self) -> int:
        return len(self._codes)

    def take(self, index: Any) -> Column:
        return NameColumn(self._codes[index], self._values, self._entries[index], self._keys)

    def _make(self) -> NDArray[Any]:
        pairs = zip(self._values[self._codes], self._keys[self._entries], strict=True)
        return objects_of([key + value[0] if type(value) is tuple else value for value, key in pairs])


class DigestColumn(Column):
    """Checksums: code 0 is a CRC-32 kept as a number, any other the value of that number less one."""

    __slots__ = ("_codes", "_sums", "_values")

    def __init__(self, sums: Codes, codes: Codes, values: NDArray[Any]) -> None:
        super().__init__()
        self._sums = sums
        self._codes = codes
        self._values = values

    def __len__(self) -> int:
        return len(self._codes)

    def take(self, index: Any) -> Column:
        return DigestColumn(self._sums[index], self._codes[index], self._values)

    def _make(self) -> NDArray[Any]:
        made = np.empty(len(self), dtype=object)
        is_sum = self._codes == 0
        digits = self._sums[is_sum].astype(">u4").tobytes().hex()
        made[is_sum] = objects_of([digits[at : at + 8] for at in range(0, len(digits), 8)])
        made[~is_sum] = self._values[self._codes[~is_sum].astype(np.int64) - 1]
        return made


class StatisticColumn(Column):
    """Numbers with what each of them stands for (:data:`FLOAT`, …)."""

    __slots__ = ("_kinds", "_others", "_values")
    _plain: ClassVar[dict[int, Any]] = {NULL: None, LACKING: MISSING}

    def __init__(self, values: NDArray[np.floating[Any]], kinds: Codes, others: NDArray[Any]) -> None:
        super().__init__()
        self._values = values
        self._kinds = kinds
        self._others = others

    def __len__(self) -> int:
        return len(self._kinds)

    def take(self, index: Any) -> Column:
        return StatisticColumn(self._values[index], self._kinds[index], self._others)

    def _make(self) -> NDArray[Any]:
        made = self._values.astype(np.float64).astype(object)
        for kind in np.unique(self._kinds).tolist():
            rows = np.flatnonzero(self._kinds == kind)
            if kind in self._plain:
                made[rows] = self._plain[kind]
            elif kind == OTHER:
                made[rows] = self._others[self._values[rows].astype(np.int64)]
            elif kind != FLOAT:
                made[rows] = self._values[rows].astype(np.int64 if kind == INT else np.bool_).astype(object)
        return made

    def numbers(self) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        values = self._values.astype(np.float64)
        absent = (self._kinds == NULL) | (self._kinds == LACKING)
        values[absent] = math.nan
        for row in np.flatnonzero(self._kinds == OTHER).tolist():
            number = number_of(self._others[int(self._values[row])])
            values[row], absent[row] = math.nan if number is None else number, number is None
        return values, absent


class ConcatColumn(Column):
    """Columns one after the other."""

    __slots__ = ("_parts",)

    def __init__(self, parts: Sequence[Column]) -> None:
        super().__init__()
        self._parts = tuple(parts)

    def __len__(self) -> int:
        return sum(map(len, self._parts))

    def take(self, index: Any) -> Column:
        rows = np.arange(len(self))[index]
        if np.any(rows[1:] < rows[:-1]):
            return ObjectColumn(self.objects()[index])
        # In order: each part gives its own rows, and no object is made.
        ends = np.cumsum([len(part) for part in self._parts])
        cuts = np.searchsorted(rows, [0, *ends])
        pieces = zip(self._parts, cuts[:-1], cuts[1:], [0, *ends[:-1]], strict=True)
        parts = [part.take(rows[first:last] - start) for part, first, last, start in pieces if first < last]
        return ConcatColumn(parts or [self._parts[0].take(rows)])

    def _make(self) -> NDArray[Any]:
        return np.concatenate([part.objects() for part in self._parts])

    def numbers(self) -> tuple[NDArray[np.float64], NDArray[np.bool_]]:
        values, masks = zip(*(part.numbers() for part in self._parts), strict=True)
        return np.concatenate(values), np.concatenate(masks)
