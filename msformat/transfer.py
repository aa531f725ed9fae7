"""Tensors from one store into another: one thread reads, the caller's thread puts, a bounded queue between them.

Reading, hashing, compressing and writing overlap, and however large the unit, no more than the queue's bytes wait in
memory (one tensor more than the limit still passes, alone). What the source stores once under several names is read,
unpacked and hashed once, where the target keeps it once as well.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable, Hashable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple, TypeAlias

from msformat.borrowed import is_mapped, released_pages
from msformat.errors import DTypeError, KeyExistsError, MsformatError
from msformat.logical import LogicalBits, logical_bits
from msformat.plan import PlannedTensor
from msformat.stores.base import Store, StoredTensor
from msformat.sums import ContentSums
from msformat.threads import each_in_threads

__all__ = ["Transferred", "transfer", "verify_transfer"]

QUEUE_BYTES = 64 << 20
# Each holds a tensor, or 64 MiB of a large one.
_VERIFYING_THREADS = 2
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
        Tensors that were skipped or are damaged; tensors that are not quite what the document says.
    damaged
        Keys in the target of tensors whose bytes changed in the source after they were written there.
    """

    digests: dict[str, str] = field(default_factory=dict)
    nbytes: int = 0
    conflicts: int = 0
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    damaged: set[str] = field(default_factory=set)


class _Read(NamedTuple):
    """A tensor that was read, or why not, or the name under which the target was given the same before."""

    tensor: PlannedTensor
    bits: LogicalBits | None = None
    error: str = ""
    same: str | None = None
    nbytes: int = 0
    recorded: str | None = None
    """The digest that the source has kept of these very bits, where it keeps any."""


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
    left = _pass(_Source(source, share=target.shares_content), target, tensors, done, notify)
    if left:
        _pass(_Source(source, share=False), target, left, done, notify)
    return done


def _pass(
    source: _Source, target: Store, tensors: Sequence[PlannedTensor], done: Transferred, notify: Notify | None
) -> list[PlannedTensor]:
    """Copy tensors; returns second names of what the target did not take under the first."""
    left: list[PlannedTensor] = []
    pipe = _Pipe(QUEUE_BYTES)
    reader = threading.Thread(target=_read_all, args=(source, tensors, pipe), name="msformat-read", daemon=True)
    reader.start()
    try:
        while (item := pipe.take()) is not None:
            if item.same is not None and item.same not in done.digests:
                left.append(item.tensor)
                continue
            _put(target, item, done)
            if notify is not None:
                notify(done.nbytes)
    finally:
        pipe.close()
        reader.join()
    return left


class _Source:
    """Reads tensors, each content once.

    Parameters
    ----------
    share
        Whether names of one content are told; otherwise each is read.
    """

    def __init__(self, store: Store, *, share: bool) -> None:
        self._store = store
        self._share = share
        self._first: dict[Hashable, tuple[str, int]] = {}

    def read(self, tensor: PlannedTensor) -> _Read:
        try:
            stored = self._store.get(tensor.source)
            content = self._content(stored, tensor)
            first = self._first.get(content)
            if first is not None:
                return _Read(tensor, same=first[0], nbytes=first[1])
            bits = logical_bits(stored, tensor.declared, borrow=True)
        except _BAD_TENSOR as error:
            return _Read(tensor, error=f"{error}" or type(error).__name__)
        # What is not quite as its document says is said of each name.
        if content is not None and bits.note is None:
            self._first[content] = tensor.target, bits.bits.nbytes
        recorded = stored.digest if bits.dtype == stored.dtype else None
        return _Read(tensor, bits, nbytes=bits.bits.nbytes, recorded=recorded)

    def _content(self, stored: StoredTensor, tensor: PlannedTensor) -> Hashable | None:
        """Equal where what is read is equal; None where nothing is known."""
        identity = stored.identity if self._share else None
        return None if identity is None else (identity, stored.dtype.name, stored.shape, tensor.declared)


def _read_all(source: _Source, tensors: Sequence[PlannedTensor], pipe: _Pipe) -> None:
    try:
        for tensor in tensors:
            if not pipe.put(source.read(tensor)):
                return
        pipe.put(None)
    except BaseException as error:  # noqa: BLE001 (handed to the thread that waits for it, which raises it)
        pipe.put(error)


def _put(target: Store, item: _Read, done: Transferred) -> None:
    label = f"tensor {item.tensor.source!r}" + (f" of entry {item.tensor.entry!r}" if item.tensor.entry else "")
    if item.error:
        done.problems.append(f"{label} was skipped: {item.error}")
        return
    try:
        done.digests[item.tensor.target] = _digest_put(target, item, done)
    except (KeyExistsError, DTypeError) as error:
        done.conflicts += isinstance(error, KeyExistsError)
        done.problems.append(f"{label} was skipped: {error}")
        return
    if _is_damaged(item, done):
        done.damaged.add(item.tensor.target)
        done.problems.append(f"{label} is damaged in the source, whose bytes do not match their digest; kept as it is")
    done.nbytes += item.nbytes
    if item.bits is not None and item.bits.note is not None:
        done.notes.append(item.bits.note)


def _is_damaged(item: _Read, done: Transferred) -> bool:
    """Whether the source holds something else than was written to it: few codecs notice a changed bit."""
    if item.same is not None:
        return item.same in done.damaged
    return item.recorded not in (None, done.digests[item.tensor.target])


def _digest_put(target: Store, item: _Read, done: Transferred) -> str:
    if item.same is not None:
        target.put_same(item.tensor.target, item.same)
        return done.digests[item.same]
    assert item.bits is not None
    bits, dtype, _ = item.bits
    with released_pages(bits):
        # What is looked at in its map is finished with when its pages are.
        return target.put(item.tensor.target, bits, dtype, owned=not is_mapped(bits))


def verify_transfer(target: Store, digests: dict[str, str]) -> list[str]:
    """Read every tensor back and compare it with the digest of what was read from the source.

    What stands under several names is read once; that each name leads to the right content is checked for each.
    """
    problems: dict[str, str] = {}
    sums = ContentSums()

    def check(key: str) -> None:
        try:
            if sums.of(target.get(key)).digest != digests[key]:
                problems[key] = f"tensor {key!r} reads back with other content"
        except _BAD_TENSOR as error:
            problems[key] = f"tensor {key!r} cannot be read back: {error}"

    # HDF5 lets one thread in at a time, and waiting for that takes longer than unpacking in two saves.
    each_in_threads(check, digests, _VERIFYING_THREADS if target.reads_faster_in_threads else 1)
    return [problems[key] for key in digests if key in problems]
