"""Whether ``torch`` is MindSpore underneath, and where the things of that ``torch`` really are.

MSAdapter and mindtorch give programs a ``torch`` whose tensors are MindSpore's. Nothing here imports ``torch``: which
one it is, is the program's choice, made before capture is asked for.
"""

from __future__ import annotations

import functools
import sys
from types import ModuleType
from typing import Any

from capture.errors import CaptureError

__all__ = ["TorchEnvironment", "is_mindtorch"]


def is_mindtorch() -> bool:
    """Whether the program's ``torch`` makes tensors of MindSpore; asked as msprobe asks it.

    False also when ``torch`` or ``mindspore`` was not imported yet: import it before the debugger is made.
    """
    torch, mindspore = sys.modules.get("torch"), sys.modules.get("mindspore")
    return torch is not None and mindspore is not None and _makes_mindspore_tensors(torch, mindspore)


@functools.lru_cache(maxsize=2)
def _makes_mindspore_tensors(torch: ModuleType, mindspore: ModuleType) -> bool:
    try:
        return isinstance(torch.tensor(0.0), mindspore.Tensor)
    except Exception:  # noqa: BLE001 (half-imported, or something else that is called torch)
        return False


class TorchEnvironment:
    """The ``torch`` of a program, past the proxies that stand for it.

    Parameters
    ----------
    torch
        What ``import torch`` gives; a stand-in of another package's module is followed to that module.

    Attributes
    ----------
    torch
        The module itself.
    """

    def __init__(self, torch: ModuleType) -> None:
        self.torch: Any = _behind(torch)

    @classmethod
    def current(cls) -> TorchEnvironment:
        """The one this program runs in.

        Raises
        ------
        CaptureError
            ``torch`` is PyTorch, or was not imported.
        """
        if not is_mindtorch():
            found = "it was not imported" if "torch" not in sys.modules else "its tensors are not MindSpore's"
            raise CaptureError(
                f"capture.mindtorch needs a torch that runs on MindSpore, imported before a debugger is made; {found}. "
                "capture.pytorch is for PyTorch, capture.mindspore for MindSpore"
            )
        return cls(sys.modules["torch"])

    @property
    def module_class(self) -> type[Any]:
        """``torch.nn.Module``."""
        found: type[Any] = self.torch.nn.Module
        return found

    def place(self, dotted: str) -> Any:
        """The module or class of a dotted path (``torch.nn.functional``); None where this torch has none.

        What the proxies hand out comes from it, so that a replaced attribute is seen by everybody.
        """
        value: Any = self.torch
        for part in dotted.split(".")[1:]:
            value = _behind(getattr(value, part, None))
        return value

    def npu(self) -> Any:
        """``torch_npu``, if the program imported it."""
        return _behind(sys.modules.get("torch_npu"))


def _behind(module: Any) -> Any:
    """The module that a proxy takes its attributes from: mindtorch names it in the loader of the proxy."""
    target = getattr(getattr(getattr(module, "__spec__", None), "loader", None), "target_name", None)
    return sys.modules.get(target, module) if isinstance(target, str) else module
