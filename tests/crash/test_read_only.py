"""A place where nothing can be written: dumps there are read as anywhere, and writing is one error by name."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import msformat
from capture.queue import WriteQueue
from capture.sink import UnitSink
from msformat import DumpWriter, StoreError
from msformat.cli import main as command_line
from msformat.convert import ConvertOptions, convert
from msformat.stores.hdf5_paged import PagedFile, side_path
from tests.capture.test_sink import entry
from tests.crash.mounts import mount_read_only, run_with_mounts
from tests.crash.workload import BACKENDS, HEADER, put, steps
from tests.small_dumps import tree_bytes, write_tree

COUNT = 6


def run(*command: object) -> tuple[int, str]:
    with contextlib.redirect_stdout(io.StringIO()), contextlib.redirect_stderr(io.StringIO()) as said:
        return command_line([str(part) for part in command]), said.getvalue()


def unfinished(unit: Path, backend: str) -> None:
    """As a writer leaves it that died; HDF5's in the middle of a sync."""
    with contextlib.suppress(ZeroDivisionError), DumpWriter(unit, HEADER, backend=backend) as writer:
        for one in steps(1, COUNT):
            put(writer, one)
        writer.commit()
        raise ZeroDivisionError


def half_synced(path: Path) -> None:
    """Bring a file to where its side file is all that holds the last sync."""
    apply = PagedFile._apply
    PagedFile._apply = lambda *_: (_ for _ in ()).throw(OSError("died"))  # type: ignore[method-assign]
    try:
        with contextlib.suppress(StoreError), msformat.open_store("hdf5", str(path), mode="a") as store:
            store.put("late", np.ones(3, np.float32), msformat.dtype_named("float32"))
    finally:
        PagedFile._apply = apply  # type: ignore[method-assign]
    assert Path(side_path(str(path))).exists()


def reading(place: Path, backend: str) -> None:
    whole = place / "whole"
    convert(write_tree(place.with_name("src")), whole, ConvertOptions(to=backend))
    unfinished(place / "dead/step0/rank", backend)
    if backend == "hdf5":
        half_synced(place / "dead/step0/rank/dump.h5")
    before = tree_bytes(place)
    mount_read_only(place)
    for command in (("info",), ("ls",), ("table",), ("verify",), ("show", "Functional.relu.1.forward")):
        assert run(command[0], whole, *command[1:]) == (0, ""), command
    assert run("diff", whole, place.with_name("src"))[0] == 0
    with msformat.open(place / "dead") as dump:
        (unit,) = dump
        assert not unit.complete
        assert list(unit) == [one.key for one in steps(1, COUNT)]
        for one in steps(1, COUNT):
            for name, (bits, _) in one.tensors.items():
                assert unit.tensor(name).numpy().size == bits.size
    if backend == "hdf5":
        with msformat.open_store("hdf5", str(place / "dead/step0/rank/dump.h5")) as store:
            assert "late" in store
    code, text = run("recover", place / "dead")
    assert code == 1, text
    assert "ead-only file system" in text
    assert tree_bytes(place) == before


def writing(place: Path, backend: str) -> None:
    source = write_tree(place.with_name("src"))
    place.mkdir()
    mount_read_only(place)
    with (
        pytest.raises(StoreError, match="Read-only file system"),
        DumpWriter(place / "d", HEADER, backend=backend) as to,
    ):
        put(to, next(steps(1, 1)))
    for target in ("out", "out.h5", "out.zarr"):
        code, text = run("convert", source, place / target)
        assert (code, len(text.splitlines())) == (2, 1 if "." in target else 2), text
        assert all("ead-only file system" in line and str(place) in line for line in text.splitlines())
    for command in (("diff", source, source, "-o", place / "x.csv"), ("report", source, "-o", place / "x.html")):
        code, text = run(*command)
        assert (code, len(text.splitlines())) == (2, 1), text
        assert "ead-only file system" in text
    assert list(place.iterdir()) == []
    training(place, backend)


def training(place: Path, backend: str) -> None:
    """It goes on, and is told once."""
    failures: list[str] = []
    queue = WriteQueue(1 << 20)
    sink = UnitSink(
        queue,
        partial(DumpWriter, place / "step0/rank", HEADER, backend=backend),
        on_failure=lambda what, error: failures.append(f"{what}: {error}"),
        md5=False,
    )
    for number in range(5):
        sink.put([entry(f"Torch.op.{number}.forward")])
    sink.finish()
    queue.close()
    (failure,) = failures
    assert "Read-only file system" in failure
    assert queue.waiting_bytes == 0


@pytest.mark.parametrize("backend", BACKENDS)
def test_reading_where_nothing_can_be_written(tmp_path: Path, backend: str) -> None:
    run_with_mounts("tests.crash.test_read_only", "reading", tmp_path / "place", backend)


@pytest.mark.parametrize("backend", BACKENDS)
def test_writing_where_nothing_can_be_written(tmp_path: Path, backend: str) -> None:
    run_with_mounts("tests.crash.test_read_only", "writing", tmp_path / "place", backend)


if __name__ == "__main__":
    WORK: dict[str, Callable[[Path, str], None]] = {"reading": reading, "writing": writing}
    WORK[sys.argv[1]](Path(sys.argv[2]), sys.argv[3])
