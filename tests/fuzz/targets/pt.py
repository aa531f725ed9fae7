"""``.pt`` files: what is read agrees with ``zipfile``, and comes back when it is written again."""

from __future__ import annotations

import io
import struct
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from msformat.dtypes import dtype_named
from msformat.errors import MsformatError
from msformat.filesystem import open_filesystem
from msformat.stores.ptfile import open_pt, pt_needs_sidecar, pt_parts
from msformat.stores.strided import FileTensor
from msformat.stores.zipmembers import read_members
from tests.fuzz.mutators import change_zip
from tests.fuzz.reading import read_tensor
from tests.fuzz.samples import golden_members
from tests.fuzz.target import Target

# The beginnings of what torch wrote before 1.6, which is refused by name.
_OLD = (
    b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.\x80\x02M\xe9\x03.\x80\x02}q\x00.",
    b"storages".ljust(257, b"\0") + b"ustar\x0000",
)
_END = struct.Struct("<IHHHHIIH")


def _open(data: bytes, place: Path) -> FileTensor:
    (place / "x.pt").write_bytes(data)
    return open_pt("x", open_filesystem(str(place)), "x.pt", data)


def check(data: bytes, place: Path) -> None:
    """A file that a stranger made."""
    try:
        tensor = _open(data, place)
        bits = read_tensor(tensor)
    except MsformatError:
        return
    _check_members(data)
    if bits is not None and not pt_needs_sidecar(tensor.dtype):
        again = _open(b"".join(pt_parts(bits, tensor.dtype)), place)
        assert again.dtype == tensor.dtype
        assert again.shape == tensor.shape
        assert again.bits().tobytes() == bits.tobytes()


def _check_members(data: bytes) -> None:
    """Two readers of zip see the same bytes under the same names."""
    members = read_members(data, "")
    end = data.rfind(b"PK\x05\x06")
    _, _, _, _, _, size, start, _ = _END.unpack_from(data, end)
    # zipfile takes bytes that stand between directory and end for a program that unpacks itself, and torch does not.
    if end != len(data) - _END.size or start + size != end:
        return
    try:
        with zipfile.ZipFile(io.BytesIO(data)) as archive:
            theirs: dict[str, Any] = {info.filename: archive.read(info) for info in archive.infolist()}
    except (zipfile.BadZipFile, NotImplementedError, UnicodeError, ValueError, OSError):
        return
    # zipfile ends names at a NUL, and takes names without the flag of UTF-8 for those of MS-DOS.
    if all("\0" not in name and name.isascii() for name in members):
        assert {name: data[each.offset : each.offset + each.size] for name, each in members.items()} == theirs


def seeds() -> Iterator[bytes]:
    """Real ones, and of types that no real dump has."""
    for _, content in golden_members(".pt", 2048):
        yield content
    for name in ("bool", "bfloat16", "complex64", "float8_e4m3fn", "uint64", "int8"):
        dtype = dtype_named(name)
        yield b"".join(pt_parts(np.zeros((2, 1), dtype.storage), dtype))
    yield from _OLD


TARGET = Target(
    check,
    seeds,
    change_zip,
    (b"ctorch\nFloatStorage\n", b"ctorch._utils\n_rebuild_tensor_v2\n", b"ctorch._utils\n_rebuild_tensor_v3\n",
     b"ctorch.storage\nUntypedStorage\n", b"X\x04\0\0\0conj", b"X\x03\0\0\0neg", b"\x88s", b"cos\nsystem\n",
     b"ctorch._tensor\n_rebuild_from_type_v2\n", b"ctorch._utils\n_rebuild_parameter\n", b"K\0", b"\x8a\x09", b"}q"),
)  # fmt: skip
