"""Objects on their way to an object store: many at a time, because each mostly waits for the network."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial

from msformat.filesystem import RemoteFileSystem
from msformat.threads import submit_or_run

__all__ = ["Uploads"]

_THREADS = 16
# Objects that wait for the network keep at most this much memory; then ``put`` waits.
_PENDING_BYTES = 256 << 20


class Uploads:
    """Writes objects by threads. An error surfaces at the next call that waits, and again at each later one.

    Parameters
    ----------
    fs
        Where to.
    """

    def __init__(self, fs: RemoteFileSystem) -> None:
        self._fs = fs
        self._pool: ThreadPoolExecutor | None = None
        self._futures: dict[str, Future[None]] = {}
        self._pending = 0
        self._changed = threading.Condition()
        self._failure: BaseException | None = None

    def put(self, path: str, data: bytes) -> None:
        """Write an object some time before :meth:`drain` returns."""
        self._submit(path, len(data), lambda: self._fs.write(path, data))

    def copy(self, source: str, path: str) -> None:
        """Copy an object that was put before, or that is there."""
        first = self._futures.get(source)

        def action() -> None:
            # Its turn was before ours, so this waits for no thread that waits for us.
            if first is not None:
                first.result()
            self._fs.copy(source, path)

        self._submit(path, 0, action)

    def remove(self, path: str) -> None:
        """Remove an object."""
        self._submit(path, 0, lambda: self._fs.remove(path))

    def _submit(self, path: str, nbytes: int, action: Callable[[], None]) -> None:
        self._raise()
        with self._changed:
            # One object always may go, however big it is.
            self._changed.wait_for(lambda: self._pending == 0 or self._pending + nbytes <= _PENDING_BYTES)
            self._pending += nbytes
        if self._pool is None:
            self._pool = ThreadPoolExecutor(_THREADS, thread_name_prefix="msformat-upload")
        self._futures[path] = submit_or_run(self._pool, partial(self._run, nbytes, action))

    def _run(self, nbytes: int, action: Callable[[], None]) -> None:
        try:
            if self._failure is None:
                action()
        except BaseException as error:
            self._failure = self._failure or error
            raise
        finally:
            with self._changed:
                self._pending -= nbytes
                self._changed.notify_all()

    def drain(self) -> None:
        """Wait until all objects are there.

        Raises
        ------
        StoreError
            One could not be written; says which.
        """
        for future in self._futures.values():
            future.exception()
        self._futures.clear()
        self._raise()

    def _raise(self) -> None:
        if self._failure is not None:
            raise self._failure

    def close(self) -> None:
        """Let the threads end; what has not begun is dropped."""
        if self._pool is not None:
            self._pool.shutdown(wait=True, cancel_futures=True)
        self._pool = None
