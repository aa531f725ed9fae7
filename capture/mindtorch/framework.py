"""The values of a torch that runs on MindSpore: its tensors are MindSpore's, other things are torch's."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from capture.mindspore.tensors import MindSporeFramework
from capture.mindtorch.tensorhooks import SHOWS_GRAPH, hook
from capture.values import NOT_A_LEAF, Fields

if TYPE_CHECKING:
    from capture.mindtorch.environment import TorchEnvironment

__all__ = ["MindTorchFramework"]

_BY_TEXT = ("device", "layout", "memory_format", "qscheme")


class MindTorchFramework(MindSporeFramework):
    """Implements :class:`capture.framework.Framework`: the tensors of MindSpore, named for mindtorch.

    Parameters
    ----------
    environment
        Whose devices and process groups may occur.
    """

    name = "mindtorch"

    def __init__(self, environment: TorchEnvironment) -> None:
        super().__init__()
        self._torch = environment.torch
        kinds = [(getattr(self._torch, name, None), f"torch.{name}") for name in _BY_TEXT]
        # ``layout = object`` in mindtorch of mindnlp 0.5.1: everything would be one.
        self._by_text = [(kind, name) for kind, name in kinds if isinstance(kind, type) and kind is not object]

    def leaf(self, value: object) -> Any:
        """JSON of a dtype or a sparse tensor as MindSpore's, of a device or a P2POp as torch's."""
        found = super().leaf(value)
        if found is not NOT_A_LEAF:
            return found
        operation = getattr(getattr(self._torch, "distributed", None), "P2POp", None)
        if isinstance(operation, type) and isinstance(value, operation):
            return Fields(_operation(value))
        for kind, name in self._by_text:
            if isinstance(value, kind):
                return {"type": name, "value": _device_name(value) if name == "torch.device" else str(value)}
        return NOT_A_LEAF

    def rank(self) -> int | None:
        """Rank in the default process group of torch, else of MindSpore; None when there is neither."""
        distributed = getattr(self._torch, "distributed", None)
        if distributed is not None and distributed.is_available() and distributed.is_initialized():
            return int(distributed.get_rank())
        return super().rank()

    def on_gradient(self, tensor: Any, callback: Callable[[Any], None]) -> bool:
        """Call back with the tensor's gradient; False when it takes none."""
        return super().on_gradient(tensor, callback) if SHOWS_GRAPH else hook(tensor, callback)


def _device_name(device: Any) -> str:
    """``npu:0``, ``cpu``: mindtorch prints its devices as ``device(type=cpu)``."""
    kind, index = getattr(device, "type", None), getattr(device, "index", None)
    if not isinstance(kind, str):
        return str(device)
    return kind if index is None else f"{kind}:{index}"


def _operation(value: Any) -> dict[str, Any]:
    """A P2POp by its parts, as far as it has them."""
    parts = {name: getattr(value, name, None) for name in ("tensor", "op", "peer", "tag")}
    return {"class_type": "torch.distributed.P2POp"} | parts | {"op": getattr(parts["op"], "__name__", None)}
