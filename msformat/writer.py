"""Writing one unit of a dump so that a death at any moment loses nothing that was promised.

The order is everything: bytes into the store, a barrier (``store.sync``), the journal with fsync, and at the end the
documents; the journal goes last. An entry in the journal therefore always has its tensors.
"""

from __future__ import annotations

import contextlib
import os
import re
import threading
from collections.abc import Iterable, Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, Literal, NoReturn

from numpy.typing import NDArray

from msformat import arguments
from msformat.atomic import make_directories
from msformat.dtypes import DType
from msformat.errors import DTypeError, FormatError, KeyExistsError, StoreError
from msformat.filesystem import is_url
from msformat.finish import (
    CONTAINERS,
    DATA_DIRECTORY,
    Surroundings,
    finished_header,
    named_tensors,
    put_document_texts,
    store_location,
)
from msformat.journal import JournalWriter, encode_entry, encode_record, is_live, taken_message
from msformat.jsontext import compact, parse_json, quick_compact, quick_compact_all
from msformat.layout import JOURNAL_NAME
from msformat.model import MAX_DEPTH, Header
from msformat.names import SUFFIXES, safe_data_name
from msformat.replay import StackGroups
from msformat.schema import check_entry, check_header, dump_header
from msformat.stores.base import Store, StoreOptions
from msformat.stores.registry import open_store, store_class

__all__ = ["DumpWriter"]

# In compact JSON no quote within a text stands without a backslash before it, so this finds members and nothing else.
_NAMED = re.compile(rb'"data_name":"([^"]*)"')
# Keeps a line far below what a journal line may have.
_PARENTS_A_LINE = 1000
_FINISHED, _CLOSED = "it is finished", "it is closed"
# Any of these says that the directory already holds a unit, whole or not.
_UNIT_NAMES = ("dump.json", "debug.json", "stack.json", "construct.json", DATA_DIRECTORY, *CONTAINERS.values())


class DumpWriter:
    """Writes a unit: tensors, entries, call stacks and the tree.

    Nothing is created before the first thing is put, so a step without data leaves no trace. Every method may be called
    from any thread. After the first failure of the store (disk full, server gone) the writer is dead: that failure is
    raised once, later puts say so at once, and what was committed before stays readable.

    As a context manager it finishes the dump at the end of the block. If the block raises, the dump stays unfinished
    and the journal says why; the block's exception is never replaced by another. A writer that is let go without an
    end is as one whose process died: what was put since the last commit is lost.

    Parameters
    ----------
    unit_dir
        Directory of the unit (``…/step0/rank3``); made when needed, permissions follow the umask. May hold other files,
        but no dump, finished or not.
    header
        Header of the document. ``dump_data_dir`` None is filled in when tensors are saved.
    backend, options
        The store. Its ``durability`` holds for journal and documents, too.
    document
        ``dump.json``, or ``debug.json`` for saved variables.
    sync_entries, sync_bytes
        Commit after that many entries, or that many bytes of tensors, whichever comes first.

    Raises
    ------
    StoreError
        The directory is a URL, holds a dump, or is being written by another process; or there is no such store.
    FormatError
        Something else than a header or options; no such document. SchemaError: a header that is not what the format
        says.
    """

    def __init__(
        self,
        unit_dir: str | os.PathLike[str],
        header: Header,
        *,
        backend: str = "files",
        options: StoreOptions | None = None,
        document: Literal["dump.json", "debug.json"] = "dump.json",
        sync_entries: int = 64,
        sync_bytes: int = 64 << 20,
    ) -> None:
        self.unit_dir = _directory_of(unit_dir)
        self._options = options if options is not None else StoreOptions()
        arguments.require_instance("header", header, Header)
        arguments.require_instance("options", self._options, StoreOptions)
        arguments.require_one_of("document", document, ("dump.json", "debug.json"))
        arguments.require_at_least(0, sync_entries=sync_entries, sync_bytes=sync_bytes)
        self.header = header
        self.backend = backend
        self.document = document
        self._limits = (sync_entries, sync_bytes)
        self._mutex = threading.RLock()
        self._pid = os.getpid()
        self._store: Store | None = None
        self._journal: JournalWriter | None = None
        self._entries: dict[str, bytes] = {}
        self._stacks = StackGroups()
        self._parents: dict[str, str | None] = {}
        self._problems: list[str] = []
        self._tensors: set[str] = set()
        self._names: set[str] = set()
        self._lines: list[bytes] = []
        self._pending_entries = 0
        self._unsynced_bytes = 0
        self._is_dirty = False
        self._end = ""
        store_class(backend)  # a misspelt name shows here, not in the middle of a step
        check_header(dump_header(header), os.path.join(self.unit_dir, document))
        self._refuse_occupied()

    # --- what a dump is made of --------------------------------------------------------------------------------------

    def data_name(self, raw: str) -> str:
        """A name for a tensor that is safe as a file name and not yet given out by this writer.

        ``raw`` itself wherever that is possible; a second tensor of the same name gets a number (``x~2.pt``).
        """
        arguments.require_texts(raw)
        with self._mutex:
            name, number = safe_data_name(raw), 2
            suffix = next((suffix for suffix in SUFFIXES if raw.endswith(suffix)), "")
            while name in self._names:
                name = safe_data_name(f"{raw.removesuffix(suffix)}~{number}{suffix}")
                number += 1
            self._names.add(name)
            return name

    def put_tensor(self, data_name: str, bits: NDArray[Any], dtype: DType, *, owned: bool = False) -> str:
        """Store the bits of a tensor; see :meth:`msformat.stores.base.Store.put`. Returns the content digest."""
        with self._mutex, self._guard(f"tensor {data_name!r}"):
            arguments.check_bits(data_name, bits, dtype)  # a mistake takes no directory
            store = self._open_store()
            self._is_dirty = True
            digest = store.put(data_name, bits, dtype, owned=owned)
            self._tensors.add(data_name)
            self._names.add(data_name)
            self._unsynced_bytes += bits.nbytes
            return digest

    def put_same(self, data_name: str, existing: str) -> None:
        """Give a tensor that was put before a second name; see :meth:`msformat.stores.base.Store.put_same`.

        Raises
        ------
        FormatError
            ``existing`` was not put. Nothing was stored.
        """
        arguments.require_texts(data_name, existing)
        with self._mutex, self._guard(f"tensor {data_name!r}"):
            if existing not in self._tensors:
                raise FormatError(f"{self.unit_dir}: tensor {data_name!r}: {existing!r} was not put")
            store = self._open_store()
            self._is_dirty = True
            store.put_same(data_name, existing)
            self._tensors.add(data_name)
            self._names.add(data_name)

    def put_entry(self, key: str, value: Any, *, trusted: bool = False) -> None:
        """Record an entry; the same key again replaces it in its place.

        Parameters
        ----------
        key
            Entry key.
        value
            JSON value as in the document. It is encoded at once, so the caller may change it afterwards.
        trusted
            The caller made ``value`` of dicts with text keys, lists, text, numbers and None, and as the format has it:
            only the tensors it names are checked. Four times as fast.

        Raises
        ------
        FormatError
            The value is not what the format says, or names a tensor that was not put. Nothing was recorded.
        """
        text = self._encode(key, value, trusted=trusted)
        line = encode_entry(key, text)
        with self._mutex, self._guard(f"entry {key!r}"):
            if not self._has_named(text):
                self._require_tensors(key, value if trusted else parse_json(text, key))
            self._note(line)
            self._entries[key] = text
            self._pending_entries += 1
            self._commit_if_due()

    def put_entries(self, entries: Sequence[tuple[str, Any]]) -> None:
        """Record many trusted entries (see :meth:`put_entry`) at once, which costs a fraction of one after the other.

        Raises
        ------
        FormatError
            One of them names a tensor that was not put, or is nested too deep. None of them was recorded.
        """
        arguments.require_texts(*(key for key, _ in entries))
        texts = quick_compact_all([value for _, value in entries])
        for (key, _), text in zip(entries, texts, strict=True):
            self._check_depth(key, text)
        lines = [encode_entry(key, text) for (key, _), text in zip(entries, texts, strict=True)]
        with self._mutex, self._guard("entries"):
            for (key, value), text in zip(entries, texts, strict=True):
                if not self._has_named(text):
                    self._require_tensors(key, value)
            self._start()
            self._lines += lines
            self._entries.update(zip((key for key, _ in entries), texts, strict=True))
            self._pending_entries += len(lines)
            self._commit_if_due()

    def put_stack(self, entries: Iterable[str], frames: Iterable[str]) -> None:
        """Record the call stack of entries, innermost frame first. Equal stacks are kept once."""
        keys, stack = arguments.listed_texts("entries", entries), arguments.listed_texts("frames", frames)
        with self._mutex, self._guard("call stack"):
            number, is_new = self._stacks.put(keys, stack)
            how = {"frames": stack} if is_new else {"ref": number}
            self._note(encode_record({"kind": "stack", "entries": keys, **how}))

    def put_parent(self, child: str, parent: str | None) -> None:
        """Record what an entry was called by; None for the top."""
        arguments.require_texts(child, "" if parent is None else parent)
        with self._mutex, self._guard("parent"):
            self._note(encode_record({"kind": "parent", "child": child, "parent": parent}))
            self._parents[child] = parent

    def put_parents(self, parents: Mapping[str, str | None]) -> None:
        """Record what many entries were called by: one line of the journal for a batch."""
        arguments.require_texts(*parents, *(parent for parent in parents.values() if parent is not None))
        items = list(parents.items())
        with self._mutex, self._guard("parents"):
            for start in range(0, len(items), _PARENTS_A_LINE):
                self._note(encode_record({"kind": "parents", "parents": dict(items[start : start + _PARENTS_A_LINE])}))
            self._parents.update(items)

    def put_problem(self, message: str) -> None:
        """Record that something was not captured; ends up in dump_error_info.log. Alone it makes no dump."""
        arguments.require_texts(message)
        with self._mutex, self._guard("problem"):
            self._lines.append(encode_record({"kind": "problem", "message": message}))
            self._problems.append(message)

    # --- promises ----------------------------------------------------------------------------------------------------

    def commit(self) -> None:
        """Make everything put so far survive the death of the process, and of the machine (``options.durability``)."""
        with self._mutex, self._guard("commit"):
            if self._journal is None:
                return
            if self._store is not None and self._is_dirty:
                self._store.sync()
            if self._lines:
                self._journal.append(self._lines)
            self._journal.check_place()
            self._lines.clear()
            self._pending_entries = self._unsynced_bytes = 0
            self._is_dirty = False

    def finish(self) -> None:
        """Commit, write the documents, drop the journal. A writer that was given nothing leaves nothing.

        Raises
        ------
        StoreError
            The dump cannot be finished; it stays readable as incomplete.
        """
        with self._mutex:
            if self._end == _FINISHED:
                return
            with self._guard("the end of the dump"):
                self.commit()
                if self._journal is not None:
                    self._put_documents()
                    self._open_store().close()
                    self._journal.check_place()
                    self._journal.remove()
            self._end = _FINISHED

    def close(self, reason: str = "closed before it was finished") -> None:
        """Let go without finishing: the dump stays readable as incomplete, with the reason. After ``finish`` nothing.

        Raises
        ------
        StoreError
            What was put last cannot be committed. Everything is released all the same.
        """
        with self._mutex:
            if self._end in (_FINISHED, _CLOSED) or os.getpid() != self._pid:
                return
            try:
                if not self._end:
                    self.commit()
            finally:
                self._release(self._end or reason)
                self._end = _CLOSED

    def __reduce__(self) -> NoReturn:
        raise TypeError(f"{self.unit_dir}: a writer cannot be copied or pickled: two would write over each other")

    def __enter__(self) -> DumpWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is None and not self._end:
            self.finish()
            return
        with contextlib.suppress(StoreError):
            self.close(f"{type(error).__name__}: {error}")

    # --- inside ------------------------------------------------------------------------------------------------------

    @contextlib.contextmanager
    def _guard(self, what: str) -> Iterator[None]:
        """Refuse a dead writer; die of a failure of the store, which is raised as StoreError once."""
        if os.getpid() != self._pid:
            raise StoreError(f"{self.unit_dir}: this dump belongs to process {self._pid}")
        if self._end:
            raise StoreError(f"{self.unit_dir}: {what} cannot be written any more: {self._end}")
        try:
            yield
        except (KeyExistsError, DTypeError, FormatError):
            raise  # the caller's mistake; the store is well
        except (OSError, RuntimeError, ValueError) as error:
            if not self._end:
                self._end = f"writing failed: {error}"
            if isinstance(error, StoreError):
                raise
            raise StoreError(f"{self.unit_dir}: {what}: {error}") from error

    def _refuse_occupied(self) -> None:
        journal = os.path.join(self.unit_dir, JOURNAL_NAME)
        if os.path.lexists(journal):
            raise StoreError(taken_message(journal, live=is_live(journal)))
        for name in _UNIT_NAMES:
            if os.path.lexists(os.path.join(self.unit_dir, name)):
                raise StoreError(f"{self.unit_dir}: a dump lies here already ({name}); it is never overwritten")

    def _encode(self, key: str, value: Any, *, trusted: bool) -> bytes:
        """The entry as it will stand in the journal."""
        source = os.path.join(self.unit_dir, self.document)
        arguments.require_texts(key)
        try:
            text = quick_compact(value) if trusted else compact(value)
        except FormatError as error:
            raise FormatError(f"{source}: entry {key!r}: {error}") from error
        if not trusted:
            arguments.require_distinct_keys(value, f"{source}: entry {key!r}")
            # What is checked is what will be read again: JSON makes tuples arrays and keys strings.
            check_entry(key, parse_json(text, source), source)
        else:
            self._check_depth(key, text)
        return text

    def _check_depth(self, key: str, text: bytes) -> None:
        """Deeply nested values could be written, but never be read again."""
        if text.count(b"[") + text.count(b"{") > MAX_DEPTH:
            source = os.path.join(self.unit_dir, self.document)
            check_entry(key, parse_json(text, source), source)

    def _commit_if_due(self) -> None:
        if self._pending_entries >= self._limits[0] or self._unsynced_bytes >= self._limits[1]:
            self.commit()

    def _has_named(self, text: bytes) -> bool:
        """Whether everything that looks like the name of a tensor is one that was put. Escaped names never are."""
        return all(name.decode("ascii") in self._tensors for name in _NAMED.findall(text))

    def _require_tensors(self, key: str, value: Any) -> None:
        missing = next((name for name in named_tensors(value) if name not in self._tensors), None)
        if missing is not None:
            raise FormatError(f"{self.unit_dir}: entry {key!r} names the tensor {missing!r}, which was not put")

    def _note(self, line: bytes) -> None:
        self._start()
        self._lines.append(line)

    def _start(self) -> None:
        """Take the directory: from here on a unit is there."""
        if self._journal is not None:
            return
        make_directories(self.unit_dir, fsync=self._options.fsync)
        self._refuse_occupied()
        path = os.path.join(self.unit_dir, JOURNAL_NAME)
        self._journal = JournalWriter(
            path,
            document=self.document,
            backend=self.backend,
            header=dump_header(self.header),
            fsync=self._options.fsync,
        )

    def _open_store(self) -> Store:
        self._start()
        if self._store is None:
            location = store_location(self.unit_dir, self.backend)
            # Mode "w" would also refuse files that are no part of a dump.
            self._store = open_store(self.backend, location, mode="a", options=self._options)
        return self._store

    def _put_documents(self) -> None:
        put_document_texts(
            self._open_store(),
            self.document,
            finished_header(self.header, self.unit_dir, has_tensors=bool(self._tensors)),
            self._entries.items(),
            Surroundings(self._stacks.groups(), self._parents, self._problems),
        )

    def _release(self, reason: str) -> None:
        """Let everything go, whatever state it is in; nothing is raised, since the cause was, or will be."""
        if self._journal is not None:
            with contextlib.suppress(StoreError):
                self._journal.append([encode_record({"kind": "close", "reason": reason})])
        if self._store is not None:
            with contextlib.suppress(OSError, RuntimeError, ValueError):
                self._store.close()
        if self._journal is not None:
            self._journal.close()


def _directory_of(unit_dir: str | os.PathLike[str]) -> str:
    """Where a unit goes, whatever the program's directory is later."""
    text = arguments.path_text(unit_dir)
    if not text.strip():
        raise StoreError(f"{text!r}: the directory has no name")
    if is_url(text):
        raise StoreError(f"{text}: a dump is written to a directory; convert takes it to a URL")
    return os.path.abspath(text)
