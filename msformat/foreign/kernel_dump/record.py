"""What a kernel dump file says: its blocks, its metadata, and what is doubtful about it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import Enum
from typing import Any

__all__ = ["UNKNOWN_DIM", "Block", "Doubt", "DoubtName", "Record"]

# A dynamic length, -1, as an unsigned 64-bit number.
UNKNOWN_DIM = (1 << 64) - 1


class DoubtName(str, Enum):
    """Names of everything that may be doubtful about a kernel dump. ``is_loss`` says whether something is missing."""

    unreadable = "unreadable"  # the file was refused
    short_tensor = "short-tensor"  # fewer bytes than the shape needs
    left_over = "left-over"  # bytes behind the last block that nobody knows
    sizes_repaired = "sizes-repaired"  # sizes contradict the shapes, which fit the file exactly
    places_doubtful = "places-doubtful"  # sizes contradict the shapes, and nothing tells where blocks begin
    null_block = "null-block"  # the device had no memory for the tensor, nothing was written
    cut_or_null = "cut-or-null"  # no data behind the header: no tensor had memory, or the file is cut there
    appended_record = "appended-record"  # several dumps under one file name
    raw_bytes = "raw-bytes"  # a type without a documented form
    unknown_dim = "unknown-dim"  # a length of -1 that the size does not tell
    device_layout = "device-layout"  # given as it lay on the device: the conversion is not known
    axes_doubtful = "axes-doubtful"  # several orders of axes fit the original shape
    missing_slice = "missing-slice"  # FFTS+: not all threads are there
    unresolved_alias = "unresolved-alias"  # ATB: the file with the same tensor was not found
    bad_table = "bad-table"  # statistic.csv or mapping.csv with rows that fit no form
    left_alone = "left-alone"  # files that are no kernel dumps
    no_regular_file = "no-regular-file"  # a device, a link that leads outside, a directory that cannot be listed

    @property
    def is_loss(self) -> bool:
        """Whether it means that something is missing or may be wrong; otherwise it is good to know."""
        return self in _LOSSES


_LOSSES = frozenset(
    {
        DoubtName.unreadable,
        DoubtName.short_tensor,
        DoubtName.left_over,
        DoubtName.sizes_repaired,
        DoubtName.places_doubtful,
        DoubtName.missing_slice,
        DoubtName.unresolved_alias,
        DoubtName.bad_table,
        DoubtName.cut_or_null,
        DoubtName.no_regular_file,
    }
)


@dataclass(frozen=True, slots=True)
class Doubt:
    """Something a user should know.

    Attributes
    ----------
    name
        Which kind; the same for ever.
    text
        A sentence that names the file.
    """

    name: DoubtName
    text: str

    def __str__(self) -> str:
        return f"{self.text} [{self.name.value}]"


@dataclass(frozen=True, slots=True)
class Block:
    """One tensor, buffer or workspace of a record.

    Attributes
    ----------
    slot
        ``input``, ``output``, ``buffer`` or ``space``.
    index
        Number in its slot.
    type_name, format_name
        Element type and layout in words (:mod:`.enums`).
    size
        Bytes as the header says.
    start
        Byte in the file where the content begins; None where nothing was written.
    shape, original_shape
        On the device, and of the framework; None where absent. A length may be :data:`UNKNOWN_DIM`.
    sub_format
        Groups of FRACTAL_Z, else 0.
    address
        On the device.
    original_format
        Layout of the framework, where an output says so.
    extra
        Everything else of the message, by name.
    """

    slot: str
    index: int
    type_name: str = "undefined"
    format_name: str = "ND"
    size: int = 0
    start: int | None = None
    shape: tuple[int, ...] | None = None
    original_shape: tuple[int, ...] | None = None
    sub_format: int = 0
    address: int = 0
    original_format: str | None = None
    extra: Mapping[str, Any] = field(default_factory=dict)

    def at(self, start: int | None, size: int | None = None) -> Block:
        """The same at another place."""
        return replace(self, start=start, size=self.size if size is None else size)

    def __str__(self) -> str:
        return f"{self.slot} {self.index}"


@dataclass(frozen=True, slots=True)
class Record:
    """One dump of one kernel: usually a whole file.

    Attributes
    ----------
    family
        ``v2``, ``v1``, ``nano`` or ``atb``.
    blocks
        In the order of the data: inputs, outputs, buffers, spaces.
    version, dump_time, op_name
        As the header says; dump_time in microseconds since 1970.
    attributes
        Of the operator, by name.
    message
        Log text of an exception dump.
    doubts
        What is doubtful.
    alias
        Key of the file that holds the same tensor (ATB), ``""`` for none.
    """

    family: str
    blocks: tuple[Block, ...] = ()
    version: str = ""
    dump_time: int = 0
    op_name: str = ""
    attributes: Mapping[str, str] = field(default_factory=dict)
    message: str = ""
    doubts: tuple[Doubt, ...] = ()
    alias: str = ""
