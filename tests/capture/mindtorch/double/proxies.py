"""What a program gets when it imports ``torch``: modules that hand out what another package has, as mindtorch's do."""

from __future__ import annotations

import importlib
import importlib.machinery
from types import ModuleType
from typing import Any

__all__ = ["proxies"]

_PACKAGE = "tests.capture.mindtorch.double"
_MODULES = ("", ".nn", ".nn.functional", ".distributed", ".autograd")


class _Loader:
    def __init__(self, target_name: str) -> None:
        self.target_name = target_name


class _Proxy(ModuleType):
    def __getattr__(self, name: str) -> Any:
        loader = self.__spec__.loader if self.__spec__ is not None else None
        assert isinstance(loader, _Loader)
        return getattr(importlib.import_module(loader.target_name), name)


def proxies() -> dict[str, ModuleType]:
    """The modules for ``sys.modules``."""
    found: dict[str, ModuleType] = {}
    for name in _MODULES:
        module = _Proxy(f"torch{name}")
        module.__spec__ = importlib.machinery.ModuleSpec(f"torch{name}", _Loader(f"{_PACKAGE}{name}"))  # type: ignore[arg-type]
        found[f"torch{name}"] = module
    return found
