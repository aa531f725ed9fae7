"""500 captured steps hold no more than 100 did, and a slow disk slows the training instead of filling memory.

In processes of their own, judged by what Linux and the garbage collector count. ``python -m tools.long_run`` is the
same with larger models, more steps and other stores.
"""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tools.long_run import ALLOWED, LARGEST_BATCH

ROOT = Path(__file__).parents[3]
pytestmark = [
    pytest.mark.timeout(900),
    pytest.mark.skipif(not Path("/proc/self/task").exists(), reason="needs /proc"),
]


def long_run(*arguments: object) -> dict[str, Any]:
    command = [sys.executable, "-m", "tools.long_run", "--json", *map(str, arguments)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=800, check=False)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("task", ["statistics", "tensor"])
def test_500_steps_hold_no_more_than_100(task: str) -> None:
    found = long_run("--task", task, "--steps", 500, "--model", "tiny", "--level", "L0", "--every", 20)
    samples, grown = found["samples"], found["growth"]
    assert len(samples) == 25
    assert {name: amount for name, amount in grown.items() if amount > ALLOWED[name]} == {}
    # One object a look: the looks themselves.
    assert samples[-1]["objects"] - samples[5]["objects"] <= 40
    assert {each["descriptors"] for each in samples} == {samples[0]["descriptors"]}
    assert {each["threads"] for each in samples[1:]} == {samples[1]["threads"]}


def test_python_allocates_nothing_that_stays() -> None:
    found = long_run("--task", "tensor", "--steps", 60, "--model", "tiny", "--level", "mix", "--every", 3, "--trace")
    assert found["samples"][0]["traced"] > 0
    # A number for each step, and the looks.
    assert found["growth"]["traced"] < 32 << 10


def test_a_slow_disk_blocks_the_training_at_the_bound() -> None:
    bound, rate = 20 << 20, 80 << 20
    found = long_run("--task", "tensor", "--model", "gpt", "--steps", 3, "--queue", bound, "--disk", rate)
    assert bound > LARGEST_BATCH
    assert found["bytes"] > 10 * bound
    # It was full, and never fuller; most of the writing was waited for by the training.
    assert 0.5 * bound < found["waited"] <= bound
    assert found["training"] > (found["bytes"] - 2 * bound) / rate
    # The rest of what was written was never in memory at once.
    assert found["grown"] < found["bytes"] / 4


def test_statistics_on_a_slow_disk_are_bounded_as_well() -> None:
    bound = 1 << 20
    found = long_run("--task", "statistics", "--steps", 6, "--queue", bound, "--disk", 1 << 20)
    assert 0.3 * bound < found["waited"] <= bound
    assert found["training"] > 0.5
