"""Commands, jobs, URLs and pickles on trees of kernel files."""

from __future__ import annotations

import json
import pickle
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

import msformat
from msformat.cli import main
from tests import kernel_files as kf
from tests.kernel_files import STAMP, Part

IMAGE = np.arange(2 * 5 * 3 * 4, dtype=np.float32).reshape(2, 5, 3, 4)
DEVICE = np.pad(IMAGE, [(0, 0), (0, 11), (0, 0), (0, 0)]).reshape(2, 1, 16, 3, 4).transpose(0, 1, 3, 4, 2)
KEY = f"Conv2D.net_conv.3.7.{STAMP}"


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Two steps of two devices; a convolution each, whose input has the layout of the device."""
    part = Part.of(np.ascontiguousarray(DEVICE), format=kf.NC1HWC0, original=IMAGE.shape)
    for step in (0, 1):
        for device in (0, 1):
            kf.write_dump(tmp_path / f"tree/step{step}/20241201103000/{device}", [part], [Part.of(IMAGE)], name=KEY)
    return tmp_path / "tree"


def _json(capsys: pytest.CaptureFixture[str], *arguments: Any) -> tuple[int, Any]:
    code = main([*map(str, arguments), "--json"])
    return code, json.loads(capsys.readouterr().out)


def test_info_and_ls(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, said = _json(capsys, "info", tree)
    assert code == 0
    assert [(unit["unit"], unit["store"], unit["level"], unit["tensors"]) for unit in said["units"]] == [
        (f"step{step}/rank{device}", "kernel_dump", "L2", 2) for step in (0, 1) for device in (0, 1)
    ]
    code, rows = _json(capsys, "ls", tree, "--steps", "1", "--ranks", "0", "--tensors")
    assert (code, [row["name"] for row in rows]) == (0, [f"{KEY}.input.0.npy", f"{KEY}.output.0.npy"])
    assert [row["shape"] for row in rows] == ["2x5x3x4"] * 2


def test_show_in_either_layout(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    arguments = ("show", tree, f"{KEY}.input.0.npy", "--steps", "0", "--ranks", "0")
    code, said = _json(capsys, *arguments)
    assert (code, said["shape"], said["values"]) == (0, [2, 5, 3, 4], IMAGE.reshape(-1)[:64].tolist())
    code, said = _json(capsys, *arguments, "--layout", "device")
    assert (code, said["shape"], said["values"]) == (0, [2, 1, 3, 4, 16], DEVICE.reshape(-1)[:64].tolist())
    assert main(["show", str(tree), KEY, "--steps", "0", "--ranks", "1"]) == 0
    out = capsys.readouterr().out
    assert "kernel.op_type = 'Conv2D' (str)" in out
    assert "kernel.stream_id = 7 (int)" in out


def test_table(tree: Path, tmp_path: Path) -> None:
    assert main(["table", str(tree), "--csv", str(tmp_path / "out.csv")]) == 0
    lines = (tmp_path / "out.csv").read_text().splitlines()
    assert len(lines) == 1 + 8
    assert any("Conv2D" in line and "[2, 5, 3, 4]" in line for line in lines)


@pytest.mark.parametrize("layout", ["framework", "device"])
@pytest.mark.parametrize("to", ["files", "hdf5", "zarr"])
def test_convert(tree: Path, tmp_path: Path, layout: str, to: str) -> None:
    out = tmp_path / "out"
    assert main(["convert", str(tree), str(out), "--to", to, "--jobs", "2", "--quiet", "--layout", layout]) == 0
    for unit in msformat.open(out):
        tensor = unit[KEY].inputs[0]
        np.testing.assert_array_equal(tensor.numpy(), IMAGE if layout == "framework" else DEVICE)
        assert tensor.meta.extra["format"] == "NC1HWC0"
        np.testing.assert_array_equal(unit[KEY].outputs[0].numpy(), IMAGE)
    again = ["convert", str(tree), str(out), "--to", to, "--layout", layout, "--quiet"]
    assert main(again) == 2
    assert main([*again, "--resume"]) == 0


def test_bad_files_are_told_by_the_exit_code(tree: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    place = tree / "step0/20241201103000/0"
    (place / f"Add.cut.1.2.{STAMP}").write_bytes(kf.small_dump()[0][:-3])
    assert main(["info", str(tree)]) == 1
    assert main(["ls", str(tree)]) == 1
    assert main(["convert", str(tree), str(tmp_path / "out"), "--to", "files", "--quiet"]) == 1
    assert f"Add.cut.1.2.{STAMP}: the header announces" in capsys.readouterr().err
    assert len(msformat.open(tmp_path / "out")) == 4
    (place / KEY).write_bytes(b"")
    assert main(["convert", str(place), str(tmp_path / "none"), "--quiet"]) == 2


def test_an_unknown_layout(tree: Path) -> None:
    for call in (lambda: msformat.open(tree, layout="host"), lambda: msformat.ConvertOptions(layout="host")):
        with pytest.raises(msformat.FormatError, match="layout='host': choose one of framework, device"):
            call()


def test_pickled_units(tree: Path) -> None:
    unit = pickle.loads(pickle.dumps(msformat.open(tree)[0, 1]))
    np.testing.assert_array_equal(unit[KEY].inputs[0].numpy(), IMAGE)


def test_kernel_dumps_are_never_written(tree: Path) -> None:
    from msformat.foreign.kernel_dump.store import KernelStore

    with pytest.raises(msformat.StoreError, match="read, never written"):
        KernelStore(str(tree), mode="w")
    store = KernelStore(str(tree))
    with pytest.raises(msformat.StoreError):
        store.put("x", np.ones(2, np.float32), msformat.dtype_named("float32"))
    with pytest.raises(msformat.StoreError):
        store.put_document("dump.json", b"")


def test_a_url(tree: Path) -> None:
    memory = fsspec.filesystem("memory")
    for path in tree.rglob("*"):
        if path.is_file():
            memory.pipe(f"/kernels/{path.relative_to(tree)}", path.read_bytes())
    dump = msformat.open("memory://kernels")
    assert [unit.label for unit in dump] == ["step0/rank0", "step0/rank1", "step1/rank0", "step1/rank1"]
    np.testing.assert_array_equal(dump[1, 1][KEY].inputs[0][0, 1:3], IMAGE[0, 1:3])
