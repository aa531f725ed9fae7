"""One table of element types: how torch, MindSpore, numpy and ml_dtypes spell them, and which bits a store keeps.

A store keeps *bits* in a plain numpy type that HDF5 and Zarr know (``DType.storage``) beside the logical name
(``DType.name``), because bfloat16 and float8 become void types in npy and HDF5 and are refused by zarr.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import ml_dtypes
import numpy as np
from numpy.typing import NDArray

from msformat.errors import DTypeError

__all__ = ["DType", "dtype_from_numpy", "dtype_named", "known_dtypes", "parse_dtype"]


@dataclass(frozen=True, slots=True)
class DType:
    """An element type.

    Attributes
    ----------
    name
        Canonical spelling, the torch one without its prefix (``bfloat16``, ``float8_e4m3fn``, ``bool``). Types that
        only numpy has are named by their ``dtype.str`` (``<U1``, ``<M8[us]``).
    storage
        The plain numpy type a store keeps: ``float32`` for float32, ``uint16`` for bfloat16, ``uint8`` for float8.
    numpy
        The numpy or ml_dtypes type that ``numpy()`` returns; equals ``storage`` where no such type exists
        (complex32, the packed float4 pair, quantised types, and those below a byte but int4 and uint4).
    lanes
        Number of storage elements for one logical element. 1, except for types no plain integer can hold
        (``longdouble``: 16 bytes in 16 lanes), whose stored arrays have one more, last, axis of that length.
    torch_storage
        The typed storage class a ``.pt`` names, None where torch uses an untyped storage.
    """

    name: str
    storage: np.dtype[Any]
    numpy: np.dtype[Any]
    lanes: int = 1
    torch_storage: str | None = None

    @property
    def itemsize(self) -> int:
        """Bytes of one logical element."""
        return self.storage.itemsize * self.lanes

    @property
    def is_native(self) -> bool:
        """Whether the stored type alone says everything, so that no dtype attribute is needed."""
        return self.lanes == 1 and self.storage == self.numpy and self.name == self.storage.name

    @property
    def torch_name(self) -> str:
        """As PyTorch dumps spell it: ``torch.float32``."""
        return f"torch.{self.name}"

    @property
    def mindspore_name(self) -> str:
        """As MindSpore dumps spell it: ``Float32``, ``BFloat16``, ``Bool``, ``UInt8``."""
        return _MINDSPORE.get(self.name, self.name)

    def logical_shape(self, stored_shape: tuple[int, ...]) -> tuple[int, ...]:
        """The tensor's shape, from the shape of its stored bits."""
        return tuple(stored_shape) if self.lanes == 1 else tuple(stored_shape)[:-1]

    def stored_shape(self, logical_shape: tuple[int, ...]) -> tuple[int, ...]:
        """The shape of the stored bits, from the tensor's shape."""
        return tuple(logical_shape) if self.lanes == 1 else (*logical_shape, self.lanes)

    def to_bits(self, array: NDArray[Any]) -> NDArray[Any]:
        """C-contiguous stored bits of an array of ``self.numpy``; a view where possible, never a change of bits.

        Raises
        ------
        DTypeError
            The array is of another type.
        """
        if array.dtype != self.numpy:
            raise DTypeError(f"an array of {array.dtype} is not {self.name}")
        dense = np.ascontiguousarray(array).reshape(array.shape)  # ascontiguousarray makes 0-d arrays 1-d
        if self.storage == self.numpy:
            return dense
        if self.lanes == 1:
            return dense.view(self.storage)
        return np.frombuffer(dense.tobytes(), dtype=self.storage).reshape(*dense.shape, self.lanes)

    def from_bits(self, bits: NDArray[Any]) -> NDArray[Any]:
        """The array of ``self.numpy`` behind stored bits; a view where possible."""
        if self.storage == self.numpy:
            return bits
        if self.lanes == 1:
            return bits.view(self.numpy)
        shape = self.logical_shape(bits.shape)
        return np.frombuffer(np.ascontiguousarray(bits).tobytes(), dtype=self.numpy).reshape(shape)

    def widen_bfloat16(self, bits: NDArray[Any]) -> NDArray[np.float32]:
        """bfloat16 bits as float32, exactly (NaN payloads and signs kept).

        Shifting bits, unlike a cast through the FPU, cannot quieten a signalling NaN.
        """
        if self.name != "bfloat16":
            raise DTypeError(f"{self.name} is not bfloat16")
        return (bits.astype(np.uint32) << np.uint32(16)).view(np.float32)


_MINDSPORE = {
    "bool": "Bool",
    "int4": "Int4",
    "int8": "Int8",
    "int16": "Int16",
    "int32": "Int32",
    "int64": "Int64",
    "uint8": "UInt8",
    "uint16": "UInt16",
    "uint32": "UInt32",
    "uint64": "UInt64",
    "float16": "Float16",
    "float32": "Float32",
    "float64": "Float64",
    "bfloat16": "BFloat16",
    "complex64": "Complex64",
    "complex128": "Complex128",
    "float8_e4m3fn": "Float8E4M3FN",
    "float8_e5m2": "Float8E5M2",
    "hifloat8": "HiFloat8",
}

# torch's own second names (torch 2.13: ``torch.half is torch.float16``) and the builtins that numpy and JSON use.
_ALIASES = {
    "half": "float16",
    "float": "float32",
    "double": "float64",
    "cfloat": "complex64",
    "cdouble": "complex128",
    "chalf": "complex32",
    "short": "int16",
    "int": "int32",
    "long": "int64",
    "bit": "uint1",
    "bool_": "bool",
}

_NATIVE_TORCH_STORAGE = {
    "bool": "BoolStorage",
    "uint8": "ByteStorage",
    "int8": "CharStorage",
    "int16": "ShortStorage",
    "int32": "IntStorage",
    "int64": "LongStorage",
    "float16": "HalfStorage",
    "float32": "FloatStorage",
    "float64": "DoubleStorage",
    "complex64": "ComplexFloatStorage",
    "complex128": "ComplexDoubleStorage",
    "uint16": None,
    "uint32": None,
    "uint64": None,
}

_ML_DTYPES = {
    "bfloat16": (np.uint16, "BFloat16Storage"),
    "float8_e4m3fn": (np.uint8, None),
    "float8_e4m3fnuz": (np.uint8, None),
    "float8_e5m2": (np.uint8, None),
    "float8_e5m2fnuz": (np.uint8, None),
    "float8_e8m0fnu": (np.uint8, None),
    "float8_e3m4": (np.uint8, None),
    "float8_e4m3": (np.uint8, None),
    "float8_e4m3b11fnuz": (np.uint8, None),
    "int4": (np.uint8, None),
    "uint4": (np.uint8, None),
}

# No numpy type says what these mean; their bits are kept. torch packs two float4 in a byte, and its quantised and
# sub-byte types occupy a byte each.
_OPAQUE = {
    "complex32": (np.uint32, None),
    "float4_e2m1fn_x2": (np.uint8, None),
    "hifloat8": (np.uint8, None),
    "qint8": (np.uint8, "QInt8Storage"),
    "quint8": (np.uint8, "QUInt8Storage"),
    "qint32": (np.uint32, "QInt32Storage"),
    "quint4x2": (np.uint8, "QUInt4x2Storage"),
    "quint2x4": (np.uint8, "QUInt2x4Storage"),
    "bits8": (np.uint8, None),
    "bits16": (np.uint16, None),
    "bits1x8": (np.uint8, None),
    "bits2x4": (np.uint8, None),
    "bits4x2": (np.uint8, None),
    **{f"{sign}int{width}": (np.uint8, None) for sign in ("", "u") for width in (1, 2, 3, 5, 6, 7)},
}


def _build_table() -> dict[str, DType]:
    table: dict[str, DType] = {}
    for name, torch_storage in _NATIVE_TORCH_STORAGE.items():
        native = np.dtype(name)
        table[name] = DType(name, native, native, torch_storage=torch_storage)
    for name, (storage, torch_storage) in _ML_DTYPES.items():
        # ml_dtypes grew the rarer float8 types over time; without one, its bits are still kept.
        scalar = getattr(ml_dtypes, name, storage)
        table[name] = DType(name, np.dtype(storage), np.dtype(scalar), torch_storage=torch_storage)
    for name, (storage, torch_storage) in _OPAQUE.items():
        table[name] = DType(name, np.dtype(storage), np.dtype(storage), torch_storage=torch_storage)
    return table


_TABLE = _build_table()
_BY_NUMPY = {entry.numpy: entry for entry in _TABLE.values() if entry.name not in _OPAQUE}
_BY_LOWER_MINDSPORE = {spelling.lower(): name for name, spelling in _MINDSPORE.items()}
# numpy 1 takes lengths modulo 2**32: with ten digits one could be anything.
_NUMPY_SPELLING = re.compile(r"(?!.*\d{10})[<>|=]?[A-Za-z][A-Za-z0-9_]{0,30}(\[[A-Za-z0-9]{1,8}\])?")
_PREFIXES = ("torch.", "mindspore.", "numpy.", "np.", "ml_dtypes.")


def known_dtypes() -> tuple[DType, ...]:
    """Every element type of the table, in a fixed order."""
    return tuple(_TABLE.values())


def dtype_named(name: str) -> DType:
    """The type of a canonical name, as ``DType.name`` gives it.

    Raises
    ------
    DTypeError
        No such type, or a numpy type that holds Python objects.
    """
    found = _TABLE.get(name)
    if found is not None:
        return found
    return _exotic(name)


def parse_dtype(spelling: str) -> DType | None:
    """The type that any framework's spelling means (``torch.float32``, ``Float32``, ``mindspore.float32``, ``<f4``).

    A stranger yields None: reading goes on.
    """
    bare = spelling.strip()
    for prefix in _PREFIXES:
        bare = bare.removeprefix(prefix)
    bare = _ALIASES.get(bare, bare)
    found = _TABLE.get(bare)
    if found is None:
        name = _BY_LOWER_MINDSPORE.get(bare.lower())
        found = _TABLE[name] if name else None
    if found is None and _NUMPY_SPELLING.fullmatch(bare):
        try:
            found = dtype_from_numpy(np.dtype(bare))
        except (TypeError, ValueError, DTypeError, SyntaxError):
            return None
    return found


def dtype_from_numpy(dtype: np.dtype[Any]) -> DType:
    """The table's entry for a numpy or ml_dtypes type; byte order does not matter, values are kept little-endian.

    Raises
    ------
    DTypeError
        The type holds Python objects, or is structured.
    """
    if dtype.names is not None or dtype.subdtype is not None:
        # Its ``str`` would be a plain void type: the fields would be lost without a word.
        raise DTypeError(f"element type {dtype} is structured: not kept")
    little = dtype.newbyteorder("<") if dtype.byteorder == ">" else dtype
    found = _BY_NUMPY.get(little)
    return found if found is not None else _exotic(little.str)


@lru_cache(maxsize=256)
def _exotic(name: str) -> DType:
    """A numpy type outside the table (strings, datetimes, longdouble): kept as raw bits under its ``dtype.str``."""
    try:
        dtype = np.dtype(name)
    except (TypeError, ValueError, SyntaxError) as error:
        raise DTypeError(f"unknown element type {name!r}") from error
    if dtype.hasobject:
        raise DTypeError(f"element type {name!r} holds Python objects, which only pickle can read: refused")
    # numpy 1 makes negative lengths of those beyond 2**31.
    if dtype.names is not None or dtype.subdtype is not None or dtype.itemsize <= 0:
        raise DTypeError(f"element type {name!r} is structured, empty or too long: not kept")
    if dtype.str != name:
        raise DTypeError(f"unknown element type {name!r}; did you mean {dtype.str!r}?")
    if dtype.itemsize in (1, 2, 4, 8):
        return DType(name, np.dtype(f"u{dtype.itemsize}"), dtype)
    return DType(name, np.dtype(np.uint8), dtype, lanes=dtype.itemsize)
