"""Files that are either whole under their final name or not there at all.

Order of a write: temporary sibling, bytes, fsync, rename, fsync of the directory. A death at any point leaves the old
file, or the new one, and at worst a temporary that :func:`is_temporary` recognises.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import stat
from collections.abc import Iterable, Iterator
from itertools import takewhile
from pathlib import Path
from typing import BinaryIO

from msformat.threads import each_in_threads

__all__ = [
    "atomic_file",
    "begin_writing",
    "fsync_directories",
    "fsync_directory",
    "fsync_file",
    "fsync_files",
    "is_temporary",
    "make_directories",
    "make_private",
    "make_public",
    "output_file",
    "temporary_sibling",
    "usual_mode",
    "write_atomic",
]

# Everything of ours that is not finished carries this in its name, so that clean-up never touches a stranger's file.
_MARK = ".msformat-partial-"
_TEMPORARY = re.compile(re.escape(_MARK) + r"[0-9a-f]{12}$")
# Names are cut so that the mark still fits into the 255 bytes most file systems allow.
_STEM_BYTES = 180
_AT_ONCE = 8
# Rights of the group and of others.
_OTHERS = 0o077
_FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})
# Less is not worth the call.
BEGIN_FROM = 1 << 16


def temporary_sibling(path: str | os.PathLike[str]) -> str:
    """A hidden name beside ``path`` that nothing else uses; ``is_temporary`` knows it."""
    directory, name = os.path.split(os.fspath(path))
    # Bytes of the file system, cut between characters; decoded as the locale does it, which need not be UTF-8.
    stem = os.fsdecode(os.fsencode(name)[:_STEM_BYTES].decode("utf-8", "ignore").encode())
    return os.path.join(directory, f".{stem}{_MARK}{os.urandom(6).hex()}")


def is_temporary(name: str) -> bool:
    """Whether a file or folder name was made by :func:`temporary_sibling`."""
    return _MARK in name and _TEMPORARY.search(name) is not None


@contextlib.contextmanager
def atomic_file(path: str | os.PathLike[str], *, fsync: bool = True) -> Iterator[BinaryIO]:
    """Open a temporary for writing; on success it takes the place of ``path``, on any error it is removed.

    Parameters
    ----------
    path
        Final name. Permissions follow the umask, as for any file made with ``open``. The temporary is private.
    fsync
        Wait until bytes and name are on disk.
    """
    temporary = temporary_sibling(path)
    with _naming(path):
        # Mode "xb" refuses to follow a symlink somebody planted under the temporary's name.
        stream = open(temporary, "xb")  # noqa: SIM115 (closed below, before the rename)
    try:
        with _naming_full(path), stream:
            mode = make_private(stream.fileno())
            yield stream
            stream.flush()
            make_public(stream.fileno(), mode)
            if fsync:
                os.fsync(stream.fileno())
        with _naming(path):
            os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise
    if fsync:
        fsync_directory(Path(path).parent)


@contextlib.contextmanager
def _naming(path: str | os.PathLike[str]) -> Iterator[None]:
    """Have errors name the file that was asked for, and not its temporary."""
    try:
        yield
    except OSError as error:
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error


@contextlib.contextmanager
def _naming_full(path: str | os.PathLike[str]) -> Iterator[None]:
    """Have a disk that takes no more name the file that was asked for; the system names none."""
    try:
        yield
    except OSError as error:
        if error.errno not in _FULL or error.filename is not None:
            raise
        raise OSError(error.errno, error.strerror, os.fspath(path)) from error


def make_directories(path: str | os.PathLike[str], *, fsync: bool = True) -> None:
    """Make a directory and those above it that are missing.

    ``fsync``: their names are on disk then. Otherwise what is promised inside is lost with them when the power is.
    """
    place = Path(path)
    missing = list(takewhile(lambda each: not each.exists(), (place, *place.parents)))
    place.mkdir(parents=True, exist_ok=True)
    if fsync:
        fsync_directories(dict.fromkeys(str(each.parent) for each in missing), threads=False)


def make_private(target: str | int) -> int:
    """Keep group and others out of something unfinished of ours; returns the mode that :func:`make_public` gives back.

    Made with the mode that the umask leaves and narrowed at once, because nobody can ask for a umask without changing
    it for the whole process. File systems without modes are let be.

    Parameters
    ----------
    target
        A path or an open descriptor.
    """
    mode = stat.S_IMODE(os.stat(target).st_mode)
    _change_mode(target, mode & ~_OTHERS, mode)
    return mode


def make_public(target: str | int, mode: int) -> None:
    """Give back what :func:`make_private` took, now that it is whole."""
    _change_mode(target, mode, mode)


def _change_mode(target: str | int, wanted: int, usual: int) -> None:
    # Under a umask of 077 there is nothing to take.
    if usual & _OTHERS and os.chmod in os.supports_fd:
        with contextlib.suppress(OSError):
            os.chmod(target, wanted)


def usual_mode(path: str, *, directory: bool) -> int:
    """The mode that a file or directory gets which is made beside ``path`` now.

    Raises
    ------
    OSError
        Nothing can be made there.
    """
    probe = temporary_sibling(path)
    if directory:
        os.mkdir(probe)
    else:
        os.close(os.open(probe, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    try:
        return stat.S_IMODE(os.stat(probe).st_mode)
    finally:
        (os.rmdir if directory else os.unlink)(probe)


@contextlib.contextmanager
def output_file(path: str | os.PathLike[str]) -> Iterator[BinaryIO]:
    """Open what a user named for writing: :func:`atomic_file`, but a device or pipe is written into, never replaced."""
    if os.path.exists(path) and not os.path.isfile(path) and not os.path.isdir(path):
        with _naming_full(path), Path(path).open("wb") as stream:
            yield stream
        return
    with atomic_file(path, fsync=False) as stream:
        yield stream


def write_atomic(
    path: str | os.PathLike[str],
    data: bytes | memoryview | Iterable[bytes | memoryview],
    *,
    fsync: bool = True,
    begin: bool = False,
) -> None:
    """Write ``data`` (or its parts, in order) under ``path``, whole or not at all.

    ``begin``: the caller will wait for the disk later, so that it may as well begin now.
    """
    parts = (data,) if isinstance(data, (bytes, memoryview)) else data
    with atomic_file(path, fsync=fsync) as stream:
        for part in parts:
            stream.write(part)
        if begin:
            stream.flush()
            begin_writing(stream.fileno(), 0, stream.tell())


def begin_writing(descriptor: int, start: int, length: int) -> None:
    """Have the system begin to bring a part of a file to disk, and do not wait: a later fsync finds it done.

    Left to itself, Linux begins when it has gigabytes, and a conversion's fsync then waits for all of them. On
    ``POSIX_FADV_DONTNEED`` it begins at once, and forgets at most what is on disk (posix_fadvise(2)). Nothing happens
    for less than :data:`BEGIN_FROM` bytes, and on systems without that call.
    """
    if length >= BEGIN_FROM and hasattr(os, "posix_fadvise"):
        with contextlib.suppress(OSError):
            os.posix_fadvise(descriptor, start, length, os.POSIX_FADV_DONTNEED)


def fsync_file(path: str | os.PathLike[str]) -> None:
    """Wait until the bytes of a file are on disk, whoever wrote them."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def fsync_directory(path: str | os.PathLike[str]) -> None:
    """Make names in a directory durable. File systems that cannot (some network ones) are let be."""
    with contextlib.suppress(OSError):
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_DIRECTORY", 0))
        try:
            os.fsync(descriptor)
        finally:
            os.close(descriptor)


def fsync_files(paths: Iterable[str], *, threads: bool = True) -> None:
    """:func:`fsync_file` of many.

    ``threads``: several at a time. A file system commits those that wait together (1,000 files: 0.3 s, not 0.8 s).
    """
    each_in_threads(fsync_file, paths, _AT_ONCE if threads else 1)


def fsync_directories(paths: Iterable[str], *, threads: bool = True) -> None:
    """:func:`fsync_directory` of many, as :func:`fsync_files` does it."""
    each_in_threads(fsync_directory, paths, _AT_ONCE if threads else 1)
