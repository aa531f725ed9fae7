"""The examples of docs/notebook.md do what they say."""

from __future__ import annotations

import doctest
import shutil
from collections.abc import Callable
from pathlib import Path

import matplotlib as mpl
import pytest
from matplotlib import pyplot as plt

GUIDE = Path(__file__).resolve().parents[2] / "docs" / "notebook.md"
OPTIONS = doctest.ELLIPSIS | doctest.NORMALIZE_WHITESPACE


def test_the_guide(golden: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(golden("torch_8.1.0_mix_tensor"), tmp_path / "my_dump")
    monkeypatch.chdir(tmp_path)
    mpl.use("Agg")
    failed, tried = doctest.testfile(str(GUIDE), module_relative=False, optionflags=OPTIONS, encoding="utf-8")
    plt.close("all")
    assert tried > 20
    assert failed == 0
    assert (tmp_path / "nan.png").read_bytes().startswith(b"\x89PNG")
