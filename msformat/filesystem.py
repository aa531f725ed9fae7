"""Reading from a tree that a stranger made, on this machine or behind a URL.

Every path is relative to a root and stays inside it: ``..``, absolute paths, and symbolic links that lead out are
refused; so is anything that is not a regular file (a FIFO would hang the reader, a device would never end).
"""

from __future__ import annotations

import errno
import mmap
import os
import re
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cached_property, partial
from pathlib import Path
from typing import Any, BinaryIO, Literal, Protocol, TypeAlias

from msformat.credentials import hide_credentials
from msformat.errors import BackendMissingError, MsformatError, StoreError, UnsafeInputError

__all__ = [
    "MAP_FROM",
    "FileSystem",
    "Item",
    "Kind",
    "LocalFileSystem",
    "RemoteFileSystem",
    "is_url",
    "join",
    "open_filesystem",
    "open_remote",
]

Kind: TypeAlias = Literal["file", "directory", "special"]
# Below this a read is cheaper than a map.
MAP_FROM = 1 << 16
# Directories are real there, and have to be made.
_HIERARCHIES = {"sftp", "ssh", "smb", "ftp", "hdfs", "webhdfs", "arrow_hdfs", "dbfs"}


# O_NONBLOCK: opening a FIFO must not wait for its other end; on regular files it means nothing.
_READ = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_BINARY", 0)
_NO_LINK = getattr(os, "O_NOFOLLOW", 0)
# Of st_blocks, whatever blocks the file system has (POSIX).
_BLOCK = 512
# What the systems say of a link then.
_IS_LINK = {errno.ELOOP, errno.EMLINK}


@dataclass(frozen=True, slots=True)
class Item:
    """One name in a directory. ``special``: a FIFO, socket, device, dangling link, or a link that leads outside."""

    name: str
    kind: Kind
    size: int


class FileSystem(Protocol):
    """What the reader needs of a place. Paths use ``/`` and are relative to the root; ``""`` is the root itself."""

    def kind(self, path: str) -> Kind | None:
        """What stands there, None for nothing."""

    def list(self, path: str) -> list[Item]:
        """Names in a directory, unsorted."""

    def size(self, path: str) -> int:
        """Bytes of a regular file."""

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        """Bytes ``start`` to ``start + length`` of a regular file; fewer where it ends earlier."""

    def map(self, path: str, *, above: int = MAP_FROM) -> bytes | memoryview:
        """A whole regular file, mapped where that is possible and it has more than ``above`` bytes, else read.

        A map of a file that shrinks ends the process (SIGBUS): map what is used at once, or what nobody rewrites.
        """

    def part(self, path: str, start: int, length: int) -> bytes | memoryview:
        """Bytes ``start`` to ``start + length`` of a regular file, as :meth:`map` would give them."""

    def open(self, path: str) -> BinaryIO:
        """A seekable stream over a regular file."""

    def identity(self, path: str) -> tuple[int, int] | None:
        """Equal for all names of one file; None where that cannot be told."""

    def describe(self, path: str) -> str:
        """The path as a person knows it, for messages."""


def is_url(location: str) -> bool:
    """Whether a location names a protocol (``s3://…``, ``memory://…``)."""
    return "://" in location


def join(*parts: str) -> str:
    """Join relative parts with ``/``, leaving out empty ones."""
    return "/".join(part.strip("/") for part in parts if part)


def open_filesystem(location: str, *, boundary: str | None = None) -> FileSystem:
    """The file system rooted at a directory path or URL.

    Parameters
    ----------
    location
        Directory path, or a URL that fsspec knows.
    boundary
        Directory that links may lead into: the tree the user named, of which ``location`` is a part. Default: the root.

    Raises
    ------
    BackendMissingError
        A URL, but fsspec is not installed.
    StoreError
        fsspec cannot open this kind of URL; says what it lacks.
    """
    if location.startswith("file://"):
        return LocalFileSystem(location.removeprefix("file://"), boundary=boundary)
    if not is_url(location):
        return LocalFileSystem(location, boundary=boundary)
    return open_remote(location)


def open_remote(location: str) -> RemoteFileSystem:
    """The file system rooted at a URL, for reading and writing; raises as :func:`open_filesystem` does."""
    try:
        import fsspec  # noqa: PLC0415 (optional: only URLs need it)
    except ImportError as error:
        raise _missing("fsspec", location) from error
    try:
        with _remote_errors(location):
            remote, path = fsspec.core.url_to_fs(location)
    except StoreError as error:
        missing = error.__cause__
        if isinstance(missing, ImportError) and (package := _package(missing)):
            raise _missing(package, location) from error
        raise
    # fsspec remembers listings as long as the process lives; others write meanwhile.
    remote.invalidate_cache()
    return RemoteFileSystem(remote, path.rstrip("/"), location.rstrip("/"))


def _missing(package: str, location: str) -> BackendMissingError:
    """With the extra that brings all this URL needs; what none brings (gcsfs, adlfs) is installed by its own name."""
    extra = "s3" if location.startswith(("s3://", "s3a://")) else "remote" if package == "fsspec" else ""
    return BackendMissingError(package, extra, f"opening {hide_credentials(location)}")


def _package(error: ImportError) -> str | None:
    """fsspec says ``Install s3fs to access S3``, or ``Please install gcsfs …``, and keeps the name to itself."""
    found = re.search(r"[Ii]nstall (\w+)", str(error))
    return found[1] if found else error.name


def _checked(path: str, where: str) -> str:
    """A relative path without tricks."""
    if path.startswith("/") or "\0" in path or ("\\" in path and os.name == "nt"):
        raise UnsafeInputError(f"{where}: unsafe path {path!r}")
    if any(part in ("..", ".") for part in path.split("/")):
        raise UnsafeInputError(f"{where}: path {path!r} leads outside")
    return path


class LocalFileSystem:
    """A directory of this machine."""

    def __init__(self, root: str, *, boundary: str | None = None) -> None:
        self.root = os.fspath(root)
        self.boundary = os.fspath(boundary) if boundary is not None else self.root
        self._inside: set[str] = set()

    @cached_property
    def _real_boundary(self) -> str:
        return os.path.realpath(self.boundary)

    def describe(self, path: str) -> str:
        return os.path.join(self.root, path) if path else self.root

    def _is_inside(self, path: str) -> bool:
        real = os.path.realpath(path)
        return real == self._real_boundary or real.startswith(self._real_boundary.rstrip("/") + "/")

    def _is_inside_directory(self, directory: str) -> bool:
        # Resolving every component for each of 100,000 files in one directory would cost more than reading them.
        if directory not in self._inside and self._is_inside(directory):
            self._inside.add(directory)
        return directory in self._inside

    def _refuse_outside(self, real: str, full: str) -> None:
        if not self._is_inside(real):
            raise UnsafeInputError(f"{full}: is a link that leads outside {self.boundary}")

    def _full(self, path: str) -> str:
        full = self.describe(_checked(path, self.root))
        try:
            os.fsencode(full)
        except UnicodeEncodeError:
            # JSON may hold lone surrogates, which no file name can.
            raise FileNotFoundError(errno.ENOENT, "no file can have this name", full) from None
        return full

    def kind(self, path: str) -> Kind | None:
        try:
            full = self._full(path)
        except FileNotFoundError:
            return None
        try:
            found = os.stat(full)
        except (OSError, ValueError):
            return "special" if os.path.lexists(full) else None
        if not self._is_inside(full):
            return "special"
        return _kind_of(found.st_mode)

    def list(self, path: str) -> list[Item]:
        full = self._full(path)
        if not self._is_inside(full):
            raise UnsafeInputError(f"{full}: is a link that leads outside {self.boundary}")
        with os.scandir(full) as entries:
            return [self._item(entry) for entry in entries]

    def _item(self, entry: os.DirEntry[str]) -> Item:
        try:
            found = entry.stat()
        except OSError:
            return Item(entry.name, "special", 0)
        if entry.is_symlink() and not self._is_inside(entry.path):
            return Item(entry.name, "special", 0)
        return Item(entry.name, _kind_of(found.st_mode), found.st_size)

    def open(self, path: str) -> BinaryIO:
        descriptor, _ = self._descriptor(path)
        return os.fdopen(descriptor, "rb", buffering=0)

    def _descriptor(self, path: str) -> tuple[int, int]:
        """A regular file inside the boundary, open, and its size."""
        full = self._full(path)
        if not self._is_inside_directory(os.path.dirname(full)) or (not _NO_LINK and os.path.islink(full)):
            self._refuse_outside(full, full)
        descriptor = self._open_checked(full)
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            os.close(descriptor)
            raise UnsafeInputError(f"{full}: is not a regular file")
        return descriptor, found.st_size

    def _open_checked(self, full: str) -> int:
        try:
            return os.open(full, _READ | _NO_LINK)
        except OSError as error:
            if not _NO_LINK or error.errno not in _IS_LINK:
                raise
        # Only now, because a look at every file before it is opened would cost as much as opening it. What was looked
        # at is what is opened: the link may lead elsewhere by then.
        real = os.path.realpath(full)
        self._refuse_outside(real, full)
        return os.open(real, _READ | _NO_LINK)

    def size(self, path: str) -> int:
        descriptor, size = self._descriptor(path)
        os.close(descriptor)
        return size

    def identity(self, path: str) -> tuple[int, int] | None:
        try:
            found = os.stat(self._full(path))
        except OSError:
            return None
        return (found.st_dev, found.st_ino) if found.st_ino else None

    def stored_size(self, path: str) -> int | None:
        """Bytes that a regular file takes on its disk; None where the system does not say. Holes take none."""
        try:
            blocks: int = os.stat(self._full(path)).st_blocks
        except (OSError, AttributeError):
            return None
        return blocks * _BLOCK or None

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        with self.open(path) as stream:
            size = os.fstat(stream.fileno()).st_size
            wanted = max(0, size - start) if length is None else min(length, max(0, size - start))
            stream.seek(start)
            return _read_exactly(stream.read, wanted)

    def map(self, path: str, *, above: int = MAP_FROM) -> bytes | memoryview:
        descriptor, size = self._descriptor(path)
        try:
            if size <= above:
                return _read_exactly(partial(os.read, descriptor), size)
            return memoryview(mmap.mmap(descriptor, size, access=mmap.ACCESS_READ))
        finally:
            os.close(descriptor)

    def part(self, path: str, start: int, length: int) -> bytes | memoryview:
        # The pages of a map that nobody touches cost nothing.
        return memoryview(self.map(path))[start : start + length]


def _read_exactly(read: Callable[[int], bytes], wanted: int) -> bytes:
    """Read ``wanted`` bytes; raw files may return less at once (2 GiB at most on Linux)."""
    parts: list[bytes] = []
    while wanted > 0:
        part = read(wanted)
        if not part:
            break
        parts.append(part)
        wanted -= len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)


def _kind_of(mode: int) -> Kind:
    if stat.S_ISREG(mode):
        return "file"
    return "directory" if stat.S_ISDIR(mode) else "special"


@contextmanager
def _remote_errors(where: str) -> Iterator[None]:
    """What a library of fsspec's raises (botocore, aiohttp, paramiko, …), as one error that names the place."""
    try:
        yield
    except (FileNotFoundError, MsformatError):
        raise
    except Exception as error:
        raise StoreError(hide_credentials(f"{where}: {type(error).__name__}: {error}")) from error


class RemoteFileSystem:
    """Anything fsspec knows; there are no links to follow out of an object store.

    Every path stays below the root. No method expands wildcards: names are data.
    """

    def __init__(self, remote: Any, root: str, label: str) -> None:
        self._remote = remote
        self.root = root
        self._label = label

    def describe(self, path: str) -> str:
        return f"{self._label}/{path}" if path else self._label

    def _full(self, path: str) -> str:
        if "?versionId=" in path:
            # s3fs would take the rest for the version of another object.
            raise UnsafeInputError(f"{self._label}: no object is read or written as {path!r}")
        return f"{self.root}/{_checked(path, self._label)}" if path else self.root

    def kind(self, path: str) -> Kind | None:
        try:
            with _remote_errors(self.describe(path)):
                found = self._remote.info(self._full(path))
        except FileNotFoundError:
            return None
        return "directory" if found["type"] == "directory" else "file"

    def list(self, path: str) -> list[Item]:
        full = self._full(path)
        with _remote_errors(self.describe(path)):
            found = self._remote.ls(full, detail=True)
        items = [
            Item(
                Path(entry["name"].rstrip("/")).name,
                "directory" if entry["type"] == "directory" else "file",
                int(entry.get("size") or 0),
            )
            for entry in found
            if entry["name"].rstrip("/") != full.rstrip("/")
        ]
        return [item for item in items if item.name]

    def size(self, path: str) -> int:
        with _remote_errors(self.describe(path)):
            return int(self._remote.size(self._full(path)) or 0)

    def identity(self, path: str) -> tuple[int, int] | None:  # noqa: ARG002 (objects have one name each)
        return None

    def read(self, path: str, start: int = 0, length: int | None = None) -> bytes:
        end = None if length is None else start + length
        with _remote_errors(self.describe(path)):
            return bytes(self._remote.cat_file(self._full(path), start=start, end=end))

    def map(self, path: str, *, above: int = MAP_FROM) -> bytes | memoryview:  # noqa: ARG002 (there are no maps)
        return self.read(path)

    def part(self, path: str, start: int, length: int) -> bytes | memoryview:
        return self.read(path, start, length)

    def open(self, path: str) -> BinaryIO:
        with _remote_errors(self.describe(path)):
            stream: BinaryIO = self._remote.open(self._full(path), "rb")
        return stream

    # --- writing ---------------------------------------------------------------------------------------------------

    def write(self, path: str, data: bytes) -> None:
        """Put an object, over an older one. Object stores show all of it or nothing."""
        full = self._full(path)
        with _remote_errors(self.describe(path)):
            self._make_parent(full)
            self._remote.pipe_file(full, data)

    def upload(self, local: str, path: str) -> None:
        """Put a local file as an object."""
        full = self._full(path)
        with _remote_errors(self.describe(path)):
            self._make_parent(full)
            self._remote.put_file(local, full)

    def copy(self, source: str, path: str) -> None:
        """Copy an object to another name; the bytes stay where the store is."""
        origin, full = self._full(source), self._full(path)
        with _remote_errors(self.describe(path)):
            self._make_parent(full)
            self._remote.cp_file(origin, full)

    def remove(self, path: str) -> None:
        """Remove an object; no error where there is none."""
        full = self._full(path)
        try:
            with _remote_errors(self.describe(path)):
                self._remote.rm_file(full)
        except FileNotFoundError:
            return

    def files(self, path: str = "") -> dict[str, int]:
        """Every object below a path: name relative to it, and size. Nothing where nothing is."""
        full = self._full(path)
        with _remote_errors(self.describe(path)):
            self._remote.invalidate_cache()
            try:
                found = self._remote.find(full, detail=True)
            except FileNotFoundError:
                return {}
        start = full.strip("/") + "/"
        below = {name.strip("/"): int(item.get("size") or 0) for name, item in found.items()}
        return {name.removeprefix(start): size for name, size in below.items() if name.startswith(start)}

    def _make_parent(self, full: str) -> None:
        protocols = self._remote.protocol
        if _HIERARCHIES.intersection((protocols,) if isinstance(protocols, str) else protocols):
            self._remote.makedirs(self._remote._parent(full), exist_ok=True)
