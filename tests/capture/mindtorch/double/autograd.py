"""Gradients, of MindSpore."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import mindspore

__all__ = ["value_and_grad"]


def value_and_grad(fn: Callable[..., Any], params: Sequence[Any]) -> Callable[..., Any]:
    """As mindtorch's: the value is returned, gradients are left in ``grad`` of the parameters."""
    graded = mindspore.value_and_grad(fn, None, list(params))

    def run(*args: Any) -> Any:
        value, gradients = graded(*args)
        for parameter, gradient in zip(params, gradients, strict=True):
            parameter.grad = gradient
        return value

    return run
