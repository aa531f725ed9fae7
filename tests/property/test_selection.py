"""Planned selections give what numpy gives, and only ask backends for forward slices."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from msformat.selection import plan_selection

SHAPES = hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=5)


@given(st.data(), SHAPES)
def test_the_same_as_numpy(data: Any, shape: tuple[int, ...]) -> None:
    selection = data.draw(hnp.basic_indices(shape, allow_newaxis=False, allow_ellipsis=True))
    array = np.arange(int(np.prod(shape, dtype=int))).reshape(shape)
    region = plan_selection(selection, shape)
    for part, length in zip(region.slices, shape, strict=True):
        assert 0 <= part.start <= part.stop <= length
        assert part.step >= 1
    read = array[region.slices]
    assert read.shape == region.shape
    np.testing.assert_array_equal(region.finish(read), array[selection])


@pytest.mark.parametrize(
    ("selection", "shape"),
    [
        (5, (5,)),
        (-6, (5,)),
        ((0, 0), (5,)),
        ((..., ...), (2, 2)),
        ([0, 1], (5,)),
        (True, (5,)),
        (None, (5,)),
        (1.0, (5,)),
    ],
)
def test_what_a_store_cannot_do_is_an_index_error(selection: Any, shape: tuple[int, ...]) -> None:
    with pytest.raises(IndexError):
        plan_selection(selection, shape)
