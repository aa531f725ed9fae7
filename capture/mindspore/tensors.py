"""MindSpore's side of capture: what is recorded of a tensor, and the state of the program around it."""

from __future__ import annotations

import math
import os
from collections.abc import Callable
from typing import Any

import mindspore
import numpy as np
from mindspore import Tensor
from numpy.typing import NDArray

from capture.framework import Captured, HostTensor, ValueRules, Wanted
from capture.mindspore.contents import Contents
from capture.mindspore.device import Deferred, defer, is_on_host, resolve
from capture.mindspore.leaves import dtype_leaf, dtype_name, leaf, number
from capture.mindspore.listening import GradientListener
from capture.mindspore.quiet import Quiet, settle
from capture.mindspore.statistics import NO_STATISTICS, Statistics, statistics_of
from capture.values import clean_text
from msformat import DType, parse_dtype

__all__ = ["MindSporeFramework"]

_KEYS = ("Max", "Min", "Mean", "Norm")
_ALWAYS_COPIED = 1 << 30
_SMALL = 1 << 14
# Their arrays need numpy's extension types, which depend on the numpy that MindSpore was built for.
_BY_BYTES = frozenset({"bfloat16", "float8_e4m3fn", "float8_e5m2", "hifloat8", "int4"})


class MindSporeFramework:
    """Implements :class:`capture.framework.Framework`; ``describe`` belongs inside ``quiet``.

    Notes
    -----
    **The program's errors.** A kernel's error is raised once, by whoever waits next. What ``describe`` comes upon that
    way is kept for :meth:`give_back`, which hooks call where the program can catch it; nothing is lost and nothing
    that follows is silenced.

    **No kernel is run** for tensors on the host: values are read where they are. On a device statistics are computed
    there, in float32; element types for which it has no kernel are copied.
    """

    name = "mindspore"
    suffix = ".npy"
    rules = ValueRules(odd_is_null=True, none_key="null", bound=number, named={"dtype": dtype_leaf})

    def __init__(self) -> None:
        self._contents = Contents()
        self._gradients = GradientListener()
        self._types: dict[str, DType | None] = {}
        self._on_device_types: dict[str, bool] = {}
        self._foreign: Exception | None = None
        self._runs_on_host: bool | None = None

    # --- tensors -----------------------------------------------------------------------------------------------------

    def is_tensor(self, value: object) -> bool:
        """Whether the value is a ``mindspore.Tensor`` (a Parameter is one)."""
        return issubclass(type(value), Tensor)

    def describe(self, tensor: Tensor, wanted: Wanted) -> Captured:
        """Record of a tensor as it is now: statistics, bits, CRC-32, as wanted; no reference to it is kept."""
        self._settle()
        try:
            return self._describe(tensor, wanted)
        except Exception as error:  # noqa: BLE001 (tensors fail in many ways: a kernel that failed, a lost device)
            return Captured(_node_without_values(tensor, _reason(error)), None, None)

    def _describe(self, tensor: Tensor, wanted: Wanted) -> Captured:
        name = dtype_name(tensor.dtype)
        shape = tuple(tensor.shape)
        node: dict[str, Any] = {"type": "mindspore.Tensor", "dtype": name, "shape": list(shape)}
        node |= dict.fromkeys(_KEYS)
        if not (wanted.statistics or wanted.data or wanted.md5):
            return Captured(node, None, None)
        reason = _why_not(tensor)
        if reason:
            return Captured(node | {"not_captured": reason}, None, None)
        if wanted.data or wanted.md5 or is_on_host(tensor) or math.prod(shape) <= 1:
            return self._on_host(tensor, node, wanted)
        return self._on_device(tensor, node, wanted)

    def _on_host(self, tensor: Tensor, node: dict[str, Any], wanted: Wanted) -> Captured:
        dtype = self._element_type(node["dtype"])
        if dtype is None:
            raise ValueError(f"element type {node['dtype']} cannot be stored")
        bits, owned = _bits(tensor, dtype, tuple(node["shape"]))
        content = self._contents.of(bits, dtype)
        if wanted.statistics:
            if content.statistics is None:
                content.statistics = statistics_of(bits, dtype)
            node.update(zip(_KEYS, content.statistics, strict=True))
        host: HostTensor | None = content.keep(bits, dtype, owned=owned) if wanted.data else None
        if wanted.md5 and host is None:
            # The CRC-32 of bits that are copied anyway is taken later, on the writing thread.
            node["md5"] = content.checksum(bits, dtype)
        return Captured(node, host, None)

    def _on_device(self, tensor: Tensor, node: dict[str, Any], wanted: Wanted) -> Captured:
        """Leave statistics on the device. The first time of a type shows whether it has the kernels."""
        name = node["dtype"]
        has_kernels = self._on_device_types.get(name, not name.startswith("Complex"))
        if has_kernels:
            try:
                late = defer(tensor)
                if name not in self._on_device_types:
                    settle()  # a missing kernel shows when it is waited for, and must not show to the program
            except Exception:  # noqa: BLE001 (what has no kernel is no tensor's fault: it is copied)
                has_kernels = False
        self._on_device_types[name] = has_kernels
        return Captured(node, None, late) if has_kernels else self._on_host(tensor, node, wanted)

    def _element_type(self, name: str) -> DType | None:
        if name not in self._types:
            self._types[name] = parse_dtype(name)
        return self._types[name]

    def resolve(self, pending: list[tuple[dict[str, Any], object]]) -> None:
        """Fill statistics that were left on the device into their nodes, with one copy for all."""
        late = [(node, one) for node, one in pending if isinstance(one, Deferred)]
        try:
            settle()
        except Exception as error:  # noqa: BLE001 (it is kept, and raised by ``give_back``)
            self._foreign = self._foreign or error
        try:
            with Quiet():
                found = resolve([one for _, one in late])
        except Exception:  # noqa: BLE001 (one of them: they are asked one by one)
            found = [self._resolve_alone(node, one) for node, one in late]
        for (node, _), statistics in zip(late, found, strict=True):
            node.update(zip(_KEYS, statistics, strict=True))

    def _resolve_alone(self, node: dict[str, Any], late: Deferred) -> Statistics:
        try:
            with Quiet():
                return resolve([late])[0]
        except Exception as error:  # noqa: BLE001 (a lost device must not end the training)
            node["not_captured"] = _reason(error)
            return NO_STATISTICS

    # --- the program's errors ----------------------------------------------------------------------------------------

    def settle(self) -> None:
        """Wait for kernels on the host, and let through what went wrong in them.

        On a device nothing waits: its errors come out where results are brought over, and :meth:`give_back` has them.
        """
        if self._runs_on_host is None:
            self._runs_on_host = str(mindspore.get_context("device_target")) == "CPU"
        if self._runs_on_host:
            settle()

    def _settle(self) -> None:
        try:
            self.settle()
        except Exception as error:  # noqa: BLE001 (it is kept, and raised by ``give_back``)
            self._foreign = self._foreign or error

    def give_back(self) -> None:
        """Raise what a kernel of the program raised while capture was waiting for it; nothing otherwise.

        To be called by a hook where the program's own errors come out: after an API, after a Cell, at ``stop``.
        """
        error, self._foreign = self._foreign, None
        if error is not None:
            raise error

    # --- the program around them -------------------------------------------------------------------------------------

    def leaf(self, value: object) -> Any:
        """JSON of a dtype or a sparse tensor."""
        return leaf(value)

    def quiet(self) -> Quiet:
        """See :class:`capture.mindspore.quiet.Quiet`."""
        return Quiet()

    def rank(self) -> int | None:
        """Rank in the default group, None when there is none."""
        distributed = mindspore.mint.distributed
        return int(distributed.get_rank()) if distributed.is_initialized() else None

    def is_recompute(self) -> None:
        """None: MindSpore's dumps do not say it."""

    def on_gradient(self, tensor: Tensor, callback: Callable[[Any], None]) -> bool:
        """Call back with the tensor's gradient; False when it takes none. See :class:`GradientListener`."""
        return self._gradients.on_gradient(tensor, callback)

    def new_step(self) -> None:
        """Forget all contents, and gradients that did not come."""
        self._contents.clear()
        self._gradients.forget()


def _bits(tensor: Tensor, dtype: DType, shape: tuple[int, ...]) -> tuple[NDArray[Any], bool]:
    """The tensor's bits in row-major order, and whether they are a copy that nobody else writes to."""
    if dtype.name in _BY_BYTES or math.prod(shape) <= _SMALL:
        # For small ones a copy costs less than an array over their memory: 8 µs to 37.
        return np.frombuffer(tensor.get_bytes(), dtype.storage).reshape(shape), True
    array = np.asarray(tensor.asnumpy())
    is_view = bool(tensor.is_contiguous())  # asnumpy copies others, and what lies on a device
    dense = np.ascontiguousarray(array).reshape(shape)
    if dense.dtype != dtype.storage:
        raise ValueError(f"MindSpore gives {dense.dtype} for {dtype.mindspore_name}")
    return dense, not is_view


def _why_not(tensor: Tensor) -> str:
    """Why the values of a tensor cannot be had without harm; empty when they can."""
    if getattr(tensor, "has_init", False):
        return "it has no values yet (init_data was not called)"
    nbytes = int(tensor._nbytes)  # mindtorch has another ``nbytes``, which does not know all types
    if nbytes > _ALWAYS_COPIED and not tensor.is_contiguous():
        room = os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2
        if nbytes > room:
            return f"a view that would take {nbytes:,} bytes written out"
    return ""


def _node_without_values(tensor: Tensor, reason: str) -> dict[str, Any]:
    """As much of a record as such a tensor gives."""
    node: dict[str, Any] = {"type": "mindspore.Tensor"}
    try:
        node |= {"dtype": dtype_name(tensor.dtype), "shape": list(tensor.shape), **dict.fromkeys(_KEYS)}
    except Exception:  # noqa: BLE001 (what failed may fail again)
        node["value"] = None
    return node | {"not_captured": reason}


def _reason(error: Exception) -> str:
    """What went wrong, without the C++ call stack that MindSpore appends."""
    return clean_text(f"{type(error).__name__}: {error}".partition("\n\n---")[0].strip())
