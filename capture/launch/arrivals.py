"""Says when a library has been imported, so that a program can set what it has to set before that."""

from __future__ import annotations

import importlib.util
import sys
from collections.abc import Callable, Sequence
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any

__all__ = ["Arrivals"]


class Arrivals:
    """A finder of ``sys.meta_path`` that finds nothing itself, and goes away when everything has come.

    Parameters
    ----------
    waiting
        Name of a library to what is called when its import is over.
    """

    def __init__(self, waiting: dict[str, Callable[[], None]]) -> None:
        self._waiting = dict(waiting)

    def install(self) -> None:
        """Begin to watch. What is there already is told at once."""
        sys.meta_path.insert(0, self)
        for name in [name for name in self._waiting if name in sys.modules]:
            self._take(name)()

    def find_spec(self, name: str, path: Sequence[str] | None = None, target: Any = None) -> ModuleSpec | None:
        """What the other finders find; the end of the import is heard by its loader."""
        del path, target
        if name not in self._waiting:
            return None
        call = self._take(name)
        spec = importlib.util.find_spec(name)
        if spec is None or spec.loader is None:
            return spec
        loader: Any = _Loader(spec.loader, call)
        spec.loader = loader
        return spec

    def _take(self, name: str) -> Callable[[], None]:
        call = self._waiting.pop(name)
        if not self._waiting and self in sys.meta_path:
            sys.meta_path.remove(self)
        return call


class _Loader:
    """The module's own loader, which it also sees."""

    def __init__(self, loader: Any, call: Callable[[], None]) -> None:
        self._loader, self._call = loader, call

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        """As the loader does."""
        return self._loader.create_module(spec)  # type: ignore[no-any-return]

    def exec_module(self, module: ModuleType) -> None:
        """As the loader does; then say that it is there."""
        module.__loader__ = self._loader
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        self._loader.exec_module(module)
        self._call()
