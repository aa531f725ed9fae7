"""Every command and every example of the README runs, in both languages."""

from __future__ import annotations

import os
import re
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

import msformat

ROOT = Path(__file__).resolve().parents[2]
PAGES = [ROOT / "README.md", ROOT / "README.zh.md"]


@pytest.fixture
def workplace(golden: Callable[[str], Path], tmp_path: Path) -> Path:
    """A folder with ``dump/``: a link would be refused as a way out, so the tree is copied."""
    import shutil

    shutil.copytree(golden("torch_8.1.0_mix_tensor"), tmp_path / "dump")
    return tmp_path


# What an example of a training takes for granted.
TRAINING = """
import torch
model, data = torch.nn.Sequential(torch.nn.Linear(4, 4), torch.nn.ReLU()), [torch.ones(2, 4)] * 2
"""


def blocks(page: Path, language: str) -> list[str]:
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return [text for kind, text in fenced if kind == language]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_commands_and_code_run(workplace: Path, page: Path) -> None:
    environment = {**os.environ, "LC_ALL": "C", "PYTHONIOENCODING": ""}
    lines = [line for block in blocks(page, "") for line in block.splitlines() if line.startswith("msformat ")]
    assert len(lines) >= 7
    for line in lines:
        command = [sys.executable, "-m", *shlex.split(line)]
        done = subprocess.run(command, cwd=workplace, capture_output=True, text=True, env=environment, check=False)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    for code in blocks(page, "python"):
        whole = code
        if "model=model" in code:
            pytest.importorskip("torch")
            whole = TRAINING + code
        subprocess.run([sys.executable, "-W", "error", "-c", whole], cwd=workplace, check=True, capture_output=True)
    with msformat.open(workplace / "captured")[1, None] as unit:
        assert "Module.0.Linear.forward.0" in unit
    original = (workplace / "dump/step0/rank/dump.json").read_bytes()
    assert (workplace / "back/step0/rank/dump.json").read_bytes() == original


def test_both_languages_say_the_same() -> None:
    """Commands, code without its remarks, names and links are the same; each links to the other."""
    english, chinese = (page.read_text("utf-8") for page in PAGES)
    assert "](README.zh.md)" in english
    assert "](README.md)" in chinese
    ours, theirs = (re.sub(r"#.*", "", "".join(blocks(page, "python"))).split() for page in PAGES)
    assert ours == theirs
    assert _commands(PAGES[0]) == _commands(PAGES[1])
    assert set(re.findall(r"\]\((docs/[^)]+)\)", english)) == set(re.findall(r"\]\((docs/[^)]+)\)", chinese))
    assert english.count("\n## ") == chinese.count("\n## ")
    assert english.count("\n| ") == chinese.count("\n| ")


def _commands(page: Path) -> list[str]:
    lines = [line for block in blocks(page, "") for line in block.splitlines()]
    return [line.partition("#")[0].strip() for line in lines if line.startswith(("msformat ", "make ", "pip "))]
