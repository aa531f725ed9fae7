"""Writing Zarr v3 arrays straight into a directory: chunks encoded by threads, files flushed together at a barrier."""

from __future__ import annotations

import itertools
import os
import threading
from collections.abc import Callable, Hashable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

import numpy as np
from numpy.typing import NDArray

from msformat.atomic import fsync_directories, fsync_files, write_atomic
from msformat.errors import StoreError
from msformat.stores.codecs import chunk_shape
from msformat.stores.zarr_codecs import Encoder
from msformat.stores.zarr_metadata import METADATA_NAME, array_document

__all__ = ["ArrayWriter", "OpenPack"]

# Tensors that wait for a thread keep at most this much memory; then ``put`` waits.
_PENDING_BYTES = 256 << 20


class OpenPack:
    """Small tensors in a row, not written yet.

    Attributes
    ----------
    node
        The array they will be.
    keys
        Keys whose bytes are in it, for messages.
    """

    ALIGNMENT = 8

    def __init__(self, node: str) -> None:
        self.node = node
        self.keys: list[str] = []
        self._data = bytearray()

    def __len__(self) -> int:
        return len(self._data)

    def add(self, key: str, bits: NDArray[Any]) -> int:
        """Append a tensor; returns where it starts."""
        offset = len(self._data)
        self._data += bits.tobytes()
        self._data += bytes(-len(self._data) % self.ALIGNMENT)
        self.keys.append(key)
        return offset

    def read(self, offset: int, count: int) -> NDArray[np.uint8]:
        """A copy of some bytes."""
        return np.frombuffer(bytes(self._data[offset : offset + count]), np.uint8)

    def seal(self) -> NDArray[np.uint8]:
        """All bytes; nothing is added any more."""
        return np.frombuffer(bytes(self._data), np.uint8)


class _Job:
    """An array on its way to disk."""

    def __init__(self, key: str, nbytes: int) -> None:
        self.key = key
        self.nbytes = nbytes
        self.done: Future[None] = Future()


class ArrayWriter:
    """Writes arrays below a directory.

    Parameters
    ----------
    root
        The directory all nodes are relative to.
    threads
        Threads that encode and write; 0 for none. They start with the first array that needs them.
    fsync
        Wait for the disk in :meth:`flush`.

    Notes
    -----
    A process forked from this one has no such threads, and must not write.
    """

    def __init__(self, root: str, threads: int, *, fsync: bool = True) -> None:
        self._root = root
        self._fsync = fsync
        self._threads = threads
        self._pool: ThreadPoolExecutor | None = None
        self._pid = os.getpid()
        self._jobs: dict[str, _Job] = {}
        self._pending = 0
        self._changed = threading.Condition()
        self._files: list[str] = []
        self._directories: dict[str, None] = {}
        self._by_content: dict[Hashable, tuple[str, Future[None]]] = {}

    def write(
        self,
        node: str,
        bits: NDArray[Any],
        encoder: Encoder,
        *,
        key: str,
        attributes: Mapping[str, Any],
        owned: bool,
        content: Hashable = None,
    ) -> None:
        """Write an array: chunks first, then the metadata that makes them one.

        Parameters
        ----------
        node
            Path of the array.
        bits
            C-contiguous. Unless ``owned``, they are done with when this returns.
        encoder
            How chunks are stored.
        key
            The tensor, for messages.
        attributes
            Of the array.
        owned
            May be written later, by a thread; an error then surfaces at :meth:`wait`.
        content
            Equal for arrays whose bytes are equal once encoded, whatever their shapes. An array of one chunk then
            shares the chunk's file with the first one of that content, where the file system has hard links.

        Raises
        ------
        StoreError
            Not written.
        """
        self.check_process()
        chunks = chunk_shape(bits.shape, bits.itemsize)
        metadata = array_document(bits.shape, chunks, bits.dtype, encoder, attributes=attributes)
        directory = os.path.join(self._root, node)
        job = _Job(key, bits.nbytes)
        self._make_directory(directory, key)
        pieces = [self._piece(directory, bits, chunks, at, encoder) for at in _grid(bits.shape, chunks)]
        finish = _bound(self._write_file, os.path.join(directory, METADATA_NAME), metadata)
        if content is not None and chunks == bits.shape:
            pieces = [self._shared(content, _chunk_path(directory, (0,) * bits.ndim), job, pieces[0])]
        if self._threads == 0 or not (owned or (self._threads > 1 and len(pieces) > 1)):
            self._run(job, directory, [*pieces, finish])
            return
        try:
            self._submit(node, job, directory, pieces, finish)
        except BaseException:
            self._by_content.pop(content, None)  # nobody may wait for what was never begun
            raise
        if not owned:
            self.wait(node)

    def _make_directory(self, directory: str, key: str) -> None:
        try:
            os.mkdir(directory)
        except FileExistsError:
            # Left by a death before the index knew it. Its files are overwritten, but a link is never followed.
            if os.path.islink(directory) or not os.path.isdir(directory):
                raise StoreError(f"{directory}: tensor {key!r}: something else lies there") from None
        except OSError as error:
            raise _named(error, directory, key) from error
        self._directories[directory] = None
        self._directories[os.path.dirname(directory)] = None

    def _shared(self, content: Hashable, path: str, job: _Job, write: Callable[[], None]) -> Callable[[], None]:
        """Write a chunk, or give the one of an earlier array a second name."""
        first = self._by_content.setdefault(content, (path, job.done))
        if first[0] == path:
            return write

        def share() -> None:
            # Its turn was before ours, so this waits for no thread that waits for us.
            if first[1].exception() is not None:
                write()
                return
            try:
                os.link(first[0], path)
            except OSError:  # no links here, or too many of them
                write()

        return share

    def _piece(
        self, directory: str, bits: NDArray[Any], chunks: tuple[int, ...], at: tuple[int, ...], encoder: Encoder
    ) -> Callable[[], None]:
        path = _chunk_path(directory, at)

        def write() -> None:
            region = tuple(slice(i * c, (i + 1) * c) for i, c in zip(at, chunks, strict=True))
            piece = bits[region] if region else bits
            if piece.shape != chunks:
                # Zarr stores the chunks at the end of an axis in full.
                whole = np.zeros(chunks, bits.dtype)
                whole[tuple(slice(length) for length in piece.shape)] = piece
                piece = whole
            self._write_file(path, encoder.encode(np.ascontiguousarray(piece)))

        return write

    def _write_file(self, path: str, data: bytes | memoryview) -> None:
        write_atomic(path, data, fsync=False, begin=self._fsync)
        self._files.append(path)

    def _run(self, job: _Job, directory: str, steps: list[Callable[[], None]]) -> None:
        try:
            for step in steps:
                step()
        except BaseException as error:
            job.done.set_exception(error)
            if isinstance(error, OSError):
                raise _named(error, directory, job.key) from error
            raise
        job.done.set_result(None)

    # --- threads ---------------------------------------------------------------------------------------------------

    def _submit(
        self, node: str, job: _Job, directory: str, pieces: list[Callable[[], None]], finish: Callable[[], None]
    ) -> None:
        with self._changed:
            # One job always may run, however big it is.
            self._changed.wait_for(lambda: self._pending == 0 or self._pending + job.nbytes <= _PENDING_BYTES)
            self._pending += job.nbytes
        if self._pool is None:
            self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="msformat-zarr")
        self._jobs[node] = job
        chunks = [self._pool.submit(piece) for piece in pieces]
        # Taken from the queue after all its chunks were, so that it can never wait for one that has no thread.
        self._pool.submit(self._finish, job, directory, chunks, finish)

    def _finish(self, job: _Job, directory: str, chunks: list[Future[None]], finish: Callable[[], None]) -> None:
        failure: BaseException | None = None
        try:
            for chunk in chunks:
                chunk.result()
            finish()
        except OSError as error:
            failure = _named(error, directory, job.key)
        except BaseException as error:  # noqa: BLE001 (handed to the thread that waits)
            failure = error
        with self._changed:
            self._pending -= job.nbytes
            self._changed.notify_all()
        if failure is None:
            job.done.set_result(None)
        else:
            job.done.set_exception(failure)

    def wait(self, node: str) -> None:
        """Until an array is written.

        Raises
        ------
        StoreError
            It was not.
        """
        job = self._jobs.get(node)
        if job is None:
            return
        self.check_process()
        try:
            job.done.result()
        finally:
            self._jobs.pop(node, None)

    def failed(self) -> dict[str, BaseException]:
        """Arrays that came to nothing since the last call, with the error of each; the rest go on."""
        failures: dict[str, BaseException] = {}
        while self._jobs:
            node, job = next(iter(self._jobs.items()))
            if not job.done.done():
                break
            del self._jobs[node]
            error = job.done.exception()
            if error is not None:
                failures[node] = error
        return failures

    def drain(self) -> dict[str, BaseException]:
        """Wait for all arrays; returns the failed ones as :meth:`failed` does."""
        self.check_process()
        for job in self._jobs.values():
            job.done.exception()
        return self.failed()

    # --- barrier ---------------------------------------------------------------------------------------------------

    def flush(self) -> None:
        """Wait until every file and name written so far is on disk; without ``fsync`` the system having them will do.

        Raises
        ------
        StoreError
            The disk says no.
        """
        files, self._files = self._files, []
        directories, self._directories = self._directories, {}
        if not self._fsync:
            return
        try:
            fsync_files(files, threads=self._threads > 0)
        except OSError as error:
            self._files = [*files, *self._files]
            self._directories = {**directories, **self._directories}
            raise _named(error, self._root, "") from error
        fsync_directories(directories, threads=self._threads > 0)

    def check_process(self) -> None:
        """Refuse to write in a fork.

        Raises
        ------
        StoreError
            This is another process than the one that opened the store.
        """
        if os.getpid() != self._pid:
            raise StoreError(f"{self._root}: opened by another process; open it again in this one")

    def close(self) -> None:
        """Let the threads end."""
        if self._pool is not None and os.getpid() == self._pid:
            self._pool.shutdown(wait=True)
        self._pool = None


def _grid(shape: tuple[int, ...], chunks: tuple[int, ...]) -> list[tuple[int, ...]]:
    if 0 in shape:
        # Another axis may be 2**60 long, and product() would count it all the same.
        return []
    return list(itertools.product(*(range(-(-length // chunk)) for length, chunk in zip(shape, chunks, strict=True))))


def _chunk_path(directory: str, at: tuple[int, ...]) -> str:
    return os.path.join(directory, ".".join(map(str, at)) or "0")


def _bound(write: Callable[[str, bytes], None], path: str, data: bytes) -> Callable[[], None]:
    return lambda: write(path, data)


def _named(error: OSError, path: str, key: str) -> StoreError:
    """The error with the tensor's name, and still its number (``ENOSPC``)."""
    if isinstance(error, StoreError):
        return error
    what = f" tensor {key!r}:" if key else ""
    named = StoreError(f"{error.filename or path}:{what} {error.strerror or error}")
    named.errno = error.errno
    return named
