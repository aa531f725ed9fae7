"""Tells the observer when an optimizer steps and when gradients are clipped: construct.json hangs APIs below those."""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import torch
from torch.optim.optimizer import register_optimizer_step_post_hook, register_optimizer_step_pre_hook

from capture.patches import Patches

if TYPE_CHECKING:
    from capture.observer import Observer

__all__ = ["TreeRoots"]

_CLIPPING = ("clip_grad_norm_", "clip_grad_norm", "clip_grad_value_")


class TreeRoots:
    """Names what runs outside of modules: ``optimizer`` and ``clip_grad``."""

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        self._handles: list[Any] = []
        self._patches = Patches()

    def install(self) -> None:
        """Watch every optimizer of the process, and the functions that clip gradients."""
        self._handles = [
            register_optimizer_step_pre_hook(self._optimizer_begins),
            register_optimizer_step_post_hook(self._optimizer_ends),
        ]
        for name in _CLIPPING:
            if hasattr(torch.nn.utils, name):
                self._patches.put(torch.nn.utils, name, self._clipping)
        megatron = getattr(sys.modules.get("megatron.core.optimizer"), "MegatronOptimizer", None)
        if hasattr(megatron, "clip_grad_norm"):
            self._patches.put(megatron, "clip_grad_norm", self._clipping)

    def remove(self) -> None:
        """Undo it; a step that is still running ends as far as the tree is concerned."""
        for handle in self._handles:
            handle.remove()
        self._handles = []
        self._patches.restore()
        self._observer.tree_root(None)

    def _optimizer_begins(self, *_: Any) -> None:
        self._observer.tree_root("optimizer")

    def _optimizer_ends(self, *_: Any) -> None:
        self._observer.tree_root(None)

    def _clipping(self, function: Callable[..., Any]) -> Callable[..., Any]:
        @functools.wraps(function)
        def clip(*args: Any, **kwargs: Any) -> Any:
            self._observer.tree_root("clip_grad")
            try:
                return function(*args, **kwargs)
            finally:
                self._observer.tree_root(None)

        return clip
