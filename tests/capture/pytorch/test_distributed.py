"""Communication between two gloo processes: values before and after, waiting, and what is never waited for."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

from tests.capture.pytorch.distributed_workers import GATHERS_FLAT
from tests.judges import torch_is_before

ROOT = Path(__file__).resolve().parents[3]

pytestmark = pytest.mark.skipif(not torch.distributed.is_available(), reason="this PyTorch has no torch.distributed")


@pytest.fixture(scope="module")
def outcomes(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, Any]]:
    """What both processes print; they meet at a file, so that no port has to be free."""
    meeting = tmp_path_factory.mktemp("gloo") / "meeting"
    command = [sys.executable, "-W", "ignore", "-m", "tests.capture.pytorch.distributed_workers"]
    processes = [
        subprocess.Popen(
            [*command, str(rank), str(meeting)], cwd=ROOT, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
        )
        for rank in range(2)
    ]
    try:
        ended = [process.communicate(timeout=200) for process in processes]
    finally:
        for process in processes:
            process.kill()
    for process, (_, errors) in zip(processes, ended, strict=True):
        assert process.returncode == 0, errors
    return [json.loads(output.partition("RESULT")[2]) for output, _ in ended]


@pytest.fixture
def run(outcomes: list[dict[str, Any]]) -> Callable[[str], list[dict[str, Any]]]:
    """Outcome of one case in both processes."""
    return lambda case: [outcome[case] for outcome in outcomes]


def test_collectives_are_recorded_with_what_they_wrote(run: Any) -> None:
    for rank, result in enumerate(run("collectives")):
        flat = ["Distributed.all_gather_into_tensor.0.forward"] if GATHERS_FLAT else []
        assert result["keys"] == [
            "Distributed.all_reduce.0.forward", "Distributed.broadcast.0.forward", "Distributed.all_gather.0.forward",
            *flat, "Distributed.all_reduce.1.forward",
        ]  # fmt: skip
        assert result["inputs"]["Distributed.all_reduce.0.forward"] == [[[rank + 1.0] * 2], {"op": "RedOpType"}]
        assert result["outputs"]["Distributed.all_reduce.0.forward"] == [[3.0, 3.0], "RedOpType"]
        assert result["inputs"]["Distributed.all_gather.0.forward"][0] == [[[0.0, 0.0], [0.0, 0.0]], [3.0, 3.0]]
        assert result["outputs"]["Distributed.all_gather.0.forward"] == [[[3.0, 3.0], [3.0, 3.0]], [3.0, 3.0]]
        for key in flat:
            assert result["outputs"][key] == [[3.0] * 4, [3.0] * 2]
        assert result["x"] == [6.0, 6.0]
        assert result["problems"] == []


def test_an_asynchronous_result_is_recorded_after_wait(run: Any) -> None:
    for rank, result in enumerate(run("asynchronous")):
        assert result["keys"] == ["Distributed.all_reduce.0.forward"]
        assert result["early"] == []
        assert result["inputs"]["Distributed.all_reduce.0.forward"][0] == [[rank + 1.0] * 2]
        assert result["outputs"]["Distributed.all_reduce.0.forward"] == [[3.0, 3.0], "bool"]
        assert result["same"] == [3.0, 3.0]


def test_point_to_point(run: Any) -> None:
    for rank, result in enumerate(run("point_to_point")):
        got = [2.0 - rank] * 2
        first, second = ("send", "recv") if rank == 0 else ("recv", "send")
        assert result["keys"] == [
            f"Distributed.{first}.0.forward", f"Distributed.{second}.0.forward", "Distributed.isend.0.forward",
            "Distributed.irecv.0.forward", "Distributed.batch_isend_irecv.0.forward",
        ]  # fmt: skip
        assert result["outputs"]["Distributed.recv.0.forward"][0] == got
        assert result["inputs"]["Distributed.irecv.0.forward"][1]["tensor"] == [0.0, 0.0]
        assert result["outputs"]["Distributed.irecv.0.forward"][0] == got
        assert "Distributed.batch_isend_irecv.0.forward" in result["outputs"]
        assert result["theirs"] == got
        assert result["problems"] == []


def test_what_is_never_waited_for_is_named_and_let_go_of(run: Any) -> None:
    for result in run("never_waited"):
        assert result["problems"] == [["not waited", "Distributed.all_reduce.0.forward"]]
        assert result["failed"] == ["Distributed.all_reduce.0.forward"]
        assert result["outputs"] == {}
        assert result["gone"] is True


def test_functions_bound_early_go_on_working(run: Any) -> None:
    for rank, result in enumerate(run("early")):
        assert result["x"] == [3.0, 3.0]
        assert result["put_back"] is True
        if torch_is_before("2.2"):  # no mode of PyTorch 2.1 sees torch.distributed
            assert result["keys"] == []
            continue
        third = "irecv" if rank else "isend"
        assert result["keys"] == ["Distributed.all_reduce.0.forward", f"Distributed.{third}.0.forward"]
        assert result["outputs"]["Distributed.all_reduce.0.forward"][0] == [3.0, 3.0]


def test_data_parallel_gradients_are_bitwise_the_same(run: Any) -> None:
    for result in run("data_parallel"):
        assert result["equal"] is True
        assert "Functional.linear.0.forward" in result["keys"]
        assert result["problems"] == []
