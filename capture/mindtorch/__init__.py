"""Capture for a torch that runs on MindSpore (MSAdapter, mindtorch): ``msprobe.mindspore`` does this by itself there.

::

    import mindtorch, torch

    from capture.mindtorch import PrecisionDebugger

    debugger = PrecisionDebugger(config_path="config.json")
    for batch in data:
        debugger.start(model=model)
        loss = torch.autograd.value_and_grad(forward, model.parameters())(batch)
        debugger.stop()
        debugger.step()

Importing has no side effect; functions of torch are replaced between ``start`` and ``stop`` only.
"""

from __future__ import annotations

from capture.errors import CaptureError
from capture.mindtorch.debugger import PrecisionDebugger, module_dump, module_dump_end
from capture.mindtorch.environment import is_mindtorch
from capture.mindtorch.seed import seed_all

__all__ = ["CaptureError", "PrecisionDebugger", "is_mindtorch", "module_dump", "module_dump_end", "seed_all"]
