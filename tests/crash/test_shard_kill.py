"""SIGKILL inside shards: what was synced is there, and no file has the name of a shard before it is a whole one."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from msformat.dtypes import dtype_named
from msformat.stores.zarr import ZarrStore
from tests.crash.shard_zygote import COUNT, GROUP, tensor

pytest.importorskip("numcodecs")
google_crc32c = pytest.importorskip("google_crc32c")
zarr: Any = pytest.importorskip("zarr")

ROOT = Path(__file__).parents[2]
Ask = Callable[..., dict[str, Any]]
CHUNKS = 3


@pytest.fixture(scope="module")
def ask() -> Iterator[Ask]:
    process = subprocess.Popen(
        [sys.executable, "-m", "tests.crash.shard_zygote"],
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    )

    def asked(**request: Any) -> dict[str, Any]:
        assert process.stdin is not None
        assert process.stdout is not None
        process.stdin.write(json.dumps(request) + "\n")
        process.stdin.flush()
        answer: dict[str, Any] = json.loads(process.stdout.readline())
        return answer

    with process:
        yield asked


@pytest.fixture(scope="module")
def whole(ask: Ask, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What an undisturbed run takes."""
    scratch = tmp_path_factory.mktemp("whole")
    return ask(store=str(scratch / "d.zarr"), progress=str(scratch / "progress"), how="not", when=0)


def check_files(unit: Path) -> None:
    """Each file that has its name holds all its chunks, by its index (read here, not by msformat)."""
    for file in unit.glob("tensors/*/[0-9]*"):
        data = file.read_bytes()
        index = data[-CHUNKS * 16 - 4 : -4]
        assert google_crc32c.value(index) == int.from_bytes(data[-4:], "little"), file
        starts, lengths = np.frombuffer(index, "<u8").reshape(CHUNKS, 2).T
        assert starts.tolist() == [0, *lengths.cumsum()[:-1].tolist()]
        assert lengths.sum() + CHUNKS * 16 + 4 == len(data)


def check_tensors(location: Path, promised: int) -> list[str]:
    with ZarrStore(str(location), group=GROUP) as store:
        keys = list(store.keys())
        assert {f"x{number}" for number in range(promised + 1)} <= set(keys)
        for key in keys:
            store.get(key).verify()
            assert np.array_equal(store.get(key).bits(), tensor(int(key[1:])))
    return keys


@pytest.mark.parametrize(("how", "part"), [*(("calls", part) for part in range(9)), *(("tear", n) for n in range(6))])
def test_a_kill_inside_shards(tmp_path: Path, ask: Ask, whole: dict[str, Any], how: str, part: int) -> None:
    location, progress = tmp_path / "d.zarr", tmp_path / "progress"
    # The calls differ a little from run to run, as threads do; the pieces of shards do not.
    when = 1 + part * (whole["calls"] - 20) // 8 if how == "calls" else 1 + part * (whole["puts"] - 1) // 5
    assert ask(store=str(location), progress=str(progress), how=how, when=when)["killed"]
    lines = progress.read_text().split() if progress.exists() else []
    unit = location / GROUP
    check_files(unit)
    known = check_tensors(location, int(lines[-1]) if lines else -1)
    # Who goes on has rows of its own, and nothing half is left.
    with ZarrStore(str(location), mode="a", group=GROUP) as store:
        for number in range(COUNT):
            if f"x{number}" not in known:
                store.put(f"x{number}", tensor(number), dtype_named("float32"))
    assert len(check_tensors(location, COUNT - 1)) == COUNT
    assert not list(location.rglob("*msformat-partial*"))
    check_files(unit)
    index = json.loads(zarr.open_group(unit, mode="r")["documents/index.json"][:].tobytes())["tensors"]
    place = index["x4"]
    assert np.array_equal(zarr.open_group(unit, mode="r")[place["array"]][place["row"]], tensor(4))


def test_a_kill_while_a_unit_is_made(tmp_path: Path, ask: Ask) -> None:
    """In front of each call of the first hundred: who writes there next leaves nothing half, and loses nothing."""
    for when in range(1, 101):
        location = tmp_path / f"{when}.zarr"
        assert ask(store=str(location), progress=str(tmp_path / "progress"), how="making", when=when)["killed"]
        with ZarrStore(str(location), mode="a", group=GROUP) as store:
            store.put("y", tensor(0), dtype_named("float32"))
        assert not list((location / GROUP).rglob("*msformat-partial*")), when
        with ZarrStore(str(location), group=GROUP) as store:
            assert np.array_equal(store.get("y").bits(), tensor(0))
