"""ATB: the ``.bin`` files of one operation become one kernel; tensors that were stored once are found again."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import NamedTuple, Protocol

from msformat.filesystem import FileSystem, Item, join
from msformat.foreign.kernel_dump.arguments import Arguments
from msformat.foreign.kernel_dump.binary import read_records
from msformat.foreign.kernel_dump.kernels import Kernel
from msformat.foreign.kernel_dump.pieces import Piece, block_piece
from msformat.foreign.kernel_dump.places import Place
from msformat.foreign.kernel_dump.record import Block, Doubt, DoubtName, Record

__all__ = ["AtbFile", "atb_kernels", "read_atb_files"]

_FILE = re.compile(r"(in|out)tensor([0-9]{1,6})\.bin")
_PARAMETERS = "op_param.json"
# The usual places of a tensor; others keep the moment in the name of their slot.
_SLOTS = {("in", "before"): "input", ("out", "after"): "output"}
_BAD_FILE = (OSError, ValueError, TypeError, LookupError, ArithmeticError, MemoryError, RecursionError)


class AtbFile(NamedTuple):
    """One tensor file of an operation.

    Attributes
    ----------
    path
        Relative to the root.
    operation
        Layer and operation: ``("0_WordEmbedding", "0_GatherOperation")``.
    moment
        ``before`` or ``after``.
    name
        Of the file.
    run
        0, or which of the records that later runs appended.
    record
        Its content.
    """

    path: str
    operation: tuple[str, ...]
    moment: str
    name: str
    run: int
    record: Record

    @property
    def block(self) -> Block:
        """The tensor, in the slot that the file's name says."""
        side, number = _side(self.name)
        slot = _SLOTS.get((side, self.moment), f"{side}put_{self.moment}" if self.moment else f"{side}put")
        block = self.record.blocks[0]
        return Block(slot, number, block.type_name, block.format_name, block.size, block.start, block.shape)


class _Failures(Protocol):
    """Where refused files, and doubts, are noted."""

    files: int
    doubts: list[Doubt]

    def failed(self, error: BaseException, source: str) -> None:
        """Note one."""


def _side(name: str) -> tuple[str, int]:
    found = _FILE.fullmatch(name)
    return (found[1], int(found[2])) if found else ("in", 0)


def read_atb_files(fs: FileSystem, place: Place, items: Sequence[Item], failures: _Failures) -> Iterator[AtbFile]:
    """Headers of the tensor files of a directory."""
    *operation, moment = place.names.get("layer", f"/{place.path.rpartition('/')[2]}/").strip("/").split("/") or [""]
    if moment not in ("before", "after"):
        operation, moment = [*operation, moment], ""
    for item in items:
        failures.files += 1
        path = join(place.path, item.name)
        try:
            records = read_records(fs, path, item.size)
        except _BAD_FILE as error:
            failures.failed(error, fs.describe(path))
            continue
        for run, record in enumerate(records):
            yield AtbFile(path, tuple(operation), moment, item.name, run, record)


def atb_kernels(
    fs: FileSystem, files: Sequence[AtbFile], found: _Failures, arguments: Arguments, *, device: bool
) -> Iterator[Kernel]:
    """A kernel for each operation and run."""
    named = _by_alias(files)
    groups: dict[tuple[tuple[str, ...], int], list[AtbFile]] = {}
    for file in files:
        groups.setdefault((file.operation, file.run), []).append(file)
    for at, ((operation, _), group) in enumerate(groups.items()):
        kernel = Kernel(".".join(operation) or "atb", at, _facts(fs, operation, group[0], found, arguments))
        for file in group:
            found.doubts += file.record.doubts
            kernel.add(_piece(fs, file, named.get(file.record.alias, ()), device=device))
        yield kernel


def _by_alias(files: Sequence[AtbFile]) -> dict[str, list[AtbFile]]:
    """Files with data by the names ``{id}_{Layer}_{file name}`` that aliases call them."""
    named: dict[str, list[AtbFile]] = {}
    for file in files:
        if not file.record.alias:
            for part in set(file.operation):
                named.setdefault(f"{part}_{file.name}", []).append(file)
    return named


def _facts(
    fs: FileSystem, operation: tuple[str, ...], file: AtbFile, found: _Failures, arguments: Arguments
) -> dict[str, object]:
    facts: dict[str, object] = {
        "op_type": operation[-1].partition("_")[2] if operation else "",
        "op_name": "/".join(operation),
        "version": file.record.version,
        "form": "atb",
    }
    directory = file.path.rpartition("/")[0].rpartition("/")[0]
    path = join(directory, _PARAMETERS)
    if directory and fs.kind(path) == "file":
        try:
            facts["arguments"] = arguments.read(path)
        except _BAD_FILE as error:
            found.failed(error, fs.describe(path))
    return facts


def _piece(fs: FileSystem, file: AtbFile, files: Sequence[AtbFile], *, device: bool) -> Piece:
    alias = file.record.alias
    block = file.block
    if not alias:
        piece = block_piece(fs, file.path, block, device=device)
        piece.node["file"] = file.path
        return piece
    original = _original(file, files)
    if original is None:
        text = f"the tensor is stored in {alias!r}, which is not there, or not the only one"
        piece = block_piece(fs, file.path, block, device=device)
        piece.open, piece.node["problem"] = None, text
        piece.doubts = [Doubt(DoubtName.unresolved_alias, f"{fs.describe(file.path)}: {block}: {text}")]
    else:
        found = original.block
        same = Block(block.slot, block.index, found.type_name, found.format_name, found.size, found.start, found.shape)
        piece = block_piece(fs, original.path, same, device=device)
    piece.node |= {"file": file.path, "same_as": alias if original is None else original.path}
    return piece


def _original(file: AtbFile, files: Sequence[AtbFile]) -> AtbFile | None:
    """Of the files that its alias names the one that is meant, if only one can be."""
    block = file.block
    fitting = [other for other in files if (other.block.type_name, other.block.shape) == (block.type_name, block.shape)]
    same_run = [other for other in fitting if other.run == file.run] or fitting
    shallow = min((len(other.operation) for other in same_run), default=0)
    best = [other for other in same_run if len(other.operation) == shallow]
    same_moment = [other for other in best if other.moment == file.moment]
    best = same_moment or best
    return best[0] if len(best) == 1 else None
