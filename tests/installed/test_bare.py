"""What a user has after ``pip install msformat`` without an extra, in an environment that ``make test-matrix`` makes.

The interpreter of that environment is started from a folder of its own, so that nothing of the working tree is found.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.arch.test_without_extras import ALL_EXTRAS

pytestmark = pytest.mark.installed
DUMPS = ["torch_8.1.0_mix_tensor", "mindspore_8.1.0_mix_tensor", "torch_1.2.2_debug_tensor", "torch_26.2.0_L0_tensor"]
COMMANDS = ("convert", "info", "ls", "show", "table", "diff", "report", "view", "verify", "recover")


@pytest.fixture(scope="session")
def bare_python() -> Path:
    """The interpreter of the environment without extras."""
    found = os.environ.get("MSFORMAT_BARE_PYTHON")
    if not found:
        pytest.fail("set MSFORMAT_BARE_PYTHON, or run: make test-matrix ROWS='bare-3.10 bare-3.13'")
    return Path(found)


Run = Callable[..., "subprocess.CompletedProcess[str]"]


@pytest.fixture
def python(bare_python: Path, tmp_path: Path) -> Run:
    """Runs code there, warnings being errors."""

    def run(code: str, *arguments: object) -> subprocess.CompletedProcess[str]:
        command = [bare_python, "-W", "error", "-c", code, *map(str, arguments)]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    return run


@pytest.fixture
def msformat(bare_python: Path, tmp_path: Path) -> Run:
    """Runs the command that pip put there."""

    def run(*arguments: object) -> subprocess.CompletedProcess[str]:
        command = [bare_python.with_name("msformat"), *map(str, arguments)]
        return subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)

    return run


def test_the_installed_packages_are_imported_and_no_extra_is_there(python: Run) -> None:
    done = python(
        """
import importlib.util, json, sys, msformat, capture
print(json.dumps([msformat.__file__, capture.__file__, [n for n in sys.argv[1:] if importlib.util.find_spec(n)]]))
""",
        *sorted(ALL_EXTRAS),
    )
    assert done.returncode == 0, done.stderr
    ours, hooks, found = json.loads(done.stdout)
    assert "site-packages" in ours
    assert "site-packages" in hooks
    assert found == []


def test_help(msformat: Run) -> None:
    done = msformat("--help")
    assert done.returncode == 0, done.stderr
    for command in COMMANDS:
        assert command in done.stdout
        asked = msformat(command, "--help")
        assert (asked.returncode, asked.stderr) == (0, "")


def _files(dump: Path) -> dict[Path, Any]:
    """Tensor files by their place in the dump, with numpy's reading of those that it reads."""
    found = [path for path in dump.rglob("dump_tensor_data/*") if path.is_file()]
    return {path.relative_to(dump): np.load(path) if path.suffix == ".npy" else None for path in found}


@pytest.mark.parametrize("name", DUMPS)
def test_a_real_dump_is_read_converted_and_compared(
    golden: Callable[[str], Path], msformat: Run, tmp_path: Path, name: str
) -> None:
    """Files to files, which need no library: documents are the same bytes, tensors the same values."""
    source = golden(name)
    done = msformat("convert", source, tmp_path / "copy", "--tensors", "npy")
    assert done.returncode == 0, done.stderr
    originals, copies = _files(source), _files(tmp_path / "copy")
    assert {path.with_suffix(".npy") for path in originals} == set(copies)
    for path, array in originals.items():
        if path.suffix == ".npy":
            assert np.array_equal(copies[path], array, equal_nan=array.dtype.kind in "fc")
    for path in (*source.rglob("construct.json"), *source.rglob("stack.json")):
        assert (tmp_path / "copy" / path.relative_to(source)).read_bytes() == path.read_bytes()
    for command in (["info"], ["ls"], ["verify"], ["table", "--csv", "table.csv"], ["report", "-o", "page.html"]):
        done = msformat(command[0], tmp_path / "copy", *command[1:])
        assert (done.returncode, done.stderr) == (0, ""), command
    done = msformat("diff", source, tmp_path / "copy", "--exact", "--csv", "diff.csv", "--json")
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize(
    ("arguments", "library", "extra"),
    [
        (("convert", "DUMP", "a.h5"), "h5py", "hdf5"),
        (("convert", "DUMP", "a.zarr"), "numcodecs", "zarr"),
        (("convert", "DUMP", "b", "--dask", "tcp://127.0.0.1:8786"), "distributed", "dask"),
        (("verify", "DUMP", "--dask", "tcp://127.0.0.1:8786"), "distributed", "dask"),
        (("table", "DUMP", "--parquet", "t.parquet"), "pyarrow", "table"),
        (("diff", "DUMP", "DUMP", "-o", "d.xlsx"), "openpyxl", "diff"),
        (("diff", "DUMP", "DUMP", "-o", "d.parquet"), "pyarrow", "diff"),
        (("diff", "DUMP", "DUMP", "--map", "names.yaml"), "yaml", "diff"),
        (("info", "memory://dump"), "fsspec", "remote"),
        (("info", "s3://bucket/dump"), "fsspec", "s3"),
        (("convert", "DUMP", "s3://bucket/dump"), "fsspec", "s3"),
    ],
    ids=lambda value: "-".join(value).translate(str.maketrans("/:", "__")) if isinstance(value, tuple) else value,
)
def test_a_missing_library_is_named_with_its_extra(
    golden: Callable[[str], Path], msformat: Run, tmp_path: Path, arguments: tuple[str, ...], library: str, extra: str
) -> None:
    """In one line, with exit code 2, and nothing is left lying about."""
    (tmp_path / "names.yaml").write_text("a: b\n")
    source = str(golden("torch_8.1.0_L0_tensor"))
    done = msformat(*(source if word == "DUMP" else word for word in arguments))
    assert done.returncode == 2
    assert f"needs {library}, which is not installed: pip install 'msformat[{extra}]'" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    assert [path.name for path in tmp_path.iterdir()] == ["names.yaml"]


@pytest.mark.parametrize(
    ("expression", "library", "extra"),
    [
        ("dump.table().to_pandas()", "pandas", "table"),
        ("dump.table().to_arrow()", "pyarrow", "table"),
        ("dump.table().to_polars()", "polars", "polars"),
        ("dump.to_xarray(tensor.entry.key)", "xarray", "xarray"),
        ("msformat.plot.histogram(tensor)", "matplotlib", "plot"),
        ("tensor.to_torch()", "torch", "torch"),
        ("tensor.to_mindspore()", "mindspore", "mindspore"),
    ],
)
def test_a_missing_library_is_an_error_of_its_own(
    golden: Callable[[str], Path], python: Run, expression: str, library: str, extra: str
) -> None:
    code = f"""
import sys, msformat, msformat.plot
dump = msformat.open(sys.argv[1])
tensor = next(tensor for unit in dump for tensor in unit.tensors() if tensor.has_data)
try:
    {expression}
except msformat.BackendMissingError as error:
    print(error.package, error.extra)
"""
    done = python(code, golden("torch_8.1.0_L0_tensor"))
    assert (done.returncode, done.stdout.split()) == (0, [library, extra]), done.stderr
