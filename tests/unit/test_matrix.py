"""What ``make test-matrix`` installs and how it judges a row. Whether the rows pass is for that target to say."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.judges import judge
from tools.matrix import Result, _read_results, document, interpreter, keep, kept, report
from tools.matrix_rows import ROWS, Row, declared, minima, requirements

ROOT = Path(__file__).resolve().parents[2]
ROW = Row("mine", "3.11", "this test", absent=frozenset({"torch"}))
OLDEST = next(row for row in ROWS if row.name == "oldest")


def _result(tmp_path: Path, *cases: str) -> Result:
    path = tmp_path / "junit.xml"
    tests = (f'<testcase classname="tests.a" name="test_{n}">{case}</testcase>' for n, case in enumerate(cases))
    path.write_text(f"<testsuites><testsuite>{''.join(tests)}</testsuite></testsuites>")
    found = Result(ROW)
    _read_results(path, found)
    return found


def test_minima_are_those_of_pyproject() -> None:
    """Every ``name>=version`` that is written there, but for the tools of developers and the frameworks."""
    text = (ROOT / "pyproject.toml").read_text()
    text = text[text.index("\ndependencies") : text.index("\ntest = [")]
    written = {f"{name}=={least}" for name, least in re.findall(r'"([\w-]+)>=([\d.]+)', text)}
    # No row has the engine that fuzzes.
    written = {one for one in written if not one.startswith("atheris=")}
    names = {"torch", "mindspore", "transformers", "accelerate", "lightning"}
    frameworks = {one for one in written if one.partition("=")[0] in names}
    zarr = {one for one in written if one.startswith("zarr=")}
    assert len(frameworks) == len(names)
    # zarr-python is not for Python 3.10.
    assert set(minima(OLDEST, declared())) == written - frameworks - zarr
    trainers = next(row for row in ROWS if row.oldest and "lightning" in row.frameworks)
    assert set(minima(trainers, declared())) == {one for one in written - zarr if not one.startswith("mindspore")}


def test_what_the_issue_asks_for_is_a_row() -> None:
    assert {"3.10", "3.12", "3.13"} <= {row.python for row in ROWS}
    wanted = {pin for row in ROWS for pin in requirements(row, declared())}
    assert {"numpy==1.26", "h5py==3.8", "zarr==3.0.0", "torch==2.1", "torch==2.13.0"} <= wanted


def test_a_row_that_passed(tmp_path: Path) -> None:
    skipped = '<skipped message="torch is not installed">x.py:3: torch is not installed</skipped>'
    module = "<skipped message=\"collection skipped\">('x.py', 3, \"Skipped: could not import 'torch': No\")</skipped>"
    found = _result(tmp_path, "", "", skipped, module, '<skipped message="no pipes with names"/>')
    assert (found.passed, found.failed, found.verdict) == (2, [], "passed")
    assert found.skipped == {"torch is not installed": 2, "no pipes with names": 1}


@pytest.mark.parametrize(
    ("cases", "verdict"),
    [
        (["", "<failure/>"], "FAILED"),
        (["", "<error/>"], "FAILED"),
        (["", '<skipped message="h5py is not installed"/>'], "FAILED: no h5py"),
        (["", "<skipped message=\"could not import 'fsspec.implementations.memory': No\"/>"], "FAILED: no fsspec"),
        ([], "FAILED: no test ran"),
    ],
)
def test_a_row_that_failed(tmp_path: Path, cases: list[str], verdict: str) -> None:
    assert _result(tmp_path, *cases).verdict == verdict


def test_what_could_not_be_tried_is_no_success(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = Result(ROW)
    _read_results(tmp_path / "junit.xml", found)
    assert found.verdict.startswith("not tried: pytest did not finish")
    assert interpreter("3.2") is None
    report([found, _result(tmp_path, "", "<failure/>")])
    printed = capsys.readouterr().out
    assert "not tried" in printed
    assert "mine: FAILED tests.a::test_1" in printed


def test_this_interpreter_is_found() -> None:
    here = "{}.{}".format(*sys.version_info)
    assert interpreter(here) == sys.executable


def test_an_absent_judge_skips_whoever_asks_it() -> None:
    """By its name, also who only looks through it; a library that is there is itself."""
    absent = judge("no_such_library")
    for ask in (lambda: absent.load, lambda: vars(absent)):
        with pytest.raises(pytest.skip.Exception, match="no_such_library is not installed"):
            ask()
    assert judge("subprocess") is subprocess


def test_what_came_of_a_row_is_kept_and_written_down(tmp_path: Path) -> None:
    """The document says it in words that the table in the terminal has, and which versions were tried."""
    found = _result(tmp_path, "", "", '<skipped message="torch is not installed"/>', "<failure/>")
    found.versions = {"Python": "3.11.9", "numpy": "1.26.4", "ml_dtypes": "0.5.0", "pip": "25.0"}
    keep(found, tmp_path / "results")
    again = kept(ROW, tmp_path / "results")
    assert again == found
    assert kept(OLDEST, tmp_path / "results").verdict == "not tried: not run yet"
    text = document([again, kept(OLDEST, tmp_path / "results")])
    assert "| mine |  | 3.11.9 | 1.26.4 |" in text
    assert "| 2 | 1 | 1 |" in text
    assert "- mine: 1 skipped: torch is not installed" in text
    assert "- mine: FAILED tests.a::test_3" in text
    assert "| ml_dtypes | 0.5.0 |  |" in text
    assert "| pip |" not in text
