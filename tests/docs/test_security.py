"""docs/security.md says which test tries which attack: each of them has to be there."""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
PAGE = ROOT / "docs/security.md"


def rows() -> list[list[str]]:
    lines = [line for line in PAGE.read_text().splitlines() if line.startswith("| ") and "---" not in line]
    cells = [[cell.strip() for cell in re.split(r"(?<!\\)\|", line)[1:-1]] for line in lines]
    return [row for row in cells if row[0] != "attack"]


def test_every_attack_has_a_test_that_is_there() -> None:
    assert len(rows()) > 30
    for row in rows():
        assert len(row) == 3, row
        file, name = re.fullmatch(r"`(\w+\.py)::(\w+)`", row[2]).groups()  # type: ignore[union-attr]
        text = (ROOT / "tests/security" / file).read_text()
        assert re.search(rf"^\s*def {name}\(", text, re.MULTILINE), row


def test_every_file_of_attacks_is_on_the_page() -> None:
    text = PAGE.read_text()
    # What these try is told by the rows of the others.
    alike = {"test_convert_paths.py", "test_kernel_bombs.py"}
    files = {path.name for path in (ROOT / "tests/security").glob("test_*.py")}
    assert {name for name in files if f"`{name}::" not in text} <= alike
