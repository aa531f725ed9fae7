"""Reading the autograd graph of one module call: which nodes give gradients to its inputs, and which of them runs last.

The graph is only looked at. A wrapper of a node in Python keeps the node alive, so nothing here outlives the call of
the function it is made in, except the edges of the inputs, which live until the module's forward ends.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Mapping, Sequence
from typing import Any, NamedTuple

import torch

__all__ = ["LEAF_SEQUENCE", "CallInputs", "Tap", "Walk", "edge_of", "inputs_of", "output_tensors", "walk"]

LEAF_SEQUENCE = 2**64 - 1
"""Sequence number of the nodes that accumulate into a leaf: the engine runs them as soon as it can."""
_MAX_DEPTH = 50

Edge = Hashable
"""``(node, output number)``, or the identity of a leaf tensor, whose node exists only while something uses it."""


class CallInputs(NamedTuple):
    """Where the inputs of a call hang in the graph.

    Attributes
    ----------
    start
        Nodes with this sequence number or a later one were made inside the call (or after it).
    edges
        Number of every distinct edge, in the order of the inputs.
    slots
        The edge number of each input: ``module(x, x)`` has two inputs at one edge.
    has_leaf
        Whether one of them is a leaf.
    """

    start: int
    edges: dict[Edge, int]
    slots: list[int]
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
    taps
        Nodes and what to take from them.
    last
        The node that the engine runs last of all nodes of the call: it was made first.
    """

    taps: dict[Any, list[Tap]]
    last: Any


def edge_of(tensor: torch.Tensor) -> Edge:
    """Where the gradient of a tensor that requires one arrives."""
    node = tensor.grad_fn
    return id(tensor) if node is None else (node, tensor.output_nr)


def inputs_of(args: tuple[Any, ...]) -> CallInputs:
    """Edges of the positional arguments, flattened over tuples, lists and dicts as the peer does."""
    tensors: list[torch.Tensor] = []
    _collect(args, tensors, 0)
    edges: dict[Edge, int] = {}
    slots = [edges.setdefault(edge_of(tensor), len(edges)) for tensor in tensors]
    has_leaf = any(not isinstance(edge, tuple) for edge in edges)
    return CallInputs(torch._C._autograd._get_sequence_nr(), edges, slots, has_leaf)


def output_tensors(output: Any) -> list[torch.Tensor]:
    """Tensors of an output that have a gradient, flattened; dataclasses by field."""
    tensors: list[torch.Tensor] = []
    _collect(output, tensors, 0, fields=True)
    return tensors


def walk(roots: Sequence[Any], inputs: CallInputs, outputs: Mapping[Edge, int]) -> Walk:
    """Follow the graph from the outputs' nodes to the inputs' edges, through nodes made since the call began.

    Parameters
    ----------
    roots
        Nodes of outputs that were made inside the call.
    outputs
        Edges of the outputs, so that their uses inside the call are found; may be empty.
    """
    taps: dict[Any, list[Tap]] = {}
    last, least = None, LEAF_SEQUENCE
    seen = set(roots)
    waiting = [(root, root._sequence_nr()) for root in seen]
    start, edges = inputs.start, inputs.edges
    ends = {edge[0] for edge in (*edges, *outputs) if isinstance(edge, tuple)}
    while waiting:
        node, sequence = waiting.pop()
        if sequence < least:
            last, least = node, sequence
        for position, (source, number) in enumerate(node.next_functions):
            if source is None:
                continue
            made = source._sequence_nr()
            into: int | None = None
            if source in ends or (made == LEAF_SEQUENCE and inputs.has_leaf):
                edge = (source, number) if made != LEAF_SEQUENCE else id(getattr(source, "variable", None))
                into, used = edges.get(edge), outputs.get(edge)
                if into is not None or used is not None:
                    taps.setdefault(node, []).append(Tap(position, into, used))
            if into is None and start <= made < LEAF_SEQUENCE and source not in seen:
                seen.add(source)
                waiting.append((source, made))
    return Walk(taps, last)


def _collect(value: Any, found: list[torch.Tensor], depth: int, *, fields: bool = False) -> None:
    if isinstance(value, torch.Tensor):
        if value.requires_grad:
            found.append(value)
    elif depth < _MAX_DEPTH:
        for part in _parts(value, fields=fields):
            _collect(part, found, depth + 1, fields=fields)


def _parts(value: Any, *, fields: bool) -> Sequence[Any]:
    if isinstance(value, (tuple, list)):
        return value
    if isinstance(value, dict):
        return list(value.values())
    if fields and dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name, None) for field in dataclasses.fields(value)]
    return ()
