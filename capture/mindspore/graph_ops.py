"""Operators that bring a tensor out of a compiled graph, and what a graph knows of a tensor while it is compiled.

**Inside and outside.** A function that is called in ``construct`` is *read* by MindSpore's compiler and never run. A
Primitive is where the two worlds meet: the compiler makes a node of it, Python calls its ``__call__``. So
:data:`IN_GRAPH` is a Primitive that is True when compiled and False when called.

**Out of the graph.** ``ops.Custom(func_type="pyfunc")`` runs a Python function on numpy arrays as a kernel (CPU and
GPU; 2.7.1 and 2.10.0). The attribute ``side_effect_io`` keeps a node whose result nobody uses. In the graph of a
gradient it does not, and breaks the compilation of gradients through ``if`` and ``while``: there the result is used, by
``ops.depend``, and the attribute is off (``Tap.stands_alone``).

**What the kernel cannot take** (it ends the whole graph): bfloat16, tensors without elements, and scalars, which arrive
as Python numbers; nor one whose shape is dynamic. All of that is known when the graph is compiled (:data:`KIND`).
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import mindspore
import numpy as np
from mindspore import ops
from numpy.typing import NDArray

from msformat import DType, parse_dtype

__all__ = ["IN_GRAPH", "IS_ASCEND", "KIND", "NumberedTap", "Tap", "carry"]


class _InGraph(ops.PrimitiveWithInfer):  # type: ignore[misc]
    """True in a graph, False in Python."""

    def __init__(self) -> None:
        super().__init__("InGraph")

    def __call__(self) -> bool:
        return False

    def __infer__(self) -> dict[str, Any]:
        return _constant(value=True)


class _IsAscend(ops.PrimitiveWithInfer):  # type: ignore[misc]
    """Whether the graph is compiled for Ascend, where ops.TensorDump works and ops.Custom does not."""

    def __init__(self) -> None:
        super().__init__("IsAscend")

    def __call__(self) -> bool:
        return bool(mindspore.get_context("device_target") == "Ascend")

    def __infer__(self) -> dict[str, Any]:
        return _constant(self())


class _Kind(ops.PrimitiveWithInfer):  # type: ignore[misc]
    """How a tensor is brought to the kernel: ``dynamic`` (not at all), ``empty``, ``[bf16-]plain`` or ``-scalar``."""

    def __init__(self) -> None:
        super().__init__("Kind")

    def __infer__(self, shape: dict[str, Any], dtype: dict[str, Any]) -> dict[str, Any]:
        # Never given the tensor itself: a constant one would be turned into an array, which bfloat16 has none of.
        lengths = shape["value"]
        if lengths is None or any(length is None or length < 0 for length in lengths):
            return _constant("dynamic")
        if 0 in lengths:
            return _constant("empty")
        name = "plain" if lengths else "scalar"
        return _constant(f"bf16-{name}" if dtype["value"] == "BFloat16" else name)


def _constant(value: object) -> dict[str, Any]:
    return {"dtype": None, "shape": None, "value": value}


class Tap(ops.Custom):  # type: ignore[misc]
    """A kernel that hands a tensor to :meth:`receive`. Made while a graph is compiled, from constants.

    Parameters
    ----------
    address
        Where the tensor belongs.
    dtype
        Its element type, as MindSpore spells it (``BFloat16``); the array that comes may be a wider one. ``""`` where
        no value can come.
    shape
        Its shape; the array that comes has at least one element.
    """

    stands_alone = True
    """Whether the node stays though nobody uses its result."""

    def __init__(self, address: tuple[str, ...], dtype: str, shape: tuple[int, ...]) -> None:
        self._address = address
        self._dtype = parse_dtype(dtype)
        self._shape = tuple(shape)
        # An empty shape would do, but MindSpore warns of it.
        super().__init__(self._kernel(), out_shape=(1,), out_dtype=mindspore.bool_, func_type="pyfunc")
        self.add_prim_attr("side_effect_io", self.stands_alone)

    def receive(self, address: tuple[str, ...], bits: NDArray[Any], dtype: DType, number: int) -> None:
        """Take a tensor; ``bits`` are the kernel's memory and stay so. ``number`` is -1 where none was given."""
        raise NotImplementedError

    def failed(self, address: tuple[str, ...], reason: str) -> None:
        """Something went wrong on the way; whatever it was, the graph goes on."""
        raise NotImplementedError

    def _kernel(self) -> Callable[..., NDArray[Any]]:
        """What runs, with as many parameters as the node has inputs: the compiler counts them."""
        return lambda values: self._run(values, -1)

    def _run(self, values: NDArray[Any], number: int) -> NDArray[Any]:
        try:
            if self._dtype is None:
                self.failed(self._address, "a graph gives no tensors whose shape is known at run time only: not saved")
            else:
                self.receive(self._address, self._bits(values, self._dtype), self._dtype, number)
        except Exception as error:  # noqa: BLE001 (an exception here would end the program's graph)
            self.failed(self._address, f"{type(error).__name__}: {error}")
        return np.zeros((1,), np.bool_)

    def _bits(self, values: NDArray[Any], dtype: DType) -> NDArray[Any]:
        flat = np.ascontiguousarray(values).reshape(-1)[: math.prod(self._shape)]
        if dtype.name == "bfloat16":
            bits = (flat.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
        else:
            bits = dtype.to_bits(flat.view(dtype.numpy))
        return bits.reshape(self._shape)


class NumberedTap(Tap):
    """A tap whose tensors come with a number."""

    def _kernel(self) -> Callable[..., NDArray[Any]]:
        return lambda values, number: self._run(values, int(number[0]))


def carry(tap: type[Tap], address: tuple[str, ...], tensor: Any) -> Any:
    """Read by the compiler: the node that hands a tensor over."""
    dtype = str(tensor.dtype)
    kind = KIND(tensor.shape, dtype)
    if kind == "dynamic":
        # Custom operators have no dynamic shapes on the CPU: compiling one with them fails.
        return tap(address, "", ())(ops.zeros((1,), mindspore.float32))
    if kind == "empty":
        return tap(address, dtype, tensor.shape)(ops.zeros((1,), mindspore.float32))
    if kind == "plain":
        return tap(address, dtype, tensor.shape)(ops.stop_gradient(tensor))
    if kind == "scalar":
        return tap(address, dtype, tensor.shape)(ops.stop_gradient(ops.reshape(tensor, (1,))))
    if kind == "bf16-plain":
        return tap(address, dtype, tensor.shape)(ops.stop_gradient(ops.cast(tensor, mindspore.float32)))
    wide = ops.reshape(ops.cast(tensor, mindspore.float32), (1,))
    return tap(address, dtype, tensor.shape)(ops.stop_gradient(wide))


IN_GRAPH = _InGraph()
IS_ASCEND = _IsAscend()
KIND = _Kind()
