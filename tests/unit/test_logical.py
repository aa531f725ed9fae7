"""What the document says against what the file could hold: narrowing is exact or does not happen. Judge: torch."""

from __future__ import annotations

import numpy as np
import pytest

from msformat.dtypes import dtype_named
from msformat.logical import logical_bits
from msformat.stores.base import StoredTensor
from msformat.stores.memory import MemoryStore
from tests.judges import judge

torch = judge("torch")


def _stored(array: np.ndarray, name: str) -> StoredTensor:
    store = MemoryStore()
    store.put("t", array, dtype_named(name))
    return store.get("t")


def test_every_bfloat16_comes_back_from_float32() -> None:
    bits = np.arange(1 << 16, dtype=np.uint16)
    widened = dtype_named("bfloat16").widen_bfloat16(bits)
    as_torch = torch.from_numpy(bits.view(np.int16)).view(torch.bfloat16).float().numpy()
    finite = np.isfinite(as_torch)
    assert np.array_equal(as_torch[finite], widened[finite])
    found = logical_bits(_stored(widened, "float32"), "BFloat16")
    assert found.dtype.name == "bfloat16"
    assert found.note is None
    assert np.array_equal(found.bits, bits)


@pytest.mark.parametrize("shape", [(), (0,), (0, 3), (2, 3)])
def test_narrowing_keeps_the_shape(shape: tuple[int, ...]) -> None:
    found = logical_bits(_stored(np.ones(shape, np.float32), "float32"), "torch.bfloat16")
    assert isinstance(found.bits, np.ndarray)
    assert found.bits.shape == shape
    assert found.bits.dtype == np.uint16


def test_float32_that_is_no_bfloat16_is_left_and_said() -> None:
    stored = _stored(np.array([1.0, 1.1], np.float32), "float32")
    found = logical_bits(stored, "BFloat16")
    assert found.dtype.name == "float32"
    assert found.note is not None
    assert "'t'" in found.note
    assert np.array_equal(found.bits, np.array([1.0, 1.1], np.float32))
    assert logical_bits(stored, "BFloat16", slice(0, 1)).dtype.name == "bfloat16"


@pytest.mark.parametrize(
    ("name", "declared", "expected"),
    [
        ("uint8", "Float8E4M3FN", "float8_e4m3fn"),
        ("uint32", "torch.complex32", "complex32"),
        ("uint16", "torch.bfloat16", "bfloat16"),
        ("uint8", "UInt8", "uint8"),
        ("uint8", "mindspore.NeverHeardOf", "uint8"),
        ("uint8", None, "uint8"),
        ("int32", "torch.complex32", "int32"),
        ("uint8", "Int8", "uint8"),
    ],
)
def test_declared_types(name: str, declared: str | None, expected: str) -> None:
    found = logical_bits(_stored(np.arange(4, dtype=name), name), declared)
    assert found.dtype.name == expected
    assert np.array_equal(found.bits, np.arange(4, dtype=name))
