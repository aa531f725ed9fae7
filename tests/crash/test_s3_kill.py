"""Conversions to an S3 server whose worker, or whose whole process, is killed: nothing is lost, nothing done twice.

What a bucket shows is judged by plain fsspec: names and bytes of objects, and uploads in parts that nobody completed.
"""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest

import msformat
import msformat.convert as convert_module
import msformat.convert_remote as remote_module
from msformat.convert import ConvertOptions, ConvertReport, convert
from msformat.errors import FormatError, StoreError
from msformat.verify import verify
from tests.crash.killing import found_done
from tests.crash.s3_killing import CHANGES, COMPLETING, PART_BYTES, KillingAtRequest
from tests.loopback import S3_ENVIRONMENT, served
from tests.small_dumps import tree_bytes, write_unit

Kill = Callable[..., dict[str, Any]]

UNITS = ("step0/rank0", "step1/rank0")
FORMS: dict[str, dict[str, Any]] = {"files": {"to": "files"}, "hdf5": {"to": "hdf5"}, "zarr": {"to": "zarr"}}
SINGLE: dict[str, dict[str, Any]] = {"one.h5": {}, "one.zarr": {}}
# The object that is written last, by form; a unit without it opens in no reader.
LAST = {"files": "{}/dump.json", "hdf5": "{}/dump.h5", "zarr": "{}/dump.zarr/zarr.json", "one.zarr": "{}/zarr.json"}

pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")


@pytest.fixture(scope="module")
def s3() -> Iterator[str]:
    """A bucket of a server in another process, which takes parts smaller than Amazon's 5 MiB."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("S3_UPLOAD_PART_MIN_SIZE", "1024")
        with served("s3") as address:
            for name, value in {**S3_ENVIRONMENT, "AWS_ENDPOINT_URL": address}.items():
                patch.setenv(name, value)
            fsspec.filesystem("s3", skip_instance_cache=True).mkdir("bucket")
            yield "s3://bucket"
            type(fsspec.filesystem("s3")).clear_instance_cache()


@pytest.fixture(scope="module")
def src(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A tensor of several parts, which does not pack, and a small one a unit."""
    root = tmp_path_factory.mktemp("src")
    rng = np.random.default_rng(6)
    for unit in UNITS:
        arrays = [rng.integers(0, 1 << 62, count) for count in (5 * PART_BYTES // 16, 3)]
        write_unit(root / unit, {f"Functional.relu.{n}.forward": array for n, array in enumerate(arrays)})
    return root


@pytest.fixture(scope="module")
def kill(s3: str) -> Iterator[Kill]:
    """Run a conversion that dies at an event; None lets it live."""
    command = [sys.executable, "-W", "ignore", "-m", "tests.crash.s3_killing"]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root) as zygote:
        assert zygote.stdin is not None
        assert zygote.stdout is not None

        def ask(src: Path, dst: str, at: int | str | None, **options: Any) -> dict[str, Any]:
            assert zygote.stdin is not None
            assert zygote.stdout is not None
            zygote.stdin.write(json.dumps({"src": str(src), "dst": dst, "options": options, "at": at}) + "\n")
            zygote.stdin.flush()
            answer: dict[str, Any] = json.loads(zygote.stdout.readline())
            return answer

        yield ask
        zygote.stdin.close()


@pytest.fixture
def changed(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Keys that this process writes, copies or removes, in the server's own terms."""
    import s3fs

    keys: list[str] = []
    call = s3fs.S3FileSystem._call_s3

    async def noted(self: Any, method: str, *arguments: Any, **more: Any) -> Any:
        if method in CHANGES:
            keys.extend([more["Key"]] if "Key" in more else [item["Key"] for item in more["Delete"]["Objects"]])
        return await call(self, method, *arguments, **more)

    monkeypatch.setattr(s3fs.S3FileSystem, "_call_s3", noted)
    return keys


def _objects(url: str) -> dict[str, str]:
    """Names below a URL and the ETags of their content."""
    fs, root = fsspec.core.url_to_fs(url)
    fs.invalidate_cache()
    return {name.removeprefix(root).strip("/"): item["ETag"] for name, item in fs.find(root, detail=True).items()}


def _pending(url: str) -> set[str]:
    """Keys of uploads in parts that nobody completed."""
    fs, root = fsspec.core.url_to_fs(url)
    bucket, _, prefix = root.partition("/")
    uploads = fs.call_s3("list_multipart_uploads", Bucket=bucket).get("Uploads", [])
    return {upload["Key"].removeprefix(prefix).strip("/") for upload in uploads if upload["Key"].startswith(prefix)}


def _finished(name: str, objects: dict[str, str]) -> set[str]:
    """Units that look finished to somebody who knows the format from docs/cluster.md alone."""
    if name == "one.h5":
        return set(UNITS) if "" in objects else set()
    marked = {key.rpartition("/")[0] for key in objects if ".unit.msformat-partial-" in key}
    return {unit for unit in UNITS if LAST[name].format(unit) in objects and unit not in marked}


def _of(unit: str, objects: dict[str, str]) -> set[str]:
    return {key for key in objects if key.startswith(f"{unit}/") or key == ""}


def _check_what_shows(name: str, url: str, src: Path, whole: dict[str, str]) -> set[str]:
    """Nothing half looks finished, to who lists objects and to our reader. The units that are finished."""
    objects = _objects(url)
    done = _finished(name, objects)
    for unit in done:
        assert _of(unit, objects) == _of(unit, whole)
    for key in _pending(url):
        assert key not in objects or objects[key] == whole[key]
    try:
        shown = list(msformat.open(url))
    except (FormatError, StoreError):
        shown = []
    # In a single store readers begin at the root, which comes when all units are there.
    assert {found.key.path for found in shown} <= done
    for found in shown:
        for tensor in found.tensors():
            there = np.load(src / found.key.path / "dump_tensor_data" / str(tensor.data_name))
            assert np.array_equal(tensor.numpy(), there)
    return done


def _is_whole(url: str, src: Path, scratch: Path) -> None:
    assert verify(url).exit_code == 0
    assert convert(url, scratch, ConvertOptions(to="files", verify=False)).exit_code == 0
    assert tree_bytes(scratch) == tree_bytes(src)
    assert not [key for key in _objects(url) if "partial" in key]


def _resumed(name: str, url: str, src: Path, changed: list[str], done: set[str], **options: Any) -> ConvertReport:
    """Go on: what was done is skipped, and no request touches it."""
    before, prefix = _objects(url), url.removeprefix("s3://bucket/")
    changed.clear()
    report = convert(src, url, ConvertOptions(resume=True, **options))
    assert report.exit_code == 0, report.as_json()
    assert {unit.key for unit in report.units if unit.skipped} == done
    touched = {key.removeprefix(prefix).strip("/") for key in changed}
    kept = set().union(*(_of(unit, before) for unit in done))
    assert not touched & kept
    return report


@pytest.mark.parametrize("name", [*FORMS, *SINGLE])
def test_a_killed_process_loses_and_repeats_nothing(
    name: str, s3: str, kill: Kill, src: Path, tmp_path: Path, changed: list[str]
) -> None:
    options = {**FORMS, **SINGLE}[name]
    events = kill(src, f"{s3}/process/whole/{name}", None, **options)["events"]
    whole = _objects(f"{s3}/process/whole/{name}")
    # In the second unit of two; and before anything large is whole.
    late = random.Random(f"s3 {name}").randrange(3 * events // 5, events)
    for number, at in enumerate([late, COMPLETING]):
        url = f"{s3}/process/{number}/{name}"
        assert kill(src, url, at, **options)["killed"]
        if at == COMPLETING:
            assert _pending(url)
        done = _check_what_shows(name, url, src, whole)
        assert done or at == COMPLETING or name == "one.h5"
        _resumed(name, url, src, changed, done, **options)
        _is_whole(url, src, tmp_path / str(number))


@pytest.mark.parametrize(("name", "at"), [("hdf5", COMPLETING), ("files", -1), ("one.zarr", 9)])
def test_a_killed_worker_loses_and_repeats_nothing(
    name: str, at: int | str, s3: str, src: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    url, options = f"{s3}/worker{at}/{name}", {**FORMS, **SINGLE}[name]
    module, work = (remote_module, "_group_unit") if name in SINGLE else (convert_module, "convert_remote_unit")
    killing = KillingAtRequest(module.__name__, work, str(tmp_path), UNITS[1], at)
    with monkeypatch.context() as patch:
        patch.setattr(module, work, killing)
        report = convert(src, url, ConvertOptions(jobs=2, **options))
    assert report.exit_code == 0, report.as_json()
    assert (tmp_path / "death").exists()
    assert [unit.key for unit in report.units] == list(UNITS)
    assert (UNITS[1] in found_done(report, killing.conversions())) == (at == -1)
    if at == COMPLETING:
        assert _pending(url)
    _is_whole(url, src, tmp_path / "back")
