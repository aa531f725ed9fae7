"""``.pt`` without torch: one tensor as ``torch.save`` writes it, read lazily; written so that ``torch.load`` reads it.

Layout (torch 2.13, ``torch/serialization.py``): a stored zip with ``<folder>/data.pkl``, ``byteorder``, ``data/<n>``
for each storage, and a few records more. Native types are rebuilt from a typed storage by ``_rebuild_tensor_v2``, later
ones (uint16, float8, …) from an untyped one by ``_rebuild_tensor_v3``.
"""

from __future__ import annotations

import math
import struct
from functools import partial
from typing import Any

import numpy as np
from numpy.typing import NDArray

from msformat.digest import byte_view, crc32
from msformat.dtypes import DType, dtype_named
from msformat.errors import CorruptTensorError, FormatError
from msformat.filesystem import FileSystem
from msformat.stores.ptpickle import TensorRecord, read_tensor_record
from msformat.stores.strided import Extent, FileTensor, little_endian
from msformat.stores.zipmembers import Member, looks_like_zip, read_members, zip_parts

__all__ = ["open_pt", "pt_needs_sidecar", "pt_parts"]

_FOLDER = "archive"
# Types torch can save as a plain tensor; the bits of all others are kept in an unsigned integer tensor.
_UNTYPED = frozenset({
    "uint16", "uint32", "uint64", "float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz",
    "float8_e8m0fnu", "float4_e2m1fn_x2", "complex32", "bits8", "bits16", "bits1x8", "bits2x4", "bits4x2",
})  # fmt: skip
_CRC_STEP = 1 << 24


# --- writing -----------------------------------------------------------------------------------------------------


def pt_needs_sidecar(dtype: DType) -> bool:
    """Whether torch has no plain tensor of this type, so that a ``.pt`` alone cannot say it."""
    return dtype.name not in _UNTYPED and (dtype.torch_storage is None or "Q" in dtype.torch_storage)


def pt_parts(bits: NDArray[Any], dtype: DType) -> list[bytes | memoryview]:
    """The parts of a ``.pt``, to be written one after the other.

    Parameters
    ----------
    bits
        C-contiguous array of ``dtype.storage``.
    """
    if pt_needs_sidecar(dtype):
        dtype = dtype_named(dtype.storage.name)
    members: list[tuple[str, list[bytes | memoryview]]] = [
        ("data.pkl", [_pickle(dtype, bits.shape)]),
        (".format_version", [b"1"]),
        (".storage_alignment", [b"64"]),
        ("byteorder", [b"little"]),
        ("data/0", [byte_view(bits)]),
        ("version", [b"3\n"]),
    ]
    return zip_parts([(f"{_FOLDER}/{name}", parts) for name, parts in members])


def _pickle(dtype: DType, shape: tuple[int, ...]) -> bytes:
    strides = _element_strides(shape)
    count = math.prod(shape)
    untyped = dtype.name in _UNTYPED
    storage = b"ctorch.storage\nUntypedStorage\n" if untyped else f"ctorch\n{dtype.torch_storage}\n".encode()
    return b"".join((
        b"\x80\x02ctorch._utils\n_rebuild_tensor_v", b"3" if untyped else b"2", b"\n((",
        _text("storage"), storage, _text("0"), _text("cpu"), _number(count * dtype.itemsize if untyped else count),
        b"tQ", _number(0), _numbers(shape), _numbers(strides), b"\x89ccollections\nOrderedDict\n)R",
        f"ctorch\n{dtype.name}\n".encode() if untyped else b"", b"tR.",
    ))  # fmt: skip


def _element_strides(shape: tuple[int, ...]) -> tuple[int, ...]:
    """As torch gives a contiguous tensor: a length of 0 counts as 1."""
    strides: list[int] = []
    step = 1
    for length in reversed(shape):
        strides.append(step)
        step *= max(length, 1)
    return tuple(reversed(strides))


def _text(value: str) -> bytes:
    raw = value.encode()
    return b"X" + struct.pack("<I", len(raw)) + raw


def _number(value: int) -> bytes:
    if value < 1 << 8:
        return struct.pack("<cB", b"K", value)
    if value < 1 << 31:
        return struct.pack("<ci", b"J", value)
    return struct.pack("<cBQB", b"\x8a", 9, value, 0)


def _numbers(values: tuple[int, ...]) -> bytes:
    return b"(" + b"".join(map(_number, values)) + b"t"


# --- reading -----------------------------------------------------------------------------------------------------


def open_pt(
    key: str,
    files: FileSystem,
    path: str,
    buffer: bytes | memoryview,
    *,
    dtype: DType | None = None,
    digest: str | None = None,
) -> FileTensor:
    """A lazy tensor over a ``.pt``.

    Parameters
    ----------
    buffer
        The whole file, read or mapped; not kept beyond the call unless small.
    dtype
        The logical type, where the sidecar knows better than the file.

    Raises
    ------
    FormatError
        Another kind of ``.pt``, or one that holds something else than a tensor; says what, and what to do.
    UnsafeInputError
        An attack, or something only unpickling could read.
    CorruptTensorError
        The file is cut short, or its storage is smaller than the tensor.
    """
    source = files.describe(path)
    if not looks_like_zip(buffer):
        raise FormatError(f"{source}: {_old_kind(buffer)}; load it with torch and torch.save it again")
    members = _members(buffer, source)
    folder = _folder(members, source)
    record = read_tensor_record(_content(buffer, members[f"{folder}/data.pkl"]), source)
    storage = members.get(f"{folder}/data/{record.storage}")
    if storage is None:
        raise CorruptTensorError(f"{source}: the storage data/{record.storage} is missing")
    order = members.get(f"{folder}/byteorder")
    big = order is not None and _content(buffer, order) == b"big"
    extent = _extent(path, record, storage, big=big)
    return FileTensor(
        key,
        dtype or record.dtype,
        extent,
        files,
        decode=partial(_decode, record=record, dtype=dtype or record.dtype, source=source),
        check=partial(_check_crc, files, path, storage, source),
        kept=buffer if isinstance(buffer, bytes) else None,
        digest=digest,
    )


def _old_kind(buffer: bytes | memoryview) -> str:
    head = bytes(buffer[:512])
    if head[257:262] == b"ustar":
        return "is a .pt in the tar layout of torch 0.1"
    # torch's legacy magic number, 0x1950a86a20f9469cfc6c, as a pickled LONG1.
    if b"\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19" in head[:32]:
        return "is a .pt in the legacy layout (before torch 1.6)"
    if not head:
        return "is empty"
    return "is no .pt: neither a zip nor a layout of torch"


def _members(buffer: bytes | memoryview, source: str) -> dict[str, Member]:
    try:
        return read_members(buffer, source)
    except FormatError:
        # TorchScript compresses its code, so it ends here; the message about that would help nobody.
        tail = bytes(buffer[-(1 << 16) :])
        if b"/constants.pkl" in tail and b"/code/" in tail:
            raise _torchscript(source) from None
        raise


def _torchscript(source: str) -> FormatError:
    return FormatError(f"{source}: is a TorchScript module, not a tensor; load it with torch and save the tensor")


def _folder(members: dict[str, Member], source: str) -> str:
    found = [name.removesuffix("/data.pkl") for name in members if name.count("/") == 1 and name.endswith("/data.pkl")]
    if len(found) != 1:
        raise FormatError(f"{source}: a zip without one data.pkl is no .pt")
    if f"{found[0]}/constants.pkl" in members or any(name.startswith(f"{found[0]}/code/") for name in members):
        raise _torchscript(source)
    return found[0]


def _content(buffer: bytes | memoryview, member: Member) -> bytes:
    return bytes(buffer[member.offset : member.offset + member.size])


def _extent(path: str, record: TensorRecord, storage: Member, *, big: bool) -> Extent:
    element = record.dtype.storage
    size, shape, stride = element.itemsize, record.shape, record.stride
    strides = tuple(step * size for step in stride)
    if big:
        element = element.newbyteorder(">")
    return Extent(path, storage.offset, storage.size, record.offset * size, shape, strides, element)


def _decode(array: NDArray[Any], record: TensorRecord, dtype: DType, source: str) -> NDArray[Any]:
    bits = little_endian(array)
    if bits is not array and record.dtype.name == "complex32":
        bits = (bits << np.uint32(16)) | (bits >> np.uint32(16))  # each half has a byte order of its own
    if record.conj or record.neg:
        bits = _flip_signs(bits, record, source)
    if bits.dtype == dtype.storage:
        return bits
    if bits.dtype.itemsize != dtype.storage.itemsize:
        raise FormatError(f"{source}: elements of {bits.dtype} are no {dtype.name}")
    return np.ascontiguousarray(bits).reshape(bits.shape).view(dtype.storage)


def _flip_signs(bits: NDArray[Any], record: TensorRecord, source: str) -> NDArray[Any]:
    """Apply torch's lazy conjugation and negation: sign bits alone, so that NaN payloads stay."""
    width, lanes = _SIGNED.get(record.dtype.name, (0, 0))
    if lanes == 0 or (record.conj and lanes != 2):
        raise FormatError(f"{source}: a lazily conjugated or negated tensor of {record.dtype.name}")
    dense = np.array(bits, order="C", copy=True).reshape(bits.shape)
    parts = dense.reshape(*dense.shape, 1).view(f"<u{width}")
    sign = parts.dtype.type(1 << (8 * width - 1))
    if record.neg:
        parts ^= sign
    if record.conj:
        parts[..., 1] ^= sign
    return dense


# Bytes of a real part, and how many parts an element has.
_SIGNED = {
    "float16": (2, 1), "bfloat16": (2, 1), "float32": (4, 1), "float64": (8, 1),
    "complex32": (2, 2), "complex64": (4, 2), "complex128": (8, 2),
}  # fmt: skip


def _check_crc(files: FileSystem, path: str, storage: Member, source: str) -> None:
    """Compare the storage with the checksum in the zip. torch writes 0 where it was told to leave it out."""
    if storage.crc == 0:
        return
    crc, at, end = 0, storage.offset, storage.offset + storage.size
    while at < end:
        part = files.read(path, at, min(_CRC_STEP, end - at))
        if not part:
            break
        crc = crc32(part, crc)
        at += len(part)
    if at < end or crc != storage.crc:
        raise CorruptTensorError(f"{source}: the stored bytes do not match the checksum of the zip")
