"""An advisory lock on a file that a process creates and writes: held while it lives, gone when it dies.

``flock`` belongs to the open file and not to the process, so a forked child (a data loader's worker) would keep the
lock of a dead parent alive; children therefore close their copy at once. Where there is no ``flock`` (Windows, some
network file systems) nothing is locked, and exclusive creation alone keeps a second writer out.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from pathlib import Path
from typing import Protocol

from msformat.atomic import fsync_directory
from msformat.errors import StoreError

try:
    import fcntl
except ImportError:  # pragma: no cover (Windows)
    _HAS_FLOCK = False
else:
    _HAS_FLOCK = True

__all__ = ["FileLock", "is_locked"]

_OPTIONAL_FLAGS = ("O_CLOEXEC", "O_BINARY", "O_NOFOLLOW", "O_NONBLOCK")
_FLAGS = os.O_RDWR | os.O_APPEND | sum(getattr(os, name, 0) for name in _OPTIONAL_FLAGS)


class _TakenMessage(Protocol):
    def __call__(self, path: str, *, live: bool) -> str: ...


class FileLock:
    """A file that this process has open and locked.

    Attributes
    ----------
    path
        The file.
    descriptor
        Open for reading and appending; -1 once released.
    fsync
        Wait until the disk knows that the file was made or removed.
    """

    def __init__(self, path: str, descriptor: int, *, fsync: bool = True) -> None:
        self.path = path
        self.descriptor = descriptor
        self.fsync = fsync
        _watch_forks()
        _held.add(self)

    @classmethod
    def create(cls, path: str, *, taken: _TakenMessage, fsync: bool = True) -> FileLock:
        """Make the file, which must not exist, and lock it.

        Raises
        ------
        StoreError
            It exists (with the words of ``taken``), or cannot be made.
        """
        try:
            descriptor = os.open(path, _FLAGS | os.O_CREAT | os.O_EXCL, 0o666)
        except FileExistsError as error:
            raise StoreError(taken(path, live=is_locked(path))) from error
        except OSError as error:
            raise StoreError(f"{path}: cannot be made: {error}") from error
        if fsync:
            fsync_directory(Path(path).parent)
        return cls._locked(path, descriptor, taken, fsync=fsync)

    @classmethod
    def claim(cls, path: str, *, taken: _TakenMessage, fsync: bool = True) -> FileLock:
        """Lock a file that a dead process left.

        Raises
        ------
        StoreError
            Its writer lives, or it is gone or cannot be opened for writing.
        """
        try:
            descriptor = os.open(path, _FLAGS)
        except OSError as error:
            raise StoreError(f"{path}: cannot be opened: {error}") from error
        return cls._locked(path, descriptor, taken, fsync=fsync)

    @classmethod
    def _locked(cls, path: str, descriptor: int, taken: _TakenMessage, *, fsync: bool) -> FileLock:
        if not _try_lock(descriptor) or not _is_same_file(path, descriptor):
            os.close(descriptor)
            raise StoreError(taken(path, live=True))
        return cls(path, descriptor, fsync=fsync)

    def is_in_place(self) -> bool:
        """Whether the name still means this file: it was not removed, nor moved away with its directory."""
        return self.descriptor >= 0 and _is_same_file(self.path, self.descriptor)

    def release(self) -> None:
        """Close and unlock; the file stays. Releasing twice is fine."""
        descriptor, self.descriptor = self.descriptor, -1
        _held.discard(self)
        if descriptor >= 0:
            with contextlib.suppress(OSError):
                os.close(descriptor)

    def remove(self) -> None:
        """Remove the file, then unlock, so that nobody can claim it in between."""
        if self.descriptor < 0:
            return
        if not _HAS_FLOCK:  # pragma: no cover (Windows cannot remove an open file)
            self.release()
        Path(self.path).unlink(missing_ok=True)
        if self.fsync:
            fsync_directory(Path(self.path).parent)
        self.release()


def is_locked(path: str) -> bool:
    """Whether a living process holds the lock. False where there are no locks, and for a file that is not there."""
    try:
        descriptor = os.open(path, os.O_RDONLY | getattr(os, "O_CLOEXEC", 0) | getattr(os, "O_NONBLOCK", 0))
    except OSError:
        return False
    try:
        return not _try_lock(descriptor, shared=True)
    finally:
        os.close(descriptor)


def _try_lock(descriptor: int, *, shared: bool = False) -> bool:
    """Whether the lock was got. File systems without locks always give it."""
    if not _HAS_FLOCK:  # pragma: no cover (Windows)
        return True
    try:
        fcntl.flock(descriptor, (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def _is_same_file(path: str, descriptor: int) -> bool:
    """Whether the name still means the open file, and not one that its writer removed while we waited."""
    try:
        return os.path.samestat(os.stat(path), os.fstat(descriptor))
    except OSError:
        return False


_held: weakref.WeakSet[FileLock] = weakref.WeakSet()
_watching: list[int] = []


def _watch_forks() -> None:
    """Have children close their copies. Registered with the first lock, so that importing has no side effect."""
    if not _watching and hasattr(os, "register_at_fork"):
        _watching.append(os.getpid())
        os.register_at_fork(after_in_child=_forget_in_child)


def _forget_in_child() -> None:
    for lock in list(_held):
        lock.release()
