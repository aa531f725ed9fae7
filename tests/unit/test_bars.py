"""Bars of progress."""

from __future__ import annotations

import pytest

from msformat.cli.bars import BytesBar, EntriesBar


def test_a_bar_a_unit_until_it_is_done(capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FORCE_COLOR", "1")  # rich takes it for a terminal then
    with EntriesBar(enabled=True) as bar:
        for unit in ("step0/rank0", "step0/rank1"):
            bar(unit, 0, 5)
        bar("step0/rank0", 5, 5)
        bar("step0/rank1", 4, 5)
        capsys.readouterr()
    said = capsys.readouterr().err
    assert "step0/rank1" in said
    assert "step0/rank0" not in said


def test_units_that_are_done_are_counted_once(capsys: pytest.CaptureFixture[str]) -> None:
    with BytesBar(enabled=True) as bar:
        for unit in ("step0/rank0", "step0/rank1", "step0/rank1"):
            bar(unit, 1000, 1000)
        bar("step0/rank[red]2\x1b", 1, 7)
    said = capsys.readouterr().err
    assert "2 units done" in said
    assert "step0/rank[red]2\\x1b" in said
    assert "\x1b" not in said


def test_a_bar_that_is_not_wanted_says_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    with EntriesBar(enabled=False), BytesBar(enabled=False):
        pass
    assert capsys.readouterr() == ("", "")
