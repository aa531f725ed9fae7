"""docs/tutorial.md: a real fault is planted and found, and everything on the page is what comes out."""

from __future__ import annotations

from pathlib import Path

import pytest

import msformat
from tests.docs.guides import ROOT, blocks_of, run_guide, sessions

GUIDE = ROOT / "docs" / "tutorial.md"


def test_everything_shown_is_what_comes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    pytest.importorskip("torch")
    monkeypatch.chdir(tmp_path)
    commands = [command for block in blocks_of(GUIDE) for command, _ in sessions(block.text)]
    assert len(commands) >= 12
    run_guide(GUIDE, tmp_path)
    assert (tmp_path / "report.html").read_text("utf-8").startswith("<!")
    with msformat.open(tmp_path / "layer3") as dump:
        assert all("layer_norm" in key or "layers.3.norm" in key for key in dump[0])
