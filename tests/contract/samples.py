"""Keys, shapes, bits and selections that stores get wrong."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from msformat.dtypes import DType, dtype_named

FLOAT32 = dtype_named("float32")
INT64 = dtype_named("int64")
SHAPES: tuple[tuple[int, ...], ...] = ((), (1,), (7,), (3, 4), (0,), (0, 3), (3, 0), (2, 0, 4), (2, 3, 4))
ODD_KEYS = (
    "",
    ".",
    "..",
    "/",
    "\\",
    "/abs",
    "../../escape",
    "a/b",
    "a//b",
    "x/",
    "back\\slash",
    "nul\0inside",
    "new\nline",
    " spaces around ",
    "percent%2Fescaped",
    "梯度.输出.0",
    "e\u0301 and \u00e9",
    "n" * 320,
    "n" * 320 + ".pt",
    "zarr.json",
    "dump.json",
    ".zarray",
    "Block",
    "block",
    "no_suffix.0.forward.output.0",
    "Functional.relu.0.forward.output.0.pt",
    "Functional.relu.0.forward.output.0.npy",
    "y.0.tensor..pt",
    ".pt",
    ".npy",
    "tensors",
    "documents",
    "packs",
    "CON",
    'a:b*?"<>|',
)
SELECTIONS: tuple[Any, ...] = (
    ...,
    0,
    -1,
    np.int64(2),
    slice(None),
    slice(1, 4),
    slice(None, None, 2),
    slice(None, None, -1),
    slice(4, 1, -2),
    slice(3, 3),
    slice(100, 200),
    (slice(None), 2),
    (..., 1),
    (..., slice(0, 5, 3)),
    (1, ..., slice(None, None, -3)),
    (0, 1, 2),
    (slice(1, 3), slice(None, None, -1), slice(2, 5)),
)


def random_bits(dtype: DType, shape: tuple[int, ...], seed: int = 0) -> NDArray[Any]:
    """Stored bits where every pattern may occur: NaN payloads, infinities, subnormals, negative zeros."""
    stored = dtype.stored_shape(shape)
    count = int(np.prod(stored)) * dtype.storage.itemsize
    raw = np.random.default_rng(seed).integers(0, 256, count, dtype=np.uint8)
    if dtype.name == "bool":
        raw &= 1  # other bytes are no bool in any framework
    return raw.view(dtype.storage).reshape(stored)


def special_bits() -> Iterable[tuple[str, DType, NDArray[Any]]]:
    """Values that a cast, a compare or a print would lose."""
    yield "negative zero", FLOAT32, np.array([-0.0, 0.0], np.float32)
    nan = np.array([0x7FC00000, 0x7FC12345, 0x7F812345, 0xFFC00001, 0x7F800000], np.uint32)
    yield "NaN payloads, quiet and signalling", FLOAT32, nan.view(np.float32)
    nan64 = np.array([0x7FF8000000000001, 0x7FF0000000000001, 0xFFF8DEADBEEF0000], np.uint64)
    yield "NaN payloads, double", dtype_named("float64"), nan64.view(np.float64)
    yield "half NaN", dtype_named("float16"), np.array([0x7E01, 0x7C01, 0xFE00, 0x8000], np.uint16).view(np.float16)
    bfloat16 = np.array([0x7FC1, 0x7F81, 0xFF81, 0x8000, 0x0001, 0x7F80], np.uint16)
    yield "bfloat16 NaN and subnormal", dtype_named("bfloat16"), bfloat16
    zeros = np.array([-0.0, 0.0, -0.0, -0.0], np.float32).view(np.complex64)
    yield "complex negative zero", dtype_named("complex64"), zeros
    yield "complex128 negative zero", dtype_named("complex128"), zeros.astype(np.complex128)
    yield "integer limits", INT64, np.array([np.iinfo(np.int64).min, np.iinfo(np.int64).max, -1, 0])
    yield "unsigned limits", dtype_named("uint64"), np.array([np.iinfo(np.uint64).max, 0], np.uint64)


def exotic_arrays() -> tuple[NDArray[Any], ...]:
    """numpy arrays of types no framework has."""
    longdouble = np.array([1.1, -0.0, np.inf], np.longdouble)
    return (
        np.array(["梯", "b", ""], "<U1"),
        np.array(["long string", "x"], "<U11"),
        np.array([b"ab", b""], "S2"),
        np.array(["2024-01-01T00:00:00.000001", "NaT"], "<M8[us]"),
        np.array([[1, 2], [3, 4]], "<m8[ns]"),
        longdouble,
        longdouble.astype(np.clongdouble),
        np.array(1.5, np.longdouble),
        np.zeros((0, 2), "<U3"),
    )


def same_bits(found: NDArray[Any], wanted: NDArray[Any]) -> bool:
    """Equal type, shape and bytes; NaN equals itself and -0.0 differs from 0.0."""
    return found.dtype == wanted.dtype and found.shape == wanted.shape and found.tobytes() == wanted.tobytes()
