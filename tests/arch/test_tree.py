"""Laws of the tree: what stands at the top, how long a file may grow, what no commit may name."""

from __future__ import annotations

import ast
import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TRACKED = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines()
SOURCES = [name for name in TRACKED if name.endswith(".py") and name.startswith(("msformat/", "capture/"))]


def test_top_level_holds_what_the_plan_says() -> None:
    allowed = {
        ".ci", ".gitignore", "LICENSE", "Makefile", "README.md", "README.zh.md", "capture", "docs", "mkdocs.yml",
        "msformat", "pyproject.toml", "tests", "tools",
    }  # fmt: skip
    assert {name.split("/")[0] for name in TRACKED} <= allowed


@pytest.mark.parametrize("name", SOURCES)
def test_a_file_is_read_in_one_sitting(name: str) -> None:
    assert len((ROOT / name).read_text().splitlines()) <= 450


@pytest.mark.parametrize("name", SOURCES)
def test_importing_a_module_does_nothing(name: str) -> None:
    """At module level there are only imports, definitions, assignments and the ``__main__`` guard."""
    allowed = (ast.Import, ast.ImportFrom, ast.FunctionDef, ast.ClassDef, ast.Assign, ast.AnnAssign, ast.If, ast.Try)
    for node in ast.parse((ROOT / name).read_text()).body:
        docstring = isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant)
        assert docstring or isinstance(node, allowed), f"{name}:{node.lineno}"


@pytest.mark.parametrize("name", SOURCES)
def test_no_module_rebinds_globals(name: str) -> None:
    found = [node.lineno for node in ast.walk(ast.parse((ROOT / name).read_text())) if isinstance(node, ast.Global)]
    assert not found, f"{name}: global at lines {found}"


def test_no_path_of_one_machine_is_committed() -> None:
    pattern = re.compile("/(?:work|root|home/[a-z]+|tmp/[a-z])/")
    for name in TRACKED:
        path = ROOT / name
        if path.suffix in {".py", ".md", ".toml", ".json"} or name in {"Makefile", ".ci/run"}:
            assert not pattern.search(path.read_text()), name
