"""URLs as source and destination: memory:// for every rule, a real S3 server on loopback for the whole way."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

import msformat
from msformat.cli import main
from msformat.convert import ConvertOptions, ConvertReport, convert
from msformat.convert_remote import convert_remote_unit
from msformat.errors import FormatError, StoreError
from msformat.filesystem import RemoteFileSystem
from msformat.verify import verify
from tests.loopback import S3_ENVIRONMENT, served
from tests.small_dumps import FORMS, tree_bytes, write_tree, write_unit


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """A bucket of a server in another process; the environment says where it is, as users' environments do."""
    with served("s3") as address, pytest.MonkeyPatch.context() as patch:
        for name, value in {**S3_ENVIRONMENT, "AWS_ENDPOINT_URL": address}.items():
            patch.setenv(name, value)
        fsspec.filesystem("s3", skip_instance_cache=True).mkdir("bucket")
        yield "s3://bucket"
        type(fsspec.filesystem("s3")).clear_instance_cache()


@pytest.fixture
def src(tmp_path: Path) -> Path:
    return write_tree(tmp_path / "src")


def objects(url: str) -> dict[str, bytes]:
    """What a plain fsspec user sees below a URL."""
    fs, root = fsspec.core.url_to_fs(url)
    fs.invalidate_cache()
    return {name.removeprefix(root).strip("/"): fs.cat_file(name) for name in fs.find(root)}


def run(src: Path | str, dst: Path | str, **options: Any) -> ConvertReport:
    report = convert(src, dst, ConvertOptions(**options))
    assert report.exit_code == 0, report.as_json()
    return report


def is_whole(url: str, src: Path, scratch: Path) -> None:
    assert verify(url).exit_code == 0
    run(url, scratch, to="files")
    assert tree_bytes(scratch) == tree_bytes(src)
    assert not [name for name in objects(url) if "partial" in name]


# --- the whole way ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", FORMS)
def test_there_and_back(name: str, memory_url: str, src: Path, tmp_path: Path) -> None:
    url = f"{memory_url}/{name}"
    run(src, url, **FORMS[name])
    is_whole(url, src, tmp_path / "back")
    with pytest.raises(StoreError, match="already exists"):
        run(src, url, **FORMS[name])
    assert all(unit.skipped for unit in run(src, url, resume=True, **FORMS[name]).units)
    assert not any(unit.skipped for unit in run(src, url, overwrite=True, **FORMS[name]).units)
    is_whole(url, src, tmp_path / "again")


@pytest.mark.parametrize("name", ["files", "one.zarr", "one.h5"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_s3(name: str, s3: str, src: Path, tmp_path: Path) -> None:
    url = f"{s3}/{name}"
    run(src, url, **FORMS[name])
    is_whole(url, src, tmp_path / "back")
    table = msformat.open(url).table()
    assert len(table) == 6
    first = msformat.open(url)[0]
    assert np.array_equal(first["Functional.relu.1.forward"].outputs[0].numpy(), np.arange(12.0).reshape(3, 4) + 1)
    if name == "files":
        assert objects(url) == tree_bytes(src)
        run(src, url, overwrite=True)
        is_whole(url, src, tmp_path / "again")


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_s3_by_processes_and_between_urls(s3: str, src: Path, tmp_path: Path) -> None:
    run(src, f"{s3}/by-two", to="zarr", jobs=2)
    run(f"{s3}/by-two", f"{s3}/copy.h5")
    is_whole(f"{s3}/copy.h5", src, tmp_path / "back")


def test_plain_zarr_python_reads_what_was_uploaded(memory_url: str, src: Path, tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr")
    run(src, f"{memory_url}/one.zarr")
    # Its first release reads no objects that are not asked for asynchronously.
    fsspec.filesystem("memory").get(f"{memory_url}/one.zarr", str(tmp_path / "one.zarr"), recursive=True)
    root = zarr.open_group(tmp_path / "one.zarr", mode="r")
    document = json.loads(root["step0/rank/documents/dump.json"][:].tobytes())
    assert document == json.loads((src / "step0/rank/dump.json").read_bytes())


def test_equal_content_travels_once(memory_url: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    entries = {f"Functional.relu.{n}.forward": np.arange(1000, dtype=np.float32) for n in range(4)}
    src = tmp_path / "src"
    write_unit(src / "step0/rank", entries)
    sent: list[str] = []
    write = RemoteFileSystem.write
    monkeypatch.setattr(
        RemoteFileSystem, "write", lambda self, path, data: (sent.append(path), write(self, path, data))[1]
    )
    run(src, f"{memory_url}/files", to="files")
    assert sum(path.endswith(".npy") for path in sent) == 1
    assert objects(f"{memory_url}/files") == tree_bytes(src)


# --- unfinished ------------------------------------------------------------------------------------------------------


class Stop(BaseException):
    """A death that leaves no time to clean up."""


def _dying(monkeypatch: pytest.MonkeyPatch, after: int) -> list[str]:
    """Writes, copies and removals are counted; from the ``after``-th on nothing reaches the store any more."""
    done: list[str] = []

    def limited(name: str) -> Any:
        real = getattr(RemoteFileSystem, name)

        def call(self: RemoteFileSystem, *arguments: Any) -> Any:
            done.append(name)
            if len(done) > after:
                raise Stop
            return real(self, *arguments)

        return call

    for name in ("write", "upload", "copy", "remove"):
        monkeypatch.setattr(RemoteFileSystem, name, limited(name))
    return done


@pytest.mark.parametrize("name", FORMS)
@pytest.mark.parametrize("replacing", [False, True])
def test_nothing_unfinished_looks_finished(
    name: str, replacing: bool, memory_url: str, src: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = write_tree(tmp_path / "old", count=2)
    with monkeypatch.context() as patch:
        calls = len(_run_and_count(patch, src, f"{memory_url}/count/{name}", old if replacing else None, FORMS[name]))
    for after in range(0, calls, max(1, calls // 8)):
        url = f"{memory_url}/{after}/{name}"
        if replacing:
            run(old, url, **FORMS[name])
        with monkeypatch.context() as patch:
            _dying(patch, after)
            with pytest.raises(Stop):
                convert(src, url, ConvertOptions(overwrite=replacing, **FORMS[name]))
        found = _units(url)
        for unit in found:
            # Whole, and one or the other; a tree may have units of both.
            assert len(unit) in ((2, 3) if replacing else (3,)), (after, unit.key)
            assert all(tensor.numpy().shape == (3, 4) for tensor in unit.tensors()), after
        run(src, url, overwrite=replacing, resume=not replacing, **FORMS[name])
        is_whole(url, src, tmp_path / f"back{after}")
        above = objects(f"{memory_url}/{after}")
        assert not [path for path in above if "partial" in path], after


def _run_and_count(patch: pytest.MonkeyPatch, src: Path, url: str, old: Path | None, form: dict[str, Any]) -> list[str]:
    if old is not None:
        run(old, url, **form)
    calls = _dying(patch, 1 << 30)
    run(src, url, overwrite=old is not None, **form)
    return calls


def _units(url: str) -> list[Any]:
    try:
        return list(msformat.open(url))
    except (FormatError, StoreError):
        return []


def test_an_unfinished_unit_is_named(memory_url: str, src: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run(src, f"{memory_url}/d", to="files")
    fsspec.filesystem("memory").pipe_file("/bucket/d/step1/rank/.unit.msformat-partial-0123456789ab", b"x")
    report = verify(f"{memory_url}/d")
    assert report.exit_code == 1
    assert any("conversion is writing here, or died here" in text for text in report.problems)
    assert any("left by an unfinished run" in text for text in report.problems)
    assert [key.path for key in msformat.open(f"{memory_url}/d").units] == ["step0/rank"]
    assert main(["info", f"{memory_url}/d"]) == 1
    assert "died here" in capsys.readouterr().err


def test_who_was_only_thought_dead_does_not_finish(
    memory_url: str, src: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A second worker clears the place while the first is still at it."""
    import msformat.convert_remote as module

    real = module.write_store
    second: list[Any] = []

    def slow(job: Any, *arguments: Any) -> Any:
        report = real(job, *arguments)
        if not second:
            second.append(None)
            second.append(convert_remote_unit(job))
        return report

    monkeypatch.setattr(module, "write_store", slow)
    report = convert(src / "step0/rank", f"{memory_url}/d", ConvertOptions(to="files"))
    assert "took this place over" in report.units[0].problems[0]
    assert second[1].problems == []
    assert verify(f"{memory_url}/d").exit_code == 0


# --- what is refused -------------------------------------------------------------------------------------------------


def test_source_and_destination_in_each_other(memory_url: str, src: Path) -> None:
    run(src, f"{memory_url}/a/b", to="files")
    for there in (  # each below or above the source
        f"{memory_url}/a/b",
        f"{memory_url}/a",
        f"{memory_url}/a/b/step0/rank/x",
        f"{memory_url}/a/b.h5/../b",
    ):
        with pytest.raises((StoreError, FormatError)):
            convert(f"{memory_url}/a/b", there, ConvertOptions(overwrite=True))


def test_memory_is_of_one_process(memory_url: str, src: Path) -> None:
    with pytest.raises(StoreError, match="one process"):
        convert(src, f"{memory_url}/d", ConvertOptions(jobs=2))


def test_strangers_objects_stay(memory_url: str, src: Path) -> None:
    fs = fsspec.filesystem("memory")
    fs.pipe_file("/bucket/d/mine.txt", b"mine")
    with pytest.raises(StoreError, match="already exists"):
        convert(src, f"{memory_url}/d")
    with pytest.raises(StoreError, match="holds no dump"):
        convert(src, f"{memory_url}/d", ConvertOptions(overwrite=True))
    run(src, f"{memory_url}/e", to="files")
    fs.pipe_file("/bucket/e/step0/rank/mine.txt", b"mine")
    run(src, f"{memory_url}/e", to="zarr", overwrite=True)
    assert objects(f"{memory_url}/e")["step0/rank/mine.txt"] == b"mine"
    assert "step0/rank/dump.json" not in objects(f"{memory_url}/e")


def test_a_missing_bucket_is_an_error_in_words(s3: str, src: Path, capfd: pytest.CaptureFixture[str]) -> None:
    assert main(["convert", str(src), "s3://no-such-bucket/d"]) == 2
    err = capfd.readouterr().err
    assert "not converted" in err
    assert "bucket" in err
    assert os.environ["AWS_SECRET_ACCESS_KEY"] not in err
    assert os.environ["AWS_ACCESS_KEY_ID"] not in err
