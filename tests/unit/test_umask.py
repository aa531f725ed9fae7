"""Permissions: what is finished follows the umask, what is not is its owner's alone, and the umask itself is let be."""

from __future__ import annotations

import os
import stat
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

import msformat
from capture.kernel.settings import write_settings
from capture.whole import write_aside
from msformat import DumpWriter, dtype_named
from msformat.atomic import atomic_file, is_temporary, make_private, write_atomic
from msformat.cli import main
from msformat.convert import ConvertOptions, convert
from msformat.stores.registry import open_store
from msformat.stores.zarr_shards import FileShard
from tests.crash.workload import BACKENDS, HEADER, put, steps
from tests.small_dumps import write_tree

UMASKS = [0o022, 0o077, 0o002]
TARGETS = {"files": "out", "hdf5": "out", "zarr": "out", "one.h5": "out.h5", "one.zarr": "out.zarr"}
LARGE = np.arange(1 << 20, dtype=np.float32)


@contextmanager
def umask(value: int) -> Iterator[None]:
    before = os.umask(value)
    try:
        yield
    finally:
        assert os.umask(before) == value


def mode(path: Path) -> int:
    return stat.S_IMODE(path.lstat().st_mode)


def check(root: Path, value: int) -> None:
    """Everything below, and itself."""
    found = [root, *root.rglob("*")]
    assert len(found) > 1 or root.is_file()
    for path in found:
        assert mode(path) == (0o777 if path.is_dir() else 0o666) & ~value, path


def check_private(root: Path) -> list[Path]:
    """Temporaries, and what lies in them, are closed to everybody else; the temporaries."""
    found = [path for path in root.rglob("*") if is_temporary(path.name)]
    assert not [path for path in found if mode(path) & 0o077]
    return found


# --- what is finished ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("value", UMASKS, ids=oct)
@pytest.mark.parametrize("end", ["finish", "close", "recover"])
@pytest.mark.parametrize("backend", BACKENDS)
def test_what_a_writer_leaves(tmp_path: Path, backend: str, end: str, value: int) -> None:
    with umask(value):
        writer = DumpWriter(tmp_path / "d/step0/rank", HEADER, backend=backend)
        writer.put_tensor("large.npy", LARGE, dtype_named("float32"))
        for one in steps(1, 9):
            put(writer, one)
        writer.put_problem("something")
        writer.finish() if end == "finish" else writer.close()
        if end == "recover":
            assert main(["recover", str(tmp_path / "d")]) == 0
    check(tmp_path / "d", value)


@pytest.mark.parametrize("value", UMASKS, ids=oct)
@pytest.mark.parametrize("target", TARGETS)
def test_what_a_conversion_leaves(tmp_path: Path, target: str, value: int) -> None:
    source, options = write_tree(tmp_path / "src"), ConvertOptions(to=None if "." in target else target)
    with umask(value):
        assert convert(source, tmp_path / "new/er" / TARGETS[target], options).exit_code == 0
    check(tmp_path / "new", value)


@pytest.mark.parametrize("target", ["files", "one.zarr"])
def test_what_worker_processes_leave(tmp_path: Path, target: str) -> None:
    with umask(0o027):
        assert convert(write_tree(tmp_path / "src"), tmp_path / TARGETS[target], ConvertOptions(jobs=2)).exit_code == 0
    check(tmp_path / TARGETS[target], 0o027)


@pytest.mark.parametrize("target", TARGETS)
def test_what_is_replaced_and_what_is_resumed_follow_the_umask_of_now(tmp_path: Path, target: str) -> None:
    source, place = write_tree(tmp_path / "src"), tmp_path / "place"
    to = None if "." in target else target
    with umask(0o077):
        assert convert(source, place / TARGETS[target], ConvertOptions(to=to)).exit_code == 0
    with umask(0o022):
        assert convert(source, place / TARGETS[target], ConvertOptions(to=to, overwrite=True)).exit_code == 0
    for unit in [place / TARGETS[target]] if to is None else place.glob("out/step*/rank"):
        check(unit, 0o022)
    if target == "one.h5":
        # What a killed run left is its owner's alone.
        left = place / f".{TARGETS[target]}.msformat-partial-0123456789ab"
        os.rename(place / TARGETS[target], left)
        make_private(str(left))
        with umask(0o002):
            assert convert(source, place / TARGETS[target], ConvertOptions(resume=True)).exit_code == 0
        check(place / TARGETS[target], 0o002)


@pytest.mark.parametrize("value", UMASKS, ids=oct)
def test_what_reports_and_comparisons_leave(tmp_path: Path, value: int) -> None:
    source, out = str(write_tree(tmp_path / "src")), tmp_path / "out"
    with umask(value):
        out.mkdir()
        for suffix in (".csv", ".json", ".xlsx", ".html", ".parquet"):
            command = "report" if suffix == ".html" else "diff"
            sides = [source] * (1 if suffix == ".html" else 2)
            assert main([command, *sides, "-o", str(out / f"x{suffix}")]) == 0, suffix
        assert main(["table", source, "--csv", str(out / "t.csv")]) == 0
    assert len(list(out.iterdir())) == 6
    check(out, value)


@pytest.mark.parametrize("value", UMASKS, ids=oct)
def test_what_capture_leaves_beside_dumps(tmp_path: Path, value: int) -> None:
    with umask(value):
        write_settings(tmp_path / "d/step0/kernel_config.json", {"dump": {}})
    check(tmp_path / "d", value)


# --- what is not -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("write", [atomic_file, None], ids=["atomic", "aside"])
def test_a_file_is_private_until_it_is_whole(tmp_path: Path, write: Callable[..., object] | None) -> None:
    def parts() -> Iterator[bytes]:
        yield b"half"
        assert len(check_private(tmp_path)) == 1

    with umask(0o002):
        if write is None:
            os.rename(
                write_aside(tmp_path / "x", lambda stream: [stream.write(part) for part in parts()]), tmp_path / "x"
            )
        else:
            write_atomic(tmp_path / "x", parts())
    assert mode(tmp_path / "x") == 0o664


@pytest.mark.parametrize("target", TARGETS)
def test_a_conversion_is_private_until_it_is_whole(tmp_path: Path, target: str) -> None:
    seen: list[Path] = []
    with umask(0o002):
        report = convert(
            write_tree(tmp_path / "src"),
            tmp_path / "place" / TARGETS[target],
            ConvertOptions(to=None if "." in target else target),
            lambda *_: seen.extend(check_private(tmp_path / "place")),
        )
    assert report.exit_code == 0
    assert seen
    assert not check_private(tmp_path)


def test_a_shard_is_private_until_it_is_whole(tmp_path: Path) -> None:
    with umask(0o002):
        shard = FileShard(str(tmp_path / "0"), 4, range(2), lambda _: None, begin=False)
        shard.add(0, b"first")
        assert len(check_private(tmp_path)) == 1
        shard.add(1, b"last")
    assert [path.name for path in tmp_path.iterdir()] == ["0"]
    assert mode(tmp_path / "0") == 0o664


def test_a_dump_being_written_is_for_others_to_look_at(tmp_path: Path) -> None:
    """Entries and tensors that were promised are no temporaries: who may read the finished dump may read them."""
    with umask(0o002):
        for backend in BACKENDS:
            writer = DumpWriter(tmp_path / backend / "step0/rank", HEADER, backend=backend)
            for one in steps(1, 9):
                put(writer, one)
            writer.commit()
            check(tmp_path / backend, 0o002)
            with msformat.open(tmp_path / backend) as dump:
                assert len(dump[0]) == 9
            writer.finish()
            check(tmp_path / backend, 0o002)


def test_a_file_system_without_modes_is_let_be(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise PermissionError

    monkeypatch.setattr(os, "chmod", refuse)
    monkeypatch.setattr(os, "supports_fd", {*os.supports_fd, refuse})
    write_atomic(tmp_path / "x", b"content")
    with open_store("zarr", str(tmp_path / "d.zarr"), mode="w") as store:
        store.put("large", LARGE, dtype_named("float32"))
    assert (tmp_path / "x").read_bytes() == b"content"
