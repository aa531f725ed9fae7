"""Libraries that judge tests. In an environment without one, the tests that ask it are skipped, by its name."""

from __future__ import annotations

import importlib
import io
from typing import Any, NoReturn

import pytest
from packaging.version import Version

__all__ = ["judge", "torch_is_before", "torch_saves", "torch_type", "torch_types"]


# Since then PyTorch has, and saves, every type that we know of.
_LATEST_TYPES = "2.8"


class _Absent:
    """Stands where the library would: whatever asks it for anything, a test or a whole module, is skipped."""

    __slots__ = ("_name",)

    def __init__(self, name: str) -> None:
        self._name = name

    def _skip(self) -> NoReturn:
        pytest.skip(f"{self._name} is not installed", allow_module_level=True)

    def __getattr__(self, attribute: str) -> NoReturn:
        if attribute.startswith("__"):
            # pytest looks at everything in a module, and asks only for these.
            raise AttributeError(attribute)
        self._skip()

    # What vars() asks for: it would find nothing, and a test that looks through it would find nothing wrong.
    __dict__ = property(_skip)  # type: ignore[assignment]


def judge(name: str) -> Any:
    """The library, or what skips whoever asks it. One that is there and does not load is an error.

    Parameters
    ----------
    name : str
        A top-level module.
    """
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:
            raise
        return _Absent(name)


def torch_types(*names: str) -> list[Any]:
    """Element types by the names of PyTorch, as far as the installed release has them."""
    torch = judge("torch")
    return [getattr(torch, name) for name in names if hasattr(torch, name)]


def torch_type(name: str, *, in_files: bool = False) -> Any:
    """An element type of PyTorch; skips where the installed release has none of that name, or cannot save it."""
    torch = judge("torch")
    if not hasattr(torch, name) and torch_is_before(_LATEST_TYPES):
        pytest.skip(f"PyTorch {torch.__version__} has no {name}")
    dtype = getattr(torch, name)
    if in_files and not torch_saves(dtype):
        pytest.skip(f"PyTorch {torch.__version__} saves no {name}")
    return dtype


def torch_saves(dtype: Any) -> bool:
    """Whether ``torch.save`` knows an element type: before 2.2 it knew neither float8 nor complex32."""
    torch = judge("torch")
    if not torch_is_before(_LATEST_TYPES):
        return True
    try:
        torch.save(torch.zeros(16, dtype=torch.uint8).view(dtype), io.BytesIO())
    except KeyError:
        return False
    return True


def torch_is_before(release: str) -> bool:
    """Whether the installed PyTorch is older than a release, ``"2.2"``."""
    return Version(judge("torch").__version__) < Version(release)
