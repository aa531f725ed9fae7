"""PyTorch's side of capture: what is recorded of a tensor, and the state of the program around it."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import torch
from torch._C import DisableTorchFunction, _DisableTorchDispatch

from capture.framework import Captured, HostTensor, ValueRules, Wanted
from capture.pytorch.contents import ElementType
from capture.pytorch.device import Deferred, defer, is_capturing_graph, resolve
from capture.pytorch.hostcopy import PinnedCopy, live_memory
from capture.pytorch.leaves import leaf
from capture.pytorch.quiet import Quiet, recompute_is_running
from capture.pytorch.raw import (
    contiguous,
    copy_to,
    dispatch_keys,
    is_contiguous,
    item,
    narrow,
    numel,
    permute,
    stride,
    untyped_storage,
)
from capture.pytorch.releases import keys_as_value
from capture.pytorch.special import Subject, dequantized, plain_keys, subject_of
from capture.pytorch.statistics import NO_STATISTICS, Statistics, of_one
from capture.values import clean_text

__all__ = ["TorchFramework"]

_STATISTICS_ONLY = Wanted(statistics=True, data=False, md5=False)
_ALWAYS_COPIED = 1 << 30
_KEYS = ("Max", "Min", "Mean", "Norm")
_ONE_ELEMENT_TYPES = frozenset(
    {torch.float32, torch.float64, torch.float16, torch.bfloat16, torch.bool}
    | {torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64}
)


class TorchFramework:
    """Implements :class:`capture.framework.Framework`.

    Everything but ``describe`` may be called anywhere; ``describe`` belongs inside ``quiet``.

    Parameters
    ----------
    precision
        ``high``: statistics accurate to float32; ``low``: 16-bit types are reduced in their own type.
    pinned
        Copy bits from a device while the program goes on (:class:`capture.pytorch.hostcopy.PinnedCopy`); they are there
        once ``resolve`` has returned. False: copy and wait.

    Notes
    -----
    **Same content once.** Whether a content is known is decided by a hash of its bytes and by nothing else
    (:mod:`capture.pytorch.contents`), so what is recorded is what is in memory, whoever wrote it.
    """

    name = "pytorch"
    suffix = ".pt"
    rules = ValueRules()

    def __init__(self, *, precision: str = "high", pinned: bool = False) -> None:
        self._precision = precision
        self._pinned = pinned
        self._types: dict[torch.dtype, ElementType] = {}
        self._plain_keys = plain_keys()

    # --- tensors -----------------------------------------------------------------------------------------------------

    def is_tensor(self, value: object) -> bool:
        """Whether the value is a ``torch.Tensor``."""
        return issubclass(type(value), torch.Tensor)  # a proxy that claims to be one has no memory

    def describe(self, tensor: torch.Tensor, wanted: Wanted) -> Captured:
        """Record of a tensor as it is now: statistics, bits, CRC-32, as wanted; no reference to it is kept."""
        try:
            kind = type(tensor)
            known = kind is torch.Tensor or kind is torch.nn.Parameter
            if known and keys_as_value(dispatch_keys(tensor)) in self._plain_keys:
                return self._plain(tensor, wanted)
            return self._special(tensor, wanted)
        except Exception as error:  # noqa: BLE001 (tensors fail in many ways: lost devices, foreign subclasses)
            return Captured(_node_without_values(tensor, f"{type(error).__name__}: {error}"), None, None)

    def _plain(self, tensor: torch.Tensor, wanted: Wanted) -> Captured:
        if (wanted.data or wanted.md5) and _is_too_wide(tensor):
            wide = self._plain(tensor, wanted._replace(data=False, md5=False))
            wide.node["not_captured"] = f"a view that would take {_nbytes(tensor):,} bytes written out"
            return wide
        known = self.element_type(tensor.dtype)
        shape = list(tensor.shape)
        node: dict[str, Any] = {"type": "torch.Tensor", "dtype": known.name, "shape": shape}
        statistics, crc, host = self._values(tensor, known, shape, wanted)
        node["Max"], node["Min"], node["Mean"], node["Norm"] = statistics
        node["requires_grad"] = tensor.requires_grad
        if crc is not None:
            node["md5"] = crc
        return Captured(node, host, None)

    def _values(
        self, tensor: torch.Tensor, known: ElementType, shape: list[int], wanted: Wanted
    ) -> tuple[Statistics, str | None, HostTensor | None]:
        """Statistics, CRC-32 and bits of a plain CPU tensor."""
        statistics_only = not (wanted.data or wanted.md5)
        if statistics_only:
            if not wanted.statistics or not numel(tensor):
                return NO_STATISTICS, None, None
            if numel(tensor) == 1 and tensor.dtype in _ONE_ELEMENT_TYPES:
                return of_one(item(tensor)), None, None
        repeats, owned = 1, None
        if not is_contiguous(tensor):
            tensor, repeats, owned = _compact(tensor, keep_order=not statistics_only)
        memory = live_memory(tensor)
        content = known.content(memory)
        statistics = content.statistics if wanted.statistics else NO_STATISTICS
        if statistics is None:
            statistics = known.reduce(tensor) if numel(tensor) else NO_STATISTICS
            content.statistics = statistics
        if repeats != 1 and statistics[3] is not None:
            statistics = (*statistics[:3], statistics[3] * math.sqrt(repeats))
        if statistics_only:
            return statistics, None, None
        if known.stored is None:
            raise ValueError(f"element type {known.name} cannot be stored")
        host = content.host(memory, known.stored, shape, owned) if wanted.data else None
        # The CRC-32 of bits that are copied anyway is taken later, on the writing thread.
        crc = content.checksum(memory, known.stored) if wanted.md5 and host is None else None
        return statistics, crc, host

    def element_type(self, dtype: torch.dtype) -> ElementType:
        """What is known of an element type."""
        found = self._types.get(dtype)
        if found is None:
            found = self._types[dtype] = ElementType(dtype, self._precision)
        return found

    # --- other tensors -----------------------------------------------------------------------------------------------

    def _special(self, tensor: torch.Tensor, wanted: Wanted) -> Captured:
        with DisableTorchFunction(), _DisableTorchDispatch():
            subject = subject_of(tensor)
            node, host, pending = self._subject(tensor, subject, wanted)
            node["requires_grad"] = bool(tensor.requires_grad)
        if "md5" in node:
            node["md5"] = node.pop("md5")  # its place is behind requires_grad
        return Captured({**node, **subject.extras, **_reason(subject, wanted)}, host, pending)

    def _subject(
        self, outer: torch.Tensor, subject: Subject, wanted: Wanted
    ) -> tuple[dict[str, Any], HostTensor | None, Deferred | None]:
        inner = subject.tensor
        if inner is None:
            return _node(outer, list(outer.shape)), None, None
        shape = list(inner.shape) if subject.shape is None else subject.shape
        node = _node(inner, shape)
        if not inner.is_cpu:
            return self._on_device(inner, node, shape, wanted)
        if subject.zeros or subject.reason:
            wanted = wanted._replace(data=False, md5=False)
        numbers = dequantized(inner) if inner.is_quantized else inner
        statistics, crc, host = self._values(inner, self.element_type(inner.dtype), shape, wanted)
        if numbers is not inner and wanted.statistics:
            statistics = self._values(numbers, self.element_type(numbers.dtype), shape, _STATISTICS_ONLY)[0]
        if subject.zeros:
            statistics = _with_zeros(statistics, numel(inner), subject.zeros)
        node.update(zip(_KEYS, statistics, strict=True))
        return node | ({} if crc is None else {"md5": crc}), host, None

    def _on_device(
        self, tensor: torch.Tensor, node: dict[str, Any], shape: list[int], wanted: Wanted
    ) -> tuple[dict[str, Any], HostTensor | None, Deferred | None]:
        """Statistics are left on the device; bits come over in a plain copy, which waits for them."""
        if is_capturing_graph(tensor.device):
            raise RuntimeError("a device graph is being captured: nothing is computed now")
        pending = defer(tensor) if wanted.statistics and numel(tensor) else None
        if not (wanted.data or wanted.md5):
            return node, None, pending
        if self._pinned and not wanted.md5:
            return node, *self._copy_later(tensor, shape, pending or Deferred.nothing())
        there = copy_to(contiguous(tensor), "cpu")
        _, crc, host = self._values(there, self.element_type(there.dtype), shape, wanted._replace(statistics=False))
        return node | ({} if crc is None else {"md5": crc}), host, pending

    def _copy_later(
        self, tensor: torch.Tensor, shape: list[int], pending: Deferred
    ) -> tuple[HostTensor | None, Deferred]:
        stored = self.element_type(tensor.dtype).stored
        if stored is None:
            raise ValueError(f"element type {tensor.dtype} cannot be stored")
        pending.copy = PinnedCopy(tensor)
        return pending.copy.host(stored, shape), pending

    def resolve(self, pending: list[tuple[dict[str, Any], object]]) -> None:
        """Fill statistics that were left on the device into their nodes, with one copy for all."""
        nodes = [node for node, late in pending if isinstance(late, Deferred)]
        try:
            with Quiet():
                found = resolve(late for _, late in pending if isinstance(late, Deferred))
        except Exception as error:  # noqa: BLE001 (a lost device must not end the training)
            for node in nodes:
                node["not_captured"] = clean_text(f"{type(error).__name__}: {error}")
            return
        for node, statistics in zip(nodes, found, strict=True):
            node.update(zip(_KEYS, statistics, strict=True))

    # --- the program around them -------------------------------------------------------------------------------------

    def leaf(self, value: object) -> Any:
        """JSON of a dtype, device, process group and the like."""
        return leaf(value)

    def quiet(self) -> Quiet:
        """See :class:`capture.pytorch.quiet.Quiet`."""
        return Quiet()

    def rank(self) -> int | None:
        """Rank in the default process group, None when there is none."""
        distributed = torch.distributed
        return distributed.get_rank() if distributed.is_available() and distributed.is_initialized() else None

    def is_recompute(self) -> bool:
        """Whether this is the forward that activation checkpointing runs during the backward pass."""
        return recompute_is_running()

    def on_gradient(self, tensor: torch.Tensor, callback: Callable[[Any], None]) -> bool:
        """Call back with the tensor's gradient; False when it takes none."""

        def observe(gradient: torch.Tensor) -> None:
            callback(gradient)

        try:
            if not tensor.requires_grad:
                return False
            hookable: Any = tensor
            hookable.register_hook(observe)
        except RuntimeError:
            return False
        return True

    def new_step(self) -> None:
        """Forget all contents."""
        for known in self._types.values():
            known.contents.clear()


def _node(tensor: torch.Tensor, shape: list[int]) -> dict[str, Any]:
    lengths = [length if type(length) is int else -1 for length in shape]
    return {"type": "torch.Tensor", "dtype": str(tensor.dtype), "shape": lengths, **dict.fromkeys(_KEYS)}


def _node_without_values(tensor: torch.Tensor, reason: str) -> dict[str, Any]:
    """As much of a record as such a tensor gives."""
    with DisableTorchFunction():
        try:
            node = _node(tensor, list(tensor.shape))
            node["requires_grad"] = bool(tensor.requires_grad)
        except Exception:  # noqa: BLE001 (an uninitialised parameter has no shape)
            node = {"type": "torch.Tensor", "value": None}
    return node | {"not_captured": clean_text(reason)}


def _reason(subject: Subject, wanted: Wanted) -> dict[str, str]:
    if not subject.reason or (subject.tensor is not None and not (wanted.data or wanted.md5)):
        return {}
    return {"not_captured": subject.reason}


def _nbytes(tensor: torch.Tensor) -> int:
    nbytes: int = numel(tensor) * tensor.element_size()
    return nbytes


def _is_too_wide(tensor: torch.Tensor) -> bool:
    """Whether an expanded view, written out, would take memory that is not there: ten numbers may stand for 10**12."""
    nbytes = _nbytes(tensor)
    if nbytes <= _ALWAYS_COPIED or is_contiguous(tensor) or nbytes <= 2 * untyped_storage(tensor).nbytes():
        return False
    return nbytes > os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2


def _compact(tensor: torch.Tensor, *, keep_order: bool) -> tuple[torch.Tensor, int, object]:
    """Contiguous tensor with the same values, how often each of its values stands for one, and who keeps its memory.

    Where order does not matter, axes are swapped and repeated ones left out instead of copied: a transposed view, or an
    expanded gradient, is read where it is.
    """
    if keep_order:
        dense = contiguous(tensor)
        return dense, 1, dense
    repeats = 1
    for axis, (step, length) in enumerate(zip(stride(tensor), tensor.shape, strict=True)):
        if step == 0 and length > 1:
            tensor, repeats = narrow(tensor, axis, 0, 1), repeats * length
    steps = stride(tensor)
    tensor = permute(tensor, sorted(range(len(steps)), key=lambda axis: -steps[axis]))
    return contiguous(tensor), repeats, None


def _with_zeros(statistics: Statistics, count: int, zeros: int) -> Statistics:
    """Statistics of a sparse tensor's values, with the zeros that it does not hold."""
    largest, smallest, mean, norm = statistics
    if count == 0:
        return 0.0, 0.0, 0.0, 0.0
    if isinstance(largest, bool):
        return largest, False, None, None
    # NaN stays: comparing with it is False.
    high, low = 0.0 if largest < 0 else largest, 0.0 if smallest > 0 else smallest
    return high, low, mean * count / (count + zeros), norm
