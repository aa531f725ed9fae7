"""What tools/scale.py predicts of a step, beside what the same step really takes on disk."""

from __future__ import annotations

from pathlib import Path

import pytest

import msformat
from tools import scale
from tools.llama import LlamaConfig

pytestmark = pytest.mark.timeout(900)
TOLERANCE = 0.1


@pytest.mark.parametrize("level", ["L0", "mix"])
def test_a_plan_is_that_of_the_real_run(tmp_path: Path, level: str) -> None:
    """Entries, names, shapes, types and equal contents, from a model with other sizes."""
    config = LlamaConfig(layers=2, width=96, heads=2, hidden=160, vocabulary=72, tokens=20)
    predicted = scale.skeleton(config, tmp_path / "skeleton", level, "tensor")
    scale.capture(config, tmp_path / "real", level, "tensor", repeats=1)
    unit = msformat.open(tmp_path / "real")[1, None]
    folder = tmp_path / "real" / "step1" / "rank" / "dump_tensor_data"
    real = list(unit.tensors())
    assert predicted.entries == len(unit)
    assert [each.shape for each in predicted.tensors] == [each.meta.shape for each in real]
    assert len(predicted.distinct) == len({path.stat().st_ino for path in folder.iterdir()})
    assert predicted.nbytes == sum(each.stored.nbytes for each in real)
    documents = sum((folder.parent / name).stat().st_size for name in scale.DOCUMENTS)
    assert abs(predicted.documents - documents) < 0.02 * documents


def test_bytes_and_files_are_those_that_are_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    small = LlamaConfig(layers=3, width=48, heads=3, hidden=64, vocabulary=96, tokens=16)
    large = LlamaConfig(layers=1, width=256, heads=4, hidden=704, vocabulary=320, tokens=128)
    trial = LlamaConfig(layers=2, width=192, heads=3, hidden=512, vocabulary=256, tokens=112)
    for name, config in {"SMALL": small, "LARGE": large, "TRIAL": trial}.items():
        monkeypatch.setattr(scale, name, config)
    for row in scale.check(tmp_path, "L0", repeats=1):
        named = dict(zip(("level", "task", "store", "bytes", "written", "off"), row, strict=False))
        assert abs(float(str(named["off"]).split()[0])) < 100 * TOLERANCE, named
        files, real_files, inodes, real_inodes = (int(str(cell)) for cell in row[6:10])
        assert (files, inodes) == (real_files, real_inodes) or (
            row[2] == "zarr" and abs(files - real_files) <= 2 and abs(inodes - real_inodes) <= 3
        ), row
