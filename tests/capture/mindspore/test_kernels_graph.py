"""Level L2 in static graphs, for real: MindSpore on a CPU dumps its kernels, and what is read of them is what ran."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import msformat
from tests.capture.mindspore.kernel_training import Net, value

ROOT = Path(__file__).resolve().parents[3]
RELU, MATMUL = "ReLU.Default_relu-ReLU_ReLU-op0", "MatMul."


class Run:
    """What a program did, and what was dumped of it."""

    def __init__(self, path: Path, *, steps: int = 3, keys: Any = None, **wanted: Any) -> None:
        self.dump = path / "dump"
        keys = {"task": "tensor", "dump_path": str(self.dump), "level": "L2", **(keys or {})}
        (path / "config.json").write_text(json.dumps(keys))
        wanted = {"mode": "graph", "steps": steps, "config": str(path / "config.json"), **wanted}
        done = subprocess.run(
            [sys.executable, "-m", "tests.capture.mindspore.kernel_training", json.dumps(wanted)],
            cwd=ROOT,
            env={name: text for name, text in os.environ.items() if "DUMP" not in name},
            capture_output=True,
            text=True,
            timeout=600,
            check=False,
        )
        assert done.returncode == 0, done.stderr[-3000:]
        self.said = [line.removeprefix("LOG ") for line in done.stderr.splitlines() if line.startswith("LOG ")]
        self.result = json.loads(done.stdout.rpartition("RESULT ")[2])

    def inputs(self, step: int) -> list[Any]:
        """What the program gave its network in a step."""
        return [np.array(given, np.float32) for number, given, _ in self.result["calls"] if number == step]

    def outputs(self, step: int) -> list[Any]:
        """What it got."""
        return [np.array(made, np.float32) for number, _, made in self.result["calls"] if number == step]

    def kernels(self, step: int, name: str) -> list[Any]:
        """Entries of a kernel, in order."""
        unit = msformat.open(self.dump)[step]
        return [unit[key] for key in unit if key.startswith(name)]

    def check_values(self, step: int) -> None:
        """Kernels of a step have the bits that the program had."""
        first, last = self.kernels(step, MATMUL), self.kernels(step, RELU)
        assert len(first) == len(last) == len(self.inputs(step)) > 0
        for kernel, given in zip(first, self.inputs(step), strict=True):
            np.testing.assert_array_equal(kernel.inputs[0].numpy(), given, strict=True)
            np.testing.assert_array_equal(kernel.inputs[1].numpy(), Net().w.asnumpy(), strict=True)
        for kernel, made in zip(last, self.outputs(step), strict=True):
            np.testing.assert_array_equal(kernel.outputs[0].numpy(), made, strict=True)
            np.testing.assert_array_equal(np.maximum(kernel.inputs[0].numpy(), 0), made, strict=True)


def folder(tmp_path: Path) -> Path:
    """A place whose name MindSpore takes: names of tests have brackets."""
    made = tmp_path / "run"
    made.mkdir()
    return made


def steps_of(dump: Path) -> list[int | None]:
    return [unit.key.step for unit in msformat.open(dump)]


def test_kernels_are_read_with_the_values_of_the_network(tmp_path: Path) -> None:
    run = Run(folder(tmp_path), keys={"step": [0, 2]}, steps=4, calls=2)
    assert steps_of(run.dump) == [0, 2]
    for step in (0, 2):
        run.check_values(step)
        types = {key.partition(".")[0] for key in msformat.open(run.dump)[step]}
        assert types == {"ReLU", "Sub", "MatMul", "Parameter"}
    settings = json.loads((run.dump / "kernel_kbyk_dump.json").read_text())
    assert settings["common_dump_settings"]["iteration"] == "0|2"
    assert run.result["during"] == str(run.dump / "kernel_kbyk_dump.json")
    assert run.result["after"] is None


def test_nothing_is_dumped_outside_of_start_and_stop(tmp_path: Path) -> None:
    """On a CPU nobody asks the runtime's own switch, so calls outside would be in the dump."""
    run = Run(folder(tmp_path))
    assert steps_of(run.dump) == [0, 1, 2]
    outside = [value(number) for number in (101, 102, 200, 201, 202)]
    for step in range(3):
        run.check_values(step)
        for kernel in run.kernels(step, MATMUL):
            assert not any(np.array_equal(kernel.inputs[0].numpy(), other) for other in outside)


@pytest.mark.parametrize(
    ("backend", "kernels"), [("files", "convert"), ("hdf5", "convert"), ("zarr", "convert"), ("hdf5", "move")]
)
def test_kernels_go_into_the_store(tmp_path: Path, backend: str, kernels: str) -> None:
    run = Run(folder(tmp_path), keys={"storage": {"format": backend, "kernels": kernels}})
    dump = msformat.open(run.dump)
    assert [unit.key.path for unit in dump] == ["step0/rank", "step1/rank", "step2/rank"]
    assert {unit.backend for unit in dump} == {backend}
    assert not dump.problems
    for step in range(3):
        run.check_values(step)
    assert msformat.verify_dump(run.dump).exit_code == 0
    originals = list((run.dump / "rank_0").rglob("*.npy"))
    assert bool(originals) == (kernels == "convert")
    for original in originals:
        plain = np.load(original)
        unit = dump[int(original.parent.name)]
        np.testing.assert_array_equal(unit.tensor(original.name).numpy(), plain, strict=True)


@pytest.mark.parametrize(
    ("listed", "types"),
    [(["ReLU"], {"ReLU"}), (["name-regex(Default/.+)"], {"ReLU", "Sub"})],
)
def test_kernels_are_chosen(tmp_path: Path, listed: list[str], types: set[str]) -> None:
    run = Run(folder(tmp_path), steps=1, keys={"tensor": {"list": listed}})
    unit = msformat.open(run.dump)[0]
    assert {key.partition(".")[0] for key in unit} == types


@pytest.mark.parametrize(("mode", "has_inputs", "has_outputs"), [("input", True, False), ("output", False, True)])
def test_sides_are_chosen(tmp_path: Path, mode: str, has_inputs: bool, has_outputs: bool) -> None:
    run = Run(folder(tmp_path), steps=1, keys={"tensor": {"list": ["ReLU"], "data_mode": [mode]}})
    (kernel,) = run.kernels(0, RELU)
    assert (bool(kernel.inputs), bool(kernel.outputs)) == (has_inputs, has_outputs)


def test_a_function_under_jit_is_a_graph(tmp_path: Path) -> None:
    run = Run(folder(tmp_path), mode="pynative", steps=2)
    for step in range(2):
        (kernel,) = run.kernels(step, "ReLU.")
        np.testing.assert_array_equal(kernel.inputs[0].numpy(), run.inputs(step)[0])
        np.testing.assert_array_equal(kernel.outputs[0].numpy(), run.outputs(step)[0])


def test_a_resumed_training_counts_on(tmp_path: Path) -> None:
    run = Run(folder(tmp_path), first=7, steps=2)
    assert steps_of(run.dump) == [7, 8]
    run.check_values(8)


def test_a_graph_compiled_too_early_is_said(tmp_path: Path) -> None:
    run = Run(folder(tmp_path), early=True, steps=1)
    assert any("it was compiled before the first start()" in line for line in run.said)


def test_statistics_on_a_cpu_are_said_to_be_impossible(tmp_path: Path) -> None:
    """MindSpore would refuse the settings while it compiles, and the training with them."""
    run = Run(folder(tmp_path), keys={"task": "statistics"}, steps=2)
    assert len(run.said) == 1
    assert "no kernels are dumped, because on a CPU MindSpore dumps data only, no statistics" in run.said[0]
    assert not run.dump.exists()
    assert len(run.result["calls"]) == 2


def test_another_rank_is_not_armed(tmp_path: Path) -> None:
    run = Run(folder(tmp_path), keys={"rank": [1]}, steps=1)
    assert run.result["during"] is None
    assert not run.dump.exists()


def test_an_earlier_dump_is_in_the_way(tmp_path: Path) -> None:
    place = folder(tmp_path)
    Run(place, steps=1)
    with pytest.raises(AssertionError, match="holds kernels of an earlier run"):
        Run(place, steps=1)
    again = Run(place, steps=1, keys={"storage": {"overwrite": True}})
    again.check_values(0)
