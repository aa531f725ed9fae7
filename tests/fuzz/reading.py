"""A stored tensor is read, and what is read of it agrees."""

from __future__ import annotations

from contextlib import suppress
from typing import Any

import numpy as np
from numpy.typing import NDArray

from msformat.errors import CorruptTensorError
from msformat.stores.base import StoredTensor

__all__ = ["read_tensor"]

_MOST_BYTES = 4 << 20


def read_tensor(tensor: StoredTensor) -> NDArray[Any] | None:
    """All bits of a tensor; of a large one only an element, and None.

    Raises
    ------
    MsformatError
        It cannot be read.
    AssertionError
        A part says something else than the whole.
    """
    corner = tuple(slice(0, 1) for _ in tensor.shape)
    one = tensor.bits(corner)
    assert one.dtype == tensor.dtype.storage
    assert one.shape == tensor.dtype.stored_shape(tuple(min(1, length) for length in tensor.shape))
    if tensor.nbytes > _MOST_BYTES:
        return None
    bits = tensor.bits()
    assert bits.dtype == tensor.dtype.storage
    assert bits.shape == tensor.dtype.stored_shape(tensor.shape)
    assert bits.nbytes == tensor.nbytes
    assert bits[corner].tobytes() == one.tobytes()
    assert np.ascontiguousarray(tensor.borrowed_bits()).tobytes() == bits.tobytes()
    # It can be read, and may say that it is not what was written.
    with suppress(CorruptTensorError):
        tensor.verify()
    return bits
