"""The table of element types, judged by torch, numpy and ml_dtypes."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from msformat.dtypes import DType, dtype_from_numpy, dtype_named, known_dtypes, parse_dtype
from msformat.errors import DTypeError
from tests.judges import judge, torch_type

torch = judge("torch")

TORCH_DTYPES = sorted({value for value in vars(torch).values() if isinstance(value, torch.dtype)}, key=str)


@pytest.mark.parametrize("dtype", TORCH_DTYPES, ids=str)
def test_every_torch_dtype_is_known_with_its_size(dtype: torch.dtype) -> None:
    found = parse_dtype(str(dtype))
    assert found is not None
    assert found.torch_name == str(dtype)
    assert found.itemsize == dtype.itemsize
    assert found.storage.kind in "biufc"


def test_torchs_second_names_mean_the_same() -> None:
    for name, value in vars(torch).items():
        if isinstance(value, torch.dtype):
            assert parse_dtype(f"torch.{name}") == parse_dtype(str(value)), name


@pytest.mark.parametrize("entry", known_dtypes(), ids=lambda entry: entry.name)
def test_spellings_of_all_frameworks_lead_back(entry: DType) -> None:
    assert dtype_named(entry.name) is entry
    for spelling in (entry.name, entry.torch_name, entry.mindspore_name, f"mindspore.{entry.name}"):
        assert parse_dtype(spelling) is entry, spelling


def test_mindspore_spellings_seen_in_real_dumps() -> None:
    seen = ["Float32", "BFloat16", "Bool", "Int32", "Int64", "UInt64", "Float64", "Float16", "Complex64"]
    named = [parse_dtype(spelling) for spelling in seen]
    names = ["float32", "bfloat16", "bool", "int32", "int64", "uint64", "float64", "float16", "complex64"]
    assert [entry and entry.name for entry in named] == names


@pytest.mark.parametrize("name", ["bfloat16", "float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e8m0fnu"])
def test_ml_dtypes_decode_the_bits_as_torch_does(name: str) -> None:
    entry = dtype_named(name)
    codes = np.arange(256, dtype=np.uint8) if entry.itemsize == 1 else np.arange(65536, dtype=np.uint16)
    ours = entry.from_bits(codes.astype(entry.storage)).astype(np.float32)
    raw = torch.from_numpy(codes.view(np.int8 if entry.itemsize == 1 else np.int16).copy())
    theirs = raw.view(torch_type(name)).to(torch.float32).numpy()
    np.testing.assert_array_equal(ours, theirs)
    assert entry.numpy == np.dtype(getattr(ml_dtypes, name))


@pytest.mark.parametrize("spelling", ["<f4", ">f4", "float32", "numpy.float32"])
def test_byte_order_does_not_matter(spelling: str) -> None:
    assert parse_dtype(spelling) is dtype_named("float32")
    assert dtype_from_numpy(np.dtype(">i8")) is dtype_named("int64")


@pytest.mark.parametrize("dtype", ["<U1", "<U7", "|S3", "<M8[us]", "<m8[ns]", np.dtype(np.longdouble).str])
def test_types_only_numpy_has_are_kept_as_bits(dtype: str) -> None:
    entry = dtype_named(dtype)
    values = np.zeros((2, 3), dtype)
    bits = entry.to_bits(values)
    assert bits.dtype == entry.storage
    assert bits.tobytes() == values.tobytes()
    assert entry.logical_shape(bits.shape) == (2, 3)
    assert entry.from_bits(bits).dtype == np.dtype(dtype)


# What is longer than numpy can count: numpy 1 takes lengths modulo 2**32, and some of those it makes are negative.
TOO_LONG = ["<U536870912", "<U999999999", "<U1073741825", "|S2147483648", "|S4294967297", "<U-73741825", "|S-5"]


@pytest.mark.parametrize("name", ["O", "|O", "nonsense", "V0", "i4,f8", "(2,)f4", "", "float32 ", "f4", *TOO_LONG])
def test_what_no_store_can_keep_is_refused(name: str) -> None:
    with pytest.raises(DTypeError):
        dtype_named(name)


@pytest.mark.parametrize(
    "spelling", ["object", "nonsense", "torch.nonsense", "i4,f8", "", "\0", "float32" * 1000, *TOO_LONG]
)
def test_a_stranger_parses_to_none(spelling: str) -> None:
    assert parse_dtype(spelling) is None


def test_widening_bfloat16_keeps_every_pattern() -> None:
    bits = np.arange(65536, dtype=np.uint16)
    wide = dtype_named("bfloat16").widen_bfloat16(bits)
    assert (wide.view(np.uint32) >> 16).astype(np.uint16).tobytes() == bits.tobytes()
    assert not (wide.view(np.uint32) & 0xFFFF).any()


def test_to_bits_refuses_another_type() -> None:
    with pytest.raises(DTypeError):
        dtype_named("float32").to_bits(np.zeros(3, np.float64))
