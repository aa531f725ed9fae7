"""The records of one step of one rank on their way to the sink: order, batches, tree, stacks, parameter gradients."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from capture.counters import Counters
from capture.record import EntryRecord

if TYPE_CHECKING:
    from capture.framework import Framework
    from capture.sink import UnitSink
    from capture.stacks import Frames

__all__ = ["StepRecords"]

# Handed over together: one switch between threads, one copy of device scalars, for so many entries or bytes.
_BATCH_ENTRIES, _BATCH_BYTES = 48, 16 << 20
# An API that waits for another rank stays open; what comes after it is not kept back for longer than this.
_MOST_WAITING = 1024


class StepRecords:
    """What is recorded in a step, in the order of the document.

    Parameters
    ----------
    sink
        Where batches go.
    framework
        Resolves statistics that are still on the device, a batch at a time.
    is_structure
        The task records no entries: the tree and the stacks alone make a dump.
    """

    def __init__(self, sink: UnitSink, framework: Framework, *, is_structure: bool = False) -> None:
        self.sink = sink
        self.counters = Counters()
        self.entries = 0
        self._framework = framework
        self._is_structure = is_structure
        self._mutex = threading.RLock()
        self._order: deque[EntryRecord] = deque()
        self._bytes = 0
        self._parents: dict[str, str | None] = {}
        self._stacks: dict[Frames, list[str]] = {}
        self._gradients: dict[str, dict[str, list[Any]]] = {}
        self._called: set[str] = set()
        self._outer: dict[str, str | None] = {}
        self._backwards: set[str] = set()
        self._ran_backward: set[str] = set()

    @property
    def is_empty(self) -> bool:
        """Whether the step left nothing worth a dump."""
        return self.entries == 0 and not (self._is_structure and self._called)

    def parent(self, child: str, parent: str | None) -> None:
        """Record the caller of an entry, and the callers of a caller that nothing was heard of."""
        while True:
            self._parents[child] = parent
            self._called.add(child)
            if parent is None or parent in self._called or parent not in self._outer:
                return
            child, parent = parent, self._outer[parent]

    def enclose(self, backward: str, parent: str | None) -> None:
        """Note what a module's backward is part of: where its outputs hide their tensors, only its inside is heard."""
        self._outer[backward] = parent

    def stack(self, name: str, frames: Frames) -> None:
        """Record the call stack of an entry."""
        with self._mutex:
            self._stacks.setdefault(frames, []).append(name)
        self._called.add(name)

    # --- entries -----------------------------------------------------------------------------------------------------

    def reserve(self, entry: EntryRecord) -> None:
        """Give an entry its place now; it is handed over once complete."""
        self._order.append(entry)

    def complete(self, entry: EntryRecord) -> None:
        """A reserved entry has all it will have."""
        entry.done = True
        self._count(entry)

    def add(self, entry: EntryRecord) -> None:
        """An entry that is complete as it comes."""
        entry.done = True
        self._order.append(entry)
        self._count(entry)

    def _count(self, entry: EntryRecord) -> None:
        self.entries += 1
        self._bytes += entry.nbytes
        if len(self._order) >= _BATCH_ENTRIES or self._bytes >= _BATCH_BYTES:
            self.flush()

    # --- gradients of parameters -------------------------------------------------------------------------------------

    def expect_gradients(self, key: str, parameters: Sequence[str], *, announce: bool = True) -> None:
        """Take the place of a module's parameter gradients, null until they come."""
        if key in self._gradients:
            return
        self._gradients[key] = {name: [None] for name in parameters}
        if not announce:
            return
        entry = EntryRecord(key)
        entry.value = dict(self._gradients[key])
        self.add(entry)

    def gradients_of(self, key: str) -> EntryRecord | None:
        """A record to put gradients of this module into; None when the module is not recorded."""
        return EntryRecord(key) if key in self._gradients else None

    def is_first_backward(self, name: str) -> bool:
        """Whether this backward entry is new: a retained graph may run again, and would replace what was recorded."""
        is_new = name not in self._ran_backward
        self._ran_backward.add(name)
        return is_new

    def note_backward(self, prefix: str) -> None:
        """A backward of the module with this prefix was recorded."""
        self._backwards.add(prefix)

    def has_backward(self, prefix: str) -> bool:
        """Whether one was recorded in this step."""
        return prefix in self._backwards

    def put_gradient(self, entry: EntryRecord, parameter: str, node: Any) -> None:
        """Make this the parameter's gradient; sums that came before it in the step stay behind it, oldest first."""
        with self._mutex:
            known = self._gradients[entry.key]
            final, *earlier = known.get(parameter, [None])
            known[parameter] = [node, *earlier] if final is None else [node, *earlier, final]
            entry.value = dict(known)
            self.add(entry)

    # --- handing over ------------------------------------------------------------------------------------------------

    def flush(self, *, everything: bool = False) -> None:
        """Hand over what is complete; ``everything`` also what is not (the step ends)."""
        with self._mutex:
            batch = self._take(everything)
            self._bytes = 0
            pending = [late for entry in batch for late in entry.pending]
            if pending:
                self._framework.resolve(pending)
            if batch:
                self.sink.put(batch)
            if self.is_empty:
                return  # a tree without entries is no dump; it waits for the first one
            parents, self._parents = self._parents, {}
            stacks, self._stacks = self._stacks, {}
            if parents:
                self.sink.put_parents(parents)
            for frames, names in stacks.items():
                self.sink.put_stack(names, frames)

    def _take(self, everything: bool) -> list[EntryRecord]:  # noqa: FBT001 (inside only)
        order, batch = self._order, []
        while order and (everything or order[0].done):
            batch.append(order.popleft())
        if len(order) > _MOST_WAITING:
            batch += [entry for entry in order if entry.done]
            self._order = deque(entry for entry in order if not entry.done)
        return batch
