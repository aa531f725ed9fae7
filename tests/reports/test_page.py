"""docs/reports.md names the tests of reports, here and with MindSpore, each and no other."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/reports.md").read_text().partition("\n## ")[0]
PLACES = (
    *(ROOT / "tests/reports").glob("test_*.py"),
    # Those of MindSpore need a process of their own.
    ROOT / "tests/capture/mindspore/test_reports.py",
)
ROWS = re.findall(r"^\| (R\d{3}) \| [^|]* \| ([^|]*?) \| ([^|]*) \|", PAGE, re.MULTILINE)


def test_every_report_is_there_once() -> None:
    assert len(ROWS) == len({number for number, _, _ in ROWS}) == 127
    assert {state for _, state, _ in ROWS} == {"right", "open in part"}


def test_the_page_names_every_test() -> None:
    named = {(number, name) for number, _, names in ROWS for name in re.findall(r"`(\w+)`", names)}
    written = {
        (f"R{number}", name)
        for path in PLACES
        for name in re.findall(r"^def (test_r\d\w+)\(", path.read_text(), re.MULTILINE)
        for number in re.findall(r"(?<=r)\d{3}(?=_)", name)
    }
    assert named == written


def test_what_is_right_has_a_test() -> None:
    for number, state, names in ROWS:
        assert bool(names.strip()) == (state in ("right", "open in part")), number
