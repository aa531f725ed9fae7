"""Small dumps in the canonical layout, written with json and numpy alone."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from msformat.atomic import is_temporary
from msformat.convert import ConvertOptions, ConvertReport, convert

#: Names of destinations, one a form, and the options that a conversion into them takes.
FORMS: dict[str, dict[str, Any]] = {
    "files": {"to": "files"},
    "hdf5": {"to": "hdf5"},
    "zarr": {"to": "zarr"},
    "one.h5": {},
    "one.zarr": {},
}
HEADER = {"task": "tensor", "level": "mix", "framework": "pytorch", "dump_data_dir": "elsewhere"}
FRAMES = ["File a.py, line 1, in forward, \n y = f(x)", "File b.py, line 2, in <module>, \n net(x)"]


def record(array: NDArray[Any], name: str, **more: Any) -> dict[str, Any]:
    """A tensor as msprobe records it."""
    return {
        "type": "torch.Tensor",
        "dtype": f"torch.{array.dtype.name}",
        "shape": list(array.shape),
        "Max": 1.0,
        "Min": float("nan"),
        "Mean": 0.5,
        "Norm": float("inf"),
        "requires_grad": False,
        **more,
        "data_name": name,
    }


def write_unit(
    unit: Path,
    entries: Mapping[str, NDArray[Any]],
    *,
    suffix: str = ".npy",
    parents: Mapping[str, str | None] | None = None,
    extra: Mapping[str, bytes] | None = None,
) -> Path:
    """One array an entry, as its only output."""
    data = unit / "dump_tensor_data"
    data.mkdir(parents=True)
    dump: dict[str, Any] = {}
    for key, array in entries.items():
        name = f"{key}.output.0{suffix}"
        np.save(data / name, array)
        dump[key] = {"input_args": [], "input_kwargs": {}, "output": [record(array, name)], "is_recompute": False}
    write_document(unit / "dump.json", {**HEADER, "data": dump})
    write_document(unit / "stack.json", {"0": [list(dump), FRAMES]} if dump else {})
    write_document(unit / "construct.json", dict(parents) if parents is not None else dict.fromkeys(dump))
    for name, content in (extra or {}).items():
        (unit / name).write_bytes(content)
    return unit


def write_document(path: Path, value: Any) -> None:
    """As msprobe writes JSON."""
    path.write_text(json.dumps(value, indent=1))


def write_tree(root: Path, units: Sequence[str] = ("step0/rank", "step1/rank"), count: int = 3) -> Path:
    """Units whose arrays all differ."""
    for number, unit in enumerate(units):
        entries = {
            f"Functional.relu.{n}.forward": np.arange(12, dtype=np.float32).reshape(3, 4) + 100 * number + n
            for n in range(count)
        }
        write_unit(root / unit, entries)
    return root


def tree_bytes(root: Path) -> dict[str, bytes]:
    """Every file below a directory, and where every link leads."""
    return {
        str(path.relative_to(root)): str(path.readlink()).encode() if path.is_symlink() else path.read_bytes()
        for path in sorted(root.rglob("*"))
        if path.is_symlink() or path.is_file()
    }


def run_convert(src: Path, dst: Path, **options: Any) -> ConvertReport:
    """Convert with :class:`ConvertOptions` as keywords."""
    return convert(src, dst, ConvertOptions(**options))


def convert_whole(src: Path, dst: Path, **options: Any) -> ConvertReport:
    """The same, which has to succeed."""
    report = run_convert(src, dst, **options)
    assert report.exit_code == 0, report.as_json()
    return report


def load_json(path: Path) -> Any:
    """A document as plain json reads it."""
    return json.loads(path.read_text())


def temporaries(root: Path) -> list[str]:
    """Names of unfinished files and of locks below a folder."""
    return [path.name for path in root.rglob("*") if is_temporary(path.name) or path.name.endswith(".msformat-lock")]
