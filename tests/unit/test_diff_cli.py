"""``msformat diff``: what it prints, writes and answers."""

from __future__ import annotations

import csv
import gc
import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import openpyxl
import pyarrow.parquet
import pytest

import msformat
from msformat.cli import main
from msformat.compare.export import write_result
from msformat.compare.rows import COLUMNS, columns_of
from tests.judges import judge
from tests.small_dumps import HEADER, record, temporaries, write_document, write_unit
from tests.unit.test_diff_values import described

torch = judge("torch")

HOSTILE = "=HYPERLINK(\x1b[31m).0.forward"


@pytest.fixture
def dumps(tmp_path: Path) -> tuple[Path, Path]:
    """Three entries: one equal, one off, one with NaN; a hostile name among them; one on each side alone."""
    base = np.linspace(-1, 1, 12, dtype=np.float32).reshape(3, 4)
    broken = base.copy()
    broken[1, 2] = np.nan
    shared = {"Functional.relu.0.forward": base, HOSTILE: base}
    a = {**shared, "Functional.gelu.0.forward": base * 1.01, "Functional.abs.0.forward": broken}
    b = {**shared, "Functional.gelu.0.forward": base, "Functional.abs.0.forward": base}
    a["Functional.only.0.forward"] = base
    write_unit(tmp_path / "a" / "step0" / "rank", a)
    write_unit(tmp_path / "b" / "step0" / "rank", b)
    return tmp_path / "a", tmp_path / "b"


def run(capsys: pytest.CaptureFixture[str], *arguments: object) -> tuple[int, str, str]:
    code = main(["diff", *map(str, arguments)])
    said = capsys.readouterr()
    return code, said.out, said.err


def test_the_headline_comes_first(dumps: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    code, out, err = run(capsys, *dumps)
    assert code == 1
    assert not err
    first, second, third, *_ = out.splitlines()
    assert first == "First divergence: step0/rank, outside of modules"
    assert second.strip() == "Functional.gelu.0.forward"
    assert third.strip() == "Functional.gelu.0.forward.output.0 torch.float32 [3, 4]"
    assert "relative error 0.01" in out
    assert "File a.py, line 1, in forward, y = f(x)" in out
    assert "Functional.relu.0.forward  same" in out
    assert "the first 3 of 3 tensors" in out
    assert "1 NaN against none, first at [1, 2]" in out
    assert "\x1b" not in out


def test_only_frames_of_the_program_are_shown(dumps: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    frames = [
        "File /env/lib/site-packages/torch/nn/modules/module.py, line 5, in inner, \n result = forward_call(*args)",
        "File train.py, line 2, in <module>, \n main()",
        "File <frozen runpy>, line 88, in _run_code, \n ",  # stands before it under `python -m capture run`
    ]
    for dump in dumps:
        stacks = {"1": [["Functional.gelu.0.forward"], frames]}
        (dump / "step0" / "rank" / "stack.json").write_text(json.dumps(stacks))
    _, out, _ = run(capsys, *dumps)
    assert [line.strip() for line in out.splitlines() if line.strip().startswith("File ")] == [
        "File train.py, line 2, in <module>, main()"
    ]


def test_exit_codes(dumps: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = dumps
    assert run(capsys, a, a, "--quiet")[:2] == (0, "the same within the thresholds\n")
    assert run(capsys, a, b, "--quiet")[0] == 1
    only = ("--filter", "Functional.gelu.*")
    assert run(capsys, a, b, "--quiet", *only)[0] == 1
    assert run(capsys, a, b, "--quiet", *only, "--rtol", "0.1")[0] == 0
    assert run(capsys, a, b, "--quiet", "--filter", "only")[0] == 2
    assert run(capsys, a, b, "--quiet", "--filter", "nothing at all")[0] == 2
    assert run(capsys, a, b, "--quiet", *only, "--rules", "msprobe")[0] == 0
    write_unit(tmp_path / "less" / "step0" / "rank", {"Functional.relu.0.forward": np.ones(2)})
    write_unit(tmp_path / "more" / "step0" / "rank", {"Functional.relu.0.forward": np.ones(2), "x.0.debug": np.ones(1)})
    assert run(capsys, tmp_path / "less", tmp_path / "more", "--quiet")[0] == 1
    assert run(capsys, tmp_path / "less", tmp_path / "more", "--quiet", "--ignore-missing")[0] == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["nowhere", "{b}"], "nowhere"),
        (["{a}", "nowhere"], "nowhere"),
        (["{a}", "{b}", "--steps", "7"], "no unit of the wanted steps and ranks; there are step0/rank"),
        (["{a}", "{b}", "-o", "result.doc"], ".xlsx"),
        (["{a}", "{b}", "--map", "nowhere.json"], "nowhere.json"),
        (["{a}", "{b}", "--rtol", "-1"], "rtol"),
        (["{a}", "{b}", "--jobs", "0"], "jobs"),
    ],
)
def test_bad_input_is_one_clear_line(
    dumps: tuple[Path, Path], capsys: pytest.CaptureFixture[str], arguments: list[str], words: str
) -> None:
    a, b = dumps
    code, out, err = run(capsys, *(argument.format(a=a, b=b) for argument in arguments))
    assert code == 2
    assert not out
    assert len(err.splitlines()) == 1
    assert words in err


def test_json(dumps: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    code, out, _ = run(capsys, *dumps, "--json", "-o", tmp_path / "r.json")
    found = json.loads(out, parse_constant=pytest.fail)  # strict: no bare NaN
    assert json.loads((tmp_path / "r.json").read_text(), parse_constant=pytest.fail) == found
    assert (found["exit_code"], code) == (1, 1)
    assert found["divergence"]["entry_a"] == "Functional.gelu.0.forward"
    assert found["divergence"]["tensor"]["metrics"]["rel_l2"] == pytest.approx(0.01, rel=1e-4)
    assert found["counts"] == {"same": 2, "different": 2, "only_a": 1}
    entries = {entry["a"]: entry for entry in found["units"][0]["entries"]}
    assert entries["Functional.abs.0.forward"]["tensors"][0]["special_a"] == {
        "nan": 1, "posinf": 0, "neginf": 0, "first": [[1, 2]],
    }  # fmt: skip


def tables(tmp_path: Path) -> dict[str, list[dict[str, Any]]]:
    """The files as other tools read them."""
    with (tmp_path / "r.csv").open(encoding="utf-8-sig", newline="") as file:
        read = list(csv.DictReader(file))
    rows = list(openpyxl.load_workbook(tmp_path / "r.xlsx")["result"].iter_rows(values_only=True))
    return {
        "csv": read,
        "xlsx": [dict(zip(map(str, rows[0]), row, strict=True)) for row in rows[1:]],
        "parquet": pyarrow.parquet.read_table(tmp_path / "r.parquet").to_pylist(),
    }


def test_files_have_the_columns_of_msprobe(
    dumps: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outputs = [word for suffix in ("csv", "xlsx", "parquet") for word in ("-o", tmp_path / f"r.{suffix}")]
    assert run(capsys, *dumps, *outputs, "--rows", "0")[0] == 1
    for kind, rows in tables(tmp_path).items():
        assert list(rows[0]) == list(columns_of("values")), kind
        assert list(rows[0])[:22] == list(COLUMNS["values"]), kind
        by_name = {row["NPU Name"]: row for row in rows}
        gelu = by_name["Functional.gelu.0.forward.output.0"]
        assert float(gelu["RelL2Err"]) == pytest.approx(0.01, rel=1e-4)
        assert float(gelu["MaxAbsErr"]) == pytest.approx(0.01, rel=1e-4)
        assert (gelu["Verdict"], gelu["Accuracy Reached or Not"]) == ("different", "Yes")
        assert by_name["Functional.abs.0.forward.output.0"]["Accuracy Reached or Not"] == "No"
        lone = by_name["Functional.only.0.forward.output.0"]
        assert (lone["Bench Name"], lone["Err_message"]) == (
            None if kind == "parquet" else "N/A",
            "No bench data matched.",
        )


def test_names_never_become_formulas(
    dumps: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    outputs = [word for suffix in ("csv", "xlsx", "parquet") for word in ("-o", tmp_path / f"r.{suffix}")]
    run(capsys, *dumps, *outputs, "--rows", "0")
    book = openpyxl.load_workbook(tmp_path / "r.xlsx")
    cells = [cell for row in book["result"].iter_rows() for cell in row]
    assert any(str(cell.value).startswith("=HYPERLINK") for cell in cells)
    assert "f" not in {cell.data_type for cell in cells}
    assert not any("\x1b" in str(cell.value) for cell in cells)
    names = {row["NPU Name"] for row in tables(tmp_path)["csv"]}
    assert f"'{HOSTILE}.output.0" in names
    assert not any(name.startswith("=") for name in names)


def test_columns_of_statistics_and_digests(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    described(tmp_path / "s", {"Max": 3.0}, {})
    run(capsys, tmp_path / "s" / "a", tmp_path / "s" / "b", "--csv", tmp_path / "s.csv")
    with (tmp_path / "s.csv").open(encoding="utf-8-sig", newline="") as file:
        (row,) = csv.DictReader(file)
    assert list(row)[: len(COLUMNS["statistics"])] == list(COLUMNS["statistics"])
    assert (row["Max diff"], row["MaxRelativeErr"], row["Result"]) == ("1.0", "0.5", "Warning")
    described(tmp_path / "d", {"md5": "00000001"}, {"md5": "00000001"})
    run(capsys, tmp_path / "d" / "a", tmp_path / "d" / "b", "--csv", tmp_path / "d.csv")
    with (tmp_path / "d.csv").open(encoding="utf-8-sig", newline="") as file:
        (row,) = csv.DictReader(file)
    assert (row["NPU MD5"], row["BENCH MD5"], row["Result"]) == ("00000001", "00000001", "pass")


@pytest.mark.parametrize("suffix", ["csv", "json", "parquet", "xlsx"])
def test_a_result_is_whole_or_not_there(
    dumps: tuple[Path, Path], tmp_path: Path, suffix: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """Refused by the command before it compares, and by the writer; the name is the one that was asked for."""
    folder, nowhere = tmp_path / f"r.{suffix}", tmp_path / "nowhere" / f"r.{suffix}"
    folder.mkdir()
    found = msformat.diff(*dumps)
    for path, words in ((folder, "is a directory"), (nowhere, "no such file or directory")):
        code, out, err = run(capsys, *dumps, "-o", path)
        assert (code, out, err) == (2, "", f"msformat: {path}: {words}\n")
        with pytest.raises(OSError, match=words.capitalize()) as failed:
            write_result(found, path)
        assert failed.value.filename == str(path)
    gc.collect()  # what is left behind would complain now, which pytest makes an error
    assert folder.is_dir()
    assert not temporaries(tmp_path)


@pytest.mark.skipif(not Path("/dev/full").exists(), reason="no full device")
@pytest.mark.parametrize("suffix", ["csv", "json", "parquet", "xlsx"])
def test_a_full_disk_is_an_error_and_no_more(dumps: tuple[Path, Path], tmp_path: Path, suffix: str) -> None:
    full = tmp_path / f"full.{suffix}"
    full.symlink_to("/dev/full")
    with pytest.raises(OSError, match="No space left"):
        write_result(msformat.diff(*dumps), full)
    gc.collect()


def test_without_the_libraries_that_write_files(
    dumps: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "openpyxl", None)
    code, _, err = run(capsys, *dumps, "-o", tmp_path / "r.xlsx")
    assert code == 2
    assert "msformat[diff]" in err


def test_the_list_of_tensors(dumps: tuple[Path, Path], capsys: pytest.CaptureFixture[str]) -> None:
    out = run(capsys, *dumps, "--sort", "worst", "--rows", "1")[1]
    assert "the worst 1 of 3 tensors" in out
    listed = run(capsys, *dumps, "--all")[1]
    assert "the first 5 of 5" in listed
    assert "tensors that are not" not in run(capsys, *dumps, "--rows", "0")[1]


def test_tensors_are_listed_as_they_came_about(
    golden: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """msprobe's documents have gradients of parameters behind the forward of their module."""
    original = golden("torch_8.1.0_mix_tensor") / "step0"
    shutil.copytree(original, tmp_path / "step0")
    for name in ("Module.embed.Embedding.parameters_grad.weight", "Module.head.Linear.forward.0.output.0"):
        path = tmp_path / "step0" / "rank" / "dump_tensor_data" / f"{name}.pt"
        torch.save(torch.load(path) + 1.0, path)
    out = run(capsys, tmp_path, original.parent, "--steps", "0")[1]
    listed = out[out.index("the first 2 of 2") :]
    assert listed.index("Module.head.Linear.forward.0.output.0") < listed.index(
        "Module.embed.Embedding.parameters_grad"
    )


def test_tensors_that_are_gone_are_no_silent_success(
    golden: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Statistics of the documents are still equal."""
    original = golden("torch_8.1.0_mix_tensor")
    shutil.copytree(original / "step0", tmp_path / "step0")
    data = tmp_path / "step0" / "rank" / "dump_tensor_data"
    (data / "Module.head.Linear.forward.0.output.0.pt").unlink()
    code, out, err = run(capsys, tmp_path, original, "--steps", "0")
    said = "a: 1 tensors are named but not stored, the first 'Module.head.Linear.forward.0.output.0.pt'"
    assert code == 1
    assert said in out + err
    shutil.rmtree(data)
    code, out, err = run(capsys, tmp_path, original, "--steps", "0")
    assert code == 0
    assert "tensors are named but not stored" in out + err


def test_shapes_alone_are_no_agreement(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    nothing = dict.fromkeys(("Max", "Min", "Mean", "Norm"), "absent")
    described(tmp_path, nothing, nothing)
    code, out, _ = run(capsys, tmp_path / "a", tmp_path / "b")
    assert code == 0
    assert out.startswith("No divergence, but only shapes and types were compared")
    assert "within" not in out
    assert "only shapes and types" in run(capsys, tmp_path / "a", tmp_path / "b", "--quiet")[1]
    assert main(["report", str(tmp_path / "a"), str(tmp_path / "b"), "-o", str(tmp_path / "p.html")]) == 0
    assert "only shapes and types are known" in capsys.readouterr().out
    described(tmp_path / "more", {}, {})
    assert "within the thresholds" in run(capsys, tmp_path / "more" / "a", tmp_path / "more" / "b")[1]


def test_what_is_megabytes_long_is_shortened(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    length = 1_000_000
    for name, value in (("a", 1.0), ("b", 2.0)):
        unit = tmp_path / name / "step0" / "rank"
        unit.mkdir(parents=True)
        key, long = f"Functional.{'x' * length}.0.forward", "y" * length
        node = {**record(np.ones(3), ""), "Max": value, "Min": value, "dtype": f"{long}{name}"}
        del node["data_name"]
        write_document(unit / "dump.json", {**HEADER, "data": {key: {"input_args": [], "output": [node]}}})
        write_document(unit / "stack.json", {"0": [[key], [f"File {long}.py, line 1, in f, \n g()"]]})
    for more in ((), ("--quiet",)):
        code, out, err = run(capsys, tmp_path / "a", tmp_path / "b", *more)
        assert code == 1
        assert "Functional.xxx" in out
        assert ".0.forward.output.0" in out
        assert len(out) + len(err) < 20_000


def test_the_library(dumps: tuple[Path, Path]) -> None:
    told: list[tuple[str, int, int]] = []
    found = msformat.diff(*dumps, progress=lambda *step: told.append(step))
    assert isinstance(found, msformat.DiffResult)
    assert told[-1] == ("step0/rank", 5, 5)
    assert found.divergence is not None
    assert found.first_bits is not None


@pytest.mark.parametrize("command", ["diff", "report"])
def test_what_is_read_is_never_written(
    dumps: tuple[Path, Path], command: str, capsys: pytest.CaptureFixture[str]
) -> None:
    document = dumps[0] / "step0" / "rank" / "dump.json"
    before = document.read_bytes()
    assert main([command, *map(str, dumps), "-o", str(document)]) == 2
    assert "name another file" in capsys.readouterr().err
    assert document.read_bytes() == before
