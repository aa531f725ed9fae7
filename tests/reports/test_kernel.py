"""Reports on kernel dumps (level L2)."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import msformat
from tests.kernel_files import STAMP

VALUES = np.arange(6, dtype=np.float32).reshape(2, 3)


@pytest.mark.parametrize("columns", ["Max Value,Min Value,Avg Value,L2 Norm Value", "max,min,mean,l2norm"])
def test_r092_kernel_statistics_of_either_header(tmp_path: Path, columns: str) -> None:
    place = tmp_path / "rank_0/Net/0/0"
    place.mkdir(parents=True)
    head = f"Op Type,Op Name,Task ID,Stream ID,Timestamp,IO,Slot,Data Size,Data Type,Shape,{columns}"
    (place / "statistic.csv").write_text(
        f'{head}\nConv2D,net.conv,0,0,{STAMP},input,0,24,float32,"(2,3)",5,0,2.5,7.5\n'
    )
    (unit,) = msformat.open(tmp_path)
    (row,) = unit.table()
    assert (row.Max, row.Min, row.Mean, row.Norm, row.shape) == (5, 0, 2.5, 7.5, (2, 3))


def test_r092_names_with_dots_are_parsed_from_both_ends(tmp_path: Path) -> None:
    place = tmp_path / "rank_0/Net/0/0"
    place.mkdir(parents=True)
    stem = f"Conv2D.net.layer1.conv.3.7.{STAMP}"
    for slot in ("input.0", "output.0"):
        np.save(place / f"{stem}.{slot}.DefaultFormat.float32.npy", VALUES)
    (unit,) = msformat.open(tmp_path)
    (entry,) = unit.values()
    assert (entry.key, entry.name.class_name, entry.name.path) == (stem, "Conv2D", "net.layer1.conv")
    facts = entry.value["kernel"]
    assert (facts["op_name"].value, facts["task_id"].value, facts["stream_id"].value) == ("net.layer1.conv", 3, 7)
    np.testing.assert_array_equal(entry.inputs[0].numpy(), VALUES)
    np.testing.assert_array_equal(entry.outputs[0].numpy(), VALUES)
