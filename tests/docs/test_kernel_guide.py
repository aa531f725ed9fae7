"""The examples of docs/kernel.md do what they say, and its tables name every doubt."""

from __future__ import annotations

import doctest
import re
import zipfile
from pathlib import Path

import pytest

from msformat.foreign.kernel_dump.record import DoubtName
from tests.conftest import GOLDEN_DATA

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "kernel.md"


def test_the_guide(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with zipfile.ZipFile(GOLDEN_DATA / "kernel" / "kernel_dump.zip") as archive:
        archive.extractall(tmp_path)
    (tmp_path / "kernel_dump" / "good").rename(tmp_path / "kernels")
    monkeypatch.chdir(tmp_path)
    options = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE
    failed, tried = doctest.testfile(str(GUIDE), module_relative=False, optionflags=options, encoding="utf-8")
    assert tried > 5
    assert failed == 0


def test_every_doubt_is_explained() -> None:
    text = GUIDE.read_text().partition("## What is doubtful")[2]
    problems, _, notes = text.partition("| note |")
    assert _names(problems) == {doubt.value for doubt in DoubtName if doubt.is_loss}
    assert _names(notes) == {doubt.value for doubt in DoubtName if not doubt.is_loss}


def _names(table: str) -> set[str]:
    """What stands in the first column."""
    rows = [line.split("|")[1] for line in table.splitlines() if line.startswith("| `")]
    return {name for row in rows for name in re.findall(r"`([a-z-]+)`", row)}
