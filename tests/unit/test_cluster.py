"""--dask on a LocalCluster: the same results as without, and errors in words."""

from __future__ import annotations

import csv
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from msformat.atomic import is_temporary
from msformat.cli import main
from msformat.cluster import cluster_executor
from msformat.errors import StoreError
from tests.loopback import served
from tests.small_dumps import tree_bytes, write_tree

UNITS = ("step0/rank0", "step0/rank1", "step1/rank0", "step1/rank1")
ROOT = Path(__file__).parents[2]
pytestmark = pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")


@pytest.fixture(scope="module")
def address() -> Iterator[str]:
    with served("cluster") as found:
        yield found


@pytest.fixture
def src(tmp_path: Path) -> Path:
    return write_tree(tmp_path / "src", UNITS)


def test_convert_verify_and_table(
    address: str, src: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    # Relative paths: the workers are somewhere else.
    monkeypatch.chdir(tmp_path)
    for target in ("stored", "one.zarr"):
        assert (
            main(["convert", "src", target, "--dask", address, "--json", *(["--to", "zarr"] * (target == "stored"))])
            == 0
        )
        report = json.loads(capsys.readouterr().out)
        assert [unit["key"] for unit in report["units"]] == list(UNITS)
        assert all(unit["verified"] for unit in report["units"])
        assert main(["convert", target, f"back-{target[:3]}", "--to", "files", "--dask", address]) == 0
        assert tree_bytes(tmp_path / f"back-{target[:3]}") == tree_bytes(src)
        capsys.readouterr()
    assert main(["verify", "stored", "--dask", address, "--json"]) == 0
    alone = json.loads(capsys.readouterr().out)
    assert [unit["key"] for unit in alone["units"]] == list(UNITS)
    assert all(unit["digests"] == 3 for unit in alone["units"])
    assert main(["table", "src", "--dask", address, "--ranks", "1", "--csv", "a.csv"]) == 0
    assert main(["table", "src", "--ranks", "1", "--csv", "b.csv"]) == 0
    assert (tmp_path / "a.csv").read_bytes() == (tmp_path / "b.csv").read_bytes()
    assert {row["unit"] for row in csv.DictReader((tmp_path / "a.csv").open())} == {"step0/rank1", "step1/rank1"}


def test_a_bad_unit_is_named_and_the_rest_goes_on(
    address: str, src: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (src / "step0/rank1/dump.json").write_text("{")
    tensor = next((src / "step1/rank0/dump_tensor_data").iterdir())
    tensor.write_bytes(tensor.read_bytes()[:-5])
    assert main(["verify", str(src), "--dask", address]) == 1
    assert tensor.name in capsys.readouterr().err
    assert main(["table", str(src), "--dask", address, "--csv", str(tmp_path / "a.csv")]) == 1
    assert "step0/rank1" in capsys.readouterr().err
    assert len((tmp_path / "a.csv").read_text().splitlines()) == 1 + 9


def test_no_scheduler_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("msformat.cluster._CONNECT_SECONDS", 1)
    with pytest.raises(StoreError, match="no dask scheduler"), cluster_executor("tcp://127.0.0.1:9"):
        pass


@pytest.mark.parametrize("address", ["nonsense", "tcp://host", "host:name", "smoke://host:8786", "host:99999"])
@pytest.mark.parametrize("command", ["verify {src}", "convert {src} {dst}", "diff {src} {src}"])
def test_what_is_no_address_is_refused_at_once(
    address: str, command: str, src: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("distributed.Client", lambda *_, **__: pytest.fail("a client takes a minute to give up"))
    words = command.format(src=src, dst=src.with_name("made")).split()
    assert main([*words, "--dask", address]) == 2
    (said,) = capsys.readouterr().err.splitlines()
    assert address in said
    assert "no dask scheduler" in said


@pytest.mark.skipif(not hasattr(os, "killpg"), reason="no process groups")
def test_interrupted(address: str, tmp_path: Path) -> None:
    src = write_tree(tmp_path / "src", [f"step{step}/rank" for step in range(40)], count=30)
    arguments = ["convert", str(src), str(tmp_path / "out"), "--to", "hdf5", "--dask", address]
    process = subprocess.Popen(
        [sys.executable, "-m", "msformat", *arguments], stderr=subprocess.PIPE, start_new_session=True, cwd=ROOT
    )
    deadline = time.monotonic() + 60
    while not any((tmp_path / "out").rglob("dump.h5")) and time.monotonic() < deadline:
        time.sleep(0.01)
    os.killpg(process.pid, signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode in (130, -signal.SIGINT, 0), err.decode()
    assert b"Traceback" not in err, err.decode()
    # Workers come to the end of the unit they are at.
    while any(is_temporary(path.name) for path in (tmp_path / "out").rglob("*")) and time.monotonic() < deadline:
        time.sleep(0.05)
    assert main(["convert", str(src), str(tmp_path / "out"), "--to", "hdf5", "--dask", address, "--resume"]) == 0
    assert len(list((tmp_path / "out").rglob("dump.h5"))) == 40
