"""What is to be done for an array in a Zarr store: pieces in any order, and what then says that they are one."""

from __future__ import annotations

import threading
from collections.abc import Callable, Hashable
from concurrent.futures import Future
from dataclasses import dataclass

from msformat.stores.zarr_shards import Shard

__all__ = ["ArrayFile", "Job"]


@dataclass(frozen=True, slots=True)
class ArrayFile:
    """A file of an array.

    Attributes
    ----------
    path
        Its name.
    pieces
        What writes its chunks, in any order.
    shard
        What they are put together in, if there are many.
    """

    path: str
    pieces: list[Callable[[], None]]
    shard: Shard | None = None

    def abandon(self) -> None:
        """Leave no half of it."""
        if self.shard is not None:
            self.shard.abandon()


class Job:
    """An array, or a row of one, on its way to disk.

    Attributes
    ----------
    home
        Path of the array or row.
    directory, key
        Where it is, and its tensor, for messages.
    nbytes
        What it keeps in memory.
    files
        What it consists of.
    metadata
        Writes what makes them one.
    content
        See :meth:`msformat.stores.zarr_write.ArrayWriter.write`.
    done
        Its end, with the error if it came to nothing.
    is_dropped
        Pieces that have not begun are passed over.
    """

    def __init__(self, home: str, directory: str, key: str, nbytes: int, files: list[ArrayFile]) -> None:
        self.home = home
        self.directory = directory
        self.key = key
        self.nbytes = nbytes
        self.files = files
        self.metadata: Callable[[], None] | None = None
        self.content: Hashable = None
        self.done: Future[None] = Future()
        self.is_dropped = False
        self._ending = threading.Lock()

    @property
    def pieces(self) -> list[Callable[[], None]]:
        """What can be done in any order."""
        return [piece for file in self.files for piece in file.pieces]

    def may_end(self) -> bool:
        """Whether nobody has asked before: an interrupted thread and a thread of the pool may both want to end it."""
        return self._ending.acquire(blocking=False)

    def finish(self) -> None:
        """What comes after all pieces."""
        if self.metadata is not None:
            self.metadata()

    def abandon(self) -> None:
        """Clean up after a failure."""
        for file in self.files:
            file.abandon()

    def release(self) -> None:
        """Keep no tensor: only ``done`` is asked from now on."""
        self.files = []
        self.metadata = None
