"""The examples of docs/reader.md and of docstrings do what they say."""

from __future__ import annotations

import doctest
import shutil
from collections.abc import Callable
from importlib import import_module
from pathlib import Path

import pytest

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "reader.md"
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


@pytest.fixture
def my_dump(golden: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(golden("torch_8.1.0_mix_tensor"), tmp_path / "my_dump")
    monkeypatch.chdir(tmp_path)


def test_the_guide(my_dump: None) -> None:
    pytest.importorskip("torch")
    failed, tried = doctest.testfile(str(GUIDE), module_relative=False, optionflags=OPTIONS, encoding="utf-8")
    assert tried > 20
    assert failed == 0


@pytest.mark.parametrize("module", ["reader", "unit", "entries", "table", "interop"])
def test_docstrings(my_dump: None, module: str) -> None:
    if module == "interop":
        pytest.importorskip("torch")
    failed, tried = doctest.testmod(import_module(f"msformat.{module}"), optionflags=OPTIONS)
    assert tried > 0
    assert failed == 0
