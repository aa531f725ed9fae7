"""One tensor through the PyTorch framework, as a hook would have it described."""

from __future__ import annotations

from typing import Any

import torch

from capture.framework import Captured, Wanted
from capture.pytorch.tensors import TorchFramework

STATISTICS = Wanted(statistics=True, data=False, md5=False)
CHECKSUMS = Wanted(statistics=True, data=False, md5=True)
TENSORS = Wanted(statistics=True, data=True, md5=False)
EVERY_WAY = (STATISTICS, CHECKSUMS, TENSORS, Wanted(statistics=True, data=True, md5=True))


def describe(tensor: torch.Tensor, wanted: Wanted = STATISTICS, framework: TorchFramework | None = None) -> Captured:
    """What is recorded of a tensor."""
    framework = framework or TorchFramework()
    with framework.quiet():
        return framework.describe(tensor, wanted)


def statistics(tensor: torch.Tensor, framework: TorchFramework | None = None) -> tuple[Any, Any, Any, Any]:
    """Max, Min, Mean and Norm."""
    node = describe(tensor, STATISTICS, framework).node
    assert "not_captured" not in node, node
    return node["Max"], node["Min"], node["Mean"], node["Norm"]
