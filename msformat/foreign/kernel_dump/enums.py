"""Numbers of element types and layouts, as the two enumerations of CANN give them.

Dump files (``data_type`` of ``DumpData``) count otherwise than the GE/ACL enumeration of nano and ATB files. Numbers
that nobody knows become ``unknown_{n}``: the other tensors of a file stay readable.
"""

from __future__ import annotations

from msformat.dtypes import DType, dtype_named

__all__ = ["element_bits", "element_dtype", "format_name", "ge_type_name", "proto_type_name", "spelled_type"]

_PROTO_NAMES = (
    "undefined float32 float16 int8 uint8 int16 uint16 int32 int64 uint32 uint64 bool float64 string dual_sub_int8 "
    "dual_sub_uint8 complex64 complex128 qint8 qint16 qint32 quint8 quint16 resource string_ref dual variant bfloat16 "
    "int4 uint1 int2 uint2 complex32 hifloat8 float8_e5m2 float8_e4m3fn float8_e8m0fnu float6_e3m2fn float6_e2m3fn "
    "float4_e2m1fn float4_e1m2 hifloat4 hifloat4_scale"
)
_PROTO = _PROTO_NAMES.split()
_GE_NAMES = (
    "float32 float16 int8 int32 uint8 unknown_5 int16 uint16 uint32 int64 uint64 float64 bool string dual_sub_int8 "
    "dual_sub_uint8 complex64 complex128 qint8 qint16 qint32 quint8 quint16 resource string_ref dual variant"
)
_GE_BEGINNING = _GE_NAMES.split()
# Types with a fixed width and a form that stores keep. A name that is not here is given as raw bytes.
_WIDTHS = {
    **dict.fromkeys(("int8", "uint8", "bool", "qint8", "quint8", "hifloat8"), 8),
    **dict.fromkeys(("float8_e5m2", "float8_e4m3fn", "float8_e8m0fnu"), 8),
    **dict.fromkeys(("float16", "bfloat16", "int16", "uint16"), 16),
    **dict.fromkeys(("float32", "int32", "uint32", "qint32", "complex32"), 32),
    **dict.fromkeys(("float64", "int64", "uint64", "complex64"), 64),
    "complex128": 128,
    "int4": 4,
}
_FORMAT_NAMES = (
    "NCHW NHWC ND NC1HWC0 FRACTAL_Z NC1C0HWPAD NHWC1C0 FSR_NCHW FRACTAL_DECONV C1HWNC0 FRACTAL_DECONV_TRANSPOSE "
    "FRACTAL_DECONV_SP_STRIDE_TRANS NC1HWC0_C04 FRACTAL_Z_C04 CHWN FRACTAL_DECONV_SP_STRIDE8_TRANS HWCN NC1KHKWHWC0 "
    "BN_WEIGHT FILTER_HWCK HASHTABLE_LOOKUP_LOOKUPS HASHTABLE_LOOKUP_KEYS HASHTABLE_LOOKUP_VALUE "
    "HASHTABLE_LOOKUP_OUTPUT HASHTABLE_LOOKUP_HITS C1HWNCoC0 MD NDHWC FRACTAL_ZZ FRACTAL_NZ NCDHW DHWCN NDC1HWC0 "
    "FRACTAL_Z_3D CN NC DHWNC FRACTAL_Z_3D_TRANSPOSE FRACTAL_ZN_LSTM FRACTAL_Z_G RESERVED ALL NULL ND_RNN_BIAS "
    "FRACTAL_ZN_RNN NYUV NYUV_A NCL FRACTAL_Z_WINO C1HWC0 FRACTAL_NZ_C0_16 FRACTAL_NZ_C0_32"
)
_FORMATS = _FORMAT_NAMES.split()
_MAX_FORMAT = 255
_GE_UNDEFINED = 28

# How names of files, statistic.csv and MindSpore spell types otherwise than we do.
_SPELLINGS = {
    "float": "float32",
    "double": "float64",
    "bf16": "bfloat16",
    "half": "float16",
    "hif8": "hifloat8",
    "float8_e8m0": "float8_e8m0fnu",
    "float6_e3m2": "float6_e3m2fn",
    "float6_e2m3": "float6_e2m3fn",
    "float4_e2m1": "float4_e2m1fn",
    "boolean": "bool",
}


def proto_type_name(number: int) -> str:
    """The element type of a ``data_type`` in ``DumpData``."""
    return _PROTO[number] if 0 <= number < len(_PROTO) else f"unknown_{number}"


def ge_type_name(number: int) -> str:
    """The element type of a GE (ACL) number, as nano and ATB files have it: from 28 on the other number plus one."""
    if 0 <= number < len(_GE_BEGINNING):
        return _GE_BEGINNING[number]
    if number == _GE_UNDEFINED:
        return "undefined"
    if number == _GE_UNDEFINED - 1:
        return "bfloat16"
    if _GE_UNDEFINED < number <= len(_PROTO):
        return _PROTO[number - 1]
    return f"unknown_{number}"


def format_name(number: int) -> str:
    """The layout of a number; both enumerations agree. The exception writer leaves other bits in, which are masked."""
    low = number & 0xFF
    if low < len(_FORMATS):
        return _FORMATS[low]
    return "MAX" if low == _MAX_FORMAT else f"unknown_{low}"


def spelled_type(text: str) -> str:
    """The element type behind a spelling in a file name or table: ``DT_FLOAT``, ``BF16``, ``Float32``, ``bfloat16``."""
    bare = text.strip().lower().removeprefix("dt_")
    return _SPELLINGS.get(bare, bare)


def element_bits(name: str) -> int | None:
    """Bits of an element; None for a type that has no fixed width, or no form but raw bytes."""
    return _WIDTHS.get(name)


def element_dtype(name: str) -> DType | None:
    """How values of a type are given; None: as raw bytes, with the name beside them.

    uint1, int2, uint2 and the float types below 8 bits are packed in an order that is documented nowhere.
    """
    return dtype_named(name) if name in _WIDTHS else None
