"""The drop-in API: names, class methods, callbacks of ``Model``, custom functions, seeds."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from mindspore import mint, nn, ops
from mindspore.dataset import GeneratorDataset
from mindspore.train import Model

import capture.mindspore as drop_in
from capture.errors import CaptureError
from capture.mindspore import MsprobeInitStep, MsprobeStep, PrecisionDebugger, seed_all
from tests.capture.mindspore.dumping import debugger, units
from tests.capture.mindspore.networks import bits, rows


def test_the_names_of_msprobe_are_there() -> None:
    wanted = {"PrecisionDebugger", "MsprobeStep", "MsprobeInitStep", "seed_all", "save", "save_grad", "step"}
    assert wanted <= set(drop_in.__all__)
    assert all(callable(getattr(drop_in, name)) for name in wanted)
    methods = "start stop step save set_init_step forward_backward_dump_end register_custom_api restore_custom_api"
    assert set(methods.split()) <= set(dir(PrecisionDebugger))
    with pytest.raises(AttributeError, match="no attribute 'nothing'"):
        drop_in.nothing  # noqa: B018


def test_class_methods_mean_the_debugger_made_last(tmp_path: Path) -> None:
    net = nn.SequentialCell(nn.Dense(3, 3))
    capture = debugger(tmp_path, task="statistics")
    assert PrecisionDebugger() is capture
    PrecisionDebugger.set_init_step(5)
    PrecisionDebugger.start(net)
    net(rows())
    PrecisionDebugger.forward_backward_dump_end()
    PrecisionDebugger.step()
    capture.close()
    assert [unit.unit.parent.name for unit in units(tmp_path)] == ["step5"]


def test_arguments_of_the_constructor_win(tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text(json.dumps({"task": "statistics", "dump_path": "x", "level": "L1"}))
    capture = PrecisionDebugger(
        config_path=tmp_path / "config.json", task="tensor", dump_path=tmp_path / "y", level="L0", step=[0]
    )
    assert (capture.config.task, capture.config.level, capture.config.framework) == ("tensor", "L0", "mindspore")
    assert capture.config.dump_path == str(tmp_path / "y")


def test_custom_functions(tmp_path: Path) -> None:
    module = types.ModuleType("arithmetic")
    module.triple = original = lambda x, *, by=3: x * by  # type: ignore[attr-defined]
    capture = debugger(tmp_path, level="L1")
    capture.register_custom_api(module, "triple", "User")
    with pytest.raises(CaptureError, match="no function 'absent'"):
        capture.register_custom_api(module, "absent")
    assert module.triple is original
    capture.start()
    module.triple(rows(), by=2)
    capture.stop()
    assert module.triple is original
    capture.restore_custom_api(module, "triple")
    capture.start()
    module.triple(rows())
    capture.stop()
    capture.step()
    capture.close()
    entry = units(tmp_path)[0].data["User.triple.0.forward"]
    assert entry["input_kwargs"]["by"] == {"type": "int", "value": 2}
    assert "User.triple.1.forward" not in units(tmp_path)[0].data


# --- callbacks ------------------------------------------------------------------------------------------------------


def samples() -> Iterator[tuple[Any, Any]]:
    for number in range(3):
        yield np.full((3,), number, np.float32), np.array(number % 2, np.int32)


def trainer(net: nn.Cell) -> Model:
    optimizer = nn.SGD(net.trainable_params(), learning_rate=0.1)
    return Model(net, loss_fn=nn.CrossEntropyLoss(), optimizer=optimizer)


def dataset() -> Any:
    return GeneratorDataset(list(samples()), ["data", "label"], shuffle=False, num_parallel_workers=1).batch(1)


def test_a_training_by_model_has_a_unit_a_step(tmp_path: Path) -> None:
    net = nn.SequentialCell(nn.Dense(3, 2))
    capture = debugger(tmp_path)
    capture.start(net)
    trainer(net).train(1, dataset(), callbacks=[MsprobeStep(capture)], dataset_sink_mode=False)
    capture.close()
    found = units(tmp_path)
    assert [unit.unit.parent.name for unit in found] == ["step0", "step1", "step2"]
    for number, unit in enumerate(found):
        name = "Cell.0.Dense.forward.0"
        assert unit.of(unit.data[name]["input_args"][0]).tolist() == [[float(number)] * 3]
        assert unit.data["Cell.0.Dense.parameters_grad"]["weight"][0]["shape"] == [2, 3]


def test_a_resumed_training_goes_on_counting(tmp_path: Path) -> None:
    net = nn.SequentialCell(nn.Dense(3, 2))
    capture = debugger(tmp_path, task="statistics")
    capture.model = net
    callback = MsprobeInitStep()
    context = types.SimpleNamespace(original_args=lambda: types.SimpleNamespace(cur_step_num=7))
    callback.on_train_begin(context)
    MsprobeStep(capture).on_train_step_begin(context)
    net(rows())
    MsprobeStep(capture).on_train_step_end(context)
    capture.close()
    assert [unit.unit.parent.name for unit in units(tmp_path)] == ["step7"]


# --- seeds ----------------------------------------------------------------------------------------------------------


def test_seeds_make_runs_equal() -> None:
    def draw() -> tuple[Any, ...]:
        seed_all(7, rm_dropout=False)
        return random.random(), float(np.random.rand()), bits(nn.Dense(3, 3).weight), bits(ops.standard_normal((4,)))

    assert draw() == draw()
    assert os.environ["HCCL_DETERMINISTIC"] == "false"


@pytest.mark.parametrize(
    "arguments", [{"seed": -1}, {"seed": 2**32}, {"seed": True}, {"seed": "1"}, {"mode": 1}, {"rm_dropout": None}]
)
def test_wrong_arguments_are_named(arguments: dict[str, Any]) -> None:
    with pytest.raises(CaptureError, match=next(iter(arguments))):
        seed_all(**arguments)


DROPOUT = """
import mindspore as ms, numpy as np
from mindspore import Tensor, mint, nn, ops
from capture.mindspore import seed_all
try:
    mint.add(Tensor([1.0]), 1)
except SystemError:
    pass
x = Tensor(np.arange(1, 17, dtype=np.float32).reshape(1, 1, 4, 4))
before = nn.Dropout(p=0.5).set_train()
seed_all(1)
seed_all(2)
cells = [before] + [make().set_train() for make in (
    lambda: nn.Dropout(p=0.5), lambda: nn.Dropout(keep_prob=0.5), lambda: nn.Dropout2d(0.5),
    lambda: mint.nn.Dropout(0.5), lambda: mint.nn.Dropout2d(0.5))]
results = [cell(x) for cell in cells]
results += [ops.dropout(x, p=0.5), ops.dropout2d(x, 0.5), mint.nn.functional.dropout(x, p=0.5, training=True)]
results += [ops.Dropout(keep_prob=0.5)(x)[0], ops.Dropout2D(0.5)(x)[0]]
results += [nn.Dropout3d(0.5).set_train()(x.reshape(1, 1, 1, 4, 4)), nn.Dropout1d(0.5).set_train()(x.reshape(1, 4, 4))]
assert type(ops.Dropout()).__name__ == "Dropout"
for number, result in enumerate(results):
    assert (result.asnumpy().ravel() == x.asnumpy().ravel()).all(), number
ms.set_context(mode=ms.GRAPH_MODE)
net = nn.SequentialCell(nn.Dropout(p=0.5)).set_train()
assert (net(x).asnumpy() == x.asnumpy()).all()
"""


def test_dropout_passes_everything_through(tmp_path: Path) -> None:
    """In a process of its own: it stays so until the process ends."""
    script = tmp_path / "script.py"
    script.write_text(DROPOUT)
    environment = os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])}
    done = subprocess.run(
        [sys.executable, str(script)], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert mint.nn.functional.dropout.__module__ != "capture.mindspore.seed"
