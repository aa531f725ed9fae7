"""Bits into framework tensors and back out by the framework's own means."""

from __future__ import annotations

import sys
import types
from typing import Any

import numpy as np
import pytest

from msformat import interop
from msformat.dtypes import DType, dtype_named, known_dtypes
from msformat.errors import BackendMissingError, DTypeError
from msformat.interop import to_mindspore, to_torch
from tests.judges import judge

torch = judge("torch")

_TORCH_DTYPES = [
    dtype
    for dtype in known_dtypes()
    if isinstance(getattr(torch, dtype.name, None), torch.dtype) and not dtype.name.startswith(("qint", "quint"))
]


def _some_bits(dtype: DType, shape: tuple[int, ...]) -> np.ndarray:
    count = int(np.prod(shape))
    if dtype.name == "bool":
        return (np.arange(count) % 2 == 0).reshape(shape)
    raw = np.random.default_rng(7).integers(0, 256, count * dtype.storage.itemsize, dtype=np.uint8)
    return np.frombuffer(raw.tobytes(), dtype.storage).reshape(shape).copy()


def _raw_bytes(tensor: torch.Tensor) -> bytes:
    return bytes(tensor.contiguous().untyped_storage())


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (2, 3)])
@pytest.mark.parametrize("dtype", _TORCH_DTYPES, ids=lambda dtype: dtype.name)
def test_every_torch_type_bit_for_bit(dtype: DType, shape: tuple[int, ...]) -> None:
    bits = _some_bits(dtype, shape)
    tensor = to_torch(bits, dtype)
    assert tensor.dtype == getattr(torch, dtype.name)
    assert tuple(tensor.shape) == shape
    assert _raw_bytes(tensor) == bits.tobytes()


def test_the_list_of_types_is_not_empty_by_accident() -> None:
    names = {dtype.name for dtype in _TORCH_DTYPES}
    later = {name for name in ("uint16", "uint32", "uint64", "float4_e2m1fn_x2") if hasattr(torch, name)}
    assert names >= {"bfloat16", "float8_e4m3fn", "complex32", "bool", *later}


def test_torch_values() -> None:
    tensor = to_torch(np.array([0x3F80, 0xC000], np.uint16), dtype_named("bfloat16"))
    assert tensor.tolist() == [1.0, -2.0]
    tensor[0] = 5  # the memory is the caller's and writable
    assert tensor.tolist() == [5.0, -2.0]


@pytest.mark.parametrize("name", ["qint8", "hifloat8", "<U4", "<M8[us]", np.dtype(np.longdouble).str])
def test_what_torch_cannot_hold_is_refused_by_name(name: str) -> None:
    dtype = dtype_named(name)
    with pytest.raises(DTypeError, match=r"torch .* takes no"):
        to_torch(np.zeros(dtype.stored_shape((2,)), dtype.storage), dtype)


@pytest.mark.parametrize(("convert", "name"), [(to_torch, "torch"), (to_mindspore, "mindspore")])
def test_a_missing_framework_names_its_extra(convert: Any, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(module: str) -> None:
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)

    monkeypatch.setattr(interop, "import_module", absent)
    with pytest.raises(BackendMissingError, match=rf"msformat\[{name}\]"):
        convert(np.zeros(1, np.float32), dtype_named("float32"))


def test_a_broken_framework_speaks_for_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    def broken(module: str) -> None:
        raise ModuleNotFoundError("No module named 'libcuda'", name="libcuda")

    monkeypatch.setattr(interop, "import_module", broken)
    with pytest.raises(ModuleNotFoundError, match="libcuda"):
        to_torch(np.zeros(1, np.float32), dtype_named("float32"))


class _FakeTensor:
    """Does to float32 what MindSpore's cast to bfloat16 does: rounds to nearest even."""

    def __init__(self, array: np.ndarray, dtype: str | None = None) -> None:
        self.array = array
        self.dtype = dtype or array.dtype.name

    def astype(self, dtype: str) -> _FakeTensor:
        rounded = torch.from_numpy(self.array).to(torch.bfloat16).float().numpy()
        return _FakeTensor(rounded, dtype)


@pytest.fixture
def fake_mindspore(monkeypatch: pytest.MonkeyPatch) -> None:
    fake = types.ModuleType("mindspore")
    fake.__dict__.update(__version__="2.10.0", Tensor=_FakeTensor, float32="float32", bfloat16="BFloat16", bool_="bool")
    fake.__dict__["float8_e5m2"] = "Float8E5M2"
    monkeypatch.setitem(sys.modules, "mindspore", fake)


def test_mindspore_bfloat16_takes_the_exact_detour(fake_mindspore: None) -> None:
    bits = np.array([0x3F80, 0x8000, 0x7F80, 0x0001], np.uint16)
    tensor = to_mindspore(bits, dtype_named("bfloat16"))
    assert tensor.dtype == "BFloat16"
    assert np.array_equal(tensor.array.view(np.uint32) >> 16, bits)


def test_mindspore_native_and_refused_types(fake_mindspore: None) -> None:
    assert to_mindspore(np.array([True]), dtype_named("bool")).dtype == "bool"
    with pytest.raises(DTypeError, match="takes no float8_e5m2"):
        to_mindspore(np.zeros(2, np.uint8), dtype_named("float8_e5m2"))
    with pytest.raises(DTypeError, match="takes no float8_e4m3fn"):
        to_mindspore(np.zeros(2, np.uint8), dtype_named("float8_e4m3fn"))
