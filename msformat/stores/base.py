"""The Store seam: named tensors and a few documents. Nothing here knows a backend.

A backend subclasses :class:`Store` and fills in the methods that start with an underscore plus ``get``, ``keys``,
``put_document``, ``get_document``, ``documents``, ``sync`` and ``close``. ``put`` itself is written once, here, so that
content addressing means the same in every store.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from bisect import bisect
from collections.abc import Hashable, Iterator, Mapping
from dataclasses import dataclass
from types import TracebackType
from typing import Any, ClassVar, Literal, Protocol, TypeAlias, cast, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from msformat.arguments import check_bits, require_instance, require_texts
from msformat.digest import content_digest
from msformat.dtypes import DType
from msformat.errors import (
    CorruptTensorError,
    FormatError,
    KeyExistsError,
    StoreError,
    TensorNotFoundError,
)
from msformat.selection import Region, Selection, plan_selection

__all__ = ["COLUMNS", "Mode", "ReadOnlyBuffer", "Store", "StoreOptions", "StoredTensor", "SupportsLinks"]

Mode: TypeAlias = Literal["r", "w", "a"]
ReadOnlyBuffer: TypeAlias = "bytes | memoryview"
#: Name of the columnar index among the documents of a store that keeps one.
COLUMNS = "columns.safetensors"
# Near matches are for a person who misspells a name; a dump that has lost all that it names would wait for them.
_MOST_ADVISED = 10
_MOST_CANDIDATES = 200


@dataclass(frozen=True, slots=True)
class StoreOptions:
    """How a store writes. Reading never needs these: what is on disk says how to read it.

    Attributes
    ----------
    compression
        ``auto`` (the backend's measured default), ``none``, ``gzip``, ``zstd``, ``lz4``, ``blosc``; optionally with
        a level and a filter, ``blosc-zstd:5+bitshuffle``, see :mod:`msformat.stores.codecs`.
    links
        Keep equal content once (design: content addressing). False writes each tensor in full.
    threads
        Threads that compress while one writes; 0 does all in the caller's thread.
    durability
        What a promise (``Store.sync``, ``DumpWriter.commit`` and ``finish``) outlives. ``fsync``: the death of the
        process and of the machine. ``process``: of the process alone, by any signal; a machine that loses its power may
        lose files, or parts of them, that were promised. Saves the wait for the disk.

    Raises
    ------
    FormatError
        No such durability, or a compression that is no text.
    """

    compression: str = "auto"
    links: bool = True
    threads: int = 1
    durability: Literal["fsync", "process"] = "fsync"

    def __post_init__(self) -> None:
        require_instance("compression", self.compression, str)
        if self.durability not in ("fsync", "process"):
            raise FormatError(f"durability {self.durability!r}: choices: fsync, process")

    @property
    def fsync(self) -> bool:
        """Whether to wait for the disk."""
        return self.durability == "fsync"


@runtime_checkable
class SupportsLinks(Protocol):
    """A store that can give stored content a second name without storing it again."""

    def _link(self, key: str, target: str) -> None:
        """Make ``key`` name the content of ``target``, which was put before. May fall back to a copy."""


class StoredTensor(ABC):
    """A tensor in a store, read on demand.

    Attributes
    ----------
    key
        The name it was put under.
    dtype
        Logical element type.
    shape
        Logical shape (without the lanes axis).
    digest
        Content digest recorded when it was written (:func:`msformat.digest.content_digest`), None where the format
        has no place for one (plain ``.npy`` and ``.pt``).
    """

    __slots__ = ("digest", "dtype", "key", "shape")

    # Whether a part costs about its share; False where the whole is read for it.
    reads_parts: ClassVar[bool] = True

    def __init__(self, key: str, dtype: DType, shape: tuple[int, ...], digest: str | None = None) -> None:
        self.key = key
        self.dtype = dtype
        self.shape = tuple(shape)
        self.digest = digest

    @property
    def nbytes(self) -> int:
        """Bytes of the logical values, uncompressed."""
        count = self.dtype.itemsize
        for length in self.shape:
            count *= length
        return count

    @property
    def identity(self) -> Hashable | None:
        """What the stored bytes are called where several keys may share them (an inode, an object's address).

        Tensors of one open store with equal identity, dtype and shape have equal bits. None: nothing is known.
        """
        return None

    @abstractmethod
    def _read(self, region: Region) -> NDArray[Any]:
        """Stored bits of ``region.slices`` (one slice a *logical* axis; a lanes axis is always read whole).

        Returns an array of ``dtype.storage`` and shape ``dtype.stored_shape(region.shape)``. It may be a view of a
        map or of the store's memory.
        """

    def bits(self, selection: Selection = ...) -> NDArray[Any]:
        """Stored bits of a selection, C-contiguous, writable and owned by the caller.

        Raises
        ------
        CorruptTensorError
            Bytes are missing or short.
        StoreError
            More than this machine's memory; says how much.
        """
        region = plan_selection(selection, self.shape)
        found = region.finish(self._read(region))
        return np.array(found, dtype=self.dtype.storage, order="C", copy=True) if _is_shared(found) else found

    def check_whole(self) -> None:  # noqa: B027 (what most stores have to say is nothing)
        """To be asked before all is read in pieces: UnsafeInputError where it repeats what is stored without end."""

    def borrowed_bits(self) -> NDArray[Any]:
        """All stored bits, C-contiguous, to be looked at once and not kept or changed.

        A view of a map where the bits of a large tensor lie in a file as they are, so that no memory is taken for them;
        else the same as :meth:`bits`.
        """
        return self.bits()

    def numpy(self, selection: Selection = ...) -> NDArray[Any]:
        """The selection as an array of ``dtype.numpy``, owned by the caller."""
        return self.dtype.from_bits(self.bits(selection))

    def __getitem__(self, selection: Selection) -> NDArray[Any]:
        return self.numpy(selection)

    def verify(self) -> None:
        """Read everything and compare with the recorded digest, where there is one.

        Raises
        ------
        CorruptTensorError
            Unreadable, or other content than was written.
        """
        bits = self.bits()
        if self.digest is not None and content_digest(bits, self.dtype) != self.digest:
            raise CorruptTensorError(f"tensor {self.key!r}: stored bytes do not match the digest {self.digest}")

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.key!r} {self.dtype.name} {list(self.shape)}>"


def _is_shared(array: NDArray[Any]) -> bool:
    return not (array.flags.c_contiguous and array.flags.writeable and _owns_memory(array))


def _owns_memory(array: NDArray[Any]) -> bool:
    """Whether no other object (a map, a store, a bytes) can see this array's memory."""
    base: Any = array
    while isinstance(base, np.ndarray) and not isinstance(base, np.memmap):
        if base.flags.owndata:
            return True
        base = base.base
    return isinstance(base, bytearray)


class Store(ABC):
    """Named tensors and documents in one place.

    Parameters
    ----------
    location
        Path or URL of the store.
    mode
        ``r`` the store must exist; ``w`` it must not hold anything yet; ``a`` opened or made.
    group
        Where inside one file or group the unit lies (``step0/rank3``), ``""`` for the root.
    options
        How to write.

    Notes
    -----
    Not thread-safe: one thread puts. A store used in a process other than the one that opened it must reopen itself.
    """

    backend: ClassVar[str]
    #: Whether :meth:`put_columns` and :meth:`document_seal` are there.
    keeps_columns: ClassVar[bool] = False
    #: Whether two threads read more in a second than one does. That they may is true of every store of ours.
    reads_faster_in_threads: ClassVar[bool] = False

    def __init__(
        self, location: str, *, mode: Mode = "r", group: str = "", options: StoreOptions | None = None
    ) -> None:
        self.location = location
        self.mode: Mode = mode
        self.group = group
        self.options = options or StoreOptions()
        self._by_digest: dict[str, str] = {}
        self._missed = 0
        # Asked for with every tensor, and slow to find out.
        self._can_link = self.options.links and isinstance(self, SupportsLinks)

    @property
    def shares_content(self) -> bool:
        """Whether equal content is kept once, so that :meth:`put_same` needs no bytes."""
        return self._can_link

    # --- tensors ---------------------------------------------------------------------------------------------------

    def put(self, key: str, bits: NDArray[Any], dtype: DType, *, owned: bool = False) -> str:
        """Store a tensor under any key.

        Parameters
        ----------
        key
            Any string: ``/``, ``..``, NUL, empty and very long names are data, never a path.
        bits
            Array of ``dtype.storage`` with shape ``dtype.stored_shape(...)``; any strides.
        dtype
            The logical element type.
        owned
            The caller will not touch ``bits`` again, so the store may finish later without a copy. Otherwise the
            store keeps no reference once ``put`` returns.

        Returns
        -------
        str
            The content digest.

        Raises
        ------
        KeyExistsError
            The key holds other content. The same content again is no error and writes nothing.
        StoreError
            Not writable, or the disk is full. An error of an earlier, unfinished put may surface here.
        DTypeError, FormatError
            As :func:`msformat.arguments.check_bits` says. Nothing was stored.
        """
        self._check_writable()
        check_bits(key, bits, dtype)
        dense = np.ascontiguousarray(bits).reshape(bits.shape)
        digest = content_digest(dense, dtype)
        if key in self:
            if self._digest_of(key) == digest:
                return digest
            raise KeyExistsError(f"{self.location}: tensor {key!r} is already stored with other content")
        token = self._content_token(key, digest)
        target = self._by_digest.get(token) if self._can_link else None
        if target is not None:
            self._make_link(key, target)
        else:
            self._write(key, dense, dtype, digest, owned=owned or not np.may_share_memory(dense, bits))
            self._by_digest.setdefault(token, key)
        return digest

    def put_same(self, key: str, existing: str) -> None:
        """Store the tensor ``existing``, which was put before, under another key as well.

        What :meth:`put` of equal bits does, but without the bits: a link where ``options.links`` and the store allow
        one, else a copy.

        Raises
        ------
        TensorNotFoundError
            There is no ``existing``.
        KeyExistsError
            ``key`` holds other content. The same content again is no error and writes nothing.
        StoreError
            As for :meth:`put`.
        """
        self._check_writable()
        require_texts(key, existing)
        if existing not in self:
            raise TensorNotFoundError(existing, self.location)
        is_alike = self._content_token(key, "") == self._content_token(existing, "")
        if self._can_link and is_alike and key not in self:
            self._make_link(key, existing)
        elif key != existing:
            stored = self.get(existing)
            self.put(key, stored.bits(), stored.dtype, owned=True)

    def _make_link(self, key: str, target: str) -> None:
        cast("SupportsLinks", self)._link(key, target)

    def _content_token(self, key: str, digest: str) -> str:  # noqa: ARG002 (a hook for stores that need the key)
        """What two keys must share to share content. Stores whose bytes depend on the key (``.pt``) say so here."""
        return digest

    def _digest_of(self, key: str) -> str:
        stored = self.get(key)
        return stored.digest or content_digest(stored.bits(), stored.dtype)

    @abstractmethod
    def _write(self, key: str, bits: NDArray[Any], dtype: DType, digest: str, *, owned: bool) -> None:
        """Store new content under a new key. ``bits`` are C-contiguous; ``owned`` as in :meth:`put`."""

    @abstractmethod
    def get(self, key: str) -> StoredTensor:
        """The tensor of that key; no data are read yet.

        Raises
        ------
        TensorNotFoundError
            No such key.
        """

    @abstractmethod
    def keys(self) -> Iterator[str]:
        """Every key, in the order of ``put``; where a directory keeps no order, sorted naturally."""

    @abstractmethod
    def __contains__(self, key: object) -> bool: ...

    def __len__(self) -> int:
        return sum(1 for _ in self.keys())

    def _not_found(self, key: str, where: str | None = None) -> TensorNotFoundError:
        """The error to raise, with near matches for the first few."""
        self._missed += 1
        near = self._near(key) if self._missed <= _MOST_ADVISED else []
        return TensorNotFoundError(key, where or self.location, near)

    def _near(self, key: str) -> list[str]:
        keys = sorted(self.keys())
        if len(keys) <= _MOST_CANDIDATES:
            return keys
        at = bisect(keys, key)
        # What begins alike stands together.
        return keys[max(0, at - _MOST_CANDIDATES // 2) : at + _MOST_CANDIDATES // 2]

    # --- documents -------------------------------------------------------------------------------------------------

    @abstractmethod
    def put_document(self, name: str, data: ReadOnlyBuffer) -> None:
        """Store a document (``dump.json``, ``stack.json``, …) as these bytes, atomically, over an older one.

        ``name`` is a plain file name: letters, digits, ``.``, ``_``, ``-``.
        """

    def put_documents(self, documents: Mapping[str, ReadOnlyBuffer]) -> None:
        """Store several documents in order: when a later one is there after a death, so are those before it.

        One after the other; a store that can do with one barrier overrides this.
        """
        for name, data in documents.items():
            self.put_document(name, data)

    @abstractmethod
    def get_document(self, name: str) -> ReadOnlyBuffer | None:
        """The bytes of a document, None where there is none of that name."""

    @abstractmethod
    def documents(self) -> tuple[str, ...]:
        """Names of all documents, sorted."""

    def put_columns(self, data: ReadOnlyBuffer) -> None:
        """Store the columnar index (:mod:`msformat.columnindex`) as the document :data:`COLUMNS`, which is not listed.

        Losing it loses nothing, so it need not be as durable as a document. A store without ``keeps_columns`` has none.
        """
        raise StoreError(f"{self.location}: {type(self).__name__} keeps no index of columns for {len(data)} bytes")

    def document_seal(self, name: str) -> tuple[int, str] | None:  # noqa: ARG002 (stores with an index need it)
        """Length of a document, and a digest that changes when what is stored of it does; cheaper than its bytes."""
        return None

    @property
    def problems(self) -> tuple[str, ...]:
        """What could not be read of the place itself, in sentences; only stores of foreign forms know any."""
        return ()

    @property
    def notes(self) -> tuple[str, ...]:
        """What a person should know of the place, though nothing is missing."""
        return ()

    @classmethod
    def groups(cls, location: str) -> tuple[str, ...]:  # noqa: ARG003 (containers need it)
        """Group paths inside ``location`` that hold a unit each (``step0/rank3``); ``""`` is the root itself."""
        return ("",)

    # --- life ------------------------------------------------------------------------------------------------------

    @abstractmethod
    def sync(self) -> None:
        """A barrier: everything put before survives what ``options.durability`` says."""

    @abstractmethod
    def close(self) -> None:
        """Sync and let go. Closing twice is fine."""

    def abandon(self) -> None:
        """Let go without waiting for what was put since the last sync: it may be there or not. Raises nothing."""
        self.close()

    def __enter__(self) -> Store:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _check_writable(self) -> None:
        if self.mode == "r":
            raise StoreError(f"{self.location}: opened for reading")

    def __repr__(self) -> str:
        inside = f" group {self.group!r}" if self.group else ""
        return f"<{type(self).__name__} {self.location!r}{inside} mode {self.mode!r}>"
