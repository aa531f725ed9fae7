"""Backward passes of cells without touching the graph.

A backward hook of MindSpore (``CellBackwardHook``) puts an operator around a cell's inputs and outputs: results change
identity, and an order of additions. Here nodes that exist anyway are listened to. A cell call *opens* when the gradient
of one of its outputs is known, collects the gradients that its nodes make for its inputs, and *closes* when the node
made first inside it has run: nodes run in reverse order of making, so that is when everything inside it is done.

Where only a part of the graph runs (an output that nobody used), that node may never come. Then the call closes at the
next event from a node made before the call began, at the latest when the backward pass ends.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from mindspore._c_expression import PyNativeExecutor_

from capture.mindspore.gradients import GradientGroups
from capture.mindspore.graph import (
    NO_GRAPH,
    SHOWS_GRAPH,
    CallInputs,
    Clock,
    Edge,
    Tap,
    edge_of,
    inputs_of,
    tensors_of,
    walk,
)
from capture.mindspore.passes import BackwardPasses

if TYPE_CHECKING:
    from capture.framework import Framework
    from capture.module_calls import BackwardListener
    from capture.observer import Observer

__all__ = ["CellBackwards"]

_executor = PyNativeExecutor_.get_instance()


class CellBackwards:
    """Follows the backward of cell calls.

    Parameters
    ----------
    observer
        Says whether anything is recorded now, and takes problems.
    framework
        Gives the quiet block in which gradients are added up.
    groups
        Who listens to gradients of outputs.
    passes
        Says which backward pass runs, and when one ends.
    """

    def __init__(
        self, observer: Observer, framework: Framework, groups: GradientGroups, passes: BackwardPasses
    ) -> None:
        self._observer, self._framework, self._groups, self._passes = observer, framework, groups, passes
        self._clock: Clock | None = None
        self._opened: dict[int, list[_Call]] = {}
        groups.before_events(self.advance)
        passes.listen(on_end=self.finish)

    # --- forward -----------------------------------------------------------------------------------------------------

    def begin(self, args: tuple[Any, ...], *, is_closed: bool = False) -> CallInputs | None:
        """A call begins with these arguments, and uses others or not; None when autograd does not look."""
        if not _executor.requires_grad():
            return None
        if not SHOWS_GRAPH:
            self._observer.problem("no graph", "", NO_GRAPH)
            return None
        with self._observer.local.at_work():
            if self._clock is None:
                self._clock = Clock()
            return inputs_of(args, self._clock, is_closed=is_closed)

    def end(self, inputs: CallInputs, output: Any, listener: BackwardListener) -> bool:
        """A cell's construct has ended; ``listener`` is told about its backward. False when it will have none."""
        if not _executor.requires_grad():
            return False
        with self._observer.local.at_work():
            tensors = tensors_of(output)
            edges = [edge_of(tensor) for tensor in tensors]
            if all(edge is None for edge in edges):
                return False
            if self._clock is not None:
                self._clock.after(edges)
            self._follow(inputs, tensors, edges, listener)
        return True

    def _follow(
        self, inputs: CallInputs, tensors: list[Any], found: list[Edge | None], listener: BackwardListener
    ) -> None:
        edges: dict[Edge, int] = {}
        slots = [None if edge is None else edges.setdefault(edge, len(edges)) for edge in found]
        call = _Call(listener, inputs.start, inputs.slots, slots)
        roots: dict[int, Any] = {}
        watched: list[tuple[_Output, Any]] = []
        for edge, number in edges.items():
            tensor = tensors[slots.index(number)]
            output = _Output(self, call, number, inputs.edges.get(edge))
            watched.append((output, tensor))
            if not isinstance(edge, str) and output.is_made_inside(edge[0], inputs):
                roots[edge[0]] = tensor._grad_node
        if roots:
            self._hook(call, roots, inputs, edges if len(edges) > 1 else {})
        for output, tensor in watched:
            self._groups.watch(tensor, output)

    def _hook(self, call: _Call, roots: dict[int, Any], inputs: CallInputs, outputs: dict[Edge, int]) -> None:
        found = walk(roots, inputs, outputs)
        call.apart = _apart(found.taps, inputs.slots)
        taps = {found.last: [], **found.taps}
        for sequence, at_node in taps.items():
            weight = int(sequence == found.last or any(tap.input is not None for tap in at_node))
            call.needed += weight
            found.nodes[sequence].register_hook(_Node(self, call, tuple(at_node), weight, sequence))

    # --- backward ----------------------------------------------------------------------------------------------------

    def advance(self, sequence: int) -> None:
        """A node with this sequence number runs: close what began after it was made."""
        opened = self._opened.get(self._passes.current)
        if opened:
            self._close_all([call for call in opened if sequence < call.bound])

    def arrived(self, call: _Call, output: _Output, gradient: Any) -> None:
        """The gradient of an output is complete."""
        current = self._passes.current
        if call.over == current:
            return
        if call.turn != current:
            self._open(call, current)
        gradient = call.outputs[output.number] = self._cut(gradient)
        if output.into is not None:  # the output is an input
            call.inputs[output.into] = [gradient]
            call.whole.add(output.into)
        self._count(call, output.weight)

    def passed(self, call: _Call, node: _Node, gradients: tuple[Any, ...]) -> None:
        """A node of a call has run and made these gradients."""
        if call.opened is None or call.turn != self._passes.current:
            return  # they come some other way than through the outputs, as in a gradient of a gradient
        for position, into, used in node.taps:
            gradient = gradients[position]
            if gradient is not None:
                call.take(self._cut(gradient), into, used)
        if node.weight:
            if len(call.opened) > 1:
                self.advance(node.sequence)
            self._count(call, node.weight)

    def finish(self, number: int, failed: bool) -> None:  # noqa: FBT001 (a callback)
        """A backward pass has ended: close what is left of it, or drop it."""
        opened = self._opened.pop(number, [])
        if not failed:
            self._close_all(opened)
            return
        for call in reversed(opened):
            call.reset()
            call.listener.dropped()

    def reset(self) -> None:
        """Close what is still open (where the end of a pass cannot be heard); hooks in graphs die with their graphs."""
        for number in list(self._opened):
            self.finish(number, failed=False)

    def failed(self, where: str, error: BaseException) -> None:
        """Report; the training goes on."""
        self._groups.failed(where, error)

    def _open(self, call: _Call, current: int) -> None:
        if call.turn != -1:
            call.reset()  # an earlier backward has failed
        opened = self._opened.setdefault(current, [])
        call.turn, call.opened, call.left, call.bound = current, opened, call.needed, call.floor
        opened.append(call)
        call.listener.opened()

    def _close_all(self, calls: list[_Call]) -> None:
        """Close calls, what began last first."""
        order = [(call.start, number, call) for number, call in enumerate(calls)]
        for _, _, call in sorted(order, reverse=True):
            self._close(call)

    def _count(self, call: _Call, weight: int) -> None:
        call.left -= weight
        if call.left <= 0:
            self._close(call)

    def _close(self, call: _Call) -> None:
        opened, call.opened = call.opened, None
        if opened is None:
            return
        if call in opened:
            opened.remove(call)
        outputs, inputs, inner, call.over = call.outputs, call.inputs, call.inner, call.turn
        call.reset()
        given = {number: self._outer(whole, inner.get(number)) for number, whole in outputs.items()}
        grad_outputs = tuple(None if slot is None else given.get(slot) for slot in call.output_slots)
        call.listener.closed(grad_outputs, tuple(self._taken(call, inputs)))

    def _taken(self, call: _Call, inputs: dict[int, list[Any]]) -> Iterator[Any]:
        """Gradients of the inputs. A tensor given twice has its gradients apart where one operation takes both."""
        left = {
            slot: iter(parts) if slot in call.apart else iter((self._sum(parts),)) for slot, parts in inputs.items()
        }
        for slot in call.input_slots:
            yield None if slot is None else next(left.get(slot, iter(())), None)

    # --- arithmetic --------------------------------------------------------------------------------------------------

    def _cut(self, gradient: Any) -> Any:
        """Without the graph that a gradient of a gradient gives it: a call must not reach a graph."""
        if not getattr(gradient, "_requires_grad", False):
            return gradient
        # The copy is none of the program's calls.
        with self._observer.local.at_work(), self._framework.quiet():
            return gradient.copy()

    def _sum(self, parts: list[Any]) -> Any:
        """Add up in order of arrival, as the engine does: the same bits."""
        total = parts[0]
        try:
            for part in parts[1:]:
                total = self._calculated(lambda first, second: first + second, total, part)
        except Exception as error:  # noqa: BLE001 (gradients of odd kinds cost themselves only)
            self.failed("sum of gradients", error)
            return None
        return total

    def _outer(self, whole: Any, inner: list[Any] | None) -> Any:
        """What came from outside for an output that the call itself uses too; None when nothing did."""
        if inner is None or (used := self._sum(inner)) is None:
            return whole
        try:
            return None if used is whole else self._calculated(lambda first, second: first - second, whole, used)
        except Exception as error:  # noqa: BLE001 (all of it is better than nothing)
            self.failed("gradient of an output that is used inside", error)
            return whole

    def _calculated(self, operation: Any, first: Any, second: Any) -> Any:
        with self._observer.local.at_work(), self._framework.quiet():
            return operation(first, second)


class _Call:
    """The backward of one cell call. Holds gradients while it is open, and never anything of the graph."""

    __slots__ = (
        "apart", "bound", "floor", "inner", "input_slots", "inputs", "left", "listener", "needed", "opened",
        "output_slots", "outputs", "over", "start", "turn", "whole",
    )  # fmt: skip

    def __init__(
        self,
        listener: BackwardListener,
        start: int,
        input_slots: list[int | None],
        output_slots: list[int | None],
    ) -> None:
        self.listener, self.start = listener, start
        self.input_slots, self.output_slots = input_slots, output_slots
        self.floor, self.needed, self.over = start, 0, -1
        self.apart: set[int] = set()
        self.reset()

    def reset(self) -> None:
        """Be ready for another backward."""
        self.turn = self.left = self.bound = -1
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

    __slots__ = ("backwards", "call", "into", "number", "weight")

    def __init__(self, backwards: CellBackwards, call: _Call, number: int, into: int | None) -> None:
        self.backwards, self.call, self.number, self.into = backwards, call, number, into
        self.weight = 0

    def is_made_inside(self, made: int, inputs: CallInputs) -> bool:
        """Whether the node with this number was made inside the call: the walk begins there."""
        call = self.call
        if self.into is None and inputs.start <= made:
            return True
        # Its gradient comes when the node that made it is about to run; nothing before says that the call is over.
        call.needed, self.weight = call.needed + 1, 1
        call.floor = min(call.floor, made)
        return False

    def __call__(self, gradient: Any) -> None:
        self.backwards.arrived(self.call, self, gradient)


class _Node:
    """Hook of a node inside a call."""

    __slots__ = ("backwards", "call", "sequence", "taps", "weight")

    def __init__(
        self, backwards: CellBackwards, call: _Call, taps: tuple[Tap, ...], weight: int, sequence: int
    ) -> None:
        self.backwards, self.call, self.taps, self.weight, self.sequence = backwards, call, taps, weight, sequence

    def __call__(self, gradients: tuple[Any, ...], _: tuple[Any, ...]) -> None:
        try:
            self.backwards.passed(self.call, self, gradients)
        except Exception as error:  # noqa: BLE001 (a hook never raises)
            self.backwards.failed("node", error)


def _apart(taps: dict[int, list[Tap]], slots: list[int | None]) -> set[int]:
    """Inputs that were given several times, and are taken as often by one operation: ``x + x``."""
    repeated = {slot for slot in slots if slot is not None and slots.count(slot) > 1}
    if not repeated:
        return repeated
    takers = {slot: [at for at in taps.values() if any(tap.input == slot for tap in at)] for slot in repeated}
    return {
        slot
        for slot, nodes in takers.items()
        if len(nodes) == 1 and sum(tap.input == slot for tap in nodes[0]) == slots.count(slot)
    }
