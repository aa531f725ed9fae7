"""Writing Zarr v3 arrays straight into a directory: chunks encoded by threads, files flushed together at a barrier."""

from __future__ import annotations

import itertools
import math
import os
import threading
from collections.abc import Callable, Hashable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from msformat.atomic import fsync_directories, fsync_files, write_atomic
from msformat.errors import StoreError
from msformat.stores.base import ReadOnlyBuffer
from msformat.stores.zarr_codecs import Encoder
from msformat.stores.zarr_jobs import ArrayFile, Job
from msformat.stores.zarr_metadata import METADATA_NAME, array_document
from msformat.stores.zarr_shards import FileShard, Shard
from msformat.stores.zarr_stacks import Cut
from msformat.threads import submit_or_run

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
        self._jobs: dict[str, Job] = {}
        self._pending = 0
        self._changed = threading.Condition()
        self._files: list[str] = []
        self._directories: dict[str, None] = {}
        self._by_content: dict[Hashable, tuple[str, Future[None]]] = {}
        self._is_abandoned = False

    def write(
        self,
        node: str,
        bits: NDArray[Any],
        encoder: Encoder,
        *,
        key: str,
        owned: bool,
        row: int | None = None,
        cut: Cut | None = None,
        content: Hashable = None,
    ) -> None:
        """Write an array, chunks first, then the metadata that makes them one; or a row of one, without metadata.

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
        owned
            May be written later, by a thread; an error then surfaces at :meth:`wait`.
        row
            Which row of the array ``bits`` are; :meth:`write_metadata` is called later. None: they are all of it.
        cut
            How they are cut; None: as all arrays are.
        content
            Equal for bits that are equal once encoded, whatever their shapes. What is one file then shares it with the
            first of that content that was cut alike, where the file system has hard links.

        Raises
        ------
        StoreError
            Not written.
        """
        self.check_process()
        cut = cut or Cut.of(bits.shape, bits.itemsize)
        directory = os.path.join(self._root, node)
        self._make_directory(directory, key)
        grid = _grid(bits.shape, cut.files)
        files = [self._file(_chunk_path(directory, row, at), bits, cut, at, encoder) for at in grid]
        job = Job(node if row is None else f"{node}/{row}", directory, key, bits.nbytes, files)
        if row is None:
            metadata = array_document(bits.shape, cut.chunks, bits.dtype, encoder, attributes={}, shards=cut.shards)
            job.metadata = _bound(self._write_file, os.path.join(directory, METADATA_NAME), metadata)
        if content is not None and cut.layout is not None:
            self._share(job, (content, cut.layout))
        if self._threads == 0 or not (owned or (self._threads > 1 and len(job.pieces) > 1)):
            self._run(job)
            return
        try:
            self._submit(job)
        except BaseException:
            self._by_content.pop(job.content, None)  # nobody may wait for what was never begun
            raise
        if not owned:
            self.wait(job.home)

    def write_metadata(self, node: str, metadata: bytes) -> None:
        """Say anew what an array of rows is.

        Raises
        ------
        StoreError
            Not written; what it said before still stands.
        """
        directory = os.path.join(self._root, node)
        path = os.path.join(directory, METADATA_NAME)
        try:
            if self._fsync and os.path.lexists(path):
                # Rows that a flush promised hang on the old one, so the new one must be on disk before it replaces it.
                write_atomic(path, metadata)
            else:
                self._write_file(path, metadata)
        except OSError as error:
            raise _named(error, directory, "") from error
        self._directories[directory] = None

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

    def _share(self, job: Job, content: Hashable) -> None:
        """Give the file of an earlier array a second name, or be the one that others link to."""
        file = job.files[0]
        path, done = self._by_content.setdefault(content, (file.path, job.done))
        if path == file.path:
            job.content = content
        else:
            job.files = [ArrayFile(file.path, [lambda: self._link(path, done, file)])]

    def _link(self, first: str, done: Future[None], file: ArrayFile) -> None:
        # Its turn was before ours, so this waits for no thread that waits for us.
        if done.exception() is None:
            try:
                os.link(first, file.path)
            except OSError:  # no links here, or too many of them
                pass
            else:
                return
        try:
            for piece in file.pieces:
                piece()
        except BaseException:
            file.abandon()
            raise

    def _file(self, path: str, bits: NDArray[Any], cut: Cut, at: tuple[int, ...], encoder: Encoder) -> ArrayFile:
        """The file at a place of the grid: a chunk, or a shard of those chunks that are in the array."""
        if cut.shards is None:
            return ArrayFile(path, [lambda: self._write_file(path, encoder.encode(_chunk(bits, cut.chunks, at)))])
        chunks = dict(cut.chunks_of(at))
        shard = self._shard(path, math.prod(cut.counts), tuple(chunks))

        def piece(position: int, chunk: tuple[int, ...]) -> Callable[[], None]:
            return lambda: shard.add(position, encoder.encode(_chunk(bits, cut.chunks, chunk)))

        return ArrayFile(path, [piece(*each) for each in chunks.items()], shard)

    def _shard(self, path: str, count: int, positions: Sequence[int]) -> Shard:
        return FileShard(path, count, positions, self._wrote, begin=self._fsync)

    def _write_file(self, path: str, data: ReadOnlyBuffer) -> None:
        write_atomic(path, data, fsync=False, begin=self._fsync)
        self._wrote(path)

    def _wrote(self, path: str) -> None:
        self._files.append(path)

    def _run(self, job: Job) -> None:
        try:
            for piece in job.pieces:
                piece()
            job.finish()
        except BaseException as error:
            job.abandon()
            job.done.set_exception(error)
            if isinstance(error, OSError):
                raise _named(error, job.directory, job.key) from error
            raise
        job.release()
        job.done.set_result(None)

    # --- threads ---------------------------------------------------------------------------------------------------

    def _submit(self, job: Job) -> None:
        with self._changed:
            # One job always may run, however big it is.
            self._changed.wait_for(lambda: self._pending == 0 or self._pending + job.nbytes <= _PENDING_BYTES)
            self._pending += job.nbytes
        chunks: list[Future[None]] = []
        try:
            if self._pool is None:
                self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="msformat-zarr")
            self._jobs[job.home] = job
            chunks.extend(submit_or_run(self._pool, partial(self._do, job, piece)) for piece in job.pieces)
            # Taken from the queue after all its chunks were, so that it can never wait for one that has no thread.
            submit_or_run(self._pool, partial(self._finish, job, chunks))
        except BaseException as error:  # an interrupt: nobody else may ever end it, and there are those who wait
            job.is_dropped = True
            what = f"{job.directory}: tensor {job.key!r}: not written ({type(error).__name__})"
            end = partial(self._finish, job, chunks, StoreError(what))
            # In its turn, too: waiting for its pieces here were waiting for all that is in front of them.
            end() if self._pool is None else submit_or_run(self._pool, end)
            raise

    def _do(self, job: Job, piece: Callable[[], None]) -> None:
        if job.is_dropped or self._is_abandoned:
            raise StoreError(f"{job.directory}: tensor {job.key!r}: not written, nobody waits for it")
        piece()

    def _finish(self, job: Job, chunks: list[Future[None]], interrupt: BaseException | None = None) -> None:
        if not job.may_end():
            return
        # All of them are waited for: nothing may be written any more once the rest is cleaned up.
        errors = [chunk.exception() for chunk in chunks]
        failures = [error for error in [interrupt, *errors] if error is not None]
        try:
            if failures:
                raise failures[0]
            job.finish()
        except OSError as error:
            failure: BaseException | None = _named(error, job.directory, job.key)
        except BaseException as error:  # noqa: BLE001 (handed to the thread that waits)
            failure = error
        else:
            failure = None
        if failure is not None:
            job.abandon()
        job.release()
        with self._changed:
            self._pending -= job.nbytes
            self._changed.notify_all()
        if failure is None:
            job.done.set_result(None)
        else:
            job.done.set_exception(failure)

    def wait(self, home: str) -> None:
        """Until an array, or a row of one, is written.

        Raises
        ------
        StoreError
            It was not.
        """
        job = self._jobs.get(home)
        if job is None:
            return
        self.check_process()
        try:
            job.done.result()
        finally:
            self._jobs.pop(home, None)

    def failed(self) -> dict[str, BaseException]:
        """Arrays and rows that came to nothing since the last call, with the error of each; the rest go on."""
        failures: dict[str, BaseException] = {}
        while self._jobs:
            home, job = next(iter(self._jobs.items()))
            if not job.done.done():
                break
            del self._jobs[home]
            error = job.done.exception()
            if error is not None:
                failures[home] = error
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

    def abandon(self) -> None:
        """Let the threads end as soon as each has done the piece at which it is; all else comes to nothing."""
        self._is_abandoned = True
        self.close()

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


def _chunk_path(directory: str, row: int | None, at: tuple[int, ...]) -> str:
    return os.path.join(directory, ".".join(map(str, at if row is None else (row, *at))) or "0")


def _chunk(bits: NDArray[Any], chunks: tuple[int, ...], at: tuple[int, ...]) -> NDArray[Any]:
    """A chunk; those at the end of an axis are filled up, as Zarr stores them."""
    region = tuple(slice(i * c, (i + 1) * c) for i, c in zip(at, chunks, strict=True))
    piece = bits[region] if region else bits
    if piece.shape != chunks:
        whole = np.zeros(chunks, bits.dtype)
        whole[tuple(slice(length) for length in piece.shape)] = piece
        piece = whole
    return np.ascontiguousarray(piece)


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
