"""From a block's type, shape and size to the array it holds, by the rules of kernel dumps.

Counts are plain Python integers: a shape may be garbage, and its product beyond 64 bits.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from msformat.dtypes import DType, dtype_named
from msformat.foreign.kernel_dump.enums import element_bits, element_dtype
from msformat.foreign.kernel_dump.record import UNKNOWN_DIM, Block, DoubtName

__all__ = ["Reading", "needed_bytes", "read_block", "unpack_int4"]

# Lengths from here on are -1, or no length at all.
_NO_LENGTH = 1 << 63
_RAW = "uint8"


@dataclass(frozen=True, slots=True)
class Reading:
    """How a block's bytes are to be read.

    Attributes
    ----------
    dtype
        Element type of the array; uint8 for raw bytes.
    shape
        As on the device.
    original_shape
        Of the framework, unknown lengths filled in; None where there is none to go by.
    nbytes
        Bytes of the block that count; the rest of it is padding.
    is_packed
        Two int4 a byte.
    is_raw
        The type's form is not documented: bytes as they are, in one axis.
    doubt, text
        What is wrong, in words; None for nothing. With a loss there is no array.
    """

    dtype: DType
    shape: tuple[int, ...]
    original_shape: tuple[int, ...] | None = None
    nbytes: int = 0
    is_packed: bool = False
    is_raw: bool = False
    doubt: DoubtName | None = None
    text: str = ""

    @property
    def is_bad(self) -> bool:
        """Whether there is no array to give."""
        return self.doubt is not None and self.doubt.is_loss


def needed_bytes(block: Block) -> int | None:
    """Bytes that type and shape ask for; None where they do not tell."""
    bits = element_bits(block.type_name)
    if bits is None or block.shape is None or any(length >= _NO_LENGTH for length in block.shape):
        return None
    return _byte_count(math.prod(block.shape), bits)


def _byte_count(elements: int, bits: int) -> int:
    return -(-elements * bits // 8)


def read_block(block: Block, shape: tuple[int, ...] | None = None) -> Reading:
    """Decide how a block is read.

    Parameters
    ----------
    shape
        In place of the block's own, for a slice of a tensor (FFTS+).
    """
    bits, dtype = element_bits(block.type_name), element_dtype(block.type_name)
    if bits is None or dtype is None:
        return _raw(block)
    wanted = block.shape if shape is None else shape
    if not wanted:
        return _without_axes(block, dtype, bits)
    unknown = [axis for axis, length in enumerate(wanted) if length >= _NO_LENGTH]
    if unknown:
        return _derived(block, dtype, bits, wanted, unknown)
    return _whole(block, dtype, bits, wanted, block.original_shape)


def _raw(block: Block) -> Reading:
    known = block.type_name in ("undefined", "uint8") or block.slot in ("buffer", "space")
    doubt = None if known else DoubtName.raw_bytes
    text = "" if known else f"elements of type {block.type_name} are given as {block.size} raw bytes"
    return Reading(
        dtype_named(_RAW), (block.size,), nbytes=block.size, is_raw=block.slot in ("input", "output"),
        doubt=doubt, text=text,
    )  # fmt: skip


def _without_axes(block: Block, dtype: DType, bits: int) -> Reading:
    if block.size == 0:
        return Reading(dtype, (0,))
    if block.slot in ("buffer", "space"):
        return Reading(dtype, (block.size,), nbytes=block.size)
    return _whole(block, dtype, bits, (), None)


def _derived(block: Block, dtype: DType, bits: int, shape: tuple[int, ...], unknown: list[int]) -> Reading:
    """One unknown length follows from the size; of several, nothing follows."""
    rest = math.prod(length for length in shape if length < _NO_LENGTH)
    # With an odd number of int4 the last byte holds one: the length is then one too large, which nothing tells.
    count = block.size * 8 // bits
    if len(unknown) > 1 or (rest == 0 and block.size) or (rest and count % rest):
        text = f"shape {_shown(shape)} leaves the lengths open that {block.size} bytes do not tell: given as raw bytes"
        return Reading(
            dtype_named(_RAW), (block.size,), nbytes=block.size, is_raw=True, doubt=DoubtName.unknown_dim, text=text
        )
    length = count // rest if rest else 0
    known = tuple(length if axis in unknown else size for axis, size in enumerate(shape))
    original = block.original_shape
    if original is not None and any(size >= _NO_LENGTH for size in original):
        original = known if original == shape else None
    return _whole(block, dtype, bits, known, original)


def _whole(block: Block, dtype: DType, bits: int, shape: tuple[int, ...], original: tuple[int, ...] | None) -> Reading:
    needed = _byte_count(math.prod(shape), bits)
    reading = Reading(dtype, shape, _plausible(original), min(needed, block.size), is_packed=bits < 8)
    if needed > block.size:
        what = f"{block.type_name} {_shown(shape)} needs {needed} bytes, there are {block.size}"
        return Reading(dtype, shape, doubt=DoubtName.short_tensor, text=what)
    return reading


def _plausible(shape: tuple[int, ...] | None) -> tuple[int, ...] | None:
    """An empty original shape means that there is none to go by; so does one with unknown lengths."""
    return shape if shape and all(length < _NO_LENGTH for length in shape) else None


def _shown(shape: tuple[int, ...]) -> list[int]:
    """A shape as people write it, -1 for an unknown length."""
    return [-1 if length == UNKNOWN_DIM else length for length in shape]


def unpack_int4(packed: NDArray[np.uint8], shape: tuple[int, ...]) -> NDArray[Any]:
    """int4 values, one a byte (``ml_dtypes.int4``), from two a byte: the low half is the even element."""
    pairs = np.empty((packed.size, 2), np.uint8)
    np.bitwise_and(packed, 0x0F, out=pairs[:, 0])
    np.right_shift(packed, 4, out=pairs[:, 1])
    return pairs.reshape(-1)[: math.prod(shape)].reshape(shape)
