"""Modules with the hooks of torch."""

from __future__ import annotations

import itertools
import math
from collections import OrderedDict
from collections.abc import Iterator
from typing import Any

import mindspore
import numpy as np
from mindspore import Tensor

from tests.capture.mindtorch.double.nn import functional

__all__ = [
    "Conv2d", "Dropout", "Embedding", "LayerNorm", "Linear", "Module", "Parameter", "ReLU", "Sequential", "functional",
]  # fmt: skip

Parameter = mindspore.Parameter


class RemovableHandle:
    """Takes a hook off."""

    numbers = itertools.count()

    def __init__(self, hooks: dict[int, Any], extra: dict[int, bool]) -> None:
        self.id = next(self.numbers)
        self._hooks, self._extra = hooks, extra

    def remove(self) -> None:
        """Take it off."""
        self._hooks.pop(self.id, None)
        self._extra.pop(self.id, None)


class Module:
    """As mindtorch's: ``register_forward_hook`` does not know ``always_call``, though ``__call__`` does."""

    def __init__(self) -> None:
        self._parameters: OrderedDict[str, Any] = OrderedDict()
        self._modules: OrderedDict[str, Module] = OrderedDict()
        self._forward_hooks: OrderedDict[int, Any] = OrderedDict()
        self._forward_pre_hooks: OrderedDict[int, Any] = OrderedDict()
        self._forward_hooks_with_kwargs: dict[int, bool] = {}
        self._forward_hooks_always_called: dict[int, bool] = {}
        self._forward_pre_hooks_with_kwargs: dict[int, bool] = {}
        self.training = True

    def forward(self, *args: Any) -> Any:
        """To be written by subclasses."""
        raise NotImplementedError

    def __setattr__(self, name: str, value: Any) -> None:
        for kind, place in ((Parameter, "_parameters"), (Module, "_modules")):
            if isinstance(value, kind):
                vars(self)[place][name] = value
        super().__setattr__(name, value)

    def named_modules(self, prefix: str = "") -> Iterator[tuple[str, Module]]:
        """As torch's, of a tree."""
        yield prefix, self
        for name, module in self._modules.items():
            yield from module.named_modules(f"{prefix}.{name}" if prefix else name)

    def parameters(self) -> Iterator[Any]:
        """As torch's."""
        for _, module in self.named_modules():
            yield from (parameter for parameter in module._parameters.values() if parameter is not None)

    def eval(self) -> Module:
        """As torch's."""
        for _, module in self.named_modules():
            module.training = False
        return self

    def register_forward_pre_hook(self, hook: Any, *, prepend: bool = False, with_kwargs: bool = False) -> Any:
        """As torch's."""
        return _register(self._forward_pre_hooks, self._forward_pre_hooks_with_kwargs, hook, prepend, with_kwargs)

    def register_forward_hook(self, hook: Any, *, prepend: bool = False, with_kwargs: bool = False) -> Any:
        """As mindtorch's."""
        return _register(self._forward_hooks, self._forward_hooks_with_kwargs, hook, prepend, with_kwargs)

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        called: set[int] = set()
        result = None
        try:
            for number, hook in list(self._forward_pre_hooks.items()):
                has_kwargs = number in self._forward_pre_hooks_with_kwargs
                given = hook(self, args, kwargs) if has_kwargs else hook(self, args)
                if given is not None:
                    args, kwargs = given if has_kwargs else (given, kwargs)
            result = self.forward(*args, **kwargs)
            for number, hook in list(self._forward_hooks.items()):
                called.add(number)
                result = self._after(number, hook, args, kwargs, result)
        except Exception:
            for number, hook in list(self._forward_hooks.items()):
                if number in self._forward_hooks_always_called and number not in called:
                    self._after(number, hook, args, kwargs, result)
            raise
        return result

    def _after(self, number: int, hook: Any, args: Any, kwargs: Any, result: Any) -> Any:
        has_kwargs = number in self._forward_hooks_with_kwargs
        other = hook(self, args, kwargs, result) if has_kwargs else hook(self, args, result)
        return result if other is None else other


def _register(hooks: Any, extra: dict[int, bool], hook: Any, prepend: bool, with_kwargs: bool) -> RemovableHandle:
    handle = RemovableHandle(hooks, extra)
    hooks[handle.id] = hook
    if with_kwargs:
        extra[handle.id] = True
    if prepend:
        hooks.move_to_end(handle.id, last=False)
    return handle


def _made(*shape: int, fan: int) -> Any:
    bound = 1 / math.sqrt(fan)
    return Parameter(Tensor(np.random.uniform(-bound, bound, shape).astype(np.float32)))


class Linear(Module):
    """As torch's."""

    def __init__(self, inside: int, outside: int) -> None:
        super().__init__()
        self.weight, self.bias = _made(outside, inside, fan=inside), _made(outside, fan=inside)

    def forward(self, value: Any) -> Any:
        return functional.linear(value, self.weight, self.bias)


class Conv2d(Module):
    """As torch's."""

    def __init__(self, inside: int, outside: int, kernel: int, padding: int = 0) -> None:
        super().__init__()
        self.weight = _made(outside, inside, kernel, kernel, fan=inside * kernel * kernel)
        self.bias = _made(outside, fan=inside * kernel * kernel)
        self.padding = (padding, padding)

    def forward(self, value: Any) -> Any:
        return functional.conv2d(value, self.weight, self.bias, (1, 1), self.padding, (1, 1), 1)


class ReLU(Module):
    """As torch's."""

    def forward(self, value: Any) -> Any:
        return functional.relu(value, inplace=False)


class Embedding(Module):
    """As torch's."""

    def __init__(self, count: int, width: int) -> None:
        super().__init__()
        self.weight = _made(count, width, fan=1)

    def forward(self, value: Any) -> Any:
        return functional.embedding(value, self.weight)


class LayerNorm(Module):
    """As torch's."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = (width,)
        self.weight = Parameter(Tensor(np.ones(width, np.float32)))
        self.bias = Parameter(Tensor(np.zeros(width, np.float32)))

    def forward(self, value: Any) -> Any:
        return functional.layer_norm(value, self.width, self.weight, self.bias, 1e-5)


class Dropout(Module):
    """As torch's."""

    def forward(self, value: Any) -> Any:
        return functional.dropout(value, 0.5, self.training)


class Sequential(Module):
    """As torch's."""

    def __init__(self, *modules: Module) -> None:
        super().__init__()
        self._modules.update((str(number), module) for number, module in enumerate(modules))

    def forward(self, value: Any) -> Any:
        for module in self._modules.values():
            value = module(value)
        return value
