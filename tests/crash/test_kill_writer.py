"""SIGKILL at seeded points: what the journal promised is there, bit for bit, and recovery finishes the dump."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from msformat.atomic import is_temporary
from msformat.errors import FormatError, StoreError
from msformat.journal import is_live, read_journal
from msformat.layout import UnitLocation, find_units
from msformat.reader import open_dump
from msformat.recover import recover_unit
from msformat.replay import Replayed, replay
from msformat.stores.base import Store
from msformat.stores.registry import open_store
from tests.crash.workload import BACKENDS, Step, steps

COUNT = 24
SEED = 20
BY_CALLS, BY_TEAR, BY_TIME = range(12), range(12, 14), range(14, 20)
ROOT = Path(__file__).parents[2]


class Zygote:
    """The process that forks writers, see :mod:`tests.crash.zygote`."""

    def __init__(self) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.crash.zygote"],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
            env={**os.environ, "OPENBLAS_NUM_THREADS": "1", "PYTHONPATH": str(ROOT)},
        )
        self._undisturbed: dict[str, dict[str, Any]] = {}

    def run(self, **request: Any) -> dict[str, Any]:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.write(json.dumps(request) + "\n")
        self._process.stdin.flush()
        answer: dict[str, Any] = json.loads(self._process.stdout.readline())
        return answer

    def undisturbed(self, backend: str, scratch: Path) -> dict[str, Any]:
        """What a whole run takes."""
        if backend not in self._undisturbed:
            self._undisturbed[backend] = self.run(
                backend=backend, unit=str(scratch / "unit"), progress=str(scratch / "progress"), seed=SEED, count=COUNT,
                how="not", when=0,
            )  # fmt: skip
        return self._undisturbed[backend]

    def close(self) -> None:
        assert self._process.stdin is not None
        assert self._process.stdout is not None
        self._process.stdin.close()
        self._process.wait()
        self._process.stdout.close()


@pytest.fixture(scope="module")
def zygote() -> Iterator[Zygote]:
    made = Zygote()
    yield made
    made.close()


def kill_point(point: int, whole: dict[str, Any]) -> dict[str, Any]:
    random = np.random.default_rng(point)
    if point in BY_CALLS:
        # A stretch of the run each, the first and the last calls among them.
        calls, last = whole["calls"], len(BY_CALLS) - 1
        jitter = int(random.integers(calls // last)) if point not in (0, last) else 0
        return {"how": "calls", "when": min(calls, 1 + point * (calls - 1) // last + jitter)}
    if point in BY_TEAR:
        return {"how": "tear", "when": int(random.integers(2, COUNT // 3))}
    return {"how": "time", "when": float(random.uniform(0.0, 0.7 * whole["seconds"]))}


@pytest.mark.parametrize("point", range(20))
@pytest.mark.parametrize("backend", BACKENDS)
def test_kill(
    zygote: Zygote, backend: str, point: int, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    whole = zygote.undisturbed(backend, tmp_path_factory.mktemp("whole"))
    assert not whole["killed"]
    unit, progress = tmp_path / "step0" / "rank", tmp_path / "progress"
    result = zygote.run(
        backend=backend, unit=str(unit), progress=str(progress), seed=SEED, count=COUNT, **kill_point(point, whole)
    )
    lines = progress.read_text().split() if progress.exists() else []
    finished = "finished" in lines
    assert result["killed"] or finished
    promised = COUNT if finished else int(lines[-1]) if lines else 0
    check_remains(tmp_path, unit, promised, torn=point in BY_TEAR)


@pytest.mark.parametrize("point", BY_CALLS[::2])
@pytest.mark.parametrize("backend", BACKENDS)
def test_kill_without_waiting_for_the_disk(
    zygote: Zygote, backend: str, point: int, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory
) -> None:
    """``durability="process"``: SIGKILL is the death of a process, so nothing that was promised may be lost."""
    kill = kill_point(point, zygote.undisturbed(backend, tmp_path_factory.mktemp("whole")))
    # There are fewer calls without fsync; the last points let it finish.
    unit, progress = tmp_path / "step0" / "rank", tmp_path / "progress"
    zygote.run(
        backend=backend, unit=str(unit), progress=str(progress), seed=SEED, count=COUNT, durability="process", **kill
    )
    lines = progress.read_text().split() if progress.exists() else []
    promised = COUNT if "finished" in lines else int(lines[-1]) if lines else 0
    check_remains(tmp_path, unit, promised, torn=False)


def check_remains(root: Path, unit: Path, promised: int, *, torn: bool) -> None:
    try:
        location = find_units(root)[0][0]
    except FormatError:
        assert promised == 0
        return
    wanted = list(steps(SEED, COUNT))
    if location.journal is not None:
        assert not is_live(location.journal)
        journal = read_journal(location.journal)
        assert journal.torn == torn
        found = replay(journal.records)
        check_entries(found.entries, wanted, promised)
        check_surroundings(found, wanted)
        check_open(root, has_document(location), found)
        if found.entries:
            with open_store(location.backend, location.location) as store:
                check_tensors(store, found.entries, wanted)
    report = recover_unit(location)
    assert report.state in ("recovered", "complete", "empty"), report
    assert report.is_whole
    assert not [path for path in unit.rglob("*") if is_temporary(path.name)]
    assert not (unit / "journal.jsonl").exists()
    if report.state == "empty":
        assert promised == 0
        return
    location = find_units(root)[0][0]
    with open_dump(root) as dump:
        (after,) = dump
        assert after.complete
        check_entries({key: after[key].key for key in after}, wanted, promised, keys_only=True)
        with open_store(location.backend, location.location) as store:
            check_tensors(store, list(after), wanted)
            text = bytes(store.get_document("dump.json") or b"").decode()
    data = json.loads(text)
    assert json.dumps(data, indent=1) == text
    check_entries(data["data"], wanted, promised)


def has_document(location: UnitLocation) -> bool:
    """Whether the death came between the document and the end of the journal."""
    try:
        with open_store(location.backend, location.location) as store:
            return store.get_document("dump.json") is not None
    except StoreError:
        return False


def check_open(root: Path, whole: bool, found: Replayed) -> None:
    """A killed dump opens like a finished one, and says which it is."""
    with open_dump(root) as dump:
        (unit,) = dump
        assert unit.complete == whole
        assert list(unit) == list(found.entries)


def check_entries(found: dict[str, Any], wanted: list[Step], promised: int, *, keys_only: bool = False) -> None:
    """A prefix of what was put, not shorter than what was promised."""
    assert promised <= len(found) <= len(wanted)
    assert list(found) == [one.key for one in wanted[: len(found)]]
    if not keys_only:
        assert json.dumps(list(found.values())) == json.dumps([one.value for one in wanted[: len(found)]])


def check_surroundings(found: Replayed, wanted: list[Step]) -> None:
    known = {one.key: one for one in wanted}
    assert all(known[child].parent == parent for child, parent in found.parents.items())
    assert all(known[key].frames == frames for keys, frames in found.stack_groups for key in keys)


def check_tensors(store: Store, keys: Any, wanted: list[Step]) -> None:
    known = {one.key: one for one in wanted}
    for key in keys:
        for name, (bits, dtype) in known[key].tensors.items():
            stored = store.get(name)
            stored.verify()
            expected = dtype.widen_bfloat16(bits) if stored.dtype.name != dtype.name else bits
            assert stored.bits().tobytes() == expected.tobytes(), name
