"""Changes of HDF5 files inside their metadata, with the checksums of object headers made to fit again.

Source: the HDF5 file format specification, version 3. HDF5 refuses a header whose checksum is wrong, so that bytes
changed blindly would meet nothing behind it.
"""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

__all__ = ["change_hdf5", "lookup3", "sealed_parts"]

_SIGNATURES = (
    b"\x89HDF", b"OHDR", b"OCHK", b"TREE", b"SNOD", b"HEAP", b"GCOL", b"FRHP", b"FHDB", b"FHIB", b"BTHD", b"BTLF",
    b"BTIN", b"FAHD", b"FADB", b"EAHD", b"EAIB",
)  # fmt: skip
_VALUES = (0, 1, 2, 3, 4, 7, 8, 0x10, 0x20, 0x40, 0x7F, 0x80, 0xFE, 0xFF)
_WIDE = (0, 1, (1 << 16) - 1, 1 << 31, (1 << 32) - 1, 1 << 40, (1 << 63) - 1, (1 << 64) - 1)
# What lies this far behind a signature belongs to it, as a rule.
_NEAR = 160
_MASK = 0xFFFFFFFF


def change_hdf5(data: bytes, random: Random) -> bytes:
    """A few fields of the metadata changed."""
    places = [at for sign in _SIGNATURES for at in _found(data, sign)]
    if not places:
        return data
    new = bytearray(data)
    for _ in range(random.choice((1, 1, 1, 2, 4))):
        at = min(random.choice(places) + random.randrange(4, _NEAR), len(new) - 9)
        kind = random.randrange(4)
        if kind == 0:
            new[at : at + 8] = random.choice((*_WIDE, len(data), random.randrange(len(data)))).to_bytes(8, "little")
        elif kind == 1:
            new[at] ^= 1 << random.randrange(8)
        elif kind == 2:
            new[at] = random.choice(_VALUES)
        else:
            source = random.choice(places) + random.randrange(_NEAR)
            new[at : at + 8] = data[source : source + 8].ljust(8, b"\0")
    for start, end in sealed_parts(bytes(new)):
        new[end : end + 4] = lookup3(bytes(new[start:end])).to_bytes(4, "little")
    return bytes(new)


def _found(data: bytes, sign: bytes) -> Iterator[int]:
    at = data.find(sign)
    while at >= 0:
        yield at
        at = data.find(sign, at + 1)


def sealed_parts(data: bytes) -> Iterator[tuple[int, int]]:
    """Object headers of version 2, and superblocks of version 2 and 3: where each begins, and where its checksum is."""
    if data[:8] == b"\x89HDF\r\n\x1a\n" and data[8] in (2, 3):
        yield 0, 44
    for at in _found(data, b"OHDR"):
        if at + 16 > len(data) or data[at + 4] != 2:
            continue
        flags = data[at + 5]
        begin = at + 6 + (16 if flags & 0x20 else 0) + (4 if flags & 0x10 else 0)
        width = 1 << (flags & 3)
        end = begin + width + int.from_bytes(data[begin : begin + width], "little")
        if end + 4 <= len(data):
            yield at, end


def _rotated(value: int, bits: int) -> int:
    return (value << bits | value >> (32 - bits)) & _MASK


def lookup3(data: bytes) -> int:
    """Bob Jenkins's hash of bytes, which HDF5 takes for its checksums."""
    a = b = c = (0xDEADBEEF + len(data)) & _MASK
    at = 0
    while len(data) - at > 12:
        a, b, c = _mixed(*_added(a, b, c, data[at : at + 12]))
        at += 12
    if at == len(data):
        return c
    return _final(*_added(a, b, c, data[at:].ljust(12, b"\0")))


def _added(a: int, b: int, c: int, part: bytes) -> tuple[int, int, int]:
    x, y, z = (int.from_bytes(part[i : i + 4], "little") for i in (0, 4, 8))
    return (a + x) & _MASK, (b + y) & _MASK, (c + z) & _MASK


def _mixed(a: int, b: int, c: int) -> tuple[int, int, int]:
    for bits in (4, 6, 8, 16, 19, 4):
        a = ((a - c) & _MASK) ^ _rotated(c, bits)
        c = (c + b) & _MASK
        a, b, c = b, c, a
    return a, b, c


def _final(a: int, b: int, c: int) -> int:
    for bits in (14, 11, 25, 16, 4, 14, 24):
        c = ((c ^ b) - _rotated(b, bits)) & _MASK
        a, b, c = b, c, a
    return b
