"""The command line as people and programs use it: real processes, real dumps."""

from __future__ import annotations

import csv
import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from rich.console import Console

from msformat.cli import main
from tests.judges import judge
from tests.small_dumps import FRAMES, HEADER, write_document, write_unit

torch = judge("torch")

NAME = "torch_8.1.0_L0_tensor"
KEY = "Module.norm.LayerNorm.forward.0"


@pytest.fixture
def dump(golden: Callable[[str], Path], tmp_path: Path) -> Path:
    """A copy of a real dump that a test may damage."""
    shutil.copytree(golden(NAME), tmp_path / "dump")
    return tmp_path / "dump"


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main([str(argument) for argument in arguments])
    captured = capsys.readouterr()
    assert "Traceback" not in captured.out + captured.err
    return code, captured.out, captured.err


def test_info_as_json_agrees_with_the_documents(dump: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "info", dump, "--json")
    assert code == 0
    found = json.loads(out)
    for unit in found["units"]:
        document = json.loads((dump / unit["unit"] / "dump.json").read_text())
        assert unit["entries"] == len(document["data"])
        assert unit["level"] == document["level"]
        assert unit["tensors"] == len(list((dump / unit["unit"] / "dump_tensor_data").iterdir()))
        assert unit["complete"] == "yes"


def test_info_counts_names_bytes_and_inodes_as_find_and_du_do(dump: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensors = dump / "step0/rank/dump_tensor_data"
    first = min(tensors.iterdir())
    (tensors / "again.pt").hardlink_to(first)
    _, out, _ = run(capsys, "info", dump, "--steps", "0", "--json")
    (unit,) = json.loads(out)["units"]
    files = [path for path in (dump / "step0/rank").rglob("*") if path.is_file()]
    inodes = subprocess.run(["du", "--inodes", "-s", dump / "step0/rank"], capture_output=True, check=True).stdout
    assert unit["files"] == len(files)
    assert unit["inodes"] == int(inodes.split()[0])
    assert unit["bytes"] == sum(path.stat().st_size for path in files) - first.stat().st_size
    code, out, _ = run(capsys, "info", dump)
    assert code == 0
    assert "inodes" in out


def test_ls_lists_the_keys_in_document_order(dump: Path, capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "ls", dump, "--steps", "0")
    keys = list(json.loads((dump / "step0/rank/dump.json").read_text())["data"])
    assert [line.split("\t")[1] for line in out.splitlines()] == keys


def test_show_an_entry_and_a_tensor(dump: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "show", dump, KEY, "--steps", "0", "--json")
    shown = json.loads(out)
    assert code == 0
    assert shown["value"] == json.loads((dump / "step0/rank/dump.json").read_text())["data"][KEY]
    assert "train.py" in " ".join(shown["stack"])
    code, out, _ = run(capsys, "show", dump, f"{KEY}.output.0.pt", "--steps", "0", "--json")
    tensor = torch.load(dump / "step0/rank/dump_tensor_data" / f"{KEY}.output.0.pt")
    assert json.loads(out)["values"] == tensor.flatten()[:64].tolist()
    code, out, _ = run(capsys, "show", dump, KEY, "--steps", "0")
    assert code == 0
    assert "LayerNorm" in out


def test_show_of_a_misspelt_name_offers_the_right_one(dump: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "show", dump, KEY.replace("Layer", "Lyer"))
    assert code == 2
    assert KEY in err


def test_table_csv_holds_every_tensor(dump: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, _ = run(capsys, "table", dump, "--csv", tmp_path / "t.csv", "--bom")
    assert code == 0
    raw = (tmp_path / "t.csv").read_bytes()
    assert raw.startswith(b"\xef\xbb\xbf")
    rows = list(csv.DictReader(raw.decode("utf-8-sig").splitlines()))
    assert {row["data_name"] for row in rows if row["data_name"]} == {path.name for path in dump.rglob("*.pt")}
    code, out, _ = run(capsys, "table", dump, "--json", "--filter", "Module.norm")
    assert code == 0
    assert {row["entry"].rsplit(".", 2)[0] for row in json.loads(out)} <= {
        "Module.norm.LayerNorm", "Module.norm",
    }  # fmt: skip


def test_parquet_is_read_by_pyarrow(dump: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    import pyarrow.parquet

    code, _, _ = run(capsys, "table", dump, "--parquet", tmp_path / "t.parquet")
    assert code == 0
    assert pyarrow.parquet.read_table(tmp_path / "t.parquet").num_rows >= 190


def test_one_bad_tensor_is_named_and_the_rest_goes_on(
    dump: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    victim = dump / "step0/rank/dump_tensor_data" / f"{KEY}.output.0.pt"
    victim.write_bytes(victim.read_bytes()[:100])
    code, out, err = run(capsys, "convert", dump, tmp_path / "out.h5", "--json")
    assert code == 1
    assert victim.name in out + err
    assert sum(unit["tensors"] for unit in json.loads(out)["units"]) == 189
    code, out, err = run(capsys, "verify", dump)
    assert code == 1
    assert victim.name in err


@pytest.mark.parametrize(
    "arguments",
    [
        ("info", "nowhere"),
        ("convert", "nowhere", "out.h5"),
        ("verify", "nowhere"),
        ("info", "empty"),
        ("table", "empty"),
        ("info", "junk.h5"),
        ("convert", "junk.h5", "out"),
        ("info", "junk.zarr"),
        ("show", "junk.h5", "x"),
        ("convert", "dump", "dump"),
        ("convert", "dump", "dump/inside"),
        ("convert", "dump", "full"),
        ("convert", "dump", "out.h5", "--steps", "77"),
        ("info", "dump", "--ranks", "7"),
        ("convert", "dump", "out.h5", "--compression", "middle-out"),
        ("info", "s4://bucket/dump"),
    ],
)
def test_unusable_input_is_one_line_and_exit_code_2(
    dump: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str],
    arguments: tuple[str, ...],
) -> None:  # fmt: skip
    monkeypatch.chdir(tmp_path)
    (tmp_path / "empty").mkdir()
    (tmp_path / "junk.h5").write_bytes(b"\x89HDF\r\n\x1a\n" + b"junk" * 100)
    (tmp_path / "junk.zarr").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").write_text("do not lose me")
    code, _, err = run(capsys, *arguments)
    assert code == 2
    assert 1 <= len(err.strip().splitlines()) <= 3, err
    assert (tmp_path / "full" / "thesis.tex").read_text() == "do not lose me"
    assert not (tmp_path / "out.h5").exists()


def test_schema_is_printed_and_checked(dump: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "schema", "dump")
    assert code == 0
    assert json.loads(out)["$schema"].endswith("2020-12/schema")
    assert run(capsys, "schema", "dump", "--check", dump / "step0/rank/dump.json")[0] == 0
    (tmp_path / "bad.json").write_text('{"task": 1}')
    code, _, err = run(capsys, "schema", "dump", "--check", tmp_path / "bad.json")
    assert code == 1
    assert "bad.json" in err


def test_output_survives_an_ascii_terminal_and_a_closed_pipe(dump: Path) -> None:
    unit = dump / "step0/rank"
    text = (unit / "dump.json").read_text().replace(KEY, "Module.归一化.LayerNorm.forward.0\\u001b[31m")
    (unit / "dump.json").write_text(text, encoding="utf-8")
    environment = {**os.environ, "LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0"}
    base = [sys.executable, "-m", "msformat"]
    done = subprocess.run([*base, "ls", dump], capture_output=True, env=environment, check=False)
    assert done.returncode == 0, done.stderr
    assert b"\x1b" not in done.stdout  # a stranger's name cannot drive the terminal
    assert b"\\u5f52" in done.stdout
    piped = subprocess.run(
        f"{sys.executable} -m msformat table {dump} --steps 0,1 | head -1; exit ${{PIPESTATUS[0]}}",
        shell=True, executable="/bin/bash", capture_output=True, env=environment, check=False,
    )  # fmt: skip
    assert piped.stderr == b""
    assert piped.returncode == 0


def test_dry_run_writes_nothing(dump: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, "convert", dump, tmp_path / "out.zarr", "--dry-run")
    assert code == 0
    assert "step0/rank" in out
    assert not (tmp_path / "out.zarr").exists()


def test_a_narrow_terminal_gets_whole_words(
    dump: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def terminal() -> Console:
        return Console(file=sys.stdout, width=80, markup=False, emoji=False, highlight=False)

    monkeypatch.setattr("msformat.cli.tables.console", terminal)
    code, out, _ = run(capsys, "show", dump, KEY, "--steps", "0")
    assert code == 0
    # Names are never cut, and lines that hold more than one pair fit.
    assert f"data_name {KEY}.parameters.weight.pt" in out
    assert all(len(line) <= 80 for line in out.split("stack")[0].splitlines())
    code, out, _ = run(capsys, "info", dump)
    assert "step0/rank\n" in out
    assert "complete yes" in out


def test_totals_count_a_file_with_several_units_once(
    dump: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, out, _ = run(capsys, "convert", dump, tmp_path / "d.h5")
    assert code == 0
    assert [line.split()[0] for line in out.splitlines() if line.split()][-1] == "total"
    _, out, _ = run(capsys, "info", tmp_path / "d.h5", "--json")
    found = json.loads(out)
    assert found["total"]["bytes"] == (tmp_path / "d.h5").stat().st_size
    assert found["total"]["files"] == 1
    assert found["total"]["entries"] == sum(unit["entries"] for unit in found["units"])


def test_a_filter_is_a_part_of_a_name_or_a_glob_everywhere(
    dump: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for pattern in ("LayerNorm.forward", "Module.*.LayerNorm.forward.*"):
        _, out, _ = run(capsys, "ls", dump, "--filter", pattern, "--steps", "0")
        assert [line.split("\t")[1] for line in out.splitlines()] == [KEY]
        _, out, _ = run(capsys, "table", dump, "--filter", pattern, "--steps", "0", "--json")
        assert {row["entry"] for row in json.loads(out)} == {KEY}
        to = ("--to", "files", "--overwrite")
        run(capsys, "convert", dump, tmp_path / "part", "--filter", pattern, "--steps", "0", *to)
        assert list(json.loads((tmp_path / "part/step0/rank/dump.json").read_text())["data"]) == [KEY]


def test_show_offers_entries_for_a_part_of_a_key(dump: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, _, err = run(capsys, "show", dump, "module.norm")
    assert code == 2
    assert f"no entry 'module.norm'; near matches: '{KEY}'" in err
    code, _, err = run(capsys, "show", dump, KEY.replace("Layer", "Lyer"))
    assert "no entry" in err


def test_files_that_cannot_be_written_are_named_as_they_were_given(
    dump: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, _, err = run(capsys, "table", dump, "--csv", tmp_path / "no" / "t.csv")
    assert (code, err) == (2, f"msformat: {tmp_path / 'no' / 't.csv'}: no such file or directory\n")


def test_a_dump_of_task_structure_shows_its_tree_and_stacks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    inner, outer = "Functional.relu.0.forward", "Module.act.ReLU.forward.0"
    unit = write_unit(tmp_path / "dump/step0/rank", {}, parents={outer: None, inner: outer})
    write_document(unit / "dump.json", {**HEADER, "task": "structure", "data": {}})
    write_document(unit / "stack.json", {"0": [[inner], FRAMES]})
    code, out, _ = run(capsys, "ls", tmp_path / "dump")
    assert (code, [line.split("\t")[1] for line in out.splitlines()]) == (0, [outer, inner])
    code, out, _ = run(capsys, "show", tmp_path / "dump", inner)
    assert code == 0
    assert f"inside {outer}" in out
    assert "a.py" in out
    code, out, _ = run(capsys, "show", tmp_path / "dump", inner, "--json")
    found = {"unit": "step0/rank", "entry": inner, "parent": outer, "value": None, "stack": FRAMES}
    assert json.loads(out) == found
    code, _, err = run(capsys, "show", tmp_path / "dump", "Module.no")
    assert code == 2
    assert "no entry" in err
