"""Dumps of the same networks by msprobe 8.1.0, and ours: keys, order, tree, names of files, statistics, bits."""

from __future__ import annotations

import os
import subprocess
import sys
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.capture.mindspore.dumping import Dump, captured, debugger, units
from tests.capture.mindspore.networks import Saving, Training, rows

Golden = Callable[[str], Path]
BF16 = 2.0**-8

# Where we differ from msprobe 8.1.0 on purpose, or MindSpore from the build it ran on (2.6.0.dev20250323).
DIFFERENCES = {
    "cross_entropy": "2.6 ran nn.CrossEntropyLoss as two dozen calls, from 2.7 on it is Functional.cross_entropy",
    "concat": "its backward stands where it ran; msprobe heard of it last, without the gradients of the list it took",
    "Jit.fwd.0.backward": "msprobe takes value_and_grad for jit once anything was jitted, its arguments for gradients",
    "order of a primitive": "msprobe lists gradients as they arrive and leaves out what has none; here they stand in"
    " the order of the inputs, null where there is none",
    "zeros": "msprobe hears zeros for an input that needs no gradient (Tensor.__add__ of a constant); here it is null",
    "object": "an argument that is an object (self of a jit cell) is recorded with its type, not as null",
    "Jit.SGD.0.forward": "a jit function is in the tree of task structure too",
    "None": "a variable that is None is recorded as null; msprobe refuses it and leaves no entry",
    "bfloat16": "statistics are taken in float32; msprobe rounds them to bfloat16",
}


def train(path: Path, **config: Any) -> list[Dump]:
    training = Training()
    capture = debugger(path, **config)
    for _ in range(2):
        capture.start(training.net)
        training.step()
        capture.stop()
        capture.step()
    capture.close()
    return units(path)


def golden_units(golden: Golden, name: str) -> list[Dump]:
    return [Dump(golden(name) / f"step{number}" / "rank") for number in range(2)]


def compare(ours: Any, theirs: Any, where: str) -> None:
    """Equal but for rounding of float32, which other builds of a kernel do elsewhere."""
    if isinstance(theirs, dict):
        assert list(ours) == list(theirs), where
        is_half = theirs.get("dtype") == "BFloat16"
        for key, value in theirs.items():
            tolerance = BF16 if is_half and key in ("Max", "Min", "Mean", "Norm") else 0.0
            compare_scalar(ours[key], value, f"{where}/{key}", tolerance) if tolerance else compare(
                ours[key], value, f"{where}/{key}"
            )
    elif isinstance(theirs, list):
        assert len(ours) == len(theirs), where
        for index, value in enumerate(theirs):
            compare(ours[index], value, f"{where}/{index}")
    else:
        compare_scalar(ours, theirs, where, 2e-5)


def compare_scalar(ours: Any, theirs: Any, where: str, tolerance: float) -> None:
    if isinstance(theirs, float):
        assert isinstance(ours, float), where
        assert np.isclose(ours, theirs, rtol=tolerance, atol=1e-7), f"{where}: {ours} {theirs}"
    else:
        assert (type(ours), ours) == (type(theirs), theirs), where


def compare_tensors(ours: Dump, theirs: Dump, names: set[str]) -> set[str]:
    """Check values; names of those whose bits are equal."""
    equal = set()
    for name in sorted(names):
        mine, other = ours.tensor(name), theirs.tensor(name)
        assert (mine.dtype, mine.shape) == (other.dtype, other.shape), name
        np.testing.assert_allclose(mine, other, rtol=2e-5, atol=2e-6, err_msg=name)
        if mine.tobytes() == other.tobytes():
            equal.add(name)
    return equal


def test_cells(golden: Golden, tmp_path: Path) -> None:
    theirs = golden_units(golden, "mindspore_8.1.0_L0_tensor")
    for number, (mine, peer) in enumerate(zip(train(tmp_path), theirs, strict=True)):
        assert [list(mine.document), mine.document["framework"]] == [list(peer.document), "mindspore"]
        assert list(mine.data) == list(peer.data)
        compare(mine.data, peer.data, f"step{number}")
        assert list(mine.tree.items()) == list(peer.tree.items())
        assert _stacked(mine) == _stacked(peer)
        assert mine.files == peer.files
        equal = compare_tensors(mine, peer, peer.files)
        if number == 0:  # what no kernel computed
            assert equal >= {name for name in peer.files if ".parameters." in name} - {
                name for name in peer.files if "parameters_grad" in name
            }
            assert "Cell.conv.Conv2d.forward.0.input.0.npy" in equal
            assert "Cell.scale.Scale.forward.0.kwargs.bias.npy" in equal


def _keys_without_loss(keys: list[str], *, is_peer: bool) -> list[str]:
    """``DIFFERENCES``: the calls of the loss, the backward of concat, the jit that is none."""
    last_of_net = keys.index("Primitive.softmax_prim.Softmax.0.forward")
    first_of_backward = keys.index("Primitive.softmax_prim.Softmax.0.backward")
    loss = keys[last_of_net + 1 : first_of_backward]
    assert is_peer or loss == ["Functional.cross_entropy.0.forward", "Functional.cross_entropy.0.backward"]
    left_out = {*loss, "Functional.concat.0.backward", "Jit.fwd.0.backward"}
    return [key for key in keys if key not in left_out]


def _pick(entry: dict[str, Any]) -> dict[str, Any]:
    """``DIFFERENCES``: gradients of a primitive's inputs in no order, without what has none."""
    gradients = [node for node in entry["output"] if node is not None]
    plain = [{key: value for key, value in node.items() if key != "data_name"} for node in gradients]
    return {"input": entry["input"], "output": sorted(plain, key=lambda node: str(node["shape"]))}


def test_cells_and_functions(golden: Golden, tmp_path: Path) -> None:
    theirs = golden_units(golden, "mindspore_8.1.0_mix_tensor")
    for number, (mine, peer) in enumerate(zip(train(tmp_path, level="mix"), theirs, strict=True)):
        assert number == 1 or "Jit.fwd.0.backward" not in peer.data
        keys = _keys_without_loss(list(peer.data), is_peer=True)
        assert _keys_without_loss(list(mine.data), is_peer=False) == keys
        for key in keys:
            _compare_entry(key, mine.data[key], peer.data[key])
        assert {key: mine.tree[key] for key in keys if "parameters_grad" not in key} == {
            key: peer.tree[key] for key in keys if "parameters_grad" not in key
        }
        same = {name for name in peer.files & mine.files if not name.startswith("Primitive") or ".forward." in name}
        equal = compare_tensors(mine, peer, {name for name in same if not name.startswith(_LOSS)})
        assert number == 1 or "Primitive.matmul.MatMul.0.forward.input.1.npy" in equal


_LOSS = ("Tensor.__add__.5", "Tensor.__add__.6", "Functional.concat.0.backward", "Tensor.__sub__", "Tensor.sum")


def _compare_entry(key: str, ours: Any, theirs: Any) -> None:
    if key.startswith("Primitive.") and key.endswith(".backward"):
        ours, theirs = _pick(ours), _pick(theirs)
    if key == "Tensor.__add__.0.backward":
        assert (ours["output"][1], theirs["output"][1]["Max"]) == (None, 0.0)
        ours, theirs = ({**one, "output": one["output"][:1]} for one in (ours, theirs))
    if key == "Jit.SGD.0.forward":
        assert theirs["input_args"][0] is None
        ours = {**ours, "input_args": [None, *ours["input_args"][1:]]}
    compare(ours, theirs, key)


def test_checksums(golden: Golden, tmp_path: Path) -> None:
    """Those of what no kernel computed are equal; all are the CRC-32 of the bits that a tensor run keeps."""
    peer = golden_units(golden, "mindspore_8.1.0_mix_md5")[0]
    mine = train(tmp_path / "md5", level="mix", task="statistics", settings={"summary_mode": "md5"})[0]
    bits = train(tmp_path / "bits", level="mix")[0]
    assert list(mine.data) == list(bits.data)
    for key in ("Cell.conv.Conv2d.forward.0", "Cell.scale.Scale.forward.0"):
        ours, theirs = mine.data[key], peer.data[key]
        assert [node["md5"] for node in ours["parameters"].values()] == [
            node["md5"] for node in theirs["parameters"].values()
        ]
        assert list(ours["output"][0]) == list(theirs["output"][0])
    checked = 0
    for node, stored in zip(_tensors(mine.data), _tensors(bits.data), strict=True):
        assert node["md5"] == f"{zlib.crc32(bits.of(stored).tobytes()):08x}"
        checked += 1
    assert checked > 150


def _stacked(dump: Dump) -> list[str]:
    return sorted(name for names, _ in dump.stacks for name in names)


def _tensors(value: Any) -> list[dict[str, Any]]:
    if isinstance(value, dict):
        if "shape" in value:
            return [value]
        value = list(value.values())
    return [node for part in value for node in _tensors(part)] if isinstance(value, list) else []


def test_structure(golden: Golden, tmp_path: Path) -> None:
    peer = golden_units(golden, "mindspore_8.1.0_mix_structure")[0]
    mine = train(tmp_path, level="mix", task="structure")[0]
    assert mine.document | {"dump_data_dir": None} == peer.document
    keys = _keys_without_loss(list(peer.tree), is_peer=True)
    assert sorted(_keys_without_loss(list(mine.tree), is_peer=False)) == sorted([*keys, "Jit.SGD.0.forward"])
    assert {key: mine.tree[key] for key in keys} == {key: peer.tree[key] for key in keys}
    assert set(_stacked(peer)) & set(keys) <= set(_stacked(mine))


def test_saved_variables(golden: Golden, tmp_path: Path) -> None:
    import mindspore as ms

    capture = debugger(tmp_path, level="debug")
    net = Saving(capture.save)
    gradient = ms.value_and_grad(net, 0, net.trainable_params())
    for _ in range(2):
        capture.start()
        gradient(ms.Tensor(np.arange(6, dtype=np.float32).reshape(2, 3)))
        capture.stop()
        capture.step()
    capture.close()
    for mine, peer in zip(units(tmp_path), golden_units(golden, "mindspore_8.1.0_debug_tensor"), strict=True):
        extra = {"none.0.debug": mine.data.pop("none.0.debug"), "none_grad.0.debug": mine.data.pop("none_grad.0.debug")}
        assert extra == {"none.0.debug": None, "none_grad.0.debug": None}
        assert list(mine.data) == list(peer.data)
        compare(mine.data, peer.data, "debug")
        assert mine.files == peer.files
        assert {"x.0.debug.npy", "nest.0.debug.b.0.npy", "bool.0.debug.npy"} <= compare_tensors(mine, peer, peer.files)


@pytest.mark.parametrize("level", ["L0", "L1", "mix"])
def test_no_recomputation_and_no_requirement_is_written(level: str, tmp_path: Path) -> None:
    training = Training()
    with captured(tmp_path, training.net, level=level, task="statistics"):
        training.step()
    text = (units(tmp_path)[0].unit / "dump.json").read_text()
    assert "is_recompute" not in text
    assert "requires_grad" not in text
    assert rows().shape == (2, 3)


SCRIPT = """
import sys
from pathlib import Path
from tests.capture.mindspore.test_golden import train
print(list(train(Path(sys.argv[1]), task="statistics")[0].data))
"""


def test_the_first_operation_of_a_program_is_captured(golden: Golden, tmp_path: Path) -> None:
    """In a process that nobody has warmed up: with numpy 2, MindSpore's first operation with a number fails."""
    script = tmp_path / "script.py"
    script.write_text(SCRIPT)
    done = subprocess.run(
        [sys.executable, str(script), str(tmp_path / "out")], cwd=tmp_path, capture_output=True, text=True, check=False,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[3])},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    keys = list(golden_units(golden, "mindspore_8.1.0_L0_tensor")[0].data)
    assert done.stdout.strip().splitlines()[-1] == repr(keys)
