"""The file below a written HDF5 file: what is on disk is always the state of the last sync.

HDF5 updates its metadata in place, so a process that dies between two of those writes, or a disk that fills up there,
can lose data that were safe before. :class:`PagedFile` stands between HDF5 and the file (h5py's ``fileobj`` driver):

* bytes behind the last synced end go straight to the file; nothing on disk points at them yet;
* changes before it are kept in memory as pages until :meth:`PagedFile.commit`, which writes them to a side file, then
  over the old pages, and removes the side file. A death in between leaves the side file, from which the next open
  completes the step;
* after a failed write nothing more reaches the disk, and HDF5 never learns of it: it can be closed in peace, and the
  file is as it was at the last sync.

The result on disk is a plain HDF5 file of the default format.
"""

from __future__ import annotations

import contextlib
import errno
import io
import os
import stat
from pathlib import Path
from typing import Any

import xxhash

from msformat.atomic import begin_writing, fsync_directory
from msformat.errors import StoreError, UnsafeInputError
from msformat.stores.hdf5_walks import Walks, bytes_at

try:
    import fcntl
except ImportError:  # Windows: HDF5 itself locks with LockFileEx there; opening for writing is not guarded
    fcntl = None  # type: ignore[assignment]

__all__ = ["LOCK_ADVICE", "PagedFile", "close_locked", "has_pending_sync", "lock", "open_regular", "side_path"]

PAGE = 4096
_MAGIC = b"msfsync1"
_ENTRY = 8 + PAGE
# So many new bytes at a time are handed to the disk before a commit waits for them.
_BEGIN = 8 << 20
LOCK_ADVICE = (
    "it is being written by another process; wait until that has finished, or read the state of its last sync with "
    "HDF5_USE_FILE_LOCKING=FALSE in the environment (also the way out on a file system without locks)"
)


def side_path(path: str) -> str:
    """Where a sync is prepared; it exists only during :meth:`PagedFile.commit`."""
    return str(Path(path).with_name(f".{Path(path).name}.msformat-sync"))


def has_pending_sync(path: str) -> bool:
    """Whether a process died in the middle of a sync of this file."""
    return Path(side_path(path)).is_file()


class PagedFile(io.RawIOBase):
    """A binary file whose synced part changes only in :meth:`commit`. See the module's text.

    Parameters
    ----------
    path
        A regular file.
    mode
        ``x`` made anew, ``a`` opened for writing (a pending sync is completed first), ``r`` for reading (a pending sync
        is completed in memory).
    fsync
        Wait for the disk in :meth:`commit`. Without, the state of the last commit outlives the process only.

    Attributes
    ----------
    error
        The first write error; from then on all writes are dropped.
    """

    def __init__(self, path: str, mode: str, *, fsync: bool = True) -> None:
        super().__init__()
        self.path = path
        self._fsync = fsync
        self.error: OSError | None = None
        self._pages: dict[int, bytearray] = {}
        self._position = 0
        self.walks = Walks(is_fixed=mode == "r")
        self._pid = os.getpid()
        self._read_only = mode == "r"
        # Whoever wrote before may have removed one just now.
        self._side_may_return = mode == "a"
        self._raw = open_regular(path, {"x": "xb+", "a": "rb+", "r": "rb"}[mode])
        try:
            lock(self._raw, path, shared=self._read_only)
            self._size = os.fstat(self._raw.fileno()).st_size
            self._synced = self._begun = self._size
            self._complete_pending()
        except BaseException:
            self._raw.close()
            raise

    # --- what h5py's fileobj driver calls ----------------------------------------------------------------------

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def writable(self) -> bool:
        return not self._read_only

    def tell(self) -> int:
        return self._position

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._size}[whence]
        self._position = base + offset
        return self._position

    def readinto(self, buffer: Any) -> int:
        view = memoryview(buffer).cast("B")
        start = self._position
        self._fill(view, start)
        self._position += len(view)
        self.walks.check(start, view, self._read_at)
        return len(view)

    def _read_at(self, start: int, count: int) -> bytes:
        return bytes_at(self._fill, self._size, start, count)

    def _fill(self, view: memoryview, start: int) -> None:
        self._raw.seek(start)
        done = 0
        while done < len(view):
            count = self._raw.readinto(view[done:])
            if not count:
                view[done:] = bytes(len(view) - done)  # allocated by HDF5, never written
                break
            done += count
        for number in self._pages_within(start, start + len(view)):
            _overlay(view, start, self._pages[number], number * PAGE)

    def write(self, data: Any) -> int:
        view = memoryview(data).cast("B")
        start, end = self._position, self._position + len(view)
        self._position = end
        # A forked child inherits the HDF5 file, and would write into its parent's when it exits.
        if self.error is not None or self._read_only or os.getpid() != self._pid:
            return len(view)
        border = min(max(start, self._border), end)
        try:
            self._write_pages(start, view[: border - start])
            self._write_raw(border, view[border - start :])
            self._begin_writing(end)
        except OSError as error:
            self.error = error
        self._size = max(self._size, end)
        return len(view)

    def truncate(self, size: int | None = None) -> int:
        self._size = self._position if size is None else size
        return self._size

    def flush(self) -> None:
        """Nothing to do: only :meth:`commit` makes anything durable."""

    # --- pages -------------------------------------------------------------------------------------------------

    @property
    def _border(self) -> int:
        """First byte that no synced page holds."""
        return -(-self._synced // PAGE) * PAGE

    def _pages_within(self, start: int, end: int) -> list[int]:
        wanted = range(start // PAGE, -(-end // PAGE))
        if len(wanted) < len(self._pages):
            return [number for number in wanted if number in self._pages]
        return [number for number in self._pages if number in wanted]

    def _write_pages(self, start: int, view: memoryview) -> None:
        done = 0
        while done < len(view):
            number, inside = divmod(start + done, PAGE)
            count = min(PAGE - inside, len(view) - done)
            page = self._pages.get(number)
            if page is None:
                page = self._pages[number] = self._load_page(number)
            page[inside : inside + count] = view[done : done + count]
            done += count

    def _load_page(self, number: int) -> bytearray:
        self._raw.seek(number * PAGE)
        return bytearray((self._raw.read(PAGE) or b"").ljust(PAGE, b"\0"))

    def _write_raw(self, start: int, view: memoryview) -> None:
        self._raw.seek(start)
        _write_all(self._raw, view)

    def _begin_writing(self, end: int) -> None:
        """Bytes up to the last ``_BEGIN`` are there to stay; most writes append."""
        if self._fsync and end - self._begun >= _BEGIN:
            begin_writing(self._raw.fileno(), self._begun, end - self._begun)
            self._begun = end

    # --- sync --------------------------------------------------------------------------------------------------

    def commit(self) -> None:
        """Make everything written so far the state on disk, in one step as seen by anyone who opens the file.

        Raises
        ------
        OSError
            Nothing, or not everything, could be written; the state of the last commit stays.
        """
        if self.error is not None or self._read_only or os.getpid() != self._pid:
            return
        try:
            self._commit()
        except OSError as error:
            self.error = error
            raise

    def _commit(self) -> None:
        self._check_place()
        if self._size > os.fstat(self._raw.fileno()).st_size:
            self._raw.truncate(self._size)  # HDF5 refuses a file that ends before its declared end
        self._wait_for(self._raw)
        if self._pages:
            # Space freed at the end may leave pages that the new state no longer has.
            pages = {number: page for number, page in self._pages.items() if number * PAGE < self._size}
            self._prepare(pages)
            self._apply(pages, self._size)
            Path(side_path(self.path)).unlink()
            self._side_may_return = True
        else:
            self._raw.truncate(max(self._size, self._synced))
            self._forget_side()
        self._pages.clear()
        self._synced = self._size

    def _check_place(self) -> None:
        """A file that was removed, or moved away, takes all bytes and keeps none."""
        if not os.path.samestat(os.stat(self.path), os.fstat(self._raw.fileno())):
            raise FileNotFoundError(errno.ENOENT, "another file took its place", self.path)

    def _prepare(self, pages: dict[int, bytearray]) -> None:
        parts = [_MAGIC, self._size.to_bytes(8, "little")]
        parts += [piece for number, page in pages.items() for piece in (number.to_bytes(8, "little"), bytes(page))]
        body = b"".join(parts)
        side = Path(side_path(self.path))
        side.unlink(missing_ok=True)
        try:
            # Mode "xb" refuses to follow a symlink somebody planted under that name.
            with side.open("xb", buffering=0) as stream:
                _write_all(stream, memoryview(body + xxhash.xxh3_64_digest(body)))
                self._wait_for(stream)
            self._wait_for_names()
        except OSError:
            with contextlib.suppress(OSError):
                side.unlink()
            raise

    def _apply(self, pages: dict[int, bytearray], size: int) -> None:
        for number, page in sorted(pages.items()):
            self._write_raw(number * PAGE, memoryview(page)[: max(0, size - number * PAGE)])
        self._raw.truncate(size)
        self._wait_for(self._raw)

    def _wait_for(self, stream: io.FileIO) -> None:
        if self._fsync:
            os.fsync(stream.fileno())

    def _wait_for_names(self) -> None:
        """The side file counts once its name is on disk, and goes on counting until the name is gone there, too."""
        if self._fsync:
            fsync_directory(Path(self.path).parent)
        self._side_may_return = False

    def _forget_side(self) -> None:
        """After a loss of power an old side file must not undo what this commit adds."""
        if self._side_may_return:
            self._wait_for_names()

    def _complete_pending(self) -> None:
        side = Path(side_path(self.path))
        if not has_pending_sync(self.path):
            return
        # Pages lie within the file, so a side file much bigger than it is none of ours.
        pending = _read_side(side) if side.stat().st_size <= 2 * self._size + _ENTRY else None
        if pending is not None:
            size, pages = pending
            if self._read_only:
                self._pages, self._size = pages, size
                return
            self._apply(pages, size)
            self._size = self._synced = size
        # An incomplete side file means that the old pages were not touched yet.
        if not self._read_only:
            side.unlink()

    def abandon(self) -> None:
        """Drop what was not committed, and write no more."""
        if self.error is None:
            self.error = OSError(errno.ECANCELED, "abandoned")
        if not self._raw.closed and not self._read_only and os.getpid() == self._pid:
            with contextlib.suppress(OSError):
                if not has_pending_sync(self.path):
                    self._raw.truncate(self._synced)

    def close(self) -> None:
        """Let go of the file and of its lock. Commits nothing."""
        # Finalizers close even what could not be opened, and then has no file.
        raw: io.FileIO | None = self.__dict__.get("_raw")
        if raw is not None and not raw.closed:
            close_locked(raw, self._pid)
        super().close()


def open_regular(path: str, mode: str) -> io.FileIO:
    """Open a file ``xb+``, ``rb+`` or ``rb``. UnsafeInputError where it is something else than a file."""
    if mode == "xb+":
        return io.FileIO(path, "x+")
    # O_NONBLOCK: opening a FIFO must not wait for its other end.
    flags = (os.O_RDONLY if mode == "rb" else os.O_RDWR) | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
    stream = io.FileIO(path, mode.replace("b", ""), opener=lambda name, _: os.open(name, flags))
    if not stat.S_ISREG(os.fstat(stream.fileno()).st_mode):
        stream.close()
        raise UnsafeInputError(f"{path}: is not a regular file")
    return stream


def lock(stream: io.FileIO, path: str, *, shared: bool) -> None:
    """Take the lock that HDF5 itself uses, so that readers with any HDF5 see that the file is being written."""
    if fcntl is None or os.environ.get("HDF5_USE_FILE_LOCKING", "").upper() in ("FALSE", "0"):
        return
    try:
        fcntl.flock(stream.fileno(), (fcntl.LOCK_SH if shared else fcntl.LOCK_EX) | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise StoreError(f"{path}: cannot be opened: {LOCK_ADVICE}") from error
    except OSError as error:
        if error.errno not in (errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP, errno.EINVAL):
            raise


def close_locked(stream: io.FileIO, pid: int) -> None:
    """Close what a process locked, and take the lock off by name where this is that process.

    A forked child may still hold a copy of the descriptor, and with it the lock.
    """
    if fcntl is not None and os.getpid() == pid:
        with contextlib.suppress(OSError):
            fcntl.flock(stream.fileno(), fcntl.LOCK_UN)
    stream.close()


def _write_all(stream: io.FileIO, view: memoryview) -> None:
    """Raw files may take less at once (2 GiB at most on Linux, less on a full disk)."""
    while view:
        count = stream.write(view)
        if not count:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        view = view[count:]


def _overlay(view: memoryview, start: int, page: bytearray, page_start: int) -> None:
    """Copy the part of a page that lies within ``view``, which holds the file from ``start`` on."""
    first, last = max(start, page_start), min(start + len(view), page_start + PAGE)
    view[first - start : last - start] = page[first - page_start : last - page_start]


def _read_side(side: Path) -> tuple[int, dict[int, bytearray]] | None:
    """Size and pages of a prepared sync; None where it was not fully prepared."""
    data = side.read_bytes()
    body, digest = data[:-8], data[-8:]
    if len(body) < 16 or (len(body) - 16) % _ENTRY or body[:8] != _MAGIC or xxhash.xxh3_64_digest(body) != digest:
        return None
    starts = range(16, len(body), _ENTRY)
    pages = {int.from_bytes(body[at : at + 8], "little"): bytearray(body[at + 8 : at + _ENTRY]) for at in starts}
    return int.from_bytes(body[8:16], "little"), pages
