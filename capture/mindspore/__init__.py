"""Capture for MindSpore: a drop-in for ``msprobe.mindspore``.

::

    from capture.mindspore import PrecisionDebugger

    debugger = PrecisionDebugger(config_path="config.json")
    for data, label in dataset:
        debugger.start(net)
        loss, gradients = grad_fn(data, label)
        optimizer(gradients)
        debugger.stop()
        debugger.step()

``save``, ``save_grad`` and ``step`` save single tensors, in a static graph too; they are loaded on first use.
Importing has no side effect; functions of MindSpore are wrapped between ``start`` and ``stop`` only.
"""

from __future__ import annotations

import importlib
from typing import Any

from msformat import BackendMissingError

try:
    import mindspore  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "mindspore":
        raise
    raise BackendMissingError("mindspore", "mindspore", "capture.mindspore") from error

from capture.errors import CaptureError
from capture.mindspore.callbacks import MsprobeInitStep, MsprobeStep
from capture.mindspore.debugger import PrecisionDebugger
from capture.mindspore.seed import seed_all

__all__ = [
    "CaptureError",
    "MsprobeInitStep",
    "MsprobeStep",
    "PrecisionDebugger",
    "save",
    "save_grad",
    "seed_all",
    "step",
]

_LAZY = ("save", "save_grad", "step")


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module("capture.mindspore.graph_save"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
