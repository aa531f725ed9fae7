"""The HDF5 Group's own h5dump, and plain h5py without plug-ins, read what the store writes."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from msformat.dtypes import dtype_from_numpy, dtype_named
from msformat.stores.registry import open_store

KEY = "Functional.relu.0.forward.output.0.pt"


@pytest.fixture
def h5dump() -> Callable[..., str]:
    """Run h5dump in an environment where no plug-in can be found."""
    program = shutil.which("h5dump")
    if program is None:
        if os.environ.get("CI"):
            pytest.fail("h5dump is missing in CI; install hdf5-tools")
        pytest.skip("h5dump is not installed (hdf5-tools)")

    def run(*arguments: str) -> str:
        environment = {**os.environ, "HDF5_PLUGIN_PRELOAD": "::"}
        return subprocess.run([program, *arguments], env=environment, capture_output=True, text=True, check=True).stdout

    return run


def tensors() -> dict[str, np.ndarray]:
    rng = np.random.default_rng(0)
    return {
        KEY: np.arange(12, dtype=np.float32).reshape(3, 4),
        "big": rng.integers(0, 100, (300, 1000)).astype(np.float32),
        "noise": rng.integers(0, 256, 100_000).astype(np.uint8),
        "scalar": np.array(-3, np.int64),
        "empty": np.zeros((0, 3), np.float16),
        "flags": np.tile([True, False, True], 10_000),
        "complex": np.array([1 + 2j, -3.5j], np.complex64),
    }


@pytest.fixture
def path(tmp_path: Path) -> str:
    location = str(tmp_path / "dump.h5")
    with open_store("hdf5", location, mode="w", group="step0/rank0") as store:
        for key, array in tensors().items():
            store.put(key, array, dtype_from_numpy(array.dtype))
        store.put("same/again", tensors()["big"], dtype_named("float32"))
        store.put("bfloat16", np.array([0x3F80, 0x7FC1], np.uint16), dtype_named("bfloat16"))
        store.put_document("dump.json", b'{"task": "tensor"}')
    return location


def numbers(text: str) -> list[float]:
    """The values of a dataset that h5dump printed without indices."""
    data = re.search(r"DATA \{(.*?)\n\s*\}", text, re.DOTALL)
    assert data is not None
    return [float(part) for part in data[1].replace("\n", " ").split(",")]


def test_h5dump_reads_every_value(path: str, h5dump: Callable[..., str]) -> None:
    for key in (KEY, "big", "noise", "scalar"):
        text = h5dump("-y", "-d", f"/step0/rank0/tensors/{key}", path)
        assert numbers(text) == tensors()[key].reshape(-1).tolist()
    flags = h5dump("-y", "-d", "/step0/rank0/tensors/flags", path)
    assert re.findall("TRUE|FALSE", flags.split("DATA {")[1]) == ["TRUE", "FALSE", "TRUE"] * 10_000
    document = h5dump("-y", "-d", "/step0/rank0/documents/dump.json", path)
    assert bytes(int(value) for value in numbers(document)) == b'{"task": "tensor"}'


def test_h5dump_shows_what_the_file_is(path: str, h5dump: Callable[..., str]) -> None:
    text = h5dump("-p", path)
    assert text.count("DATASET ") == len(tensors()) + 3
    assert f'DATASET "{KEY}"' in text
    # Equal content is stored once: h5dump prints the second name as a link to the first.
    assert re.search(r'DATASET "same%2Fagain" \{\s*HARDLINK "/step0/rank0/tensors/big"', text)
    filters = set(re.findall(r"COMPRESSION (\w+)|PREPROCESSING (\w+)|USER_DEFINED_FILTER", text))
    assert filters == {("DEFLATE", ""), ("", "SHUFFLE")}
    bfloat16 = h5dump("-A", "-d", "/step0/rank0/tensors/bfloat16", path)
    assert "H5T_STD_U16LE" in bfloat16
    assert '"bfloat16"' in bfloat16


def test_the_file_is_of_the_oldest_format(path: str, h5dump: Callable[..., str]) -> None:
    assert "SUPERBLOCK_VERSION 0" in h5dump("-B", "-H", path)


def test_plain_h5py_needs_nothing_of_ours(path: str) -> None:
    code = f"""
import sys, h5py
file = h5py.File({path!r}, "r")
tensors = file["step0/rank0/tensors"]
print(list(tensors)[:3], tensors[{KEY!r}][1].tolist(), tensors["big"] == tensors["same%2Fagain"])
print(tensors["bfloat16"].attrs["dtype"].decode(), bytes(file["step0/rank0/documents/dump.json"][()]).decode())
print([name for name in sys.modules if name.split(".")[0] in ("msformat", "hdf5plugin", "isal")])
"""
    environment = {**os.environ, "HDF5_PLUGIN_PRELOAD": "::"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == [
        f"['{KEY}', 'big', 'noise'] [4.0, 5.0, 6.0, 7.0] True",
        'bfloat16 {"task": "tensor"}',
        "[]",
    ]
