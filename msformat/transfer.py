"""Tensors from one store into another: one thread reads, the caller's thread puts, a bounded queue between them.

Reading, hashing, compressing and writing overlap, and however large the unit, no more than the queue's bytes wait in
memory (one tensor more than the limit still passes, alone).
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from msformat.borrowed import is_mapped, released_pages
from msformat.errors import DTypeError, KeyExistsError, MsformatError
from msformat.logical import LogicalBits, logical_bits
from msformat.plan import PlannedTensor
from msformat.stores.base import Store
from msformat.sums import ContentSums

__all__ = ["Transferred", "transfer", "verify_transfer"]

QUEUE_BYTES = 64 << 20
# What a bad file can raise on its way through a reader; anything else is a bug and ends the conversion.
_BAD_TENSOR = (MsformatError, OSError, ValueError, KeyError, MemoryError)

Notify: TypeAlias = Callable[[int], None]


@dataclass(slots=True)
class Transferred:
    """What was put.

    Attributes
    ----------
    digests
        Key in the target to the content digest of what was read from the source.
    nbytes
        Uncompressed bytes.
    conflicts
        How many keys held other content already.
    problems, notes
        Tensors that were skipped; tensors that are not quite what the document says.
    """

    digests: dict[str, str] = field(default_factory=dict)
    nbytes: int = 0
    conflicts: int = 0
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


class _Read(NamedTuple):
    tensor: PlannedTensor
    bits: LogicalBits | None
    error: str


class _Pipe:
    """Tensors on their way, bounded by bytes. An exception put in at one end comes out at the other."""

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._used = 0
        self._items: deque[_Read | BaseException | None] = deque()
        self._changed = threading.Condition()
        self._closed = False

    def put(self, item: _Read | BaseException | None) -> bool:
        """Wait for room; False once the taker went away."""
        size = _size_of(item)
        with self._changed:
            self._changed.wait_for(lambda: self._closed or self._used == 0 or self._used + size <= self._limit)
            if self._closed:
                return False
            self._used += size
            self._items.append(item)
            self._changed.notify_all()
            return True

    def take(self) -> _Read | None:
        """The next one, None at the end."""
        with self._changed:
            self._changed.wait_for(lambda: bool(self._items))
            item = self._items.popleft()
            self._used -= _size_of(item)
            self._changed.notify_all()
        if isinstance(item, BaseException):
            raise item
        return item

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()


def _size_of(item: _Read | BaseException | None) -> int:
    return item.bits.bits.nbytes if isinstance(item, _Read) and item.bits is not None else 0


def transfer(
    source: Store, target: Store, tensors: Sequence[PlannedTensor], notify: Notify | None = None
) -> Transferred:
    """Copy tensors in order. One that cannot be read is skipped by name, and the rest goes on.

    Parameters
    ----------
    source, target
        Open stores; only one thread at a time uses each.
    tensors
        What to copy.
    notify
        Told the bytes done so far.

    Raises
    ------
    StoreError
        The target cannot be written.
    """
    done = Transferred()
    pipe = _Pipe(QUEUE_BYTES)
    reader = threading.Thread(target=_read_all, args=(source, tensors, pipe), name="msformat-read", daemon=True)
    reader.start()
    try:
        while (item := pipe.take()) is not None:
            _put(target, item, done)
            if notify is not None:
                notify(done.nbytes)
    finally:
        pipe.close()
        reader.join()
    return done


def _read_all(source: Store, tensors: Sequence[PlannedTensor], pipe: _Pipe) -> None:
    try:
        for tensor in tensors:
            if not pipe.put(_read(source, tensor)):
                return
        pipe.put(None)
    except BaseException as error:  # noqa: BLE001 (handed to the thread that waits for it, which raises it)
        pipe.put(error)


def _read(source: Store, tensor: PlannedTensor) -> _Read:
    try:
        return _Read(tensor, logical_bits(source.get(tensor.source), tensor.declared, borrow=True), "")
    except _BAD_TENSOR as error:
        return _Read(tensor, None, f"{error}" or type(error).__name__)


def _put(target: Store, item: _Read, done: Transferred) -> None:
    label = f"tensor {item.tensor.source!r}" + (f" of entry {item.tensor.entry!r}" if item.tensor.entry else "")
    if item.bits is None:
        done.problems.append(f"{label} was skipped: {item.error}")
        return
    bits, dtype, note = item.bits
    nbytes = bits.nbytes
    try:
        with released_pages(bits):
            # What is looked at in its map is finished with when its pages are.
            digest = target.put(item.tensor.target, bits, dtype, owned=not is_mapped(bits))
    except (KeyExistsError, DTypeError) as error:
        done.conflicts += isinstance(error, KeyExistsError)
        done.problems.append(f"{label} was skipped: {error}")
        return
    done.digests[item.tensor.target] = digest
    done.nbytes += nbytes
    if note is not None:
        done.notes.append(note)


def verify_transfer(target: Store, digests: dict[str, str]) -> list[str]:
    """Read every tensor back and compare it with the digest of what was read from the source.

    What stands under several names is read once; that each name leads to the right content is checked for each.
    """
    problems: list[str] = []
    sums = ContentSums()
    for key, expected in digests.items():
        try:
            found = sums.of(target.get(key)).digest
        except _BAD_TENSOR as error:
            problems.append(f"tensor {key!r} cannot be read back: {error}")
            continue
        if found != expected:
            problems.append(f"tensor {key!r} reads back with other content")
    return problems
