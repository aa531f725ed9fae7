"""docs/reports.md has every report once, and names the tests of reports, here and with MindSpore, each and no other."""

from __future__ import annotations

import ast
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/reports.md").read_text().partition("\n## ")[0]
ROWS = re.findall(r"^\| (R\d{3}) \| [^|]* \| ([^|]*?) \| ([^|]*) \| ([^|]*) \|$", PAGE, re.MULTILINE)
# Every report that was handed in; numbers that are missing here never were.
REPORTS = """
001 002 004 005 006 008 009 010 012 013 014 016 017 018 020 021 022 024 025 026 028 029 030 032 033 034 036 037 038 040
041 042 044 045 046 048 049 050 052 053 054 056 057 058 060 061 062 064 065 066 068 069 070 072 073 074 076 077 078 080
081 082 084 085 086 088 089 090 092 093 094 096 097 098 100 101 102 104 105 106 108 109 110 112 113 114 116 117 118 120
121 122 124 125 126 128 129 130 132 133 134 136 137 138 140 141 142 144 145 146 148 149 150 152 153 154 156 157 158 160
161 162 164 165 166 168 169
"""


def reported() -> dict[str, ast.FunctionDef]:
    """Tests anywhere that are named by a report. Those of MindSpore cannot be imported here."""
    return {
        node.name: node
        for path in (ROOT / "tests").rglob("test_*.py")
        for node in ast.walk(ast.parse(path.read_text("utf-8")))
        if isinstance(node, ast.FunctionDef) and re.match(r"test_r\d{3}_", node.name)
    }


def test_every_report_is_there_once() -> None:
    assert sorted(number for number, *_ in ROWS) == [f"R{number}" for number in REPORTS.split()]
    assert len(re.findall(r"^\| R", PAGE, re.MULTILINE)) == len(ROWS)
    assert {state for _, state, *_ in ROWS} <= {"right", "not applicable", "open in part", "waits for hardware"}


def test_the_page_names_every_test() -> None:
    named = {(number, name) for number, _, names, _ in ROWS for name in re.findall(r"`(\w+)`", names)}
    written = {(f"R{number}", name) for name in reported() for number in re.findall(r"(?<=r)\d{3}(?=_)", name)}
    assert named == written


def test_each_report_has_a_test_or_a_reason() -> None:
    for number, state, names, remarks in ROWS:
        assert names.strip() or state == "not applicable", number
        assert remarks.strip() or state == "right", number


def test_each_test_of_a_report_says_what_is_right() -> None:
    for name, node in reported().items():
        found = [ast.unparse(part) for part in ast.walk(node) if isinstance(part, ast.Assert | ast.withitem)]
        assert any(text.startswith(("assert", "pytest.raises")) for text in found), name
