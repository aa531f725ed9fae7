"""What a dump says about values, without saying where the bytes lie.

An argument tree is made of *nodes*: a :class:`TensorMeta`, a :class:`Scalar`, None, a tuple of nodes, a mapping of
nodes, or :class:`Opaque` for JSON of no known shape. Values are frozen; keys that the format does not define are kept
in ``extra``, and ``key_order`` holds the order of the document, so that what was read can be written again unchanged.

Three things never get mixed up: a statistic that is NaN, one that is null (None), and one that is not there
(``Stats.absent``).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, TypeAlias

from msformat.errors import UnsafeInputError
from msformat.names import OpName, parse_entry

__all__ = [
    "MAX_DEPTH",
    "MISSING_GRADIENT",
    "STATISTICS",
    "Entry",
    "Header",
    "Node",
    "Opaque",
    "Scalar",
    "Statistic",
    "Stats",
    "TensorMeta",
    "walk_nodes",
    "walk_tensors",
]

# Containers inside one another. msprobe stops far earlier; json itself gives up near 1,000.
MAX_DEPTH = 256
# ``type`` of the record that stands for a gradient that save_grad was called for and that never came; its value says
# how often it was called.
MISSING_GRADIENT = "missing_gradient"

# A string only where another tool spelled NaN as text; it is kept as given.
Statistic: TypeAlias = "bool | int | float | str | None"

# Name in JSON -> attribute of Stats, in the order of the format.
STATISTICS: dict[str, str] = {"Max": "max", "Min": "min", "Mean": "mean", "Norm": "norm"}


@dataclass(frozen=True, slots=True)
class Stats:
    """Max, Min, Mean and L2 norm of a tensor's values.

    Attributes
    ----------
    max, min, mean, norm
        Number (NaN and infinities included), bool for bool tensors, None for JSON null.
    absent
        Attributes for which the document has no key at all; they are None.
    """

    max: Statistic = None
    min: Statistic = None
    mean: Statistic = None
    norm: Statistic = None
    absent: frozenset[str] = frozenset()


@dataclass(frozen=True, slots=True)
class TensorMeta:
    """A tensor as its record in dump.json describes it.

    Attributes
    ----------
    type
        ``torch.Tensor``, ``mindspore.Tensor``, ``numpy.ndarray``, …
    dtype
        As written: ``torch.float32``, ``Float32``, ``float64``.
    shape
        Lengths of the axes; ``()`` for rank 0.
    stats
        None where the record has none of the four keys.
    requires_grad
        None where it is not recorded (MindSpore).
    digest
        ``md5`` in JSON: CRC-32 in eight hex digits, or ``0x`` and 16 digits.
    data_name
        Key of the saved bytes, None when they were not saved.
    extra
        Other keys, and known keys whose value has a type that the format does not know (null included).
    key_order
        Keys in the order of the document; empty for the order of the format. Keys that are set but not listed follow
        in the order of the format, listed keys that are not set are left out: ``dataclasses.replace`` is safe.
    """

    type: str
    dtype: str
    shape: tuple[int, ...]
    stats: Stats | None = None
    requires_grad: bool | None = None
    digest: str | None = None
    data_name: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    key_order: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Scalar:
    """A value that stands in the document itself: ``{"type": "int", "value": 3}``.

    Attributes
    ----------
    type
        ``int``, ``slice``, ``torch.dtype``, …
    value
        JSON value; None also where the record has none.
    extra, key_order
        As in :class:`TensorMeta`.
    value_key
        ``value``; ``format`` for a torch.memory_format, ``group_ranks`` for a process group, None for no value.
    """

    type: str
    value: Any
    extra: Mapping[str, Any] = field(default_factory=dict)
    key_order: tuple[str, ...] = ()
    value_key: str | None = "value"


@dataclass(frozen=True, slots=True)
class Opaque:
    """JSON of no known shape, kept as it is."""

    raw: Any


Node: TypeAlias = "TensorMeta | Scalar | tuple[Node, ...] | Mapping[str, Node] | Opaque | None"


@dataclass(frozen=True, slots=True)
class Entry:
    """One call of an API or module, the gradients of a module's parameters, or a saved variable.

    Attributes
    ----------
    key
        Verbatim.
    value
        A mapping of slots (``input_args``, ``output``, …) for calls and gradients; any node for a saved variable.
    """

    key: str
    value: Node

    @property
    def name(self) -> OpName | None:
        """The key taken apart, None for a key of no known form."""
        return parse_entry(self.key)

    @property
    def slots(self) -> Mapping[str, Node]:
        """Slots in the order of the document, without ``is_recompute``; empty for a saved variable."""
        name = self.name
        if not isinstance(self.value, Mapping) or (name is not None and name.order == "saved"):
            return {}
        return {slot: node for slot, node in self.value.items() if not _is_flag(slot, node)}

    @property
    def is_recompute(self) -> bool | None:
        """Whether activation recompute made this call; None where that is not recorded."""
        node = self.value.get("is_recompute") if isinstance(self.value, Mapping) else None
        return node.raw if isinstance(node, Opaque) and isinstance(node.raw, bool) else None


def _is_flag(slot: str, node: Node) -> bool:
    return slot == "is_recompute" and (node is None or isinstance(node, Opaque))


@dataclass(frozen=True, slots=True)
class Header:
    """What stands around ``data`` in dump.json or debug.json.

    Attributes
    ----------
    task, level, framework
        ``""`` where missing or no string (then the value is in ``extra``).
    dump_data_dir
        Path while dumping, often stale; None for null.
    extra
        Other keys; also a ``data`` that is no object (null).
    key_order
        Keys in the order of the document, ``data`` among them; None for the order of the format.
    """

    task: str
    level: str
    framework: str
    dump_data_dir: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)
    key_order: tuple[str, ...] | None = None


def walk_nodes(node: Node, *, max_depth: int = MAX_DEPTH) -> Iterator[tuple[tuple[str, ...], Node]]:
    """Leaves of a tree in document order, each with the keys and indices that lead to it.

    Leaves are tensors, scalars, None, opaque values and empty containers.

    Raises
    ------
    UnsafeInputError
        Containers lie deeper than ``max_depth``.
    """
    pending: list[tuple[tuple[str, ...], Node]] = [((), node)]
    while pending:
        path, current = pending.pop()
        children = list(_children(current))
        if not children:
            yield path, current
            continue
        if len(path) >= max_depth:
            raise UnsafeInputError(f"containers lie more than {max_depth} deep")
        pending.extend(((*path, name), child) for name, child in reversed(children))


def walk_tensors(node: Node, *, max_depth: int = MAX_DEPTH) -> Iterator[tuple[tuple[str, ...], TensorMeta]]:
    """Tensors of a tree in document order, each with its path (``("0", "left")``); see :func:`walk_nodes`."""
    for path, leaf in walk_nodes(node, max_depth=max_depth):
        if isinstance(leaf, TensorMeta):
            yield path, leaf


def _children(node: Node) -> Iterator[tuple[str, Node]]:
    if isinstance(node, Mapping):
        yield from node.items()
    elif isinstance(node, (tuple, list)):
        for index, child in enumerate(node):
            yield str(index), child
