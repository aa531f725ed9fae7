"""The same content is summarised, hashed and copied once: known by its bytes, as for PyTorch.

Neither a tensor's address nor its version says whether its content is still what it was: ``asnumpy`` gives arrays over
the same memory, and addresses are given to the next tensor. So bytes are hashed each time, at the speed of memory.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import xxhash
from numpy.typing import NDArray

from capture.framework import HostTensor
from capture.mindspore.statistics import Statistics
from msformat import DType, canonical_crc32

__all__ = ["Content", "Contents"]


class Content:
    """What is known of one content of one element type and shape.

    Attributes
    ----------
    statistics
        Once computed.
    host
        The copy to be stored, once made.
    """

    __slots__ = ("_crc", "host", "statistics")

    def __init__(self) -> None:
        self.statistics: Statistics | None = None
        self.host: HostTensor | None = None
        self._crc: str | None = None

    def keep(self, bits: NDArray[Any], dtype: DType, *, owned: bool) -> HostTensor:
        """The bits, copied unless nobody but us can write to them."""
        if self.host is None:
            self.host = HostTensor(bits if owned else bits.copy(), dtype)
            self.host.crc = self._crc
        return self.host

    def checksum(self, bits: NDArray[Any], dtype: DType) -> str:
        """The CRC-32 of the format; bfloat16 as float32."""
        if self._crc is None:
            self._crc = canonical_crc32(bits, dtype)
            if self.host is not None:
                self.host.crc = self._crc
        return self._crc


class Contents:
    """What is known of the contents of a step."""

    # Contents are small once stored; without a bound a program that never ends a step would collect them.
    _MAX_CONTENTS = 1 << 16

    def __init__(self) -> None:
        self._known: dict[tuple[bytes, str, tuple[int, ...]], Content] = {}

    def of(self, bits: NDArray[Any], dtype: DType) -> Content:
        """What is known of these bits (C-contiguous)."""
        key = xxhash.xxh3_128_digest(bits.reshape(-1).view(np.uint8).data), dtype.name, bits.shape
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= self._MAX_CONTENTS:
                self._known.clear()
            found = self._known[key] = Content()
        return found

    def clear(self) -> None:
        """Forget all of them."""
        self._known.clear()
