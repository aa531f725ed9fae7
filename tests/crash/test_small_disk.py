"""A disk that is really full, a small tmpfs: one error by name, nothing half, and what was promised is there."""

from __future__ import annotations

import contextlib
import io
import os
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from numpy.typing import NDArray

import msformat
from msformat import DumpWriter, StoreError, dtype_named
from msformat.atomic import is_temporary
from msformat.cli import main as command_line
from tests.crash.mounts import mount_small, run_with_mounts
from tests.crash.workload import BACKENDS, HEADER
from tests.small_dumps import tree_bytes, write_tree, write_unit

FLOAT32 = dtype_named("float32")
DISK = 4 << 20
# Of 64 KiB, so that the disk is full in the middle of them.
COUNT = 100
TARGETS = {"files": "out", "hdf5": "out", "zarr": "out", "one.h5": "out.h5", "one.zarr": "out.zarr"}


def values(number: int) -> NDArray[np.float32]:
    """Numbers that no codec makes small."""
    return np.random.default_rng(number).standard_normal(1 << 14, dtype=np.float32)


def key(number: int) -> str:
    return f"x.{number}.debug"


def put(writer: DumpWriter, number: int) -> None:
    name = f"{key(number)}.npy"
    writer.put_tensor(name, values(number), FLOAT32)
    record = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [1 << 14], "data_name": name}
    writer.put_entry(key(number), record)


def with_ballast(place: Path) -> Path:
    """A disk, and a file on it whose removal makes room again."""
    mount_small(place, DISK)
    (place / "ballast").write_bytes(bytes(1 << 20))
    return place / "ballast"


def writing(place: Path, backend: str) -> None:
    ballast = with_ballast(place)
    writer, promised, errors = DumpWriter(place / "d/step0/rank", HEADER, backend=backend, document="debug.json"), 0, []
    for number in range(COUNT):
        try:
            put(writer, number)
            writer.commit()
            promised += 1
        except StoreError as error:
            errors.append(str(error))
    writer.close()
    assert 20 < promised < COUNT
    assert "No space left on device" in errors[0]
    # An entry: once for its tensor, once for itself.
    assert all("cannot be written any more: writing failed" in text for text in errors[1:])
    check_promised(place / "d", promised, complete=False)
    ballast.unlink()
    (report,) = msformat.recover_dump(place / "d").units
    assert report.is_whole, report
    check_promised(place / "d", promised, complete=True)
    assert not [path for path in place.rglob("*") if is_temporary(path.name)]


def check_promised(root: Path, promised: int, *, complete: bool) -> None:
    with msformat.open(root) as dump:
        (unit,) = dump
        assert unit.complete == complete
        assert list(unit) == [key(number) for number in range(promised)]
        for number in range(promised):
            np.testing.assert_array_equal(unit[key(number)].value.numpy(), values(number))


def converting(place: Path, target: str) -> None:
    source = place.with_name("src")
    write_unit(source / "step0/rank", {f"Functional.f.{number}.forward": values(number) for number in range(55)})
    ballast = with_ballast(place)
    options = [] if "." in target else ["--to", target]
    command = ["convert", str(source), str(place / TARGETS[target]), *options]
    code, text = run(command)
    assert (code, len(text.splitlines())) == (2, 1), text
    assert "No space left on device" in text
    assert [path for path in place.rglob("*") if path.is_file()] == [ballast]
    ballast.unlink()
    code, text = run(command)
    assert (code, text) == (0, "")
    with msformat.open(place / TARGETS[target]) as dump:
        np.testing.assert_array_equal(dump[0]["Functional.f.54.forward"].outputs[0].numpy(), values(54))


def run(command: list[str]) -> tuple[int, str]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
        return command_line(command), said.getvalue()


def reporting(place: Path, suffix: str) -> None:
    """What there was under the name of a result stays until there is all of the new one."""
    source = write_tree(place.with_name("src"), count=200)
    mount_small(place, 64 << 10)
    result = place / f"result{suffix}"
    (place / "ballast").write_bytes(os.urandom(48 << 10))
    result.write_bytes(b"the last one")
    command = ["table", str(source), "--csv", str(result)] if suffix == ".csv" else []
    command = command or (
        ["report", str(source), "-o", str(result)]
        if suffix == ".html"
        else ["diff", *[str(source)] * 2, "-o", str(result)]
    )
    code, text = run(command)
    assert (code, len(text.splitlines())) == (2, 1), text
    assert "no space left on device" in text.lower()
    assert tree_bytes(place).keys() == {"ballast", result.name}
    assert result.read_bytes() == b"the last one"


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_small_disk_is_full_while_a_dump_is_written(tmp_path: Path, backend: str) -> None:
    run_with_mounts("tests.crash.test_small_disk", "writing", tmp_path / "disk", backend)


@pytest.mark.parametrize("target", TARGETS)
def test_a_small_disk_is_full_while_converting(tmp_path: Path, target: str) -> None:
    run_with_mounts("tests.crash.test_small_disk", "converting", tmp_path / "disk", target)


@pytest.mark.parametrize("suffix", [".csv", ".html", ".json", ".xlsx"])
def test_a_small_disk_is_full_while_a_result_is_written(tmp_path: Path, suffix: str) -> None:
    run_with_mounts("tests.crash.test_small_disk", "reporting", tmp_path / "disk", suffix)


if __name__ == "__main__":
    WORK: dict[str, Callable[[Path, str], None]] = {
        "writing": writing,
        "converting": converting,
        "reporting": reporting,
    }
    WORK[sys.argv[1]](Path(sys.argv[2]), sys.argv[3])
