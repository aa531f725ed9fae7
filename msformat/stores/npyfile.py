"""``.npy`` without ``np.load``: a header parsed as data, never pickle, and data mapped on demand.

Layout: numpy's NEP 1. bfloat16 is kept as float32, which is what msprobe does and every reader of ``.npy`` can use;
types that numpy has no code for are kept as their raw bits. Both need a line in the sidecar to be told apart.
"""

from __future__ import annotations

import ast
import math
import re
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from msformat.digest import byte_view
from msformat.dtypes import DType, dtype_from_numpy
from msformat.errors import CorruptTensorError, DTypeError, FormatError, UnsafeInputError
from msformat.filesystem import FileSystem
from msformat.stores.strided import Extent, FileTensor, as_stored, narrow_bfloat16

__all__ = ["MAGIC", "npy_needs_sidecar", "npy_parts", "open_npy", "parse_npy_header"]

MAGIC = b"\x93NUMPY"
# numpy itself reads no header above 10,000 bytes; a plain one has about 118.
MAX_HEADER = 10_000
MAX_DIMENSIONS = 64
# What numpy writes for a tensor of few axes.
_USUAL_HEADER = 128
_ALIGNMENT = 64
# One array-interface type code ('<f4', '|b1', '<M8[us]'); np.dtype() would accept names, fields and more.
_TYPE_CODE = re.compile(r"[<>|=]?[A-Za-z]\d{0,9}(\[\d{0,6}[a-zA-Z]{1,7}\])?")
# What numpy 1 and 2 write; anything else goes through ast.
_PLAIN = re.compile(
    rb"\{'descr': '([^'\\]+)', 'fortran_order': (True|False), 'shape': \(((?:\d{1,18}, ?)*(?:\d{1,18})?)\), \}\s*"
)


def npy_needs_sidecar(dtype: DType) -> bool:
    """Whether a ``.npy`` alone cannot say that it holds this type."""
    return not (dtype.is_native or dtype.name == dtype.numpy.str)


def npy_parts(bits: NDArray[Any], dtype: DType) -> list[bytes | memoryview]:
    """Header and data of a ``.npy``, to be written one after the other.

    Parameters
    ----------
    bits
        C-contiguous array of ``dtype.storage``.
    """
    if dtype.name == "bfloat16":
        array: NDArray[Any] = dtype.widen_bfloat16(bits)
    elif npy_needs_sidecar(dtype):
        array = bits
    else:
        array = dtype.from_bits(bits)
    return [_header(array.dtype.str, array.shape), byte_view(array)]


def _header(descr: str, shape: tuple[int, ...]) -> bytes:
    text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape!r}, }}".encode("latin-1")
    padding = -(len(MAGIC) + 4 + len(text) + 1) % _ALIGNMENT
    length = len(text) + padding + 1
    return MAGIC + b"\x01\x00" + length.to_bytes(2, "little") + text + b" " * padding + b"\n"


def parse_npy_header(head: bytes, source: str) -> tuple[np.dtype[Any], bool, tuple[int, ...], int]:
    """Element type, fortran order, shape, and where data begin.

    Raises
    ------
    FormatError
        No header that numpy could have written, or an element type that is none.
    UnsafeInputError
        Python objects, or a header of absurd size.
    """
    if head[:6] != MAGIC or len(head) < 10:
        raise FormatError(f"{source}: is no .npy file")
    wide = head[6] >= 2
    begin = 12 if wide else 10
    length = int.from_bytes(head[8:begin], "little")
    if head[6] not in (1, 2, 3) or length > MAX_HEADER:
        raise UnsafeInputError(f"{source}: .npy version {head[6]} with a header of {length} bytes")
    text = head[begin : begin + length]
    if len(text) < length:
        raise CorruptTensorError(f"{source}: the file ends inside the .npy header")
    descr, fortran, shape = _parse_fields(text, source)
    return _element(descr, source), fortran, shape, begin + length


def _parse_fields(text: bytes, source: str) -> tuple[Any, bool, tuple[int, ...]]:
    plain = _PLAIN.fullmatch(text)
    if plain is not None and plain[3].count(b",") <= MAX_DIMENSIONS:
        shape = tuple(int(part) for part in plain[3].split(b",") if part.strip())
        return plain[1].decode("latin-1"), plain[2] == b"True", shape
    try:
        fields = ast.literal_eval(text.decode("utf-8").strip())
        descr, fortran, shape = fields["descr"], fields["fortran_order"], fields["shape"]
        good = len(fields) == 3 and isinstance(fortran, bool) and isinstance(shape, tuple)
    except (ValueError, SyntaxError, TypeError, KeyError, RecursionError, MemoryError) as error:
        raise FormatError(f"{source}: damaged .npy header ({type(error).__name__})") from error
    if not good or not all(type(n) is int and 0 <= n < 1 << 63 for n in shape) or len(shape) > MAX_DIMENSIONS:
        raise FormatError(f"{source}: damaged .npy header")
    return descr, fortran, shape


def _element(descr: Any, source: str) -> np.dtype[Any]:
    if not isinstance(descr, str):
        raise FormatError(f"{source}: a structured .npy is no tensor")
    if not _TYPE_CODE.fullmatch(descr):
        raise FormatError(f"{source}: the .npy declares the element type {descr[:40]!r}, which is no numpy type code")
    try:
        element = np.dtype(descr)
    except (TypeError, ValueError) as error:
        raise FormatError(f"{source}: the .npy declares the element type {descr!r}, unknown to numpy") from error
    if element.hasobject:
        raise UnsafeInputError(f"{source}: the .npy holds Python objects, which only pickle can read: refused")
    return element


def open_npy(
    key: str,
    files: FileSystem,
    path: str,
    head: bytes | memoryview,
    size: int,
    *,
    dtype: DType | None = None,
    digest: str | None = None,
) -> FileTensor:
    """A lazy tensor over a ``.npy``.

    Parameters
    ----------
    head
        The first bytes of the file, or all of it.
    size
        Bytes of the whole file.
    dtype
        The logical type, where the sidecar knows better than the file.
    """
    source = files.describe(path)
    found = _known_header(bytes(head[:_USUAL_HEADER])) or parse_npy_header(bytes(head[: MAX_HEADER + 12]), source)
    element, fortran, shape, start = found
    try:
        logical = dtype or dtype_from_numpy(element)
    except DTypeError as error:
        raise FormatError(f"{source}: {error}") from error
    extent = Extent(path, start, max(0, size - start), 0, shape, _strides(shape, element, fortran=fortran), element)
    kept = head if len(head) == size else None
    narrow = logical.name == "bfloat16" and element.itemsize == 4
    decode = partial(narrow_bfloat16, source=source) if narrow else partial(as_stored, dtype=logical, source=source)
    return FileTensor(key, logical, extent, files, decode=decode, kept=kept, digest=digest)


@lru_cache(maxsize=1024)
def _known_header(head: bytes) -> tuple[np.dtype[Any], bool, tuple[int, ...], int] | None:
    """A header that ends within ``head``: the many files of one shape and type have the same. None for any other."""
    try:
        return parse_npy_header(head, "")
    except (FormatError, CorruptTensorError):
        return None


def _strides(shape: tuple[int, ...], element: np.dtype[Any], *, fortran: bool) -> tuple[int, ...]:
    """Byte strides of a dense array; the product of the lengths before (or behind) each axis."""
    if fortran:
        return tuple(element.itemsize * math.prod(shape[:axis]) for axis in range(len(shape)))
    return tuple(element.itemsize * math.prod(shape[axis + 1 :]) for axis in range(len(shape)))
