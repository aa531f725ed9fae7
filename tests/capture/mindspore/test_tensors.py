"""What is recorded of MindSpore tensors. numpy, zlib and the bits that went in are the judges."""

from __future__ import annotations

import ctypes
import gc
import weakref
import zlib
from typing import Any

import mindspore
import ml_dtypes
import numpy as np
import pytest
from mindspore import Parameter, Tensor, mint, ops
from mindspore.common.initializer import initializer

from capture.framework import Captured, Wanted
from capture.mindspore import tensors
from capture.mindspore.tensors import MindSporeFramework

STATISTICS = Wanted(statistics=True, data=False, md5=False)
EVERYTHING = Wanted(statistics=True, data=True, md5=False)
CHECKSUMS = Wanted(statistics=True, data=False, md5=True)
TYPES = (
    "float16", "float32", "float64", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64",
    "bool_", "complex64", "complex128",
)  # fmt: skip
SPELLINGS = {"bool_": "Bool", "bfloat16": "BFloat16"}


def describe(tensor: Any, wanted: Wanted = EVERYTHING, framework: MindSporeFramework | None = None) -> Captured:
    framework = framework or MindSporeFramework()
    with framework.quiet():
        return framework.describe(tensor, wanted)


def bits(captured: Captured) -> np.ndarray[Any, Any]:
    assert captured.host is not None
    assert captured.host.bits is not None
    return captured.host.bits


def spelling(name: str) -> str:
    return SPELLINGS.get(name) or name.title().replace("Uint", "UInt")


def bfloat16(words: list[int]) -> Tensor:
    """A tensor with exactly these bits: NaN payloads would not survive a conversion, so memory is written."""
    made = Tensor(np.zeros(len(words), np.float32)).astype(mindspore.bfloat16)
    mindspore.runtime.synchronize()
    source = np.array(words, np.uint16)
    ctypes.memmove(made.data_ptr(), source.ctypes.data, source.nbytes)
    return made


@pytest.mark.parametrize("name", TYPES)
@pytest.mark.parametrize("shape", [(3, 2), (0, 3), ()], ids=str)
def test_bits_are_those_that_went_in(name: str, shape: tuple[int, ...]) -> None:
    array = np.asarray(np.arange(int(np.prod(shape))).reshape(shape) % 5).astype(name.rstrip("_"))
    node, host, pending = describe(Tensor(array, getattr(mindspore, name)))
    assert host is not None
    assert host.bits is not None
    assert (node["type"], node["dtype"], node["shape"]) == ("mindspore.Tensor", spelling(name), list(shape))
    assert list(node) == ["type", "dtype", "shape", "Max", "Min", "Mean", "Norm"]
    assert host.bits.shape == shape
    assert host.bits.tobytes() == array.tobytes()
    assert pending is None


def test_bfloat16_keeps_every_bit() -> None:
    words = [0x0000, 0x8000, 0x0001, 0x7F80, 0xFF80, 0x7FC1, 0xFFA5, 0x7F81, 0x3F80]
    captured = describe(bfloat16(words))
    assert captured.node["dtype"] == "BFloat16"
    assert bits(captured).dtype == np.uint16
    assert bits(captured).tolist() == words
    assert all(np.isnan(captured.node[key]) for key in ("Max", "Min", "Mean", "Norm"))


def test_negative_zero_and_nan_payloads_of_float32() -> None:
    words = np.array([0x80000000, 0x7FC00001, 0xFF800001, 0x00000001], np.uint32)
    assert bits(describe(Tensor(words.view(np.float32)))).view(np.uint32).tolist() == words.tolist()


@pytest.mark.parametrize("name", ["float8_e4m3fn", "float8_e5m2"])
def test_float8(name: str) -> None:
    values = np.array([0.5, -2.0, 448.0 if name.endswith("fn") else 4096.0], np.float32)
    node, host, _ = describe(Tensor(values, getattr(mindspore, name)))
    assert host is not None
    assert host.bits is not None
    assert host.bits.tobytes() == values.astype(getattr(ml_dtypes, name)).tobytes()
    assert (node["Max"], node["Min"]) == (values.max(), -2.0)


@pytest.mark.parametrize(
    ("make", "judge"),
    [
        (lambda t: t.T, lambda a: a.T),
        (lambda t: t[:, 1:3], lambda a: a[:, 1:3]),
        (lambda t: t[1], lambda a: a[1]),
        (lambda t: t[:, :1].expand((3, 5)), lambda a: np.broadcast_to(a[:, :1], (3, 5))),
        (lambda t: t.view((4, 3)), lambda a: a.reshape(4, 3)),
    ],
    ids=["transposed", "columns", "row", "expanded", "viewed"],
)
@pytest.mark.parametrize("dtype", [mindspore.float32, mindspore.bfloat16, mindspore.int64], ids=str)
def test_views_are_stored_as_their_values(make: Any, judge: Any, dtype: Any) -> None:
    array = np.arange(12, dtype=np.float32).reshape(3, 4)
    view = make(Tensor(array).astype(dtype))
    expected = np.ascontiguousarray(judge(array))
    captured = describe(view)
    stored = bits(captured)
    wide = (stored.astype(np.uint32) << 16).view(np.float32) if dtype == mindspore.bfloat16 else stored
    assert wide.shape == expected.shape
    assert wide.astype(np.float32).tolist() == expected.tolist()
    assert captured.node["Max"] == expected.max()
    assert view.is_contiguous() == make(Tensor(array)).is_contiguous()  # the tensor is as it was


@pytest.mark.parametrize("shape", [(2, 3), (), (0, 2)], ids=str)
def test_checksums_are_crc32_of_the_bytes(shape: tuple[int, ...]) -> None:
    array = np.asarray(np.arange(int(np.prod(shape)), dtype=np.float32).reshape(shape))
    expected = f"{zlib.crc32(array.tobytes()):08x}"
    assert describe(Tensor(array), CHECKSUMS).node["md5"] == expected
    assert describe(Tensor(array).astype(mindspore.bfloat16), CHECKSUMS).node["md5"] == expected  # as float32
    assert list(describe(Tensor(array), CHECKSUMS).node)[-1] == "md5"


def test_parameters_are_recorded_as_tensors() -> None:
    node = describe(Parameter(Tensor(np.ones(3, np.float32)), name="p")).node
    assert (node["type"], node["Norm"]) == ("mindspore.Tensor", pytest.approx(3**0.5))


def test_a_tensor_without_values_is_not_given_any() -> None:
    lazy = initializer("ones", (2, 2), mindspore.float32)
    node, host, _ = describe(lazy)
    assert (node["shape"], node["Max"], host) == ([2, 2], None, None)
    assert "no values yet" in node["not_captured"]
    assert lazy.has_init


def test_the_bits_are_a_copy() -> None:
    for size in (4, 1 << 16):  # read as bytes; looked at where they are
        tensor = Tensor(np.ones(size, np.float32)) * 1
        captured = describe(tensor)
        tensor.asnumpy()[:] = 7.0
        assert describe(tensor).node["Min"] == 7.0
        assert set(bits(captured).tolist()) == {1.0}


def test_the_same_content_is_copied_once_and_new_content_is_seen() -> None:
    framework = MindSporeFramework()
    tensor = Tensor(np.arange(1 << 15, dtype=np.float32))
    first = describe(tensor, framework=framework)
    assert describe(tensor.copy(), framework=framework).host is first.host
    assert describe(tensor.reshape((2, -1)), framework=framework).host is not first.host
    tensor.asnumpy()[0] = -7.0  # behind MindSpore's back
    changed = describe(tensor, framework=framework)
    assert changed.host is not first.host
    assert changed.node["Min"] == -7.0
    framework.new_step()
    assert describe(tensor, framework=framework).host is not changed.host


def test_no_tensor_is_kept() -> None:
    framework = MindSporeFramework()
    tensor = Tensor(np.ones(1 << 16, np.float32))
    described = describe(tensor, framework=framework)
    array = weakref.ref(tensor)
    del tensor
    gc.collect()
    assert array() is None
    assert described.host is not None


def test_nothing_wanted_is_nothing_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(tensors, "_bits", None)
    nothing = Wanted(statistics=False, data=False, md5=False)
    node = describe(Tensor(np.ones(3, np.float32)), nothing).node
    assert node == {"type": "mindspore.Tensor", "dtype": "Float32", "shape": [3]} | dict.fromkeys(
        ("Max", "Min", "Mean", "Norm")
    )


# --- the program's errors ---------------------------------------------------------------------------------------------


def test_a_kernel_that_failed_is_given_back_and_costs_its_own_tensor_only() -> None:
    framework = MindSporeFramework()
    good = Tensor(np.ones((2, 2), np.float32))
    bad = mint.norm(good)  # no such kernel on a CPU, which shows when somebody waits
    node = describe(good, framework=framework).node  # this one waits
    assert (node["Max"], "not_captured" in node) == (1.0, False)
    assert "LinalgVectorNorm" in describe(bad, framework=framework).node["not_captured"]
    with pytest.raises(RuntimeError, match="LinalgVectorNorm"):
        framework.give_back()
    framework.give_back()
    assert describe(good, framework=framework).node["Max"] == 1.0


def test_an_error_that_would_be_gone_is_given_back() -> None:
    """MindSpore says an index out of range once, and gives zeros from then on."""
    framework = MindSporeFramework()
    gathered = ops.gather(Tensor(np.ones((2, 2), np.float32)), Tensor([7]), 0)
    describe(gathered, framework=framework)
    with pytest.raises(RuntimeError, match="Gather"):
        framework.give_back()


# --- autograd ---------------------------------------------------------------------------------------------------------


def test_gradients_are_those_without_capture() -> None:
    framework = MindSporeFramework()
    x = Tensor(np.array([[1.0, 2.0], [3.0, 4.0]], np.float32))

    def plain(x: Tensor) -> Tensor:
        y = x.T * x
        return (y * y).sum()

    def watched(x: Tensor) -> Tensor:
        y = x.T * x
        for tensor in (x, x.T, y):
            describe(tensor, framework=framework)
        return (y * y).sum()

    expected = mindspore.grad(plain)(x).asnumpy()
    assert mindspore.grad(watched)(x).asnumpy().tobytes() == expected.tobytes()


def test_quiet_leaves_gradients_on_or_off_as_they_were() -> None:
    framework = MindSporeFramework()
    x = Tensor(np.ones(2, np.float32))
    seen = []

    def run(x: Tensor) -> Tensor:
        with framework.quiet():
            seen.append((x * 2)._requires_grad)
        y = x * 2
        seen.append(y._requires_grad)
        with mindspore._no_grad():
            with framework.quiet():
                pass
            seen.append((x * 2)._requires_grad)
        return y.sum()

    mindspore.grad(run)(x)
    assert seen == [False, True, False]


# --- a device ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> None:
    """The CPU plays the device: tensors on it are not on the host."""
    monkeypatch.setattr(tensors, "is_on_host", lambda _: False)


@pytest.mark.usefixtures("device")
@pytest.mark.parametrize(
    "values",
    [[1.5, -2.0, 3.0], [2e38, -2e38], [1e-30, 2e-30], [0.0, -0.0], [np.inf, 1.0], [np.nan, 1.0]],
    ids=["plain", "largest", "smallest", "zeros", "infinite", "nan"],
)
def test_statistics_left_on_a_device(values: list[float]) -> None:
    framework = MindSporeFramework()
    array = np.array(values, np.float32)
    node, host, pending = describe(Tensor(array), STATISTICS, framework)
    assert (node["Max"], host) == (None, None)
    framework.resolve([(node, pending)])
    wide = array.astype(np.float64)
    expected = [wide.max(), wide.min(), wide.mean(), np.linalg.norm(wide)]
    np.testing.assert_allclose([node[key] for key in ("Max", "Min", "Mean", "Norm")], expected, rtol=1e-6)


@pytest.mark.usefixtures("device")
def test_what_is_left_on_a_device_comes_over_together() -> None:
    framework = MindSporeFramework()
    given = [Tensor(np.array([1, 2, 6])), Tensor([True, False]), Tensor(np.ones((2, 2), np.float32)), Tensor(4)]
    found = [describe(one, STATISTICS, framework) for one in given]
    assert [pending is not None for _, _, pending in found] == [True, True, True, False]
    framework.resolve([(node, pending) for node, _, pending in found if pending is not None])
    assert [node["Max"] for node, _, _ in found] == [6.0, True, 1.0, 4]
    assert [node["Mean"] for node, _, _ in found] == [3.0, None, 1.0, 4]


@pytest.mark.usefixtures("device")
def test_a_type_without_kernels_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    """A kernel that is missing shows later than the call: here the operation is one that the CPU does not have."""
    framework = MindSporeFramework()
    asked = []

    def without_kernel(tensor: Tensor) -> Any:
        asked.append(tensor)
        return mint.norm(tensor)

    monkeypatch.setattr(tensors, "defer", without_kernel)
    for _ in range(2):
        node, _, pending = describe(Tensor(np.array([3.0, 4.0], np.float32)), STATISTICS, framework)
        assert (node["Norm"], pending) == (5.0, None)
    assert len(asked) == 1
    framework.give_back()  # nothing of the program's


@pytest.mark.usefixtures("device")
def test_complex_values_are_copied_from_a_device() -> None:
    assert describe(Tensor(np.array([3 + 4j, 0j], np.complex64)), STATISTICS).node["Max"] == 5.0


# --- other values -----------------------------------------------------------------------------------------------------


def test_rank_of_a_single_process() -> None:
    assert MindSporeFramework().rank() is None
