"""One unit against another."""

from __future__ import annotations

import gc
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import TypeAlias

from msformat.compare.calls import Calls, load_calls
from msformat.compare.entries import alone, compare_scalars, pair_tensors, role_of
from msformat.compare.mapping import NameMapping
from msformat.compare.match import Found, match_calls
from msformat.compare.model import BAD, Divergence, EntryResult, Match, UnitResult, Verdict
from msformat.compare.order import Event, before, execution_order, first_event
from msformat.compare.tensors import TensorComparer
from msformat.compare.thresholds import Thresholds
from msformat.entries import Entry
from msformat.errors import FormatError, MsformatError
from msformat.layout import UnitLocation
from msformat.names import key_matches
from msformat.unit import Unit

__all__ = ["Progress", "UnitJob", "compare_units"]

# Entries handed to the threads at a time: a hundred thousand futures would be gigabytes.
_BATCH = 512
# New objects between two collections of the youngest; Python's default is 700.
_COLLECTED = 20_000
_BAD_UNIT = (MsformatError, OSError, MemoryError)

Place: TypeAlias = "tuple[str | None, str | None, Match]"
Progress: TypeAlias = "Callable[[str, int, int], object]"


@dataclass(frozen=True, slots=True)
class UnitJob:
    """Two units and how to compare them; may be sent to another process.

    Attributes
    ----------
    a, b
        Where they are; None on the side that has none.
    thresholds
        When tensors are different.
    patterns
        Only entries that match one of these globs or contain one of these texts; empty for all.
    mapping
        Names of A in B.
    threads
        Tensors read and compared at the same time.
    context
        How many entries before a divergence are kept with it.
    with_scalars
        Compare plain arguments too.
    ignore_missing
        Entries of one side alone are no divergence.
    """

    a: UnitLocation | None
    b: UnitLocation | None
    thresholds: Thresholds = field(default_factory=Thresholds)
    patterns: tuple[str, ...] = ()
    mapping: NameMapping | None = None
    threads: int = 1
    context: int = 5
    with_scalars: bool = True
    ignore_missing: bool = False


def compare_units(job: UnitJob, progress: Progress | None = None) -> UnitResult:
    """Compare two units; what is wrong with one of them ends in the result.

    Parameters
    ----------
    progress
        Called with the unit's path, entries done and entries in all.
    """
    key_a, key_b = (side.key if side is not None else None for side in (job.a, job.b))
    if job.a is None or job.b is None:
        return UnitResult(key_a, key_b, problems=(f"only in {'b' if job.a is None else 'a'}",))
    began = time.monotonic()
    with warnings.catch_warnings(record=True) as said, Unit(job.a) as a, Unit(job.b) as b:
        warnings.simplefilter("always", UserWarning)
        try:
            found = _UnitComparison(job, a, b, progress).run()
        except _BAD_UNIT as error:
            found = UnitResult(key_a, key_b, problems=(str(error) or type(error).__name__,))
    notes = tuple(dict.fromkeys(str(warning.message) for warning in said))
    return UnitResult(
        key_a, key_b, found.entries, found.divergence, found.first_bits, found.problems, (*found.notes, *notes),
        time.monotonic() - began,
    )  # fmt: skip


class _UnitComparison:
    def __init__(self, job: UnitJob, a: Unit, b: Unit, progress: Progress | None) -> None:
        self._job = job
        self._a = a
        self._b = b
        self._progress = progress or (lambda *_: None)
        self._tensors = TensorComparer(job.thresholds)
        self._unreadable: dict[str, None] = {}

    def run(self) -> UnitResult:
        problems = [
            f"{side}: {unit.incomplete_reason}"
            for side, unit in (("a", self._a), ("b", self._b))
            if unit.incomplete_reason is not None
        ]
        calls_a, calls_b = load_calls(self._a, self._job.mapping), load_calls(self._b)
        found = match_calls(calls_a, calls_b, self._job.mapping.entries if self._job.mapping else None)
        places = [place for place in _places(calls_a, calls_b, found) if self._is_wanted(place)]
        with _rare_collections():
            entries = tuple(self._compare_all(places, calls_a, calls_b))
        events = execution_order(entries, _parents(entries, calls_a, calls_b))
        problems += self._unreadable
        lost, stripped = self._missing()
        problems += lost
        return UnitResult(
            self._a.key, self._b.key, entries,
            self._divergence(entries, events, calls_a, calls_b),
            self._find(entries, events, calls_a, calls_b, lambda verdict: verdict in ("close", "different")),
            tuple(problems), (*self._header_notes(), *stripped),
        )  # fmt: skip

    def _header_notes(self) -> Iterator[str]:
        """What explains that one side has less."""
        for name in ("level", "task"):
            ours, theirs = getattr(self._a.header, name), getattr(self._b.header, name)
            if ours != theirs and ours and theirs:
                yield f"{name} {ours} against {theirs}"

    def _missing(self) -> tuple[list[str], list[str]]:
        """What to say of tensors that are not stored: a fault, unless a side has none at all, as a dump sent alone.

        Both are compared by statistics and digests of the documents, which two runs may well share.
        """
        lost: list[str] = []
        stripped: list[str] = []
        for side, unit in (("a", self._a), ("b", self._b)):
            names = self._tensors.missing[side]
            if names:
                words = f"{side}: {len(names)} tensors are named but not stored, the first {names[0]!r}"
                place = lost if _stores_any(unit) else stripped
                place.append(f"{words}; what the documents say was compared in their place")
        return lost, stripped

    def _is_wanted(self, place: Place) -> bool:
        key = place[0] if place[0] is not None else place[1]
        return not self._job.patterns or any(key_matches(key or "", pattern) for pattern in self._job.patterns)

    # --- entries ---------------------------------------------------------------------------------------------------

    def _compare_all(self, places: Sequence[Place], a: Calls, b: Calls) -> Iterator[EntryResult]:
        threads = self._job.threads if self._have_values() else 1
        label = self._a.label
        if threads == 1:
            for at, place in enumerate(places):
                yield self._compare(place, a, b)
                if at % _BATCH == 0:
                    self._progress(label, at, len(places))
        else:
            with ThreadPoolExecutor(threads, "msformat-diff") as pool:
                for at in range(0, len(places), _BATCH):
                    yield from pool.map(lambda place: self._compare(place, a, b), places[at : at + _BATCH])
                    self._progress(label, at, len(places))
        self._progress(label, len(places), len(places))

    def _have_values(self) -> bool:
        """Whether threads have something to read: what documents say is compared by the interpreter alone."""
        return _stores_any(self._a) and _stores_any(self._b)

    def _compare(self, place: Place, a: Calls, b: Calls) -> EntryResult:
        key_a, key_b, match = place
        calls, key = (a, key_a) if key_a is not None else (b, key_b)
        assert key is not None
        parent, module = calls[key].parent, calls.module(key)
        entry_a, entry_b = self._entry(self._a, key_a), self._entry(self._b, key_b)
        if entry_a is None or entry_b is None:
            entry = entry_a or entry_b
            tensors = tuple(alone(tensor, in_a=entry_a is not None) for tensor in entry.tensors) if entry else ()
            return EntryResult(key_a, key_b, match, tensors, parent=parent, module=module)
        pairs = pair_tensors(entry_a, entry_b, self._job.mapping)
        tensors = tuple(
            self._tensors.compare(ours, theirs, role_of(ours))
            if ours is not None and theirs is not None
            else alone(ours or theirs, in_a=ours is not None)  # type: ignore[arg-type]  # one of both is there
            for ours, theirs in pairs
        )
        scalars = compare_scalars(entry_a, entry_b) if self._job.with_scalars else ()
        return EntryResult(key_a, key_b, match, tensors, scalars, parent, module)

    def _entry(self, unit: Unit, key: str | None) -> Entry | None:
        if key is None:
            return None
        try:
            found: Entry | None = unit.get(key)
        except FormatError as error:
            self._unreadable[f"left out: {error}"] = None
            return None
        return found

    # --- where they part -------------------------------------------------------------------------------------------

    def _divergence(
        self, entries: Sequence[EntryResult], events: Sequence[Event], a: Calls, b: Calls
    ) -> Divergence | None:
        """The first difference; only without any, the first entry or tensor that one side lacks."""
        found = self._find(entries, events, a, b, lambda verdict: verdict == "different")
        if found is None and not self._job.ignore_missing:
            found = self._find(entries, events, a, b, lambda verdict: verdict in BAD)
        return found

    def _find(
        self,
        entries: Sequence[EntryResult],
        events: Sequence[Event],
        a: Calls,
        b: Calls,
        wanted: Callable[[Verdict], bool],
    ) -> Divergence | None:
        found = first_event(entries, events, wanted)
        if found is None:
            return None
        place, tensor, scalar = found
        event = events[place]
        entry = entries[event.entry]
        calls = a if entry.a is not None else b
        return Divergence(
            self._a.key, self._b.key, entry, tensor, scalar,
            tensor.role if tensor is not None else "input",
            (self._a.stack(entry.a) or ()) if entry.a is not None else (),
            (self._b.stack(entry.b) or ()) if entry.b is not None else (),
            tuple(calls.parents(entry.key)),
            before(entries, events, place, self._job.context),
        )  # fmt: skip


def _stores_any(unit: Unit) -> bool:
    try:
        return next(iter(unit.store.keys()), None) is not None
    except _BAD_UNIT:
        return False


@contextmanager
def _rare_collections() -> Iterator[None]:
    """Cyclic garbage is looked for in the body less often: it would walk over all results again and again.

    Not never: an entry and its tensors know each other, so that decoded ones are let go by it and by nothing else.
    """
    before = gc.get_threshold()
    gc.set_threshold(_COLLECTED, 20, 100)
    try:
        yield
    finally:
        gc.set_threshold(*before)


def _places(a: Calls, b: Calls, found: Found) -> Iterator[Place]:
    """Matched and lone entries in the order of A; those of B alone stand behind what precedes them there."""
    by_other = {other: key for key, (other, _) in found.items()}
    behind: dict[str | None, list[str]] = {}
    last: str | None = None
    for key in b:
        if key in by_other:
            last = by_other[key]
        else:
            behind.setdefault(last, []).append(key)
    yield from ((None, key, "none") for key in behind.get(None, ()))
    for key in a:
        place: Place = (key, *found[key]) if key in found else (key, None, "none")
        yield place
        yield from ((None, lone, "none") for lone in behind.get(key, ()))


def _parents(entries: Sequence[EntryResult], a: Calls, b: Calls) -> list[int | None]:
    """Number of the nearest enclosing entry of each."""
    by_a = {entry.a: at for at, entry in enumerate(entries) if entry.a is not None}
    by_b = {entry.b: at for at, entry in enumerate(entries) if entry.b is not None}
    return [
        next((by_a[key] for key in a.parents(entry.a) if key in by_a), None)
        if entry.a is not None
        else next((by_b[key] for key in b.parents(entry.b or "") if key in by_b), None)
        for entry in entries
    ]
