"""How much memory there is, and what is refused because it cannot fit: small files may unpack to terabytes."""

from __future__ import annotations

import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

from msformat.errors import StoreError, UnsafeInputError

__all__ = ["check_document", "check_packing", "check_room", "memory"]

# What a container of this process may use, version 2 and 1 of control groups.
_LIMITS = ("/sys/fs/cgroup/memory.max", "/sys/fs/cgroup/memory/memory.limit_in_bytes")
# Text, its index and a copy with NaN masked.
_COPIES = 4
# A document of entries that differ in their number only unpacks 150-fold (deflate) to 570-fold (zstd).
_DOCUMENT_RATIO = 600
_SMALL_DOCUMENT = 64 << 20


@cache
def memory() -> int | None:
    """Bytes of memory that this process could ever have; None where the system does not say."""
    found = []
    if hasattr(os, "sysconf") and "SC_PHYS_PAGES" in os.sysconf_names:
        found.append(os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"))
    for name in _LIMITS:
        try:
            found.append(int(Path(name).read_text(encoding="ascii")))
        except (OSError, ValueError):  # no such group, or "max"
            continue
    return min((size for size in found if size > 0), default=None)


def check_room(nbytes: int, what: str) -> None:
    """Refuse to read more at once than this machine can hold: the system would kill the process, not this read.

    Raises
    ------
    StoreError
        Says how much it is.
    """
    most = memory()
    if most is not None and nbytes > most:
        raise StoreError(f"{what}: {nbytes} bytes do not fit into the {most} bytes of memory here")


def check_document(nbytes: int, stored: Callable[[], int], what: str) -> None:
    """Refuse a document whose bytes are packed denser than any text of entries.

    Parameters
    ----------
    nbytes
        Of the document.
    stored
        Gives the bytes it takes in its store; asked for large documents only.
    what
        Its name, for messages.

    Raises
    ------
    UnsafeInputError
        It is a bomb.
    StoreError
        It is larger than this machine can handle.
    """
    check_packing(nbytes, stored, what)
    check_room(_COPIES * nbytes, what)


def check_packing(nbytes: int, stored: Callable[[], int], what: str) -> None:
    """The part of :func:`check_document` for documents that need no memory of their size: those that are mapped.

    Raises
    ------
    UnsafeInputError
        It is a bomb.
    """
    packed = stored() if nbytes > _SMALL_DOCUMENT else nbytes
    if nbytes > packed * _DOCUMENT_RATIO:
        raise UnsafeInputError(f"{what}: {packed} stored bytes unpack to {nbytes}, which no document of a dump does")
