"""A dump of MindSpore goes to HDF5 and Zarr and back byte for byte, and is read where there is no MindSpore."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

import msformat
from tests.capture.mindspore.dumping import captured, units
from tests.capture.mindspore.networks import Training

ROOT = Path(__file__).parents[3]


@pytest.fixture(scope="module")
def dump(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("dump")
    training = Training()
    with captured(path, training.net, level="mix"):
        training.step()
    return path / "dump"


def _tree(path: Path) -> dict[str, bytes]:
    return {str(file.relative_to(path)): file.read_bytes() for file in path.rglob("*") if file.is_file()}


@pytest.mark.parametrize("target", ["there.h5", "there.zarr"])
def test_there_and_back_every_byte_is_the_same(target: str, dump: Path, tmp_path: Path) -> None:
    msformat.convert_dump(dump, tmp_path / target)
    msformat.convert_dump(tmp_path / target, tmp_path / "back")
    before, after = _tree(dump), _tree(tmp_path / "back")
    assert sorted(before) == sorted(after)
    assert [name for name in before if before[name] != after[name]] == []
    assert any(name.endswith("Tensor.to.0.forward.output.0.npy") for name in before)


@pytest.mark.parametrize("storage", ["hdf5", "zarr"])
def test_a_store_that_was_written_directly_exports_the_same_tensors(storage: str, dump: Path, tmp_path: Path) -> None:
    """Also bfloat16: bits in the store, float32 in a file, as msprobe has it."""
    training = Training()
    with captured(tmp_path, training.net, level="mix", storage={"format": storage}):
        training.step()
    msformat.convert_dump(tmp_path / "dump", tmp_path / "files")
    ours, files = (Path(path) / "step0" / "rank" / "dump_tensor_data" for path in (dump, tmp_path / "files"))
    assert sorted(path.name for path in ours.iterdir()) == sorted(path.name for path in files.iterdir())
    for path in ours.iterdir():
        assert (files / path.name).read_bytes() == path.read_bytes(), path.name
    assert np.load(files / "Tensor.to.0.forward.output.0.npy").dtype == np.float32


WITHOUT = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {"mindspore", "torch", "capture"}:
            raise ImportError("not installed: " + name)

sys.meta_path.insert(0, Refuse())
import msformat

dump = msformat.open(sys.argv[1])
read = 0
for tensor in dump[0].tensors():
    assert tensor.numpy().shape == tensor.shape
    read += 1
assert dump[0].header.framework == "mindspore"
assert dump[0]["Cell.conv.Conv2d.forward.0"].parameters["weight"].shape == (2, 1, 3, 3)
assert dump[0].parent("Cell.seq.0.Dense.forward.0") == "Cell.seq.SequentialCell.forward.0"
assert dump[0].stack("Cell.conv.Conv2d.forward.0")
assert msformat.verify_dump(sys.argv[1]).exit_code == 0
print(read)
"""


def test_it_is_read_without_mindspore(dump: Path) -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    done = subprocess.run(
        [sys.executable, "-W", "error", "-c", WITHOUT, str(dump)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) == len(units(dump.parent)[0].files)
