"""FFTS+ operators: each thread dumps its slice of every tensor into a file of its own.

The first attribute of the header is JSON that says how tensors were cut; ``shape`` in the header is that of the whole.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from msformat.errors import FormatError
from msformat.foreign.kernel_dump.filenames import KernelName
from msformat.foreign.kernel_dump.record import Block, Record
from msformat.jsontext import parse_json

__all__ = ["Slicing", "cut_axis", "parse_slicing", "slice_thread", "without_slice_mark"]

_MANUAL = re.compile(r"_lxslice([0-9]{1,6})")
_MOST_AXES = 64


@dataclass(frozen=True, slots=True)
class Slicing:
    """How the tensors of an operator were cut.

    Attributes
    ----------
    threads
        How many slices there are.
    raw
        The JSON object.
    """

    threads: int
    raw: dict[str, Any]

    def ranges(self, block: Block, thread: int) -> list[tuple[int, int]] | None:
        """First and last index (exclusive) of each axis in a thread's slice; None where nothing is said."""
        axes = _at(self.raw.get(f"{block.slot}_tensor_slice"), thread, block.index)
        if not isinstance(axes, list) or len(axes) > _MOST_AXES:
            return None
        found = [_range(axis) for axis in axes]
        return [pair for pair in found if pair is not None] if None not in found else None

    def shape(self, block: Block, thread: int) -> tuple[int, ...] | None:
        """Shape of a thread's slice."""
        ranges = self.ranges(block, thread)
        return None if ranges is None else tuple(higher - lower for lower, higher in ranges)

    def cuts(self, block: Block) -> list[int] | None:
        """Into how many pieces each axis was cut."""
        cuts = _at(self.raw.get(f"{block.slot}CutList"), block.index)
        good = isinstance(cuts, list) and all(type(cut) is int for cut in cuts)
        return cuts if good else None


def _at(node: Any, *indices: int) -> Any:
    for index in indices:
        if not isinstance(node, list) or not 0 <= index < len(node):
            return None
        node = node[index]
    return node


def _range(axis: Any) -> tuple[int, int] | None:
    if not isinstance(axis, dict):
        return None
    lower, higher = axis.get("lower"), axis.get("higher")
    if type(lower) is not int or type(higher) is not int or not 0 <= lower <= higher < 1 << 63:
        return None
    return lower, higher


def parse_slicing(record: Record) -> Slicing | None:
    """The slicing that a header describes; None for an operator that was not cut."""
    for value in record.attributes.values():
        if not value.lstrip().startswith("{"):
            continue
        try:
            raw = parse_json(value.encode("utf-8", "surrogatepass"), "slices")
        except FormatError:
            continue
        if isinstance(raw, dict) and ("threadMode" in raw or "input_tensor_slice" in raw):
            return Slicing(_thread_count(raw), raw)
    return None


def _thread_count(raw: dict[str, Any]) -> int:
    said = raw.get("slice_instance_num")
    listed = [
        len(node) for node in (raw.get("input_tensor_slice"), raw.get("output_tensor_slice")) if isinstance(node, list)
    ]
    return said if type(said) is int and 0 < said <= 1 << 20 else max(listed, default=0)


def slice_thread(name: KernelName) -> int | None:
    """Which slice a file holds: the thread of automatic mode, or N of ``_lxsliceN`` in the operator's name."""
    manual = _MANUAL.search(name.op_name)
    if manual is not None:
        return int(manual[1])
    return name.thread_id if name.is_slice else None


def without_slice_mark(text: str) -> str:
    """A name that all slices of an operator share."""
    return _MANUAL.sub("", text)


def cut_axis(slicing: Slicing, blocks: Sequence[Block]) -> int | None:
    """The axis along which slices of one tensor join; None where each thread has the whole.

    Parameters
    ----------
    blocks
        The tensor in each thread, in order.
    """
    cuts = slicing.cuts(blocks[0])
    if cuts is not None:
        return next((axis for axis, cut in enumerate(cuts) if cut != 1), None)
    ranges = [slicing.ranges(block, thread) or [] for thread, block in enumerate(blocks)]
    axes = range(min(map(len, ranges)))
    return next((axis for axis in axes if len({found[axis] for found in ranges}) > 1), None)
