"""MindSporeFramework keeps the contract that every framework keeps."""

from __future__ import annotations

from typing import Any

import mindspore
import numpy as np
from mindspore import Tensor
from numpy.typing import NDArray

from capture.mindspore.tensors import MindSporeFramework
from tests.capture.framework_contract import FrameworkContract


class TestContract(FrameworkContract):
    name, suffix, says_recompute = "mindspore", ".npy", False

    def framework(self) -> MindSporeFramework:
        return MindSporeFramework()

    def tensor(self, array: NDArray[Any]) -> Tensor:
        return Tensor(array.copy())

    def change(self, tensor: Tensor) -> None:
        # add_ and fill_ change nothing on a CPU, or have no kernel there.
        tensor.copy_(Tensor(np.full((2, 3), 9, np.float32)))

    def a_dtype(self) -> tuple[Any, str]:
        return mindspore.float32, "mindspore.dtype"

    def gradient_of(self, listen: Any) -> NDArray[Any]:
        def forward(tensor: Tensor) -> Tensor:
            listen(tensor)
            return (tensor * 3).sum()

        found = mindspore.grad(forward)(Tensor(np.ones((2, 3), np.float32)))
        return found.asnumpy().copy()  # type: ignore[no-any-return]
