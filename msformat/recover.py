"""Finishing dumps whose process died: from the journal, from a truncated document, or from the tensors alone."""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from msformat.atomic import is_temporary
from msformat.documents import salvage
from msformat.errors import FormatError, MsformatError
from msformat.filelock import FileLock
from msformat.finish import DATA_DIRECTORY, Surroundings, finished_header, named_tensors, put_documents, store_location
from msformat.journal import Journal, read_journal, taken_message
from msformat.layout import UnitKey, UnitLocation, find_units
from msformat.rebuild import Rebuilt, rebuild
from msformat.replay import replay
from msformat.schema import load_header
from msformat.stores.base import Mode, Store
from msformat.stores.registry import open_store

__all__ = ["RecoverReport", "Recovery", "rebuild_from_orphans", "recover", "recover_unit"]

_DOCUMENTS = ("dump.json", "debug.json")


@dataclass(slots=True)
class RecoverReport:
    """What became of a unit.

    Attributes
    ----------
    key
        Which unit.
    state
        ``complete`` nothing was to be done; ``recovered`` from the journal; ``salvaged`` from a truncated document;
        ``rebuilt`` from tensors alone; ``empty`` the process died before it promised anything; ``lost`` tensors without
        any document; ``failed``.
    entries
        Entries of the document as it is now.
    tensors
        Tensors that these entries name and that exist.
    missing
        Tensors that entries name and that do not exist; the entries are kept.
    orphan_names
        Tensors that no entry names.
    is_torn
        The last record of the journal was cut off.
    problems
        Sentences for a person.
    """

    key: UnitKey
    state: str
    entries: int = 0
    tensors: int = 0
    missing: tuple[str, ...] = ()
    orphan_names: tuple[str, ...] = ()
    is_torn: bool = False
    problems: list[str] = field(default_factory=list)

    @property
    def orphans(self) -> int:
        """How many tensors no entry names."""
        return len(self.orphan_names)

    @property
    def is_whole(self) -> bool:
        """Whether the unit has a document now, and every tensor it names."""
        return self.state not in ("failed", "lost") and not self.missing

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {
            "unit": str(self.key),
            "state": self.state,
            "entries": self.entries,
            "tensors": self.tensors,
            "missing": list(self.missing),
            "orphans": list(self.orphan_names),
            "torn": self.is_torn,
            "problems": list(self.problems),
        }


@dataclass(frozen=True, slots=True)
class Recovery:
    """What became of a whole dump.

    Attributes
    ----------
    units
        In order of their keys.
    problems
        Of the tree around them.
    """

    units: tuple[RecoverReport, ...]
    problems: tuple[str, ...]

    @property
    def exit_code(self) -> int:
        """0 when every unit is whole now, else 1."""
        return 0 if all(unit.is_whole for unit in self.units) else 1

    def as_json(self) -> dict[str, Any]:
        """For programs."""
        return {"units": [unit.as_json() for unit in self.units], "problems": list(self.problems)}


def recover(path: str | os.PathLike[str], *, orphans: bool = False) -> Recovery:
    """Finish every unit of a dump that its process did not. Finished units are left alone.

    Parameters
    ----------
    path
        As for :func:`msformat.open`.
    orphans
        Also make entries for tensors that no entry names, in units without a whole document.

    Raises
    ------
    StoreError, FormatError
        Nothing is there, or no dump. What goes wrong within a unit is in its report.
    """
    units, problems = find_units(path)
    return Recovery(tuple(_try_unit(unit, orphans=orphans) for unit in units), tuple(problems))


def _try_unit(unit: UnitLocation, *, orphans: bool) -> RecoverReport:
    try:
        return recover_unit(unit, orphans=orphans)
    except (MsformatError, OSError) as error:
        return RecoverReport(unit.key, "failed", problems=[str(error)])


def recover_unit(unit: UnitLocation, *, orphans: bool = False) -> RecoverReport:
    """Finish one unit.

    Raises
    ------
    StoreError
        It is still being written, or cannot be written to.
    CorruptJournalError
        The journal is damaged in the middle; nothing was changed.
    """
    if unit.journal is None:
        return _without_journal(unit, orphans=orphans)
    lock = FileLock.claim(unit.journal, taken=taken_message)
    try:
        report = _from_journal(unit, read_journal(unit.journal), orphans=orphans)
        if report.state != "lost":
            _remove_leftovers(unit)
            lock.remove()
    finally:
        lock.release()
    return report


def rebuild_from_orphans(unit: UnitLocation) -> RecoverReport:
    """Make a document for a unit that has tensors and nothing else (``recover --orphans``).

    Raises
    ------
    StoreError
        It is still being written, or cannot be written to.
    """
    return recover_unit(unit, orphans=True)


# --- from the journal ------------------------------------------------------------------------------------------------


def _from_journal(unit: UnitLocation, journal: Journal, *, orphans: bool) -> RecoverReport:
    found = replay(journal.records)
    if found.header is None:
        return replace(_without_journal(unit, orphans=orphans), is_torn=journal.torn)
    report = RecoverReport(unit.key, "recovered", is_torn=journal.torn)
    report.problems.append(f"the writer stopped: {found.reason}" if found.reason else "the writer died")
    if journal.torn:
        report.problems.append("the last record of the journal was cut off and is lost")
    entries = dict(found.entries)
    with _open(unit, "a", found.backend) as store:
        stray = _compare(store, entries.values(), report)
        if orphans and stray:
            stray = _add_orphans(rebuild(store, stray), stray, entries, report)
        _note_orphans(stray, report)
        header = finished_header(load_header(found.header), _directory(unit), has_tensors=_names_tensors(entries))
        # The document will look like any other; the log is where it says how it came to be.
        around = Surroundings(found.stack_groups, found.parents, [*found.problems, *report.problems])
        put_documents(store, found.document_name, header, entries.items(), around)
    report.entries = len(entries)
    report.problems.extend(found.problems)
    return report


def _directory(unit: UnitLocation) -> str:
    return unit.directory or unit.location


def _names_tensors(entries: Mapping[str, Any]) -> bool:
    return any(True for value in entries.values() for _ in named_tensors(value))


def _compare(store: Store, values: Iterable[Any], report: RecoverReport) -> list[str]:
    """Count the tensors that entries name, note the missing ones, return those that no entry names."""
    named = dict.fromkeys(name for value in values for name in named_tensors(value))
    keys = list(store.keys())
    held = set(keys)
    report.missing = tuple(name for name in named if name not in held)
    report.tensors = len(named) - len(report.missing)
    if report.missing:
        report.problems.append(f"{len(report.missing)} tensors are missing: {_some(report.missing)}")
    return [name for name in keys if name not in named]


def _add_orphans(rebuilt: Rebuilt, stray: list[str], entries: dict[str, Any], report: RecoverReport) -> list[str]:
    """Take over entries of keys that are not there yet; returns the tensors that still have none."""
    new = {key: value for key, value in rebuilt.entries.items() if key not in entries}
    entries.update(new)
    used = {name for value in new.values() for name in named_tensors(value)}
    report.tensors += len(used)
    report.problems.extend(rebuilt.problems)
    return [name for name in stray if name not in used]


def _note_orphans(stray: Sequence[str], report: RecoverReport) -> None:
    report.orphan_names = tuple(stray)
    if stray:
        report.problems.append(f"{len(stray)} tensors belong to no entry: {_some(stray)}")


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(map(repr, names[:3]))
    return shown if len(names) <= 3 else f"{shown} and {len(names) - 3} more"


def _remove_leftovers(unit: UnitLocation) -> None:
    """Remove what the dead writer had not finished. Nobody else works here: the journal is locked."""
    for path in list(_leftovers(unit.directory)):
        if os.path.isdir(path) and not os.path.islink(path):
            shutil.rmtree(path, ignore_errors=True)
        else:
            Path(path).unlink(missing_ok=True)


def _leftovers(directory: str | None) -> Iterator[str]:
    for root, folders, files in os.walk(directory) if directory is not None else ():
        yield from (os.path.join(root, name) for name in (*folders, *files) if is_temporary(name))
        folders[:] = [name for name in folders if not is_temporary(name)]


# --- without a journal -----------------------------------------------------------------------------------------------


def _without_journal(unit: UnitLocation, *, orphans: bool) -> RecoverReport:
    with _open(unit, "r", unit.backend) as store:
        name = next((name for name in _DOCUMENTS if name in store.documents()), None)
        data = (store.get_document(name) if name is not None else None) or b""
        document, broken = salvage(data, f"{store.location}/{name}")
        if document is not None and not broken:
            report = RecoverReport(unit.key, "complete", entries=len(document))
            _note_orphans(_compare(store, map(document.json, document), report), report)
            return report
        keys = list(store.keys())
        data = bytes(data)
    if document is not None:
        return _from_broken(unit, str(name), data, orphans=orphans)
    if not keys and name is None:
        return RecoverReport(unit.key, "empty", problems=["the process died before it promised anything"])
    if not orphans or not keys:
        what = f"{name} cannot be saved" if name is not None else "there is no document and no journal"
        advice = f"{len(keys)} tensors, but {what}; --orphans rebuilds entries from their names"
        return RecoverReport(unit.key, "lost", orphan_names=tuple(keys), problems=[advice])
    return _from_tensors(unit, keys, name, data)


def _from_broken(unit: UnitLocation, name: str, data: bytes, *, orphans: bool) -> RecoverReport:
    """Keep the complete entries of a damaged document, and the damaged one beside it."""
    document, sentence = salvage(data, f"{unit.location}/{name}")
    assert document is not None
    report = RecoverReport(unit.key, "salvaged", problems=[sentence])
    with _open(unit, "a", unit.backend) as store:
        entries = {key: document.json(key) for key in document}
        stray = _compare(store, entries.values(), report)
        if orphans and stray:
            stray = _add_orphans(rebuild(store, stray), stray, entries, report)
        _note_orphans(stray, report)
        store.put_document(_free_name(store, f"{name}.broken"), data)
        put_documents(store, name, document.header, entries.items(), None)
    report.entries = len(entries)
    return report


def _free_name(store: Store, wanted: str) -> str:
    taken = store.documents()
    names = (wanted, *(f"{wanted}.{number}" for number in range(1, len(taken) + 2)))
    return next(name for name in names if name not in taken)


def _from_tensors(unit: UnitLocation, keys: list[str], name: str | None, data: bytes) -> RecoverReport:
    """Make a document from tensors; one that is there, but holds nothing readable, is kept beside it."""
    report = RecoverReport(unit.key, "rebuilt")
    entries: dict[str, Any] = {}
    with _open(unit, "a", unit.backend) as store:
        rebuilt = rebuild(store, keys)
        _note_orphans(_add_orphans(rebuilt, keys, entries, report), report)
        if not entries:
            raise FormatError(f"{unit.location}: none of {len(keys)} tensors has a name that tells its entry")
        if name is not None:
            store.put_document(_free_name(store, f"{name}.broken"), data)
        header = finished_header(rebuilt.header, _directory(unit), has_tensors=True)
        around = Surroundings(problems=report.problems)
        put_documents(store, name or rebuilt.document, header, entries.items(), around)
    report.entries = len(entries)
    return report


def _open(unit: UnitLocation, mode: Mode, backend: str) -> Store:
    """The store of a unit; a journal may name one that was not made before the process died."""
    is_undecided = unit.backend == "files" and unit.directory is not None
    if not is_undecided or backend in ("files", "memory") or _has_files(unit.directory or ""):
        return open_store(unit.backend, unit.location, mode=mode, group=unit.group)
    return open_store(backend, store_location(unit.directory or "", backend), mode=mode)


def _has_files(directory: str) -> bool:
    return any(os.path.lexists(os.path.join(directory, name)) for name in (*_DOCUMENTS, DATA_DIRECTORY))
