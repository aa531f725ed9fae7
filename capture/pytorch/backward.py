"""Backward passes of modules without touching the graph.

A full backward hook of PyTorch puts a node around a module's inputs and outputs: results change identity, become views
and cannot be changed in place. Here nodes that exist anyway are listened to. A module call *opens* when the gradient of
one of its outputs is known, collects the gradients that its nodes make for its inputs, and *closes* when the node made
first inside it has run: the engine runs nodes in reverse order of making, so that is when everything inside it is done,
and it is the moment at which the peer's hook speaks.

Where only a part of the graph runs (an output that nobody used, ``torch.autograd.grad``), that node may never come.
Then the call closes at the next event from a node made before the call began, at the latest when the backward ends.
"""

from __future__ import annotations

import threading
from functools import partial
from typing import Any

import torch

from capture.framework import Framework
from capture.module_calls import BackwardListener
from capture.pytorch.gradients import GradientGroups, GradientObserver, is_transformed
from capture.pytorch.graph import LEAF_SEQUENCE, CallInputs, Tap, Walk, edge_of, inputs_of, output_tensors, walk

__all__ = ["ModuleBackwards"]

# Backward passes that failed leave their calls behind in threads that never run a forward.
_MOST_PASSES = 16


class _Quiet:
    """Capture's own operations: neither recorded nor seen by autograd, the user's modes and classes of tensors."""

    __slots__ = ("before", "guard", "local", "quiet")

    def __init__(self, local: Any, framework: Framework) -> None:
        self.local, self.quiet, self.guard = local, framework.quiet(), torch._C.DisableTorchFunctionSubclass()

    def __enter__(self) -> None:
        self.before, self.local.busy = self.local.busy, True
        self.quiet.__enter__()
        self.guard.__enter__()

    def __exit__(self, *error: Any) -> None:
        self.guard.__exit__(*error)
        self.quiet.__exit__(*error)
        self.local.busy = self.before


class _Passes(threading.local):
    """Calls that are open in this thread, for each backward pass (graph task) that runs in it."""

    def __init__(self) -> None:
        self.opened: dict[int, list[_Call]] = {}


class ModuleBackwards:
    """Follows the backward of module calls.

    Parameters
    ----------
    observer
        Says whether anything is recorded now, and takes problems.
    framework
        Gives the quiet block in which gradients are added up.
    groups
        Who listens to gradients of outputs.

    Attributes
    ----------
    had_any
        Whether a module's backward has begun since the last reset.
    """

    def __init__(self, observer: GradientObserver, framework: Framework, groups: GradientGroups) -> None:
        self._observer, self._framework, self._groups = observer, framework, groups
        self._passes = _Passes()
        self._mutex = threading.Lock()
        self.had_any = False
        groups.before_events(self.advance)

    def settle(self) -> None:
        """A forward begins: what is open in this thread outside of a backward belongs to one that has failed."""
        if self._passes.opened and torch._C._current_graph_task_id() == -1:
            self.drop_open()

    # --- forward -----------------------------------------------------------------------------------------------------

    def begin(self, args: tuple[Any, ...]) -> CallInputs | None:
        """A module's forward begins with these positional arguments; None when autograd does not look."""
        if not _grad_is_on() or is_transformed():
            return None
        with self._quiet():
            return inputs_of(args)

    def end(self, inputs: CallInputs, output: Any, listener: BackwardListener) -> bool:
        """A module's forward has ended; ``listener`` is told about its backward. False when it will have none."""
        if not _grad_is_on() or is_transformed():
            return False
        with self._quiet():
            tensors = output_tensors(output)
            if tensors:
                self._follow(inputs, tensors, listener)
        return bool(tensors)

    def _follow(self, inputs: CallInputs, tensors: list[torch.Tensor], listener: BackwardListener) -> None:
        edges: dict[Any, int] = {}
        slots = [edges.setdefault(edge_of(tensor), len(edges)) for tensor in tensors]
        call = _Call(listener, inputs.start, inputs.slots, slots)
        outputs = [
            (_Output(self, call, number, inputs.edges.get(edge)), tensor)
            for (edge, number), tensor in zip(edges.items(), _distinct(tensors, slots), strict=True)
        ]
        roots = [node for output, tensor in outputs if (node := output.plan(tensor, inputs)) is not None]
        if roots and (inputs.edges or len(edges) > 1):
            self._hook(call, walk(roots, inputs, edges if len(edges) > 1 else {}), counts=bool(inputs.edges))
        for output, tensor in outputs:
            self._groups.watch(tensor, output)

    def _hook(self, call: _Call, found: Walk, *, counts: bool) -> None:
        nodes = dict(found.taps)
        if counts:
            nodes.setdefault(found.last, [])
        for node, taps in nodes.items():
            weight = int(counts and (node is found.last or any(tap.input is not None for tap in taps)))
            call.needed += weight
            node.register_hook(_Node(self, call, tuple(taps), weight, node._sequence_nr()))

    # --- backward ----------------------------------------------------------------------------------------------------

    def advance(self, sequence: int, thread: int | None) -> None:
        """A node with this sequence number runs: close what began after it was made."""
        if self._passes.opened:
            opened = self._passes.opened.get(torch._C._current_graph_task_id(), [])
            self._close_all([call for call in opened if sequence < call.bound and thread in (None, call.thread)])

    def arrived(self, call: _Call, output: _Output, gradient: Any) -> None:
        """The gradient of an output is complete."""
        task = torch._C._current_graph_task_id()
        if call.over == task:
            return
        if call.task != task:
            self._open(call, task)
        gradient = call.outputs[output.number] = self._cut(gradient)
        if output.is_leaf:
            call.bound = call.start
        if output.into is not None:  # the output is an input
            call.inputs[output.into] = [gradient]
            call.whole.add(output.into)
        self._count(call, output.weight)

    def passed(self, call: _Call, node: _Node, gradients: tuple[Any, ...]) -> None:
        """A node of a call has run and made these gradients."""
        if call.opened is None or call.task != torch._C._current_graph_task_id():
            return  # they come some other way than through the outputs, as in a double backward
        for position, into, used in node.taps:
            gradient = gradients[position]
            if gradient is not None:
                call.take(self._cut(gradient), into, used)
        if node.weight:
            if len(call.opened) > 1:
                self.advance(node.sequence, call.thread)
            self._count(call, node.weight)

    def drop_open(self) -> None:
        """Forget what is open in this thread: its backward pass has failed."""
        passes, self._passes.opened = self._passes.opened, {}
        for calls in passes.values():
            self._drop(calls)

    def reset(self) -> None:
        """Begin anew; hooks in graphs die with their graphs."""
        self.drop_open()
        self.had_any = False

    def failed(self, where: str, error: BaseException) -> None:
        """Report; the training goes on."""
        self._groups.failed(where, error)

    def _drop(self, calls: list[_Call]) -> None:
        for call in reversed(calls):
            call.reset()
            call.listener.dropped()

    def _open(self, call: _Call, task: int) -> None:
        passes = self._passes.opened
        opened = passes.get(task)
        if opened is None:
            while len(passes) >= _MOST_PASSES:
                self._drop(passes.pop(next(iter(passes))))
            opened = passes[task] = []
            end = partial(self._finish, passes, task, opened)
            torch.autograd.Variable._execution_engine.queue_callback(end)
        self.had_any = True
        if call.task != -1:
            call.reset()  # an earlier backward has failed
        call.task, call.opened, call.left, call.bound = task, opened, call.needed, call.floor
        opened.append(call)
        call.listener.opened()

    def _finish(self, passes: dict[int, list[_Call]], task: int, opened: list[_Call]) -> None:
        """The backward has ended, perhaps in another thread than it began: close what is left."""
        try:
            passes.pop(task, None)
            self._close_all(opened)
        except Exception as error:  # noqa: BLE001 (a hook never raises)
            self.failed("end of backward", error)

    def _close_all(self, calls: list[_Call]) -> None:
        """Close calls, what began last first."""
        order = [(call.start, number, call) for number, call in enumerate(calls)]
        for _, _, call in sorted(order, reverse=True):
            self._close(call)

    def _count(self, call: _Call, weight: int) -> None:
        with self._mutex:  # nodes of one call may run on several devices, each with its thread
            call.left -= weight
            is_over = call.left <= 0
        if is_over:
            self._close(call)

    def _close(self, call: _Call) -> None:
        with self._mutex:
            opened, call.opened = call.opened, None
            if opened is None:
                return
            opened.remove(call)
        outputs, inputs, inner, call.over = call.outputs, call.inputs, call.inner, call.task
        call.reset()
        given = {number: self._outer(whole, inner.get(number)) for number, whole in outputs.items()}
        taken = {number: self._sum(parts) for number, parts in inputs.items()}
        call.listener.closed(
            tuple(given.get(slot) for slot in call.output_slots), tuple(taken.get(slot) for slot in call.input_slots)
        )

    # --- arithmetic --------------------------------------------------------------------------------------------------

    def _quiet(self) -> _Quiet:
        return _Quiet(self._observer.local, self._framework)

    def _cut(self, gradient: Any) -> Any:
        """Without the graph that ``create_graph=True`` gives it: a call must not reach a graph."""
        if not _grad_is_on():
            return gradient
        with self._quiet():
            return gradient.detach()

    def _sum(self, parts: list[Any]) -> Any:
        """Add up in order of arrival, as the engine does: the same bits."""
        if len(parts) == 1:
            return parts[0]
        try:
            with self._quiet():
                total = parts[0] + parts[1]
                for part in parts[2:]:
                    total = total + part
            return total
        except Exception as error:  # noqa: BLE001 (gradients of odd kinds cost themselves only)
            self.failed("sum of gradients", error)
            return None

    def _outer(self, whole: Any, inner: list[Any] | None) -> Any:
        """What came from outside for an output that the call itself uses too; None when nothing did."""
        if inner is None or (used := self._sum(inner)) is None:
            return whole
        try:
            with self._quiet():
                return None if used is whole or torch.equal(used, whole) else whole - used
        except Exception as error:  # noqa: BLE001 (all of it is better than nothing)
            self.failed("gradient of an output that is used inside", error)
            return whole


class _Call:
    """The backward of one module call. Holds gradients while it is open, and never anything of the graph."""

    __slots__ = (
        "bound", "floor", "inner", "input_slots", "inputs", "left", "listener", "needed", "opened", "output_slots",
        "outputs", "over", "start", "task", "thread", "whole",
    )  # fmt: skip

    def __init__(self, listener: BackwardListener, start: int, input_slots: list[int], output_slots: list[int]) -> None:
        self.listener, self.start, self.thread = listener, start, threading.get_ident()
        self.input_slots, self.output_slots = input_slots, output_slots
        self.floor, self.needed, self.over = LEAF_SEQUENCE, 0, -1
        self.reset()

    def reset(self) -> None:
        """Be ready for another backward."""
        self.task = self.left = self.bound = -1
        self.opened: list[_Call] | None = None
        self.outputs: dict[int, Any] = {}
        self.inputs: dict[int, list[Any]] = {}
        self.inner: dict[int, list[Any]] = {}
        self.whole: set[int] = set()

    def take(self, gradient: Any, into: int | None, used: int | None) -> None:
        """A part of the gradient of an input, and of an output that is used inside."""
        if into is not None and into not in self.whole:
            self.inputs.setdefault(into, []).append(gradient)
        if used is not None:
            self.inner.setdefault(used, []).append(gradient)


class _Output:
    """Watches one output of a call."""

    __slots__ = ("backwards", "call", "into", "is_leaf", "number", "weight")

    def __init__(self, backwards: ModuleBackwards, call: _Call, number: int, into: int | None) -> None:
        self.backwards, self.call, self.number, self.into = backwards, call, number, into
        self.weight, self.is_leaf = 0, False

    def plan(self, tensor: torch.Tensor, inputs: CallInputs) -> Any:
        """Settle whether the call waits for this output. Returns the node to walk from, None when made elsewhere."""
        call, node = self.call, tensor.grad_fn
        if node is None:  # the engine serves leaves out of turn: no count of events says when this call is over
            call.needed, call.floor = call.needed + 1, 0
            self.is_leaf = True
            return None
        made = node._sequence_nr()
        is_inside = self.into is None and inputs.start <= made
        if is_inside and inputs.edges:
            call.floor = min(call.floor, inputs.start)
        else:
            # Its gradient comes when the node that made it is about to run; nothing before says that the call is over.
            call.needed, self.weight = call.needed + 1, 1
            call.floor = min(call.floor, made)
        return node if is_inside else None

    def __call__(self, gradient: Any) -> None:
        self.backwards.arrived(self.call, self, gradient)


class _Node:
    """Hook of a node inside a call."""

    __slots__ = ("backwards", "call", "sequence", "taps", "weight")

    def __init__(
        self, backwards: ModuleBackwards, call: _Call, taps: tuple[Tap, ...], weight: int, sequence: int
    ) -> None:
        self.backwards, self.call, self.taps, self.weight, self.sequence = backwards, call, taps, weight, sequence

    def __call__(self, gradients: tuple[Any, ...], _: tuple[Any, ...]) -> None:
        try:
            self.backwards.passed(self.call, self, gradients)
        except Exception as error:  # noqa: BLE001 (a hook never raises)
            self.backwards.failed("node", error)


def _grad_is_on() -> bool:
    with torch._C.DisableTorchFunction():  # a function mode of the user would be told of the question
        return torch.is_grad_enabled()


def _distinct(tensors: list[torch.Tensor], slots: list[int]) -> list[torch.Tensor]:
    """One tensor an edge, in order of the edges."""
    return list(dict(zip(slots, tensors, strict=True)).values())
