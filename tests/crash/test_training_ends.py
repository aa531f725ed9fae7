"""A training that ends in a captured step, by a signal or an exception: all that was there is readable."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

import msformat
from tests.crash.workload import AT_RISK, BACKENDS
from tests.judges import judge

torch = judge("torch")

ROOT = Path(__file__).parents[2]
Train = Callable[..., int]
# How, the status it leaves, and what the unit says of its end; None where the process had no time for a word.
ENDS = {
    "term": (-signal.SIGTERM, None),
    "exit": (143, "the process ended in the middle of step 1"),
    "int": (-signal.SIGINT, "the process ended in the middle of step 1"),
    "raise": (1, "the process ended in the middle of step 1"),
    "backward": (1, "the process ended in the middle of step 1"),
}


@pytest.fixture(scope="module")
def train() -> Iterator[Train]:
    """Runs a training in a fork of a process that has torch already; its exit status."""
    assert torch.nn
    with subprocess.Popen(
        [sys.executable, "-m", "tests.crash.training_zygote"],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True, cwd=ROOT,
        env={**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"},
    ) as zygote:  # fmt: skip
        assert zygote.stdin is not None
        assert zygote.stdout is not None

        def ask(root: Path, backend: str, how: str) -> int:
            assert zygote.stdin is not None
            assert zygote.stdout is not None
            print(json.dumps({"root": str(root), "backend": backend, "how": how}), file=zygote.stdin, flush=True)
            status: int = json.loads(zygote.stdout.readline())["status"]
            return status

        yield ask
        zygote.stdin.close()


@pytest.mark.parametrize("how", ENDS)
@pytest.mark.parametrize("backend", BACKENDS)
def test_a_training_that_ends_in_a_step(tmp_path: Path, train: Train, backend: str, how: str) -> None:
    from tests.crash.training_zygote import FEW, LAYERS, data, model

    layers, ends_at = LAYERS.get(how, FEW)
    status, reason = ENDS[how]
    assert train(tmp_path, backend, how) == status
    with msformat.open(tmp_path / "dump") as dump:
        first, second = dump
        assert first.complete, first.incomplete_reason
        assert not second.complete
        if reason is not None:
            assert reason in str(second.incomplete_reason)
        found = [name for name in second if ".Linear.forward." in name]
        wanted = [f"Module.{number + (number >= ends_at)}.Linear.forward.0" for number in range(layers)]
        if how == "term":
            assert found == wanted[: len(found)]
            assert len(found) >= ends_at - AT_RISK // 2
        else:
            assert found == (wanted if how == "backward" else wanted[:ends_at])
        x = data(how)
        for name, layer in zip(found, model(how), strict=False):
            x = layer(x)
            assert second[name].outputs[0].shape == x.shape
            np.testing.assert_array_equal(second[name].outputs[0].numpy(), x.detach().numpy())
        # The backward came down to the layer behind the one that failed.
        later = [f"Module.{number + 1}.Linear.backward.0" for number in reversed(range(ends_at, layers))]
        backwards = [name for name in second if ".Linear.backward." in name and second[name].inputs]
        assert backwards == (later if how == "backward" else [])
    assert all(unit.is_whole for unit in msformat.recover_dump(tmp_path / "dump").units)
