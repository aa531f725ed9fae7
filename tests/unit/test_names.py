"""Entry keys and tensor names read as msprobe means them; ambiguous ones always read the same way."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest

from msformat.errors import FormatError
from msformat.names import (
    OpName,
    TensorName,
    build_data_name,
    build_entry,
    natural_key,
    parse_data_name,
    parse_entry,
    safe_data_name,
)

ENTRIES = {
    # PyTorch
    "Functional.relu.0.forward": OpName("Functional", "relu", None, 0, "forward", "api"),
    "Tensor.__mul__.12.backward": OpName("Tensor", "__mul__", None, 12, "backward", "api"),
    "Torch.linalg.norm.3.forward": OpName("Torch", "linalg.norm", None, 3, "forward", "api"),
    "Module.conv1.Conv2d.forward.0": OpName("Module", "conv1", "Conv2d", 0, "forward", "module"),
    "Module.blocks.0.0.Linear.backward.1": OpName("Module", "blocks.0.0", "Linear", 1, "backward", "module"),
    "Module.0.conv1.Conv2d.forward.0": OpName("Module", "0.conv1", "Conv2d", 0, "forward", "module"),
    "Module.fc.Linear.parameters_grad": OpName("Module", "fc", "Linear", None, "parameters_grad", "module"),
    "Module.fc.Linear.parameters_grad.0": OpName("Module", "fc", "Linear", 0, "parameters_grad", "module"),
    "Module.Net.forward.0": OpName("Module", "", "Net", 0, "forward", "module"),
    # modules with names that mean something else elsewhere
    "Module.forward.0.Linear.forward.2": OpName("Module", "forward.0", "Linear", 2, "forward", "module"),
    "Module.input.Linear.forward.0": OpName("Module", "input", "Linear", 0, "forward", "module"),
    "Module.parameters_grad.A.parameters_grad": OpName(
        "Module", "parameters_grad", "A", None, "parameters_grad", "module"
    ),
    # MindSpore
    "Cell.lst.0.Dense.forward.1": OpName("Cell", "lst.0", "Dense", 1, "forward", "module"),
    "Primitive.matmul.MatMul.0.forward": OpName("Primitive", "matmul", "MatMul", 0, "forward", "api"),
    "Primitive.relu.0.forward": OpName("Primitive", "relu", None, 0, "forward", "api"),
    "MintFunctional.silu.0.backward": OpName("MintFunctional", "silu", None, 0, "backward", "api"),
    "Jit.SGD.0.forward": OpName("Jit", "SGD", None, 0, "forward", "api"),
    # register_custom_api, with a prefix and with the name of a module
    "User.f.0.forward": OpName("User", "f", None, 0, "forward", "api"),
    "my.own.module.f.0.forward": OpName("my.own.module", "f", None, 0, "forward", "api"),
    # saved variables
    "x.0.debug": OpName("", "x", None, 0, "debug", "saved"),
    "x_grad.2.debug": OpName("", "x_grad", None, 2, "debug", "saved"),
    "loss.0.5.debug": OpName("", "loss.0", None, 5, "debug", "saved"),
    "a.0.debug.0.debug": OpName("", "a.0.debug", None, 0, "debug", "saved"),
    "Module.fc.Linear.forward.0.0.debug": OpName("", "Module.fc.Linear.forward.0", None, 0, "debug", "saved"),
    "a/b\n.0.debug": OpName("", "a/b\n", None, 0, "debug", "saved"),
    ".0.debug": OpName("", "", None, 0, "debug", "saved"),
    "y.1": OpName("", "y", None, 1, "", "saved"),
    "layer.3.out.0": OpName("", "layer.3.out", None, 0, "", "saved"),
}


@pytest.mark.parametrize("key", ENTRIES)
def test_entry_keys(key: str) -> None:
    assert parse_entry(key) == ENTRIES[key]
    assert build_entry(ENTRIES[key]) == key == str(ENTRIES[key])


@pytest.mark.parametrize(
    "key",
    [
        *["", ".", "data", "x.y", "x.debug", "Functional.relu.forward", ".f.0.forward", "x.01.debug", "x.٣.debug"],
        *["x.-1.debug", "x.+1", "x. 1", "x.1_0", "x." + "9" * 5000],
        *["Module..X.parameters_grad", "Module.parameters_grad"],
    ],
)
def test_strangers_give_none(key: str) -> None:
    assert parse_entry(key) is None


@pytest.mark.parametrize(
    "name",
    [
        OpName("Functional", "relu", None, None, "forward", "api"),
        OpName("Functional", "relu", None, -1, "forward", "api"),
        OpName("", "relu", None, 0, "forward", "api"),
        OpName("Functional", "relu", None, 0, "debug", "api"),
        OpName("Module", "fc", None, 0, "forward", "module"),
        OpName("Module", "fc", "Linear", None, "forward", "module"),
        OpName("", "x", None, 0, "forward", "saved"),
    ],
)
def test_no_key_is_built_from_parts_that_no_key_has(name: OpName) -> None:
    with pytest.raises(FormatError, match="no entry key"):
        build_entry(name)


TENSORS = {
    "Functional.relu.0.forward.input.0.pt": TensorName("Functional.relu.0.forward", "input", ("0",), ".pt"),
    "Torch.cat.0.forward.input.0.1.pt": TensorName("Torch.cat.0.forward", "input", ("0", "1"), ".pt"),
    "Module.wrap.Wrapper.forward.0.output.0.extra.0.pt": TensorName(
        "Module.wrap.Wrapper.forward.0", "output", ("0", "extra", "0"), ".pt"
    ),
    "Cell.scale.Scale.forward.0.kwargs.bias.npy": TensorName("Cell.scale.Scale.forward.0", "kwargs", ("bias",), ".npy"),
    "User.f.3.forward.kwargs.input.npy": TensorName("User.f.3.forward", "kwargs", ("input",), ".npy"),
    "Module.fc.Linear.forward.0.parameters.weight.pt": TensorName(
        "Module.fc.Linear.forward.0", "parameters", ("weight",), ".pt"
    ),
    "Primitive.matmul.MatMul.0.forward.output.0.npy": TensorName(
        "Primitive.matmul.MatMul.0.forward", "output", ("0",), ".npy"
    ),
    "Module.fc.Linear.parameters_grad.weight.pt": TensorName(
        "Module.fc.Linear.parameters_grad", "", ("weight",), ".pt"
    ),
    "Module.fc.Linear.parameters_grad.0.weight.pt": TensorName(
        "Module.fc.Linear.parameters_grad.0", "", ("weight",), ".pt"
    ),
    # a parameter called 0: a gradient without parameter does not exist
    "Module.fc.Linear.parameters_grad.0.pt": TensorName("Module.fc.Linear.parameters_grad", "", ("0",), ".pt"),
    "Module.fc.Linear.parameters_grad.0.0.pt": TensorName("Module.fc.Linear.parameters_grad.0", "", ("0",), ".pt"),
    "x.0.debug.npy": TensorName("x.0.debug", "", (), ".npy"),
    "nest.0.debug.b.0.npy": TensorName("nest.0.debug", "", ("b", "0"), ".npy"),
    "a.0.debug.0.debug.pt": TensorName("a.0.debug.0.debug", "", (), ".pt"),
    "loss.1.input.0.debug.pt": TensorName("loss.1.input.0.debug", "", (), ".pt"),
    "y.0.tensor..pt": TensorName("y.0", "tensor", (), ".pt"),
    "list.1.tensor.1.0.pt": TensorName("list.1", "tensor", ("1", "0"), ".pt"),
    "a.0.b.1.tensor.k.pt": TensorName("a.0.b.1", "tensor", ("k",), ".pt"),
    # a module called input, one called forward, and an argument whose keys look like an entry
    "Module.input.Linear.forward.0.output.0.pt": TensorName("Module.input.Linear.forward.0", "output", ("0",), ".pt"),
    "Module.forward.0.Linear.forward.0.input.0.pt": TensorName(
        "Module.forward.0.Linear.forward.0", "input", ("0",), ".pt"
    ),
    "Module.a.B.forward.0.kwargs.k.forward.0.input.0.pt": TensorName(
        "Module.a.B.forward.0", "kwargs", ("k", "forward", "0", "input", "0"), ".pt"
    ),
    "Functional.relu.0.forward.input.pt": TensorName("Functional.relu.0.forward", "input", (), ".pt"),
    "Functional.relu.0.forward.input.0": TensorName("Functional.relu.0.forward", "input", ("0",), ""),
}


@pytest.mark.parametrize("data_name", TENSORS)
def test_tensor_names(data_name: str) -> None:
    expected = TENSORS[data_name]
    assert parse_data_name(data_name) == expected
    assert parse_data_name(data_name, expected.entry) == expected
    assert build_data_name(expected) == data_name == str(expected)


@pytest.mark.parametrize(
    "data_name",
    [
        *["", ".pt", "weight.pt", "y.0.tensor.pt", "x.0.pt", "../../etc/passwd", "Module.a.B.forward.0.pt"],
        *["Functional.relu.0.forward.pt", "Functional.relu.0.forward.arg.0.pt", "Module.fc.Linear.parameters_grad.pt"],
    ],
)
def test_strange_tensor_names_give_none(data_name: str) -> None:
    assert parse_data_name(data_name) is None


def test_a_known_entry_decides_where_the_name_is_split() -> None:
    name = "a.0.debug.0.debug.pt"
    assert parse_data_name(name, "a.0.debug") == TensorName("a.0.debug", "", ("0", "debug"), ".pt")
    assert parse_data_name(name, "b.0.debug") is None
    assert parse_data_name(name, "a.0.deb") is None
    assert parse_data_name(name, "no entry") is None


def test_harmless_names_are_kept(tmp_path: Path) -> None:
    harmless = ["x.0.debug.pt", "y.0.tensor..pt", ".hidden", "…中文 and spaces.npy", "a" * 251 + ".npy", "中" * 85]
    for name in harmless:
        assert safe_data_name(name) == name
        (tmp_path / name).write_bytes(b"")
    assert sorted(os.listdir(tmp_path)) == sorted(harmless)


NASTY = ["", ".", "..", "a/b", "../../x.pt", "/etc/passwd", "a\\b.npy", "nul\0.pt", "line\n.pt", "\x7f", "\x9b.pt"]
LONG = ["a" * 252 + ".npy", "中" * 86, "x" * 100_000 + ".pt", "lone\ud800.pt", "." * 300, "/" * 300 + ".pt"]


@pytest.mark.parametrize("raw", [*NASTY, *LONG, ".x.pt.msformat-partial-0123456789ab"])
def test_harmful_names_become_file_names(raw: str, tmp_path: Path) -> None:
    safe = safe_data_name(raw)
    assert safe != raw
    assert safe == safe_data_name(safe)
    assert [safe.endswith(end) for end in (".pt", ".npy")] == [raw.endswith(end) for end in (".pt", ".npy")]
    (tmp_path / safe).write_bytes(b"")
    assert os.listdir(tmp_path) == [safe]


def test_harmful_names_stay_apart_and_readable() -> None:
    names = [safe_data_name(raw) for raw in [*NASTY, *LONG]]
    assert len(set(names)) == len(names)
    assert safe_data_name("loss/aux.0.debug.pt").startswith("loss_aux.0.debug~")


def test_numbers_sort_as_numbers_of_any_length() -> None:
    names = [f"rank{n}" for n in range(32)]
    assert sorted(sorted(names), key=natural_key) == names
    huge = "9" * (sys.int_info.default_max_str_digits + 1)
    assert natural_key("x" + huge) > natural_key("x" + huge[:-1])
    assert sorted(["b", "a10", "a", "a2", "", "10", "2", "a02"], key=natural_key)[:4] == ["", "2", "10", "a"]


@pytest.mark.parametrize(
    ("key", "parts"),
    [
        ("Add.Default_Add-op1.5.2.1735011096426349", ("Add", "Default_Add-op1", "5.2", 1735011096426349)),
        ("MatMul.mm.7.20250609144925349", ("MatMul", "mm", "7", 20250609144925349)),
        ("exception_info.10.20.20250609144925349", ("exception_info", "10", "20", 20250609144925349)),
    ],
)
def test_kernels(key: str, parts: tuple[str, str, str, int]) -> None:
    found = parse_entry(key)
    assert found is not None
    assert (found.class_name, found.path, found.stage, found.index) == parts
    assert found.order == "kernel"
    assert build_entry(found) == key


def test_a_saved_variable_is_no_kernel() -> None:
    found = parse_entry("a.b.5.2.17")
    assert found is not None
    assert (found.order, found.path, found.index) == ("saved", "a.b.5.2", 17)
