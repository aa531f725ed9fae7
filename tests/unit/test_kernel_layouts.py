"""From device to framework: judged by going the other way with numpy, padding included."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import pytest

from msformat.foreign.kernel_dump.device_layout import plan_host_layout
from msformat.foreign.kernel_dump.record import DoubtName

RNG = np.random.default_rng(7)


def padded(array: np.ndarray, widths: tuple[int, ...]) -> np.ndarray:
    """Zeros up to the next multiple of a width in each axis."""
    pad = [(0, -length % width) for length, width in zip(array.shape, widths, strict=True)]
    return np.pad(array, pad)


def nc1hwc0(nchw: np.ndarray, c0: int) -> np.ndarray:
    n, c, h, w = padded(nchw, (1, c0, 1, 1)).shape
    return padded(nchw, (1, c0, 1, 1)).reshape(n, c // c0, c0, h, w).transpose(0, 1, 3, 4, 2)


def ndc1hwc0(ncdhw: np.ndarray, c0: int) -> np.ndarray:
    whole = padded(ncdhw, (1, c0, 1, 1, 1))
    n, c, d, h, w = whole.shape
    return whole.reshape(n, c // c0, c0, d, h, w).transpose(0, 3, 1, 4, 5, 2)


def fractal_nz(array: np.ndarray, m0: int, n0: int) -> np.ndarray:
    whole = padded(array, (1,) * (array.ndim - 2) + (m0, n0))
    *batch, m, n = whole.shape
    split = whole.reshape(*batch, m // m0, m0, n // n0, n0)
    b = len(batch)
    return split.transpose(*range(b), b + 2, b, b + 1, b + 3)


def fractal_z(nchw: np.ndarray, n0: int, c0: int) -> np.ndarray:
    whole = padded(nchw, (n0, c0, 1, 1))
    n, c, h, w = whole.shape
    split = whole.reshape(n // n0, n0, c // c0, c0, h, w).transpose(2, 4, 5, 0, 1, 3)
    return split.reshape(c // c0 * h * w, n // n0, n0, c0)


def c1hwnc0(nchw: np.ndarray, c0: int) -> np.ndarray:
    whole = padded(nchw, (1, c0, 1, 1))
    n, c, h, w = whole.shape
    return whole.reshape(n, c // c0, c0, h, w).transpose(1, 3, 4, 0, 2)


def random(*shape: int) -> np.ndarray:
    return RNG.standard_normal(shape).astype(np.float32)


def host(format_name: str, device: np.ndarray, original: tuple[int, ...], **more: Any) -> np.ndarray:
    arguments = {"sub_format": 0, "original_format": None, **more}
    plan = plan_host_layout(format_name, device.shape, original, **arguments)
    assert plan.layout is not None, plan.text
    assert plan.layout.shape == original
    return plan.layout.apply(np.ascontiguousarray(device))


@pytest.mark.parametrize("c0", [4, 16, 32, 64])
@pytest.mark.parametrize("channels", [1, 3, 16, 17, 35, 64])
def test_channels_in_blocks(channels: int, c0: int) -> None:
    image = random(2, channels, 5, 7)
    np.testing.assert_array_equal(host("NC1HWC0", nc1hwc0(image, c0), image.shape), image)
    np.testing.assert_array_equal(host("C1HWNC0", c1hwnc0(image, c0), image.shape), image)
    volume = random(2, channels, 3, 5, 7)
    np.testing.assert_array_equal(host("NDC1HWC0", ndc1hwc0(volume, c0), volume.shape), volume)


@pytest.mark.parametrize("shape", [(20, 35), (1, 1), (16, 16), (17, 33), (3, 20, 35), (2, 3, 40, 70), (48, 1)])
@pytest.mark.parametrize("widths", [(16, 16), (16, 32), (16, 64), (16, 8)])
def test_fractal_nz(shape: tuple[int, ...], widths: tuple[int, int]) -> None:
    array = random(*shape)
    np.testing.assert_array_equal(host("FRACTAL_NZ", fractal_nz(array, *widths), shape), array)


def test_a_vector_as_fractal_nz() -> None:
    vector = random(35)
    np.testing.assert_array_equal(host("FRACTAL_NZ", fractal_nz(vector.reshape(1, 35), 16, 16), (35,)), vector)


@pytest.mark.parametrize("shape", [(20, 5, 2, 3), (16, 16, 1, 1), (1, 33, 3, 3), (40, 17, 5, 1)])
@pytest.mark.parametrize("c0", [16, 32])
def test_fractal_z(shape: tuple[int, ...], c0: int) -> None:
    weight = random(*shape)
    device = fractal_z(weight, 16, c0)
    np.testing.assert_array_equal(host("FRACTAL_Z", device, shape), weight)
    hwcn = weight.transpose(2, 3, 1, 0)
    found = host("FRACTAL_Z", device, hwcn.shape, original_format="HWCN")
    np.testing.assert_array_equal(found, hwcn)


def test_the_framework_order_is_kept() -> None:
    image = random(2, 5, 6, 7)
    device = nc1hwc0(image, 16)
    nhwc = image.transpose(0, 2, 3, 1)
    np.testing.assert_array_equal(host("NC1HWC0", device, nhwc.shape), nhwc)
    np.testing.assert_array_equal(host("NHWC", nhwc, image.shape), image)
    np.testing.assert_array_equal(host("NCHW", image, nhwc.shape), nhwc)
    np.testing.assert_array_equal(host("HWCN", image.transpose(2, 3, 1, 0), image.shape), image)


def test_one_element_each() -> None:
    one = random(1, 1, 1, 1)
    assert host("NC1HWC0", nc1hwc0(one, 16), (1, 1, 1, 1)) == one


def test_no_elements() -> None:
    device = np.zeros((0, 1, 2, 3, 16), np.float32)
    assert host("NC1HWC0", device, (0, 5, 2, 3)).shape == (0, 5, 2, 3)


def test_axes_that_two_orders_explain_are_doubted() -> None:
    image = random(1, 16, 16, 16)
    plan = plan_host_layout("NC1HWC0", nc1hwc0(image, 16).shape, (1, 16, 16, 16), 0, None)
    assert plan.doubt is DoubtName.axes_doubtful
    assert "NCHW or NHWC" in plan.text
    sure = plan_host_layout("NC1HWC0", nc1hwc0(image, 16).shape, (1, 16, 16, 16), 0, "NHWC")
    assert sure.doubt is None
    found = sure.layout.apply(np.ascontiguousarray(nc1hwc0(image, 16)))
    np.testing.assert_array_equal(found, image.transpose(0, 2, 3, 1))


@pytest.mark.parametrize(
    ("format_name", "shape", "original", "groups"),
    [
        ("FRACTAL_Z_3D", (6, 1, 16, 16), (16, 16, 1, 2, 3), 0),
        ("FRACTAL_Z", (6, 1, 16, 16), (16, 16, 2, 3), 4),
        ("FRACTAL_Z", (6, 1, 16, 16), (16, 40, 2, 3), 0),
        ("FRACTAL_NZ", (3, 2, 16, 16), (33, 40), 0),
        ("FRACTAL_NZ", (3, 2, 16, 16), (5, 32, 40), 0),
        ("NC1HWC0", (1, 1, 2, 3, 16), (1, 17, 2, 3), 0),
        ("NC1HWC0", (1, 2, 3, 16), (1, 16, 2, 3), 0),
        ("NC1HWC0", (1, 1, 2, 3, 16), None, 0),
        ("unknown_200", (2, 2), (4,), 0),
        ("NHWC", (1, 2, 3, 4), (1, 2, 3, 5), 0),
        ("ND", (2, 3), (7,), 0),
    ],
)
def test_what_does_not_fit_stays_as_on_the_device(
    format_name: str, shape: tuple[int, ...], original: tuple[int, ...] | None, groups: int
) -> None:
    plan = plan_host_layout(format_name, shape, original, groups, None)
    assert (plan.layout, plan.doubt) == (None, DoubtName.device_layout)
    assert format_name in plan.text


@pytest.mark.parametrize("groups", [0, 1, -1, 65535])
def test_no_groups(groups: int) -> None:
    weight = random(20, 5, 2, 3)
    np.testing.assert_array_equal(host("FRACTAL_Z", fractal_z(weight, 16, 16), weight.shape, sub_format=groups), weight)


def test_plain_formats_are_left_alone() -> None:
    for name in ("ND", "NCHW", "NHWC", "NDHWC"):
        assert plan_host_layout(name, (1, 2, 3, 4), (1, 2, 3, 4), 0, None) == (None, None, "")
        assert plan_host_layout(name, (1, 2, 3, 4), None, 0, None) == (None, None, "")
    flat = np.arange(math.prod((2, 3)), dtype=np.float32)
    np.testing.assert_array_equal(host("ND", flat, (2, 3)), flat.reshape(2, 3))
