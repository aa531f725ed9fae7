"""Eight conversions into one destination, and conversions whose process is killed while others work for it."""

from __future__ import annotations

import contextlib
import json
import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from msformat.convert import ConvertOptions, convert
from msformat.convert_unit import UnitJob, UnitReport, convert_tree_unit
from msformat.verify import verify
from tests.small_dumps import temporaries, tree_bytes, write_tree

ROOT = Path(__file__).parents[2]
ENVIRONMENT = {**os.environ, "PYTHONPATH": str(ROOT), "OPENBLAS_NUM_THREADS": "1"}
TARGETS = {"files": "out", "hdf5": "out", "zarr": "out", "one.h5": "out.h5", "one.zarr": "out.zarr"}
PROCESSES = 8


def race(source: str, target: str, options: str) -> None:
    """Fork eight conversions, which wait until all are there; print how each ended."""
    import h5py  # noqa: F401
    import numcodecs  # noqa: F401

    convert(source, f"{target}-warm.h5")
    convert(source, f"{target}-warm.zarr")
    start, go = os.pipe()
    children = []
    for number in range(PROCESSES):
        child = os.fork()
        if child == 0:
            os.close(go)
            os.read(start, 1)
            os._exit(_convert(source, target, json.loads(options), Path(f"{target}-said-{number}")))
        children.append(child)
    os.close(start)
    os.close(go)
    print(json.dumps([os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children]))


def _convert(source: str, target: str, options: dict[str, Any], said: Path) -> int:
    try:
        report = convert(source, target, ConvertOptions(resume=True, **options))
    except Exception as error:  # noqa: BLE001 (told to the test, which knows what may come)
        said.write_text(f"{type(error).__name__}: {error}")
        return 3
    said.write_text("; ".join(problem for unit in report.units for problem in unit.problems))
    return report.exit_code


@pytest.mark.parametrize("target", TARGETS)
def test_eight_processes_into_one_destination(tmp_path: Path, target: str) -> None:
    """Who comes late is refused or finds it done; what stands there in the end is whole, and nothing lies beside it."""
    source, place = write_tree(tmp_path / "src", ("step0/rank0", "step0/rank1", "step1/rank0")), tmp_path / "place"
    options: dict[str, Any] = {} if "." in target else {"to": target}
    command = [sys.executable, "-W", "ignore", "-m", "tests.crash.test_many_processes", "race", str(source)]
    place.mkdir()
    done = subprocess.run(
        [*command, str(place / TARGETS[target]), json.dumps(options)],
        cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=True,
    )  # fmt: skip
    codes = json.loads(done.stdout)
    said = [(place / f"{TARGETS[target]}-said-{number}").read_text() for number in range(PROCESSES)]
    for code, text in zip(codes, said, strict=True):
        assert code in (0, 1, 2, 3), said
        assert code == 0 or "another process is converting into it" in text or "already exists" in text, said
    if "." in target:
        assert 0 in codes, said
    destination = place / TARGETS[target]
    assert convert(source, destination, ConvertOptions(resume=True, **options)).exit_code == 0
    assert verify(destination).exit_code == 0
    assert not temporaries(place)
    assert convert(destination, tmp_path / "back", ConvertOptions(to="files")).exit_code == 0
    assert tree_bytes(tmp_path / "back") == tree_bytes(source)


@dataclass(frozen=True)
class Pausing:
    """Stands in the place of ``convert_tree_unit``: a worker that has written its unit waits before it names it.

    Attributes
    ----------
    log
        Where a worker says that it waits.
    gate
        A pipe by name, from which nothing ever comes.
    """

    log: str
    gate: str

    def __call__(self, job: UnitJob, *rest: Any) -> UnitReport:
        import msformat.convert_unit as module

        module.install = self._wait
        return convert_tree_unit(job, *rest)

    def _wait(self, *_: object) -> list[str]:
        with open(self.log, "wb", buffering=0) as log:
            log.write(b".")
        Path(self.gate).open("rb").close()
        raise AssertionError("nobody opens the gate")


def work(source: str, target: str, log: str, gate: str) -> None:
    """Convert with two workers that never come to an end."""
    import msformat.convert as module

    module.convert_tree_unit = Pausing(log, gate)
    convert(source, target, ConvertOptions(jobs=2))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_workers_end_with_the_process_that_they_work_for(tmp_path: Path, number: signal.Signals) -> None:
    """They take away what they had begun; nobody is left who holds a lock or waits for work."""
    source, target = write_tree(tmp_path / "src"), tmp_path / "out"
    log, gate = tmp_path / "log", tmp_path / "gate"
    os.mkfifo(log)
    os.mkfifo(gate)
    command = [sys.executable, "-m", "tests.crash.test_many_processes", "work", *map(str, (source, target, log, gate))]
    with subprocess.Popen(
        command, cwd=ROOT, env=ENVIRONMENT, stderr=subprocess.PIPE, start_new_session=True
    ) as process:
        waiting = b""
        while len(waiting) < 2:
            with log.open("rb") as stream:
                waiting += stream.read()
        assert len(temporaries(target)) >= 2
        process.send_signal(number)
        try:
            # The end of the pipe: everybody who could write into it is gone, the workers, too.
            _, said = process.communicate(timeout=90)
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == -number
    assert b"AssertionError" not in said
    assert not [path for path in target.rglob("*") if path.is_file() and not path.name.endswith("-lock")]
    assert convert(source, target, ConvertOptions(resume=True)).exit_code == 0
    assert tree_bytes(target) == tree_bytes(source)


if __name__ == "__main__":
    {"race": race, "work": work}[sys.argv[1]](*sys.argv[2:])
