"""Small floats as float32. Judges: ml_dtypes and torch for the standard ones, published facts of HiFloat8 for that."""

from __future__ import annotations

import ml_dtypes
import numpy as np
import pytest

from msformat.dtypes import dtype_named
from msformat.errors import DTypeError
from msformat.smallfloats import hifloat8_values, to_float32
from tests.judges import judge, torch_type

torch = judge("torch")

CODES = np.arange(256, dtype=np.uint8)


@pytest.mark.parametrize("name", ["float8_e5m2", "float8_e4m3fn", "float8_e8m0fnu"])
def test_every_code_of_float8(name: str) -> None:
    found = to_float32(CODES, dtype_named(name))
    np.testing.assert_array_equal(found, CODES.view(getattr(ml_dtypes, name)).astype(np.float32))
    np.testing.assert_array_equal(found, torch.from_numpy(CODES.copy()).view(torch_type(name)).float().numpy())


def test_special_codes_of_hifloat8() -> None:
    values = hifloat8_values()
    assert np.isnan(values[0x80])
    assert np.isnan(values).sum() == 1
    assert (values[0x00], values[0x6F], values[0xEF]) == (0.0, np.inf, -np.inf)
    assert not np.signbit(values[0x00])
    # 0001: no exponent; 001: one sign bit of it; the three bits behind are the fraction.
    assert [values[code] for code in (0x08, 0x09, 0x0F)] == [1.0, 1.125, 1.875]
    assert [values[code] for code in (0x10, 0x17, 0x18, 0x1F)] == [2.0, 3.75, 0.5, 0.9375]
    # 01: exponents of 2 and 3, either sign; 10: of 4 to 7, two bits of fraction; 11: of 8 to 15, one bit.
    assert [values[code] for code in (0x20, 0x28, 0x30, 0x3F)] == [4.0, 8.0, 0.25, 0.234375]
    assert [values[code] for code in (0x40, 0x4C, 0x50, 0x5C)] == [16.0, 128.0, 2**-4, 2**-7]
    assert [values[code] for code in (0x60, 0x61, 0x6E, 0x70, 0x7E, 0x7F)] == [
        256.0, 384.0, 2.0**15, 2**-8, 2**-15, 1.5 * 2**-15,
    ]  # fmt: skip
    # Below that, powers of two alone.
    assert [values[code] for code in range(1, 8)] == [2.0 ** (code - 23) for code in range(1, 8)]


def test_hifloat8_has_each_number_once_in_both_signs() -> None:
    values = hifloat8_values()
    numbers = values[np.isfinite(values)]
    assert len(set(numbers.tolist())) == len(numbers) == 253
    np.testing.assert_array_equal(values[0x81:0x100][:127], -values[0x01:0x80])
    # Relative precision never falls below a bit of fraction between neighbours in the normal range.
    positive = np.sort(np.delete(values[1:0x80], 0x6E))
    assert positive[0] == 2.0**-22
    steps = positive[1:] / positive[:-1]
    assert steps.max() <= 2.0


def test_hifloat8_values_cannot_be_changed() -> None:
    with pytest.raises(ValueError, match="read-only"):
        hifloat8_values()[0] = 1


@pytest.mark.parametrize("name", ["bfloat16", "float16", "int4", "uint4", "int8", "uint8", "int16", "uint16", "bool"])
def test_other_small_types(name: str) -> None:
    dtype = dtype_named(name)
    bits = np.arange(2, dtype=np.uint8).astype(dtype.storage)
    np.testing.assert_array_equal(to_float32(bits, dtype), dtype.from_bits(bits).astype(np.float32))
    assert to_float32(bits, dtype).dtype == np.float32


def test_a_nan_payload_of_bfloat16_is_kept() -> None:
    bits = np.array([0x7F81, 0xFFC1], np.uint16)
    assert (to_float32(bits, dtype_named("bfloat16")).view(np.uint32) >> 16).tolist() == bits.tolist()


@pytest.mark.parametrize("name", ["float64", "int32", "int64", "complex64", "complex32", "qint8", "<U2"])
def test_what_float32_does_not_hold_is_refused(name: str) -> None:
    dtype = dtype_named(name)
    with pytest.raises(DTypeError):
        to_float32(np.zeros(dtype.stored_shape((2,)), dtype.storage), dtype)


def test_rank_0() -> None:
    assert to_float32(np.array(0x08, np.uint8), dtype_named("hifloat8")).shape == ()
