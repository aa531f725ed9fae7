"""What capture promises in a torch that runs on MindSpore; the double and the real mindtorch are held to it alike."""

from __future__ import annotations

import copy
import gc
import logging
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore
import numpy as np
import pytest
from mindspore._c_expression import TensorPy

from capture.mindspore import PrecisionDebugger
from capture.mindtorch import CaptureError, is_mindtorch, module_dump, module_dump_end, seed_all
from capture.mindtorch import PrecisionDebugger as OnTorch
from tests.capture.mindspore.dumping import Dump, captured, debugger, dump_of, problems, units
from tests.capture.mindtorch.programs import gradients, models

__all__ = ["DIFFERENCES", "MindTorchContract"]

# Where we differ from the dump that msprobe 8.1.0 made of the same program, and why.
DIFFERENCES = {
    "dtype": "'mindspore.float32' there, as mindtorch changes how types print; 'Float32' is what msprobe documents",
    "Functional, Torch": "not seen by msprobe, which replaces attributes of the proxies; recorded here",
    "Tensor.to": "a part of cross_entropy, which msprobe did not see; recorded as cross_entropy here",
    "parameters_grad": "[null] there; the gradient here",
    "backward": "none there; here",
}


class MindTorchContract:
    """Subclasses have the fixture ``torch``, and say how exact gradients of shared inputs are."""

    shows_graph = True
    """Whether the gradient of an input is what the call itself gives, or that of all uses."""

    @pytest.fixture(autouse=True)
    def _imported(self, torch: Any) -> None:
        """The program has imported it, whatever it uses."""

    @pytest.fixture
    def net(self, torch: Any) -> Any:
        torch.manual_seed(1)
        return models(torch).Net()

    @pytest.fixture
    def run(self, torch: Any, net: Any) -> Callable[[Any], Any]:
        target = torch.tensor(np.array([0, 2]))
        return lambda x: torch.nn.functional.cross_entropy(net(x, scale=2.0), target)

    @pytest.fixture
    def x(self, torch: Any) -> Any:
        return torch.tensor(np.random.default_rng(0).standard_normal((2, 1, 4, 4)).astype(np.float32))

    @pytest.fixture
    def block(self, torch: Any) -> Any:
        torch.manual_seed(2)
        return models(torch).Block().eval()

    @pytest.fixture
    def row(self, torch: Any) -> Any:
        return torch.tensor(np.random.default_rng(1).standard_normal((3, 4)).astype(np.float32))

    @pytest.fixture
    def run_block(self, torch: Any, block: Any) -> Callable[[Any], Any]:
        index = torch.tensor(np.array([0, 1, 4]))
        return lambda row: block(row, index).sum()

    # --- names, order and values -------------------------------------------------------------------------------------

    def test_the_dump_is_msprobe_s_with_its_gaps_filled(
        self, golden: Callable[[str], Path], tmp_path: Path, net: Any, run: Any, x: Any
    ) -> None:
        theirs = Dump(golden("mindtorch_8.1.0_mix_tensor") / "step1" / "rank")
        ours = dump_of(tmp_path, net, lambda: gradients(run, x, net), level="mix")
        assert list(ours.document) == list(theirs.document)
        assert ours.document["framework"] == "mindtorch"
        kept = [key for key in ours.data if key in theirs.data]
        assert kept == [key for key in theirs.data if key in kept]
        found = {_kind_of(key) for key in ours.data.keys() ^ theirs.data.keys()}
        found |= {kind for key in kept for kind in _differences(key, ours.data[key], theirs.data[key])}
        assert found == set(DIFFERENCES)
        assert not [
            key for key in ours.data if key.startswith("Module") and _kind_of(key) != "backward" and key not in kept
        ]
        theirs_tree = {key: parent for key, parent in theirs.tree.items() if key in kept}
        assert {key: parent for key, parent in ours.tree.items() if key in kept} == theirs_tree
        assert not problems(ours)

    def test_calls_by_modules_of_torch_are_recorded(self, tmp_path: Path, net: Any, run: Any, x: Any) -> None:
        dump = dump_of(tmp_path, net, lambda: gradients(run, x, net), level="mix")
        forward = [key for key in dump.data if key.endswith(".forward")]
        assert forward == [
            "Functional.conv2d.0.forward", "Functional.relu.0.forward", "Torch.add.0.forward",
            "Torch.flatten.0.forward", "Functional.linear.0.forward", "Functional.relu.1.forward",
            "Functional.linear.1.forward", "Tensor.__mul__.0.forward", "Functional.cross_entropy.0.forward",
        ]  # fmt: skip
        assert dump.tree["Functional.linear.1.forward"] == "Module.fc.2.Linear.forward.0"
        assert dump.tree["Functional.linear.1.backward"] == "Module.fc.2.Linear.backward.0"
        assert dump.tree["Module.fc.2.Linear.backward.0"] == "Module.fc.Sequential.backward.0"
        backward = [key for key in dump.data if key.endswith(".backward")]
        assert backward == [key.replace("forward", "backward") for key in reversed(forward)]

    def test_gradients_are_those_of_the_program(self, tmp_path: Path, net: Any, run: Any, x: Any) -> None:
        found: list[Any] = []
        dump = dump_of(tmp_path, net, lambda: found.append(gradients(run, x, net)), level="mix")
        of_input, of_parameters = found[0]
        names = [f"Module.{path}.parameters_grad.{name}.npy" for path in _OWNERS for name in ("weight", "bias")]
        for name, expected in zip(names, of_parameters, strict=True):
            _same(dump.tensor(name), expected)
        _same(dump.tensor("Module.conv.Conv2d.backward.0.output.0.npy"), of_input)
        _same(dump.tensor("Functional.conv2d.0.backward.output.1.npy"), of_parameters[0])
        _same(dump.tensor("Functional.linear.1.backward.output.2.npy"), of_parameters[5])

    def test_gradients_of_modules_are_those_of_their_parts(self, tmp_path: Path, torch: Any, net: Any, x: Any) -> None:
        """Judged by MindSpore: the gradient of what comes after the module, for its output and its input."""
        flat = torch.flatten(torch.nn.functional.relu(net.conv(x)) + 1.0, 1)
        into = mindspore.grad(lambda h: (net.fc(h) * 2.0).sum(), 0)(flat)
        middle = net.fc._modules["0"](flat)
        out_of = mindspore.grad(lambda h: (net.fc._modules["2"](torch.nn.functional.relu(h)) * 2.0).sum(), 0)(middle)
        dump = dump_of(tmp_path, net, lambda: gradients(lambda x: net(x, scale=2.0).sum(), x, net), level="L0")
        _same(dump.tensor("Module.fc.Sequential.backward.0.output.0.npy"), into.asnumpy())
        _same(dump.tensor("Module.fc.0.Linear.backward.0.input.0.npy"), out_of.asnumpy())
        assert list(dump.tree) == [key for key in dump.tree if key.startswith("Module.")]

    def test_every_step_has_its_gradients(self, tmp_path: Path, net: Any, run: Any, x: Any) -> None:
        capture = debugger(tmp_path, level="L0")
        for _ in range(3):
            capture.start(net)
            gradients(run, x, net)
            capture.stop()
            capture.step()
        capture.close()
        made = units(tmp_path)
        assert [list(dump.data) for dump in made] == [list(made[0].data)] * 3
        for dump in made:
            for path in _OWNERS:
                assert all(
                    node[0]["type"] == "mindspore.Tensor"
                    for node in dump.data[f"Module.{path}.parameters_grad"].values()
                )

    def test_a_forward_alone_announces_gradients(self, tmp_path: Path, net: Any, run: Any, x: Any) -> None:
        dump = dump_of(tmp_path, net, lambda: run(x), level="mix")
        assert not [key for key in dump.data if "backward" in key]
        assert dump.data["Module.conv.Conv2d.parameters_grad"] == {"weight": [None], "bias": [None]}

    def test_shared_inputs(self, tmp_path: Path, block: Any, run_block: Any, row: Any) -> None:
        """With a graph each call has its own share, and they add up; without one it is the whole, which is said."""
        dump = dump_of(tmp_path, block, lambda: gradients(run_block, row, block), level="mix")
        shares = [dump.tensor(f"Module.attention.{name}.Linear.backward.0.output.0.npy") for name in "qkv"]
        whole = dump.tensor("Module.attention.Attention.backward.0.output.0.npy")
        if self.shows_graph:
            np.testing.assert_allclose(sum(shares), whole, rtol=1e-5, atol=1e-6)
            assert "shared input" not in problems(dump)
            return
        for share in shares:
            _same(share, whole)
        for name in "qkv":
            assert f"shared input: Module.attention.{name}.Linear.backward.0: " in problems(dump)
        assert "Module.attention.Attention" not in problems(dump)

    def test_a_module_that_returns_its_input(self, tmp_path: Path, block: Any, run_block: Any, row: Any) -> None:
        dump = dump_of(tmp_path, block, lambda: gradients(run_block, row, block), level="L0")
        node = dump.data["Module.nothing.Dropout.backward.0"]
        _same(dump.of(node["output"][0]), dump.of(node["input"][0]))

    def test_structured_outputs_and_keywords(self, tmp_path: Path, block: Any, run_block: Any, row: Any) -> None:
        dump = dump_of(tmp_path, block, lambda: gradients(run_block, row, block), level="L0")
        forward, backward = (dump.data[f"Module.parts.Parts.{way}.0"] for way in ("forward", "backward"))
        assert forward["output"][0]["list"][1]["value"] == "text"
        assert forward["input_kwargs"]["extra"]["tensor"]["type"] == "mindspore.Tensor"
        _same(dump.of(backward["input"][0]), np.full((3, 4), 2, np.float32))
        _same(dump.of(backward["input"][1]), np.ones((3, 4), np.float32))
        _same(dump.of(backward["output"][0]), np.full((3, 4), 5, np.float32))

    def test_a_parameter_of_two_modules(self, tmp_path: Path, torch: Any, row: Any) -> None:
        model = models(torch).Twice()
        found: list[Any] = []
        weights = [model.first.weight]

        def run() -> None:
            _, (gradient,) = mindspore.value_and_grad(lambda row: model(row).sum(), None, weights)(row)
            found.append(gradient.asnumpy())

        dump = dump_of(tmp_path, model, run, level="L0")
        for owner in ("first", "second"):
            _same(dump.tensor(f"Module.{owner}.Linear.parameters_grad.weight.npy"), found[0])

    def test_gradients_that_a_program_leaves_in_grad(self, tmp_path: Path, net: Any, run: Any, x: Any) -> None:
        """As ``loss.backward()`` of MSAdapter does, which is not MindSpore's ``grad``."""
        _, of_parameters = gradients(run, x, net)
        net.conv.weight.grad = mindspore.Tensor(of_parameters[0])
        with captured(tmp_path, net, level="L0"):
            run(x)
            for parameter, gradient in list(zip(net.parameters(), of_parameters, strict=True))[1:]:
                parameter.grad = mindspore.Tensor(gradient)
        dump = units(tmp_path)[0]
        _same(dump.tensor("Module.fc.2.Linear.parameters_grad.weight.npy"), of_parameters[4])
        assert dump.data["Module.conv.Conv2d.parameters_grad"]["weight"] == [None]  # it was there before

    def test_parameters_that_are_not_asked_for(self, tmp_path: Path, net: Any, run: Any, x: Any) -> None:
        weights = list(net.fc.parameters())
        dump = dump_of(tmp_path, net, lambda: mindspore.value_and_grad(run, None, weights)(x), level="mix")
        assert dump.data["Module.conv.Conv2d.parameters_grad"] == {"weight": [None], "bias": [None]}
        assert dump.data["Module.fc.2.Linear.parameters_grad"]["weight"][0]["shape"] == [3, 8]
        assert dump.data["Functional.linear.1.backward"]["output"][0]["shape"] == [2, 8]

    def test_an_input_of_very_many_calls(self, tmp_path: Path, torch: Any, row: Any) -> None:
        """Without a graph, calls wait for the sum; so many gradients are held back at most."""

        def run(row: Any) -> Any:
            h = row * 2.0
            total = h * 0.0
            for number in range(100):
                total = torch.add(total, torch.softmax(h, -1) if number % 2 else h * float(number))
            return total.sum()

        data = dump_of(tmp_path, None, lambda: mindspore.grad(run, 0)(row), level="L1").data
        backward = {key: node for key, node in data.items() if key.startswith("Torch.softmax") and "backward" in key}
        filled = [key for key, node in backward.items() if node["output"] != [None]]
        assert len(backward) == 50
        assert all(node["input"] != [None] for node in backward.values())
        assert (len(filled) == 50) if self.shows_graph else (0 < len(filled) < 50)

    def test_many_steps(self, tmp_path: Path, torch: Any, row: Any, caplog: pytest.LogCaptureFixture) -> None:
        caplog.set_level(logging.WARNING, logger="msformat.capture")  # what it keeps is not ours
        model = models(torch).Twice()
        hooks, objects = _hooks(model), []
        capture = debugger(tmp_path, level="mix", task="statistics")
        for step in range(200):
            capture.start(model)
            gradients(lambda row: model(row).sum(), row, model)
            capture.stop()
            capture.step()
            if step % 50 == 49:
                capture.wait()
                gc.collect()
                objects.append(len(gc.get_objects()))
        capture.close()
        assert _hooks(model) == hooks
        assert max(objects[1:]) - min(objects[1:]) < 100

    # --- no harm -----------------------------------------------------------------------------------------------------

    def test_training_is_what_it_is_without(self, tmp_path: Path, block: Any, run_block: Any, row: Any) -> None:
        expected = gradients(run_block, row, block)
        with captured(tmp_path, block, level="mix"):
            found = gradients(run_block, row, block)
        for ours, theirs in zip([found[0], *found[1]], [expected[0], *expected[1]], strict=True):
            assert ours.tobytes() == theirs.tobytes()

    def test_everything_is_put_back(self, tmp_path: Path, torch: Any, block: Any, run_block: Any, row: Any) -> None:
        places = [torch, torch.nn.functional, torch.Tensor, torch.nn.Module, torch.distributed]
        before = [dict(vars(_behind(place))) for place in places]
        hooks = _hooks(block)
        for level in ("L0", "L1", "mix"):
            with captured(tmp_path / level, block, level=level):
                gradients(run_block, row, block)
        for place, known in zip(places, before, strict=True):
            now = dict(vars(_behind(place)))
            assert now.keys() == known.keys()
            assert not [name for name in now if now[name] is not known[name]]
        assert _hooks(block) == hooks
        assert not any(leaf.hooks() for leaf in (row, *block.parameters()))

    def test_hooks_of_the_program_stay(self, tmp_path: Path, block: Any, run_block: Any, row: Any) -> None:
        seen: list[str] = []
        handle = block.norm.register_forward_hook(lambda *_: seen.append("forward"))
        with captured(tmp_path, block, level="mix"):
            gradients(run_block, row, block)
        gradients(run_block, row, block)
        assert seen == ["forward"] * 2
        handle.remove()

    def test_a_module_that_raises(self, tmp_path: Path, torch: Any, row: Any) -> None:
        model = models(torch).Catching()
        dump = dump_of(tmp_path, model, lambda: gradients(lambda row: model(row).sum(), row, model), level="mix")
        assert dump.tree["Module.fc.Linear.forward.0"] is None
        assert dump.data["Module.fc.Linear.backward.0"]["output"][0]["type"] == "mindspore.Tensor"
        assert "Module.failing.Failing.forward.0" not in dump.data

    def test_a_backward_that_raises(self, tmp_path: Path, net: Any, run: Any, x: Any) -> None:
        """It comes out as it is, and the next one of the step is recorded."""
        model = net

        def failing(gradient: Any) -> Any:
            raise ValueError("of the program")

        def failing_run(x: Any) -> Any:
            h = net.conv(x)
            TensorPy.register_hook(h, failing)
            return net.fc(h.reshape((2, 32))).sum()

        with captured(tmp_path, model, level="mix"):
            with pytest.raises(ValueError, match="of the program"):
                gradients(failing_run, x, model)
            gradients(run, x, model)
        dump = units(tmp_path)[0]
        assert dump.data["Module.conv.Conv2d.backward.1"]["input"][0]["shape"] == [2, 2, 4, 4]
        assert dump.tree["Module.fc.2.Linear.backward.1"] == "Module.fc.Sequential.backward.1"
        assert dump.tree["Module.fc.Sequential.backward.1"] is None

    def test_a_function_that_raises(self, tmp_path: Path, torch: Any, row: Any) -> None:
        with captured(tmp_path, level="L1"):
            with pytest.raises(Exception, match=r".") as raised:
                torch.matmul(row, row).asnumpy()
            torch.add(row, 1.0)
        assert not isinstance(raised.value, CaptureError)
        dump = units(tmp_path)[0]
        assert "output" not in dump.data["Torch.matmul.0.forward"]
        assert dump.data["Torch.add.0.forward"]["output"][0]["shape"] == [3, 4]

    def test_nothing_is_kept(self, tmp_path: Path, torch: Any, block: Any, run_block: Any) -> None:
        class Mark:
            """Dies with the tensor that holds it."""

        capture = debugger(tmp_path, level="mix", task="statistics")
        alive: list[weakref.ref[Mark]] = []
        for _ in range(20):
            row = torch.ones(3, 4)
            row._mark = Mark()
            alive.append(weakref.ref(row._mark))
            capture.start(block)
            gradients(run_block, row, block)
            capture.stop()
            capture.step()
        del row
        gc.collect()
        assert not [mark for mark in alive if mark() is not None]
        capture.close()

    def test_a_copied_model_has_no_hooks_of_ours(self, tmp_path: Path, net: Any) -> None:
        with captured(tmp_path, net, level="L0"):
            hooks = [copy.copy(hook) for hook in net.conv._forward_hooks.values()]
        assert [hook(net.conv, (), {}) for hook in hooks] == [None]

    # --- what a debugger does ----------------------------------------------------------------------------------------

    def test_msprobe_s_name_is_this_one_here(self, tmp_path: Path) -> None:
        assert is_mindtorch()
        capture = debugger(tmp_path)
        assert type(capture) is OnTorch
        assert PrecisionDebugger() is capture
        assert PrecisionDebugger.latest() is OnTorch.latest() is capture
        capture.close()

    def test_a_model_of_another_kind_is_refused(self, tmp_path: Path) -> None:
        capture = debugger(tmp_path)
        with pytest.raises(CaptureError, match=r"torch\.nn\.Module .*needed, not Dense"):
            capture.start(mindspore.nn.Dense(2, 2))
        capture.close()

    def test_lists_of_models(
        self, tmp_path: Path, net: Any, block: Any, run: Any, run_block: Any, x: Any, row: Any
    ) -> None:
        def both() -> None:
            run(x)
            run_block(row)

        dump = dump_of(tmp_path, [net, block], both, level="L0")
        assert "Module.0.conv.Conv2d.forward.0" in dump.data
        assert "Module.1.attention.q.Linear.forward.0" in dump.data

    def test_module_dump(self, tmp_path: Path, net: Any, run: Any, x: Any) -> None:
        with captured(tmp_path, net, level="L1"):
            module_dump(net.fc, "mine")
            gradients(run, x, net)
            module_dump_end()
            gradients(run, x, net)
        data = units(tmp_path)[0].data
        assert [key for key in data if "Module" in key] == [
            "Module.mine.Sequential.forward.0",
            "Module.mine.Sequential.backward.0",
        ]
        assert "Functional.linear.1.backward" in data
        assert "Functional.linear.2.forward" not in data

    def test_custom_functions(self, tmp_path: Path, torch: Any, row: Any) -> None:
        class User:
            """Functions of the program."""

            @staticmethod
            def double(value: Any) -> Any:
                return value + value

        before = vars(User)["double"]
        capture = debugger(tmp_path, level="L1")
        capture.register_custom_api(User, "double", "User")
        capture.start()
        mindspore.grad(lambda row: User.double(row).sum(), 0)(row)
        capture.stop()
        capture.step()
        capture.close()
        assert vars(User)["double"] is before
        data = units(tmp_path)[0].data
        assert data["User.double.0.backward"]["output"][0]["Max"] == 2.0
        assert "Tensor.__add__.0.forward" not in data

    def test_jit_functions(self, tmp_path: Path, torch: Any, row: Any) -> None:
        @mindspore.jit
        def doubled(value: Any) -> Any:
            return value * 2

        dump = dump_of(tmp_path, None, lambda: doubled(row), level="L1")
        assert list(dump.data) == ["Jit.doubled.0.forward"]
        _same(dump.tensor("Jit.doubled.0.forward.output.0.npy"), row.asnumpy() * 2)

    def test_communication(self, tmp_path: Path, torch: Any, row: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        """Results stand in the arguments, of an asynchronous call when somebody has waited."""

        class Work:
            def wait(self) -> None:
                row.assign_value(row + row)

        def all_reduce(tensor: Any, op: Any = None, group: Any = None, async_op: bool = False) -> Any:
            work = Work()
            return work if async_op else work.wait()

        monkeypatch.setattr(_behind(torch.distributed), "all_reduce", all_reduce)
        given = row.asnumpy().copy()
        with captured(tmp_path, level="L1"):
            torch.distributed.all_reduce(row)
            work = torch.distributed.all_reduce(row, async_op=True)
            torch.add(row, 1.0)
            work.wait()
            torch.distributed.all_reduce(row, async_op=True)
        dump = units(tmp_path)[0]
        values = [
            dump.tensor(f"Distributed.all_reduce.{n}.forward.{slot}.0.npy")
            for n in (0, 1)
            for slot in ("input", "output")
        ]
        for found, factor in zip(values, (1, 2, 2, 4), strict=True):
            _same(found, given * factor)
        assert "output" not in dump.data["Distributed.all_reduce.2.forward"]
        assert "not waited: Distributed.all_reduce.2.forward" in problems(dump)
        assert "wait" in vars(Work)

    def test_operations_hold_the_functions_themselves(
        self, tmp_path: Path, torch: Any, row: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        """``batch_isend_irecv`` compares by identity."""

        def isend(tensor: Any) -> None:
            """Send it."""

        class P2POp:
            """As torch's."""

            def __new__(cls, op: Any, tensor: Any) -> Any:
                assert op is isend
                return object.__new__(cls)

            def __init__(self, op: Any, tensor: Any) -> None:
                self.op, self.tensor, self.peer, self.tag = op, tensor, 1, 0

        before = dict(vars(P2POp))
        place = _behind(torch.distributed)
        monkeypatch.setattr(place, "isend", isend)
        monkeypatch.setattr(place, "P2POp", P2POp, raising=False)
        with captured(tmp_path, level="L1"):
            assert torch.distributed.P2POp(torch.distributed.isend, row).op is isend
            assert torch.distributed.P2POp(op=torch.distributed.isend, tensor=row).op is isend
            torch.distributed.isend(torch.distributed.P2POp(isend, row))
        assert dict(vars(P2POp)) == before
        data = units(tmp_path)[0].data
        assert list(data) == ["Distributed.isend.0.forward"]
        recorded = data["Distributed.isend.0.forward"]["input_args"][0]
        assert recorded["class_type"]["value"] == "torch.distributed.P2POp"
        assert recorded["op"]["value"] == "isend"
        assert recorded["tensor"]["data_name"] == "Distributed.isend.0.forward.input.0.tensor.npy"

    def test_functions_of_torch_npu(
        self, tmp_path: Path, torch: Any, row: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        import sys
        import types

        npu = types.ModuleType("torch_npu")
        npu.npu_scale = lambda value, factor: value * factor  # type: ignore[attr-defined]
        monkeypatch.setitem(sys.modules, "torch_npu", npu)
        dump = dump_of(
            tmp_path, None, lambda: mindspore.grad(lambda row: npu.npu_scale(row, 3.0).sum(), 0)(row), level="L1"
        )
        assert next(iter(dump.data)) == "NPU.npu_scale.0.forward"
        _same(dump.tensor("NPU.npu_scale.0.backward.output.0.npy"), np.full((3, 4), 3, np.float32))

    def test_saved_variables_and_their_gradients(self, tmp_path: Path, torch: Any, row: Any) -> None:
        capture = debugger(tmp_path, level="debug")

        def run(row: Any) -> Any:
            h = row * 2.0
            capture.save({"h": h, "n": 3}, "seen")
            return (h * h).sum()

        mindspore.grad(run, 0)(row)
        capture.step()
        capture.close()
        dump = units(tmp_path)[0]
        assert list(dump.data) == ["seen.0.debug", "seen_grad.0.debug"]
        _same(dump.tensor("seen_grad.0.debug.h.npy"), row.asnumpy() * 4)

    def test_values_of_torch(self, tmp_path: Path, torch: Any, row: Any) -> None:
        class User:
            """A function that takes anything."""

            @staticmethod
            def take(*values: Any) -> Any:
                return None

        capture = debugger(tmp_path, level="L1")
        capture.register_custom_api(User, "take", "User")
        capture.start()
        User.take(torch.device("cpu"), torch.device("cuda:1"), torch.bfloat16, row.shape, object)
        capture.stop()
        capture.step()
        capture.close()
        device, other, dtype, shape, _ = units(tmp_path)[0].data["User.take.0.forward"]["input_args"]
        assert device == {"type": "torch.device", "value": "cpu"}
        assert other == {"type": "torch.device", "value": "cuda:1"}
        assert dtype == {"type": "mindspore.dtype", "value": "BFloat16"}
        assert shape == [{"type": "int", "value": 3}, {"type": "int", "value": 4}]

    @pytest.mark.parametrize("task", ["statistics", "structure"])
    def test_tasks(self, tmp_path: Path, net: Any, run: Any, x: Any, task: str) -> None:
        dump = dump_of(tmp_path, net, lambda: gradients(run, x, net), level="mix", task=task)
        assert not dump.files
        assert "Module.fc.2.Linear.backward.0" in dump.tree
        node = dump.data.get("Module.conv.Conv2d.parameters_grad")
        assert node is None if task == "structure" else node["weight"][0]["Norm"] > 0

    def test_token_range(self, tmp_path: Path, net: Any, x: Any) -> None:
        capture = debugger(tmp_path, level="L0")
        capture.start(net, token_range=[1, 2])
        for _ in range(5):
            net(x)
        capture.stop()
        capture.step()
        capture.close()
        data = units(tmp_path)[0].data
        assert [key for key in data if key.startswith("Module.conv.Conv2d.forward")] == [
            f"Module.conv.Conv2d.forward.{number}" for number in range(2)
        ]

    def test_seed_all(self, torch: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        functional = _behind(torch.nn.functional)
        monkeypatch.setattr(functional, "dropout", functional.dropout)  # put back afterwards
        drawn = []
        for _ in range(2):
            seed_all(7, rm_dropout=False)
            drawn.append(torch.nn.Linear(4, 4).weight.asnumpy().copy())  # the CPU's randn of mindtorch takes no seed
        _same(*drawn)
        from capture.seeding import pass_through_dropouts

        pass_through_dropouts(functional)
        ones = torch.ones(100)
        _same(torch.nn.functional.dropout(ones, 0.5, training=True).asnumpy(), ones.asnumpy())


_OWNERS = ("conv.Conv2d", "fc.0.Linear", "fc.2.Linear")


def _same(found: Any, expected: Any) -> None:
    assert found.dtype == expected.dtype
    assert found.shape == expected.shape
    assert found.tobytes() == np.ascontiguousarray(expected).tobytes()


def _behind(place: Any) -> Any:
    """The module that a proxy stands for."""
    import sys

    target = getattr(getattr(getattr(place, "__spec__", None), "loader", None), "target_name", None)
    return sys.modules[target] if isinstance(target, str) else place


def _hooks(model: Any) -> list[tuple[int, ...]]:
    names = ("_forward_hooks", "_forward_pre_hooks", "_forward_hooks_with_kwargs", "_forward_hooks_always_called")
    return [tuple(len(getattr(module, name)) for name in names) for _, module in model.named_modules()]


def _spelled(node: Any) -> Any:
    """msprobe's node with the dtypes as it documents them."""
    if isinstance(node, dict):
        return {key: _spelled(value) for key, value in node.items()}
    if isinstance(node, list):
        return [_spelled(value) for value in node]
    return {"mindspore.float32": "Float32"}.get(node, node) if isinstance(node, str) else node


def _kind_of(key: str) -> str:
    """The row of the table that explains an entry that only one of the dumps has."""
    if ".backward" in key:
        return "backward"
    prefix, name = key.split(".")[:2]
    return "Functional, Torch" if prefix in ("Functional", "Torch") else f"{prefix}.{name}"


def _differences(key: str, ours: Any, theirs: Any) -> set[str]:
    """The rows that explain how an entry differs."""
    if key.endswith("parameters_grad"):
        assert list(ours) == list(theirs)
        assert set(map(str, theirs.values())) == {"[None]"}
        assert all(len(node) == 1 and node[0]["dtype"] == "Float32" for node in ours.values())
        return {"parameters_grad"}
    assert _shape_of(ours) == _shape_of(_spelled(theirs)), key
    return {"dtype"} if _shape_of(ours) != _shape_of(theirs) else set()


def _shape_of(node: Any) -> Any:
    """A node without numbers that depend on the weights."""
    if isinstance(node, dict):
        return {key: None if key in ("Max", "Min", "Mean", "Norm") else _shape_of(value) for key, value in node.items()}
    return [_shape_of(value) for value in node] if isinstance(node, list) else node
