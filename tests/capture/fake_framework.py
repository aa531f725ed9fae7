"""A framework over numpy arrays, for tests of everything that must not know which framework it serves.

Its tensors have what capture can trip over: in-place changes, gradients, types without data, and no patience for being
iterated, compared or asked for their truth.
"""

from __future__ import annotations

import contextlib
import zlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, ClassVar, NoReturn

import numpy as np
from numpy.typing import NDArray

from capture.framework import Captured, HostTensor, ValueRules, Wanted
from msformat import dtype_from_numpy

STATISTICS = ("Max", "Min", "Mean", "Norm")


def _refuse(self: object, *_: object) -> NoReturn:
    raise AssertionError("a tensor was iterated, measured, compared or asked for its truth")


class FakeTensor:
    """An array that counts its in-place changes and calls hooks with gradients.

    Parameters
    ----------
    array
        Its values; kept, not copied.
    odd
        Why it has no data (``sparse``, ``meta``), or nothing.
    """

    __slots__ = ("__weakref__", "array", "hooks", "odd", "requires_grad", "version")

    def __init__(self, array: Any, *, requires_grad: bool = False, odd: str = "") -> None:
        self.array: NDArray[Any] = np.asarray(array)
        self.requires_grad = requires_grad
        self.odd = odd
        self.version = 0
        self.hooks: list[Callable[[Any], None]] = []

    __iter__ = __len__ = __bool__ = __eq__ = __getitem__ = _refuse
    __hash__ = object.__hash__

    def fill_(self, value: float) -> FakeTensor:
        """Change it in place."""
        self.array[...] = value
        self.version += 1
        return self

    def backward(self, gradient: FakeTensor) -> None:
        """What a backward pass does once it knows the gradient."""
        for hook in list(self.hooks):
            hook(gradient)


@dataclass(frozen=True)
class FakeDType:
    """A value of the framework that is no tensor; recorded as a leaf."""

    spelling: str


@dataclass
class FakeFramework:
    """Implements :class:`capture.framework.Framework`. The switches at the top play the situations of a training.

    Attributes
    ----------
    number
        Rank of the process, None for a single one.
    recompute
        What ``is_recompute`` says.
    deferred
        Statistics stay "on the device" until ``resolve``.
    described
        Tensors that ``describe`` was asked about, by id, in order.
    resolved
        Size of each batch that ``resolve`` was given.
    quiet_depth
        Blocks of ``quiet`` that are open.
    """

    name: str = "pytorch"
    suffix: str = ".npy"
    rules: ClassVar[ValueRules] = ValueRules()
    number: int | None = None
    recompute: bool = False
    deferred: bool = False
    described: list[int] = field(default_factory=list)
    resolved: list[int] = field(default_factory=list)
    steps: int = 0
    quiet_depth: int = 0
    _hosts: dict[tuple[int, int], tuple[FakeTensor, HostTensor]] = field(default_factory=dict)

    def is_tensor(self, value: object) -> bool:
        return isinstance(value, FakeTensor)

    def describe(self, tensor: FakeTensor, wanted: Wanted) -> Captured:
        self.described.append(id(tensor))
        array = tensor.array
        node: dict[str, Any] = {"type": "torch.Tensor", "dtype": f"torch.{array.dtype}", "shape": list(array.shape)}
        node |= dict.fromkeys(STATISTICS) | {"requires_grad": tensor.requires_grad}
        if tensor.odd:
            return Captured(node | {"not_captured": f"{tensor.odd} tensor"}, None, None)
        if wanted.md5:
            node["md5"] = f"{zlib.crc32(np.ascontiguousarray(array).tobytes()):08x}"
        # A copy, since what is pending must stay what it was.
        pending = array.copy() if wanted.statistics else None
        if pending is not None and not self.deferred:
            self.resolve([(node, pending)])
            pending = None
        return Captured(node, self._host(tensor) if wanted.data else None, pending)

    def _host(self, tensor: FakeTensor) -> HostTensor:
        """The copy of this content, made once. The tensor is kept with it, so that its id is not given to another."""
        key = (id(tensor), tensor.version)
        if key not in self._hosts:
            bits = np.array(tensor.array, order="C", copy=True)
            self._hosts[key] = tensor, HostTensor(bits, dtype_from_numpy(bits.dtype))
        return self._hosts[key][1]

    def leaf(self, value: object) -> Any:
        from capture.values import NOT_A_LEAF

        return {"type": "fake.dtype", "value": value.spelling} if isinstance(value, FakeDType) else NOT_A_LEAF

    def resolve(self, pending: list[tuple[dict[str, Any], object]]) -> None:
        self.resolved.append(len(pending))
        for node, values in pending:
            assert isinstance(values, np.ndarray)
            node.update(zip(STATISTICS, statistics(values), strict=True))

    @contextlib.contextmanager
    def quiet(self) -> Iterator[None]:
        self.quiet_depth += 1
        try:
            yield
        finally:
            self.quiet_depth -= 1

    def rank(self) -> int | None:
        return self.number

    def is_recompute(self) -> bool:
        return self.recompute

    def on_gradient(self, tensor: FakeTensor, callback: Callable[[Any], None]) -> bool:
        if tensor.requires_grad:
            tensor.hooks.append(callback)
        return tensor.requires_grad

    def new_step(self) -> None:
        self.steps += 1
        self._hosts.clear()


def statistics(values: NDArray[Any]) -> tuple[float | bool | None, ...]:
    """Max, Min, Mean and Norm as the format has them."""
    if not values.size:
        return None, None, None, None
    if values.dtype == np.bool_:
        return bool(values.any()), bool(values.all()), None, None
    wide = values.astype(np.float64)
    return float(wide.max()), float(wide.min()), float(wide.mean()), float(np.linalg.norm(wide.reshape(-1)))
