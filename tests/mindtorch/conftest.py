"""The real mindtorch, of mindnlp 0.5.1 with MindSpore 2.7.0, in an environment of its own (make test-mindtorch)."""

from __future__ import annotations

import importlib.util
import logging
from pathlib import Path
from typing import Any

import pytest

collect_ignore_glob = [] if importlib.util.find_spec("mindtorch") is not None else ["test_*.py"]


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Warnings of mindnlp and of what it needs are not ours."""
    for item in items:
        item.add_marker(pytest.mark.filterwarnings("ignore"))


@pytest.fixture
def torch() -> Any:
    """As a program imports it."""
    import mindtorch  # noqa: F401 (it puts ``torch`` there)
    import torch

    return torch


@pytest.fixture(autouse=True)
def _clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What MindSpore writes into the working directory goes away."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture(autouse=True)
def _said(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="msformat.capture")
