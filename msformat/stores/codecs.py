"""How a compression is spelled, and how an array is cut into chunks: shared by the HDF5 and the Zarr store.

::

    none | auto
    gzip[:level] | zstd[:level] | lz4 | blosc[-zstd|-lz4][:level]      each with an optional filter:
                                                                       +shuffle | +bitshuffle | +noshuffle
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from typing import Literal, TypeAlias

from msformat.errors import FormatError

__all__ = ["CHUNK_TARGET", "SHARD_TARGET", "Compression", "Shuffle", "chunk_shape", "parse_compression", "shard_shape"]

Shuffle: TypeAlias = Literal["shuffle", "bitshuffle", "noshuffle"]

# Arrays up to this size stay in one piece; bigger ones are cut into pieces of at most this size.
CHUNK_TARGET = 8 << 20
_CHUNK_LIMIT = 64 << 20
# What one file of a Zarr array holds.
SHARD_TARGET = 256 << 20

_LEVELS = {"gzip": range(10), "zstd": range(1, 23), "blosc": range(10)}
_FILTERS: dict[str, Shuffle] = {"shuffle": "shuffle", "bitshuffle": "bitshuffle", "noshuffle": "noshuffle"}
_NAMES = ("auto", "none", "gzip", "zstd", "lz4", "blosc")
_SPELLING = re.compile(
    r"(?P<name>[a-z0-9]+)(?:-(?P<inner>[a-z0-9]+))?(?::(?P<level>[0-9]{1,3}))?(?:\+(?P<shuffle>[a-z]+))?"
)
_CHOICES = (
    "auto, none, gzip[:0-9], zstd[:1-22], lz4, blosc[-zstd|-lz4][:0-9], "
    "each but auto and none optionally with +shuffle, +bitshuffle or +noshuffle"
)


@dataclass(frozen=True, slots=True)
class Compression:
    """A parsed compression.

    Attributes
    ----------
    name
        ``auto``, ``none``, ``gzip``, ``zstd``, ``lz4`` or ``blosc``.
    inner
        Codec inside blosc, ``zstd`` (its default) or ``lz4``; None for the others.
    level
        None: the store's default for that codec.
    shuffle
        None: the store's default for that codec.
    """

    name: str
    inner: str | None = None
    level: int | None = None
    shuffle: Shuffle | None = None

    def __str__(self) -> str:
        inner = f"-{self.inner}" if self.inner else ""
        level = f":{self.level}" if self.level is not None else ""
        shuffle = f"+{self.shuffle}" if self.shuffle else ""
        return f"{self.name}{inner}{level}{shuffle}"


def parse_compression(text: str) -> Compression:
    """Read a spelling such as ``gzip:4`` or ``blosc-zstd:5+bitshuffle``; case and outer spaces do not matter.

    Raises
    ------
    FormatError
        No such compression; the message names the choices.
    """
    match = _SPELLING.fullmatch(text.strip().lower())
    if match is None or match["name"] not in _NAMES:
        raise _refusal(text, "unknown")
    name, inner, shuffle = match["name"], match["inner"], match["shuffle"]
    level = int(match["level"]) if match["level"] is not None else None
    if name in ("auto", "none") and (inner, level, shuffle) != (None, None, None):
        raise _refusal(text, f"{name!r} takes no level and no filter")
    if inner is not None and (name != "blosc" or inner not in ("zstd", "lz4")):
        raise _refusal(text, f"{name!r} has no inner codec {inner!r}")
    if level is not None and level not in _LEVELS.get(name, ()):
        raise _refusal(text, f"{name!r} has no level {level}")
    if shuffle is not None and shuffle not in _FILTERS:
        raise _refusal(text, f"unknown filter {shuffle!r}")
    if name == "blosc":
        inner = inner or "zstd"
    return Compression(name, inner, level, _FILTERS[shuffle] if shuffle else None)


def _refusal(text: str, why: str) -> FormatError:
    return FormatError(f"compression {text!r}: {why}; choices: {_CHOICES}")


def chunk_shape(shape: tuple[int, ...], itemsize: int, target: int = CHUNK_TARGET) -> tuple[int, ...]:
    """Cut an array into chunks of at most ``target`` bytes (of one element, should that be bigger).

    Row-major: trailing axes stay whole as long as they fit, one axis is cut evenly, the axes before it become 1, so
    that a chunk is a contiguous run of the array.

    Parameters
    ----------
    shape
        Shape of the stored array; axes of length 0 give chunks of length 1.
    itemsize
        Bytes of one stored element.
    target
        Bytes of a chunk, cut down to 64 MiB.

    Returns
    -------
    tuple of int
        One length an axis, each between 1 and the axis' length.
    """
    room = max(1, min(target, _CHUNK_LIMIT) // max(1, itemsize))
    chunk: list[int] = []
    for length in reversed(shape):
        length = max(1, length)
        # The pieces of a cut axis are made equal, so that no sliver is left at its end.
        taken = length if length <= room else math.ceil(length / math.ceil(length / room))
        chunk.append(taken)
        room = room // taken if taken == length else 1
    return tuple(reversed(chunk))


def shard_shape(
    shape: tuple[int, ...], chunks: tuple[int, ...], itemsize: int, target: int = SHARD_TARGET
) -> tuple[int, ...]:
    """Put chunks together into shards of at most ``target`` bytes (of one chunk, should that be bigger).

    Parameters
    ----------
    shape, chunks
        Of the stored array, and what :func:`chunk_shape` cut it into.
    itemsize
        Bytes of one stored element.
    target
        Bytes of a shard.

    Returns
    -------
    tuple of int
        Whole chunks an axis, so that the last shard may reach over the array's end. Row-major as the chunks are.
    """
    room = max(1, target // max(1, math.prod(chunks) * itemsize))
    shard: list[int] = []
    for length, chunk in zip(reversed(shape), reversed(chunks), strict=True):
        count = max(1, math.ceil(length / chunk))
        taken = count if count <= room else math.ceil(count / math.ceil(count / room))
        shard.append(taken * chunk)
        room = room // taken if taken == count else 1
    return tuple(reversed(shard))
