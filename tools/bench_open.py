"""Lines of ``make bench`` for opening and tables: a dump of many entries, against json and views of entries."""

from __future__ import annotations

import json
import subprocess
import sys
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

import msformat
from msformat.cli.output import bytes_text
from msformat.convert import ConvertOptions, convert
from msformat.table import Table

__all__ = ["bench_open"]

Pairs = Callable[..., tuple[float, float]]
Line = Callable[..., Any]

_HEADER = {"task": "statistics", "level": "mix", "framework": "pytorch", "dump_data_dir": None}
_NAMES = ("Max", "Min", "Mean", "Norm")
_TENSORS = 4
# How much memory an expression takes at most, in a process of its own; what getrusage says begins with its parent's.
_CHILD = """
import json, re
import msformat, msformat.entries
def peak():
    return int(re.search(r"VmHWM:\\s*(\\d+)", open("/proc/self/status").read())[1])
before = peak()
found = {}
print(peak() - before)
"""


def bench_open(root: Path, entries: int, repeats: int, line: Line, pairs: Pairs) -> list[Any]:
    """Names and first entry, and the table from each store.

    Parameters
    ----------
    root
        Where to work.
    entries
        Of the dump, with four tensors each.
    repeats
        How many pairs.
    line, pairs
        Of :mod:`tools.bench`.
    """
    dump = root / "open"
    path = dump / "step0" / "rank" / "dump.json"
    path.parent.mkdir(parents=True)
    path.write_text("".join(_document(entries)))

    def first() -> object:
        with msformat.open(dump)[0, None] as unit:
            return next(iter(unit.values()))

    def load() -> object:
        return next(iter(json.loads(path.read_bytes())["data"].values()))

    size = bytes_text(path.stat().st_size)
    ours = _memory(f"next(iter(msformat.open({str(dump)!r})[0, None].values()))")
    note = f"{ours / _memory(f'json.load(open({str(path)!r}))'):.2f} of its memory"
    lines = [line(f"open {entries:,} entries ({size})", *pairs(first, load, repeats), "json.loads", "<= 0.1", note)]

    def views() -> object:
        with msformat.open(dump)[0, None] as unit:
            return Table.of_tensors(unit.tensors())

    rows = f"table of {entries * _TENSORS:,} tensors"
    lines.append(line(f"{rows}, files", *pairs(lambda: _numbers(dump), views, 1), "views of entries", "<= 0.2"))
    for suffix, store in ((".h5", "HDF5"), (".zarr", "Zarr")):
        target = root / f"open{suffix}"
        assert convert(dump, target, ConvertOptions()).exit_code == 0
        medians = pairs(lambda target=target: _numbers(target), load, repeats)
        note = f"{medians[0] * 1e3:.0f} ms; goal 50 ms for 400,000 tensors"
        goal = "<= 0.05 s" if entries >= 100_000 else ""
        lines.append(line(f"{rows}, {store}", *medians, "json.loads", goal, note))
    return lines


def _numbers(path: Path) -> list[Any]:
    """All four statistics of a unit as numbers."""
    with msformat.open(path)[0, None] as unit:
        table = unit.table()
        return [table.numbers(name) for name in _NAMES]


def _memory(expression: str) -> int:
    done = subprocess.run([sys.executable, "-c", _CHILD.format(expression)], check=True, capture_output=True, text=True)
    return int(done.stdout)


def _document(entries: int) -> Iterator[str]:
    """dump.json as msprobe writes it, in pieces."""
    values = np.random.default_rng(0)
    yield json.dumps(_HEADER, indent=1)[:-2] + ',\n "data": {'
    for at in range(entries):
        key = f"Functional.linear.{at}.forward" if at % 2 else f"Module.layers.{at % 50}.Linear.forward.{at // 50}"
        numbers = values.standard_normal((_TENSORS, len(_NAMES)), np.float32).tolist()
        *inputs, output = [_record(key, number, row) for number, row in enumerate(numbers)]
        value = {"input_args": inputs, "input_kwargs": {}, "output": [output]}
        yield ("," if at else "") + json.dumps({"data": {key: value}}, indent=1)[len('{\n "data": {') : -len("\n }\n}")]
    yield "\n }\n}"


def _record(key: str, number: int, statistics: list[float]) -> dict[str, Any]:
    head = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [4, 128, 256 + number]}
    checksum = zlib.crc32(f"{key}.{number}".encode())
    tail = {"requires_grad": True, "md5": f"{checksum:08x}"}
    return {**head, **dict(zip(_NAMES, statistics, strict=True)), **tail}
