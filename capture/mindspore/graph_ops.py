"""Operators that bring a tensor out of a compiled graph, and what a graph knows of a tensor while it is compiled.

**Inside and outside.** A function that is called in ``construct`` is *read* by MindSpore's compiler and never run. A
Primitive is where the two worlds meet: the compiler makes a node of it, Python calls its ``__call__``. So
:data:`IN_GRAPH` is a Primitive that is True when compiled and False when called.

**Out of the graph.** ``ops.Custom(func_type="pyfunc")`` runs a Python function on numpy arrays as a kernel (CPU and GPU,
MindSpore 2.7.1 and 2.10.0). The attribute ``side_effect_io`` keeps a node whose result nobody uses, and keeps such
nodes in the order of the program. In the graph of a gradient it does not: there the result must be used, by
``ops.depend``.

**What the kernel cannot take** (it ends the whole graph): bfloat16, tensors without elements, and scalars, which arrive
as Python numbers. All of that is known when the graph is compiled (:data:`KIND`), unless a shape is dynamic.
"""

from __future__ import annotations

import math
from typing import Any

import mindspore
import numpy as np
from mindspore import ops
from numpy.typing import NDArray

from msformat import DType, parse_dtype

__all__ = ["IN_GRAPH", "IS_ASCEND", "KIND", "Tap", "carry", "padded"]


class _InGraph(ops.PrimitiveWithInfer):  # type: ignore[misc]
    """True in a graph, False in Python."""

    def __init__(self) -> None:
        super().__init__("InGraph")

    def __call__(self) -> bool:
        return False

    def __infer__(self) -> dict[str, Any]:
        return _constant(True)


class _IsAscend(ops.PrimitiveWithInfer):  # type: ignore[misc]
    """Whether the graph is compiled for Ascend, where ops.TensorDump works and ops.Custom does not."""

    def __init__(self) -> None:
        super().__init__("IsAscend")

    def __call__(self) -> bool:
        return bool(mindspore.get_context("device_target") == "Ascend")

    def __infer__(self) -> dict[str, Any]:
        return _constant(self())


class _Kind(ops.PrimitiveWithInfer):  # type: ignore[misc]
    """How a tensor has to be brought to the kernel: ``plain``, ``scalar``, ``empty``, ``dynamic``; ``bf16-`` before."""

    def __init__(self) -> None:
        super().__init__("Kind")

    def __infer__(self, tensor: dict[str, Any]) -> dict[str, Any]:
        shape = tuple(tensor["shape"])
        name = "plain"
        if any(length < 0 for length in shape):
            name = "dynamic"
        elif 0 in shape:
            return _constant("empty")
        elif not shape:
            name = "scalar"
        is_bfloat16 = "bfloat16" in str(tensor["dtype"]).lower()
        return _constant(f"bf16-{name}" if is_bfloat16 else name)


def _constant(value: object) -> dict[str, Any]:
    return {"dtype": None, "shape": None, "value": value}


class Tap(ops.Custom):  # type: ignore[misc]
    """A kernel that hands a tensor to :meth:`receive`. Made while a graph is compiled, from constants.

    Parameters
    ----------
    address
        Where the tensor belongs.
    dtype
        Its element type, as MindSpore spells it (``BFloat16``); the array that comes may be a wider one.
    shape
        Its shape; None where it comes along with the values, because it is dynamic.
    """

    def __init__(self, address: tuple[str, ...], dtype: str, shape: tuple[int, ...] | None) -> None:
        self._address = address
        self._dtype = parse_dtype(dtype)
        self._shape = shape
        super().__init__(self._run, out_shape=(), out_dtype=mindspore.bool_, func_type="pyfunc")
        self.add_prim_attr("side_effect_io", True)

    def receive(self, address: tuple[str, ...], bits: NDArray[Any], dtype: DType) -> None:
        """Take a tensor; ``bits`` are the kernel's memory and stay so."""
        raise NotImplementedError

    def failed(self, address: tuple[str, ...], error: Exception) -> None:
        """Something went wrong on the way; whatever it was, the graph goes on."""
        raise NotImplementedError

    def _run(self, *values: Any) -> NDArray[Any]:
        try:
            assert self._dtype is not None
            self.receive(self._address, self._bits(*values), self._dtype)
        except Exception as error:  # noqa: BLE001 (an exception here would end the program's graph)
            self.failed(self._address, error)
        return np.zeros((), np.bool_)

    def _bits(self, values: NDArray[Any], shape: NDArray[Any] | None = None) -> NDArray[Any]:
        assert self._dtype is not None
        wanted = self._shape if self._shape is not None else tuple(int(length) for length in np.asarray(shape)[1:])
        flat = np.ascontiguousarray(values).reshape(-1)[: math.prod(wanted)]
        if self._dtype.name == "bfloat16":
            flat = (flat.view(np.uint32) >> np.uint32(16)).astype(np.uint16)
        return self._dtype.to_bits(flat.view(self._dtype.numpy)).reshape(wanted)


def carry(tap: type[Tap], address: tuple[str, ...], tensor: Any) -> Any:
    """Read by the compiler: the node that hands a tensor over. Its result must be used in the graph of a gradient."""
    kind = KIND(tensor)
    dtype = str(tensor.dtype)
    if kind == "empty":
        return tap(address, dtype, tensor.shape)(ops.zeros((1,), mindspore.float32))
    if kind == "plain":
        return tap(address, dtype, tensor.shape)(ops.stop_gradient(tensor))
    if kind == "scalar":
        return tap(address, dtype, tensor.shape)(ops.stop_gradient(ops.reshape(tensor, (1,))))
    if kind == "bf16-plain":
        return tap(address, dtype, tensor.shape)(ops.stop_gradient(ops.cast(tensor, mindspore.float32)))
    if kind == "bf16-scalar":
        return tap(address, dtype, tensor.shape)(
            ops.stop_gradient(ops.reshape(ops.cast(tensor, mindspore.float32), (1,)))
        )
    if kind == "bf16-dynamic":
        return tap(address, dtype, None)(*padded(ops.cast(tensor, mindspore.float32)))
    return tap(address, dtype, None)(*padded(tensor))


def padded(tensor: Any) -> Any:
    """Read by the compiler: values and shape of a tensor of dynamic shape, each with an element more.

    Without it a tensor that turns out to be empty would end the graph.
    """
    flat = ops.reshape(ops.stop_gradient(tensor), (-1,))
    values = ops.concat((flat, ops.zeros((1,), flat.dtype)))
    shape = ops.concat((ops.ones((1,), mindspore.int64), ops.TensorShape()(tensor)))
    return values, shape


IN_GRAPH = _InGraph()
IS_ASCEND = _IsAscend()
KIND = _Kind()
