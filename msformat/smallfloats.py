"""Values of types below 32 bits as float32, exactly: bfloat16, float16, float8 in its forms, HiFloat8, small integers.

HiFloat8 is Huawei's: a sign, a prefix that says how wide the exponent is, the exponent as sign and magnitude with a
hidden leading one, and the rest as fraction. Neither numpy nor ml_dtypes has it.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from msformat.dtypes import DType
from msformat.errors import DTypeError

__all__ = ["hifloat8_values", "to_float32"]

_NAN, _INFINITY, _SIGN = 0x80, 0x6F, 0x80
# Prefix, its width, width of the exponent; 0000 begins the subnormal numbers.
_PREFIXES = ((0b11, 2, 4), (0b10, 2, 3), (0b01, 2, 2), (0b001, 3, 1), (0b0001, 4, 0))
_SUBNORMAL_EXPONENT = -23


@lru_cache(maxsize=1)
def hifloat8_values() -> NDArray[np.float32]:
    """The value of each of the 256 codes; read-only."""
    table = np.array([_hifloat8(code) for code in range(256)], np.float32)
    table.flags.writeable = False
    return table


def _hifloat8(code: int) -> float:
    if code == _NAN:
        return float("nan")
    magnitude = code & 0x7F
    sign = -1.0 if code & _SIGN else 1.0
    if magnitude == _INFINITY:
        return sign * float("inf")
    for prefix, width, exponent_bits in _PREFIXES:
        if magnitude >> (7 - width) == prefix:
            return sign * _normal(magnitude, 7 - width, exponent_bits)
    return sign * 2.0 ** (magnitude + _SUBNORMAL_EXPONENT) if magnitude else 0.0


def _normal(magnitude: int, bits: int, exponent_bits: int) -> float:
    """A number whose last ``bits`` bits are exponent and fraction."""
    fraction_bits = bits - exponent_bits
    fraction = 1 + (magnitude & (1 << fraction_bits) - 1) / (1 << fraction_bits)
    if exponent_bits == 0:
        return fraction
    field = magnitude >> fraction_bits & (1 << exponent_bits) - 1
    hidden = 1 << exponent_bits - 1
    exponent = hidden | field & hidden - 1
    return float(fraction * 2.0 ** (-exponent if field & hidden else exponent))


def to_float32(bits: NDArray[Any], dtype: DType) -> NDArray[np.float32]:
    """Stored bits as float32 values.

    Parameters
    ----------
    bits
        Array of ``dtype.storage``.

    Raises
    ------
    DTypeError
        A type with values that no float32 has (float64, int32, complex64), or whose bits mean no number here.
    """
    if dtype.name == "hifloat8":
        return np.asarray(hifloat8_values()[bits])
    if dtype.name == "bfloat16":
        return dtype.widen_bfloat16(bits)
    values = dtype.from_bits(bits)
    is_integer = values.dtype.kind in "iu" and dtype.is_native and values.dtype.itemsize <= 2
    if is_integer or dtype.name.startswith(("float8_", "float16", "float32", "bool", "int4", "uint4")):
        if values.dtype == dtype.storage and not dtype.is_native:
            raise DTypeError(f"{dtype.name} has no values in this installation of ml_dtypes")
        return values.astype(np.float32)
    raise DTypeError(f"{dtype.name} is not a type whose values float32 holds exactly")
