"""What a unit holds besides tensors: its documents, or what a journal or a truncated document still tells of them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

from msformat import model, schema
from msformat.documents import ConstructDocument, DumpDocument, StackDocument, salvage
from msformat.errors import FormatError, MsformatError
from msformat.journal import is_live, read_journal
from msformat.replay import Replayed, replay
from msformat.stores.base import ReadOnlyBuffer, Store

__all__ = ["ENTRY_DOCUMENTS", "Contents", "Side", "load_construct", "load_contents", "load_stack"]

D = TypeVar("D")

ENTRY_DOCUMENTS = ("dump.json", "debug.json")


@dataclass(slots=True)
class Contents:
    """Entries of a unit and where they came from.

    Attributes
    ----------
    sources
        One mapping of entries a document, decoded on demand; the first that has a key counts.
    header
        Of the first source.
    incomplete
        Why entries may be missing; None when the unit was finished.
    problems
        Sentences.
    replayed
        What the journal says, None where there is none or it is not needed.
    """

    sources: list[Mapping[str, model.Entry]] = field(default_factory=list)
    header: model.Header = field(default_factory=lambda: model.Header("", "", ""))
    incomplete: str | None = None
    problems: list[str] = field(default_factory=list)
    replayed: Replayed | None = None

    def keys(self) -> Iterator[str]:
        """Every key once."""
        seen: set[str] = set()
        for at, source in enumerate(self.sources):
            yield from (key for key in source if key not in seen)
            if at + 1 < len(self.sources):
                seen.update(source)

    def find(self, key: object) -> Mapping[str, model.Entry] | None:
        """The source that holds an entry."""
        return next((source for source in self.sources if key in source), None)

    def note_incomplete(self, reason: str) -> None:
        """The first reason counts; each is a problem."""
        self.incomplete = self.incomplete or reason
        self.problems.append(reason)


class _ReplayedEntries(Mapping[str, model.Entry]):
    """Entries of a journal, decoded on demand."""

    def __init__(self, entries: Mapping[str, Any], source: str) -> None:
        self._entries = entries
        self._source = source

    def __getitem__(self, key: str) -> model.Entry:
        return schema.load_entry(key, self._entries[key], self._source)

    def __contains__(self, key: object) -> bool:
        return key in self._entries

    def __iter__(self) -> Iterator[str]:
        return iter(self._entries)

    def __len__(self) -> int:
        return len(self._entries)


def load_contents(store: Store | None, source: str, journal: str | None) -> Contents:
    """Index the documents of a unit; no entry is decoded.

    Parameters
    ----------
    store
        Holds the documents. None when it cannot be opened and only the journal is left.
    source
        How messages call the unit.
    journal
        Path of the journal, if there is one.

    Raises
    ------
    FormatError
        There is no readable entry document, and no journal either.
    """
    contents = Contents()
    broken: MsformatError | None = None
    headers: list[model.Header] = []
    for name in ENTRY_DOCUMENTS if store is not None else ():
        data = store.get_document(name) if store is not None else None
        if data is None:
            continue
        try:
            document = _parse(data, f"{source}/{name}", contents)
        except FormatError as error:
            broken = broken or error
            contents.note_incomplete(str(error))
            continue
        contents.sources.append(document)
        contents.problems.extend(document.problems)
        headers.append(document.header)
    if store is not None and store.problems:
        more = f" (and {len(store.problems) - 1} more)" if len(store.problems) > 1 else ""
        contents.incomplete = f"{store.problems[0]}{more}"
        contents.problems.extend(store.problems)
    if journal is not None:
        broken = _add_journal(contents, journal, headers) or broken
    if not contents.sources:
        raise broken or FormatError(f"{source}: holds neither {' nor '.join(ENTRY_DOCUMENTS)}")
    contents.header = headers[0] if headers else contents.header
    return contents


def _parse(data: ReadOnlyBuffer, source: str, contents: Contents) -> DumpDocument:
    try:
        return DumpDocument.parse(data, source)
    except FormatError as error:
        document, reason = salvage(data, source)
        if document is None:
            raise
        contents.note_incomplete(f"{error}; {len(document)} complete entries were saved ({reason})")
        return document


def _add_journal(contents: Contents, path: str, headers: list[model.Header]) -> MsformatError | None:
    """Take what the journal knows better than the documents; returns its error where it cannot be read.

    A document that holds all of the journal is the newer: its writer only did not get to drop the journal.
    """
    try:
        found = read_journal(path)
    except MsformatError as error:
        contents.note_incomplete(f"the journal cannot be read: {error}")
        return error
    replayed = replay(found.records)
    contents.problems.extend(replayed.problems)
    if contents.sources and contents.incomplete is None and all(contents.find(key) for key in replayed.entries):
        contents.problems.append(f"{path}: left over beside a finished document; `msformat recover` removes it")
        return None
    contents.replayed = replayed
    contents.sources.append(_ReplayedEntries(replayed.entries, path))
    if replayed.header is not None:
        headers.append(schema.load_header(replayed.header))
    contents.note_incomplete(_why(path, found.reason, torn=found.torn))
    return None


def _why(path: str, reason: str | None, *, torn: bool) -> str:
    if is_live(path):
        return "it is still being written; entries so far come from its journal"
    tail = ", whose last line was cut off" if torn else ""
    how = f"its writer stopped ({reason})" if reason else "its writer died"
    return f"{how}; entries come from its journal{tail}"


@dataclass(frozen=True, slots=True)
class Side(Generic[D]):
    """A document beside the entries.

    Attributes
    ----------
    document
        Empty where there is none, or a broken one.
    failure
        Why it was left out; None when all is well.
    problems
        What is odd about it, the failure included.
    """

    document: D
    failure: str | None = None
    problems: tuple[str, ...] = ()


def load_stack(store: Store | None, source: str, replayed: Replayed | None) -> Side[StackDocument]:
    """Call stacks from the document, else from the journal. One of a strange shape is left out, never an error.

    Neither is one that this user may not read.
    """
    name = f"{source}/stack.json"
    try:
        data = store.get_document("stack.json") if store is not None else None
        if data is not None:
            document = StackDocument.parse(data, name)
            return Side(document, problems=tuple(document.problems))
    except (FormatError, PermissionError) as error:
        failure = f"call stacks left out: {error}"
        return Side(StackDocument((), "8.1", name), failure, (failure,))
    groups = replayed.stack_groups if replayed is not None else ()
    return Side(StackDocument(((tuple(keys), tuple(frames)) for keys, frames in groups), "8.1", name))


def load_construct(store: Store | None, source: str, replayed: Replayed | None) -> Side[ConstructDocument]:
    """The call tree, as :func:`load_stack`."""
    name = f"{source}/construct.json"
    try:
        data = store.get_document("construct.json") if store is not None else None
        if data is not None:
            document = ConstructDocument.parse(data, name)
            return Side(document, problems=tuple(document.problems))
    except (FormatError, PermissionError) as error:
        failure = f"the call tree is left out: {error}"
        return Side(ConstructDocument({}, name), failure, (failure,))
    return Side(ConstructDocument(replayed.parents if replayed is not None else {}, name))
