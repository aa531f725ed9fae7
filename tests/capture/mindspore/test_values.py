"""Values of every kind through a recorded function, against what msprobe 8.1.0 recorded of the same values."""

from __future__ import annotations

import dataclasses
import enum
import types
from collections import namedtuple
from collections.abc import Callable
from pathlib import Path
from typing import Any

import mindspore
import numpy as np
import pytest
from mindspore import COOTensor, Parameter, Tensor, nn, ops

from tests.capture.mindspore.dumping import Dump, debugger, problems, units

Golden = Callable[[str], Path]
STATISTICS = ("Max", "Min", "Mean", "Norm")
Pair = namedtuple("Pair", "p q")


@dataclasses.dataclass
class Record:
    a: int
    t: Any


class Color(enum.Enum):
    RED = 1


def _matrix() -> Tensor:
    return Tensor(np.arange(4, dtype=np.float32).reshape(2, 2))


def _values() -> dict[str, Any]:
    t = _matrix()
    return {
        "none": None, "int_": 3, "bigint": 2**70, "float_": 2.5, "nan": float("nan"), "inf": float("inf"),
        "bool_": True, "str_": "s", "uni": "中", "bytes_": b"x", "cplx": 1 + 2j, "ellipsis": ...,
        "sl": slice(1, None, 2), "slt": slice(Tensor(1), Tensor(3)), "slf": slice(1.5, None), "rng": range(3),
        "tup": (1, (2, t)), "lst": [t, None], "dct": {"k": t, 3: 4, None: 5}, "empty_l": [], "empty_d": {}, "st": {1},
        "npf32": np.float32(1.5), "npf64": np.float64(1.5), "npi": np.int64(7), "npb": np.bool_(True),
        "npstr": np.str_("q"), "npu8": np.uint8(3), "nda": np.arange(3.0), "ndi": np.arange(3),
        "ndb": np.array([True, False]), "nde": np.zeros((0, 2)), "nds": np.array(["a"]), "nd0": np.array(2.0),
        "msdt": mindspore.float16, "msint": mindspore.int64, "msbool": mindspore.bool_, "msbf": mindspore.bfloat16,
        "nt": Pair(1, t), "dc": Record(2, t), "obj": object(), "fn": _matrix, "cls": Record, "en": Color.RED,
        "cell": nn.ReLU(), "t_bool": Tensor([True, False]), "t_scalar": Tensor(3),
        "t_empty": Tensor(np.zeros((0, 3), np.float32)), "t_i64": Tensor([1, 2]),
        "t_c64": Tensor(np.array([1 + 2j], np.complex64)), "t_f64": Tensor(np.array([1.0, 2.0])),
        "t_f16": Tensor(np.array([1, 2], np.float16)), "t_bf": t.astype(mindspore.bfloat16),
        "t_bf0": Tensor(1.5).astype(mindspore.bfloat16), "t_u64": Tensor(np.array([1], np.uint64)),
        "par": Parameter(t, name="par"), "t_nan": Tensor(np.array([np.nan, 1], np.float32)),
        "t_inf": Tensor(np.array([np.inf, -np.inf], np.float32)), "t_boolscalar": Tensor(True), "shape": t.shape,
        "dev": "CPU", "prim": ops.ReLU(),
    }  # fmt: skip


# msprobe loses these; they are recorded here.
KEPT = {"bigint": "as text, because JSON readers hold no such number"}


def record(path: Path, calls: list[tuple[Any, dict[str, Any]]]) -> Dump:
    module = types.SimpleNamespace(ident=lambda value, **_: value)
    capture = debugger(path, level="L1")
    capture.register_custom_api(module, "ident", "User")
    capture.start()
    for value, named in calls:
        module.ident(value, **named)
    capture.stop()
    capture.step()
    capture.close()
    return units(path)[0]


def _theirs(golden: Golden) -> dict[str, Any]:
    peer = Dump(golden("mindspore_8.1.0_L1_values") / "step0" / "rank").data
    marked = [entry for entry in peer.values() if "name_marker" in entry["input_kwargs"]]
    return {entry["input_kwargs"]["name_marker"]["value"]: entry for entry in marked}


def _close(ours: Any, theirs: Any, where: str) -> None:
    """Equal; statistics to the rounding of float32, or of the 16-bit types that msprobe reduces in themselves."""
    if isinstance(theirs, dict):
        assert list(ours) == list(theirs), where
        for key, value in theirs.items():
            if key in STATISTICS and isinstance(value, float):
                rounding = {"BFloat16": 2.0**-8, "Float16": 2.0**-11}.get(theirs.get("dtype", ""), 1e-6)
                np.testing.assert_allclose(ours[key], value, rtol=rounding, err_msg=where)
            elif key == "data_name":
                assert ours[key].rsplit(".forward.", 1)[1] == value.rsplit(".forward.", 1)[1]
            else:
                _close(ours[key], value, f"{where}/{key}")
    elif isinstance(theirs, list):
        assert len(ours) == len(theirs), where
        for index, value in enumerate(theirs):
            _close(ours[index], value, f"{where}/{index}")
    else:
        assert type(ours) is type(theirs), where
        np.testing.assert_equal(ours, theirs)


def test_values_are_recorded_as_msprobe_does(golden: Golden, tmp_path: Path) -> None:
    values, theirs = _values(), _theirs(golden)
    assert theirs.keys() - values.keys() == {"coo", "t_i4"}  # below
    for node in (theirs["npb"]["input_args"][0], theirs["npb"]["output"][0]):
        node["type"] = type(np.bool_(True)).__name__  # as numpy calls it: bool_ before numpy 2
    ours = record(tmp_path, [(value, {"name_marker": name}) for name, value in values.items()])
    for name, entry in zip(values, ours.data.values(), strict=True):
        if name not in KEPT:
            _close(entry, theirs[name], name)
    assert problems(ours) == ""


def test_what_msprobe_loses(tmp_path: Path) -> None:
    sparse = COOTensor(Tensor([[0, 1]]), Tensor([2.0]), (2, 2))
    packed = Tensor(np.array([1, 2]), mindspore.qint4x2)
    calls = [sparse, packed, 2**70, {("a", 1): _matrix()}, np.complex64(1 + 2j), [{(1,): 1}]]
    ours = record(tmp_path, [(value, {}) for value in calls])
    sparse_node, packed_node, big, keyed, number, nested = (entry["input_args"][0] for entry in ours.data.values())
    assert sparse_node["values"]["Max"] == 2.0
    assert ours.of(sparse_node["indices"]).tolist() == [[0, 1]]
    assert (packed_node["dtype"], packed_node["shape"]) == ("Int4", [2])
    assert big == {"type": "int", "value": str(2**70)}
    assert keyed["('a', 1)"]["Max"] == 3.0
    assert number == {"type": "complex64", "value": str(np.complex64(1 + 2j).item())}
    assert nested == [{"(1,)": {"type": "int", "value": 1}}]


@pytest.mark.parametrize(
    ("value", "node"),
    [
        ("float16", {"type": "mindspore.dtype", "value": "float16"}),
        (mindspore.float32, {"type": "mindspore.dtype", "value": "Float32"}),
        (5, {"type": "mindspore.dtype", "value": "5"}),
        (None, None),
        (np.float32, {"type": "mindspore.dtype", "value": "<class 'numpy.float32'>"}),
    ],
    ids=["text", "dtype", "number", "none", "class"],
)
def test_values_under_the_key_dtype(value: Any, node: Any, tmp_path: Path) -> None:
    ours = record(tmp_path, [(1, {"dtype": value, "opts": {"dtype": value}})]).data["User.ident.0.forward"]
    assert ours["input_kwargs"] == {"dtype": node, "opts": {"dtype": node}}


def test_a_tensor_under_the_key_dtype_keeps_its_values(tmp_path: Path) -> None:
    """msprobe writes its text."""
    ours = record(tmp_path, [(1, {"dtype": _matrix()})])
    node = ours.data["User.ident.0.forward"]["input_kwargs"]["dtype"]
    assert ours.of(node).tolist() == [[0, 1], [2, 3]]
