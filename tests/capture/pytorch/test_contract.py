"""TorchFramework keeps the contract that every framework keeps."""

from __future__ import annotations

from typing import Any

import torch
from numpy.typing import NDArray

from capture.pytorch.tensors import TorchFramework
from tests.capture.framework_contract import FrameworkContract


class TestContract(FrameworkContract):
    name, suffix, says_recompute = "pytorch", ".pt", True

    def framework(self) -> TorchFramework:
        return TorchFramework()

    def tensor(self, array: NDArray[Any]) -> torch.Tensor:
        return torch.from_numpy(array.copy())

    def change(self, tensor: torch.Tensor) -> None:
        tensor.fill_(9)

    def a_dtype(self) -> tuple[Any, str]:
        return torch.float32, "torch.dtype"

    def gradient_of(self, listen: Any) -> NDArray[Any]:
        tensor = torch.ones((2, 3), requires_grad=True)
        listen(tensor)
        (tensor * 3).sum().backward()
        assert tensor.grad is not None
        return tensor.grad.numpy()  # type: ignore[no-any-return]
