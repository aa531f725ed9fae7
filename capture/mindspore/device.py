"""Statistics on an accelerator: reduced there in float32, brought over in batches.

Written with care and run on the CPU only, which stood in for a device, for want of an Ascend.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import mindspore
from mindspore import Tensor, mint
from mindspore._c_expression import TensorPy

from capture.mindspore.statistics import Statistics

__all__ = ["Deferred", "defer", "is_on_host", "resolve"]

# As it is in C++: mindtorch has an attribute of its own, which raises for gradients.
_device: Any = getattr(TensorPy, "device", None)


class Deferred(NamedTuple):
    """Results that are still on the device."""

    results: Tensor
    """Max, Min, Mean and Norm, in float32: shape (4,)."""
    is_bool: bool
    """Whether the tensor holds truth values, of which there are Max and Min only."""


def is_on_host(tensor: Tensor) -> bool:
    """Whether the values lie in the host's memory."""
    if _device is None:  # before MindSpore 2.7
        return str(mindspore.get_context("device_target")) == "CPU"
    return str(_device.__get__(tensor)).startswith("CPU")


def defer(tensor: Tensor) -> Deferred:
    """Begin to compute the statistics of a non-empty tensor of real numbers.

    Raises
    ------
    Exception
        The device has no such kernel.
    """
    wide = tensor.astype(mindspore.float32).reshape((-1,))
    high, low = mint.max(wide), mint.min(wide)
    # The squares of finite values may not be finite: they are scaled by the largest first.
    largest = mint.maximum(mint.abs(high), mint.abs(low))
    usable = mint.logical_and(mint.greater(largest, 0.0), mint.isfinite(largest))
    scale = mint.where(usable, largest, 1.0)
    scaled = mint.div(wide, scale)
    norm = mint.mul(mint.sqrt(mint.sum(mint.mul(scaled, scaled))), scale)
    results = [one.reshape((1,)) for one in (high, low, mint.mean(wide), norm)]
    return Deferred(mint.cat(results), tensor.dtype == mindspore.bool_)


def resolve(pending: list[Deferred]) -> list[Statistics]:
    """What became of them, in order, with one copy for all.

    Raises
    ------
    Exception
        From the device.
    """
    if not pending:
        return []
    rows: Any = mint.cat([one.results for one in pending]).asnumpy().reshape(-1, 4).tolist()
    return [
        (bool(high), bool(low), None, None) if one.is_bool else (high, low, mean, norm)
        for one, (high, low, mean, norm) in zip(pending, rows, strict=True)
    ]
