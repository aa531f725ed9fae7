"""The contract, kept in the real mindtorch."""

from __future__ import annotations

from tests.capture.mindtorch.contract import MindTorchContract


class TestMindTorch(MindTorchContract):
    """MindSpore 2.7.0 shows no graph."""

    shows_graph = False
