"""From what a store kept to what the document says it is: the two places where they honestly differ.

A plain ``.npy`` cannot name bfloat16, so msprobe writes such a tensor as float32 while the JSON says ``BFloat16``
(msprobe 8.1.0 and 26.2.0 on MindSpore; format.md §3). The same file cannot name float8 either: its bits then stand
there as plain integers. In both cases the document knows better, provided that no bit is lost.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from msformat.dtypes import DType, parse_dtype
from msformat.selection import Selection
from msformat.stores.base import StoredTensor

__all__ = ["LogicalBits", "logical_bits", "logical_dtype"]

_LOW_HALF = np.uint32(0xFFFF)
# Bits are tested in pieces, so that a large tensor needs no mask of its own size.
_PIECE = 1 << 20


class LogicalBits(NamedTuple):
    """Bits and the type they are of.

    Attributes
    ----------
    bits
        C-contiguous array of ``dtype.storage``, owned by the caller.
    dtype
        The element type: the declared one where the stored bits are exactly that, else the stored one.
    note
        None, or a sentence that says why the declared type was not taken.
    """

    bits: NDArray[Any]
    dtype: DType
    note: str | None = None


def logical_dtype(stored: StoredTensor, declared: str | None) -> DType:
    """The type that :func:`logical_bits` gives if the document is right, without reading anything."""
    wanted = parse_dtype(declared) if declared else None
    if wanted is None or wanted == stored.dtype:
        return stored.dtype
    narrows = wanted.name == "bfloat16" and stored.dtype.name == "float32"
    return wanted if narrows or _are_raw_bits_of(stored.dtype, wanted) else stored.dtype


def logical_bits(
    stored: StoredTensor, declared: str | None, selection: Selection = ..., *, borrow: bool = False
) -> LogicalBits:
    """Read a selection as the type the document declares, if that is exact.

    Parameters
    ----------
    stored
        The tensor in its store.
    declared
        ``dtype`` as the document spells it (``BFloat16``, ``torch.float32``); None or a stranger changes nothing.
    selection
        Basic index; the exactness is judged on what is read, so that a slice never costs the whole tensor.
    borrow
        All of it, to be looked at once: see :meth:`msformat.stores.base.StoredTensor.borrowed_bits`.

    Notes
    -----
    float32 is narrowed to bfloat16 only when the low 16 bits of every value read are zero: the values came from
    bfloat16, and their high halves *are* its bits, NaN payloads included.
    """
    bits = stored.borrowed_bits() if borrow else stored.bits(selection)
    wanted = parse_dtype(declared) if declared else None
    if wanted is None or wanted == stored.dtype:
        return LogicalBits(bits, stored.dtype)
    if wanted.name == "bfloat16" and stored.dtype.name == "float32":
        return _narrow(stored, bits, wanted)
    if _are_raw_bits_of(stored.dtype, wanted):
        return LogicalBits(bits, wanted)
    note = f"tensor {stored.key!r}: the document says {declared}, the store holds {stored.dtype.name}"
    return LogicalBits(bits, stored.dtype, note)


def _narrow(stored: StoredTensor, bits: NDArray[Any], wanted: DType) -> LogicalBits:
    words = bits.view(np.uint32)
    flat = words.reshape(-1)
    if any(np.any(flat[at : at + _PIECE] & _LOW_HALF) for at in range(0, flat.size, _PIECE)):
        note = (
            f"tensor {stored.key!r}: the document says {wanted.name}, but the float32 values in the store "
            "need more than its 8 bits of significand: left float32"
        )
        return LogicalBits(bits, stored.dtype, note)
    # asarray: shifting a 0-d array gives a scalar.
    return LogicalBits(np.asarray(words >> np.uint32(16)).astype(np.uint16), wanted)


def _are_raw_bits_of(found: DType, wanted: DType) -> bool:
    """Whether plain unsigned integers are the form in which a store keeps the wanted type."""
    plain = found.is_native and found.storage.kind == "u"
    return plain and not wanted.is_native and wanted.lanes == 1 and wanted.storage == found.storage
