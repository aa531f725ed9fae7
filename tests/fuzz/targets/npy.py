"""``.npy`` files: what is read agrees with numpy's own reader, and comes back when it is written again."""

from __future__ import annotations

import io
import warnings
from collections.abc import Iterator
from pathlib import Path
from random import Random
from tokenize import TokenError

import numpy as np

from msformat.dtypes import DType
from msformat.errors import MsformatError
from msformat.filesystem import open_filesystem
from msformat.stores.npyfile import npy_needs_sidecar, npy_parts, open_npy
from msformat.stores.strided import FileTensor
from tests.fuzz.reading import read_tensor
from tests.fuzz.samples import golden_members
from tests.fuzz.target import Change, Target

_HEADS = ("<f4", "|b1", ">i8", "<c16", "<M8[us]", "|S3", "<U2", "|O", "<f2", "|V4")


def _open(data: bytes, place: Path) -> FileTensor:
    (place / "x.npy").write_bytes(data)
    return open_npy("x", open_filesystem(str(place)), "x.npy", data, len(data))


def check(data: bytes, place: Path) -> None:
    """A file that a stranger made."""
    try:
        tensor = _open(data, place)
        bits = read_tensor(tensor)
    except MsformatError:
        return
    if bits is None:
        return
    _check_numpy(place / "x.npy", bits.tobytes(), tensor.dtype, tensor.shape)
    if not npy_needs_sidecar(tensor.dtype):
        again = _open(b"".join(npy_parts(bits, tensor.dtype)), place)
        assert again.dtype == tensor.dtype
        assert again.shape == tensor.shape
        assert again.bits().tobytes() == bits.tobytes()


def _check_numpy(path: Path, bits: bytes, dtype: DType, shape: tuple[int, ...]) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            theirs = np.load(path, allow_pickle=False)
    except (ValueError, OSError, EOFError, TypeError, SyntaxError, KeyError, OverflowError, RecursionError, TokenError):
        return
    assert theirs.shape == shape
    if dtype.is_native:
        assert theirs.astype(theirs.dtype.newbyteorder("<")).tobytes() == bits


def seeds() -> Iterator[bytes]:
    """Real ones, and element types of every kind."""
    for _, content in golden_members(".npy", 512, dumps=("mindspore_8.1.0_debug_tensor",)):
        yield content
    for descr in _HEADS:
        for order in "CF":
            buffer = io.BytesIO()
            np.save(buffer, np.zeros((2, 1, 3), descr, order=order), allow_pickle=True)
            yield buffer.getvalue()


def mutate(data: bytes, change: Change, random: Random) -> bytes:
    """The header is changed and its length fits."""
    begin, length = 10, int.from_bytes(data[8:10], "little")
    if data[:7] != b"\x93NUMPY\x01" or random.random() < 0.3:
        return change(data)
    header = change(data[begin : begin + length])[: 1 << 16 - 1]
    return data[:8] + len(header).to_bytes(2, "little") + header + data[begin + length :]


_WORDS = "'descr' 'fortran_order' 'shape' True '<f4' '|O' (1,) '<M8[ns]' 9223372036854775807 0 -1 None"
TARGET = Target(check, seeds, mutate, tuple(_WORDS.encode().split(b" ")), most_bytes=1024)
