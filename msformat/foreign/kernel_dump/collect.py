"""Everything a unit of a kernel dump holds: its files become kernels, in the order in which they ran.

One bad tensor leaves the others of its file, one bad file the others of its directory; each ends as a doubt.
"""

from __future__ import annotations

import struct
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from msformat.errors import FormatError
from msformat.filesystem import FileSystem, Item, join
from msformat.foreign.kernel_dump.arguments import Arguments
from msformat.foreign.kernel_dump.atb_operators import AtbFile, atb_kernels, read_atb_files
from msformat.foreign.kernel_dump.binary import read_records
from msformat.foreign.kernel_dump.filenames import KernelName, parse_kernel_name
from msformat.foreign.kernel_dump.kernels import Kernel, entry_key, name_facts, record_facts
from msformat.foreign.kernel_dump.overflow import parse_overflow
from msformat.foreign.kernel_dump.pieces import Opener, Piece, block_piece, file_piece
from msformat.foreign.kernel_dump.places import Place
from msformat.foreign.kernel_dump.record import Doubt, DoubtName, Record
from msformat.foreign.kernel_dump.side_files import SideFiles, read_side_files
from msformat.foreign.kernel_dump.slices import join_slices
from msformat.foreign.kernel_dump.tables import StatisticRow
from msformat.names import natural_key

__all__ = ["BAD_FILE", "Collected", "collect"]

# What a bad file can raise on its way through a reader.
BAD_FILE = (OSError, ValueError, TypeError, LookupError, ArithmeticError, MemoryError, RecursionError, struct.error)
# Headers of two bytes a tensor must not fill the memory, in however many files.
_MOST_TENSORS = 2_000_000
_OVERFLOW_BYTES = 2048
_SLOT_ORDER = {"input": 0, "output": 1}


@dataclass(slots=True)
class Collected:
    """What a unit holds.

    Attributes
    ----------
    entries
        Key and JSON value of each kernel, in order.
    tensors
        How each tensor is opened, by data_name.
    doubts
        What is doubtful, about everything.
    documents
        Tables and other small files, by name; read when asked for.
    framework
        Whose dump it is.
    files
        Kernel files there were, and how many of them could not be read.
    blocks
        Tensors in headers.
    """

    entries: list[tuple[str, dict[str, Any]]] = field(default_factory=list)
    tensors: dict[str, Opener] = field(default_factory=dict)
    doubts: list[Doubt] = field(default_factory=list)
    documents: dict[str, str] = field(default_factory=dict)
    framework: str = "pytorch"
    files: int = 0
    unreadable: int = 0
    blocks: int = 0

    def failed(self, error: BaseException, source: str) -> None:
        """Note a file that was refused."""
        self.unreadable += 1
        text = str(error) or type(error).__name__
        self.doubts.append(Doubt(DoubtName.unreadable, text if source in text else f"{source}: {text}"))


def collect(fs: FileSystem, places: Iterable[Place], *, device: bool) -> Collected:
    """Read the headers of every kernel file.

    Parameters
    ----------
    places
        The unit's directories.
    device
        Leave tensors in the layout of the device.
    """
    found = Collected()
    arguments = Arguments(fs)
    kernels: list[Kernel] = []
    atb: list[AtbFile] = []
    for place in places:
        found.framework = place.framework
        side = read_side_files(fs, place)
        found.doubts += side.doubts
        found.doubts += _doubt_documents(fs, found.documents, side.documents)
        found.documents = {**side.documents, **found.documents}
        kernels += _Reader(fs, place, side, found, arguments, device=device).kernels()
        atb += read_atb_files(fs, place, side.atb_files, found)
    kernels += atb_kernels(fs, atb, found, arguments, device=device)
    if arguments.is_full:
        text = f"{fs.describe('')}: arguments that many launches share are given with the first of them"
        found.doubts.append(Doubt(DoubtName.left_alone, text))
    kernels.sort(key=lambda kernel: (kernel.stamp, natural_key(kernel.stem)))
    _enter(found, kernels)
    return found


def _doubt_documents(fs: FileSystem, known: dict[str, str], new: dict[str, str]) -> Iterator[Doubt]:
    """A unit has one document of a name; of tables the rows are taken all the same."""
    for name in known.keys() & new.keys():
        text = f"{fs.describe(new[name])}: is not kept, because {fs.describe(known[name])} is"
        yield Doubt(DoubtName.left_alone, text)


def _enter(found: Collected, kernels: Iterable[Kernel]) -> None:
    """Give kernels their keys and tensors their names."""
    numbers: Counter[str] = Counter()
    for kernel in kernels:
        numbers[kernel.stem] += 1
        key = entry_key(kernel.stem, numbers[kernel.stem])
        for piece in kernel.pieces():
            found.doubts += piece.doubts
            if piece.open is not None:
                _enter_tensor(found, key, piece, piece.open)
        found.entries.append((key, kernel.value()))


def _enter_tensor(found: Collected, key: str, piece: Piece, opener: Opener) -> None:
    name = piece.data_name or f"{key}.{piece.slot}.{piece.index}.npy"
    while name in found.tensors:
        name = f"{key}.{piece.slot}.{piece.index}~{len(found.tensors)}.npy"
    piece.data_name = piece.node["data_name"] = name
    found.tensors[name] = opener


class _Reader:
    """Kernels of one directory."""

    def __init__(
        self, fs: FileSystem, place: Place, side: SideFiles, found: Collected, arguments: Arguments, *, device: bool
    ) -> None:
        self.fs = fs
        self.arguments = arguments
        self.place = place
        self.side = side
        self.found = found
        self.device = device

    def kernels(self) -> list[Kernel]:
        """Kernels of every form."""
        single: list[tuple[KernelName, Piece]] = []
        slices: list[tuple[KernelName, Record, str]] = []
        kernels: list[Kernel] = []
        for item in sorted(self.side.kernel_files, key=lambda item: natural_key(item.name)):
            name = self._name(item.name)
            if name.is_tensor:
                single += self._tensor(item, name)
            else:
                kernels += self._records(item, name, slices)
        kernels += self._grouped([*single, *self._statistics(single)])
        kernels += join_slices(self.fs, slices, self.found.doubts, device=self.device)
        for kernel in kernels:
            self._add_facts(kernel)
        self._take_statistics(kernels)
        return kernels

    def _name(self, file: str) -> KernelName:
        """What its name says; of a hash that no table explains, nothing."""
        shown = self.side.mapping.get(file, file)
        return parse_kernel_name(shown) or KernelName(shown)

    def _path(self, item: Item) -> str:
        return join(self.place.path, item.name)

    def _failed(self, error: BaseException, path: str) -> None:
        self.found.failed(error, self.fs.describe(path))

    # --- files of one tensor --------------------------------------------------------------------------------------

    def _tensor(self, item: Item, name: KernelName) -> Iterator[tuple[KernelName, Piece]]:
        self.found.files += 1
        path = self._path(item)
        shown = self.side.mapping.get(item.name, item.name)
        try:
            piece = file_piece(self.fs, path, item, name, shown)
        except BAD_FILE as error:
            self._failed(error, path)
            return
        piece.node["file"] = path
        yield name, piece

    def _statistics(self, single: list[tuple[KernelName, Piece]]) -> Iterator[tuple[KernelName, Piece]]:
        """Rows of ``statistic.csv``: numbers for a tensor that has a file, a tensor without data for any other."""
        there = {(name.stem, piece.slot, piece.index): piece for name, piece in single}
        for row in self.side.rows:
            piece = there.get((row.stem, row.slot, row.index))
            if piece is not None:
                piece.node.update(row_facts(row))
                continue
            name = parse_kernel_name(row.stem)
            if name is not None and not name.is_tensor:
                yield name, Piece(row.slot, row.index, row_node(row))

    def _grouped(self, tensors: list[tuple[KernelName, Piece]]) -> Iterator[Kernel]:
        """Tensors that belong to one launch. MindSpore gives each tensor a timestamp of its own.

        A launch ends where one of its tensors comes again, or an input comes after an output.
        """
        open_kernels: dict[tuple[Any, ...], Kernel] = {}
        order = sorted(
            tensors,
            key=lambda pair: (pair[0].timestamp or 0, _SLOT_ORDER.get(pair[1].slot, 2), pair[1].index),
        )
        for name, piece in order:
            same = (name.op_type, name.op_name, name.task_id, name.stream_id)
            kernel = open_kernels.get(same)
            if kernel is None or piece.index in kernel.slots.get(piece.slot, ()) or _is_late(kernel, piece):
                kernel = open_kernels[same] = Kernel(name.stem, name.timestamp or 0, name_facts(name))
                yield kernel
            kernel.add(piece)

    # --- files of whole kernels -----------------------------------------------------------------------------------

    def _records(self, item: Item, name: KernelName, slices: list[tuple[KernelName, Record, str]]) -> Iterator[Kernel]:
        self.found.files += 1
        path = self._path(item)
        try:
            records = read_records(self.fs, path, item.size)
            self._count(path, records)
            made = [self._kernel(path, name, record) for record in records]
        except BAD_FILE as error:
            self._failed(error, path)
            return
        if name.is_slice or "_lxslice" in name.op_name:
            slices += [(name, record, path) for record in records]
            return
        yield from made

    def _count(self, path: str, records: list[Record]) -> None:
        more = sum(len(record.blocks) for record in records)
        if self.found.blocks + more > _MOST_TENSORS:
            raise FormatError(f"{self.fs.describe(path)}: the unit has more than {_MOST_TENSORS} tensors without it")
        self.found.blocks += more

    def _kernel(self, path: str, name: KernelName, record: Record) -> Kernel:
        self.found.doubts += record.doubts
        kernel = Kernel(name.stem, name.timestamp or record.dump_time, record_facts(name, record))
        kernel.facts["file"] = path
        for block in record.blocks:
            kernel.add(block_piece(self.fs, path, block, device=self.device))
        if name.is_overflow:
            kernel.facts["overflow"] = list(self._overflows(path, record)) or None
        return kernel

    def _overflows(self, path: str, record: Record) -> Iterator[dict[str, Any]]:
        for block in record.blocks:
            if block.slot == "output" and block.start is not None:
                said = parse_overflow(self.fs.read(path, block.start, min(block.size, _OVERFLOW_BYTES)))
                if said is not None:
                    yield said

    # --- facts beside the files -----------------------------------------------------------------------------------

    def _add_facts(self, kernel: Kernel) -> None:
        for name in ("net", "graph", "iteration"):
            if name in self.place.names:
                kernel.facts[name] = self.place.names[name]
        path = self.side.arguments.get(f"{kernel.facts.get('op_type')}.{kernel.facts.get('op_name')}")
        if path is not None:
            try:
                kernel.facts["arguments"] = self.arguments.read(path)
            except BAD_FILE as error:
                self._failed(error, path)

    def _take_statistics(self, kernels: Iterable[Kernel]) -> None:
        """Numbers that a ``.csv`` of a binary file, or of its directory, has for it."""
        rows = {(row.stem, row.slot, row.index): row for row in self.side.rows}
        for kernel in kernels if rows else ():
            for piece in kernel.pieces():
                row = rows.get((kernel.stem, piece.slot, piece.index))
                if row is not None:
                    piece.node.update({**row_facts(row), **piece.node})


def _is_late(kernel: Kernel, piece: Piece) -> bool:
    return piece.slot == "input" and "output" in kernel.slots


def row_facts(row: StatisticRow) -> dict[str, Any]:
    """Statistics and other columns of a row."""
    return {**row.statistics, **row.others}


def row_node(row: StatisticRow) -> dict[str, Any]:
    """The record of a tensor of which only a row is known."""
    node: dict[str, Any] = {"type": "kernel.Tensor", "dtype": row.dtype or "undefined", "shape": list(row.shape or ())}
    if row.format:
        node["format"] = row.format
    if row.shape is None:
        node["note"] = "the table has no shape"
    return {**node, **row_facts(row)}
