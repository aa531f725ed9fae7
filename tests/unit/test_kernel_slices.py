"""FFTS+ slices, in automatic mode (a thread each) and manual mode (``_lxsliceN``)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import msformat
from tests import kernel_files as kf
from tests.kernel_files import STAMP, Part

WHOLE = np.arange(6 * 4, dtype=np.float32).reshape(6, 4)


def write_slices(place: Path, axis: int, count: int, *, manual: bool = False, skip: int | None = None) -> None:
    """A file for each slice of an input that is cut along an axis, and of an output that every thread has whole."""
    parts = np.array_split(WHOLE, count, axis)
    ends = np.cumsum([0] + [part.shape[axis] for part in parts])
    whole = [{"lower": 0, "higher": length} for length in WHOLE.shape]
    ranges = [
        [[{"lower": int(ends[at]), "higher": int(ends[at + 1])} if axis == dim else whole[dim] for dim in (0, 1)]]
        for at in range(count)
    ]
    cuts = [count if dim == axis else 1 for dim in (0, 1)]
    said: dict[str, Any] = {
        "threadMode": not manual, "slice_instance_num": count, "inputCutList": [cuts], "outputCutList": [[1, 1]],
        "input_tensor_slice": ranges, "output_tensor_slice": [[whole]] * count,
    }  # fmt: skip
    attr = kf.text(7, kf.text(1, "ffts") + kf.text(2, json.dumps(said)))
    for at, part in enumerate(parts):
        if at == skip:
            continue
        name = f"Relu.net_relu_lxslice{at}.3.5.{STAMP + at}" if manual else f"Relu.net_relu.3.5.{STAMP + at}.4.7.{at}.0"
        given = Part(np.ascontiguousarray(part).tobytes(), kf.FLOAT32, WHOLE.shape, original=part.shape)
        kf.write_dump(place, [given], [Part.of(WHOLE)], name=name, op_name="", extra=attr)


@pytest.mark.parametrize("manual", [False, True])
@pytest.mark.parametrize("axis", [0, 1])
@pytest.mark.parametrize("count", [2, 3, 4])
def test_joined(tmp_path: Path, axis: int, count: int, manual: bool) -> None:
    write_slices(tmp_path / "in", axis, count, manual=manual)
    (unit,) = msformat.open(tmp_path / "in")
    (entry,) = unit.values()
    assert entry.key == f"Relu.net_relu.3.5.{STAMP}"
    np.testing.assert_array_equal(entry.inputs[0].numpy(), WHOLE)
    np.testing.assert_array_equal(entry.outputs[0].numpy(), WHOLE)
    assert entry.inputs[0].meta.extra["slices"] == count
    assert unit.problems == ()
    assert msformat.convert_dump(tmp_path / "in", tmp_path / "out").exit_code == 0


@pytest.mark.parametrize("skip", [0, 1, 2])
def test_a_missing_slice(tmp_path: Path, skip: int) -> None:
    write_slices(tmp_path / "in", 0, 3, skip=skip)
    (unit,) = msformat.open(tmp_path / "in")
    (problem,) = unit.problems
    assert "of 3 slices only 2 are there" in problem
    assert len(unit) == 2
    kept = [at for at in range(3) if at != skip]
    for entry, at in zip(unit.values(), kept, strict=True):
        np.testing.assert_array_equal(entry.inputs[0].numpy(), WHOLE[2 * at : 2 * at + 2])
    assert msformat.convert_dump(tmp_path / "in", tmp_path / "out").exit_code == 1


@pytest.mark.parametrize(
    "said",
    ["{", "[]", "{}", '{"threadMode": 1}', '{"threadMode": 1, "slice_instance_num": 2, "input_tensor_slice": 7}',
     '{"threadMode": 1, "slice_instance_num": -1}', '{"input_tensor_slice": [[[{"lower": 5, "higher": 1}]]]}',
     '{"threadMode": 1, "slice_instance_num": 1, "inputCutList": [["x"]], "input_tensor_slice": [[[{"lower": 0}]]]}'],
)  # fmt: skip
def test_strange_attributes_spoil_nothing(tmp_path: Path, said: str) -> None:
    attr = kf.text(7, kf.text(1, "ffts") + kf.text(2, said))
    kf.write_dump(tmp_path, [Part.of(WHOLE)], name=f"Relu.r.3.5.{STAMP}.4.7.0.0", extra=attr)
    (unit,) = msformat.open(tmp_path)
    (entry,) = unit.values()
    np.testing.assert_array_equal(entry.inputs[0].numpy(), WHOLE)
