"""What capture records of the suite is what msprobe 8.1.0 records: names, order, tree, values (``make test-peer``).

Both train the same models with the same torch; every run is done by each once, then compared.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections import Counter
from pathlib import Path

import pytest

from tests.peer import peer_faults
from tests.peer.capture_compare import Unit, differences, load
from tests.peer.capture_models import SUITE
from tests.peer.run_capture import STEPS

pytestmark = [pytest.mark.peer, pytest.mark.timeout(900)]

ROOT = Path(__file__).resolve().parent.parent.parent
WAYS = ("mix-tensor-statistics", "L0-tensor-statistics", "L1-tensor-statistics", "mix-statistics-md5")
SELECTIONS = ("forward", "backward", "input", "output", "parts", "expanded", "interval", "some")
RUNS = [f"{model}-{way}" for way in WAYS for model in SUITE]
RUNS += [f"transformer-mix-statistics-{selection}" for selection in SELECTIONS]
RUNS += [f"transformer-L0-statistics-{selection}" for selection in ("input", "interval")]
RUNS += [f"transformer-L1-statistics-{selection}" for selection in ("backward", "some", "parts")]
RUNS += [f"{model}-mix-structure-statistics" for model in ("cnn", "keywords")]
STEP_NAMES = [f"step{number}" for number in range(STEPS)]


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory, peer_python: str) -> Path:
    """Folder with ``peer`` and ``ours``, each with a dump of every run."""
    root = tmp_path_factory.mktemp("dumps")
    debuggers = {"peer": (peer_python, "msprobe.pytorch"), "ours": (sys.executable, "capture.pytorch")}
    started = []
    for name, (python, debugger) in debuggers.items():
        (root / name).mkdir()
        # As a script: msprobe walks all modules for each frame of runpy that it finds on a stack.
        command = [python, str(Path(__file__).with_name("run_capture.py")), debugger, str(root / name), *RUNS]
        environment = {**os.environ, "PYTHONPATH": str(ROOT)}
        started.append(
            subprocess.Popen(command, env=environment, text=True, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
        )
    for process in started:
        said, _ = process.communicate()
        assert process.returncode == 0, said
    return root


def both(dumps: Path, run: str, step: str) -> tuple[Unit, Unit]:
    """A unit of the peer, without what it recorded of itself, and ours."""
    return peer_faults.without_traces(load(dumps / "peer", run, step)), load(dumps / "ours", run, step)


@pytest.mark.parametrize("run", RUNS)
def test_recorded_as_msprobe_does(dumps: Path, run: str) -> None:
    for step in STEP_NAMES:
        peer, ours = both(dumps, run, step)
        assert peer.data or "structure" in run or (run.startswith("checkpoint-L1") and step == "step1")
        left = [each for each in differences(peer, ours) if not peer_faults.claimed(each, peer, ours, Counter())]
        assert not left, f"{step}: {len(left)} differences\n" + "\n".join(map(str, left[:20]))


def test_every_exclusion_is_needed(dumps: Path) -> None:
    used: Counter[str] = Counter()
    traces: Counter[str] = Counter()
    for run in RUNS:
        whole = load(dumps / "peer", run, "step0")
        peer, ours = both(dumps, run, "step0")
        for api in peer_faults.TRACES:
            traces[api] += sum(key.startswith(f"{api}.") for key in whole.data.keys() - peer.data.keys())
        for each in differences(peer, ours):
            peer_faults.claimed(each, peer, ours, used)
    assert [fault.name for fault in peer_faults.FAULTS if not used[fault.name]] == []
    assert [api for api in peer_faults.TRACES if not traces[api]] == []


def test_calls_of_the_program_are_kept(dumps: Path) -> None:
    """``view_as`` and ``ones_like`` that a model calls itself stay, under the numbers they have without the peer."""
    peer, ours = both(dumps, "branches-mix-tensor-statistics", "step0")
    for unit in (peer, ours):
        for api in peer_faults.TRACES:
            found = [key for key in unit.data if key.startswith(f"{api}.") and key.endswith(".forward")]
            assert found == [f"{api}.{number}.forward" for number in range(3)]
