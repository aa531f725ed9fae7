"""An observer for tests of the hooks on functions: it writes down what it is told."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
from mindspore import Tensor

from capture.mindspore.apis import ApiHooks
from capture.mindspore.backward import CellBackwards
from capture.mindspore.gradients import GradientGroups
from capture.mindspore.passes import BackwardPasses
from capture.mindspore.tensors import MindSporeFramework
from capture.tree import ThreadState


class Call:
    """Ticket of a call."""

    def __init__(self, base: str, number: int) -> None:
        self.forward = f"{base}.{number}.forward"
        self.backward = f"{base}.{number}.backward"
        self.entry: object = self


class RecordingObserver:
    """Keeps names, and copies of the values that pass by."""

    def __init__(self, framework: MindSporeFramework) -> None:
        self.running = self.listening = True
        self.local = ThreadState()
        self.keys: list[str] = []
        self.inputs: dict[str, Any] = {}
        self.outputs: dict[str, Any] = {}
        self.failed: list[str] = []
        self.problems: list[tuple[str, str]] = []
        self._framework = framework
        self._numbers: Counter[str] = Counter()

    def begin_api(self, prefix: str, name: str, args: Any, kwargs: Any) -> Call:
        base = f"{prefix}.{name}"
        call = Call(base, self._numbers[base])
        self._numbers[base] += 1
        self.keys.append(call.forward)
        self.inputs[call.forward] = self._copied((args, dict(kwargs)))
        return call

    def end_api(self, call: Call, output: Any) -> None:
        self.outputs[call.forward] = self._copied(output)

    def fail_api(self, call: Call) -> None:
        self.failed.append(call.forward)

    def wants_backward(self, call: Call) -> bool:
        return True

    def api_backward(self, call: Call, grad_outputs: Any, grad_inputs: Any) -> None:
        self.keys.append(call.backward)
        self.inputs[call.backward] = self._copied(grad_outputs)
        self.outputs[call.backward] = self._copied(grad_inputs)

    def open_api_backward(self, call: Call) -> None:
        pass

    def drop_api_backward(self, call: Call) -> None:
        pass

    def has_no_backward(self, call: Call) -> None:
        pass

    def problem(self, kind: str, where: str, text: str) -> None:
        self.problems.append((kind, where))

    @property
    def forwards(self) -> list[str]:
        return [key for key in self.keys if key.endswith(".forward")]

    def _copied(self, value: Any) -> Any:
        self.local.busy = True
        try:
            with self._framework.quiet():
                return copied(value)
        finally:
            self.local.busy = False


def copied(value: Any) -> Any:
    """Arrays for tensors, containers as they are, names of types for the rest."""
    if isinstance(value, Tensor):
        return np.array(value.float().asnumpy() if "BFloat16" in str(value.dtype) else value.asnumpy())
    if isinstance(value, (list, tuple)):
        return [copied(part) for part in value]
    if isinstance(value, dict):
        return {key: copied(part) for key, part in value.items()}
    return value if isinstance(value, (int, float, str, type(None))) else type(value).__name__


class Bench:
    """Hooks on functions that report to an observer of these tests."""

    def __init__(self) -> None:
        self.framework = MindSporeFramework()
        self.observer = RecordingObserver(self.framework)
        observer: Any = self.observer
        self.passes = BackwardPasses(observer.problem)
        backwards = CellBackwards(observer, self.framework, GradientGroups(observer), self.passes)
        self.hooks = ApiHooks(observer, self.framework, backwards)

    @contextlib.contextmanager
    def installed(self, model: Any = None) -> Iterator[RecordingObserver]:
        """A block in which calls are reported."""
        self.hooks.install(model)
        self.passes.install()
        try:
            yield self.observer
        finally:
            self.passes.remove()
            self.hooks.remove()
