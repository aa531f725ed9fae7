"""The journal of a unit being written: what a killed process had finished, in order.

``journal.jsonl`` holds one record a line::

    {8 hex digits: CRC-32 of the JSON bytes} {compact JSON, ASCII}\\n

Every record is an object with a ``kind``; the first line is the header:

=========  ===========================================================================================================
kind       fields
=========  ===========================================================================================================
header     ``version`` 1; ``document`` (``dump.json`` or ``debug.json``); ``backend`` (name of the store); ``header``
           (the document without entries); ``pid`` and ``host`` of the writer
entry      ``key``; ``value`` (the entry as it stands in the document). The same key again replaces it in its place
stack      ``entries`` (entry keys) and ``frames`` (their call stack), or ``ref`` in place of ``frames``: those of the
           n-th record with ``frames``, from 0
parent     ``child`` (entry key); ``parent`` (entry key or null)
problem    ``message``: something that was not captured, in words
close      ``reason``: the writer went away in an orderly way, but did not finish the dump
=========  ===========================================================================================================

Records are appended, flushed and fsynced a batch at a time, after the tensors they name are safe in the store. A death
in the middle of an append leaves a bad *last* line: a torn tail, which is dropped. A bad line anywhere else means that
the file was damaged, and is an error that names it.

A live writer holds an advisory lock (``flock``) on the file. The system drops it when the process dies, in any way.
"""

from __future__ import annotations

import io
import os
import re
import socket
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import IO, Any

from msformat.errors import CorruptJournalError, FormatError, StoreError, UnsafeInputError
from msformat.filelock import FileLock, is_locked
from msformat.filesystem import is_url, open_filesystem
from msformat.jsontext import compact, parse_json
from msformat.replay import Record, Replayed, StackGroups, replay

__all__ = [
    "MAX_LINE",
    "Journal",
    "JournalWriter",
    "Record",
    "Replayed",
    "StackGroups",
    "encode_entry",
    "encode_record",
    "is_live",
    "iter_records",
    "read_journal",
    "replay",
    "taken_message",
]

VERSION = 1
# One entry of a real dump takes some hundred bytes to some hundred KiB; a longer line is refused unread.
MAX_LINE = 64 << 20
_PREFIX = 9  # eight hex digits and a space
_DOCUMENTS = ("dump.json", "debug.json")
_BACKEND = re.compile(r"[A-Za-z0-9_][A-Za-z0-9_.-]{0,63}")


# --- writing ---------------------------------------------------------------------------------------------------------


def encode_record(record: Mapping[str, Any]) -> bytes:
    """The line of a record, newline included."""
    return _line(compact(record))


def encode_entry(key: str, value: bytes) -> bytes:
    """The line of an entry whose value is encoded already (compact ASCII JSON).

    Raises
    ------
    FormatError
        The entry is longer than a journal line may be.
    """
    # Keys are plain as a rule, and two quotes are all that they need.
    is_plain = key.isascii() and key.isprintable() and '"' not in key and "\\" not in key
    quoted = b'"%b"' % key.encode("ascii") if is_plain else compact(key)
    line = _line(b'{"kind":"entry","key":%b,"value":%b}' % (quoted, value))
    if len(line) > MAX_LINE:
        raise FormatError(f"entry {key!r}: {len(line)} bytes of JSON, more than the {MAX_LINE} a journal line may have")
    return line


def _line(payload: bytes) -> bytes:
    return b"%08x %b\n" % (zlib.crc32(payload), payload)


class JournalWriter:
    """An open, locked journal. Making one creates the file, which must not exist, and writes the header durably.

    Parameters
    ----------
    path
        Where the journal goes; its directory exists.
    document, backend, header
        As in the header record.
    fsync
        Wait for the disk with each append.

    Raises
    ------
    StoreError
        There is a journal already (its writer alive or dead), or the file cannot be written.
    """

    def __init__(
        self,
        path: str | os.PathLike[str],
        *,
        document: str,
        backend: str,
        header: Mapping[str, Any],
        fsync: bool = True,
    ) -> None:
        self.path = os.fspath(path)
        self._fsync = fsync
        self._lock = FileLock.create(self.path, taken=taken_message, fsync=fsync)
        self._size = 0
        first = {"kind": "header", "version": VERSION, "document": document, "backend": backend, "header": dict(header)}
        try:
            self.append([encode_record({**first, "pid": os.getpid(), "host": socket.gethostname()})])
        except BaseException:
            self.remove()
            raise

    @property
    def size(self) -> int:
        """Bytes promised so far."""
        return self._size

    def append(self, lines: Iterable[bytes]) -> None:
        """Append a batch of encoded records; when this returns, they survive the death of the process.

        And, with ``fsync``, of the machine.

        Raises
        ------
        StoreError
            Nothing of the batch was kept.
        """
        data = memoryview(b"".join(lines))
        try:
            self._write(data)
            if self._fsync:
                os.fsync(self._lock.descriptor)
        except OSError as error:
            self._rewind()
            raise StoreError(f"{self.path}: cannot append to the journal: {error}") from error
        self._size += len(data)

    def check_place(self) -> None:
        """Refuse to promise anything in a file that nobody can find any more.

        Raises
        ------
        StoreError
            The journal was removed, or moved away with its directory.
        """
        if not self._lock.is_in_place():
            raise StoreError(f"{self.path}: was removed or moved away while the dump was being written")

    def _write(self, data: memoryview) -> None:
        while data:
            data = data[os.write(self._lock.descriptor, data) :]

    def _rewind(self) -> None:
        """Cut off half a batch: another record behind half a line would make a torn tail look like damage."""
        try:
            os.ftruncate(self._lock.descriptor, self._size)
        except OSError:
            self._lock.release()

    def close(self) -> None:
        """Let go and keep the file: the unit stays unfinished. Closing twice is fine."""
        self._lock.release()

    def remove(self) -> None:
        """Remove the file and let go: the documents say everything now."""
        self._lock.remove()


def taken_message(path: str, *, live: bool) -> str:
    """Why a journal that is there keeps others out, and what to do."""
    if live:
        return f"{path}: still being written by {_writer_of(path)}"
    return f"{path}: an unfinished dump lies here; finish it with `msformat recover` or choose another directory"


def _writer_of(path: str) -> str:
    """The process that wrote the header, as far as one can say."""
    try:
        first = next(iter_records(path), {})
    except (FormatError, OSError):
        first = {}
    return f"process {first['pid']} on {first.get('host')}" if "pid" in first else "another process"


def is_live(path: str | os.PathLike[str]) -> bool:
    """Whether the writer of this journal is alive. False where that cannot be found out (URLs, no ``flock``)."""
    name = os.fspath(path)
    return not is_url(name) and is_locked(name)


# --- reading ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Journal:
    """A journal as read.

    Attributes
    ----------
    records
        Whole records in order, the header first; empty when not even the header was whole.
    torn
        A partial last line was dropped.
    reason
        Why the writer went away without finishing; None when it was killed, or still writes.
    """

    records: list[Record]
    torn: bool
    reason: str | None


def read_journal(path: str | os.PathLike[str]) -> Journal:
    """Read a whole journal; see :func:`iter_records`."""
    reader = _Reader(os.fspath(path))
    records = list(reader)
    reasons = [record["reason"] for record in records if record["kind"] == "close"]
    return Journal(records, reader.torn, reasons[-1] if reasons else None)


def iter_records(path: str | os.PathLike[str]) -> Iterator[Record]:
    """The whole records of a journal, one at a time, checked. Never holds more than two lines.

    Raises
    ------
    CorruptJournalError
        A line that is not the last one is damaged, or a whole one says something no writer says; names file and line.
    FormatError
        The journal is of a later version.
    StoreError
        It cannot be read.
    """
    return iter(_Reader(os.fspath(path)))


class _Reader:
    def __init__(self, path: str) -> None:
        self.path = path
        self.torn = False
        self._stacks = 0

    def __iter__(self) -> Iterator[Record]:
        with _open(self.path) as stream:
            for number, line, is_last in _numbered(stream):
                payload = _payload(line)
                if payload is None and is_last:
                    self.torn = True
                    return
                if payload is None:
                    raise self._corrupt(number, "does not match its CRC")
                yield self._checked(number, payload)

    def _corrupt(self, number: int, why: str) -> CorruptJournalError:
        return CorruptJournalError(f"{self.path}: line {number} {why}")

    def _checked(self, number: int, payload: bytes) -> Record:
        try:
            record = parse_json(payload, "JSON")
        except FormatError as error:
            raise self._corrupt(number, f"is not readable ({error})") from error
        kind = record.get("kind") if isinstance(record, dict) else None
        if (kind == "header") != (number == 1):
            raise self._corrupt(number, "is not the header" if number == 1 else "is a second header")
        if kind == "header" and record.get("version") != VERSION:
            raise FormatError(f"{self.path}: journal version {record.get('version')!r}; this msformat reads {VERSION}")
        if not isinstance(kind, str) or kind not in _FIELDS or not _FIELDS[kind](record, self._stacks):
            raise self._corrupt(number, f"is no valid record (kind {kind!r})")
        self._stacks += kind == "stack" and "frames" in record
        return dict(record)


def _open(path: str) -> IO[bytes]:
    folder, name = path.rsplit("/", 1) if is_url(path) else os.path.split(path)
    try:
        stream = open_filesystem(folder or os.curdir).open(name)
    except UnsafeInputError:
        raise
    except OSError as error:
        raise StoreError(f"{path}: cannot read the journal: {error}") from error
    # The local file system gives raw files; reading lines from one would take a system call a byte.
    return io.BufferedReader(stream) if isinstance(stream, io.RawIOBase) else stream


def _numbered(stream: IO[bytes]) -> Iterator[tuple[int, bytes, bool]]:
    """Line number from 1, line, and whether it is the last; a line over the limit comes cut, and so never matches."""
    line = stream.readline(MAX_LINE + 1)
    number = 1
    while line:
        following = stream.readline(MAX_LINE + 1)
        yield number, line, not following
        line = following
        number += 1


def _payload(line: bytes) -> bytes | None:
    """The JSON bytes of a whole line, None for a bad one."""
    payload = line[_PREFIX:].removesuffix(b"\n")
    if len(line) > MAX_LINE or line[:_PREFIX] != b"%08x " % zlib.crc32(payload):
        return None
    return payload


# --- what a record may be --------------------------------------------------------------------------------------------


def _is_header(record: Record, _: int) -> bool:
    return (
        record.get("document") in _DOCUMENTS
        and isinstance(record.get("backend"), str)
        and _BACKEND.fullmatch(record["backend"]) is not None
        and _is_outline(record.get("header"))
    )


def _is_outline(header: Any) -> bool:
    """What readers of documents take; recovery writes it into one."""
    return isinstance(header, dict) and isinstance(header.get("data"), dict | None)


def _is_stack(record: Record, stacks: int) -> bool:
    ref = record.get("ref")
    known = isinstance(ref, int) and not isinstance(ref, bool) and 0 <= ref < stacks
    return _are_texts(record.get("entries")) and (_are_texts(record.get("frames")) if "frames" in record else known)


def _are_texts(value: Any) -> bool:
    return isinstance(value, list) and all(isinstance(item, str) for item in value)


_FIELDS: dict[str, Callable[[Record, int], bool]] = {
    "header": _is_header,
    "entry": lambda record, _: isinstance(record.get("key"), str) and "value" in record,
    "stack": _is_stack,
    "parents": lambda record, _: (
        isinstance(parents := record.get("parents"), dict)
        and all(isinstance(parent, str | None) for parent in parents.values())
    ),
    "parent": lambda record, _: (
        isinstance(record.get("child"), str) and isinstance(record.get("parent", 0), str | None)
    ),
    "problem": lambda record, _: isinstance(record.get("message"), str),
    "close": lambda record, _: isinstance(record.get("reason"), str),
}
