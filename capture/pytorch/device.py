"""Statistics on an accelerator: reduced there, brought over in batches.

Nothing waits for the device before :func:`resolve`, which copies all results of a batch together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

import torch

from capture.pytorch.hostcopy import PinnedCopy
from capture.pytorch.raw import aminmax, complex_abs, copy_to, numel, summed, vector_norm
from capture.pytorch.statistics import NO_STATISTICS, Statistics, float_if_exact

__all__ = ["Deferred", "defer", "is_capturing_graph", "resolve"]

# Where sums can be kept in float64 at the speed of memory. Elsewhere (NPU, MPS) the type may not exist.
_FLOAT64_DEVICES = frozenset({"cuda", "cpu"})


class Deferred:
    """Results that are still on the device.

    Attributes
    ----------
    results
        Tensors of one element each.
    finish
        Statistics from their values.
    stream
        The stream that computes them.
    copy
        Bits on their way to the host, which must have arrived when the results have.
    """

    __slots__ = ("copy", "finish", "results", "stream")

    def __init__(self, results: tuple[torch.Tensor, ...], finish: Callable[..., Statistics]) -> None:
        self.results = results
        self.finish = finish
        self.stream = _current_stream(results[0].device) if results else None
        self.copy: PinnedCopy | None = None

    @classmethod
    def nothing(cls) -> Deferred:
        """No statistics to wait for."""
        return cls((), lambda: NO_STATISTICS)


def defer(tensor: torch.Tensor) -> Deferred | None:
    """Begin to compute the statistics of a non-empty plain tensor; None where its bits are no numbers."""
    dtype = tensor.dtype
    if dtype.is_complex:
        return _defer_complex(tensor)
    if dtype == torch.bool:
        low, high = aminmax(tensor.to(torch.uint8))
        return Deferred((high, low), lambda high, low: (bool(high), bool(low), None, None))
    if not dtype.is_floating_point:
        return _defer_integers(tensor)
    if dtype.itemsize == 1:
        tensor = copy_to(tensor, torch.float32)
    return _defer_reals(tensor)


def _defer_reals(tensor: torch.Tensor) -> Deferred:
    count = numel(tensor)
    low, high = aminmax(tensor)
    total, norm = _total_and_norm(tensor, low, high)
    return Deferred((high, low, total, norm), lambda high, low, total, norm: (high, low, total / count, norm))


def _total_and_norm(tensor: torch.Tensor, low: torch.Tensor, high: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    if tensor.device.type in _FLOAT64_DEVICES:
        return summed(tensor, dtype=torch.float64), vector_norm(tensor, dtype=torch.float64)
    # In float32 the squares of finite values may not be finite: they are scaled by the largest first.
    wide = copy_to(tensor, torch.float32)
    largest = torch.maximum(copy_to(high, torch.float32).abs(), copy_to(low, torch.float32).abs())
    scale = torch.where((largest > 0) & torch.isfinite(largest), largest, torch.ones_like(largest))
    return summed(wide), vector_norm(wide / scale) * scale


def _defer_integers(tensor: torch.Tensor) -> Deferred:
    if tensor.dtype in _WIDE_UNSIGNED:
        tensor = copy_to(tensor, torch.int64)  # uint64 beyond 2**63 wraps; no device reduces it
    count = numel(tensor)
    low, high = aminmax(tensor)
    wide = torch.float64 if tensor.device.type in _FLOAT64_DEVICES else torch.float32
    total, norm = summed(tensor, dtype=wide), vector_norm(copy_to(tensor, wide))

    def finish(high: int, low: int, total: float, norm: float) -> Statistics:
        return float_if_exact(high), float_if_exact(low), total / count, norm

    return Deferred((high, low, total, norm), finish)


def _defer_complex(tensor: torch.Tensor) -> Deferred:
    count = numel(tensor)
    wide = torch.complex128 if tensor.device.type in _FLOAT64_DEVICES else torch.complex64
    modulus = complex_abs(copy_to(tensor, wide))
    low, high = aminmax(modulus)
    return Deferred((high, low, summed(modulus)), lambda high, low, total: (high, low, total / count, None))


def resolve(deferred: Iterable[Deferred]) -> list[Statistics]:
    """Statistics of a batch, in order: one copy for each device and element type in it.

    Raises
    ------
    RuntimeError
        From the device.
    """
    batch = list(deferred)
    groups: dict[tuple[torch.device, torch.dtype], list[torch.Tensor]] = {}
    for one in batch:
        if one.copy is not None:
            one.copy.wait()
        _join_stream(one)
        for result in one.results:
            groups.setdefault((result.device, result.dtype), []).append(result.reshape(()))
    values = {key: iter(torch.stack(results).tolist()) for key, results in groups.items()}
    # Each group was filled in this order.
    return [one.finish(*(next(values[result.device, result.dtype]) for result in one.results)) for one in batch]


def _accelerator(device: torch.device) -> Any:
    """``torch.cuda``, ``torch.npu``, …; None for the CPU and for modules without streams."""
    module = getattr(torch, device.type, None)
    return module if device.type != "cpu" and hasattr(module, "current_stream") else None


def _current_stream(device: torch.device) -> Any:
    module = _accelerator(device)
    return None if module is None else module.current_stream(device)


def _join_stream(one: Deferred) -> None:
    """What another stream computes must be finished before this one copies it."""
    if one.stream is None:
        return
    current = _current_stream(one.results[0].device)
    if one.stream != current:
        one.stream.synchronize()
        one.stream = current


def is_capturing_graph(device: torch.device) -> bool:
    """Whether operations on the device go into a graph now instead of being carried out."""
    module = _accelerator(device)
    check = getattr(module, "is_current_stream_capturing", None)
    return check is not None and bool(check())


_WIDE_UNSIGNED = frozenset(
    getattr(torch, name)
    for name in ("uint16", "uint32", "uint64")
    if hasattr(torch, name)  # torch 2.3
)
