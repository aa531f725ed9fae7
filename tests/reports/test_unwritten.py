"""R020: what lay in memory before anything was written into it is nobody's fault, given by position or by name."""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import msformat
from msformat.unwritten import is_unwritten
from tests.judges import judge
from tests.reports.cases import call, plain_record, run, write_documents

torch = judge("torch")

NAN = float("nan")


def one(value: float) -> dict[str, Any]:
    """A tensor of one value."""
    return plain_record((1,), Max=value, Min=value, Mean=value, Norm=abs(value))


def keywords(output: float, **inputs: Any) -> dict[str, Any]:
    return {"input_args": [], "input_kwargs": inputs, "output": [one(output)]}


def receiving(garbage: float, result: float) -> dict[str, Any]:
    """A step that takes unwritten memory in each way there is, and computes something with what came."""
    lay = one(garbage)
    return {
        "Torch.empty.0.forward": call(output=[lay]),
        "Tensor.normal_.0.forward": call(lay, output=[one(0.5)]),
        "Distributed.recv.0.forward": call(lay, output=[one(1)]),
        "Distributed.recv.1.forward": keywords(1, tensor=lay),
        "Distributed.all_gather.0.forward": call([lay, lay], one(1), output=[[one(1), one(2)], one(1)]),
        "Distributed.all_gather.1.forward": keywords(1, tensor_list=[lay, lay], tensor=one(1)),
        "Torch.add.0.forward": {**call(one(1), one(2), output=[one(3)]), "input_kwargs": {"out": lay}},
        "Torch.mul.0.forward": call(one(3), output=[one(result)]),
    }


def first_trouble(root: Path) -> Any:
    """What the page says at its top."""
    done = run("report", root, "-o", root.with_suffix(".html"), "--json")
    assert done.code == 0, done.err
    (unit,) = json.loads(done.out)["units"]
    return unit["first"], unit["health"]["nan"]


@pytest.mark.parametrize(("garbage", "result", "place"), [(NAN, 9, None), (NAN, NAN, "Torch.mul.0.forward")])
def test_r020_what_lay_in_a_buffer_is_never_the_first_nan(
    tmp_path: Path, garbage: float, result: float, place: str | None
) -> None:
    write_documents(tmp_path / "d/step0/rank0", receiving(garbage, result), task="statistics")
    first, count = first_trouble(tmp_path / "d")
    assert (first and first["key"], count) == (place, int(place is not None))


def test_r020_what_really_came_is_looked_at(tmp_path: Path) -> None:
    """The tensor that is sent, and what was received, are values like any other."""
    data = receiving(0, 9)
    data["Distributed.all_gather.1.forward"]["input_kwargs"]["tensor"] = one(NAN)
    write_documents(tmp_path / "d/step0/rank0", data, task="statistics")
    assert first_trouble(tmp_path / "d")[0]["path"] == "tensor"
    data["Distributed.recv.1.forward"]["output"] = [one(NAN)]
    write_documents(tmp_path / "d/step0/rank0", data, task="statistics")
    assert first_trouble(tmp_path / "d")[0]["key"] == "Distributed.recv.1.forward"


def test_r020_two_runs_never_part_in_memory_that_was_not_written(tmp_path: Path) -> None:
    for name, garbage, result in (("a", NAN, 9), ("b", 7, 9), ("c", 7, 8)):
        write_documents(tmp_path / name / "step0/rank0", receiving(garbage, result), task="statistics")
    assert run("diff", tmp_path / "a", tmp_path / "b", "--quiet").code == 0
    unit = msformat.diff(tmp_path / "a", tmp_path / "b").units[0]
    skipped = [tensor for tensor in unit.tensors if tensor.verdict == "unknown"]
    assert len(skipped) == 9
    assert {tensor.reasons[0][:11] for tensor in skipped} == {"memory that"}
    assert "Torch.mul.0.forward" in run("diff", tmp_path / "a", tmp_path / "c").out.splitlines()[1]
    # Who asks for every bit, or for the verdict of msprobe, has it.
    for option in (("--exact",), ("--rules", "msprobe")):
        assert run("diff", tmp_path / "a", tmp_path / "b", "--quiet", *option).code == 1


def test_r020_values_that_were_saved(tmp_path: Path) -> None:
    for name, value in (("a", 1.0), ("b", 2.0)):
        unit = tmp_path / name / "step0/rank0"
        (unit / "dump_tensor_data").mkdir(parents=True)
        data = {}
        for key in ("Torch.empty.0.forward", "Torch.zeros.0.forward"):
            np.save(unit / f"dump_tensor_data/{key}.output.0.npy", np.full(1, value, np.float32))
            data[key] = call(output=[plain_record((1,), data_name=f"{key}.output.0.npy")])
        write_documents(unit, data)
    found = msformat.diff(tmp_path / "a", tmp_path / "b").units[0]
    assert [tensor.verdict for tensor in found.tensors] == ["unknown", "different"]


@pytest.mark.parametrize(
    "name",
    ["recv", "irecv", "all_gather", "all_gather_into_tensor", "reduce_scatter", "reduce_scatter_tensor", "all_to_all",
     "all_to_all_single", "gather", "scatter"],
)  # fmt: skip
def test_r020_buffers_are_where_torch_has_them(name: str) -> None:
    """The judge: the signature of the function. Each has one buffer; what is given beside it is no buffer."""
    parameters = [one for one in inspect.signature(getattr(torch.distributed, name)).parameters if one != "group"]
    entry = f"Distributed.{name}.0.forward"
    places = [at for at, _ in enumerate(parameters) if is_unwritten(entry, "input_args", f"{at}.1", "pytorch")]
    names = [given for given in parameters if is_unwritten(entry, "input_kwargs", given, "pytorch")]
    assert [parameters[at] for at in places] == names
    assert len(names) == 1
    assert not is_unwritten(entry, "output", "0", "pytorch")
    # MindSpore's own functions return what they receive: what they are given is a value.
    assert is_unwritten(entry, "input_args", "0", "mindspore") == (name in ("recv", "irecv"))
