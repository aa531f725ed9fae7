"""Digests of stored tensors, of content with several names only once."""

from __future__ import annotations

import threading
from collections.abc import Hashable, Iterator
from dataclasses import dataclass, field
from typing import Any

from numpy.typing import NDArray

from msformat.digest import RunningSums
from msformat.selection import slabs
from msformat.stores.base import StoredTensor

__all__ = ["ContentSums", "Sums"]

# Larger tensors are read in slabs, so that summing them up takes no more memory than that.
_AT_ONCE = 64 << 20
_SLAB = 32 << 20


@dataclass(frozen=True, slots=True)
class Sums:
    """What was computed from stored bytes.

    Attributes
    ----------
    nbytes
        Of the stored bits, uncompressed.
    digest
        :func:`msformat.digest.content_digest`.
    crc32
        :func:`msformat.digest.canonical_crc32`, None where nobody asked for it.
    """

    nbytes: int
    digest: str
    crc32: str | None


@dataclass(slots=True)
class _Known:
    lock: threading.Lock = field(default_factory=threading.Lock)
    sums: Sums | None = None


class ContentSums:
    """Reads tensors of one open store and sums them up; the same stored bytes are read once (twice at most).

    Several threads may ask.
    """

    def __init__(self) -> None:
        self._known: dict[Hashable, _Known] = {}

    def of(self, stored: StoredTensor, *, crc32: bool = False) -> Sums:
        """The sums of a tensor.

        Parameters
        ----------
        crc32
            Whether that one is needed, too.

        Raises
        ------
        CorruptTensorError
            It cannot be read. That is not remembered: each name says so for itself.
        """
        identity = stored.identity
        if identity is None:
            return _sum_up(stored, crc32=crc32)
        content = (identity, stored.dtype.name, stored.shape)
        known = self._known.setdefault(content, _Known())
        # Whoever asks for another name meanwhile waits for the one that reads.
        with known.lock:
            if known.sums is None or (crc32 and known.sums.crc32 is None):
                known.sums = _sum_up(stored, crc32=crc32)
            return known.sums


def _sum_up(stored: StoredTensor, *, crc32: bool) -> Sums:
    sums = RunningSums(stored.dtype, stored.shape, with_crc32=crc32)
    nbytes = 0
    for piece in _pieces(stored):
        sums.add(piece)
        nbytes += piece.nbytes
    return Sums(nbytes, sums.digest, sums.checksum)


def _pieces(stored: StoredTensor) -> Iterator[NDArray[Any]]:
    """The stored bits in C order: at once, or of a large tensor slab by slab."""
    if stored.nbytes <= _AT_ONCE or not stored.reads_parts:
        yield stored.bits()
        return
    stored.check_whole()
    for selection in slabs(stored.shape, stored.nbytes, _SLAB):
        yield stored.bits(selection)
