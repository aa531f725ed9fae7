"""Reading MindSpore's autograd graph of one cell call: which nodes give gradients to its inputs, and which runs last.

PyNative builds a graph of ``BackwardNode`` objects, as PyTorch does: ``Tensor._grad_node``, ``next_functions``, a
sequence number a node, and a backward that runs nodes in reverse order of making (observed alike in 2.7.1 and 2.10.0).
Two things are missing: nobody says what number the next node gets, and before 2.7.1 a tensor does not say which output
of its node it is. Both are learnt of a view made for the purpose, which launches no kernel and is dropped at once.
Making one costs a switch between threads, because the graph is built behind the program.

The graph is only looked at. A wrapper of a node keeps the node alive and is a new object every time, so nodes are known
by their sequence number, and leaves, which share one, by their name.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from mindspore import Tensor, __version__
from mindspore._c_expression import PyNativeExecutor_, TensorPy

__all__ = [
    "LEAF_SEQUENCE",
    "NO_GRAPH",
    "SHOWS_GRAPH",
    "CallInputs",
    "Clock",
    "Edge",
    "Tap",
    "Walk",
    "edge_of",
    "inputs_of",
    "tensors_of",
    "walk",
]

LEAF_SEQUENCE = 2**64 - 1
"""Sequence number of every leaf's node."""
SHOWS_GRAPH = hasattr(TensorPy, "_grad_node")
"""Whether this MindSpore has such a graph to look at: 2.7.0 and earlier have none."""
NO_GRAPH = (
    f"MindSpore {__version__} does not show its graph of gradients, 2.7.1 and later do: gradients of inputs, outputs "
    "and saved tensors are not recorded; all the rest is"
)
_MAX_DEPTH = 50
_executor = PyNativeExecutor_.get_instance()
_expand_as, _view = Tensor.expand_as, Tensor.view

Edge = tuple[int, int] | str
"""``(sequence number of a node, output number)``, or the name of a leaf."""


class CallInputs(NamedTuple):
    """Where the inputs of a call hang in the graph.

    Attributes
    ----------
    start
        Nodes with this sequence number or a later one were made inside the call (or after it).
    edges
        Number of every distinct edge, in the order of the inputs.
    slots
        The edge number of each tensor among the inputs; None for one that needs no gradient.
    has_leaf
        Whether one of them is a leaf.
    """

    start: int
    edges: dict[Edge, int]
    slots: list[int | None]
    has_leaf: bool


class Tap(NamedTuple):
    """A gradient that a node makes: for an input of the call, and for an output that the call itself uses."""

    position: int
    input: int | None
    output: int | None


class Walk(NamedTuple):
    """What was found between the outputs and the inputs of a call.

    Attributes
    ----------
    nodes, taps
        Nodes by sequence number, and what to take from them.
    last
        Sequence number of the node that runs last of all nodes of the call: it was made first.
    """

    nodes: dict[int, Any]
    taps: dict[int, list[Tap]]
    last: int


class Clock:
    """Tells the sequence number of the next node."""

    def __init__(self) -> None:
        self._leaf: Any = Tensor(np.zeros((1,), np.float32))
        self._leaf.requires_grad_()
        # Where numpy is newer than MindSpore, its first operation with a Python number fails and all later ones work.
        with contextlib.suppress(SystemError):
            _view(self._leaf, 1)
        self._seen = -1

    def now(self) -> int:
        """The number that the next node will have, in this block with gradients."""
        return int(_view(self._leaf, 1)._grad_node._sequence_nr()) + 1

    def after(self, edges: Iterable[Edge | None]) -> int:
        """A number that the next node is not below, learnt of these edges and earlier ones without making a node."""
        made = (edge[0] for edge in edges if isinstance(edge, tuple))
        self._seen = max(self._seen, *made, -1)
        return self._seen + 1


def edge_of(tensor: Any) -> Edge | None:
    """Where the gradient of a tensor arrives; None when it needs none."""
    if not tensor._requires_grad:
        return None
    node = tensor._grad_node
    if node is None:
        return None
    sequence = node._sequence_nr()
    if sequence == LEAF_SEQUENCE:
        return str(node.name())
    return sequence, _output_number(tensor)


def _output_number(tensor: Any) -> int:
    number = getattr(tensor, "_output_index", None)
    if number is not None:
        return int(number)
    is_enabled = _executor.enable_grad()
    if not is_enabled:
        _executor.set_enable_grad(True)
    try:
        return int(_expand_as(tensor, tensor)._grad_node.next_functions[0][1])
    finally:
        if not is_enabled:
            _executor.set_enable_grad(False)


def inputs_of(args: tuple[Any, ...], clock: Clock, *, is_closed: bool = False) -> CallInputs:
    """Edges of the tensors among positional arguments, flattened over tuples, lists and dicts.

    Parameters
    ----------
    is_closed
        The call uses nothing but its arguments, so that it need not be known exactly when it began.
    """
    edges: dict[Edge, int] = {}
    slots = [None if edge is None else edges.setdefault(edge, len(edges)) for edge in map(edge_of, tensors_of(args))]
    has_leaf = any(isinstance(edge, str) for edge in edges)
    return CallInputs(clock.after(edges) if is_closed else clock.now(), edges, slots, has_leaf)


def tensors_of(value: Any) -> list[Any]:
    """Tensors of a value, flattened over tuples, lists, dicts and dataclasses."""
    found: list[Any] = []
    _collect(value, found, 0)
    return found


def walk(roots: Mapping[int, Any], inputs: CallInputs, outputs: Mapping[Edge, int]) -> Walk:
    """Follow the graph from the outputs' nodes to the inputs' edges, through nodes made since the call began.

    Parameters
    ----------
    roots
        Nodes of outputs that were made inside the call, by sequence number.
    outputs
        Edges of the outputs, so that their uses inside the call are found; may be empty.
    """
    nodes, taps = dict(roots), dict[int, list[Tap]]()
    waiting = list(roots.items())
    start, edges = inputs.start, inputs.edges
    while waiting:
        sequence, node = waiting.pop()
        for position, (source, number) in enumerate(node.next_functions):
            if source is None:
                continue
            made = source._sequence_nr()
            edge: Edge | None = (made, number)
            if made == LEAF_SEQUENCE:
                edge = str(source.name()) if inputs.has_leaf else None
            into, used = (None, None) if edge is None else (edges.get(edge), outputs.get(edge))
            if into is not None or used is not None:
                taps.setdefault(sequence, []).append(Tap(position, into, used))
            if into is None and start <= made < LEAF_SEQUENCE and made not in nodes:
                nodes[made] = source
                waiting.append((made, source))
    return Walk(nodes, taps, min(nodes))


def _collect(value: Any, found: list[Any], depth: int) -> None:
    if isinstance(value, Tensor):
        found.append(value)
    elif depth < _MAX_DEPTH:
        for part in _parts(value):
            _collect(part, found, depth + 1)


def _parts(value: Any) -> Sequence[Any]:
    if isinstance(value, (tuple, list)):
        return value
    if isinstance(value, dict):
        return list(value.values())
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name, None) for field in dataclasses.fields(value)]
    return ()
