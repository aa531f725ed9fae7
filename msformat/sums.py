"""Digests of stored tensors, of content with several names only once."""

from __future__ import annotations

from collections.abc import Hashable
from dataclasses import dataclass

from msformat.digest import canonical_crc32, content_digest
from msformat.stores.base import StoredTensor

__all__ = ["ContentSums", "Sums"]


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


class ContentSums:
    """Reads tensors of one open store and sums them up; the same stored bytes are read once (twice at most)."""

    def __init__(self) -> None:
        self._known: dict[Hashable, Sums] = {}

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
        known = self._known.get(content)
        if known is None or (crc32 and known.crc32 is None):
            known = self._known[content] = _sum_up(stored, crc32=crc32)
        return known


def _sum_up(stored: StoredTensor, *, crc32: bool) -> Sums:
    bits = stored.bits()
    return Sums(
        bits.nbytes,
        content_digest(bits, stored.dtype),
        canonical_crc32(bits, stored.dtype) if crc32 else None,
    )
