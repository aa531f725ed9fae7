"""One tensor of a kernel: its record in the document, and how to open it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from msformat.dtypes import dtype_named
from msformat.filesystem import FileSystem, Item
from msformat.foreign.kernel_dump.device_layout import HostPlan, plan_host_layout
from msformat.foreign.kernel_dump.elements import Reading, read_block
from msformat.foreign.kernel_dump.enums import element_bits, element_dtype, spelled_type
from msformat.foreign.kernel_dump.filenames import KernelName
from msformat.foreign.kernel_dump.record import UNKNOWN_DIM, Block, Doubt
from msformat.foreign.kernel_dump.tensors import BlockTensor, open_block
from msformat.stores.base import StoredTensor
from msformat.stores.npyfile import MAGIC, MAX_HEADER, open_npy

__all__ = ["Piece", "block_piece", "file_piece"]

_TYPE = "kernel.Tensor"
Opener = Callable[[], StoredTensor]


@dataclass(slots=True)
class Piece:
    """A tensor of a kernel.

    Attributes
    ----------
    slot, index
        Where it belongs.
    node
        Its record in ``dump.json``.
    data_name
        Key in the store; ``""`` where there are no data.
    open
        Opens it; None where there are no data.
    doubts
        What is doubtful about it.
    """

    slot: str
    index: int
    node: dict[str, Any]
    data_name: str = ""
    open: Opener | None = None
    doubts: list[Doubt] = field(default_factory=list)


def block_piece(
    fs: FileSystem, path: str, block: Block, *, device: bool, shape: tuple[int, ...] | None = None
) -> Piece:
    """The piece of a block in a binary file. It gets its ``data_name`` later, with the kernel's key.

    Parameters
    ----------
    device
        Leave the layout of the device.
    shape
        In place of the block's own, for a slice.
    """
    reading = read_block(block, shape)
    plan = _host_plan(block, reading, device=device)
    final = reading.shape if plan.layout is None else plan.layout.shape
    piece = Piece(block.slot, block.index, _node(block, reading, final))
    for doubt, text in ((reading.doubt, reading.text), (plan.doubt, plan.text)):
        if doubt is not None:
            piece.doubts.append(Doubt(doubt, f"{fs.describe(path)}: {block}: {text}"))
            piece.node["problem" if doubt.is_loss else "note"] = text
    start = block.start
    if start is None:
        piece.node["note"] = "no data: the tensor had no memory on the device"
    elif not reading.is_bad:
        piece.open = lambda: open_block(fs, path, start, reading, key=piece.data_name, host=plan.layout)
    return piece


def _host_plan(block: Block, reading: Reading, *, device: bool) -> HostPlan:
    if device or reading.is_bad or reading.is_raw or block.slot not in ("input", "output"):
        return HostPlan(None)
    return plan_host_layout(
        block.format_name, reading.shape, reading.original_shape, block.sub_format, block.original_format
    )


def _node(block: Block, reading: Reading, shape: tuple[int, ...]) -> dict[str, Any]:
    node: dict[str, Any] = {"type": _TYPE, "dtype": reading.dtype.name, "shape": list(shape)}
    if block.slot in ("input", "output"):
        node["format"] = block.format_name
        if reading.is_raw:
            node["device_dtype"] = block.type_name
            node |= _item_size(block)
        if block.shape is not None and block.shape != shape:
            node["device_shape"] = _shown(block.shape)
        if block.original_shape is not None and block.original_shape != shape:
            node["original_shape"] = _shown(block.original_shape)
        if block.sub_format:
            node["sub_format"] = block.sub_format
    node["size"] = block.size
    if block.address:
        node["address"] = block.address
    return {**node, **block.extra}


def _shown(shape: tuple[int, ...]) -> list[int]:
    return [-1 if length == UNKNOWN_DIM else length for length in shape]


def _item_size(block: Block) -> dict[str, int]:
    """Exception dumps may know the shape and not the type: the width of an element is then a hint."""
    count = 1
    for length in block.shape or (0,):
        count *= length
    return {"itemsize": block.size // count} if count and block.size and block.size % count == 0 else {}


def file_piece(fs: FileSystem, path: str, item: Item, name: KernelName, data_name: str) -> Piece:
    """The piece of a file that holds one tensor: ``.npy``, or raw bytes of a type that ``.npy`` cannot say.

    Raises
    ------
    FormatError, CorruptTensorError
        The file is no ``.npy``, or is cut.
    """
    head = fs.read(path, 0, MAX_HEADER + 12)
    index = name.index or 0
    stored: StoredTensor
    if name.suffix or head.startswith(MAGIC):
        stored = open_npy(data_name, fs, path, head, item.size)
        opener = _npy_opener(fs, path, item.size, data_name)
        node = {"type": _TYPE, "dtype": _declared(name, stored), "shape": list(stored.shape)}
    else:
        stored, opener = _raw_tensor(fs, path, item.size, name, data_name)
        node = {"type": _TYPE, "dtype": stored.dtype.name, "shape": list(stored.shape)}
    node |= {"data_name": data_name, **({"format": name.format} if name.format else {})}
    declared = spelled_type(name.dtype)
    if name.dtype and declared != node["dtype"]:
        node["device_dtype"] = declared
    return Piece(name.slot or "output", index, node, data_name, opener)


def _npy_opener(fs: FileSystem, path: str, size: int, data_name: str) -> Opener:
    return lambda: open_npy(data_name, fs, path, fs.read(path, 0, MAX_HEADER + 12), size)


def _declared(name: KernelName, stored: StoredTensor) -> str:
    """bfloat16 is stored as float32, and only the name knows; any other type is what the file says."""
    is_wide = spelled_type(name.dtype) == "bfloat16" and stored.dtype.name == "float32"
    return "bfloat16" if is_wide else stored.dtype.name


def _raw_tensor(fs: FileSystem, path: str, size: int, name: KernelName, data_name: str) -> tuple[StoredTensor, Opener]:
    """One axis, whose elements have the type of the name where that has a form, else are bytes."""
    declared = spelled_type(name.dtype)
    dtype, bits = element_dtype(declared), element_bits(declared)
    if dtype is None or bits is None or bits % 8 or size % dtype.itemsize:
        dtype = dtype_named("uint8")
    shape = (size // dtype.itemsize,)
    opener: Opener = lambda: BlockTensor(fs, path, 0, dtype, shape, key=data_name)  # noqa: E731
    return opener(), opener
