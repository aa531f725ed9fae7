"""Statistics of MindSpore tensors against numpy in float64, and against what msprobe 8.1.0 recorded."""

from __future__ import annotations

import math
from typing import Any

import mindspore
import numpy as np
import pytest
from mindspore import Tensor

from capture.framework import Wanted
from capture.mindspore.tensors import MindSporeFramework

KEYS = ("Max", "Min", "Mean", "Norm")
WANTED = Wanted(statistics=True, data=False, md5=False)


def statistics(tensor: Tensor) -> tuple[Any, ...]:
    node = MindSporeFramework().describe(tensor, WANTED).node
    assert "not_captured" not in node, node
    return tuple(node[key] for key in KEYS)


def expected(array: np.ndarray[Any, Any]) -> list[float]:
    wide = np.abs(array).astype(np.float64) if np.iscomplexobj(array) else array.astype(np.float64)
    return [wide.max(), wide.min(), wide.mean(), float(np.linalg.norm(wide.reshape(-1)))]


def check(array: np.ndarray[Any, Any], dtype: Any, rtol: float = 6e-8) -> None:
    """To half a unit of float32's last place; Max and Min exactly."""
    found, judge = statistics(Tensor(array).astype(dtype)), expected(array)
    assert list(found[:2]) == judge[:2]
    scale = np.abs(array.astype(np.float64)).mean()  # a mean near zero is as exact as its summands allow
    np.testing.assert_allclose(found[2], judge[2], rtol=rtol, atol=rtol * scale)
    np.testing.assert_allclose(found[3], judge[3], rtol=rtol)
    assert all(type(value) is float for value in found)


@pytest.mark.parametrize("size", [2, 3, 2047, 2048, 2049, 100_003, 1 << 20])
@pytest.mark.parametrize("dtype", [mindspore.float32, mindspore.float16, mindspore.bfloat16], ids=str)
def test_reals(size: int, dtype: Any) -> None:
    values = np.random.default_rng(size).standard_normal(size).astype(np.float32) + np.float32(0.5)
    narrow = {"Float16": values.astype(np.float16), "BFloat16": (values.view(np.uint32) & 0xFFFF0000).view(np.float32)}
    check(narrow.get(str(dtype), values).astype(np.float32), dtype)


@pytest.mark.parametrize("factor", [3e38, 1e25, 1e-20, 1e-44])
def test_reals_at_the_ends_of_float32(factor: float) -> None:
    with np.errstate(under="ignore"):
        values = (np.array([0.5, -1.0, 0.25, 0.125]) * factor).astype(np.float32)
    check(np.tile(values, 1000), mindspore.float32)


@pytest.mark.parametrize("factor", [1e300, 1e-310, 1.0])
def test_float64_is_not_cut_to_float32(factor: float) -> None:
    array = np.array([1.0, 1.0 + 2**-40, -0.5]) * factor
    found = statistics(Tensor(array))
    assert found[:2] == (array.max(), array.min())
    np.testing.assert_allclose(found[2], array.mean(), rtol=1e-14)
    np.testing.assert_allclose(found[3] / factor, np.linalg.norm(array / factor), rtol=1e-12)


def test_a_finite_float16_tensor_has_a_finite_norm() -> None:
    assert statistics(Tensor(np.full(100, 60000, np.float16))) == (60000.0, 60000.0, 60000.0, 600000.0)


def test_a_long_sum_keeps_its_digits() -> None:
    """A sum that is kept in 16 bits stops at 256, one in float32 at 2**24."""
    ones = np.ones(1 << 25, np.float32)
    assert statistics(Tensor(ones).astype(mindspore.bfloat16)) == (1.0, 1.0, 1.0, math.sqrt(1 << 25))
    assert statistics(Tensor(ones)) == (1.0, 1.0, 1.0, math.sqrt(1 << 25))


@pytest.mark.parametrize(
    ("values", "wanted"),
    [
        ([np.nan, 1.0], (np.nan,) * 4),
        ([np.inf, 1.0], (np.inf, 1.0, np.inf, np.inf)),
        ([-np.inf, np.inf], (np.inf, -np.inf, np.nan, np.inf)),
        ([np.inf, np.nan], (np.nan,) * 4),
        ([0.0, -0.0], (0.0, 0.0, 0.0, 0.0)),
    ],
    ids=["nan", "infinity", "both-infinities", "infinity-and-nan", "zeros"],
)
@pytest.mark.parametrize(
    "dtype", [mindspore.float32, mindspore.float64, mindspore.float16, mindspore.bfloat16], ids=str
)
def test_not_finite(values: list[float], wanted: tuple[float, ...], dtype: Any) -> None:
    found = statistics(Tensor(np.array(values, np.float32)).astype(dtype))
    np.testing.assert_array_equal(np.array(found), np.array(wanted))  # zeros are equal whatever their sign


@pytest.mark.parametrize("name", ["int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"])
def test_integers_are_floats_where_that_is_exact(name: str) -> None:
    array = np.array([0, 1, 5, 100], name)
    found = statistics(Tensor(array))
    assert found == (100.0, 0.0, 26.5, pytest.approx(float(np.linalg.norm(array.astype(float)))))
    assert all(type(value) is float for value in found)


def test_integers_that_no_float_holds_stay_integers() -> None:
    largest = np.iinfo(np.int64).max
    assert statistics(Tensor(np.array([largest, -largest, 3])))[:2] == (largest, -largest)
    assert statistics(Tensor(np.array([2**64 - 1, 1], np.uint64)))[:2] == (2**64 - 1, 1.0)


def test_bools() -> None:
    assert statistics(Tensor([True, False])) == (True, False, None, None)
    assert statistics(Tensor([True, True])) == (True, True, None, None)
    assert statistics(Tensor(True)) == (True, True, None, None)


@pytest.mark.parametrize("dtype", [np.complex64, np.complex128])
def test_complex_numbers_by_their_absolute_value(dtype: Any) -> None:
    array = np.array([3 + 4j, 1j, -2], dtype)
    np.testing.assert_allclose(statistics(Tensor(array)), [5.0, 1.0, 8 / 3, math.sqrt(30)], rtol=1e-7)
    huge = np.array([3e38 + 3e38j], np.complex64)
    np.testing.assert_allclose(statistics(Tensor(huge)), [abs(complex(huge[0]))] * 4)


@pytest.mark.parametrize("value", [-3, 2**60, -1.5, float("nan")], ids=str)
def test_without_dimensions_all_four_are_the_value(value: Any) -> None:
    found = statistics(Tensor(value, mindspore.int64 if isinstance(value, int) else mindspore.float32))
    np.testing.assert_equal(found, (value,) * 4)
    assert all(type(one) is type(value) for one in found)


def test_empty_tensors_have_none() -> None:
    for dtype in (mindspore.float32, mindspore.bfloat16, mindspore.int64, mindspore.bool_):
        assert statistics(Tensor(np.zeros((0, 3), np.float32)).astype(dtype)) == (None,) * 4
