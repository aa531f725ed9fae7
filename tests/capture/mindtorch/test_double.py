"""The contract, kept in a small double of mindtorch, with the graph of a newer MindSpore and without it."""

from __future__ import annotations

import sys
from typing import Any

import pytest

from capture.mindtorch import CaptureError, PrecisionDebugger, backwards, is_mindtorch
from tests.capture.mindtorch.contract import MindTorchContract


class TestWithGraph(MindTorchContract):
    """As MindSpore 2.7.1 and later."""


class TestWithoutGraph(MindTorchContract):
    """As MindSpore 2.7.0, on which the real mindtorch runs: hooks on tensors alone."""

    shows_graph = False

    @pytest.fixture(autouse=True)
    def _hide_graph(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(backwards, "SHOWS_GRAPH", False)


def test_without_torch_the_reason_is_said(tmp_path: Any) -> None:
    assert not is_mindtorch()
    with pytest.raises(CaptureError, match=r"it was not imported.*capture\.pytorch is for PyTorch"):
        PrecisionDebugger(dump_path=tmp_path, task="tensor", level="L0")


def test_another_torch_is_none(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    import types

    other = types.ModuleType("torch")
    other.tensor = float  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "torch", other)
    assert not is_mindtorch()
    with pytest.raises(CaptureError, match="its tensors are not MindSpore's"):
        PrecisionDebugger(dump_path=tmp_path, task="tensor", level="L0")
