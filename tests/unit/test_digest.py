"""Digests, judged by zlib and by counting memory."""

from __future__ import annotations

import tracemalloc
import zlib

import numpy as np
import pytest

from msformat import digest
from msformat.digest import canonical_crc32, content_digest, crc32
from msformat.dtypes import dtype_named

FLOAT32 = dtype_named("float32")


@pytest.mark.parametrize("is_there", [True, False])
def test_crc32_is_that_of_zlib_with_and_without_isal(monkeypatch: pytest.MonkeyPatch, is_there: bool) -> None:
    if not is_there:
        monkeypatch.setattr(digest, "_fastest", zlib)
    data = np.random.default_rng(0).bytes(100_003)
    for part in (b"", data[:1], data[:63], data):
        for kind in (bytes, bytearray, memoryview):
            assert crc32(kind(part)) == zlib.crc32(part)
    assert crc32(data[777:], crc32(data[:777])) == zlib.crc32(data)


@pytest.mark.parametrize("shape", [(), (0, 3), (5, 7)])
def test_the_md5_field_is_the_crc_of_the_bytes(shape: tuple[int, ...]) -> None:
    bits = np.random.default_rng(1).standard_normal(shape or (1,)).astype(np.float32).reshape(shape)
    assert canonical_crc32(bits, FLOAT32) == f"{zlib.crc32(bits.tobytes()):08x}"
    wide = np.asfortranarray(np.broadcast_to(bits, (2, *shape)))
    assert canonical_crc32(wide, FLOAT32) == f"{zlib.crc32(wide.tobytes(order='C')):08x}"
    half = bits.view(np.uint32) >> 16
    widened = (half << 16).astype(np.uint32)
    assert canonical_crc32(half.astype(np.uint16), dtype_named("bfloat16")) == f"{zlib.crc32(widened.tobytes()):08x}"


def test_nothing_is_copied() -> None:
    bits = np.zeros((1024, 1024), np.float32)
    tracemalloc.start()
    try:
        canonical_crc32(bits, FLOAT32)
        content_digest(bits, FLOAT32)
        assert tracemalloc.get_traced_memory()[1] < bits.nbytes / 8
    finally:
        tracemalloc.stop()
