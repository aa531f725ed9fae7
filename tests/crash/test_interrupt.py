"""Ctrl-C in the middle of a conversion: one line, no temporaries, whatever the process was doing."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

import numpy as np
import pytest

from msformat.atomic import is_temporary
from msformat.cli import main
from msformat.verify import verify
from tests.small_dumps import write_unit


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Large enough to be hit while it is converted."""
    root = tmp_path_factory.mktemp("interrupt") / "dump"
    rng = np.random.default_rng(0)
    entries = {f"Functional.relu.{n}.forward": rng.random((100, 2000), np.float32) for n in range(30)}
    for unit in ("step0/rank0", "step0/rank1", "step1/rank0", "step1/rank1"):
        write_unit(root / unit, entries)
    return root


def wait_for(place: Path, process: subprocess.Popen[bytes], *, temporary: bool) -> None:
    deadline = time.monotonic() + 30
    while temporary and process.poll() is None and time.monotonic() < deadline:
        if any(is_temporary(path.name) for path in place.rglob("*")):
            return
        time.sleep(0.005)


def is_gone(group: int) -> bool:
    """Workers have ended; Python's own resource tracker needs a moment to see it."""
    deadline = time.monotonic() + 10
    while time.monotonic() < deadline:
        try:
            os.killpg(group, 0)
        except ProcessLookupError:
            return True
        time.sleep(0.01)
    return False


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="no process groups")
@pytest.mark.parametrize("jobs", [1, 2])
@pytest.mark.parametrize("target", ["out", "out.h5", "out.zarr"])
@pytest.mark.parametrize("moment", ["start", "work"])
def test_interrupted(source: Path, tmp_path: Path, target: str, jobs: int, moment: str) -> None:
    arguments = ["convert", str(source), str(tmp_path / target), "--jobs", str(jobs), "--compression", "gzip:9"]
    process = subprocess.Popen(
        [sys.executable, "-m", "msformat", *arguments], stdout=subprocess.PIPE, stderr=subprocess.PIPE,
        start_new_session=True, cwd=Path(__file__).parents[2],
    )  # fmt: skip
    wait_for(tmp_path, process, temporary=True)
    # Workers that are still starting, or that have just begun.
    time.sleep(0.0 if moment == "start" else 0.3)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    # A signal while Python compiles something ends the process by the signal itself, after our line.
    assert process.returncode in (130, -signal.SIGINT, 0), err.decode()
    assert b"Traceback" not in err, err.decode()
    if b"interrupted" not in err:
        # A fast machine was done before; a signal while Python leaves ends the process without a word.
        report = verify(tmp_path / target)
        assert report.exit_code == 0
        assert sum(unit.tensors for unit in report.units) == 120
    assert is_gone(process.pid)
    left = [path for path in tmp_path.rglob("*") if is_temporary(path.name) or path.name.endswith("-lock")]
    assert left == []
    if any(tmp_path.rglob("dump.json")):
        assert verify(tmp_path / target).exit_code == 0


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="no process groups")
@pytest.mark.parametrize("target", ["out.h5", "out.zarr"])
def test_an_interrupted_resume_is_resumed(source: Path, tmp_path: Path, target: str) -> None:
    """Who asked to resume keeps what one file holds so far; the next run goes on with it and cleans up."""
    arguments = ["convert", str(source), str(tmp_path / target), "--compression", "gzip:6", "--resume"]
    command = [sys.executable, "-m", "msformat", *arguments]
    root = Path(__file__).parents[2]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, start_new_session=True, cwd=root)
    wait_for(tmp_path, process, temporary=True)
    time.sleep(0.3)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode in (130, -signal.SIGINT, 0), err.decode()
    kept = any(is_temporary(path.name) for path in tmp_path.iterdir())
    assert kept or process.returncode == 0
    assert not (tmp_path / target).exists() or process.returncode == 0
    done = subprocess.run(command, capture_output=True, cwd=root, check=False)
    assert done.returncode == 0, done.stderr.decode()
    assert [path.name for path in tmp_path.iterdir()] == [target]
    report = verify(tmp_path / target)
    assert report.exit_code == 0
    assert sum(unit.tensors for unit in report.units) == 120


def test_a_lock_that_the_interrupt_broke(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Threading's own clean-up may raise something else on top of it."""

    def broken(*_: object, **__: object) -> None:
        lock = threading.Lock()
        with lock:
            lock.release()
            raise KeyboardInterrupt

    monkeypatch.setattr("msformat.convert.convert", broken)
    assert main(["convert", str(source), str(tmp_path / "out")]) == 130
    assert "interrupted" in capsys.readouterr().err


def test_an_error_of_ours_is_no_interrupt(source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(*_: object, **__: object) -> None:
        threading.Lock().release()

    monkeypatch.setattr("msformat.convert.convert", broken)
    with pytest.raises(RuntimeError, match="release unlocked lock"):
        main(["convert", str(source), str(tmp_path / "out")])
