"""Statistics, judged by numpy in float64 and, where the format leaves the choice to torch, by torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import msformat
from capture.framework import Wanted
from capture.pytorch.device import defer, resolve
from capture.pytorch.tensors import TorchFramework
from tests.capture.pytorch.describing import CHECKSUMS, describe, statistics
from tests.judges import torch_is_before, torch_types

SHAPES = [(), (1,), (7,), (3, 5), (2, 3, 4), (300, 1000), (1 << 17,), ((1 << 17) + 1,)]
FLOATS = [torch.float32, torch.float64, torch.float16, torch.bfloat16]
FLOAT8 = torch_types("float8_e4m3fn", "float8_e5m2", "float8_e4m3fnuz", "float8_e5m2fnuz", "float8_e8m0fnu")
HALVES = ("torch.bfloat16", "torch.float16")
INTEGERS = torch_types("uint8", "int8", "int16", "int32", "int64", "uint16", "uint32", "uint64")


def judge(values: np.ndarray[Any, Any]) -> tuple[float, float, float, float]:
    """Exact enough to judge: numpy in float64 (longdouble for sums)."""
    wide = values.astype(np.float64).reshape(-1)
    square = np.sqrt(np.square(wide.astype(np.longdouble)).sum())
    return float(wide.max()), float(wide.min()), float(wide.astype(np.longdouble).mean()), float(square)


def agree(tensor: torch.Tensor, expected: tuple[float, float, float, float]) -> None:
    high, low, mean, norm = statistics(tensor)
    assert (high, low) == expected[:2]
    scale = float(tensor.double().abs().mean())  # what rounding errors of a mean are in proportion to
    assert mean == pytest.approx(expected[2], rel=0, abs=1.2e-7 * scale + 1e-300)
    assert norm == pytest.approx(expected[3], rel=1.2e-7)


@pytest.mark.parametrize("shape", SHAPES, ids=str)
@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_floats(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    torch.manual_seed(len(shape))
    tensor = (torch.randn(shape, dtype=torch.float64) * 3 + 0.5).to(dtype)
    agree(tensor, judge(tensor.double().numpy()))


def test_float64_is_reduced_in_float64() -> None:
    tensor = torch.randn(1000, dtype=torch.float64) + 1e8
    expected = judge(tensor.numpy())
    assert statistics(tensor)[2] == pytest.approx(expected[2], rel=1e-15)
    assert statistics(tensor)[3] == pytest.approx(expected[3], rel=1e-15)


@pytest.mark.parametrize("dtype", FLOATS, ids=str)
def test_they_agree_with_torch_to_its_rounding(dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    tensor = torch.randn(64, 33, dtype=torch.float64).to(dtype)
    judged = tensor if dtype == torch.float64 else tensor.float()
    high, low, mean, norm = statistics(tensor)
    assert (high, low) == (judged.max().item(), judged.min().item())
    assert mean == pytest.approx(judged.mean().item(), rel=1e-5, abs=1e-7)
    assert norm == pytest.approx(judged.norm().item(), rel=1e-6)


@pytest.mark.parametrize("dtype", FLOAT8, ids=str)
def test_float8_of_every_code(dtype: torch.dtype) -> None:
    codes = torch.arange(256, dtype=torch.uint8).view(dtype)
    every = codes.float().double()
    assert all(map(math.isnan, statistics(codes)))
    finite = codes.view(torch.uint8)[torch.isfinite(every)].repeat(3).view(dtype)
    high, low, mean, norm = judge(finite.float().numpy())
    assert statistics(finite) == (high, low, pytest.approx(mean, rel=1e-12, abs=1e-12), pytest.approx(norm, rel=1e-12))


@pytest.mark.parametrize("dtype", INTEGERS, ids=str)
def test_integers(dtype: torch.dtype) -> None:
    kind = np.dtype(str(dtype).removeprefix("torch."))
    bounds = np.iinfo(kind)
    values = np.array([[bounds.min, bounds.max, 0], [1, 5, 9]], dtype=kind)
    high, low, mean, norm = statistics(torch.from_numpy(values))
    assert (high, low) == (bounds.max, bounds.min)  # exact: Python compares int and float without rounding
    assert isinstance(high, int) == (bounds.max > 2**53)
    assert mean == pytest.approx(sum(map(int, values.flat)) / 6, rel=1e-12, abs=1e-15 * bounds.max)
    assert norm == pytest.approx(float(np.linalg.norm(values.astype(np.float64))), rel=1e-12)


def test_small_integers_are_floats_as_in_8_1_0() -> None:
    assert [type(number) for number in statistics(torch.arange(10))] == [float] * 4
    assert [type(number) for number in statistics(torch.tensor(9))] == [float] * 4


def test_integers_beyond_float64_stay_exact() -> None:
    assert statistics(torch.tensor([2**53 + 1, 2]))[:2] == (2**53 + 1, 2.0)
    assert statistics(torch.tensor(2**53 + 1))[0] == 2**53 + 1


@pytest.mark.parametrize("values", [[True, False], [True, True], [False], [[False, False]]], ids=str)
def test_bools(values: Any) -> None:
    tensor = torch.tensor(values)
    assert statistics(tensor) == (tensor.any().item(), tensor.all().item(), None, None)
    assert type(statistics(tensor)[0]) is bool


@pytest.mark.filterwarnings("ignore:ComplexHalf support")
@pytest.mark.parametrize("dtype", [torch.complex32, torch.complex64, torch.complex128], ids=str)
@pytest.mark.parametrize("shape", [(), (5,), (3, 4)], ids=str)
def test_complex_is_by_absolute_value(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = torch.randn(shape, dtype=torch.complex128).to(dtype)
    modulus = np.abs(tensor.to(torch.complex128).numpy())
    high, low, mean, norm = statistics(tensor)
    assert (high, low, mean) == pytest.approx((modulus.max(), modulus.min(), modulus.mean()), rel=1e-12)
    assert norm is None


def test_complex_modulus_beyond_float32_is_finite() -> None:
    assert statistics(torch.full((3,), 3e38 + 3e38j, dtype=torch.complex64))[0] == pytest.approx(3e38 * 2**0.5)


# --- the edges of ranges ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("dtype", "value", "count"),
    [
        (torch.float16, 300.0, 70_000),
        (torch.float16, 65504.0, 1000),
        (torch.float32, 1e30, 1000),
        (torch.float32, -3e38, 1000),
        (torch.float32, 1e-30, 1000),
        (torch.float32, 1e-42, 1000),
        (torch.bfloat16, 1e38, 1000),
        (torch.float64, 1e300, 1000),
        (torch.float64, 1e-300, 1000),
        (torch.float64, 5e-324, 16),
        (torch.float32, 0.0, 10),
    ],
    ids=str,
)
def test_norms_of_finite_values_are_finite(dtype: torch.dtype, value: float, count: int) -> None:
    tensor = torch.full((count,), value, dtype=dtype)
    held = tensor[0].double().item()
    high, low, mean, norm = statistics(tensor)
    assert high == low == held
    assert mean == pytest.approx(held, rel=1e-6, abs=0)
    assert norm == pytest.approx(abs(held) * math.sqrt(count), rel=1e-6, abs=0)


@pytest.mark.parametrize("dtype", [*FLOATS, torch.float8_e5m2], ids=str)
@pytest.mark.parametrize("values", [[1.0, math.nan], [math.inf, 1.0], [-math.inf, 1.0], [math.inf, -math.inf]], ids=str)
@pytest.mark.parametrize("count", [1, 5000])
def test_infinities_and_nan_as_torch(dtype: torch.dtype, values: list[float], count: int) -> None:
    tensor = torch.tensor(values).to(dtype).repeat(count)
    judged = tensor.double()
    expected = [judged.max().item(), judged.min().item(), judged.mean().item(), judged.norm().item()]
    np.testing.assert_equal([float(number) for number in statistics(tensor)], expected)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf])
def test_a_single_odd_value(value: float) -> None:
    np.testing.assert_equal(list(statistics(torch.tensor(value))), [value, value, value, abs(value)])


def test_a_long_float32_tensor_keeps_its_digits() -> None:
    tensor = torch.rand(1 << 22)
    _, _, mean, norm = judge(tensor.numpy())
    assert statistics(tensor)[2:] == (pytest.approx(mean, rel=1e-7), pytest.approx(norm, rel=1e-7))


@pytest.mark.parametrize("dtype", [*FLOATS, torch.int64, torch.bool, torch.complex64, torch.float8_e4m3fn], ids=str)
@pytest.mark.parametrize("shape", [(0,), (0, 3), (2, 0, 4)], ids=str)
def test_empty_tensors_have_none(dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    assert statistics(torch.empty(shape, dtype=dtype)) == (None,) * 4


# --- views -----------------------------------------------------------------------------------------------------------

BASE = torch.arange(-60.0, 60.0).reshape(2, 3, 4, 5)
VIEWS = {
    "transposed": BASE.transpose(0, 3),
    "permuted": BASE.permute(2, 0, 3, 1),
    "column": BASE[..., 1],
    "slice": BASE[:, 1:, ::2],
    "offset": BASE.view(-1)[1:],
    "expanded": torch.arange(3.0)[:, None].expand(3, 7),
    "expanded scalar": torch.tensor(-2.5).expand(4, 5),
    "expanded slice": BASE[:1, :, ::3].expand(6, 3, 2, 5),
    "overlapping": torch.arange(10.0).as_strided((4, 5), (1, 1)),
    "unfolded": torch.arange(10.0).unfold(0, 3, 1),
    "unit axes": BASE[:, :1, :, :1].transpose(1, 3),
    "channels last": BASE.contiguous(memory_format=torch.channels_last),
    "integers": torch.arange(12).reshape(3, 4).T,
    "bools": torch.tensor([[True, False], [True, True]]).T[0],
    "expanded integers": torch.tensor([2, 3])[:, None].expand(2, 9),
}


@pytest.mark.parametrize("name", VIEWS)
def test_views_are_summarised_by_what_they_show(name: str) -> None:
    view = VIEWS[name]
    expected = statistics(view.contiguous())
    found = statistics(view)
    assert found[:2] == expected[:2]
    assert found[2:] == pytest.approx(expected[2:], rel=1e-7) if expected[2] is not None else found == expected
    assert describe(view, CHECKSUMS).node["md5"] == describe(view.contiguous(), CHECKSUMS).node["md5"]


# --- as on a device --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [*FLOATS, *INTEGERS[:5], torch.bool, torch.complex64], ids=str)
def test_deferred_statistics_are_the_same(dtype: torch.dtype) -> None:
    if dtype == torch.float16 and torch_is_before("2.2"):
        pytest.skip("this PyTorch reduces no float16 on a CPU, and what is deferred is on a GPU")
    tensors = [(torch.randn(shape) * 50).to(dtype) for shape in [(), (4,), (3, 5)]]
    late = [defer(tensor) for tensor in tensors]
    assert all(one is not None for one in late)
    expected = [statistics(tensor) for tensor in tensors]
    for found, wanted in zip(resolve([one for one in late if one]), expected, strict=True):
        assert found == tuple(value if value is None else pytest.approx(value, rel=1e-6, abs=1e-6) for value in wanted)
        assert [type(number) for number in found] == [type(number) for number in wanted]


def test_a_deferred_batch_is_copied_together(monkeypatch: pytest.MonkeyPatch) -> None:
    late = [defer(torch.full((4,), float(number))) for number in range(50)]
    copies: list[int] = []
    stack = torch.stack
    monkeypatch.setattr(torch, "stack", lambda tensors: copies.append(len(tensors)) or stack(tensors))
    assert [found[0] for found in resolve([one for one in late if one])] == list(range(50))
    assert sorted(copies) == [100, 100]  # extremes are float32, sums float64


def test_deferred_statistics_are_of_the_moment() -> None:
    tensor = torch.tensor(3.0)
    late = defer(tensor)
    tensor.mul_(2)
    assert late is not None
    assert resolve([late])[0] == (3.0, 3.0, 3.0, 3.0)


# --- msprobe judges --------------------------------------------------------------------------------------------------


def test_they_are_those_of_msprobe_8_1_0(golden: Callable[[str], Path]) -> None:
    """On every tensor it stored, but for bfloat16 and float16, which it reduces in their own few digits."""
    compared = 0
    for unit in msformat.open(golden("torch_8.1.0_mix_tensor")):
        for stored in unit.tensors():
            if not stored.has_data or stored.meta.stats is None or stored.meta.dtype in HALVES:
                continue
            theirs = stored.meta.stats
            tensor = torch.from_numpy(np.array(stored.numpy()))
            scale = 0.0 if tensor.dtype == torch.bool else float(tensor.abs().double().mean())
            for mine, value in zip(statistics(tensor), (theirs.max, theirs.min, theirs.mean, theirs.norm), strict=True):
                assert type(mine) is type(value), stored
                exact = value is None or isinstance(value, bool)
                near = value if exact else pytest.approx(value, rel=1e-6, abs=1e-6 * scale, nan_ok=True)
                assert mine == near, stored
            compared += 1
    assert compared > 300


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16])
def test_low_precision_reduces_in_the_own_type(dtype: torch.dtype) -> None:
    is_wide = dtype == torch.float16 and torch_is_before("2.2")  # which reduces no float16 on a CPU
    values = torch.randn(1000, generator=torch.Generator().manual_seed(0)).to(dtype)
    node = TorchFramework(precision="low").describe(values, Wanted(statistics=True, data=False, md5=False)).node
    values = values.float() if is_wide else values
    expected = [values.max().item(), values.min().item(), values.mean().item(), values.norm().item()]
    if is_wide:
        expected = [pytest.approx(value, rel=1e-5) for value in expected]
    assert [node[key] for key in ("Max", "Min", "Mean", "Norm")] == expected
