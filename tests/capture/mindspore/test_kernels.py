"""Level L2 in PyNative mode: a double of Ascend's library is switched on and off around one call.

The order of events is judged by MindSpore itself: hooks of the test on nodes of the graph.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import mindspore
import numpy as np
import pytest
from mindspore import Tensor, mint, nn, ops

from capture.kernel.acl import AclDevice
from capture.mindspore import PrecisionDebugger
from capture.mindspore import debugger as debugger_module

ON = ["synchronize", "aclmdlInitDump", "aclmdlSetDump", "synchronize"]
OFF = ["synchronize", "aclmdlFinalizeDump", "synchronize"]


class Function:
    """A function of a C library; ctypes hangs types on it."""

    restype: Any = None
    argtypes: Any = None

    def __init__(self, call: Callable[..., int]) -> None:
        self.call = call

    def __call__(self, *arguments: Any) -> int:
        return self.call(*arguments)


class Acl:
    """``libascendcl.so``: remembers what was called."""

    def __init__(self) -> None:
        self.events: list[str] = []
        self.paths: list[str] = []
        self.codes: dict[str, int] = {}
        self.aclmdlInitDump = Function(lambda: self._note("aclmdlInitDump"))
        self.aclmdlSetDump = Function(self._set_dump)
        self.aclmdlFinalizeDump = Function(lambda: self._note("aclmdlFinalizeDump"))

    def _set_dump(self, path: bytes) -> int:
        assert isinstance(path, bytes)
        self.paths.append(path.decode())
        return self._note("aclmdlSetDump")

    def _note(self, name: str) -> int:
        self.events.append(name)
        return self.codes.get(name, 0)


class Net(nn.Cell):
    """A product and a sum."""

    def __init__(self) -> None:
        super().__init__()
        self.w = mindspore.Parameter(Tensor(np.arange(6, dtype=np.float32).reshape(3, 2)), name="w")
        self.seen: list[Any] = []
        self.events: list[str] = []

    def construct(self, x: Any) -> Any:
        product = ops.matmul(x, self.w)
        total = mint.add(product, product)
        for name, tensor in (("matmul", product), ("add", total)):
            tensor._grad_node.register_prehook(lambda _, name=name: self.events.append(name))
        return mint.sum(total)


@pytest.fixture
def acl(monkeypatch: pytest.MonkeyPatch) -> Acl:
    found = Acl()
    device = AclDevice(lambda: found.events.append("synchronize"), lambda: None, lambda: found)
    monkeypatch.setattr(debugger_module, "kernel_device", lambda: device)
    return found


@pytest.fixture
def debugger(tmp_path: Path) -> Iterator[Callable[..., PrecisionDebugger]]:
    made: list[PrecisionDebugger] = []

    def make(target: str) -> PrecisionDebugger:
        path = tmp_path / "config.json"
        document = {"task": "tensor", "dump_path": str(tmp_path / "dump"), "level": "L2"}
        path.write_text(json.dumps({**document, "tensor": {"list": [target]}}))
        made.append(PrecisionDebugger(path))
        return made[-1]

    yield make
    for one in made:
        one.close()


def train(one: PrecisionDebugger, net: Net, steps: int = 1) -> None:
    run = mindspore.value_and_grad(net, None, net.trainable_params())
    for _ in range(steps):
        one.start(net)
        run(Tensor(np.ones((2, 3), np.float32)))
        one.stop()
        one.step()


def test_the_device_dumps_while_the_forward_runs(acl: Acl, debugger: Any, tmp_path: Path) -> None:
    train(debugger("Mint.add.0.forward"), Net(), steps=2)
    assert acl.events == [*ON, *OFF] * 2
    assert acl.paths == [str(tmp_path / "dump" / f"step{step}" / "kernel_config.json") for step in range(2)]
    assert json.loads(Path(acl.paths[1]).read_text())["dump"]["dump_path"] == str(tmp_path / "dump" / "step1")


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ("Mint.add.0.backward", [*ON, "add", *OFF, "matmul"]),
        ("Functional.matmul.0.backward", ["add", *ON, "matmul", *OFF]),
    ],
)
def test_the_device_dumps_while_the_backward_of_the_call_runs(
    acl: Acl, debugger: Any, target: str, expected: list[str]
) -> None:
    net = Net()
    net.events = acl.events
    train(debugger(target), net, steps=2)
    # A prehook of the test comes after the one that switches the device on, which was there first.
    assert acl.events == expected * 2


def test_gradients_are_those_of_a_run_without(acl: Acl, debugger: Any) -> None:
    def gradients(one: Any) -> Any:
        net = Net()
        run = mindspore.value_and_grad(net, None, net.trainable_params())
        if one is not None:
            one.start(net)
        found = run(Tensor(np.ones((2, 3), np.float32)))[1][0].asnumpy()
        if one is not None:
            one.stop()
        return found

    np.testing.assert_array_equal(gradients(None), gradients(debugger("Mint.add.0.backward")))


def test_a_call_without_a_backward_is_said(acl: Acl, debugger: Any, caplog: Any) -> None:
    one = debugger("Mint.add.0.backward")
    one.start()
    mint.add(Tensor([1.0]), Tensor([2.0]))
    one.stop()
    one.step()
    assert acl.events == []
    assert "Mint.add.0.backward did not run" in caplog.text


def test_a_backward_that_raises_leaves_the_device_off(acl: Acl, debugger: Any) -> None:
    class Broken(nn.Cell):
        def construct(self, x: Any) -> Any:
            return x * 2

        def bprop(self, *_: Any) -> Any:
            raise ArithmeticError("in the middle")

    place = type("Place", (), {})
    broken = Broken()
    place.call = staticmethod(lambda value: mint.sin(broken(mint.exp(value))))  # type: ignore[attr-defined]
    one = debugger("User.call.0.backward")
    one.register_custom_api(place, "call", "User")
    one.start()
    with pytest.raises(ArithmeticError):
        mindspore.grad(lambda value: mint.sum(place.call(value)))(Tensor([1.0, 2.0]))  # type: ignore[attr-defined]
    one.stop()
    assert acl.events == [*ON, *OFF]


@pytest.mark.parametrize("name", ["aclmdlInitDump", "aclmdlSetDump", "aclmdlFinalizeDump"])
def test_an_error_of_the_library_is_said_with_its_number(acl: Acl, debugger: Any, caplog: Any, name: str) -> None:
    acl.codes[name] = 107002
    train(debugger("Mint.add.0.forward"), Net())
    assert f"{name} returned 107002" in caplog.text
    assert acl.events.count("aclmdlFinalizeDump") == 1


def test_without_an_npu_it_is_said_once_and_nothing_is_replaced(debugger: Any, caplog: Any, tmp_path: Path) -> None:
    before = mint.add
    one = debugger("Mint.add.0.forward")
    for _ in range(3):
        one.start()
        assert mint.add is before
        one.stop()
        one.step()
    one.close()
    assert len(caplog.records) == 1
    assert "the program runs on CPU: kernels of single APIs are dumped on Ascend NPUs only" in caplog.text
    assert not (tmp_path / "dump").exists()


@pytest.mark.parametrize("loaded", [OSError("cannot open shared object file"), object()])
def test_a_library_that_cannot_be_used_is_named(loaded: Any) -> None:
    def load() -> Any:
        if isinstance(loaded, OSError):
            raise loaded
        return loaded

    reason = AclDevice(lambda: None, lambda: None, load).why_not()
    assert reason is not None
    assert reason.startswith("libascendcl.so of CANN cannot be used: ")


@pytest.fixture(autouse=True)
def _only_warnings(caplog: pytest.LogCaptureFixture, _said: None) -> None:
    caplog.set_level(logging.WARNING, logger="msformat.capture")
