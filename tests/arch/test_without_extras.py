"""What works with the core dependencies alone: torch, h5py, zarr, numcodecs and pandas are made unimportable."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

BLOCK = """
import sys

class Refuse:
    def find_spec(self, name, path=None, target=None):
        if name.split(".")[0] in {blocked!r}:
            raise ModuleNotFoundError("not installed: " + name, name=name)

sys.meta_path.insert(0, Refuse())
"""
ALL_EXTRAS = {
    "torch", "mindspore", "h5py", "zarr", "numcodecs", "isal", "pandas", "pyarrow", "polars", "xarray", "dask",
    "matplotlib", "fsspec", "distributed", "openpyxl", "yaml",
}  # fmt: skip


def run(code: str, *arguments: object, blocked: set[str] = ALL_EXTRAS) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error", "-c", BLOCK.format(blocked=blocked) + code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize("name", ["torch_8.1.0_mix_tensor", "mindspore_8.1.0_mix_tensor", "torch_1.2.2_debug_tensor"])
def test_json_npy_and_pt_are_read_with_the_core_alone(golden: Callable[[str], Path], name: str) -> None:
    done = run(
        """
import msformat
dump = msformat.open(sys.argv[1])
read = 0
for unit in dump:
    assert unit.complete
    for tensor in unit.tensors():
        if tensor.has_data:
            assert tensor.numpy().shape == tensor.shape
            read += 1
print(read)
assert not {"torch", "h5py", "zarr"} & set(sys.modules)
""",
        golden(name),
    )
    assert done.returncode == 0, done.stderr
    files = len(list(golden(name).rglob("dump_tensor_data/*")))
    assert int(done.stdout) == files


def test_pt_is_converted_without_torch(golden: Callable[[str], Path], tmp_path: Path) -> None:
    code = """
from msformat.cli import main
sys.exit(main(["convert", sys.argv[1], sys.argv[2]]))
"""
    source = golden("torch_8.1.0_L0_tensor")
    for target in ("a.h5", "a.zarr"):
        done = run(code, source, tmp_path / target, blocked={"torch", "mindspore", "pandas"})
        assert done.returncode == 0, done.stderr
    done = run(code, tmp_path / "a.h5", tmp_path / "back", blocked={"torch", "zarr", "numcodecs", "isal"})
    assert done.returncode == 0, done.stderr
    original = (source / "step0/rank/dump.json").read_bytes()
    assert (tmp_path / "back/step0/rank/dump.json").read_bytes() == original


@pytest.mark.parametrize(("target", "missing", "extra"), [("a.h5", "h5py", "hdf5"), ("a.zarr", "numcodecs", "zarr")])
def test_a_missing_library_is_named_with_its_extra(
    golden: Callable[[str], Path], tmp_path: Path, target: str, missing: str, extra: str
) -> None:
    code = """
from msformat.cli import main
sys.exit(main(["convert", sys.argv[1], sys.argv[2]]))
"""
    done = run(code, golden("torch_8.1.0_L0_tensor"), tmp_path / target)
    assert done.returncode == 2
    assert f"msformat[{extra}]" in done.stderr
    assert missing in done.stderr
    assert "Traceback" not in done.stderr
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("package", "framework"), [("pytorch", "torch"), ("mindspore", "mindspore")])
def test_a_missing_framework_is_named_with_its_extra(package: str, framework: str) -> None:
    done = run(f"import capture.{package}")
    last = done.stderr.splitlines()[-1]
    assert last.endswith(f"{framework}, which is not installed: pip install 'msformat[{framework}]'")


def test_a_missing_dask_is_named_with_its_extra(golden: Callable[[str], Path]) -> None:
    code = """
from msformat.cli import main
sys.exit(main(["verify", sys.argv[1], "--dask", "tcp://127.0.0.1:8786"]))
"""
    done = run(code, golden("torch_8.1.0_L0_tensor"))
    assert done.returncode == 2
    assert "msformat[dask]" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("url", "missing", "advice"),
    [
        ("memory://dump", "fsspec", "'msformat[remote]'"),
        ("s3://bucket/dump", "fsspec", "'msformat[s3]'"),
        ("s3://bucket/dump", "s3fs", "'msformat[s3]'"),
        ("gs://bucket/dump", "gcsfs", "gcsfs"),
    ],
)
def test_what_a_url_needs_is_named_with_what_brings_all_of_it(url: str, missing: str, advice: str) -> None:
    """No extra has what other object stores need: that is named by itself."""
    code = """
from msformat.cli import main
sys.exit(main(["info", sys.argv[1]]))
"""
    done = run(code, url, blocked={missing})
    assert done.returncode == 2
    assert f"needs {missing}, which is not installed: pip install {advice}\n" in done.stderr
