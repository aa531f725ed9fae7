"""Networks of the tests. ``Small`` and its training repeat, value for value, what the golden dumps were made of."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import mindspore as ms
import numpy as np
from mindspore import Parameter, Tensor, mint, nn, ops


class Scale(nn.Cell):
    """Takes keyword arguments, one of them a tensor."""

    def __init__(self) -> None:
        super().__init__()
        self.gamma = Parameter(Tensor(np.array([1.5], np.float32)), name="gamma")

    def construct(self, x: Any, scale: float = 1.0, bias: Any = None, mode: str = "mul") -> Any:
        scaled = x * self.gamma * scale
        return scaled if bias is None else scaled + bias


class TwoOut(nn.Cell):
    """Two outputs, and a child that is never called."""

    def __init__(self) -> None:
        super().__init__()
        self.act1 = nn.Tanh()

    def construct(self, x: Any) -> Any:
        return x + 1, x * 2


class Small(nn.Cell):
    """A bit of everything: containers, a reused cell, a parameter of its own, bfloat16, functions and primitives."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(1, 2, 3, pad_mode="same", has_bias=True)
        self.act = nn.ReLU()
        self.seq = nn.SequentialCell(nn.Dense(32, 8), nn.ReLU(), nn.Dense(8, 6, has_bias=False))
        self.lst = nn.CellList([nn.Dense(6, 6), nn.Dense(6, 6)])
        self.scale = Scale()
        self.two = TwoOut()
        self.softmax_prim = ops.Softmax(-1)

    def construct(self, x: Any) -> Any:
        h = mint.nn.functional.relu(ops.relu(self.act(self.conv(x))))
        h = mint.add(h, 1.0)
        h = self.seq(h.reshape((h.shape[0], -1)))
        for part in (*self.lst, self.lst[0]):
            h = part(h)
        left, right = self.two(self.scale(h, scale=2.0, bias=Tensor(np.ones((6,), np.float32))))
        h = mint.nn.functional.silu(left + right)
        half = h.astype(ms.bfloat16)
        half = half + half
        h = h + half.astype(ms.float32)
        return self.softmax_prim(ops.concat((h[:, 0:3], h[..., 3:]), axis=1))


class Training:
    """Steps of ``Small``: ``step()`` returns loss and gradients, after the optimizer has run."""

    def __init__(self, net: nn.Cell | None = None) -> None:
        ms.set_seed(1)
        np.random.seed(0)
        self.net = Small() if net is None else net
        self._loss = nn.CrossEntropyLoss()
        self._optimizer = nn.SGD(self.net.trainable_params(), learning_rate=0.1)
        self._x = Tensor(np.random.randn(2, 1, 4, 4).astype(np.float32))
        self._y = Tensor(np.array([1, 3], np.int32))
        self._gradients = ms.value_and_grad(self.forward, None, self._optimizer.parameters)

    def forward(self, x: Any, y: Any) -> Any:
        return self._loss(self.net(x), y)

    def step(self) -> tuple[Any, Any]:
        loss, gradients = self._gradients(self._x, self._y)
        self._optimizer(gradients)
        return loss, gradients


class Saving(nn.Cell):
    """Saves variables of all kinds while it runs."""

    def __init__(self, save: Callable[..., None]) -> None:
        super().__init__()
        ms.set_seed(1)
        self.fc = nn.Dense(3, 3)
        self.save = save

    def construct(self, x: Any) -> Any:
        self.save(x, "x")
        h = self.fc(x)
        self.save(h, "h")
        self.save({"a": h, "b": [x, 1, 2.5, "str", True], "c": (h * 2,)}, "nest")
        wave = mint.sin(h)
        self.save(wave, "h", save_backward=False)
        self.save(wave.astype(ms.bfloat16), "bf", save_backward=True)
        for value, name in ((3, "int"), ("s", "str"), ([1.5, 2], "nums"), (None, "none")):
            self.save(value, name)
        self.save(Tensor([True, False]), "bool", save_backward=False)
        return (wave * wave).sum()


class Shaped(nn.Cell):
    """Returns what a test gives it to make of its input."""

    def __init__(self, make: Callable[[Any], Any]) -> None:
        super().__init__()
        self.make = make

    def construct(self, x: Any, cfg: Any = None, pair: Any = None) -> Any:
        return self.make(x)


class Around(nn.Cell):
    """``fc``, then ``inner``, whose output is added up whatever its shape."""

    def __init__(self, inner: nn.Cell) -> None:
        super().__init__()
        ms.set_seed(1)
        self.fc = nn.Dense(3, 3)
        self.inner = inner

    def construct(self, x: Any) -> Any:
        h = self.fc(x)
        return total(self.inner(h, cfg={"k": [1, 2], "t": x, "z": None}, pair=(x, 7))) + h.sum()


def total(value: Any) -> Any:
    """Sum of all tensors in a value."""
    if isinstance(value, Tensor):
        return value.sum()
    if isinstance(value, dict):
        value = list(value.values())
    return sum((total(part) for part in value), start=0) if isinstance(value, (list, tuple)) else 0


def rows(count: int = 2, width: int = 3) -> Any:
    """A small tensor of different numbers."""
    return Tensor(np.arange(count * width, dtype=np.float32).reshape(count, width) / 7)


def bits(tensor: Any) -> bytes:
    """Content of a tensor, whatever its type."""
    return bytes(tensor.get_bytes())
