"""Writes kernel dump files for tests, byte by byte from the format's description and with nothing of msformat."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

STAMP = 1735011096426349
NAME = f"Add.Default_Add-op1.5.2.{STAMP}"
ADDRESS = 0x12C041200000
# DumpData's numbers of types, and of layouts.
FLOAT32, FLOAT16, INT8, UINT8, INT32, INT64, BFLOAT16, INT4 = 1, 2, 3, 4, 7, 8, 27, 28
ND, NHWC, NC1HWC0, FRACTAL_Z, FRACTAL_NZ, NDC1HWC0 = 2, 1, 3, 4, 29, 32
_NUMBERS = {"f4": FLOAT32, "f2": FLOAT16, "i1": INT8, "u1": UINT8, "i4": INT32, "i8": INT64}
# Field numbers: slot in DumpData; then shape, size, original shape, sub_format, address.
_INPUT, _OUTPUT = (4, 3, 5, 6, 7, 8), (3, 3, 6, 7, 8, 9)


def varint(number: int) -> bytes:
    """A number as protobuf spells it; negative ones take ten bytes."""
    number &= (1 << 64) - 1
    out = b""
    while number > 0x7F:
        out += bytes([number & 0x7F | 0x80])
        number >>= 7
    return out + bytes([number])


def number(field: int, value: int) -> bytes:
    """A varint field; zero is left out, as proto3 does."""
    return varint(field << 3) + varint(value) if value else b""


def text(field: int, value: str | bytes) -> bytes:
    """A length-delimited field."""
    data = value.encode() if isinstance(value, str) else value
    return varint(field << 3 | 2) + varint(len(data)) + data


def shape_message(field: int, dims: Sequence[int] | None) -> bytes:
    """A ``Shape``; None is left out, no dims give an empty message."""
    return b"" if dims is None else text(field, text(1, b"".join(map(varint, dims))) if dims else b"")


@dataclass
class Part:
    """A tensor of a dump: its bytes, and what the header says of it.

    ``size`` of the header is that of the bytes unless said otherwise.
    """

    data: bytes
    dtype: int = FLOAT32
    shape: Sequence[int] | None = None
    format: int = ND
    original: Sequence[int] | None = None
    sub_format: int = 0
    address: int = ADDRESS
    size: int | None = None
    inline: bytes | None = None
    extra: bytes = b""

    @classmethod
    def of(cls, array: Any, **more: Any) -> Part:
        """The bytes, type and shape of an array."""
        array = np.asarray(array)
        return cls(array.tobytes(), **{"dtype": _NUMBERS[array.dtype.str[1:]], "shape": array.shape, **more})

    def message(self, *, is_output: bool) -> bytes:
        """``OpInput`` or ``OpOutput`` without its tag."""
        _, shape, size, original, sub_format, address = _OUTPUT if is_output else _INPUT
        inline = b"" if self.inline is None else text(5 if is_output else 4, self.inline)
        return (
            number(1, self.dtype)
            + number(2, self.format)
            + shape_message(shape, self.shape)
            + inline
            + number(size, len(self.data) if self.size is None else self.size)
            + shape_message(original, self.original)
            + number(sub_format, self.sub_format)
            + number(address, self.address)
            + self.extra
        )


def header(
    inputs: Iterable[Part] = (),
    outputs: Iterable[Part] = (),
    *,
    op_name: str = "Default/Add-op1",
    version: str = "2.0",
    extra: bytes = b"",
) -> bytes:
    """``DumpData``; outputs come before inputs, as their field numbers do."""
    out = text(1, version) + number(2, STAMP)
    out += b"".join(text(3, part.message(is_output=True)) for part in outputs)
    out += b"".join(text(4, part.message(is_output=False)) for part in inputs)
    return out + (text(6, op_name) if op_name else b"") + extra


def dump_bytes(inputs: Sequence[Part] = (), outputs: Sequence[Part] = (), **more: Any) -> bytes:
    """A file of version 2."""
    head = header(inputs, outputs, **more)
    return struct.pack("<Q", len(head)) + head + b"".join(part.data for part in (*inputs, *outputs))


def write_dump(directory: Path, inputs: Sequence[Part] = (), outputs: Sequence[Part] = (), **more: Any) -> Path:
    """Write a file of version 2 into a directory, under ``name`` or the usual one."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / more.pop("name", NAME)
    path.write_bytes(dump_bytes(inputs, outputs, **more))
    return path


def small_dump() -> tuple[bytes, np.ndarray, np.ndarray]:
    """A file with an input and an output, and their values."""
    first = np.arange(6, dtype=np.float32).reshape(2, 3)
    second = np.arange(4, dtype=np.int8).reshape(2, 2) - 2
    return dump_bytes([Part.of(first)], [Part.of(second, original=(2, 2))]), first, second
