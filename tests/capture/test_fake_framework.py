"""The fake keeps the promises of the seam, or tests with it would prove nothing."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from capture.framework import Framework, Wanted
from tests.capture.fake_framework import FakeDType, FakeFramework, FakeTensor
from tests.capture.framework_contract import FrameworkContract

EVERYTHING = Wanted(statistics=True, data=True, md5=True)


class TestContract(FrameworkContract):
    name, suffix, says_recompute = "pytorch", ".npy", True

    def framework(self) -> FakeFramework:
        return FakeFramework()

    def tensor(self, array: NDArray[Any]) -> FakeTensor:
        return FakeTensor(array.copy())

    def change(self, tensor: FakeTensor) -> None:
        tensor.fill_(9)

    def a_dtype(self) -> tuple[Any, str]:
        return FakeDType("float32"), "fake.dtype"

    def gradient_of(self, listen: Any) -> NDArray[Any]:
        tensor = FakeTensor(np.ones((2, 3), np.float32), requires_grad=True)
        listen(tensor)
        tensor.backward(FakeTensor(np.full((2, 3), 3.0, np.float32)))
        return np.full((2, 3), 3.0, np.float32)


def test_it_is_a_framework() -> None:
    framework: Framework = FakeFramework()  # mypy judges
    assert framework.is_tensor(FakeTensor(1.0))
    assert not framework.is_tensor(np.ones(3))


def test_equal_content_is_copied_once_and_changed_content_again() -> None:
    framework, tensor = FakeFramework(), FakeTensor(np.ones(3, np.float32))
    first = framework.describe(tensor, EVERYTHING)
    assert framework.describe(tensor, EVERYTHING).host is first.host
    second = framework.describe(tensor.fill_(2), EVERYTHING)
    assert first.host is not None
    assert second.host is not None
    assert first.host.bits is not None
    assert first.host.bits.tolist() == [1, 1, 1]
    assert list(first.node)[3:] == ["Max", "Min", "Mean", "Norm", "requires_grad", "md5"]
    assert (first.node["Max"], second.node["Max"]) == (1.0, 2.0)
    assert first.node["md5"] != second.node["md5"]


def test_deferred_statistics_are_of_the_moment() -> None:
    framework, tensor = FakeFramework(deferred=True), FakeTensor(np.arange(4.0))
    node, host, pending = framework.describe(tensor, Wanted(statistics=True, data=False, md5=False))
    tensor.fill_(9)
    assert host is None
    assert node["Max"] is None
    framework.resolve([(node, pending)])
    assert [node[name] for name in ("Max", "Min", "Mean")] == [3.0, 0.0, 1.5]


def test_nobody_looks_into_a_tensor() -> None:
    for look in (bool, len, list, lambda tensor: tensor == 1, lambda tensor: tensor[0]):
        with pytest.raises(AssertionError):
            look(FakeTensor(np.ones(2)))


def test_gradients_reach_the_callback() -> None:
    framework = FakeFramework()
    seen: list[FakeTensor] = []
    assert not framework.on_gradient(FakeTensor(1.0), seen.append)
    tensor, gradient = FakeTensor(1.0, requires_grad=True), FakeTensor(2.0)
    assert framework.on_gradient(tensor, seen.append)
    tensor.backward(gradient)
    assert [id(one) for one in seen] == [id(gradient)]
