"""The walk over values, on a framework that is none: what becomes of each kind of value, and what is never touched."""

from __future__ import annotations

import collections
import dataclasses
import enum
import json
import math
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np
import pytest

from capture.framework import Captured, Wanted
from capture.record import EntryRecord, Recorder
from msformat.check import check_entry
from tests.capture.fake_framework import FakeDType, FakeFramework, FakeTensor

STATISTICS = Wanted(statistics=True, data=False, md5=False)
TENSORS = Wanted(statistics=True, data=True, md5=False)


class Walked:
    """What one walk gave."""

    def __init__(self, value: Any, wanted: Wanted = TENSORS, **options: Any) -> None:
        self.problems: list[tuple[str, str, str]] = []
        self.framework = options.pop("framework", FakeFramework())
        recorder = Recorder(self.framework, on_problem=lambda *what: self.problems.append(what), **options)
        self.entry = EntryRecord("Tensor.add.0.forward")
        self.node = recorder.values(value, "Tensor.add.0.forward.input", self.entry, wanted)
        text = json.dumps(self.node)  # whatever it is, it is JSON that UTF-8 can hold, and what the schema allows
        text.encode("utf-8")
        check_entry("Tensor.add.0.forward", {"input_args": self.node}, "test")

    @property
    def names(self) -> list[str]:
        return [name.removeprefix("Tensor.add.0.forward.input.") for name, _, _ in self.entry.tensors]


def tensor(*values: float) -> FakeTensor:
    return FakeTensor(np.array(values, dtype=np.float32))


class Colour(enum.IntEnum):
    RED = 3


class Level(str, enum.Enum):
    LOW = "low"


class Split(NamedTuple):
    left: Any
    right: Any


@dataclasses.dataclass
class Output:
    loss: Any
    hidden: Any = None
    kind: dataclasses.InitVar[int] = 3


@pytest.mark.parametrize(
    ("value", "node"),
    [
        (None, None),
        (True, {"type": "bool", "value": True}),
        (3, {"type": "int", "value": 3}),
        (1.5, {"type": "float", "value": 1.5}),
        ("mean", {"type": "str", "value": "mean"}),
        (..., {"type": "ellipsis", "value": "..."}),
        (slice(None, 8), {"type": "slice", "value": [None, 8, None]}),
        (slice(np.int64(1), "a", 2.5), {"type": "slice", "value": [1, None, 2.5]}),
        (1 + 2j, {"type": "complex", "value": "(1+2j)"}),
        (2**64 - 1, {"type": "int", "value": 2**64 - 1}),
        (2**64, {"type": "int", "value": str(2**64)}),
        (-(2**63) - 1, {"type": "int", "value": str(-(2**63) - 1)}),
        (10**5000, {"type": "int", "value": hex(10**5000)}),
        (Colour.RED, {"type": "Colour", "value": 3}),
        (Level.LOW, {"type": "Level", "value": "low"}),
        ("a\ud800b", {"type": "str", "value": "a\\ud800b"}),
        (np.float32(1.5), {"type": "float32", "value": 1.5}),
        (np.float64(0.25), {"type": "float64", "value": 0.25}),
        (np.int64(7), {"type": "int64", "value": 7}),
        (np.bool_(True), {"type": type(np.bool_(True)).__name__, "value": True}),
        (np.str_("x"), {"type": "str_", "value": "x"}),
        (np.complex64(1j), {"type": "complex64", "value": "1j"}),
        (FakeDType("fake.float"), {"type": "fake.dtype", "value": "fake.float"}),
        (object(), {"type": "object", "value": None}),
        (len, {"type": "builtin_function_or_method", "value": "builtins.len"}),
        (collections.OrderedDict, {"type": "type", "value": "collections.OrderedDict"}),
        ({1, 2}, {"type": "set", "value": None}),
        (b"bytes", {"type": "bytes", "value": None}),
        ([], []),
        ((), []),
        ({}, {}),
    ],
    ids=lambda value: type(value).__name__,
)
def test_value(value: Any, node: Any) -> None:
    walked = Walked([value])
    assert walked.node == [node]
    assert type(walked.node[0]) is type(node)
    assert not walked.problems


def test_not_a_number_stays_one() -> None:
    assert math.isnan(Walked(math.nan).node["value"])
    assert Walked(-math.inf).node["value"] == -math.inf


def test_names_follow_the_path() -> None:
    value = (tensor(1), {"left": tensor(2), "n": 3, "deep": [None, Split(tensor(3), (tensor(4),))]}, Output(tensor(5)))
    walked = Walked(value)
    names = ["0", "1.left", "1.deep.1.left", "1.deep.1.right.0", "2.loss"]
    assert walked.names == [f"{name}.npy" for name in names]
    assert list(walked.node[1]) == ["left", "n", "deep"]
    assert list(walked.node[2]) == ["loss", "hidden"]
    assert walked.node[2]["hidden"] is None
    for (_, host, node), number in zip(walked.entry.tensors, range(1, 6), strict=True):
        assert host.bits is not None
        assert host.bits.tolist() == [number]
        assert node["Max"] == number
    assert walked.node[1]["deep"][1]["left"] is walked.entry.tensors[2][2]


def test_statistics_keep_no_bits() -> None:
    walked = Walked([tensor(1)], STATISTICS)
    assert walked.entry.tensors == []
    assert walked.entry.nbytes == 0


def test_bytes_are_counted_once_and_only_until_stored() -> None:
    one, other = tensor(1, 2), tensor(3)
    entry = Walked([one, one, other]).entry
    assert entry.nbytes == 12
    entry.tensors[0][1].bits = None
    assert entry.nbytes == 4


def test_pending_statistics_come_with_their_node() -> None:
    walked = Walked([tensor(4)], STATISTICS, framework=FakeFramework(deferred=True))
    assert walked.node[0]["Max"] is None
    walked.framework.resolve(walked.entry.pending)
    assert walked.node[0]["Max"] == 4


# --- keys ------------------------------------------------------------------------------------------------------------


def test_keys_become_text_and_stay_apart() -> None:
    value = {1: 10, "1": 20, None: 30, (0, "a"): 40, 2.5: 50, False: 60, FakeDType("f"): 70}
    node = Walked(value).node
    assert {key: child["value"] for key, child in node.items()} == {
        "1 (int)": 10,
        "1": 20,
        "None": 30,
        "(0, 'a')": 40,
        "2.5": 50,
        "False": 60,
        "f": 70,
    }


def test_keys_that_only_look_alike_are_all_kept() -> None:
    value = {"1 (int)": 0, 1: 1, "1": 2, "a\ud800": 3, "a\\ud800": 4, -1: 5, "-1": 6}
    node = Walked(value).node
    assert sorted(child["value"] for child in node.values()) == list(range(7))
    assert node["1"]["value"] == 2
    assert node["1 (int)"]["value"] == 0


def test_keys_of_unknown_types_are_not_asked_for_a_text() -> None:
    class Key:
        def __repr__(self) -> str:
            raise AssertionError("asked")

        __str__ = __repr__

    node = Walked({Key(): 1, Key(): 2, tensor(1): 3}).node
    assert sorted(child["value"] for child in node.values()) == [1, 2, 3]


# --- what is never touched -------------------------------------------------------------------------------------------


class Touchy:
    """Raises whenever anything is asked of it."""

    def __getattribute__(self, name: str) -> Any:
        if name == "__class__":  # isinstance asks
            return Touchy
        raise AssertionError(f"asked for {name}")

    def __iter__(self) -> Iterator[Any]:
        raise AssertionError("iterated")

    def __len__(self) -> int:
        raise AssertionError("measured")

    __bool__ = __len__

    def __eq__(self, other: object) -> bool:
        raise AssertionError("compared")

    __hash__ = object.__hash__


def test_generators_and_strangers_are_left_alone(tmp_path: Any) -> None:
    def produce() -> Iterator[int]:
        yield from range(3)

    generator, numbers = produce(), iter([1, 2])
    with (tmp_path / "file").open("w+") as file:
        walked = Walked([generator, numbers, Touchy(), file])
    assert [node["type"] for node in walked.node] == [
        "generator", "list_iterator", f"{__name__}.Touchy", "_io.TextIOWrapper",
    ]  # fmt: skip
    assert list(generator) == [0, 1, 2]
    assert list(numbers) == [1, 2]
    assert not walked.problems


def test_subclasses_of_containers_cannot_run_code() -> None:
    class Lazy(dict):  # type: ignore[type-arg]
        def items(self) -> Any:
            raise AssertionError("asked")

        __iter__ = keys = values = __len__ = __getitem__ = items

    class Strange(list):  # type: ignore[type-arg]
        def __iter__(self) -> Any:
            raise AssertionError("asked")

        __len__ = __getitem__ = __iter__

    walked = Walked([Lazy(a=1), Strange([tensor(2)])])
    assert walked.node[0] == {"a": {"type": "int", "value": 1}}
    assert walked.node[1][0]["Max"] == 2
    assert not walked.problems


def test_lazily_failing_fields_cost_themselves() -> None:
    @dataclasses.dataclass
    class Half:
        good: Any
        bad: Any

        def __getattribute__(self, name: str) -> Any:
            if name == "bad":
                raise RuntimeError("not yet")
            return object.__getattribute__(self, name)

    walked = Walked(Half(tensor(1), 2))
    assert walked.node["good"]["Max"] == 1
    assert walked.node["bad"]["not_captured"] == "RuntimeError: not yet"
    assert walked.problems[0][1].endswith(".bad")


def test_mappings_are_dicts_and_may_fail() -> None:
    class Batch(collections.UserDict):  # type: ignore[type-arg]
        pass

    class Broken(Mapping[str, Any]):
        def __getitem__(self, key: str) -> Any:
            raise KeyError(key)

        def __iter__(self) -> Iterator[str]:
            return iter(["a"])

        def __len__(self) -> int:
            return 1

    walked = Walked([Batch(x=tensor(1)), Broken(), 5])
    assert walked.node[0]["x"]["Max"] == 1
    assert "KeyError" in walked.node[1]["not_captured"]
    assert walked.node[2] == {"type": "int", "value": 5}


def test_endless_mapping_ends() -> None:
    class Endless(Mapping[int, int]):
        def __getitem__(self, key: int) -> int:
            return key

        def __iter__(self) -> Iterator[int]:
            number = 0
            while True:
                yield number
                number += 1

        def __len__(self) -> int:
            return 2**31

    assert len(Walked(Endless()).node) <= Recorder.MAX_VALUES


def test_a_tensor_that_cannot_be_described_costs_itself() -> None:
    class Failing(FakeFramework):
        def describe(self, value: FakeTensor, wanted: Wanted) -> Captured:
            if value.odd:
                raise RuntimeError("device lost")
            return super().describe(value, wanted)

    walked = Walked([FakeTensor([1.0], odd="lost"), tensor(2)], framework=Failing())
    assert walked.node[0]["not_captured"] == "RuntimeError: device lost"
    assert walked.node[1]["Max"] == 2


# --- bounds ----------------------------------------------------------------------------------------------------------


def test_a_list_in_itself_is_cut() -> None:
    loop: list[Any] = [tensor(1)]
    loop.append(loop)
    loop.append({"back": loop})
    walked = Walked(loop)
    assert walked.node[1]["not_captured"] == "it contains itself"
    assert walked.node[2]["back"]["not_captured"] == "it contains itself"
    assert walked.names == ["0.npy"]
    assert walked.problems


def test_the_same_list_twice_is_no_cycle() -> None:
    inner = [1]
    assert Walked([inner, inner]).node == [[{"type": "int", "value": 1}]] * 2


@pytest.mark.parametrize("depth", [49, 50, 51, 5000])
def test_deep_nesting_is_cut_at_the_cap(depth: int) -> None:
    value: Any = tensor(1)
    for _ in range(depth):
        value = [value]
    walked = Walked(value)
    node, found = walked.node, 0
    while isinstance(node, list):
        node, found = node[0], found + 1
    assert found == min(depth, 50)
    assert ("not_captured" in node) == (depth > 50)
    assert bool(walked.entry.tensors) == (depth <= 50)


def test_shared_parts_do_not_explode() -> None:
    value: Any = [1, 2]
    for _ in range(40):
        value = [value, value]
    walked = Walked(value)
    assert any("values in one argument" in text for _, _, text in walked.problems)


def test_wide_lists_are_kept_whole() -> None:
    assert len(Walked(list(range(20000))).node) == 20000


# --- arrays ----------------------------------------------------------------------------------------------------------


def test_arrays_are_recorded_like_tensors() -> None:
    array = np.arange(6, dtype=np.float64).reshape(2, 3).T
    walked = Walked([array])
    node = walked.node[0]
    assert list(node) == ["type", "dtype", "shape", "Max", "Min", "Mean", "Norm"]
    assert (node["type"], node["dtype"], node["shape"]) == ("numpy.ndarray", "float64", [3, 2])
    assert (node["Max"], node["Min"], node["Mean"]) == (5, 0, 2.5)
    assert node["Norm"] == pytest.approx(np.linalg.norm(array))
    bits = walked.entry.tensors[0][1].bits
    assert bits is not None
    assert bits.flags.c_contiguous
    array[...] = 0
    assert bits.tolist() == [[0, 3], [1, 4], [2, 5]]


@pytest.mark.parametrize(
    "array",
    [
        np.array([], dtype=np.float32),
        np.array(3.0),
        np.array([1, 2], dtype=">i4"),
        np.array(["a", "bc"]),
        np.array(["2020-01-01"], dtype="M8[D]"),
        np.array([object()], dtype=object),
        np.zeros(2, dtype=[("a", "f4"), ("b", "i8")]),
        np.ma.masked_array([1.0, 2.0], mask=[True, False]),
        np.arange(10)[::-2],
        np.array([1 + 1j]),
        np.array([np.nan, np.inf], dtype=np.float16),
    ],
    ids=lambda array: str(array.dtype),
)
def test_odd_arrays_never_raise(array: Any) -> None:
    for wanted in (STATISTICS, TENSORS, Wanted(statistics=True, data=False, md5=True)):
        walked = Walked([array], wanted)
        assert walked.node[0]["shape"] == list(array.shape)
        assert not walked.problems
    if array.dtype.kind in "iuf":
        bits = Walked([array]).entry.tensors[0][1].bits
        np.testing.assert_array_equal(bits, np.asarray(array))
