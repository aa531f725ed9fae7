"""Guides that are run: their blocks in order, in one place, and what they show against what comes out."""

from __future__ import annotations

import doctest
import os
import re
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.DOTALL | re.MULTILINE)
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@dataclass(frozen=True)
class Block:
    """What stands between two fences.

    Attributes
    ----------
    language : str
        ``""`` where the fence says none.
    title : str
        The file that the block is, else ``""``.
    text : str
    """

    language: str
    title: str
    text: str


def blocks_of(page: Path) -> list[Block]:
    """All blocks of a page."""
    found = []
    for head, text in FENCE.findall(page.read_text("utf-8")):
        title = re.search(r'title="([^"]+)"', head)
        found.append(Block(head.split(" ")[0], title[1] if title else "", text))
    return found


def sessions(text: str) -> list[tuple[str, str]]:
    """The commands of a ``console`` block, each with what is shown behind it."""
    _, *parts = re.split(r"^\$ ", text, flags=re.MULTILINE)
    return [(command, shown) for command, _, shown in (part.partition("\n") for part in parts)]


def shell(command: str, place: Path) -> subprocess.CompletedProcess[str]:
    """Run a line as a reader would: ``python`` and ``msformat`` are those of this environment."""
    programs = place / ".programs"
    if not programs.exists():
        programs.mkdir()
        for name, module in (("python", ""), ("msformat", "-m msformat"), ("torchrun", "-m torch.distributed.run")):
            (programs / name).write_text(f'#!/bin/sh\nexec "{sys.executable}" {module} "$@"\n')
            (programs / name).chmod(0o755)
    environment = {
        **os.environ,
        "PATH": f"{programs}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "OMP_NUM_THREADS": "1",
        "COLUMNS": "200",
    }
    words = ["bash", "-c", command]
    done = subprocess.run(
        words, cwd=place, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=environment, check=False
    )
    assert done.returncode != 127, f"no such command: {command}\n{done.stdout}"
    return done


def check_session(command: str, shown: str, place: Path) -> None:
    """Run a command; what is shown has to be what comes, and a difference that is shown the only bad exit code."""
    done = shell(command, place)
    assert done.returncode == int("First divergence" in shown), f"{command}\n{done.stdout}"
    same = doctest.OutputChecker().check_output(shown, done.stdout, OPTIONS)
    assert same, f"{command}\nshown:\n{shown}\ncame:\n{done.stdout}"


def check_examples(text: str, name: str, globs: dict[str, object]) -> None:
    """Run the ``pycon`` block of a page; names live on in ``globs``."""
    test = doctest.DocTestParser().get_doctest(text, globs, name, name, 0)
    found = doctest.DocTestRunner(optionflags=OPTIONS).run(test, clear_globs=False)
    globs.update(test.globs)
    assert found.attempted
    assert not found.failed


def run_guide(page: Path, place: Path) -> None:
    """Write the files of a page, run its commands and its examples, in order."""
    globs: dict[str, object] = {}
    for block in blocks_of(page):
        if block.title:
            (place / block.title).write_text(block.text)
        elif block.language == "console":
            for command, shown in sessions(block.text):
                check_session(command, shown, place)
        elif block.language == "pycon":
            check_examples(block.text, page.name, globs)
