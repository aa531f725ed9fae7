"""MindSpore runs in a process of its own: it and torch bring libraries that do not agree."""

from __future__ import annotations

import importlib.util
import logging
import sys
import warnings
from collections.abc import Iterator
from pathlib import Path

import pytest

collect_ignore_glob = [] if importlib.util.find_spec("mindspore") is not None else ["test_*.py"]

if not collect_ignore_glob:
    with warnings.catch_warnings():
        # Built for numpy 1.26, and says so where numpy 2 is.
        warnings.simplefilter("ignore")
        import mindspore


@pytest.fixture(scope="session", autouse=True)
def _numpy_is_there() -> None:
    """With numpy 2, MindSpore's first operation with a Python number fails to load numpy, and all later ones work."""
    assert "torch" not in sys.modules, "MindSpore's tests need a process of their own: see the Makefile"
    try:
        mindspore.mint.add(mindspore.Tensor([1.0]), 1)
    except SystemError as error:
        assert "returned a result with an exception set" in str(error)  # noqa: PT017 (only some versions raise)


@pytest.fixture(autouse=True)
def _clean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """What MindSpore writes into the working directory goes away; the mode is PyNative before and after."""
    monkeypatch.chdir(tmp_path)
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)
    yield
    mindspore.set_context(mode=mindspore.PYNATIVE_MODE)


@pytest.fixture(autouse=True)
def _said(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, logger="msformat.capture")
