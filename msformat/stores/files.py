"""The canonical layout: one ``.npy`` or ``.pt`` a tensor in ``dump_tensor_data``, documents beside it.

What msprobe writes, opened as it is; what is written here, msprobe, ``torch.load`` and ``np.load`` open. File names are
keys. Only a tensor whose key is no safe file name, or whose file cannot tell its element type, needs a line in
``tensors.jsonl`` (:mod:`msformat.stores.sidecar`).
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

from numpy.typing import NDArray

from msformat.atomic import (
    atomic_file,
    fsync_directory,
    fsync_file,
    fsync_files,
    is_temporary,
    make_directories,
    write_atomic,
)
from msformat.dtypes import DType
from msformat.errors import CorruptTensorError, FormatError, StoreError, UnsafeInputError
from msformat.filesystem import FileSystem, Item, LocalFileSystem, is_url, join, open_filesystem
from msformat.names import natural_key, safe_data_name
from msformat.room import check_document, check_packing
from msformat.stores.base import Mode, ReadOnlyBuffer, Store, StoredTensor, StoreOptions
from msformat.stores.farfiles import look_at
from msformat.stores.many import HELD_BYTES, Found, HeldTensor, at_once, attempt
from msformat.stores.npyfile import MAGIC, npy_needs_sidecar, npy_parts, open_npy
from msformat.stores.ptfile import open_pt, pt_needs_sidecar, pt_parts
from msformat.stores.sidecar import SIDECAR, SidecarLine, SidecarWriter, parse_sidecar
from msformat.stores.strided import FileTensor

__all__ = ["DATA_DIRECTORY", "FilesStore"]

DATA_DIRECTORY = "dump_tensor_data"
_JOURNAL = "journal.jsonl"
# What no directory is called.
_DOCUMENTS = frozenset({"dump.json", "debug.json", "stack.json", "construct.json"})
_DOCUMENT = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,199}")
# msprobe rewrites dump.json in place while a run goes on: up to this size readers keep what they saw.
_MAP_DOCUMENT = 256 << 20
# Places of a document that are looked at, to tell whether it has holes, and how much of each.
_LOOKS = 16
_LOOK_BYTES = 4096
# A name with "/" in it is a nested file; deeper trees are no dump.
_MAX_DEPTH = 8


class FilesStore(Store):
    """Files of one unit.

    Parameters
    ----------
    location
        The unit directory (``step0/rank3``): a path, or for reading a URL.
    boundary
        Directory that symbolic links may lead into; default: the unit directory.
    """

    backend: ClassVar[str] = "files"
    reads_faster_in_threads: ClassVar[bool] = True

    def __init__(
        self,
        location: str,
        *,
        mode: Mode = "r",
        group: str = "",
        options: StoreOptions | None = None,
        boundary: str | None = None,
    ) -> None:
        location = os.fspath(location)
        super().__init__(f"{location}/{group}" if group else location, mode=mode, group=group, options=options)
        if mode != "r":
            self._make_directory()
        self._files: FileSystem = open_filesystem(self.location, boundary=boundary)
        self._require_directory()
        if mode == "w":
            self._check_empty()
        self._named: dict[str, SidecarLine] = {}
        self._taken: dict[str, str] = {}
        self._sidecar = self._load_sidecar()
        self._unsynced: list[str] = []
        # What a writer has is known without asking the disk for each put.
        self._known = set(self.keys()) if mode == "a" else set()

    def _make_directory(self) -> None:
        if is_url(self.location):
            raise StoreError(f"{self.location}: files can only be written to a local directory")
        try:
            make_directories(self.location, fsync=self.options.fsync)
        except OSError as error:
            raise StoreError(f"{self.location}: {error.strerror or error}") from error

    def _require_directory(self) -> None:
        if self._files.kind("") != "directory":
            raise StoreError(f"{self.location}: no such directory")

    def _check_empty(self) -> None:
        if self._files.kind(SIDECAR) or self.documents() or next(self.keys_in(DATA_DIRECTORY), None) is not None:
            raise StoreError(f"{self.location}: already holds a dump")

    def _load_sidecar(self) -> SidecarWriter:
        data: bytes | memoryview = b""
        if self._files.kind(SIDECAR) is not None:
            self._refuse_hollow(SIDECAR, check_document)
            data = self._files.map(SIDECAR)
        lines, length = parse_sidecar(data, self._files.describe(SIDECAR))
        for line in lines:
            self._named[line.key] = line
            self._taken[line.file] = line.key
        return self._sidecar_writer(lines, length)

    def _sidecar_writer(self, lines: list[SidecarLine], length: int) -> SidecarWriter:  # noqa: ARG002 (of a URL)
        return SidecarWriter(Path(self.location) / SIDECAR, keep=length)

    # --- names -------------------------------------------------------------------------------------------------

    def _file_of(self, key: str) -> str | None:
        """Path of the file a key names, None where it cannot name one.

        Raises
        ------
        UnsafeInputError
            The name is absolute or climbs up.
        """
        line = self._named.get(key)
        file = key if line is None else line.file
        parts = file.split("/")
        if file[:1] == "/" or ".." in parts:
            raise UnsafeInputError(f"{self.location}: tensor {key!r}: the name {file!r} leads outside")
        # "a//b" and "a/./b" would be second names of "a/b".
        if "" in parts or "." in parts or "\0" in file or (line is None and file in self._taken):
            return None
        return f"{DATA_DIRECTORY}/{file}"

    def _new_file_of(self, key: str) -> str:
        """A file name for a new key: the key itself where it is a safe one and not taken."""
        name = self._safe_name(key)
        attempt = 0
        while self._taken.get(name, name) != name or (name != key and name in self._known) or self._stands(name):
            attempt += 1
            name = safe_data_name(f"{key}\0{attempt}{_suffix(key)}")
        return name

    def _stands(self, name: str) -> bool:
        """Whether a file has a new name already: ``X.npy`` and ``x.npy`` are one where case makes no difference."""
        return os.path.lexists(self._data_path(name))

    def _safe_name(self, key: str) -> str:
        return safe_data_name(key)

    def keys(self) -> Iterator[str]:
        """Every key, sorted naturally: a directory keeps no order."""
        found = {self._taken.get(file, file) for file in self.keys_in(DATA_DIRECTORY)}
        return iter(sorted(found, key=natural_key))

    def keys_in(self, directory: str, *, depth: int = 0) -> Iterator[str]:
        """Names of tensor files, relative to ``dump_tensor_data``; special files too, so that reading them tells."""
        if self._files.kind(directory) != "directory" or depth > _MAX_DEPTH:
            return
        for item in self._files.list(directory):
            path = join(directory, item.name)
            if item.kind == "directory":
                yield from self.keys_in(path, depth=depth + 1)
            elif not is_temporary(item.name):
                yield path.removeprefix(f"{DATA_DIRECTORY}/")

    def __contains__(self, key: object) -> bool:
        if not isinstance(key, str):
            return False
        if self.mode != "r":
            return key in self._known
        try:
            path = self._file_of(key)
            return path is not None and self._files.kind(path) == "file"
        except UnsafeInputError:
            return False

    # --- reading -----------------------------------------------------------------------------------------------

    def get(self, key: str) -> StoredTensor:
        """The tensor of that key.

        Raises
        ------
        TensorNotFoundError
            No such file.
        UnsafeInputError
            The name leads outside, or to something that is no regular file.
        FormatError
            The file is neither a ``.npy`` nor a ``.pt`` with a tensor.
        CorruptTensorError
            The file is cut short.
        """
        path = self._found_file(key)
        with self._named_errors(key, path):
            look = look_at(self._files, path)
        try:
            return self._open_tensor(key, path, look.buffer)
        except (FormatError, CorruptTensorError):
            if look.is_whole:
                raise
        # Another layout than torch's own, or damage: only the whole file tells.
        with self._named_errors(key, path):
            return self._open_tensor(key, path, self._files.map(path))

    def get_many(self, keys: Sequence[str]) -> list[Found]:
        """See :class:`msformat.stores.many.SupportsMany`: small files behind a URL are fetched at the same time."""
        is_local = isinstance(self._files, LocalFileSystem)
        return [attempt(self.get, key) for key in keys] if is_local else at_once(self._fetch, keys)

    def _fetch(self, key: str) -> StoredTensor:
        path = self._found_file(key)
        with self._named_errors(key, path):
            buffer = look_at(self._files, path).buffer
        if not isinstance(buffer, bytes) or len(buffer) > HELD_BYTES:
            return self.get(key)
        stored = self._open_tensor(key, path, buffer)
        return HeldTensor(stored, stored.bits_of(buffer))

    def _found_file(self, key: str) -> str:
        path = self._file_of(key)
        if path is None:
            raise self._not_found(key)
        return path

    @contextlib.contextmanager
    def _named_errors(self, key: str, path: str) -> Iterator[None]:
        try:
            yield
        except (FileNotFoundError, NotADirectoryError):
            raise self._not_found(key) from None
        except OSError as error:
            if isinstance(error, StoreError):
                raise
            raise StoreError(f"{self._files.describe(path)}: {error.strerror or error}") from error

    def _open_tensor(self, key: str, path: str, buffer: bytes | memoryview) -> FileTensor:
        line = self._named.get(key)
        dtype, digest = (line.dtype, line.digest) if line else (None, None)
        if bytes(buffer[: len(MAGIC)]) == MAGIC:
            return open_npy(key, self._files, path, buffer, len(buffer), dtype=dtype, digest=digest)
        if path.endswith(".pt") or bytes(buffer[:2]) == b"PK":
            return open_pt(key, self._files, path, buffer, dtype=dtype, digest=digest)
        if len(buffer) < len(MAGIC):
            raise CorruptTensorError(f"{self._files.describe(path)}: the file has only {len(buffer)} bytes")
        raise FormatError(f"{self._files.describe(path)}: is neither a .npy nor a .pt")

    # --- writing -----------------------------------------------------------------------------------------------

    def _content_token(self, key: str, digest: str) -> str:
        return f"{_suffix(key)}{digest}"

    def _write(self, key: str, bits: NDArray[Any], dtype: DType, digest: str, *, owned: bool) -> None:  # noqa: ARG002
        is_pt = _suffix(key) == ".pt"
        parts = pt_parts(bits, dtype) if is_pt else npy_parts(bits, dtype)
        needs = pt_needs_sidecar(dtype) if is_pt else npy_needs_sidecar(dtype)
        name = self._new_file_of(key)
        self._put_file(name, parts)
        self._register(key, SidecarLine(name, key, dtype if needs else None, digest if needs else None))

    def _put_file(self, name: str, parts: Iterable[bytes | memoryview]) -> None:
        path = self._data_path(name)
        try:
            write_atomic(path, parts, fsync=False, begin=self.options.fsync)
        except OSError as error:
            raise StoreError(f"{path}: {error.strerror or error}") from error

    def _link(self, key: str, target: str) -> None:
        """A hard link; a copy where the file system has none or the file has too many."""
        line = self._named.get(target)
        name = self._new_file_of(key)
        self._second_name(line.file if line else target, name)
        self._register(key, SidecarLine(name, key, line.dtype if line else None, line.digest if line else None))

    def _second_name(self, existing: str, name: str) -> None:
        source, path = self._data_path(existing), self._data_path(name)
        try:
            os.link(source, path)
        except OSError:
            self._copy(source, path)

    def _copy(self, source: str, path: str) -> None:
        try:
            with Path(source).open("rb") as given, atomic_file(path, fsync=False) as stream:
                shutil.copyfileobj(given, stream)
        except OSError as error:
            raise StoreError(f"{path}: {error.strerror or error}") from error

    def _data_path(self, name: str) -> str:
        directory = os.path.join(self.location, DATA_DIRECTORY)
        if not self._known:
            self._prepare(directory)
        return os.path.join(directory, name)

    def _prepare(self, directory: str) -> None:
        try:
            os.makedirs(directory, exist_ok=True)
        except OSError as error:
            raise StoreError(f"{directory}: {error.strerror or error}") from error
        if os.path.islink(directory):
            raise UnsafeInputError(f"{directory}: is a link; nothing is written through it")

    def _register(self, key: str, line: SidecarLine) -> None:
        self._known.add(key)
        self._unsynced.append(line.file)
        if line.file != key or line.dtype is not None:
            self._named[key] = line
            self._taken[line.file] = key
            self._sidecar.add(line)

    # --- documents ---------------------------------------------------------------------------------------------

    def put_document(self, name: str, data: ReadOnlyBuffer) -> None:
        """Store a document atomically, and durably as far as ``options.durability`` goes.

        Raises
        ------
        StoreError
            Not writable.
        UnsafeInputError
            ``name`` is no plain file name, or one that means something else here.
        """
        self._check_writable()
        self._check_document_name(name)
        path = os.path.join(self.location, name)
        try:
            write_atomic(path, data if isinstance(data, bytes) else memoryview(data), fsync=self.options.fsync)
        except OSError as error:
            raise StoreError(f"{path}: {error.strerror or error}") from error

    def _check_document_name(self, name: str) -> None:
        if not _DOCUMENT.fullmatch(name) or not _is_document(name):
            raise UnsafeInputError(f"{self.location}: {name!r} is no name for a document")

    def get_document(self, name: str) -> ReadOnlyBuffer | None:
        """The bytes of a document, mapped if very large; None where there is none of that name."""
        if not _is_document(name) or self._files.kind(name) is None:
            return None
        self._refuse_hollow(name, check_packing)
        return self._files.map(name, above=_MAP_DOCUMENT)

    def _refuse_hollow(self, name: str, check: Callable[[int, Callable[[], int], str], None]) -> None:
        """A file with holes in it is what a bomb is in a container: terabytes that nobody sent."""
        if isinstance(self._files, LocalFileSystem) and self._files.kind(name) == "file":
            size, stored = self._files.size(name), self._files.stored_size(name)

            def stored_size() -> int:
                return stored if stored is not None and self._is_hollow(name, size) else size

            check(size, stored_size, self._files.describe(name))

    def _is_hollow(self, name: str, size: int) -> bool:
        """Whether most of it is zeros, as no text is: some systems (ZFS) say late what room a new file takes."""
        starts = [secrets.randbelow(size) for _ in range(_LOOKS)]
        return 2 * sum(not any(self._files.read(name, start, _LOOK_BYTES)) for start in starts) > _LOOKS

    def documents(self) -> tuple[str, ...]:
        """Every regular file beside ``dump_tensor_data`` that is no store, journal or temporary.

        A directory that is called as a document is listed, too, so that reading it tells.
        """
        found = (item.name for item in self._files.list("") if item.kind == "file" or _is_misnamed(item))
        return tuple(sorted(name for name in found if _is_document(name)))

    # --- life --------------------------------------------------------------------------------------------------

    def sync(self) -> None:
        """fsync every file put since the last barrier, the sidecar, and the directories.

        With ``durability="process"`` the system has all bytes already, and nothing is waited for.
        """
        if self.mode == "r":
            return
        wrote_sidecar = self._sidecar.flush()
        if not self._unsynced or not self.options.fsync:
            self._unsynced.clear()
            return
        directory = os.path.join(self.location, DATA_DIRECTORY)
        try:
            names = (os.path.join(directory, name) for name in self._unsynced)
            fsync_files(names, threads=self.options.threads > 0)
            if wrote_sidecar:
                fsync_file(self._sidecar.path)
        except OSError as error:
            raise StoreError(f"{directory}: {error.strerror or error}") from error
        fsync_directory(directory)
        fsync_directory(self.location)
        self._unsynced.clear()

    def close(self) -> None:
        """Sync. Nothing is held open between calls."""
        self.sync()

    def abandon(self) -> None:
        """Nothing waits for anybody."""


def _suffix(key: str) -> str:
    return ".pt" if key.endswith(".pt") else ".npy"


def _is_misnamed(item: Item) -> bool:
    return item.kind == "directory" and item.name in _DOCUMENTS


def _is_document(name: str) -> bool:
    return name not in (_JOURNAL, SIDECAR) and not name.endswith((".h5", ".zarr")) and not is_temporary(name)
