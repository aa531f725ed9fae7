"""What capture asks of every framework, as one suite: a framework's test file is a subclass with five methods.

Judges are numpy and zlib; nothing of the framework's own is asked whether it is right.
"""

from __future__ import annotations

import json
import zlib
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

import msformat
from capture.config import load_config
from capture.framework import Framework, Wanted
from capture.session import Session
from capture.values import NOT_A_LEAF

NOTHING = Wanted(statistics=False, data=False, md5=False)
STATISTICS = Wanted(statistics=True, data=False, md5=False)
EVERYTHING = Wanted(statistics=True, data=True, md5=False)
MD5 = Wanted(statistics=True, data=False, md5=True)
ORDER = ("type", "dtype", "shape", "Max", "Min", "Mean", "Norm")

ARRAYS = {
    "float32": np.array([[1.5, -2.0, 0.25], [3.0, 0.0, -7.5]], np.float32),
    "float64": np.linspace(-1, 1, 7),
    "float16": np.array([1.0, -0.5, 60000.0], np.float16),
    "int32": np.array([3, -4, 5], np.int32),
    "special": np.array([1.0, -0.0, np.inf], np.float32),
    "scalar": np.array(2.5, np.float32),
    "one": np.array([[7.0]], np.float32),
}


class NoHooks:
    """Hooks of a program that calls the observer itself."""

    def install(self, model: Any) -> None:
        pass

    finish = new_step = remove = lambda self: None

    def never_fired(self) -> list[str]:
        return []


class FrameworkContract(ABC):
    """Promises of :class:`capture.framework.Framework`."""

    name: str
    suffix: str
    says_recompute: bool

    @abstractmethod
    def framework(self) -> Framework:
        """A new one."""

    @abstractmethod
    def tensor(self, array: NDArray[Any]) -> Any:
        """A tensor with the values of an array; it needs no gradient."""

    @abstractmethod
    def change(self, tensor: Any) -> None:
        """Set every element of a float tensor to 9, in place."""

    @abstractmethod
    def a_dtype(self) -> tuple[Any, str]:
        """A value of the framework that is no tensor, and the type it is recorded with."""

    @abstractmethod
    def gradient_of(self, listen: Any) -> NDArray[Any]:
        """Call ``listen(tensor)`` in a forward of ``(tensor * 3).sum()``; the tensor's gradient, from a backward."""

    # --- tensors -----------------------------------------------------------------------------------------------------

    def describe(self, framework: Framework, tensor: Any, wanted: Wanted) -> tuple[dict[str, Any], Any]:
        with framework.quiet():
            node, host, pending = framework.describe(tensor, wanted)
            if pending is not None:
                framework.resolve([(node, pending)])
        return node, host

    def test_it_says_who_it_is(self) -> None:
        framework = self.framework()
        assert (framework.name, framework.suffix) == (self.name, self.suffix)
        assert framework.rank() is None
        assert framework.is_recompute() is (False if self.says_recompute else None)

    def test_it_knows_its_tensors(self) -> None:
        framework = self.framework()
        assert framework.is_tensor(self.tensor(ARRAYS["float32"]))
        assert not any(framework.is_tensor(value) for value in (None, 1, 2.5, "x", [1], ARRAYS["float32"]))

    @pytest.mark.parametrize("name", ARRAYS)
    def test_statistics_are_those_of_numpy(self, name: str) -> None:
        array = ARRAYS[name]
        node, host = self.describe(self.framework(), self.tensor(array), STATISTICS)
        wide = array.astype(np.float64)
        assert host is None
        assert tuple(node)[:7] == ORDER
        assert node["shape"] == list(array.shape)
        with np.errstate(invalid="ignore"):
            wanted = (wide.max(), wide.min(), wide.mean(), np.linalg.norm(wide.reshape(-1)))
        for key, value in zip(ORDER[3:], wanted, strict=True):
            # A 0-d tensor is its own norm, sign and all, where the peer has it so.
            assert np.isclose(node[key], value, rtol=1e-6), key

    def test_an_empty_tensor_has_no_statistics(self) -> None:
        node, _ = self.describe(self.framework(), self.tensor(np.zeros((0, 3), np.float32)), STATISTICS)
        assert node["shape"] == [0, 3]
        assert [node[key] for key in ORDER[3:]] == [None] * 4

    def test_booleans(self) -> None:
        node, _ = self.describe(self.framework(), self.tensor(np.array([True, False])), STATISTICS)
        assert [node[key] for key in ORDER[3:]] == [True, False, None, None]

    @pytest.mark.parametrize("name", ARRAYS)
    def test_bits_are_the_tensor_s(self, name: str) -> None:
        array = ARRAYS[name]
        _, host = self.describe(self.framework(), self.tensor(array), EVERYTHING)
        assert host.bits.tobytes() == array.tobytes()
        assert (host.bits.shape, host.nbytes) == (array.shape, array.nbytes)
        assert host.dtype.storage.itemsize == array.dtype.itemsize

    @pytest.mark.parametrize("name", ARRAYS)
    def test_md5_is_the_crc_of_the_bits(self, name: str) -> None:
        node, host = self.describe(self.framework(), self.tensor(ARRAYS[name]), MD5)
        assert host is None
        assert node["md5"] == f"{zlib.crc32(ARRAYS[name].tobytes()):08x}"

    def test_what_is_not_wanted_is_not_taken(self) -> None:
        node, host = self.describe(self.framework(), self.tensor(ARRAYS["float32"]), NOTHING)
        assert host is None
        assert "md5" not in node

    def test_bits_stay_what_they_were(self) -> None:
        framework, tensor = self.framework(), self.tensor(ARRAYS["float32"])
        node, host = self.describe(framework, tensor, EVERYTHING)
        self.change(tensor)
        changed, after = self.describe(framework, tensor, EVERYTHING)
        assert host.bits.tobytes() == ARRAYS["float32"].tobytes()
        assert (node["Max"], changed["Max"], changed["Min"]) == (3.0, 9.0, 9.0)
        assert after.bits.tobytes() == np.full((2, 3), 9.0, np.float32).tobytes()

    def test_the_same_content_is_copied_once(self) -> None:
        framework, tensor = self.framework(), self.tensor(ARRAYS["float32"])
        assert self.describe(framework, tensor, EVERYTHING)[1] is self.describe(framework, tensor, EVERYTHING)[1]

    def test_a_step_forgets_what_came_before(self) -> None:
        framework, tensor = self.framework(), self.tensor(ARRAYS["float32"])
        before = self.describe(framework, tensor, EVERYTHING)[1]
        framework.new_step()
        assert self.describe(framework, tensor, EVERYTHING)[1] is not before

    # --- around them -------------------------------------------------------------------------------------------------

    def test_leaves(self) -> None:
        framework, (value, kind) = self.framework(), self.a_dtype()
        assert framework.leaf(value)["type"] == kind
        assert all(framework.leaf(other) is NOT_A_LEAF for other in (1, "x", [], {}, object()))

    def test_a_gradient_comes_once(self) -> None:
        framework = self.framework()
        heard: list[Any] = []

        def listen(tensor: Any) -> None:
            assert framework.on_gradient(
                tensor, lambda gradient: heard.append(self.describe(framework, gradient, EVERYTHING)[1].bits.copy())
            )

        assert not framework.on_gradient(self.tensor(ARRAYS["float32"]), heard.append)
        gradient = self.gradient_of(listen)
        framework.new_step()
        assert [one.tobytes() for one in heard] == [gradient.tobytes()]

    def test_a_step_from_calls_to_files(self, tmp_path: Path) -> None:
        """Session, observer, scope and writer know the framework by the seam alone."""
        session = Session(load_config(dump_path=tmp_path, level="mix", task="tensor"), self.framework())
        session.start(NoHooks(), None)
        observer, tensor = session.observer, self.tensor(ARRAYS["float32"])
        module = observer.begin_module("Module.outer.Outer", (tensor,), {"scale": 2, "extra": [tensor]})
        assert module is not None
        call = observer.begin_api("Functional", "relu", (tensor, self.a_dtype()[0]), {})
        assert call is not None
        observer.end_api(call, (tensor, None))
        self.change(tensor)
        observer.end_module(module, tensor, {"weight": tensor})
        observer.api_backward(call, (tensor,), (None,))
        session.step()
        session.close()
        self._check(tmp_path)

    def _check(self, path: Path) -> None:
        unit = path / "step0" / "rank"
        document = json.loads((unit / "dump.json").read_text())
        assert (document["framework"], document["level"]) == (self.name, "mix")
        api, module = "Functional.relu.0", "Module.outer.Outer.forward.0"
        assert list(document["data"]) == [f"{api}.forward", module, f"{api}.backward"]
        recompute = ["is_recompute"] if self.says_recompute else []
        assert list(document["data"][module]) == ["input_args", "input_kwargs", "output", "parameters", *recompute]
        assert list(document["data"][f"{api}.forward"]) == ["input_args", "input_kwargs", *recompute, "output"]
        assert json.loads((unit / "construct.json").read_text())[f"{api}.forward"] == module
        dump = msformat.open(path)[0]
        before, after = ARRAYS["float32"].tobytes(), np.full((2, 3), 9.0, np.float32).tobytes()
        for name, content in {
            f"{module}.input.0": before, f"{module}.kwargs.extra.0": before, f"{api}.forward.output.0": before,
            f"{module}.output.0": after, f"{module}.parameters.weight": after, f"{api}.backward.input.0": after,
        }.items():  # fmt: skip
            assert dump.tensor(name + self.suffix).bits().tobytes() == content, name
