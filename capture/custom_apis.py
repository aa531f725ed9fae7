"""Functions that a user wants recorded (``register_custom_api``), beside those of the framework."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any

from capture.patches import Patches

__all__ = ["CustomApis"]


class CustomApis(ABC):
    """Base of what replaces a framework's functions: the same for functions that a user names.

    They are remembered when capture is taken out, and are there again with it.
    """

    def __init__(self) -> None:
        self._custom: dict[tuple[int, str], tuple[Any, str]] = {}
        self._custom_patches = Patches()
        self._installed = False

    def add_custom(self, module: Any, api_name: str, prefix: str) -> None:
        """Record ``module.api_name`` as ``{prefix}.{api_name}`` from now on, while capture is installed.

        Raises
        ------
        AttributeError
            If the module has no such attribute.
        TypeError
            If it cannot be called.
        """
        if not callable(getattr(module, api_name)):
            raise TypeError(f"{api_name!r} of {module!r} cannot be called, so there is nothing to record")
        self.remove_custom(module, api_name)
        self._custom[id(module), api_name] = (module, prefix)
        if self._installed:
            self._put_custom(module, api_name, prefix)

    def remove_custom(self, module: Any, api_name: str) -> None:
        """Undo :meth:`add_custom`; nothing happens when it was never done."""
        self._custom.pop((id(module), api_name), None)
        self._custom_patches.restore_one(module, api_name)

    def _put_all_custom(self) -> None:
        for (_, name), (owner, prefix) in self._custom.items():
            self._put_custom(owner, name, prefix)

    def _put_custom(self, owner: Any, name: str, prefix: str) -> None:
        def make(original: Any) -> Any:
            if isinstance(original, (staticmethod, classmethod)):
                return type(original)(make(original.__func__))
            return self._make_custom(original, owner, prefix, name)

        self._custom_patches.put(owner, name, make)

    @abstractmethod
    def _make_custom(self, function: Callable[..., Any], owner: Any, prefix: str, name: str) -> Any:
        """The stand-in for a function of ``owner``, recorded as ``{prefix}.{name}``."""
