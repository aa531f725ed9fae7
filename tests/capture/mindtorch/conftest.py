"""MindSpore and the double of mindtorch run in MindSpore's process (see tests/capture/mindspore/conftest.py)."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Any

import pytest

from tests.capture.mindspore.conftest import _numpy_is_there, _said

__all__ = ["_numpy_is_there", "_said"]

collect_ignore_glob = [] if importlib.util.find_spec("mindspore") is not None else ["test_*.py"]


@pytest.fixture(autouse=True)
def _folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """What MindSpore writes into the working directory goes away."""
    monkeypatch.chdir(tmp_path)


@pytest.fixture
def torch(monkeypatch: pytest.MonkeyPatch) -> Any:
    """The double, as a program imports it; it changes MindSpore as mindtorch does, while it is there."""
    import mindspore
    from mindspore._c_expression import typing

    from tests.capture.mindtorch.double.proxies import proxies

    def register_hook(tensor: Any, hook: Any) -> Any:
        return tensor._data.register_hook(hook)  # no tensor has it

    def device(tensor: Any) -> Any:
        if not hasattr(tensor, "_device"):
            raise ValueError("Tensor must have device")
        return tensor._device

    monkeypatch.setattr(mindspore.Tensor, "register_hook", register_hook)
    monkeypatch.setattr(mindspore.Tensor, "device", property(device), raising=False)
    monkeypatch.setattr(typing.Type, "__str__", typing.Type.__repr__)
    for name, module in proxies().items():
        monkeypatch.setitem(sys.modules, name, module)
    return sys.modules["torch"]
