"""``torch.jit.script`` while capture is on: it would compile the hooks of a module, and cannot compile ours."""

from __future__ import annotations

import sys
from collections import OrderedDict
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import wraps
from typing import Any

from torch import nn

__all__ = ["ScriptingGuard"]

_HOOKS = ("_forward_pre_hooks", "_forward_hooks")
_MARKS = ("_forward_pre_hooks_with_kwargs", "_forward_hooks_with_kwargs", "_forward_hooks_always_called")


class ScriptingGuard:
    """Hides hooks from the compiler for as long as it looks at a module.

    Parameters
    ----------
    is_ours
        Tells the hooks to hide.
    on_script
        Told the class of each hooked module that is scripted or traced.
    """

    def __init__(self, is_ours: Callable[[object], bool], on_script: Callable[[str], None]) -> None:
        self._is_ours, self._on_script = is_ours, on_script
        self._original: Callable[..., Any] | None = None

    def install(self) -> None:
        """Stand before the compiler. Where this version of torch has no such place, nothing happens."""
        compiler = sys.modules.get("torch.jit._recursive")
        original = getattr(compiler, "create_script_module", None)
        if original is None or self._original is not None:
            return

        @wraps(original)
        def create_script_module(module: Any, *args: Any, **kwargs: Any) -> Any:
            with self._hidden(module):
                return original(module, *args, **kwargs)

        self._original = original
        compiler.create_script_module = create_script_module  # type: ignore[union-attr]

    def remove(self) -> None:
        """Step aside."""
        original, self._original = self._original, None
        if original is not None:
            sys.modules["torch.jit._recursive"].create_script_module = original  # type: ignore[attr-defined]

    @contextmanager
    def _hidden(self, module: Any) -> Iterator[None]:
        changed: list[tuple[nn.Module, str, Any]] = []
        try:
            if isinstance(module, nn.Module):
                for part in module.modules():
                    self._hide(part, changed)
            if changed:
                self._on_script(type(module).__name__)
            yield
        finally:
            for part, name, hooks in changed:
                part.__dict__[name] = hooks

    def _hide(self, module: nn.Module, changed: list[tuple[nn.Module, str, Any]]) -> None:
        ours = {key for name in _HOOKS for key, hook in getattr(module, name, {}).items() if self._is_ours(hook)}
        if not ours:
            return
        for name in _HOOKS + _MARKS:
            hooks = module.__dict__.get(name)
            if hooks is not None:
                changed.append((module, name, hooks))
                module.__dict__[name] = OrderedDict((key, hook) for key, hook in hooks.items() if key not in ours)
