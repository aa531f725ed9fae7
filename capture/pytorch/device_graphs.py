"""Graphs of a device (CUDA graphs): while one is made nothing is computed, and no Python runs while it is replayed.

A dump would be silently without what is in them, step after step; here somebody says so.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch

from capture.patches import Patches

if TYPE_CHECKING:
    from capture.observer import Observer

__all__ = ["DeviceGraphs"]

# Module of the device, and its class of graphs.
_CLASSES = (("cuda", "CUDAGraph"), ("npu", "NPUGraph"), ("xpu", "XPUGraph"))
_TEXTS = {
    "capture_begin": "a graph of the device is made: of what runs into it types and shapes are recorded, no values",
    "replay": "a graph of the device is replayed: nothing inside it is recorded (partial capture)",
}


class DeviceGraphs:
    """Says when a program makes or replays a graph of its device.

    Parameters
    ----------
    observer
        Hears of it, once a kind and class.
    """

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._patches = Patches()

    def install(self) -> None:
        """Listen to the graph classes there are; without effect when it does."""
        self._patches.restore()
        for device, name in _CLASSES:
            kind = getattr(getattr(torch, device, None), name, None)
            if isinstance(kind, type):
                for method in _TEXTS:
                    if hasattr(kind, method):
                        self._patches.put(kind, method, self._telling(f"torch.{device}.{name}", method))

    def remove(self) -> None:
        """Put the methods back."""
        self._patches.restore()

    def _telling(self, where: str, method: str) -> Callable[[Any], Any]:
        observer = self._observer

        def make(original: Any) -> Any:
            @functools.wraps(original)
            def telling(*args: Any, **kwargs: Any) -> Any:
                if observer.running:
                    observer.problem(f"device graph: {method}", where, _TEXTS[method])
                return original(*args, **kwargs)

            return telling

        return make
