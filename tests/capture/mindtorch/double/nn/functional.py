"""Functions around operators of MindSpore that its CPU backend has."""

from __future__ import annotations

from typing import Any

import mindspore
from mindspore import mint, ops

__all__ = ["conv2d", "cross_entropy", "dropout", "embedding", "layer_norm", "linear", "relu"]


def relu(input: Any, inplace: bool = False) -> Any:  # noqa: A002 (torch's)
    """As torch's."""
    assert not inplace, "the CPU backend has no such kernel"
    return ops.relu(input)


def linear(input: Any, weight: Any, bias: Any = None) -> Any:  # noqa: A002
    """As torch's."""
    return mint.nn.functional.linear(input, weight, bias)


def conv2d(input: Any, weight: Any, bias: Any, stride: Any, padding: Any, dilation: Any, groups: int) -> Any:  # noqa: A002
    """As torch's."""
    return ops.conv2d(input, weight, bias, stride[0], "pad", padding[0], dilation[0], groups)


def layer_norm(input: Any, normalized_shape: Any, weight: Any, bias: Any, eps: float) -> Any:  # noqa: A002
    """As torch's."""
    del normalized_shape  # the last one
    centred = ops.sub(input, ops.mean(input, -1, True))
    variance = ops.mean(ops.mul(centred, centred), -1, True)
    return ops.add(ops.mul(ops.div(centred, ops.sqrt(ops.add(variance, eps))), weight), bias)


def embedding(input: Any, weight: Any) -> Any:  # noqa: A002
    """As torch's."""
    return ops.gather(weight, input, 0)


def dropout(input: Any, p: float = 0.5, training: bool = True) -> Any:  # noqa: A002
    """As mindtorch's: the input itself where nothing is dropped."""
    return input if not training or p == 0 else ops.dropout(input, p)


def cross_entropy(input: Any, target: Any) -> Any:  # noqa: A002
    """As torch's."""
    wide = input.astype(input.dtype)  # as mindtorch does; nobody's call but this function's
    return ops.cross_entropy(wide, target.astype(mindspore.int32))
