"""A conversion killed at any point: nothing half looks whole, and the next run finishes it and cleans up."""

from __future__ import annotations

import json
import random
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from msformat.atomic import is_temporary
from msformat.convert import ConvertOptions, convert
from msformat.convert_unit import disk_usage
from msformat.verify import verify
from tests.small_dumps import tree_bytes, write_tree

Kill = Callable[..., dict[str, Any]]

TARGETS = {"files": "out", "hdf5": "out", "zarr": "out", "one.h5": "out.h5", "one.zarr": "out.zarr"}
KILLS = 8


@pytest.fixture(scope="module")
def kill() -> Iterator[Kill]:
    """Run a conversion that dies in front of its n-th call; None lets it live."""
    command = [sys.executable, "-m", "tests.crash.convert_zygote"]
    root = Path(__file__).parents[2]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=root) as zygote:
        assert zygote.stdin is not None
        assert zygote.stdout is not None

        def ask(src: Path, dst: Path, at: int | None, **options: Any) -> dict[str, Any]:
            assert zygote.stdin is not None
            assert zygote.stdout is not None
            request = {"src": str(src), "dst": str(dst), "options": options, "at": at}
            zygote.stdin.write(json.dumps(request) + "\n")
            zygote.stdin.flush()
            answer: dict[str, Any] = json.loads(zygote.stdout.readline())
            return answer

        yield ask
        zygote.stdin.close()


def _is_unfinished(name: str) -> bool:
    return is_temporary(name) or name.endswith((".msformat-lock", ".msformat-sync"))


def _finished_units(place: Path) -> list[Path]:
    return [
        path
        for path in place.glob("step*/*")
        if path.is_dir() and not _is_unfinished(path.name) and disk_usage(str(path))[1]
    ]


def _same_as(src: Path, dst: Path, scratch: Path) -> bool:
    report = convert(dst, scratch, ConvertOptions(to="files"))
    return report.exit_code == 0 and tree_bytes(scratch) == tree_bytes(src)


@pytest.mark.parametrize("target", TARGETS)
def test_killed_at_any_point(target: str, kill: Kill, tmp_path: Path) -> None:
    src = write_tree(tmp_path / "src", count=6)
    options: dict[str, Any] = {} if "." in target else {"to": target}
    calls = kill(src, tmp_path / "whole" / TARGETS[target], None, **options)["calls"]
    assert calls > 50
    rng = random.Random(f"convert {target}")
    for number, at in enumerate(sorted(rng.sample(range(1, calls), min(KILLS, calls - 1)))):
        place = tmp_path / str(number)
        place.mkdir()
        dst = place / TARGETS[target]
        kill(src, dst, at, **options)
        if "." in target:
            # The name comes last; beside it lie only things that are recognised.
            assert not dst.exists() or _same_as(src, dst, tmp_path / f"check{number}")
            assert all(_is_unfinished(path.name) or path == dst for path in place.iterdir()), at
        else:
            for unit in _finished_units(dst):
                found = verify(unit)
                assert found.exit_code == 0, (at, found.as_json())
                assert found.units[0].tensors == found.units[0].entries == 6
            assert all(_is_unfinished(path.name) or path.name == "rank" for path in dst.glob("step*/*"))
        report = convert(src, dst, ConvertOptions(resume=True, **options))
        assert report.exit_code == 0, (at, report.as_json())
        assert not [path for path in place.rglob("*") if _is_unfinished(path.name)], at
        assert _same_as(src, dst, tmp_path / f"back{number}"), at


@pytest.mark.parametrize("target", ["out", "out.h5", "out.zarr"])
def test_without_resume_the_next_run_starts_afresh(target: str, kill: Kill, tmp_path: Path) -> None:
    src = write_tree(tmp_path / "src")
    calls = kill(src, tmp_path / "whole" / target, None)["calls"]
    place = tmp_path / "place"
    place.mkdir()
    dst = place / target
    # Before the first unit of a tree has its name, a third of the calls is over at most.
    assert kill(src, dst, calls // 4)["killed"]
    assert any(_is_unfinished(path.name) for path in place.rglob("*"))
    assert convert(src, dst).exit_code == 0
    assert not [path for path in place.rglob("*") if _is_unfinished(path.name)]
    assert _same_as(src, dst, tmp_path / "back")


@pytest.mark.parametrize("target", ["files", "hdf5", "one.zarr"])
def test_killed_while_overwriting_loses_nothing_of_strangers(target: str, kill: Kill, tmp_path: Path) -> None:
    src = write_tree(tmp_path / "src", ["step0/rank"], count=4)
    old = write_tree(tmp_path / "old", ["step0/rank"], count=3)
    options: dict[str, Any] = {} if "." in target else {"to": target}
    stranger = "mine.txt" if "." in target else "step0/rank/mine.txt"

    def prepared(place: Path) -> Path:
        place.mkdir()
        dst = place / TARGETS[target]
        assert convert(old, dst, ConvertOptions(**options)).exit_code == 0
        (dst / stranger).write_text("mine")
        return dst

    calls = kill(src, prepared(tmp_path / "whole"), None, overwrite=True, **options)["calls"]
    # The exchange is at the end, so most kills go there.
    rng = random.Random(f"overwrite {target}")
    points = {*range(calls - 20, calls), *rng.sample(range(1, calls), KILLS // 2)}
    for at in sorted(rng.sample(sorted(points), min(KILLS, len(points)))):
        dst = prepared(tmp_path / str(at))
        kill(src, dst, at, overwrite=True, **options)
        assert [path.read_text() for path in (tmp_path / str(at)).rglob("mine.txt")] == ["mine"], at
        report = convert(src, dst, ConvertOptions(overwrite=True, **options))
        assert report.exit_code == 0, (at, report.as_json())
        assert (dst / stranger).read_text() == "mine"
        (dst / stranger).unlink()
        assert not [path for path in (tmp_path / str(at)).rglob("*") if _is_unfinished(path.name)], at
        assert _same_as(src, dst, tmp_path / f"back{at}"), at
