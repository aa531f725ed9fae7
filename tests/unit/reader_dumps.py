"""Small dumps made by hand, with json and numpy alone, for the tests of the reader."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

RELU = "Functional.relu.0.forward"
X = f"{RELU}.input.0.npy"
VALUES = np.arange(24, dtype=np.float32).reshape(2, 3, 4)


def record(array: np.ndarray, data_name: str | None = None, **more: Any) -> dict[str, Any]:
    """A tensor record as msprobe writes it."""
    found = {"type": "torch.Tensor", "dtype": f"torch.{array.dtype}", "shape": list(array.shape), **more}
    return found if data_name is None else {**found, "data_name": data_name}


def entries() -> dict[str, Any]:
    """A relu with a kwarg and scalars."""
    slots = {
        "input_args": [record(VALUES, X, Max=23.0, Min=0.0, Mean=11.5, Norm=65.0), {"type": "int", "value": 3}, None],
        "input_kwargs": {"inplace": {"type": "bool", "value": False}},
        "is_recompute": False,
        "output": [record(VALUES)],
    }
    return {RELU: slots}


def write_unit(directory: Path, data: dict[str, Any], *, name: str = "dump.json", **header: Any) -> Path:
    """A unit in the canonical layout."""
    directory.mkdir(parents=True, exist_ok=True)
    top = {"task": "tensor", "level": "mix", "framework": "pytorch", "dump_data_dir": None, **header, "data": data}
    (directory / name).write_text(json.dumps(top, indent=1))
    return directory


def write_tensor(directory: Path, name: str, values: np.ndarray) -> None:
    (directory / "dump_tensor_data").mkdir(exist_ok=True)
    np.save(directory / "dump_tensor_data" / name, values)
