"""Reports on comparing: what people met in compare tools, tried on ``diff``."""

from __future__ import annotations

import csv
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import msformat
from msformat.cli import main
from tests.small_dumps import write_unit

KEY = "Functional.relu.0.forward"


def one(tmp_path: Path, a: Any, b: Any) -> Any:
    """The one tensor of two dumps."""
    for name, array in (("a", a), ("b", b)):
        write_unit(tmp_path / name / "step0" / "rank", {KEY: array})
    (tensor,) = msformat.diff(tmp_path / "a", tmp_path / "b").units[0].tensors
    return tensor


def test_r133_relative_errors_of_zeros_integers_and_narrow_floats(tmp_path: Path) -> None:
    zeros = one(tmp_path / "zeros", np.zeros(3, np.float16), np.array([0, 0, 1], np.float16))
    assert (zeros.metrics.max_rel, zeros.metrics.within_01) == (1.0, pytest.approx(2 / 3))
    bench = one(tmp_path / "bench", np.array([0, 1e-4], np.float16), np.zeros(2, np.float16))
    assert (bench.metrics.max_rel, bench.metrics.rel_l2, bench.verdict) == (0.0, math.inf, "different")
    mixed = one(tmp_path / "mixed", np.array([-128, 127], np.int8), np.array([128.0, 127.0], np.float32))
    assert (mixed.metrics.max_abs, mixed.metrics.max_rel) == (256.0, 2.0)


def test_r134_shapes_come_before_values(tmp_path: Path) -> None:
    for at, (left, right) in enumerate([((), (1,)), ((2, 3), (3, 2))]):
        found = one(tmp_path / str(at), np.ones(left), np.ones(right))
        assert (found.verdict, found.metrics) == ("different", None)
        assert "shape" in found.reasons[0]
    assert one(tmp_path / "empty", np.ones(0), np.ones(0)).verdict == "same"
    assert one(tmp_path / "scalar", np.array(2.0), np.array(2.0)).verdict == "same"


def test_r130_many_entries_are_compared_without_recursion_or_a_thread_that_hangs(tmp_path: Path) -> None:
    """A chain of modules 3,000 deep; the heavy case is measured by hand."""
    entries = {f"Module.{'.'.join('a' * n)}.A.forward.0": np.ones(1, np.float32) for n in range(1, 40)}
    keys = list(entries)
    deep = dict(zip(keys[1:], keys, strict=False))
    chain = {f"Module.m{n}.M.forward.0": f"Module.m{n - 1}.M.forward.0" for n in range(1, 3000)}
    for name in ("a", "b"):
        write_unit(
            tmp_path / name / "step0" / "rank", entries, parents={**deep, **chain, keys[0]: "Module.m2999.M.forward.0"}
        )
    assert msformat.diff(tmp_path / "a", tmp_path / "b", msformat.DiffOptions(threads=2)).exit_code == 0


def test_r132_nan_null_and_nothing_in_a_result(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """NaN is ``NaN``; what one side lacks is ``N/A``."""
    write_unit(tmp_path / "a" / "step0" / "rank", {KEY: np.ones(2), "Functional.abs.0.forward": np.ones(2)})
    write_unit(tmp_path / "b" / "step0" / "rank", {KEY: np.ones(2)})
    main(["diff", str(tmp_path / "a"), str(tmp_path / "b"), "--csv", str(tmp_path / "r.csv"), "--rows", "0"])
    with (tmp_path / "r.csv").open(encoding="utf-8-sig", newline="") as file:
        first, second = csv.DictReader(file)
    assert (first["NPU min"], first["Bench min"]) == ("NaN", "NaN")
    assert (second["NPU min"], second["Bench min"]) == ("NaN", "N/A")


def test_r141_checksums_of_two_algorithms_are_never_compared() -> None:
    from msformat.compare.tensors import same_checksum

    assert same_checksum("0000abcd", "0000ABCD") is True
    assert same_checksum("0000abcd", "0000abce") is False
    assert same_checksum("0000abcd", "0x000000000000abcd") is None
    assert same_checksum("something", "something") is None
