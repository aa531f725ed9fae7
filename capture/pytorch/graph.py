"""Reading the autograd graph of one module call: which nodes give gradients to its inputs, and which of them runs last.

The graph is only looked at. A wrapper of a node in Python keeps the node alive, so nothing here outlives the call of
the function it is made in, except the edges of the inputs, which live until the module's forward ends.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Hashable, Iterator, Mapping, Sequence
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
    edges: dict[Edge, int] = {}
    slots: list[int] = []
    has_leaf = False
    for tensor in _trained(args, 0):
        has_leaf = has_leaf or tensor.grad_fn is None
        slots.append(edges.setdefault(edge_of(tensor), len(edges)))
    return CallInputs(torch._C._autograd._get_sequence_nr(), edges, slots, has_leaf)


def output_tensors(output: Any) -> list[torch.Tensor]:
    """Tensors of an output that have a gradient, flattened; dataclasses by field."""
    return list(_trained(output, 0, fields=True))


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
    seen, waiting = set(roots), list(dict.fromkeys(roots))
    start, edges, has_leaf = inputs.start, inputs.edges, inputs.has_leaf
    while waiting:
        node = waiting.pop()
        sequence = node._sequence_nr()
        if sequence < least:
            last, least = node, sequence
        for position, (source, number) in enumerate(node.next_functions):
            if source is None:
                continue
            made = source._sequence_nr()
            if made != LEAF_SEQUENCE:
                edge: Edge = (source, number)
            elif has_leaf:
                edge = id(getattr(source, "variable", None))
            else:
                continue
            into, used = edges.get(edge), outputs.get(edge)
            if into is not None or used is not None:
                taps.setdefault(node, []).append(Tap(position, into, used))
            if into is None and start <= made < LEAF_SEQUENCE and source not in seen:
                seen.add(source)
                waiting.append(source)
    return Walk(taps, last)


def _trained(value: Any, depth: int, *, fields: bool = False) -> Iterator[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        if value.requires_grad:
            yield value
    elif depth < _MAX_DEPTH:
        for part in _parts(value, fields=fields):
            yield from _trained(part, depth + 1, fields=fields)


def _parts(value: Any, *, fields: bool) -> Sequence[Any]:
    if isinstance(value, (tuple, list)):
        return value
    if isinstance(value, dict):
        return list(value.values())
    if fields and dataclasses.is_dataclass(value) and not isinstance(value, type):
        return [getattr(value, field.name, None) for field in dataclasses.fields(value)]
    return ()
