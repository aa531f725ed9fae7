"""Every real dump through the reader. Judges: json for what the documents say, torch and numpy for the bytes."""

from __future__ import annotations

import json
import math
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import msformat
from msformat.table import MISSING
from tests.conftest import golden_names
from tests.judges import judge

torch = judge("torch")

Golden = Callable[[str], Path]
_STATISTICS = ("Max", "Min", "Mean", "Norm")


def _unit_dirs(root: Path) -> Iterator[Path]:
    for name in ("dump.json", "debug.json"):
        yield from (path.parent for path in root.rglob(name))


def _records(node: Any) -> Iterator[dict[str, Any]]:
    """Tensor records of a JSON value, in document order."""
    if isinstance(node, dict):
        if "shape" in node and "dtype" in node and isinstance(node.get("type"), str):
            yield node
            return
        node = list(node.values())
    if isinstance(node, list):
        for child in node:
            yield from _records(child)


def _document(directory: Path) -> dict[str, Any]:
    name = "dump.json" if (directory / "dump.json").exists() else "debug.json"
    return dict(json.loads((directory / name).read_text()))


def _same(found: Any, expected: Any) -> bool:
    both_nan = isinstance(found, float) and isinstance(expected, float) and math.isnan(found) and math.isnan(expected)
    return both_nan or (type(found) is type(expected) and found == expected)


@pytest.mark.parametrize("name", golden_names)
def test_every_unit_and_entry(golden: Golden, name: str) -> None:
    root = golden(name)
    dump = msformat.open(root)
    assert {str(unit.key.path) for unit in dump} == {str(path.relative_to(root)) for path in _unit_dirs(root)}
    assert dump.problems == ()
    for unit in dump:
        document = _document(root / unit.key.path)
        assert list(unit) == list(document["data"])
        assert unit.complete
        assert (unit.header.task, unit.header.level, unit.header.framework) == (
            document["task"],
            document["level"],
            document["framework"],
        )
        for key, entry in unit.items():
            assert entry.json() == document["data"][key] or "NaN" in json.dumps(document["data"][key])
            assert [t.data_name for t in entry.tensors] == [r.get("data_name") for r in _records(document["data"][key])]


@pytest.mark.parametrize("name", golden_names)
def test_the_table_says_what_the_document_says(golden: Golden, name: str) -> None:
    root = golden(name)
    for unit in msformat.open(root):
        records = list(_records(_document(root / unit.key.path)["data"]))
        table = unit.table()
        assert len(table) == len(records)
        for row, record in zip(table.rows(), records, strict=True):
            for statistic in _STATISTICS:
                expected = record.get(statistic, MISSING)
                assert _same(row[statistic], expected), (row, record)
            assert list(row["shape"]) == record["shape"]
            assert row["dtype"] == record["dtype"]
            assert row["digest"] == record.get("md5")
            assert row["requires_grad"] == record.get("requires_grad")


@pytest.mark.parametrize("name", [name for name in golden_names if name.startswith(("torch", "mindtorch"))])
def test_every_torch_tensor_bit_for_bit(golden: Golden, name: str) -> None:
    root = golden(name)
    for unit in msformat.open(root):
        for tensor in unit.tensors():
            path = root / unit.key.path / "dump_tensor_data" / str(tensor.data_name)
            assert tensor.has_data == path.exists()
            if not tensor.has_data:
                with pytest.raises(msformat.TensorNotFoundError):
                    tensor.numpy()
            elif path.suffix == ".npy":
                _compare_npy(tensor, path)
            else:
                judge = torch.load(path, weights_only=True).detach().cpu()
                found = tensor.to_torch()
                assert (found.dtype, found.shape) == (judge.dtype, judge.shape)
                assert bytes(judge.contiguous().clone().untyped_storage()) == tensor.bits().tobytes()
                assert tensor.shape == tuple(judge.shape)


@pytest.mark.parametrize("name", [name for name in golden_names if name.startswith("mindspore")])
def test_every_mindspore_tensor_bit_for_bit(golden: Golden, name: str) -> None:
    root = golden(name)
    for unit in msformat.open(root):
        for tensor in unit.tensors():
            path = root / unit.key.path / "dump_tensor_data" / str(tensor.data_name)
            assert tensor.has_data == path.exists()
            if tensor.has_data:
                _compare_npy(tensor, path)


_CATEGORIES = {"input_args": "input", "input_kwargs": "kwargs", "parameters_grad": ""}


def _spelled(tensor: msformat.Tensor, *, is_debug: bool) -> str:
    """The name by the rules of the format, without suffix."""
    key = tensor.entry.key
    if is_debug and not key.endswith(".debug"):
        return f"{key}.tensor.{tensor.path}"  # 1.2.2; a bare tensor leaves the path empty
    category = _CATEGORIES.get(tensor.slot, tensor.slot)
    return ".".join(part for part in (key, category, tensor.path) if part)


@pytest.mark.parametrize("name", [name for name in golden_names if "tensor" in name])
def test_slot_and_path_spell_the_name_msprobe_gave(golden: Golden, name: str) -> None:
    for unit in msformat.open(golden(name)):
        for tensor in unit.tensors():
            if tensor.data_name is not None:
                spelled = _spelled(tensor, is_debug=unit.header.level == "debug")
                assert tensor.data_name.rpartition(".")[0] == spelled


def _compare_npy(tensor: msformat.Tensor, path: Path) -> None:
    judge = np.load(path)
    found = tensor.numpy()
    if tensor.dtype_name == "BFloat16":
        assert str(found.dtype) == "bfloat16"
        found = found.astype(np.float32)
    assert (found.dtype, found.shape) == (judge.dtype, judge.shape)
    assert found.tobytes() == judge.tobytes()


@pytest.mark.parametrize("name", golden_names)
def test_stacks_and_tree(golden: Golden, name: str) -> None:
    root = golden(name)
    for unit in msformat.open(root):
        directory = root / unit.key.path
        if (directory / "construct.json").exists():
            parents = json.loads((directory / "construct.json").read_text())
            assert {key: unit.parent(key) for key in parents} == parents
            keys = [node.key for node in unit.tree()]
            assert sorted(keys) == sorted({*parents, *unit})
        if (directory / "stack.json").exists():
            stacks = json.loads((directory / "stack.json").read_text())
            for key, value in stacks.items():
                entries, frames = value if value and isinstance(value[0], list) else ([key], value)
                assert all(unit.stack(entry) == tuple(frames) for entry in entries)
