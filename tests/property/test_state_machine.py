"""Any sequence of put, commit, kill, power cut, look, close and finish, on every store, against two dictionaries.

Deaths come between any two calls that change files (:mod:`tests.property.disk`). What is left opens, is finished by
``recover``, is converted to every store, and the next unit is written beside it. ``MSFORMAT_EXAMPLES`` asks for more
examples, and other ones each time (``make fuzz``).
"""

from __future__ import annotations

import itertools
import json
import os
import shutil
import tempfile
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from msformat.dtypes import DType
from msformat.errors import FormatError, StoreError
from msformat.journal import read_journal
from msformat.layout import UnitLocation, find_units
from msformat.reader import open_dump
from msformat.recover import recover_unit
from msformat.replay import replay
from msformat.stores.base import Store, StoreOptions
from msformat.stores.registry import open_store
from msformat.unit import Unit
from msformat.writer import DumpWriter
from tests.crash.workload import BACKENDS, HEADER, put, step
from tests.property.disk import WatchedDisk
from tests.small_dumps import run_convert

SEED = 7
SYNC_ENTRIES = 4
EXAMPLES = int(os.environ.get("MSFORMAT_EXAMPLES", "0"))
TARGETS = ("out", "out.h5", "out.zarr")


@dataclass(frozen=True)
class Death:
    """Where somebody dies, and how.

    Attributes
    ----------
    call
        In front of which call that changes files.
    power
        None: the process is killed. A number: the machine is, and which of what was not synced is there all the same.
    target
        What the remains are converted to.
    """

    call: int
    power: int | None
    target: str


@dataclass
class Remains:
    """What a death left.

    Attributes
    ----------
    place
        A copy of the dump.
    promised
        Entries that had to survive.
    """

    place: Path
    death: Death
    promised: dict[str, Any] = field(default_factory=dict)


deaths = st.none() | st.builds(Death, st.integers(0, 24), st.none() | st.integers(0, 3), st.sampled_from(TARGETS))


class WriterMachine(RuleBasedStateMachine):
    """A writer, a reader, and what is known of them."""

    backend = "files"

    def __init__(self) -> None:
        super().__init__()
        self.root = Path(tempfile.mkdtemp())
        self.serial = itertools.count()
        self.number = itertools.count()
        self.begin()

    @initialize(threads=st.integers(0, 1))
    def begin(self, threads: int = 0) -> None:
        """A new unit."""
        self.place = self.root / f"live{next(self.serial)}"
        self.place.mkdir()
        self.disk = WatchedDisk(self.place)
        self.options = StoreOptions(threads=threads)
        self.unit = self.place / "step0" / "rank"
        self.writer = DumpWriter(
            self.unit, HEADER, backend=self.backend, options=self.options, sync_entries=SYNC_ENTRIES
        )
        self.entries: dict[str, Any] = {}
        self.promised: dict[str, Any] = {}
        self.tensors: dict[str, tuple[Any, DType]] = {}
        self.pending: list[tuple[str, Any]] = []
        self.started = False
        self.seen: tuple[Unit, list[str]] | None = None

    # --- what a user does ------------------------------------------------------------------------------------------

    @rule(death=deaths)
    def put_entry(self, death: Death | None) -> None:
        one = step(SEED, next(self.number))
        self.tensors.update(one.tensors)

        def action() -> None:
            for name, (bits, dtype) in one.tensors.items():
                self.writer.put_tensor(name, bits, dtype)
            self.writer.put_entry(one.key, one.value)

        self.record(one.key, one.value, action, death)

    @precondition(lambda self: self.entries)
    @rule(which=st.integers(0, 1 << 20), value=st.one_of(st.integers(), st.floats(), st.text()), death=deaths)
    def put_again(self, which: int, value: Any, death: Death | None) -> None:
        key = list(self.entries)[which % len(self.entries)]
        new = {"type": type(value).__name__, "value": value}
        self.record(key, new, lambda: self.writer.put_entry(key, new), death)

    def record(self, key: str, value: Any, action: Callable[[], None], death: Death | None) -> None:
        self.entries[key] = value
        self.pending.append((key, value))
        self.started = True
        self.act(action, death)
        if len(self.pending) == SYNC_ENTRIES:
            self.promise()

    def promise(self) -> None:
        self.promised, self.pending = dict(self.entries), []

    @rule(death=deaths)
    def commit(self, death: Death | None) -> None:
        self.act(self.writer.commit, death)
        self.promise()

    @rule()
    def put_tensor_without_entry(self) -> None:
        one = step(SEED, 10_000 + next(self.number))
        name, (bits, dtype) = next(iter(one.tensors.items()))
        self.act(lambda: self.writer.put_tensor(name, bits, dtype), None)
        self.started = True

    @rule(threads=st.integers(0, 1), death=deaths)
    def finish(self, threads: int, death: Death | None) -> None:
        self.act(self.writer.finish, death)
        self.promise()
        self.look_again()
        self.check_whole(self.place)
        self.begin(threads)

    @rule(threads=st.integers(0, 1), death=deaths)
    def close(self, threads: int, death: Death | None) -> None:
        self.act(self.writer.close, death)
        self.promise()
        self.check_remains(self.place)
        self.begin(threads)

    # --- what happens to him ---------------------------------------------------------------------------------------

    @precondition(lambda self: self.started and self.options.threads == 0)
    @rule()
    def kill(self) -> None:
        """What a death right now would leave is what is on disk right now."""
        copy = self.root / f"dead{next(self.serial)}"
        shutil.copytree(self.place, copy)
        self.check_remains(copy)
        shutil.rmtree(copy)

    def act(self, action: Callable[[], object], death: Death | None) -> None:
        """Do something; a death in the middle of it is played on a copy of the disk."""
        numbers = itertools.count()
        left: list[Remains] = []

        def before() -> None:
            if death is not None and next(numbers) == death.call:
                left.append(self.leave(death))

        # Threads write on while a copy is made.
        if self.options.threads:
            action()
            return
        with self.disk.watched(before):
            action()
        for remains in left:
            self.check_death(remains)
            shutil.rmtree(remains.place)

    def leave(self, death: Death) -> Remains:
        copy = self.root / f"dead{next(self.serial)}"
        if death.power is None:
            shutil.copytree(self.place, copy)
        else:
            self.disk.cut_power(copy, death.power)
        return Remains(copy, death, dict(self.promised))

    # --- who looks on ----------------------------------------------------------------------------------------------

    @precondition(lambda self: self.started)
    @rule()
    def look(self) -> None:
        """A reader opens what is being written, and keeps it open."""
        unit = open_dump(self.place)[0]
        self.seen = unit, list(unit)
        assert self.seen[1] == list(self.promised)
        self.look_again()

    @precondition(lambda self: self.seen is not None)
    @rule()
    def look_again(self) -> None:
        """What he saw stays as it was, whatever is written meanwhile."""
        if self.seen is None:
            return
        unit, keys = self.seen
        assert list(unit) == keys
        for tensor in unit.tensors():
            try:
                stored = tensor.stored
                found = stored.bits().tobytes()
            except StoreError:
                # HDF5 has no files that one writes and another reads.
                if self.backend != "hdf5":
                    raise
                continue
            assert found == self.wanted(str(tensor.data_name), stored.dtype)

    # --- what must hold --------------------------------------------------------------------------------------------

    def check_remains(self, place: Path) -> None:
        if not self.started:
            assert not any(place.iterdir())
            return
        (location,), _ = find_units(place)
        assert location.journal is not None
        found = read_journal(location.journal)
        assert not found.torn
        assert _spelled(replay(found.records).entries) == _spelled(self.promised)
        with open_dump(place) as dump:
            assert not dump[0].complete
            assert list(dump[0]) == list(self.promised)
        report = recover_unit(location)
        assert (report.state, report.entries, report.missing) == ("recovered", len(self.promised), ())
        self.check_whole(place)

    def check_death(self, remains: Remains) -> None:
        """What was promised is there, and of what came after it a beginning at most."""
        try:
            (location,), _ = find_units(remains.place)
        except (FormatError, StoreError):
            assert not remains.promised
            return
        allowed = self.states_since(remains.promised)
        with open_dump(remains.place) as dump:
            keys = list(dump[0])
        assert keys in [list(state) for state in allowed]
        self.check_converted(remains, keys)
        report = recover_unit(location)
        assert report.state in ("recovered", "complete", "empty"), report
        assert report.missing == ()
        if report.state == "empty":
            assert not remains.promised
            return
        (location,), problems = find_units(remains.place)
        assert not problems
        found = self.check_documents(location)
        assert _spelled(found) in [_spelled(state) for state in allowed]
        assert list(found) == keys
        self.go_on(remains.place)

    def states_since(self, promised: dict[str, Any]) -> list[dict[str, Any]]:
        """What the unit may say: what was promised, and the first few of what was put since."""
        states = [dict(promised)]
        for key, value in self.pending:
            states.append({**states[-1], key: value})
        return states

    def check_converted(self, remains: Remains, keys: list[str]) -> None:
        """What nobody has recovered is converted as it is, and says that it is unfinished."""
        if not keys:
            return
        target = remains.place.with_name(f"{remains.place.name}-{remains.death.target}")
        report = run_convert(remains.place, target)
        assert report.exit_code in (0, 1), report.as_json()
        with open_dump(target) as dump:
            assert list(dump[0]) == keys
            self.check_tensors(dump[0].store, [str(tensor.data_name) for tensor in dump[0].tensors()])
        (shutil.rmtree if target.is_dir() else os.unlink)(target)

    def go_on(self, place: Path) -> None:
        """The next step is written beside what was recovered."""
        one = step(SEED, 20_000)
        with DumpWriter(place / "step1" / "rank", HEADER, backend=self.backend, options=self.options) as writer:
            put(writer, one)
        with open_dump(place) as dump:
            assert [unit.complete for unit in dump] == [True, True]
            assert list(dump[1]) == [one.key]

    def check_whole(self, place: Path) -> None:
        if not self.started:
            assert not any(place.iterdir())
            return
        (location,), problems = find_units(place)
        assert not problems
        assert location.journal is None
        assert _spelled(self.check_documents(location)) == _spelled(self.promised)

    def check_documents(self, location: UnitLocation) -> dict[str, Any]:
        """The entries of a finished unit, all of whose tensors are there."""
        with open_dump(location.location) as dump:
            assert dump[0].complete
            keys = list(dump[0])
        with open_store(location.backend, location.location) as store:
            data: dict[str, Any] = json.loads(bytes(store.get_document("dump.json") or b""))["data"]
            self.check_tensors(store, _named(data))
        assert list(data) == keys
        return data

    def check_tensors(self, store: Store, names: list[str]) -> None:
        for name in names:
            stored = store.get(name)
            assert stored.bits().tobytes() == self.wanted(name, stored.dtype)

    def wanted(self, name: str, dtype: DType) -> bytes:
        """Bits that were put, as a store of that type keeps them."""
        bits, own = self.tensors[name]
        found = own.widen_bfloat16(bits) if dtype.name != own.name else bits
        return bytes(found.tobytes())

    def teardown(self) -> None:
        self.writer.close()
        shutil.rmtree(self.root)


def _spelled(entries: dict[str, Any]) -> str:
    """JSON text compares NaN with NaN and keeps the order."""
    return json.dumps(entries)


def _named(data: dict[str, Any]) -> list[str]:
    records = [record for value in data.values() for slot in ("input_args", "output")
               for record in (value.get(slot) or ())]  # fmt: skip
    return [record["data_name"] for record in records if record is not None]


@pytest.mark.parametrize("backend", BACKENDS)
def test_writer_machine(backend: str) -> None:
    machine = type("Machine", (WriterMachine,), {"backend": backend})
    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=EXAMPLES or 10,
            stateful_step_count=20,
            deadline=None,
            derandomize=not EXAMPLES,
            database=None,
            suppress_health_check=list(HealthCheck),
        ),
    )


def test_a_place_without_a_dump_says_so(tmp_path: Path) -> None:
    """The machine relies on it: an empty run leaves nothing that looks like a dump."""
    with DumpWriter(tmp_path / "step0" / "rank", HEADER):
        pass
    with pytest.raises(FormatError):
        find_units(tmp_path)
