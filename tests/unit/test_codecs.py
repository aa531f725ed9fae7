"""Spelling of compressions, and chunks of every shape of array."""

from __future__ import annotations

import math

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from msformat.errors import FormatError
from msformat.stores.codecs import CHUNK_TARGET, Compression, chunk_shape, parse_compression


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("auto", Compression("auto")),
        ("none", Compression("none")),
        (" GZIP ", Compression("gzip")),
        ("gzip:0", Compression("gzip", level=0)),
        ("gzip:9+noshuffle", Compression("gzip", level=9, shuffle="noshuffle")),
        ("zstd:22", Compression("zstd", level=22)),
        ("lz4+bitshuffle", Compression("lz4", shuffle="bitshuffle")),
        ("blosc", Compression("blosc", "zstd")),
        ("blosc-lz4", Compression("blosc", "lz4")),
        ("blosc-zstd:5+bitshuffle", Compression("blosc", "zstd", 5, "bitshuffle")),
    ],
)
def test_spellings(text: str, expected: Compression) -> None:
    assert parse_compression(text) == expected
    assert parse_compression(str(expected)) == expected


@pytest.mark.parametrize(
    "text",
    [
        "", "gzp", "gzip:", "gzip:10", "gzip:-1", "gzip:4:4", "zstd:0", "zstd:23", "lz4:3", "none:1", "auto+shuffle",
        "gzip-zstd", "blosc-gzip", "blosc-zstd:10", "gzip+", "gzip+shuffled", "gzip+shuffle+shuffle", "gzip:٣", "a\nb",
    ],
)  # fmt: skip
def test_nonsense_names_the_choices(text: str) -> None:
    with pytest.raises(FormatError, match=r"choices: auto, none, gzip"):
        parse_compression(text)


@pytest.mark.parametrize(
    ("shape", "itemsize"),
    [((2**30,), 8), ((1, 2**31), 1), ((3, 5, 2**33), 2), ((2**40, 1), 4), ((2**20, 7), 1), ((0,), 4), ((5, 0, 3), 8)],
)
def test_extreme_shapes(shape: tuple[int, ...], itemsize: int) -> None:
    _check(shape, itemsize)


@given(
    shape=st.lists(st.integers(0, 2**34) | st.integers(0, 4096), max_size=6).map(tuple),
    itemsize=st.sampled_from([1, 2, 4, 8, 16]),
)
@settings(deadline=None, max_examples=200)
def test_any_shape(shape: tuple[int, ...], itemsize: int) -> None:
    _check(shape, itemsize)


def _check(shape: tuple[int, ...], itemsize: int) -> None:
    chunk = chunk_shape(shape, itemsize)
    size = math.prod(chunk) * itemsize
    assert len(chunk) == len(shape)
    assert all(1 <= part <= max(1, length) for part, length in zip(chunk, shape, strict=True))
    assert 0 < size <= CHUNK_TARGET
    # One contiguous run of the row-major array: 1 … 1, a part of one axis, then whole axes.
    cut = next((axis for axis, part in enumerate(chunk) if part > 1), len(chunk))
    assert all(part == max(1, length) for part, length in zip(chunk[cut + 1 :], shape[cut + 1 :], strict=True))
    # Not needlessly small: what is cut is cut into pieces of more than a quarter of the target.
    if chunk != tuple(max(1, length) for length in shape):
        assert size > CHUNK_TARGET // 4


def test_a_target_above_the_limit_is_cut_down() -> None:
    assert math.prod(chunk_shape((2**32,), 8, target=2**40)) * 8 <= 64 << 20
    assert chunk_shape((4, 4), 8, target=0) == (1, 1)
    assert chunk_shape((), 8) == ()
