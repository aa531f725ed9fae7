"""Entries from tensors alone: what can be said of a dump whose document was never written.

msprobe writes dump.json now and then, so when it dies tensors lie there that no document names. Their names say which
call they belong to and where in its arguments they stood; their headers say type and shape; their values give the
statistics. Everything else is lost, and :attr:`Rebuilt.problems` says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from msformat.dtypes import DType
from msformat.errors import MsformatError
from msformat.model import MAX_DEPTH, STATISTICS, Header
from msformat.names import OpName, TensorName, parse_data_name, parse_entry
from msformat.stats import tensor_stats
from msformat.stores.base import Store, StoredTensor

__all__ = ["Rebuilt", "rebuild"]

_INDEX = re.compile(r"0|[1-9][0-9]{0,8}")
# Room for the containers around an argument: data, entry, slot.
_DEPTH = MAX_DEPTH - 8
_SLOTS = {
    "forward": {"input": "input_args", "kwargs": "input_kwargs", "output": "output", "parameters": "parameters"},
    "backward": {"input": "input", "output": "output"},
}
_LOST = "the order of calls, scalar and None arguments, call stacks and the call tree are lost"


@dataclass(slots=True)
class Rebuilt:
    """What tensors alone tell.

    Attributes
    ----------
    document
        ``debug.json`` when all of them are saved variables, else ``dump.json``.
    header
        Task ``tensor``; level and framework as the names suggest.
    entries
        Entry key to JSON value, in the order in which the store lists tensors.
    placed
        Names of the tensors in ``entries``.
    problems
        What is lost, and which tensors could not be used.
    """

    document: str
    header: Header
    entries: dict[str, Any] = field(default_factory=dict)
    placed: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)


class _Branch(dict[str, "_Branch | _Leaf"]):
    """Children by index or key."""


@dataclass(frozen=True, slots=True)
class _Leaf:
    record: dict[str, Any]


def rebuild(store: Store, names: Iterable[str]) -> Rebuilt:
    """Rebuild entries from tensors of a store. Reads every one of them, one at a time."""
    trees: dict[str, _Branch] = {}
    placed: list[str] = []
    problems: list[str] = []
    for data_name in names:
        problem = _place(trees, store, data_name)
        if problem is None:
            placed.append(data_name)
        else:
            problems.append(f"tensor {data_name!r} has no entry: {problem}")
    entries = {key: _entry_value(key, tree) for key, tree in trees.items() if tree}
    ops = [op for op in map(parse_entry, entries) if op is not None]
    level = _level(ops)
    header = Header("tensor", level, _framework(ops, placed))
    if entries:
        problems.insert(0, f"{len(entries)} entries were rebuilt from the names of {len(placed)} tensors: {_LOST}")
    return Rebuilt("debug.json" if level == "debug" else "dump.json", header, entries, placed, problems)


def _place(trees: dict[str, _Branch], store: Store, data_name: str) -> str | None:
    """Put a tensor's record where its name says; returns what speaks against it."""
    name = parse_data_name(data_name)
    if name is None:
        return "its name says nothing"
    path = _path_in_entry(name)
    if len(path) > _DEPTH:
        return "its name has too many parts"
    try:
        record = _record(store.get(data_name), name.suffix)
    except (MsformatError, OSError) as error:
        return f"it cannot be read ({error})"
    if not _insert(trees.setdefault(name.entry, _Branch()), path, _Leaf(record)):
        return "another tensor stands where its name puts it"
    return None


def _path_in_entry(name: TensorName) -> tuple[str, ...]:
    op = parse_entry(name.entry)
    assert op is not None  # a tensor's name is only taken apart where an entry key ends
    if op.stage == "parameters_grad":
        return (".".join(name.path), "0")
    slot = _SLOTS.get(op.stage, {}).get(name.category)
    if slot == "parameters":
        return (slot, ".".join(name.path))
    # The top holds one child at most for a saved variable, so that a bare tensor has a place, too.
    return ("" if op.order == "saved" else slot or name.category, *name.path)


def _insert(tree: _Branch, path: tuple[str, ...], leaf: _Leaf) -> bool:
    """Whether there was room."""
    for part in path[:-1]:
        child = tree.setdefault(part, _Branch())
        if isinstance(child, _Leaf):
            return False
        tree = child
    return tree.setdefault(path[-1], leaf) is leaf


def _record(stored: StoredTensor, suffix: str) -> dict[str, Any]:
    stats = tensor_stats(stored.bits(), stored.dtype)
    kind, spelling = _spelling(stored.dtype, suffix)
    return {
        "type": kind,
        "dtype": spelling,
        "shape": list(stored.shape),
        **{key: getattr(stats, name) for key, name in STATISTICS.items()},
        "data_name": stored.key,
    }


def _spelling(dtype: DType, suffix: str) -> tuple[str, str]:
    if suffix == ".npy":
        return "mindspore.Tensor", dtype.mindspore_name
    return "torch.Tensor", dtype.torch_name


# --- from trees to JSON ----------------------------------------------------------------------------------------------


def _entry_value(key: str, tree: _Branch) -> Any:
    op = parse_entry(key)
    assert op is not None
    if op.order == "saved":
        return _json(tree[""])
    if op.stage == "parameters_grad":
        return {parameter: _json(gradient) for parameter, gradient in tree.items()}
    found = {slot: _slot_json(slot, branch) for slot, branch in tree.items()}
    empty = {slot: _empty(slot) for slot in _SLOTS[op.stage].values() if slot != "parameters" or op.order == "module"}
    return {slot: found.get(slot, nothing) for slot, nothing in empty.items()} | found


def _slot_json(slot: str, node: _Branch | _Leaf) -> Any:
    if slot in ("input_kwargs", "parameters") and isinstance(node, _Branch):
        return {name: _json(child) for name, child in node.items()}
    return _json(node)


def _empty(slot: str) -> Any:
    return {} if slot in ("input_kwargs", "parameters") else []


def _json(node: _Branch | _Leaf) -> Any:
    if isinstance(node, _Leaf):
        return node.record
    if not all(map(_INDEX.fullmatch, node)):
        return {name: _json(child) for name, child in node.items()}
    length = max(map(int, node)) + 1
    # A forged index must not make a list of a billion nulls.
    if length > 64 + 4 * len(node):
        return {name: _json(child) for name, child in node.items()}
    children: list[Any] = [None] * length
    for name, child in node.items():
        children[int(name)] = _json(child)
    return children


# --- guesses ---------------------------------------------------------------------------------------------------------


def _level(ops: list[OpName]) -> str:
    called = [op for op in ops if op.order != "saved"]
    if ops and not called:
        return "debug"
    modules = sum(op.order == "module" for op in called)
    if not modules:
        return "L1"
    return "L0" if modules == len(called) else "mix"


def _framework(ops: Iterable[OpName], names: Sequence[str]) -> str:
    if any(op.kind == "Cell" for op in ops):
        return "mindspore"
    if not all(name.endswith(".npy") for name in names):
        return "pytorch"
    # MSAdapter names modules as torch does and writes files as MindSpore does.
    return "mindtorch" if any(op.kind == "Module" for op in ops) else "mindspore"
