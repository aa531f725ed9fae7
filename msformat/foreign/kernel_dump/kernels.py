"""A kernel as an entry of ``dump.json``: tensors by slot, and what is known of the launch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from msformat.foreign.kernel_dump.filenames import KernelName, sanitised
from msformat.foreign.kernel_dump.pieces import Piece
from msformat.foreign.kernel_dump.record import Record
from msformat.names import parse_entry

__all__ = ["Kernel", "entry_key", "name_facts", "record_facts"]

# Slots in the order of the data in files; others follow.
_SLOTS = ("input", "output", "buffer", "space")
# Up to this many numbers that no tensor has, a slot stays a list with nulls.
_MOST_GAPS = 64


@dataclass(slots=True)
class Kernel:
    """One launch of a kernel.

    Attributes
    ----------
    stem
        Its name on disk, from which the entry's key is made.
    stamp
        When it ran: what entries are ordered by.
    facts
        Everything but tensors, in words.
    slots
        Tensors by slot and number.
    """

    stem: str
    stamp: int
    facts: dict[str, Any] = field(default_factory=dict)
    slots: dict[str, dict[int, Piece]] = field(default_factory=dict)

    def add(self, piece: Piece) -> None:
        """Take a tensor."""
        self.slots.setdefault(piece.slot, {})[piece.index] = piece

    def pieces(self) -> list[Piece]:
        """All tensors, slot by slot."""
        return [self.slots[slot][index] for slot in self._order() for index in sorted(self.slots[slot])]

    def value(self) -> dict[str, Any]:
        """The entry's JSON value."""
        value: dict[str, Any] = {slot: _listed(self.slots[slot]) for slot in self._order()}
        facts = {name: _scalar(fact) for name, fact in self.facts.items() if fact not in (None, "")}
        return {**value, "kernel": facts}

    def _order(self) -> list[str]:
        return sorted(self.slots, key=lambda slot: (_SLOTS.index(slot) if slot in _SLOTS else len(_SLOTS), slot))


def _listed(pieces: Mapping[int, Piece]) -> Any:
    """A list by number, with null where a number has no tensor; by name where the gaps would be most of it."""
    last = max(pieces)
    if last - len(pieces) > _MOST_GAPS:
        return {str(index): pieces[index].node for index in sorted(pieces)}
    return [pieces[index].node if index in pieces else None for index in range(last + 1)]


def _scalar(value: Any) -> dict[str, Any]:
    return {"type": type(value).__name__, "value": value}


def entry_key(stem: str, number: int) -> str:
    """The key of the ``number``-th kernel of a name, from 1.

    The name itself where only kernels are called so; a name that would be taken for a saved variable's gets a number
    at once.
    """
    found = parse_entry(stem)
    is_clear = found is None or found.order == "kernel"
    return stem if number == 1 and is_clear else f"{stem}#{number}"


def name_facts(name: KernelName) -> dict[str, Any]:
    """What a file name says of a kernel."""
    return {
        "op_type": name.op_type,
        "op_name": name.op_name,
        "task_id": name.task_id,
        "stream_id": name.stream_id,
        "timestamp": name.timestamp,
        "task_type": name.task_type,
        "context_id": name.context_id,
        "thread_id": name.thread_id,
        "device_id": name.device_id,
    }


def record_facts(name: KernelName, record: Record) -> dict[str, Any]:
    """What name and header say of a kernel.

    aclnn operators of MindSpore's O0 and O1 have name and type the other way round in the file name; the header's name
    tells.
    """
    facts = name_facts(name)
    said = sanitised(record.op_name)
    if said and said == name.op_type and said != name.op_name:
        facts["op_type"] = name.op_name
    facts["op_name"] = record.op_name or facts["op_name"]
    facts |= {"dump_time": record.dump_time or None, "version": record.version, "form": record.family}
    if record.attributes:
        facts["attributes"] = dict(record.attributes)
    facts["message"] = record.message
    return facts
