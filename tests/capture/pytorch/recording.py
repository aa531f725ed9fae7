"""Observers for tests of the hooks: one writes down what it is told, one does nothing."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import torch

from capture.pytorch.apis import ApiHooks
from capture.tree import ThreadState


class Call:
    """Ticket of a call."""

    def __init__(self, base: str, number: int) -> None:
        self.forward = f"{base}.{number}.forward"
        self.backward = f"{base}.{number}.backward"


class RecordingObserver:
    """Keeps names, and what the test asks of the values when they pass by."""

    def __init__(self, look: Callable[[Any], Any] = lambda _: None) -> None:
        self.running = True
        self.local = ThreadState()
        self.keys: list[str] = []
        self.inputs: dict[str, Any] = {}
        self.outputs: dict[str, Any] = {}
        self.failed: list[str] = []
        self.roots: list[str | None] = []
        self.problems: list[tuple[str, str]] = []
        self._numbers: Counter[str] = Counter()
        self._look = look

    @property
    def listening(self) -> bool:
        return self.running

    def begin_api(self, prefix: str, name: str, args: Any, kwargs: Any) -> Call:
        base = f"{prefix}.{name}"
        call = Call(base, self._numbers[base])
        self._numbers[base] += 1
        self.keys.append(call.forward)
        self.inputs[call.forward] = self._quietly((args, dict(kwargs)))
        return call

    def end_api(self, call: Call, output: Any) -> None:
        self.outputs[call.forward] = self._quietly(output)

    def fail_api(self, call: Call) -> None:
        self.failed.append(call.forward)

    def wants_backward(self, call: Call) -> bool:
        return True

    def api_backward(self, call: Call, grad_outputs: Any, grad_inputs: Any) -> None:
        self.keys.append(call.backward)
        self.inputs[call.backward] = self._quietly(grad_outputs)
        self.outputs[call.backward] = self._quietly(grad_inputs)

    def tree_root(self, name: str | None) -> None:
        self.roots.append(name)

    def problem(self, kind: str, where: str, text: str) -> None:
        self.problems.append((kind, where))

    def _quietly(self, value: Any) -> Any:
        self.local.busy = True
        try:
            with torch._C.DisableTorchFunction(), torch.no_grad():
                return self._look(value)
        finally:
            self.local.busy = False


class RecordingFramework:
    """Hooks gradients the plain way."""

    def on_gradient(self, tensor: Any, callback: Callable[[Any], None]) -> bool:
        tensor.register_hook(callback)
        return True


def hooks_for(observer: Any, framework: Any = None) -> ApiHooks:
    """Hooks that report to an observer of these tests."""
    return ApiHooks(observer, framework or RecordingFramework())


@contextlib.contextmanager
def installed(observer: Any, framework: Any = None) -> Iterator[ApiHooks]:
    """A block in which calls are reported to an observer of these tests."""
    hooks = hooks_for(observer, framework)
    hooks.install()
    try:
        yield hooks
    finally:
        hooks.remove()
