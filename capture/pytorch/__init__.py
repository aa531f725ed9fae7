"""Capture for PyTorch: a drop-in for ``msprobe.pytorch``.

::

    from capture.pytorch import PrecisionDebugger

    debugger = PrecisionDebugger(config_path="config.json")
    for batch in data:
        debugger.start(model=model)
        loss = model(batch).sum()
        loss.backward()
        debugger.stop()
        debugger.step()

Importing has no side effect; functions of torch are wrapped between ``start`` and ``stop`` only.
"""

from __future__ import annotations

from msformat import BackendMissingError

try:
    import torch  # noqa: F401
except ModuleNotFoundError as error:
    if error.name != "torch":
        raise
    raise BackendMissingError("torch", "torch", "capture.pytorch") from error

from capture.errors import CaptureError
from capture.pytorch.debugger import PrecisionDebugger, module_dump, module_dump_end
from capture.pytorch.seed import seed_all

__all__ = ["CaptureError", "PrecisionDebugger", "module_dump", "module_dump_end", "seed_all"]
