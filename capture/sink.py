"""One unit on its way to the disk: everything a ``DumpWriter`` is told, told on the writing thread.

The training thread only hands over what was recorded. A failure of the store ends the unit and not the training; a
failure of one value costs that value.
"""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from typing import Any, Protocol

from capture.framework import HostTensor
from capture.queue import WriteQueue
from capture.stacks import Frames, StackTexts
from msformat import DumpWriter, FormatError, KeyExistsError, canonical_crc32

__all__ = ["Record", "UnitSink"]

_log = logging.getLogger(__name__)
# About what the JSON of an entry takes in memory: without it nothing would bound a statistics run on a slow disk.
_ENTRY_BYTES = 8 << 10


class Record(Protocol):
    """What the sink needs of a :class:`capture.record.EntryRecord`."""

    key: str
    value: Any
    tensors: list[tuple[str, HostTensor, dict[str, Any]]]


class UnitSink:
    """Writes one unit: methods hand over and return, in order, from any thread.

    Parameters
    ----------
    queue
        Its thread does the writing, and its bound is what callers wait for.
    make_writer
        Called on that thread when there is something to write, so that a unit without data leaves no trace.
    on_failure
        Called on that thread, once, with what could not be written and why. The unit was closed with that reason;
        what comes later is dropped.
    texts
        Call stacks that were looked up before; what an earlier unit knew need not be looked up again.
    md5
        Fill in the field ``md5`` of tensors whose node has none yet.

    Attributes
    ----------
    failed
        The unit is lost from here on. May be read by any thread.
    """

    def __init__(
        self,
        queue: WriteQueue,
        make_writer: Callable[[], DumpWriter],
        *,
        on_failure: Callable[[str, BaseException], None],
        md5: bool,
        texts: StackTexts | None = None,
    ) -> None:
        self.failed = False
        self._queue = queue
        self._make_writer = make_writer
        self._on_failure = on_failure
        self._md5 = md5
        self._writer: DumpWriter | None = None
        self._has_ended = False
        self._texts = StackTexts() if texts is None else texts
        # What hosts are marked with once stored; not the sink itself, which a cached host would keep alive.
        self._owner = object()
        self._weighed: set[HostTensor] = set()

    # --- any thread --------------------------------------------------------------------------------------------------

    def put(self, entries: Sequence[Record]) -> None:
        """Store the tensors of entries, then the entries; their nodes get ``data_name`` (and ``md5``).

        Blocks while the queue is full. The entries and their bits belong to the sink from here on.
        """
        batch = list(entries)
        self._queue.submit(partial(self._put_entries, batch), self._weigh(batch))

    def put_parents(self, parents: dict[str, str | None]) -> None:
        """Record what entries were called by."""
        self._submit("the tree", partial(self._put_parents, dict(parents)))

    def put_stack(self, keys: Iterable[str], frames: Frames) -> None:
        """Record the call stack of entries. Source lines are read on the writing thread."""
        self._submit("a call stack", partial(self._put_stack, list(keys), frames))

    def put_problem(self, message: str) -> None:
        """Record that something was not captured."""
        self._submit("a problem", lambda writer: writer.put_problem(message))

    def finish(self) -> None:
        """Make the unit whole."""
        self._queue.submit(self._finish)

    def close(self, reason: str) -> None:
        """Leave the unit unfinished, readable up to here, and say why."""
        self._queue.submit(partial(self._close, reason))

    def _submit(self, what: str, action: Callable[[DumpWriter], object]) -> None:
        self._queue.submit(partial(self._attempt, what, action))

    def _weigh(self, batch: Iterable[Record]) -> int:
        """Memory that is free once these are written. Content under several names counts where it comes first."""
        total = 0
        for entry in batch:
            total += _ENTRY_BYTES
            for _, host, _ in entry.tensors:
                if host.bits is not None and host not in self._weighed:
                    self._weighed.add(host)
                    total += host.nbytes
        return total

    # --- the writing thread ------------------------------------------------------------------------------------------

    def _attempt(self, what: str, action: Callable[[DumpWriter], object]) -> None:
        """Do something with the writer. What it refuses costs this alone; a store that fails ends the unit."""
        if self.failed:
            return
        if self._has_ended:
            _log.warning("%s came after the end of its unit and is lost", what)
            return
        try:
            action(self._opened())
        except Exception as error:  # noqa: BLE001 (nothing here may reach the training)
            if self._writer is None or _is_fatal(error):
                self._fail(what, error)
            else:
                self._note_problem(f"{what}: not captured: {error}")

    def _opened(self) -> DumpWriter:
        if self._writer is None:
            self._writer = self._make_writer()
        return self._writer

    def _put_entries(self, batch: list[Record]) -> None:
        for entry in batch:
            self._attempt(f"entry {entry.key!r}", partial(self._put_tensors, entry))
            if self.failed:
                _drop_bits(entry)
        self._attempt(f"entries from {batch[0].key!r} on", partial(self._put_batch, batch))

    def _put_batch(self, batch: list[Record], writer: DumpWriter) -> None:
        """All at once, or one by one where one of them is refused."""
        try:
            writer.put_entries([(entry.key, entry.value) for entry in batch])
        except FormatError:
            for entry in batch:
                self._attempt(f"entry {entry.key!r}", partial(_put_alone, entry))

    def _put_tensors(self, entry: Record, writer: DumpWriter) -> None:
        for raw, host, node in entry.tensors:
            try:
                node["data_name"] = self._put_tensor(writer, raw, host, node)
            except Exception as error:
                if _is_fatal(error):
                    raise
                node["not_captured"] = str(error)
                self._note_problem(f"tensor {raw!r}: not captured: {error}")

    def _put_tensor(self, writer: DumpWriter, raw: str, host: HostTensor, node: dict[str, Any]) -> str:
        """Store content under one more name; the bits themselves once."""
        name = writer.data_name(raw)
        if host.owner is self._owner and host.name is not None:
            writer.put_same(name, host.name)
        else:
            self._put_bits(writer, name, host)
        if self._md5 and node.get("md5") is None:
            node["md5"] = host.crc
        return name

    def _put_bits(self, writer: DumpWriter, name: str, host: HostTensor) -> None:
        bits, host.bits = host.bits, None  # gone from memory whatever becomes of them
        if bits is None:
            raise ValueError("its content went to another unit, or could not be stored")
        if self._md5 and host.crc is None:
            host.crc = canonical_crc32(bits, host.dtype)
        writer.put_tensor(name, bits, host.dtype, owned=True)
        host.name, host.owner = name, self._owner

    def _put_parents(self, parents: dict[str, str | None], writer: DumpWriter) -> None:
        writer.put_parents(parents)

    def _put_stack(self, keys: list[str], frames: Frames, writer: DumpWriter) -> None:
        writer.put_stack(keys, self._texts.texts(frames))

    def _finish(self) -> None:
        self._conclude(DumpWriter.finish)

    def _close(self, reason: str) -> None:
        self._conclude(lambda writer: writer.close(reason))

    def _conclude(self, action: Callable[[DumpWriter], object]) -> None:
        """The last thing done with the writer; whatever it refuses, the unit is not what it should be."""
        try:
            if self._writer is not None and not self.failed:
                action(self._writer)
        except Exception as error:  # noqa: BLE001 (nothing here may reach the training)
            self._fail("the end of the dump", error)
        self._has_ended = True
        self._let_go()

    def _let_go(self) -> None:
        """Free what only writing needs."""
        self._weighed.clear()

    # --- failures ----------------------------------------------------------------------------------------------------

    def _note_problem(self, message: str) -> None:
        if self._writer is not None:
            with contextlib.suppress(Exception):  # a store that fails shows at the next tensor, with its own words
                self._writer.put_problem(message)

    def _fail(self, what: str, error: Exception) -> None:
        """End the unit; say so once."""
        self.failed = True
        self._let_go()
        if self._writer is not None:
            with contextlib.suppress(Exception):  # the cause is known
                self._writer.close(f"{what}: {error}")
        self._on_failure(what, error)


def _is_fatal(error: Exception) -> bool:
    """Whether the store itself is at an end: the disk, the server, a library that is missing."""
    return isinstance(error, (OSError, ImportError)) and not isinstance(error, KeyExistsError)


def _put_alone(entry: Record, writer: DumpWriter) -> None:
    writer.put_entry(entry.key, entry.value, trusted=True)


def _drop_bits(entry: Record) -> None:
    for _, host, _ in entry.tensors:
        host.bits = None
