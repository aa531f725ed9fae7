"""Taps around the ``construct`` of cells, for when it is compiled: in GRAPH_MODE, or under ``jit``.

A compiled cell is never called: hooks and stand-ins for calls see nothing of it. What MindSpore compiles is what it
reads in ``construct``, so that is where the taps stand. When Python calls it nothing happens but the call.

A program that was compiled before keeps the taps that it was compiled with, or without: whoever wants compiled cells
starts the debugger before they are called first. Taps of a debugger that is stopped hand their tensors to nobody.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Iterable
from typing import Any

import mindspore
import numpy as np
from mindspore import Parameter, Tensor, nn, ops
from numpy.typing import NDArray

from capture.mindspore.graph_capture import Arrived, GraphCapture
from capture.mindspore.graph_ops import IN_GRAPH, IS_ASCEND, KIND, NumberedTap, Tap, carry
from msformat import DType

__all__ = ["GraphCells", "has_compiled_cells", "is_under_jit", "models_of"]


class _Receiver:
    """Who gets what taps bring; compiled programs outlive the debugger they were compiled under."""

    capture: GraphCapture | None = None


class GraphCells:
    """Sets and removes the taps around the cells below a model."""

    def __init__(self, on_problem: Callable[[str, str, str], None]) -> None:
        self._on_problem = on_problem
        self._tapped: dict[nn.Cell, tuple[str, Any]] = {}
        self._pauses = 0

    def install(self, models: Any, capture: GraphCapture) -> None:
        """Put taps around every cell below a model, or below each model of a list."""
        _Receiver.capture = capture
        for base, model in models_of(models):
            for path, cell in model.cells_and_names():
                if cell is not model and cell not in self._tapped and _can_be_tapped(cell):
                    self._tap(cell, f"Cell.{base}{path}.{type(cell).__name__}")

    def remove(self) -> None:
        """Give every cell its own ``construct`` back."""
        for cell, (_, tapped) in self._tapped.items():
            if cell.__dict__.get("construct") is tapped:
                del cell.__dict__["construct"]
        self._tapped.clear()

    def pause(self) -> None:
        """Leave ``construct`` alone until :meth:`go_on`: where bytecode is compiled, MindSpore fails in taps."""
        self._pauses += 1
        for cell, (_, tapped) in self._tapped.items():
            if cell.__dict__.get("construct") is tapped:
                del cell.__dict__["construct"]

    def go_on(self) -> None:
        """Undo one :meth:`pause`."""
        self._pauses = max(0, self._pauses - 1)
        if not self._pauses:
            for cell, (_, tapped) in self._tapped.items():
                cell.__dict__.setdefault("construct", tapped)

    def release(self, capture: GraphCapture) -> None:
        """What taps bring from now on is for nobody."""
        if _Receiver.capture is capture:
            _Receiver.capture = None

    @property
    def prefixes(self) -> list[str]:
        """``Cell.{path}.{Class}`` of all that have taps."""
        return [prefix for prefix, _ in self._tapped.values()]

    def _tap(self, cell: nn.Cell, prefix: str) -> None:
        try:
            tapped = types.MethodType(_construct(cell.construct, prefix), cell)
            cell.__dict__["construct"] = tapped
        except Exception as error:  # noqa: BLE001 (a class of its own mind costs itself only)
            self._on_problem("not tapped", prefix, f"{type(error).__name__}: {error}")
            return
        self._tapped[cell] = prefix, tapped


def has_compiled_cells(models: Any) -> bool:
    """Whether a cell below a model has a ``construct`` under ``jit``."""
    cells = (cell for _, model in models_of(models) for _, cell in model.cells_and_names())
    return any(is_under_jit(cell) for cell in cells)


def is_under_jit(cell: nn.Cell) -> bool:
    """Whether the cell's ``construct`` was given to ``jit``, by its class or afterwards."""
    return hasattr(cell.__dict__.get("construct") or type(cell).construct, "__wrapped__")


def models_of(models: Any) -> Iterable[tuple[str, Any]]:
    """Models with what their paths begin with."""
    if isinstance(models, (list, tuple)):
        return [(f"{index}.", model) for index, model in enumerate(models)]
    return [("", models)]


def _can_be_tapped(cell: nn.Cell) -> bool:
    """Not where the compiler reads something else: a function under ``jit``, which is called, or a ``bprop``."""
    if "construct" in cell.__dict__ or hasattr(cell, "bprop") or IS_ASCEND():
        return False
    return not is_under_jit(cell)


# --- read by the compiler --------------------------------------------------------------------------------------------


def _construct(original: Any, prefix: str) -> Any:
    """A ``construct`` that lets taps see what goes in and out."""

    def construct(self: Any, *args: Any, **kwargs: Any) -> Any:  # noqa: ARG001 (a method's)
        if not IN_GRAPH():
            return original(*args, **kwargs)
        _tap_all(prefix, "", args)
        _tap_items(prefix, "", kwargs)
        begin = _Begin((prefix,), _notes_of_all("", args) + _notes_of_items("", kwargs))
        number = begin(ops.ones((1,), mindspore.uint8))
        output = original(*_watch_all(prefix, "output", args, number), **kwargs)
        if isinstance(output, tuple):
            _tap_all(prefix, "", output)
            _End((prefix,), _notes_of_all("", output))(number)
            return _watch_all(prefix, "input", output, number)
        _tap_all(prefix, "", (output,))
        _End((prefix,), _notes_of("0", output))(number)
        if isinstance(output, Tensor):
            return _watch((prefix, "input", "0"), output, number)
        return output

    return construct


# Taps and notes are two walks: a function that returns a constant is not looked into for what else it does.


def _tap_all(prefix: str, above: str, values: Any) -> None:
    for index, value in enumerate(values):
        if isinstance(value, Tensor):
            carry(_ForwardTap, (prefix, above + str(index)), value)
        elif isinstance(value, (tuple, list)):
            _tap_all(prefix, above + str(index) + ".", value)
        elif isinstance(value, dict):
            _tap_items(prefix, above + str(index) + ".", value)


def _tap_items(prefix: str, above: str, values: Any) -> None:
    for key, value in values.items():
        if isinstance(value, Tensor):
            carry(_ForwardTap, (prefix, above + str(key)), value)
        elif isinstance(value, (tuple, list)):
            _tap_all(prefix, above + str(key) + ".", value)
        elif isinstance(value, dict):
            _tap_items(prefix, above + str(key) + ".", value)


def _notes_of(path: str, value: Any) -> Any:
    """Of all that is no tensor: where it is, what it is, and its text."""
    if isinstance(value, Tensor):
        return ()
    if isinstance(value, (tuple, list)):
        return _notes_of_all(path + ".", value)
    if isinstance(value, dict):
        return _notes_of_items(path + ".", value)
    if value is None or not ops.isconstant(value):
        return ((path, "None", ""),)
    if isinstance(value, bool):
        return ((path, "bool", str(value)),)
    if isinstance(value, int):
        return ((path, "int", str(value)),)
    if isinstance(value, float):
        return ((path, "float", str(value)),)
    if isinstance(value, str):
        return ((path, "str", value),)
    return ((path, "None", ""),)


def _notes_of_all(above: str, values: Any) -> Any:
    notes: Any = ()
    for index, value in enumerate(values):
        notes = notes + _notes_of(above + str(index), value)
    return notes


def _notes_of_items(above: str, values: Any) -> Any:
    notes: Any = ()
    for key, value in values.items():
        notes = notes + _notes_of(above + str(key), value)
    return notes


def _watch_all(prefix: str, slot: str, values: Any, number: Any) -> Any:
    """The values, with the gradients of those that have one passing a tap."""
    watched: Any = ()
    for index, value in enumerate(values):
        if isinstance(value, Tensor):
            watched = watched + (_watch((prefix, slot, str(index)), value, number),)  # noqa: RUF005 (no unpacking there)
        else:
            watched = watched + (value,)  # noqa: RUF005
    return watched


def _watch(address: tuple[str, ...], value: Any, number: Any) -> Any:
    if isinstance(value, Parameter):
        return value
    dtype = str(value.dtype)
    kind = KIND(value.shape, dtype)
    if kind == "bf16-plain":
        return ops.cast(_Watch(address, dtype)(ops.cast(value, mindspore.float32), number), mindspore.bfloat16)
    if kind == "plain" and "Float" in dtype:
        return _Watch(address, dtype)(value, number)
    if kind == "scalar" and "Float" in dtype:
        return ops.reshape(_Watch(address, dtype + " scalar")(ops.reshape(value, (1,)), number), ())
    return value


class _Watch(ops.Custom):  # type: ignore[misc]
    """Lets a value through, and its gradient past a tap; the number says which call both belong to.

    The value is copied, so that it is a kernel's result like any other. A cell with a ``bprop`` would not copy it, but
    where such a cell is called twice under ``jit`` MindSpore (2.7.1, 2.10.0) hands the later value to both backwards;
    ``ops.InsertGradientOf`` has no place for a number.
    """

    def __init__(self, address: tuple[str, ...], dtype: str) -> None:
        super().__init__(
            lambda value, number: np.array(value),  # noqa: ARG005 (the compiler counts the parameters)
            out_shape=lambda shape, number: shape,  # noqa: ARG005
            out_dtype=lambda dtype, number: dtype,  # noqa: ARG005
            func_type="pyfunc",
            bprop=_gradient_of(address, dtype.partition(" ")[0], is_scalar=dtype.endswith(" scalar")),
        )


def _gradient_of(address: tuple[str, ...], dtype: str, *, is_scalar: bool) -> Any:
    """What goes back is of the wider type, and of one axis for a scalar: the tap knows what it stands for."""

    def bprop(value: Any, number: Any, out: Any, gradient: Any) -> Any:  # noqa: ARG001 (the compiler counts them)
        shape = () if is_scalar else gradient.shape
        seen = _GradientTap(address, dtype, shape)(ops.stop_gradient(gradient), number)
        return ops.depend(gradient, seen), ops.zeros_like(number)

    return bprop


# --- kernels ---------------------------------------------------------------------------------------------------------


class _ForwardTap(Tap):
    """An input or output; address: cell, way to it."""

    def receive(self, address: tuple[str, ...], bits: NDArray[Any], dtype: DType, number: int) -> None:
        del number
        if _Receiver.capture is not None:
            _Receiver.capture.tensor(address[1], Arrived(bits, dtype))

    def failed(self, address: tuple[str, ...], reason: str) -> None:
        if _Receiver.capture is not None:
            _Receiver.capture.problem(".".join(address), reason)


class _GradientTap(NumberedTap):
    """A gradient; address: cell, slot, index."""

    stands_alone = False

    def receive(self, address: tuple[str, ...], bits: NDArray[Any], dtype: DType, number: int) -> None:
        _, slot, index = address
        if _Receiver.capture is not None:
            _Receiver.capture.gradient(number, slot, int(index), Arrived(bits, dtype))

    failed = _ForwardTap.failed


class _Gate(ops.Custom):  # type: ignore[misc]
    """A kernel for the begin or end of a call. What goes through it is the number of the call."""

    def __init__(self, address: tuple[str, ...], notes: tuple[tuple[str, str, str], ...]) -> None:
        self._prefix, self._notes = address[0], tuple(notes)
        super().__init__(self._run, out_shape=(1,), out_dtype=mindspore.int64, func_type="pyfunc")
        self.add_prim_attr("side_effect_io", True)  # noqa: FBT003

    def passed(self, capture: GraphCapture, number: int) -> int:
        """Tell the capture."""
        raise NotImplementedError

    def _run(self, value: NDArray[Any]) -> NDArray[Any]:
        capture, number = _Receiver.capture, int(value[0])
        try:
            if capture is not None:
                number = self.passed(capture, number)
        except Exception as error:  # noqa: BLE001 (an exception here would end the program's graph)
            if capture is not None:
                capture.problem(self._prefix, f"{type(error).__name__}: {error}")
        return np.array([number], np.int64)


class _Begin(_Gate):
    """After the inputs of a call."""

    def passed(self, capture: GraphCapture, number: int) -> int:
        del number
        return capture.begin(self._prefix, self._notes)


class _End(_Gate):
    """After the outputs of a call."""

    def passed(self, capture: GraphCapture, number: int) -> int:
        capture.end(number, self._notes)
        return number
