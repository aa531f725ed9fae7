"""What the taps around compiled cells bring, turned into the entries of a unit.

Taps run as kernels, on threads of MindSpore's and behind the program. Those of the forward pass come in the order of
the program, those of a backward pass in any order, each with the number of the call it belongs to. A session of its own
makes a dump of them, as msprobe does: below ``graph`` where the program is PyNative with compiled parts, and where the
program runs in GRAPH_MODE in ``dump_path`` itself.
"""

from __future__ import annotations

import atexit
import threading
from collections.abc import Callable, Iterable
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from numpy.typing import NDArray

from capture.framework import Captured, HostTensor, Wanted
from capture.mindspore.statistics import statistics_of
from capture.mindspore.tensors import MindSporeFramework
from capture.session import Session
from capture.tree import CallState
from msformat import DType, canonical_crc32

if TYPE_CHECKING:
    from capture.config import CaptureConfig
    from capture.observer import ModuleCall

__all__ = ["Arrived", "GraphCapture"]

_KEYS = ("Max", "Min", "Mean", "Norm")
# Calls whose backward never comes (an evaluation, a part that needs no gradient) are not remembered for ever.
_MOST_OPEN = 1 << 16


class Arrived(NamedTuple):
    """A tensor that came out of a graph; its bits are the kernel's, and valid while it is recorded."""

    bits: NDArray[Any]
    dtype: DType


class _GraphFramework(MindSporeFramework):
    """Records arrays that came out of a graph; never touches a tensor."""

    def is_tensor(self, value: object) -> bool:
        return type(value) is Arrived

    def describe(self, tensor: Any, wanted: Wanted) -> Captured:
        bits, dtype = tensor
        node: dict[str, Any] = {
            "type": "mindspore.Tensor",
            "dtype": dtype.mindspore_name,
            "shape": list(dtype.logical_shape(bits.shape)),
        }
        found = statistics_of(bits, dtype) if wanted.statistics else (None,) * len(_KEYS)
        node.update(zip(_KEYS, found, strict=True))
        if wanted.md5:
            node["md5"] = canonical_crc32(bits, dtype)
        return Captured(node, HostTensor(bits.copy(), dtype) if wanted.data else None, None)

    def quiet(self) -> AbstractContextManager[Any]:  # type: ignore[override]
        """Nothing here runs an operation."""
        return nullcontext()


class _Backward:
    """The gradients of one call, as far as they have come."""

    __slots__ = ("call", "gradients", "inputs", "outputs")

    def __init__(self, call: ModuleCall, inputs: int) -> None:
        self.call, self.inputs, self.outputs = call, inputs, 0
        self.gradients: dict[tuple[str, int], Arrived] = {}

    def slot(self, name: str, count: int) -> tuple[Any, ...]:
        return tuple(self.gradients.get((name, at)) for at in range(count))


class GraphCapture:
    """Records compiled cells of one debugger.

    Parameters
    ----------
    config
        Of the debugger.
    is_whole
        Whether the program is all graph, so that its dump lies in ``dump_path`` itself.
    settle
        Waits for what the program has started.

    Attributes
    ----------
    fired
        ``Cell.{path}.{Class}`` of every cell that ran in a graph.
    """

    def __init__(self, config: CaptureConfig, *, is_whole: bool, settle: Callable[[], None]) -> None:
        self.is_whole = is_whole
        self._settle = settle
        place = config.dump_path if is_whole else str(Path(config.dump_path) / "graph")
        # A kernel has no call stack of the program's.
        self.session = Session(replace(config, dump_path=place), _GraphFramework())
        # One for the graph, not one a thread: its kernels run on any.
        self.session.observer.local = CallState()
        self.fired: set[str] = set()
        self._mutex = threading.RLock()
        self._forward: list[tuple[str, Arrived]] = []
        self._calls: dict[int, _Backward] = {}
        self._number = 0
        self._is_running = False

    # --- the debugger's thread ---------------------------------------------------------------------------------------

    def start(self, step: int) -> None:
        """Record what comes from now on into this step."""
        with self._mutex:
            self.session.step_number = step
            self._is_running = self.session.is_wanted
            if self._is_running:
                self.session.records()
                self.session.observer.running = True
                # After the session's own, and so before it at the end of a process that never stops.
                atexit.unregister(self._stop_at_exit)
                atexit.register(self._stop_at_exit)

    @property
    def is_running(self) -> bool:
        """Whether what comes is recorded."""
        return self._is_running

    def stop(self) -> None:
        """Wait for what the program has started, and record what has come."""
        if not self._is_running:
            return
        try:
            self._settle()  # without the mutex, which kernels wait for
        finally:
            with self._mutex:
                for backward in list(self._calls.values()):
                    self._close(backward)
                self._calls.clear()
                self._forward.clear()
                self._is_running = self.session.observer.running = False

    @property
    def has_content(self) -> bool:
        """Whether anything was recorded in the step in hand."""
        records = self.session.observer.records
        return records is not None and not records.is_empty

    def step(self) -> None:
        """End the step."""
        self.stop()
        with self._mutex:
            self.session.step()

    def _stop_at_exit(self) -> None:
        try:
            self.stop()
        except Exception as error:  # noqa: BLE001 (the program's own, which it did not wait for)
            self.problem("", f"the program ended with an error of a kernel: {error}")

    # --- kernels -----------------------------------------------------------------------------------------------------

    def tensor(self, path: str, value: Arrived) -> None:
        """An input or output of the call that begins or ends next."""
        with self._mutex:
            if self._is_running:
                self._forward.append((path, Arrived(value.bits.copy(), value.dtype)))

    def begin(self, prefix: str, notes: Iterable[tuple[str, str, str]]) -> int:
        """A call begins, after its inputs; the number of the call."""
        with self._mutex:
            self.fired.add(prefix)
            self._number += 1
            if self._is_running:
                args, kwargs = _arguments(self._take(), notes)
                call = self.session.observer.begin_module(prefix, args, kwargs)
                if call is not None:
                    self._remember(self._number, _Backward(call, len(args)))
            return self._number

    def end(self, number: int, notes: Iterable[tuple[str, str, str]]) -> None:
        """A call ends, after its outputs."""
        with self._mutex:
            backward = self._calls.get(number)
            if backward is None or not self._is_running:
                self._forward.clear()
                return
            outputs, _ = _arguments(self._take(), notes)
            backward.outputs = len(outputs)
            self.session.observer.end_module(backward.call, outputs, {})

    def gradient(self, number: int, slot: str, index: int, value: Arrived) -> None:
        """The gradient of an output (slot ``input``) or of an input (slot ``output``) of a call."""
        with self._mutex:
            backward = self._calls.get(number)
            if backward is not None and self._is_running:
                backward.gradients[slot, index] = Arrived(value.bits.copy(), value.dtype)

    def problem(self, name: str, reason: str) -> None:
        """Something could not be recorded."""
        self.session.problem("graph", name, reason)

    # --- inside ------------------------------------------------------------------------------------------------------

    def _take(self) -> list[tuple[str, Any]]:
        taken: list[tuple[str, Any]] = list(self._forward)
        self._forward.clear()
        return taken

    def _remember(self, number: int, backward: _Backward) -> None:
        if len(self._calls) >= _MOST_OPEN:
            oldest = next(iter(self._calls))
            self._close(self._calls.pop(oldest))
        self._calls[number] = backward

    def _close(self, backward: _Backward) -> None:
        if backward.gradients:
            observer = self.session.observer
            if observer.wants_backward(backward.call):
                observer.open_module_backward(backward.call)
                observer.module_backward(
                    backward.call, backward.slot("input", backward.outputs), backward.slot("output", backward.inputs)
                )


def _arguments(
    tensors: list[tuple[str, Any]], notes: Iterable[tuple[str, str, str]]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Positional and keyword arguments, put together from their leaves and the ways to them."""
    root: dict[str, Any] = {}
    for path, value in [*tensors, *((path, _constant(kind, text)) for path, kind, text in notes)]:
        *above, last = path.split(".")
        place = root
        for part in above:
            place = place.setdefault(part, {})
        place[last] = value
    positions = sorted(int(name) for name in root if name.isdigit())
    args = tuple(_listed(root[str(at)]) for at in positions)
    return args, {name: _listed(value) for name, value in root.items() if not name.isdigit()}


def _listed(value: Any) -> Any:
    """Dicts with the keys 0, 1, … are sequences."""
    if type(value) is not dict:
        return value
    parts = {name: _listed(part) for name, part in value.items()}
    if parts and all(name.isdigit() for name in parts):
        return [parts[name] for name in sorted(parts, key=int)]
    return parts


def _constant(kind: str, text: str) -> Any:
    if kind == "bool":
        return text == "True"
    if kind == "int":
        return int(text)
    if kind == "float":
        return float(text)
    return text if kind == "str" else None
