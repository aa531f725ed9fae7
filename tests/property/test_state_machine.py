"""Any sequence of put, commit, kill, reopen, close and finish, on every store, against a model of two dictionaries."""

from __future__ import annotations

import itertools
import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule

from msformat.errors import FormatError
from msformat.journal import read_journal
from msformat.layout import find_units
from msformat.reader import open_dump
from msformat.recover import recover_unit
from msformat.replay import replay
from msformat.stores.base import StoreOptions
from msformat.stores.registry import open_store
from msformat.writer import DumpWriter
from tests.crash.workload import BACKENDS, HEADER, step

SEED = 7
SYNC_ENTRIES = 4


class WriterMachine(RuleBasedStateMachine):
    """A writer, and what is known of it."""

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
        self.options = StoreOptions(threads=threads)
        self.unit = self.place / "step0" / "rank"
        self.writer = DumpWriter(
            self.unit, HEADER, backend=self.backend, options=self.options, sync_entries=SYNC_ENTRIES
        )
        self.entries: dict[str, Any] = {}
        self.promised: dict[str, Any] = {}
        self.tensors: dict[str, Any] = {}
        self.pending = 0
        self.started = False

    # --- what a user does ------------------------------------------------------------------------------------------

    @rule()
    def put_entry(self) -> None:
        one = step(SEED, next(self.number))
        for name, (bits, dtype) in one.tensors.items():
            self.writer.put_tensor(name, bits, dtype)
            self.tensors[name] = (bits, dtype)
        self.record(one.key, one.value)

    @precondition(lambda self: self.entries)
    @rule(which=st.integers(0, 1 << 20), value=st.one_of(st.integers(), st.floats(), st.text()))
    def put_again(self, which: int, value: Any) -> None:
        key = list(self.entries)[which % len(self.entries)]
        self.record(key, {"type": type(value).__name__, "value": value})

    def record(self, key: str, value: Any) -> None:
        self.writer.put_entry(key, value)
        self.entries[key] = value
        self.started = True
        self.pending += 1
        if self.pending == SYNC_ENTRIES:
            self.promise()

    def promise(self) -> None:
        self.promised, self.pending = dict(self.entries), 0

    @rule()
    def commit(self) -> None:
        self.writer.commit()
        self.promise()

    @rule()
    def put_tensor_without_entry(self) -> None:
        one = step(SEED, 10_000 + next(self.number))
        name, (bits, dtype) = next(iter(one.tensors.items()))
        self.writer.put_tensor(name, bits, dtype)
        self.started = True

    @rule(threads=st.integers(0, 1))
    def finish(self, threads: int) -> None:
        self.writer.finish()
        self.promise()
        self.check_whole(self.place)
        self.begin(threads)

    @rule(threads=st.integers(0, 1))
    def close(self, threads: int) -> None:
        self.writer.close()
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

    # --- what must hold --------------------------------------------------------------------------------------------

    def check_remains(self, place: Path) -> None:
        if not self.started:
            assert not place.exists()
            return
        (location,), _ = find_units(place)
        assert location.journal is not None
        found = read_journal(location.journal)
        assert not found.torn
        assert self.same(replay(found.records).entries)
        with open_dump(place) as dump:
            assert not dump[0].complete
            assert list(dump[0]) == list(self.promised)
        report = recover_unit(location)
        assert (report.state, report.entries, report.missing) == ("recovered", len(self.promised), ())
        self.check_whole(place)

    def check_whole(self, place: Path) -> None:
        if not self.started:
            assert not place.exists()
            return
        (location,), problems = find_units(place)
        assert not problems
        assert location.journal is None
        with open_dump(place) as dump:
            assert dump[0].complete
            assert list(dump[0]) == list(self.promised)
        with open_store(location.backend, location.location) as store:
            document = json.loads(bytes(store.get_document("dump.json") or b""))
            assert self.same(document["data"])
            for name in self.named():
                bits, dtype = self.tensors[name]
                stored = store.get(name)
                wanted = dtype.widen_bfloat16(bits) if stored.dtype.name != dtype.name else bits
                assert stored.bits().tobytes() == wanted.tobytes()

    def same(self, found: dict[str, Any]) -> bool:
        """JSON text compares NaN with NaN and keeps the order."""
        return json.dumps(found) == json.dumps(self.promised)

    def named(self) -> list[str]:
        records = [record for value in self.promised.values() for slot in ("input_args", "output")
                   for record in (value.get(slot) or ())]  # fmt: skip
        return [record["data_name"] for record in records if record is not None]

    def teardown(self) -> None:
        self.writer.close()
        shutil.rmtree(self.root)


@pytest.mark.parametrize("backend", BACKENDS)
def test_writer_machine(backend: str) -> None:
    machine = type("Machine", (WriterMachine,), {"backend": backend})
    from hypothesis.stateful import run_state_machine_as_test

    run_state_machine_as_test(
        machine,
        settings=settings(
            max_examples=10, stateful_step_count=20, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


def test_a_place_without_a_dump_says_so(tmp_path: Path) -> None:
    """The machine relies on it: an empty run leaves nothing that looks like a dump."""
    with DumpWriter(tmp_path / "step0" / "rank", HEADER):
        pass
    with pytest.raises(FormatError):
        find_units(tmp_path)
