"""The site builds without a warning, and a reader needs no network for it."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.guides import ROOT

PAGES = [ROOT / "README.md", ROOT / "README.zh.md"]


def test_it_builds_strictly_and_fetches_nothing(tmp_path: Path) -> None:
    pytest.importorskip("mkdocs")
    pytest.importorskip("material")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(tmp_path / "site")]
    environment = {**os.environ, "NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=environment, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    built = sorted((tmp_path / "site").rglob("*.html"))
    assert {page.stem for page in (ROOT / "docs").glob("*.md")} <= {page.stem for page in built}
    for page in built:
        text = page.read_text("utf-8")
        fetched = re.findall(r'<(?:script|img|iframe|source)[^>]*\ssrc="?(?:https?:)?//', text)
        fetched += [tag for tag in re.findall(r"<link[^>]*>", text) if "//" in tag and 'rel="canonical"' not in tag]
        assert not fetched, page.name


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_of_the_readme_lead_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)#]+)[^)]*\)", page.read_text("utf-8"))
    assert len(links) > 10
    for link in links:
        assert link.startswith("https://") or (ROOT / link).exists(), link
