"""A worker killed while it converts, on this machine and on a cluster: nothing is lost, nothing is done twice."""

from __future__ import annotations

import random
from collections.abc import Iterator
from concurrent.futures import Executor
from pathlib import Path
from typing import Any

import pytest

import msformat.convert as convert_module
from msformat.atomic import is_temporary
from msformat.cluster import cluster_executor
from msformat.convert import ConvertOptions, ConvertReport, convert
from msformat.verify import verify
from tests.crash.killing import Killing, found_done
from tests.loopback import served
from tests.small_dumps import tree_bytes, write_tree

UNITS = ("step0/rank0", "step0/rank1", "step1/rank0", "step1/rank1")
# Where files are touched while a unit of three tensors is converted; -1: all is done, but nobody knows.
POINTS = [-1, *sorted(random.Random("worker").sample(range(2, 45), 3))]


@pytest.fixture
def cluster() -> Iterator[Executor]:
    """A new one each time, which remembers no dead workers."""
    with served("cluster") as address, cluster_executor(address) as executor:
        yield executor


def _convert(src: Path, dst: Path, executor: Executor | None, **options: Any) -> ConvertReport:
    jobs = 1 if executor is not None else 2
    return convert(src, dst, ConvertOptions(jobs=jobs, **options), executor=executor)


def _armed(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, at: int, times: int = 1) -> Killing:
    log = tmp_path / f"log{at}"
    log.mkdir()
    killing = Killing(convert_module.convert_tree_unit, str(log), UNITS[1], at, times)
    monkeypatch.setattr(convert_module, "convert_tree_unit", killing)
    return killing


def _is_whole(src: Path, dst: Path, scratch: Path) -> None:
    assert verify(dst).exit_code == 0
    assert convert(dst, scratch, ConvertOptions(to="files")).exit_code == 0
    assert tree_bytes(scratch) == tree_bytes(src)
    left = [path for path in dst.rglob("*") if is_temporary(path.name) or path.name.endswith("-lock")]
    assert left == []


@pytest.mark.parametrize(
    ("where", "at"), [*(("processes", at) for at in POINTS), *(("cluster", at) for at in POINTS[:2])]
)
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_a_killed_worker_loses_and_repeats_nothing(
    where: str, at: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    src = write_tree(tmp_path / "src", UNITS)
    executor = request.getfixturevalue("cluster") if where == "cluster" else None
    with monkeypatch.context() as patch:
        killing = _armed(patch, tmp_path, at)
        report = _convert(src, tmp_path / "out", executor, to="hdf5")
    assert report.exit_code == 0, report.as_json()
    assert killing.deaths() == 1
    assert [unit.key for unit in report.units] == list(UNITS)
    assert (UNITS[1] in found_done(report, killing.conversions())) == (at < 0)
    _is_whole(src, tmp_path / "out", tmp_path / "back")


@pytest.mark.parametrize("where", ["processes", "cluster"])
@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_a_unit_that_kills_every_worker_is_given_up_alone(
    where: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, request: pytest.FixtureRequest
) -> None:
    src = write_tree(tmp_path / "src", UNITS)
    executor = request.getfixturevalue("cluster") if where == "cluster" else None
    with monkeypatch.context() as patch:
        killing = _armed(patch, tmp_path, at=7, times=100)
        report = _convert(src, tmp_path / "out", executor, to="hdf5")
    assert report.exit_code == 1, report.as_json()
    assert [unit.key for unit in report.units if unit.failed] == [UNITS[1]]
    assert "worker" in report.units[1].problems[0]
    assert killing.deaths() == (4 if executor else 3)
    assert set(killing.conversions().values()) == {1}
    # What was not done is done by --resume, and nothing else.
    again = _convert(src, tmp_path / "out", executor, to="hdf5", resume=True)
    assert again.exit_code == 0, again.as_json()
    assert [unit.key for unit in again.units if not unit.skipped] == [UNITS[1]]
    _is_whole(src, tmp_path / "out", tmp_path / "back")


def test_workers_that_share_one_zarr_group(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The unit is gone on with where its log says it stopped."""
    src = write_tree(tmp_path / "src", UNITS)
    log = tmp_path / "log"
    log.mkdir()
    killing = Killing(convert_module.convert_into, str(log), UNITS[1], 40)
    monkeypatch.setattr(convert_module, "convert_into", killing)
    report = convert(src, tmp_path / "one.zarr", ConvertOptions(jobs=2))
    assert report.exit_code == 0, report.as_json()
    assert killing.deaths() == 1
    _is_whole(src, tmp_path / "one.zarr", tmp_path / "back")


@pytest.mark.parametrize(("at", "times"), [(1, 1), (4, 1), (10, 1), (1, 100)])
def test_groups_that_a_dead_worker_had_half_made(
    at: int, times: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Metadata lies there under a temporary name when the worker dies: of the unit, or of the step that units share."""
    src = write_tree(tmp_path / "src", UNITS)
    log = tmp_path / "log"
    log.mkdir()
    killing = Killing(convert_module.convert_into, str(log), UNITS[2], at, times, calls=frozenset({"fsync"}))
    monkeypatch.setattr(convert_module, "convert_into", killing)
    report = convert(src, tmp_path / "one.zarr", ConvertOptions(jobs=2))
    assert [unit.key for unit in report.units if unit.failed] == ([UNITS[2]] if times > 1 else []), report.as_json()
    checked = verify(tmp_path / "one.zarr")
    assert checked.exit_code == 0, checked.problems
    assert not [path for path in (tmp_path / "one.zarr").rglob("*") if is_temporary(path.name)]
