"""The documents of a unit, also of one whose writer never finished: then its journal says what they would have been."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence

from msformat.documents import DumpDocument
from msformat.errors import FormatError, MsformatError
from msformat.finish import Surroundings, finished_header, named_tensors, put_documents
from msformat.journal import is_live, read_journal
from msformat.layout import UnitLocation
from msformat.replay import Replayed, replay
from msformat.schema import load_header
from msformat.stores.base import ReadOnlyBuffer, Store
from msformat.stores.memory import MemoryStore

__all__ = ["replayed_documents", "unit_documents"]

# The store's and the writer's own bookkeeping, which every store has in its own form.
_BOOKKEEPING = ("tensors.jsonl", "journal.jsonl")


def unit_documents(unit: UnitLocation, store: Store) -> tuple[dict[str, ReadOnlyBuffer], list[str]]:
    """Name and bytes of every document of a unit, and what is missing from them.

    Parameters
    ----------
    unit
        Where it is.
    store
        The same, open.
    """
    documents: dict[str, ReadOnlyBuffer] = {}
    problems = list(store.problems)
    for name in _in_order(store.documents()):
        try:
            data = store.get_document(name)
        except (MsformatError, OSError) as error:
            problems.append(f"{name} cannot be read: {error}")
            continue
        if data is not None:
            documents[name] = data
    if unit.journal is not None:
        documents |= _from_journal(unit.journal, documents, problems)
    return documents, problems


def _in_order(names: Sequence[str]) -> list[str]:
    """Written last, dump.json vouches for all the others."""
    wanted = [name for name in names if name not in _BOOKKEEPING]
    return sorted(wanted, key=lambda name: (name in ("dump.json", "debug.json"), name))


def _from_journal(path: str, documents: Mapping[str, ReadOnlyBuffer], problems: list[str]) -> dict[str, ReadOnlyBuffer]:
    try:
        found = replay(read_journal(path).records)
        if _is_newer(documents.get(found.document_name), found):
            problems.append(f"{path}: left over beside a finished document; `msformat recover` removes it")
            return {}
        made = replayed_documents(found, path)
    except (MsformatError, OSError) as error:
        problems.append(f"was never finished, and its journal cannot be used: {error}")
        return {}
    why = "is still being written" if is_live(path) else f"was never finished ({found.reason or 'its process died'})"
    problems.append(f"{why}: {len(found.entries)} entries are taken from the journal")
    problems.extend(found.problems)
    return made


def _is_newer(data: ReadOnlyBuffer | None, found: Replayed) -> bool:
    """Whether a document holds all of the journal: its writer died between writing it and dropping the journal."""
    if data is None:
        return False
    try:
        return set(found.entries) <= set(DumpDocument.parse(data, found.document_name))
    except FormatError:
        return False


def replayed_documents(found: Replayed, source: str) -> dict[str, ReadOnlyBuffer]:
    """The documents that a journal's records add up to.

    Raises
    ------
    FormatError
        The journal broke off before its header.
    """
    if found.header is None:
        raise FormatError(f"{source}: the journal holds no whole header")
    made = MemoryStore(source)
    has_tensors = any(True for value in found.entries.values() for _ in named_tensors(value))
    header = finished_header(load_header(found.header), os.path.dirname(source), has_tensors=has_tensors)
    # The documents will look like any other; the log is where they say how they came to be.
    why = f"the writer stopped: {found.reason}" if found.reason else "the writer died, or is still writing"
    around = Surroundings(found.stack_groups, found.parents, [*found.problems, why])
    put_documents(made, found.document_name, header, found.entries.items(), around)
    return {name: made.get_document(name) or b"" for name in made.documents()}
