"""The index of a unit in a Zarr store: which key lies where. A log while writing, a document when finished.

Log, ``index.jsonl`` beside ``tensors``: one JSON object a line, whose last member ``crc32`` is the CRC-32 of the line
before it (up to and without its comma) in eight hex digits::

    {"key":"x.0","pack":"packs/0","offset":64,"dtype":"float32","shape":[3],"digest":"…","crc32":"0a1b2c3d"}
    {"key":"w.0","array":"tensors/2","row":7,"dtype":"float32","shape":[512,512],"digest":"…","crc32":"…"}

Document, ``documents/index.json``: ``{"format": "msformat-index", "version": 1, "tensors": {key: place, …}}`` in the
order of ``put``, with the same members a place. A key with the place of another is an alias of equal content.
"""

from __future__ import annotations

import json
import os
import re
import zlib
from collections.abc import Iterable, Mapping
from typing import Any

import msgspec

from msformat.errors import CorruptJournalError, FormatError, UnsafeInputError
from msformat.filelock import FileLock
from msformat.stores.base import ReadOnlyBuffer

__all__ = ["INDEX_LIMIT", "LOG_NAME", "IndexLog", "Place", "decode_index", "encode_index", "read_log"]

LOG_NAME = "index.jsonl"
# 100,000 tensors need some 25 MB.
INDEX_LIMIT = 1 << 30

_NODE = re.compile(r"(tensors|packs)/[^/\\\0]+")
_DIGEST = re.compile(r"[0-9a-f]{32}")
_CRC = re.compile(rb',"crc32":"([0-9a-f]{8})"\}')
_CRC_BYTES = 20


class Place(msgspec.Struct, frozen=True, omit_defaults=True):
    """Where a tensor lies, and what it is.

    Attributes
    ----------
    array
        Node that holds it alone (``tensors/…``), None if it is packed.
    pack, offset
        Node (``packs/…``) and first byte in it, None if it has an array.
    row
        Which row of ``array`` it is; None if it is all of it (as version 1 of the layout and other programs have it).
    dtype
        ``DType.name``.
    shape
        Logical shape.
    digest
        Content digest.
    """

    array: str | None = None
    pack: str | None = None
    offset: int | None = None
    dtype: str | None = None
    shape: tuple[int, ...] | None = None
    digest: str | None = None
    row: int | None = None

    @property
    def node(self) -> str:
        """The node to read."""
        return self.array or self.pack or ""

    @property
    def home(self) -> str:
        """What is written at once: the array, or the row of it."""
        return self.node if self.row is None else f"{self.node}/{self.row}"

    def check(self, where: str) -> Place:
        """Refuse what cannot be a place of this store; returns itself.

        Raises
        ------
        UnsafeInputError
            The node is none of this store's.
        FormatError
            Anything else is wrong.
        """
        if (self.array is None) == (self.pack is None) or (self.pack is None) != (self.offset is None):
            raise FormatError(f"{where}: needs either an array, or a pack and an offset")
        if self.row is not None and self.array is None:
            raise FormatError(f"{where}: a pack has no rows")
        if not _NODE.fullmatch(self.node) or self.node.split("/")[1] in (".", ".."):
            raise UnsafeInputError(f"{where}: unsafe node {self.node!r:.200}")
        if self.dtype is None or self.shape is None or len(self.shape) > 64:
            raise FormatError(f"{where}: needs a dtype and a shape")
        if not all(0 <= length < 1 << 63 for length in (*self.shape, self.offset or 0, self.row or 0)):
            raise FormatError(f"{where}: shape, offset or row out of range")
        if self.digest is not None and not _DIGEST.fullmatch(self.digest):
            raise FormatError(f"{where}: malformed digest")
        return self

    def as_json(self) -> dict[str, Any]:
        """Members in the order of the documentation, absent ones left out."""
        names = ("array", "row", "pack", "offset", "dtype", "shape", "digest")
        members = {name: getattr(self, name) for name in names}
        return {name: value for name, value in members.items() if value is not None}


class _Line(Place, frozen=True, omit_defaults=True):
    key: str = ""


class _Index(msgspec.Struct):
    format: str
    version: int
    tensors: dict[str, Place]


def encode_index(places: Mapping[str, Place]) -> bytes:
    """The index document."""
    tensors = {key: place.as_json() for key, place in places.items()}
    return json.dumps({"format": "msformat-index", "version": 1, "tensors": tensors}, separators=(",", ":")).encode()


def decode_index(data: ReadOnlyBuffer, where: str) -> dict[str, Place]:
    """Places from the index document, each checked.

    Raises
    ------
    FormatError
        Not an index (:class:`UnsafeInputError` where it points outside the store).
    """
    index = _decoded(bytes(data), _Index, where)
    if index.format != "msformat-index" or index.version != 1:
        raise FormatError(f"{where}: format {index.format!r:.80} version {index.version} is not known")
    tensors: dict[str, Place] = index.tensors
    for key, place in tensors.items():
        place.check(f"{where}: tensor {key!r:.200}")
    return tensors


def _decoded(data: bytes, kind: type[Any], where: str) -> Any:
    """msgspec is fast and strict; only lone surrogates, which a key may hold and JSON escapes, need the slow way."""
    try:
        try:
            return msgspec.json.decode(data, type=kind)
        except msgspec.DecodeError:
            return msgspec.convert(json.loads(data), type=kind)
    except RecursionError:
        raise UnsafeInputError(f"{where}: nested too deep") from None
    except (ValueError, msgspec.ValidationError) as error:
        raise FormatError(f"{where}: {error}") from error


def encode_line(key: str, place: Place) -> bytes:
    """One line of the log."""
    text = json.dumps({"key": key, **place.as_json()}, separators=(",", ":")).encode()[:-1]
    return text + f',"crc32":"{zlib.crc32(text):08x}"}}\n'.encode()


def read_log(data: ReadOnlyBuffer, where: str) -> tuple[dict[str, Place], int]:
    """Places from a log, and the length of its whole lines.

    A last line that is incomplete or does not match its CRC was torn by a death while writing: it is left out.

    Raises
    ------
    CorruptJournalError
        Another line does not match its CRC.
    FormatError
        A line matches its CRC, but says what cannot be.
    """
    places: dict[str, Place] = {}
    good = 0
    lines = bytes(data).split(b"\n")
    torn = lines.pop()
    for number, line in enumerate(lines, 1):
        found = _checked_line(line, f"{where}: line {number}")
        if found is None:
            if number == len(lines) and not torn:
                break
            raise CorruptJournalError(f"{where}: line {number} does not match its CRC-32")
        places[found.key] = Place(*msgspec.structs.astuple(found)[:-1])
        good += len(line) + 1
    return places, good


def _checked_line(line: bytes, where: str) -> _Line | None:
    text, seal = line[:-_CRC_BYTES], _CRC.fullmatch(line[-_CRC_BYTES:])
    if seal is None or int(seal[1], 16) != zlib.crc32(text):
        return None
    found: _Line = _decoded(line, _Line, where)
    found.check(where)
    return found


class IndexLog:
    """The log being written. Only one process holds it, from before it reads the index until it lets go.

    Parameters
    ----------
    path
        The log's file; made if absent.
    fsync
        Wait for the disk with each append.

    Attributes
    ----------
    inherited
        A writer that did not finish left the log.

    Raises
    ------
    StoreError
        Another process writes this store, or the file cannot be made.
    """

    def __init__(self, path: str, *, fsync: bool = True) -> None:
        self.path = path
        self._fsync = fsync
        self.inherited = os.path.lexists(path)
        open_lock = FileLock.claim if self.inherited else FileLock.create
        self._lock = open_lock(path, taken=_taken_message, fsync=fsync)
        self._length = 0

    def start(self, length: int) -> None:
        """Cut off a torn tail behind the whole lines; from here on lines are appended."""
        if os.fstat(self._lock.descriptor).st_size > length:
            os.ftruncate(self._lock.descriptor, length)
        self._length = length

    def append(self, places: Iterable[tuple[str, Place]]) -> None:
        """Write lines and wait until they are on disk; all or none of them count."""
        data = memoryview(b"".join(encode_line(key, place) for key, place in places))
        size = len(data)
        descriptor = self._lock.descriptor
        try:
            while data:
                data = data[os.write(descriptor, data) :]
            if self._fsync:
                os.fsync(descriptor)
        except OSError:
            # Half a line followed by a whole one would read as damage.
            os.ftruncate(descriptor, self._length)
            raise
        self._length += size

    def close(self, *, drop: bool = False) -> None:
        """Let go; ``drop`` removes the file, which the index document has replaced. Closing twice is fine."""
        if drop:
            self._lock.remove()
        else:
            self._lock.release()


def _taken_message(path: str, *, live: bool) -> str:
    return f"{path}: {'another process is writing this store' if live else 'appeared just now; open the store again'}"
