"""Is a dump what it says it is: digests, documents, documents against tensors, and what unfinished runs left behind."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping
from concurrent.futures import Executor
from dataclasses import asdict, dataclass, field
from functools import partial
from typing import Any

from msformat.arguments import path_text
from msformat.atomic import is_temporary
from msformat.check import check_document, check_entry, check_header
from msformat.cluster import shared_path
from msformat.columnindex import check_columns
from msformat.destination_remote import leftovers_at
from msformat.documents import DumpDocument
from msformat.dtypes import DType, parse_dtype
from msformat.errors import FormatError, MsformatError
from msformat.filesystem import is_url
from msformat.jsontext import parse_json
from msformat.layout import UnitLocation, find_units
from msformat.model import MISSING_GRADIENT
from msformat.parallel import run_all
from msformat.plan import ENTRY_DOCUMENTS, load_entries, tensor_references
from msformat.schema import dump_header
from msformat.stores.base import ReadOnlyBuffer, Store, StoredTensor
from msformat.stores.registry import open_store
from msformat.sums import ContentSums
from msformat.unfinished import unit_documents

__all__ = ["UnitVerification", "VerifyReport", "verify", "verify_unit"]

_OTHER_DOCUMENTS = {"stack.json": "stack", "construct.json": "construct"}
_CRC32 = re.compile(r"[0-9a-fA-F]{8}")
_SEARCH_DEPTH = 4
# What a damaged file can raise on its way through a reader.
_BAD_TENSOR = (MsformatError, OSError, ValueError, KeyError, MemoryError)


@dataclass(slots=True)
class UnitVerification:
    """What was found in a unit.

    Attributes
    ----------
    key
        Its path in the dump.
    entries, tensors
        How many there are.
    checked
        Uncompressed bytes of tensors compared, each name's in full; 0 for a shallow run.
    digests, checksums
        Tensors compared with the content digest of their store, and with the CRC-32 in the document (``md5``).
    problems
        What is wrong, by name.
    """

    key: str
    entries: int = 0
    tensors: int = 0
    checked: int = 0
    digests: int = 0
    checksums: int = 0
    problems: list[str] = field(default_factory=list)

    def as_json(self) -> dict[str, Any]:
        """The same as JSON values."""
        return asdict(self)


@dataclass(slots=True)
class VerifyReport:
    """What was found in a dump."""

    units: list[UnitVerification] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)

    @property
    def exit_code(self) -> int:
        """0 nothing is wrong, 1 something is, 2 no unit could be read."""
        if not any(unit.entries or unit.tensors or not unit.problems for unit in self.units):
            return 2
        return 1 if self.problems or any(unit.problems for unit in self.units) else 0

    def as_json(self) -> dict[str, Any]:
        """The same as JSON values."""
        return {
            "exit_code": self.exit_code,
            "units": [unit.as_json() for unit in self.units],
            "problems": list(self.problems),
        }


def verify(path: str | os.PathLike[str], *, deep: bool = True, executor: Executor | None = None) -> VerifyReport:
    """Check a dump of any form.

    Parameters
    ----------
    path
        As :func:`msformat.layout.find_units` takes it.
    deep
        Read every tensor, and compare it with the digests that store and document record.
    executor
        Checks several units at the same time (``dask.distributed``'s ``Client.get_executor()``).

    Raises
    ------
    StoreError, FormatError
        There is no dump.
    """
    units, problems = find_units(path if executor is None else shared_path(path))
    report = VerifyReport(problems=list(problems))
    check = partial(verify_unit, deep=deep)
    if executor is None:
        report.units = [check(unit) for unit in units]
    else:
        calls = [(check, unit) for unit in units]
        report.units = run_all(calls, workers=1, executor=executor, lost=lambda at, error: _unchecked(units[at], error))
    report.problems += [f"{name}: left by an unfinished run" for name in _leftovers(path_text(path))]
    return report


def verify_unit(unit: UnitLocation, *, deep: bool = True) -> UnitVerification:
    """Check one unit; whatever is wrong ends in the result."""
    found = UnitVerification(unit.key.path)
    try:
        with open_store(unit.backend, unit.location, group=unit.group) as store:
            documents, problems = unit_documents(unit, store)
            found.problems += problems
            _check_documents(documents, store.location, found.problems)
            found.problems += [f"{store.location}: {fault}" for fault in check_columns(store, documents)]
            _check_tensors(store, documents, found, deep=deep)
    except (MsformatError, OSError) as error:
        found.problems.append(f"cannot be read: {error}")
    return found


def _unchecked(unit: UnitLocation, error: Exception) -> UnitVerification:
    return UnitVerification(unit.key.path, problems=[f"was not checked: {error}"])


# --- documents -----------------------------------------------------------------------------------------------------


def _check_documents(documents: Mapping[str, ReadOnlyBuffer], where: str, problems: list[str]) -> None:
    if not any(name in documents for name in ENTRY_DOCUMENTS):
        problems.append(f"has no {' or '.join(ENTRY_DOCUMENTS)}")
    for name, kind in _OTHER_DOCUMENTS.items():
        if name in documents:
            source = f"{where}: {name}"
            try:
                check_document(kind, parse_json(documents[name], source), source)
            except FormatError as error:
                problems.append(str(error))


# --- tensors ---------------------------------------------------------------------------------------------------------


def _check_tensors(
    store: Store, documents: Mapping[str, ReadOnlyBuffer], found: UnitVerification, *, deep: bool
) -> None:
    declared = _declared(documents, store.location, found)
    sums = ContentSums() if deep else None
    for key in store.keys():  # noqa: SIM118 (a Store is no mapping)
        found.tensors += 1
        records = declared.pop(key, None)
        if records is None:
            found.problems.append(f"tensor {key!r} is named by no entry")
        _check_tensor(store, key, records or (), found, sums)
    for name, records in declared.items():
        found.problems += [f"entry {entry!r}: tensor {name!r} is missing" for entry, _ in records[:1]]


def _declared(
    documents: Mapping[str, ReadOnlyBuffer], where: str, found: UnitVerification
) -> dict[str, list[tuple[str, dict[str, Any]]]]:
    """Tensor name to (entry, record) of every mention. Checks entries against the schema on the way."""
    declared: dict[str, list[tuple[str, dict[str, Any]]]] = {}
    for name in ENTRY_DOCUMENTS:
        source = f"{where}: {name}"
        dump = load_entries(documents[name], source, found.problems) if name in documents else None
        for key, value in _checked_values(dump, source, found.problems):
            found.entries += 1
            for record in tensor_references(value):
                declared.setdefault(record["data_name"], []).append((key, record))
    return declared


def _checked_values(dump: DumpDocument | None, source: str, problems: list[str]) -> Iterator[tuple[str, Any]]:
    if dump is None:
        return
    try:
        check_header(dump_header(dump.header), source)
    except FormatError as error:
        problems.append(str(error))
    for key in dump:
        try:
            value = dump.json(key)
        except FormatError as error:
            problems.append(f"entry {key!r}: {error}")
            continue
        try:
            check_entry(key, value, source)
        except FormatError as error:
            problems.append(str(error))
        if isinstance(value, dict) and value.get("type") == MISSING_GRADIENT:
            problems.append(_missing_gradient(key, value.get("value")))
        yield key, value


def _missing_gradient(key: str, calls: Any) -> str:
    name = key.removesuffix(".debug").rpartition(".")[0].removesuffix("_grad")
    return (
        f"entry {key!r}: save_grad was called (times: {calls}) and no gradient came: no backward pass ran through it, "
        f"or what save_grad returned was not used (write {name} = save_grad(…, {name!r}, {name}))"
    )


def _check_tensor(
    store: Store,
    key: str,
    records: Iterable[tuple[str, dict[str, Any]]],
    found: UnitVerification,
    sums: ContentSums | None,
) -> None:
    try:
        stored = store.get(key)
        for entry, record in records:
            found.problems += [f"entry {entry!r}: tensor {key!r} {fault}" for fault in _mismatches(stored, record)]
        if sums is not None:
            _check_content(stored, records, found, sums)
    except _BAD_TENSOR as error:
        found.problems.append(f"tensor {key!r}: {error}")


def _mismatches(stored: StoredTensor, record: Mapping[str, Any]) -> Iterable[str]:
    shape = record.get("shape")
    if isinstance(shape, list) and tuple(shape) != stored.shape:
        yield f"has shape {list(stored.shape)}, the document says {shape}"
    spelling = record.get("dtype")
    declared = parse_dtype(spelling) if isinstance(spelling, str) else None
    if declared is not None and not _can_hold(stored.dtype, declared):
        yield f"is {stored.dtype.name}, the document says {spelling}"


def _can_hold(stored: DType, declared: DType) -> bool:
    """Whether a store may honestly keep the declared type so: ``.npy`` has no bfloat16 and no float8."""
    if stored == declared or (declared.name == "bfloat16" and stored.name == "float32"):
        return True
    return not declared.is_native and stored.is_native and stored.storage == declared.storage


def _check_content(
    stored: StoredTensor, records: Iterable[tuple[str, dict[str, Any]]], found: UnitVerification, sums: ContentSums
) -> None:
    recorded = [(entry, record["md5"]) for entry, record in records if _is_crc32(record.get("md5"))]
    computed = sums.of(stored, crc32=bool(recorded))
    found.checked += computed.nbytes
    if stored.digest is not None:
        found.digests += 1
        if computed.digest != stored.digest:
            found.problems.append(f"tensor {stored.key!r}: its bytes do not match the digest {stored.digest}")
    for entry, checksum in recorded:
        found.checksums += 1
        if computed.crc32 != checksum.lower():
            found.problems.append(
                f"entry {entry!r}: tensor {stored.key!r} has CRC-32 {computed.crc32}, the document says {checksum}"
            )


def _is_crc32(value: Any) -> bool:
    """Other algorithms (26.2.0 has an xor of 16 digits) are not compared."""
    return isinstance(value, str) and _CRC32.fullmatch(value) is not None


# --- what should not be there ----------------------------------------------------------------------------------------


def _leftovers(path: str) -> list[str]:
    """Temporaries in a tree or beside a file."""
    if is_url(path):
        return leftovers_at(path)
    if not os.path.isdir(path):
        beside = os.path.dirname(path) or "."
        own = f".{os.path.basename(path)}."
        return sorted(os.path.join(beside, name) for name in os.listdir(beside) if is_temporary(name) and own in name)
    found: list[str] = []
    for directory, folders, files in os.walk(path):
        found += [os.path.join(directory, name) for name in (*folders, *files) if is_temporary(name)]
        depth = os.path.relpath(directory, path).count(os.sep)
        folders[:] = [name for name in folders if not is_temporary(name) and depth < _SEARCH_DEPTH]
    return sorted(found)
