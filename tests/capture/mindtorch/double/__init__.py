"""A small torch on MindSpore, made like mindtorch of mindnlp 0.5.1, for an environment that has not the real one.

Alike: ``Tensor`` is MindSpore's, functions are Python around its operators, ``nn.Module`` is no Cell and has the
hooks of torch, ``backward`` of tensors does nothing and gradients come from ``value_and_grad``; tensors know their
device by an attribute that gradients lack; ``register_hook`` of tensors does not work; types print as
``mindspore.float32``; and what a program imports as ``torch`` are proxies (see ``proxies``).
"""

from __future__ import annotations

from typing import Any

import mindspore
import numpy as np
from mindspore import Tensor, ops

from tests.capture.mindtorch.double import autograd, distributed, nn

__all__ = [
    "Tensor", "add", "autograd", "bfloat16", "device", "distributed", "flatten", "float32", "int64", "layout",
    "manual_seed", "matmul", "nn", "ones", "randn", "softmax", "tensor",
]  # fmt: skip

float32, bfloat16, int64 = mindspore.float32, mindspore.bfloat16, mindspore.int64
layout = object


class device:  # noqa: N801 (torch's)
    """Where a tensor lies; prints as mindtorch's does."""

    def __init__(self, name: str) -> None:
        self.type, _, index = name.partition(":")
        self.index = int(index) if index else None

    def __repr__(self) -> str:
        return f"device(type={self.type})"


def tensor(data: Any, *, dtype: Any = None) -> Tensor:
    """As torch's."""
    array = np.asarray(data)
    if array.dtype == np.float64:
        array = array.astype(np.float32)
    made = Tensor(array) if dtype is None else Tensor(array, dtype=dtype)
    made._device = device("cpu")
    return made


def randn(*shape: int) -> Tensor:
    """As torch's, of numpy's numbers."""
    return tensor(np.random.randn(*shape))


def ones(*shape: int) -> Tensor:
    """As torch's."""
    return tensor(np.ones(shape, np.float32))


def manual_seed(seed: int) -> None:
    """As torch's."""
    np.random.seed(seed)


def add(input: Any, other: Any) -> Any:  # noqa: A002 (torch's)
    """As torch's."""
    return ops.add(input, other)


def flatten(input: Any, start_dim: int = 0) -> Any:  # noqa: A002
    """As torch's."""
    return ops.reshape(input, (*input.shape[:start_dim], -1))


def matmul(input: Any, other: Any) -> Any:  # noqa: A002
    """As torch's."""
    return ops.matmul(input, other)


def softmax(input: Any, dim: int) -> Any:  # noqa: A002
    """As torch's."""
    return ops.softmax(input, dim)
