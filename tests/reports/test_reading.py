"""Reports on big dumps, memory, statistics and tables (R128 to R146)."""

from __future__ import annotations

import csv
import json
import os
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import msformat
from msformat import dtype_named, tensor_stats
from tests.judges import judge
from tests.reports.cases import FLOAT32, call, everywhere, plain_record, run, run_python, write_documents

torch = judge("torch")
pandas = judge("pandas")

RELU = "Functional.relu.0.forward"


def write_big(path: Path, megabytes: int, *, nan: bool = False) -> int:
    """A document of that size, entry by entry; how many there are."""
    record = plain_record((8, 1024), Max=4.25, Min=float("nan") if nan else -4.0, Mean=0.001, Norm=12.5)
    body = json.dumps(call(record, record, output=[record]), indent=1).replace("\n", "\n  ")
    path.parent.mkdir(parents=True)
    size = count = 0
    with path.open("w") as stream:
        header = '"task": "statistics",\n "level": "mix",\n "framework": "pytorch",\n "dump_data_dir": null'
        stream.write(f'{{\n {header},\n "data": {{\n')
        while size < megabytes << 20:
            size += stream.write(f'{"," if count else ""}\n  "Functional.linear.{count}.forward": {body}')
            count += 1
        stream.write("\n }\n}")
    return count


PEAK = r"""
import re, sys, msformat
unit = msformat.open(sys.argv[1])[0]
print(len(unit), unit["Functional.linear.100.forward"].inputs[0].stats.max)
# Not getrusage: that begins with the peak of the process that forked this one.
print(int(re.search(r"VmHWM:\s+(\d+) kB", open("/proc/self/status").read())[1]) >> 10)
"""


@pytest.mark.parametrize("nan", [False, True])
def test_r128_r129_a_big_document_is_indexed_and_not_loaded(tmp_path: Path, nan: bool) -> None:
    """Scaled down to 40 MB; json.load takes ten times the size. The measured gigabyte is in reports.md."""
    count = write_big(tmp_path / "d/step0/rank0/dump.json", 40, nan=nan)
    done = run_python(PEAK, tmp_path / "d")
    found, peak = done.stdout.splitlines()
    assert found == f"{count} 4.25"
    assert int(peak) < 100 + 3 * 40


def test_r130_a_big_table_and_a_deep_chain(tmp_path: Path) -> None:
    """Scaled down; nothing recurses, whatever the depth, and the table is made column by column."""
    keys = [f"Module.m{number}.Linear.forward.0" for number in range(5000)]
    unit = write_documents(tmp_path / "d/step0/rank0", {key: call(plain_record(Max=1.0)) for key in keys})
    chain = dict(zip(keys, [None, *keys[:-1]], strict=True))
    (unit / "construct.json").write_text(json.dumps(chain, indent=1))
    for target in everywhere(tmp_path / "d"):
        tree = msformat.open(target)[0].tree()
        nodes = list(tree)
        assert (nodes[0].depth, nodes[-1].depth, nodes[-1].key) == (0, 4999, keys[-1])
        assert len(str(tree).splitlines()) > 0
    assert run("convert", tmp_path / "d", tmp_path / "cut", "--filter", keys[-1]).code == 0
    assert json.loads((tmp_path / "cut/step0/rank0/construct.json").read_text()) == {keys[-1]: None}
    assert len(msformat.open(tmp_path / "d").table()) == 5000


def test_r132_null_nan_and_missing_stay_three_things(tmp_path: Path) -> None:
    nan = float("nan")
    entry = call(
        plain_record(Max=None, Min=nan, Mean=1.5),
        plain_record(Max=2**60 + 1, Min=True, Mean=float("-inf"), Norm=None),
        plain_record(),
    )
    write_documents(tmp_path / "d/step0/rank0", {RELU: entry, "Functional.none.0.forward": None})
    for target in (tmp_path / "d", *everywhere(tmp_path / "d")):
        dump = msformat.open(target)
        table = dump.table()
        assert table["Max"].tolist() == [None, 2**60 + 1, msformat.MISSING]
        assert table["Max"][2] is msformat.MISSING
        assert np.isnan(table["Min"][0])
        assert table["Norm"].tolist() == [msformat.MISSING, None, msformat.MISSING]
        assert dump[0]["Functional.none.0.forward"].json() is None
    assert run("table", tmp_path / "d", "--csv", tmp_path / "t.csv").code == 0
    with (tmp_path / "t.csv").open(newline="") as stream:
        rows = [[row[name] for name in ("Max", "Min", "Mean", "Norm")] for row in csv.DictReader(stream)]
    assert rows == [["null", "NaN", "1.5", ""], [str(2**60 + 1), "true", "-Infinity", "null"], ["", "", "", ""]]
    frame = msformat.open(tmp_path / "d").table().to_pandas()
    assert frame["Max"][0] is None
    assert frame["Max"][2] is pandas.NA
    shown = run("show", tmp_path / "d", RELU).out
    assert [shown.count(word) for word in ("null", "nan")] == [2, 1]
    on_screen = run("table", tmp_path / "d").out
    assert [on_screen.count(word) for word in ("null", "nan")] == [2, 1]
    assert "null" in run("show", tmp_path / "d", "Functional.none.0.forward").out


def test_r136_r138_statistics_never_overflow() -> None:
    half = tensor_stats(np.full(70_000, 300, np.float16), dtype_named("float16"))
    assert half.norm == pytest.approx(300 * 70_000**0.5)
    assert tensor_stats(np.full(70_000, 60_000, np.float16), dtype_named("float16")).mean == 60_000
    large = np.full(3, 1e20, np.float32)
    assert tensor_stats(large, FLOAT32).norm == pytest.approx(torch.from_numpy(large).double().norm().item())
    for dtype in (np.int32, np.int8, np.int64, np.uint64):
        values = np.full(1000, np.iinfo(dtype).max, dtype)
        found = tensor_stats(values, dtype_named(np.dtype(dtype).name))
        assert found.max == int(np.iinfo(dtype).max)
        assert found.norm == pytest.approx(float(np.iinfo(dtype).max) * 1000**0.5)


def test_r137_integers_are_exact() -> None:
    found = tensor_stats(np.array([2**53 + 1, 3]), dtype_named("int64"))
    assert (found.max, found.min) == (2**53 + 1, 3)
    bytes_ = np.arange(256, dtype=np.uint8)
    found = tensor_stats(bytes_, dtype_named("uint8"))
    assert (found.max, found.min, found.mean) == (255, 0, 127.5)
    assert found.norm == pytest.approx(torch.from_numpy(bytes_).double().norm().item())
    found = tensor_stats(np.array([True, False]), dtype_named("bool"))
    assert (found.max, found.min, found.mean, found.norm) == (True, False, None, None)


def test_r140_statistics_are_values_and_no_views() -> None:
    loss = torch.tensor(3.0)
    stats = tensor_stats(loss.numpy(), FLOAT32)
    loss.mul_(2)
    assert (stats.max, stats.min, stats.mean, stats.norm) == (3.0, 3.0, 3.0, 3.0)


def test_r141_checksums_of_each_kind(tmp_path: Path) -> None:
    """CRC-32 of the logical bytes is compared, an xor of other dumps is not, and a wrong one is found."""
    x = torch.randn(10, 10)
    given = {"slice": x[1:, 3], "zero": x[0, 0], "t": x.t(), "bf": x.bfloat16()[1:]}
    unit = tmp_path / "d/step0/rank0"
    (unit / "dump_tensor_data").mkdir(parents=True)
    data: dict[str, Any] = {}
    for name, value in given.items():
        torch.save(value, unit / f"dump_tensor_data/{name}.0.debug.pt")
        content = value.float().contiguous().numpy().tobytes()
        more = {"md5": f"{zlib.crc32(content):08x}", "data_name": f"{name}.0.debug.pt"}
        data[f"{name}.0.debug"] = plain_record(tuple(value.shape), str(value.dtype), **more)
    data["xor.0.debug"] = {**data["slice.0.debug"], "md5": "0x" + "12" * 8}
    write_documents(unit, data, name="debug.json", level="debug")
    for target in (tmp_path / "d", *everywhere(tmp_path / "d")):
        (found,) = json.loads(run("verify", target, "--json").out)["units"]
        assert (found["checksums"], found["problems"]) == (4, [])
    data["t.0.debug"]["md5"] = "00000000"
    write_documents(unit, data, name="debug.json", level="debug")
    done = run("verify", tmp_path / "d")
    assert (done.code, "t.0.debug.pt" in done.err, len(done.err.splitlines())) == (1, True, 1)


def test_r142_every_rank_and_step_in_numeric_order(tmp_path: Path) -> None:
    steps = [*range(0, 121, 10), 9, 11]
    for step in steps:
        labels = [f"rank{number}" for number in range(32)] if step % 20 else ["rank", "proc123"]
        for label in labels:
            write_documents(tmp_path / f"d/step{step}/{label}", {})
    keys = msformat.open(tmp_path / "d").units
    assert [key.step for key in keys if key.rank in ("rank0", "rank")] == sorted(steps)
    for step in steps:
        numbers = [key.rank_number for key in keys if key.step == step]
        assert numbers == (list(range(32)) if step % 20 else [None, None])


def test_r144_names_in_an_ascii_terminal_and_in_excel(tmp_path: Path) -> None:
    key = "Functional.变量.0.forward"
    write_documents(tmp_path / "d/step0/rank0", {key: call(plain_record(Max=1.0))})
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}

    def ascii_run(*arguments: object) -> subprocess.CompletedProcess[bytes]:
        command = [sys.executable, "-m", "msformat", *map(str, arguments)]
        return subprocess.run(command, capture_output=True, env=environment, check=False)

    for arguments in (("ls",), ("info",), ("table",), ("show", key), ("ls", "--filter", "变")):
        done = ascii_run(arguments[0], tmp_path / "d", *arguments[1:])
        assert (done.returncode, done.stderr) == (0, b""), arguments
        assert done.stdout.isascii()
    path = tmp_path / "变.csv"
    assert ascii_run("table", tmp_path / "d", "--csv", path, "--bom").returncode == 0
    assert path.read_bytes().startswith(b"\xef\xbb\xbfunit,")
    assert pandas.read_csv(path)["entry"].tolist() == [key]


def test_r145_what_can_be_read_is_accepted(tmp_path: Path) -> None:
    """Read-only files, of another owner where the tests may make them, and one of 12 GB of which a slice is read."""
    unit = tmp_path / "d/step0/rank0"
    (unit / "dump_tensor_data").mkdir(parents=True)
    path = unit / "dump_tensor_data/huge.0.debug.npy"
    rows = 3 << 20
    with path.open("wb") as stream:
        np.lib.format.write_array_header_1_0(stream, {"descr": "<f4", "fortran_order": False, "shape": (rows, 1024)})
        stream.write(np.arange(1024, dtype=np.float32).tobytes())
        stream.truncate(stream.tell() + (rows - 1) * 4096)
    data = {"huge.0.debug": plain_record((rows, 1024), data_name=path.name)}
    write_documents(unit, data, name="debug.json", level="debug")
    (unit / "debug.json").chmod(0o440)
    path.chmod(0o444)
    unit.chmod(0o550)
    if os.geteuid() == 0:  # nobody else may give files away
        for owned in (unit, unit / "debug.json", path):
            os.chown(owned, 65534, 65534)
    try:
        assert run("info", tmp_path / "d").code == 0
        found = msformat.open(tmp_path / "d")[0]["huge.0.debug"].value
        assert found[0, :3].tolist() == [0, 1, 2]
        assert found[rows - 1, 5] == 0
    finally:
        unit.chmod(0o755)


def test_r146_ranks_with_different_modules(tmp_path: Path) -> None:
    """The view over all ranks is the union, and each row says where it is from."""
    for rank, name in enumerate("ab"):
        key = f"Module.{name}.Linear.forward.0"
        write_documents(tmp_path / f"d/step0/rank{rank}", {key: call(plain_record(Max=float(rank)))})
    for target in (tmp_path / "d", *everywhere(tmp_path / "d")):
        table = msformat.open(target).table()
        found = list(zip(table["rank"], table["entry"], table["Max"], strict=True))
        assert found == [("rank0", "Module.a.Linear.forward.0", 0.0), ("rank1", "Module.b.Linear.forward.0", 1.0)]
