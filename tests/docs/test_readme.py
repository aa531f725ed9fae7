"""Every command and every example of the README runs."""

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

README = Path(__file__).resolve().parents[2] / "README.md"


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


def blocks(language: str) -> list[str]:
    fenced = re.findall(r"^```(\w*)\n(.*?)^```$", README.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE)
    return [text for kind, text in fenced if kind == language]


def test_commands_and_code_run(workplace: Path) -> None:
    environment = {**os.environ, "LC_ALL": "C", "PYTHONIOENCODING": ""}
    lines = [line for block in blocks("") for line in block.splitlines() if line.startswith("msformat ")]
    assert len(lines) >= 7
    for line in lines:
        command = [sys.executable, "-m", *shlex.split(line)]
        done = subprocess.run(command, cwd=workplace, capture_output=True, text=True, env=environment, check=False)
        assert done.returncode == 0, f"{line}\n{done.stdout}{done.stderr}"
    for code in blocks("python"):
        whole = (TRAINING if "model=model" in code else "") + code
        subprocess.run([sys.executable, "-W", "error", "-c", whole], cwd=workplace, check=True, capture_output=True)
    with msformat.open(workplace / "captured")[1, None] as unit:
        assert "Module.0.Linear.forward.0" in unit
    original = (workplace / "dump/step0/rank/dump.json").read_bytes()
    assert (workplace / "back/step0/rank/dump.json").read_bytes() == original
