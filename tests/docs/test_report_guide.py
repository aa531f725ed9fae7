"""Every command of docs/report.md runs."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from msformat.cli import main
from tests.unit.page_dumps import Parsed, write_network

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "report.md"


def commands() -> list[list[str]]:
    blocks = re.findall(r"^```\n(.*?)^```$", GUIDE.read_text("utf-8"), re.DOTALL | re.MULTILINE)
    lines = [line for block in blocks for line in block.splitlines()]
    # Behind two blanks or more there is a remark.
    return [shlex.split(re.split(r" {2,}", line)[0]) for line in lines]


def test_commands_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    write_network(tmp_path / "bad", steps=3, fault=1.5)
    write_network(tmp_path / "good", steps=3)
    monkeypatch.chdir(tmp_path)
    assert len(commands()) == 4
    for program, *arguments in commands():
        assert program == "msformat"
        assert main(arguments) == 0, arguments
    about = Parsed((tmp_path / "report.html").read_text("utf-8")).data()["about"]
    assert about["sides"] == ["bad/", "good/"]


def test_the_picture_is_small() -> None:
    picture = GUIDE.with_name("report.png")
    assert picture.read_bytes().startswith(b"\x89PNG")
    assert picture.stat().st_size < 150_000
