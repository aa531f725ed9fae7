"""From entries to columns, without a view or a model value a tensor: what :class:`msformat.Table` shows of a unit.

The rules of what is a tensor, in which slot and on which path, are those of :mod:`msformat.schema` and
:mod:`msformat.entries`. The walk here knows the ordinary case only; whatever is odd takes their way.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, TypeAlias

import msgspec
import numpy as np
from numpy.typing import NDArray

from msformat import entries, schema
from msformat.columns import (
    BOOL,
    FLOAT,
    INT,
    LACKING,
    MISSING,
    NULL,
    OTHER,
    CodedColumn,
    Codes,
    Column,
    DigestColumn,
    NameColumn,
    StatisticColumn,
    objects_of,
)
from msformat.errors import FormatError
from msformat.jsontext import parse_json
from msformat.model import MAX_DEPTH, STATISTICS
from msformat.names import is_plain_call, parse_entry

__all__ = ["CODED", "ColumnBuilder", "Columns", "smallest"]

#: Columns of few different values, in the document as they are.
CODED = ("slot", "path", "type", "dtype", "shape", "requires_grad")
_GRADIENTS = "parameters_grad"
# Rows that wait to become arrays, and bytes of entries that are decoded at once: few enough for the processor's cache.
_BATCH_ROWS = 2048
_BATCH_BYTES = 1 << 17
# Deeper entries take the slow way, which knows the limit.
_QUICK_DEPTH = 40
_MOST_EXACT = 1 << 53
_CRC32 = re.compile(r"[0-9a-f]{8}")
_CRC32S = re.compile(r"[0-9a-f]{8}(?:\n[0-9a-f]{8})*")
# What is taken of a record, and what stands for it where there is no such key.
_FIELDS = {
    **dict.fromkeys(("type", "dtype", "shape", "requires_grad", "md5", "data_name")),
    **dict.fromkeys(STATISTICS, MISSING),
}

# Number of the entry, slot, path, record.
_Row: TypeAlias = "tuple[int, str, str, dict[str, Any]]"


@dataclass(frozen=True, slots=True)
class Columns:
    """The tensors of a unit as arrays, a row a tensor.

    Attributes
    ----------
    keys
        Of every entry, in the document's order.
    counts
        How many rows each of them has.
    coded
        For each name of :data:`CODED` a number a row, and the values by number.
    statistics
        For ``Max``, … the numbers (float32 where that is exact, else float64), what each stands for, and the values
        no float64 holds.
    digest
        CRC-32 as numbers, codes and values of :class:`msformat.columns.DigestColumn`.
    data_name
        Codes and values of :class:`msformat.columns.NameColumn`.
    """

    keys: list[str]
    counts: Codes
    coded: dict[str, tuple[Codes, list[Any]]]
    statistics: dict[str, tuple[NDArray[Any], Codes, list[Any]]]
    digest: tuple[Codes, Codes, list[Any]]
    data_name: tuple[Codes, list[Any]]

    @property
    def rows(self) -> int:
        """How many tensors."""
        return int(self.counts.sum(dtype=np.int64))

    def lacking(self, name: str) -> NDArray[np.bool_]:
        """Where the document has no such statistic."""
        return np.asarray(self.statistics[name][1] == LACKING)

    def table_columns(self) -> dict[str, Column]:
        """Columns for :class:`msformat.Table`, all but those that are the unit's."""
        entry, keys = np.repeat(np.arange(len(self.keys), dtype=np.uint32), self.counts), objects_of(self.keys)
        codes, names = self.data_name
        sums, kinds, digests = self.digest
        return {
            "entry": CodedColumn(entry, keys),
            **{name: CodedColumn(codes, objects_of(values)) for name, (codes, values) in self.coded.items()},
            **{
                name: StatisticColumn(values, kinds, objects_of(others))
                for name, (values, kinds, others) in self.statistics.items()
            },
            "digest": DigestColumn(sums, kinds, objects_of(digests)),
            "data_name": NameColumn(codes, objects_of(names), entry, keys),
        }


class ColumnBuilder:
    """Takes entries one after the other; keeps a few bytes a tensor."""

    def __init__(self) -> None:
        self._keys: list[str] = []
        self._rows: list[_Row] = []
        self._numbers: list[Codes] = []
        self._coders = {name: _Coder() for name in (*CODED, "data_name")} | {"digest": _Coder(_SUM)}
        self._sums: list[Codes] = []
        self._statistics = {name: _Statistic() for name in STATISTICS}

    def add(self, key: str, value: Any) -> None:
        """Take an entry, as JSON gives it.

        Raises
        ------
        UnsafeInputError
            Nested too deep; the entry was not taken.
        """
        before = len(self._rows)
        self._keys.append(key)
        try:
            self._walk_entry(key, value)
        except _Odd:
            del self._rows[before:]
            try:
                self._rows += _slow_rows(len(self._keys) - 1, key, value)
            except BaseException:
                del self._keys[-1]
                raise
        if len(self._rows) >= _BATCH_ROWS:
            self._flush()

    def add_texts(self, texts: Iterable[tuple[str, bytes]], failed: Callable[[str], None] | None = None) -> None:
        """Take entries as JSON texts.

        Parameters
        ----------
        texts
            Keys and texts.
        failed
            Called with the key of an entry that cannot be read, which is then left out.

        Raises
        ------
        FormatError
            An entry cannot be read, and there is no ``failed``.
        """
        for batch in _batches(texts):
            for key, value in _decoded(batch):
                try:
                    self.add(key, parse_json(value, key) if isinstance(value, bytes) else value)
                except FormatError:
                    if failed is None:
                        raise
                    failed(key)

    def finish(self) -> Columns:
        """All that was taken."""
        self._flush()
        numbers = _joined(self._numbers, np.uint32)
        coded = {name: self._coders[name].finish() for name in (*CODED, "digest", "data_name")}
        digest, data_name = coded.pop("digest"), coded.pop("data_name")
        return Columns(
            keys=self._keys,
            counts=smallest(np.bincount(numbers, minlength=len(self._keys))),
            coded=coded,
            statistics={name: statistic.finish() for name, statistic in self._statistics.items()},
            digest=(_joined(self._sums, np.uint32), *digest),
            data_name=data_name,
        )

    # --- one entry -------------------------------------------------------------------------------------------------

    def _walk_entry(self, key: str, value: Any) -> None:
        name = None if is_plain_call(key) else parse_entry(key)
        is_saved = name is not None and name.order == "saved"
        if is_saved or type(value) is not dict or type(value.get("type")) is str:
            self._walk_root(value, "", "")
        elif name is None or name.stage != _GRADIENTS:
            for slot, node in value.items():
                if node:
                    self._walk_root(node, slot, "")
        else:
            for parameter, node in value.items():
                only = node[0] if type(node) is list and len(node) == 1 else node
                self._walk_root(only, _GRADIENTS, f"{parameter}.")

    def _walk_root(self, node: Any, slot: str, prefix: str) -> None:
        kind = type(node)
        if kind is list:
            self._walk(enumerate(node), slot, prefix, 1)
        elif kind is dict:
            if type(node.get("type")) is not str:
                self._walk(node.items(), slot, prefix, 1)
            elif "dtype" in node or "shape" in node:
                self._rows.append((len(self._keys) - 1, slot, prefix[:-1], node))

    def _walk(self, children: Iterable[tuple[Any, Any]], slot: str, prefix: str, depth: int) -> None:
        """Collect what may be records of tensors. ``prefix`` is the path above, with a dot behind each part."""
        if depth > _QUICK_DEPTH:
            raise _Odd
        for name, child in children:
            kind = type(child)
            if kind is dict:
                if type(child.get("type")) is not str:
                    self._walk(child.items(), slot, f"{prefix}{name}.", depth + 1)
                elif "dtype" in child or "shape" in child:
                    self._rows.append((len(self._keys) - 1, slot, f"{prefix}{name}", child))
            elif kind is list:
                self._walk(enumerate(child), slot, f"{prefix}{name}.", depth + 1)

    # --- many rows -------------------------------------------------------------------------------------------------

    def _flush(self) -> None:
        rows, self._rows = self._rows, []
        columns = _fields([row[3] for row in rows])
        if not _are_tensors(columns):
            rows = [row for row in rows if schema.is_tensor(row[3])]
            columns = _fields([row[3] for row in rows])
        if not rows:
            return
        numbers, slots, paths, _ = zip(*rows, strict=True)
        self._numbers.append(np.fromiter(numbers, np.uint32, len(rows)))
        coded: dict[str, Sequence[Any]] = {
            "slot": slots,
            "path": paths,
            "type": columns["type"],
            "dtype": columns["dtype"],
            "shape": list(map(tuple, columns["shape"])),
            "requires_grad": _only(bool, columns["requires_grad"]),
            "data_name": self._short_names(numbers, _only(str, columns["data_name"])),
        }
        for name, column in coded.items():
            self._coders[name].add(column)
        self._add_digests(_only(str, columns["md5"]))
        for name, statistic in self._statistics.items():
            statistic.add(columns[name])

    def _short_names(self, numbers: Sequence[int], names: Sequence[str | None]) -> list[Any]:
        """Names without the key that most of them begin with: what is left is one of a few."""
        keys = self._keys
        return [
            (name[len(keys[number]) :],) if name is not None and name.startswith(keys[number]) else name
            for name, number in zip(names, numbers, strict=True)
        ]

    def _add_digests(self, digests: Sequence[str | None]) -> None:
        # Code 0 is for every sum: their digits go elsewhere.
        if set(map(type, digests)) == {str} and _CRC32S.fullmatch("\n".join(digests)):  # type: ignore[arg-type]
            kinds: Sequence[Any] = [_SUM] * len(digests)
        else:
            kinds = [_SUM if digest is not None and _CRC32.fullmatch(digest) else digest for digest in digests]
        digits = [str(digest) if kind is _SUM else "00000000" for digest, kind in zip(digests, kinds, strict=True)]
        self._coders["digest"].add(kinds)
        self._sums.append(np.frombuffer(bytes.fromhex("".join(digits)), ">u4").astype(np.uint32))


class _Odd(Exception):  # noqa: N818 (a way out, not an error)
    """An entry that is left to the slow way."""


class _Sum:
    """Stands for every checksum."""


_SUM = _Sum()


def _fields(records: Sequence[dict[str, Any]]) -> dict[str, Sequence[Any]]:
    """Fields of records by name: MISSING for a statistic that is not there, None for anything else."""
    first = records[0] if records else {}
    there = [name for name in _FIELDS if name in first]
    # Of one length, none with another key, all with these: then they are the same keys, and one call takes them all.
    if len(there) == len(first) > 1 and set(map(len, records)) == {len(first)}:
        try:
            found = zip(*map(operator.itemgetter(*there), records), strict=True)
        except KeyError:
            pass
        else:
            absent = ((name, [_FIELDS[name]] * len(records)) for name in _FIELDS if name not in first)
            return dict(zip(there, found, strict=True)) | dict(absent)
    return {name: [record.get(name, absent) for record in records] for name, absent in _FIELDS.items()}


def _are_tensors(columns: Mapping[str, Sequence[Any]]) -> bool:
    """Whether every record is one of a tensor, as :func:`msformat.schema.is_tensor` says of each."""
    dtypes, shapes = columns["dtype"], columns["shape"]
    if not (set(map(type, dtypes)) <= {str} and set(map(type, shapes)) <= {list}):
        return False
    lengths = list(chain.from_iterable(shapes))
    return set(map(type, lengths)) <= {int} and min(lengths, default=0) >= 0


def _only(kind: type, values: Sequence[Any]) -> Sequence[Any]:
    """Values of a type; others are no value, as in :func:`msformat.schema.load_node`."""
    if set(map(type, values)) <= {kind, type(None)}:
        return values
    return [value if type(value) is kind else None for value in values]


def _slow_rows(number: int, key: str, value: Any) -> list[_Row]:
    """What :class:`msformat.Entry` finds; nothing of it asks for the unit."""
    unit: Any = None
    tensors = entries.Entry(unit, schema.load_entry(key, value, "")).tensors
    return [(number, tensor.slot, tensor.path, schema.dump_node(tensor.meta)) for tensor in tensors]


def _batches(texts: Iterable[tuple[str, bytes]]) -> Iterator[list[tuple[str, bytes]]]:
    """Some texts at a time; one that may be nested too deep stands alone."""
    batch: list[tuple[str, bytes]] = []
    size = 0
    for key, text in texts:
        is_deep = _is_deep(text)
        if batch and (is_deep or size >= _BATCH_BYTES):
            yield batch
            batch, size = [], 0
        batch.append((key, text))
        size += _BATCH_BYTES if is_deep else len(text)
    if batch:
        yield batch


def _is_deep(text: bytes) -> bool:
    return text.count(b"[") + text.count(b"{") > MAX_DEPTH


def _decoded(batch: list[tuple[str, bytes]]) -> Iterable[tuple[str, Any]]:
    """Keys and values, all by one call; texts stay texts where one of them is not for msgspec, or very deep."""
    texts = [text for _, text in batch]
    if _is_deep(texts[0]):
        return batch
    try:
        # Values that are whole one by one: every text begins and ends as one.
        values = msgspec.json.decode(b"[%b]" % b",".join(texts), type=list[Any])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return batch
    return zip((key for key, _ in batch), values, strict=True) if len(values) == len(batch) else batch


# --- columns ---------------------------------------------------------------------------------------------------------


class _Coder:
    """Numbers for values, in the order in which they come."""

    def __init__(self, reserved: Any = None) -> None:
        self._numbers: dict[Any, int] = {} if reserved is None else {reserved: 0}
        self._reserved = len(self._numbers)
        self._codes: list[Codes] = []

    def add(self, column: Sequence[Any]) -> None:
        numbers = self._numbers
        for value in dict.fromkeys(column):
            numbers.setdefault(value, len(numbers))
        self._codes.append(np.fromiter(map(numbers.__getitem__, column), np.uint32, len(column)))

    def finish(self) -> tuple[Codes, list[Any]]:
        """Codes in the smallest type, and the values; what is reserved has the number 0 and is no value."""
        return smallest(_joined(self._codes, np.uint32)), list(self._numbers)[self._reserved :]


class _Statistic:
    """One statistic: numbers, what they stand for, and what is no number."""

    def __init__(self) -> None:
        self._values: list[NDArray[np.float64]] = []
        self._kinds: list[Codes] = []
        self._others: dict[Any, int] = {}

    def add(self, column: Sequence[Any]) -> None:
        if set(map(type, column)) == {float}:
            self._values.append(np.array(column, np.float64))
            self._kinds.append(np.full(len(column), FLOAT, np.uint8))
            return
        pairs = [self._pair(value) for value in column]
        self._values.append(np.array([value for value, _ in pairs], np.float64))
        self._kinds.append(np.array([kind for _, kind in pairs], np.uint8))

    def _pair(self, value: Any) -> tuple[float, int]:
        kind = type(value)
        if kind is float:
            return value, FLOAT
        if kind is bool:
            return float(value), BOOL
        if value is None:
            return 0.0, NULL
        if kind is int and -_MOST_EXACT <= value <= _MOST_EXACT:
            return float(value), INT
        if kind is int or kind is str:
            return float(self._others.setdefault(value, len(self._others))), OTHER
        return 0.0, LACKING

    def finish(self) -> tuple[NDArray[Any], Codes, list[Any]]:
        values = _joined(self._values, np.float64)
        with np.errstate(over="ignore", under="ignore", invalid="ignore"):
            half = values.astype(np.float32)
        # Statistics of float32 tensors are float32. Bit for bit: NaN and -0.0 have to come back, too.
        is_exact = np.array_equal(half.astype(np.float64).view(np.uint64), values.view(np.uint64))
        return half if is_exact else values, _joined(self._kinds, np.uint8), list(self._others)


def _joined(parts: Sequence[NDArray[Any]], dtype: Any) -> NDArray[Any]:
    return np.concatenate(parts) if parts else np.zeros(0, dtype)


def smallest(codes: NDArray[Any]) -> Codes:
    """The same numbers in the smallest unsigned type of up to 32 bits."""
    most = int(codes.max(initial=0))
    return codes.astype(np.min_scalar_type(most) if most < 1 << 32 else np.uint64)
