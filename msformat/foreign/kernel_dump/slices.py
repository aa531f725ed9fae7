"""FFTS+ files of one operator become one kernel, its tensors joined from the slices of all threads."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from msformat.filesystem import FileSystem
from msformat.foreign.kernel_dump.elements import read_block
from msformat.foreign.kernel_dump.ffts import Slicing, cut_axis, parse_slicing, slice_thread, without_slice_mark
from msformat.foreign.kernel_dump.filenames import KernelName
from msformat.foreign.kernel_dump.kernels import Kernel, record_facts
from msformat.foreign.kernel_dump.pieces import Piece, block_piece
from msformat.foreign.kernel_dump.record import Block, Doubt, DoubtName, Record
from msformat.foreign.kernel_dump.tensors import joined_tensor, open_block

__all__ = ["SliceFile", "join_slices"]

SliceFile = tuple[KernelName, Record, str]
_PLAIN = ("ND", "NCHW", "NHWC", "HWCN", "CHWN", "NCDHW", "NDHWC", "NCL", "NC", "CN")


def join_slices(fs: FileSystem, files: Sequence[SliceFile], doubts: list[Doubt], *, device: bool) -> Iterator[Kernel]:
    """One kernel an operator; a slice each where not all of them are there."""
    groups: dict[tuple[object, ...], list[SliceFile]] = {}
    for file in files:
        name = file[0]
        operator = (name.op_type, without_slice_mark(name.op_name), name.task_id, name.stream_id, name.context_id)
        groups.setdefault(operator, []).append(file)
    for group in groups.values():
        for turn in _turns(group):
            yield from _operator(fs, turn, doubts, device=device)


def _turns(group: Sequence[SliceFile]) -> Iterator[list[SliceFile]]:
    """Runs of the same operator: a thread that comes again begins the next."""
    turns: list[dict[int | None, SliceFile]] = []
    for file in sorted(group, key=lambda file: file[0].timestamp or 0):
        thread = slice_thread(file[0])
        turn = next((turn for turn in turns if thread not in turn), None)
        if turn is None:
            turns.append(turn := {})
        turn[thread] = file
    for turn in turns:
        yield [turn[thread] for thread in sorted(turn, key=lambda thread: -1 if thread is None else thread)]


def _operator(fs: FileSystem, turn: Sequence[SliceFile], doubts: list[Doubt], *, device: bool) -> Iterator[Kernel]:
    name, record, path = turn[0]
    slicing = parse_slicing(record)
    threads = [slice_thread(file[0]) for file in turn]
    complete = slicing is not None and threads == list(range(slicing.threads)) and len(turn) > 0
    alike = len({tuple((block.slot, block.index) for block in file[1].blocks) for file in turn}) == 1
    if slicing is not None and complete and alike:
        kernel = _whole(name, record)
        kernel.facts["files"] = [file[2] for file in turn]
        for at in range(len(record.blocks)):
            kernel.add(_joined(fs, [(file[1].blocks[at], file[2]) for file in turn], slicing, device=device))
        yield kernel
        return
    if slicing is not None and not complete:
        text = f"{fs.describe(path)}: of {slicing.threads} slices only {len(turn)} are there: each is given by itself"
        doubts.append(Doubt(DoubtName.missing_slice, text))
    for own, single, where in turn:
        yield _slice(fs, own, single, where, device=device)


def _whole(name: KernelName, record: Record) -> Kernel:
    stem = f"{name.op_type}.{without_slice_mark(name.op_name)}.{name.stem.split('.', 2)[2]}"
    if name.is_slice:
        stem = ".".join(stem.split(".")[:5])
    facts = record_facts(name, record)
    facts["op_name"] = without_slice_mark(facts["op_name"])
    facts.pop("thread_id")
    return Kernel(stem, name.timestamp or 0, facts)


def _slice(fs: FileSystem, name: KernelName, record: Record, path: str, *, device: bool) -> Kernel:
    kernel = Kernel(name.stem, name.timestamp or 0, {**record_facts(name, record), "file": path})
    slicing = parse_slicing(record)
    for block in record.blocks:
        shape = _slice_shape(block, slicing, slice_thread(name) or 0)
        kernel.add(block_piece(fs, path, block, device=device, shape=shape))
    return kernel


def _slice_shape(block: Block, slicing: Slicing | None, thread: int) -> tuple[int, ...] | None:
    """Shape of the data: what the slicing says, else the original shape where it fits the size."""
    said = slicing.shape(block, thread) if slicing is not None else None
    if said is not None:
        return said
    fits = block.original_shape and not read_block(block, block.original_shape).is_bad
    return block.original_shape if fits and read_block(block).is_bad else None


def _joined(fs: FileSystem, parts: Sequence[tuple[Block, str]], slicing: Slicing, *, device: bool) -> Piece:
    first, path = parts[0]
    axis = cut_axis(slicing, [block for block, _ in parts])
    readings = [read_block(block, _slice_shape(block, slicing, thread)) for thread, (block, _) in enumerate(parts)]
    shape = _slice_shape(first, slicing, 0)
    piece = block_piece(fs, path, first, device=device, shape=shape)
    if axis is None or len(parts) == 1:
        return piece
    bad = next((reading for reading in readings if reading.is_bad or axis >= len(reading.shape)), None)
    if bad is not None or any(block.start is None for block, _ in parts):
        why = bad.text if bad is not None and bad.text else "a slice has no data, or no such axis"
        return _without_data(fs, piece, path, first, why)
    if len({reading.shape[:axis] + reading.shape[axis + 1 :] for reading in readings}) > 1:
        return _without_data(fs, piece, path, first, "slices have shapes that do not join")
    tensors = [
        open_block(fs, where, block.start or 0, reading)
        for (block, where), reading in zip(parts, readings, strict=True)
    ]
    whole = joined_tensor("", tensors, axis)
    piece.open = lambda: joined_tensor(piece.data_name, tensors, axis)
    piece.node |= {"shape": list(whole.shape), "slices": len(parts), "slice_axis": axis}
    for name in ("original_shape", "device_shape"):
        piece.node.pop(name, None)
    if first.format_name not in _PLAIN:
        piece.node["note"] = f"layout {first.format_name} of joined slices is given as it lay on the device"
        piece.doubts = [Doubt(DoubtName.device_layout, f"{fs.describe(path)}: {first}: {piece.node['note']}")]
    return piece


def _without_data(fs: FileSystem, piece: Piece, path: str, block: Block, why: str) -> Piece:
    piece.open = None
    piece.node["problem"] = why
    piece.doubts = [Doubt(DoubtName.short_tensor, f"{fs.describe(path)}: {block}: {why}")]
    return piece
