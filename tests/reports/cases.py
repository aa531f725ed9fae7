"""What the cases of the reports share: small dumps, the command line in this process, and judges that are not ours."""

from __future__ import annotations

import contextlib
import io
import json
import subprocess
import sys
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from msformat import DType, DumpWriter, Header, dtype_named
from msformat.cli import main

BACKENDS = ("files", "hdf5", "zarr")
FLOAT32 = dtype_named("float32")


class Ran(NamedTuple):
    """A finished command."""

    code: int
    out: str
    err: str


def run(*arguments: object) -> Ran:
    """A command of ``msformat``; never a traceback."""
    out, err = io.StringIO(), io.StringIO()
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        code = main([str(argument) for argument in arguments])
    assert "Traceback" not in out.getvalue() + err.getvalue()
    return Ran(code, out.getvalue(), err.getvalue())


def run_python(code: str, *arguments: object, **options: Any) -> subprocess.CompletedProcess[str]:
    """A program in a process of its own."""
    command = [sys.executable, "-c", code, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, timeout=100, check=False, **options)


def plain_record(shape: tuple[int, ...] = (2,), dtype: str = "torch.float32", **more: Any) -> dict[str, Any]:
    """A tensor as msprobe records it; ``data_name`` and statistics as given."""
    return {"type": "torch.Tensor", "dtype": dtype, "shape": list(shape), **more}


def call(*inputs: Any, output: Any = ()) -> dict[str, Any]:
    """The entry of a forward call."""
    return {"input_args": list(inputs), "input_kwargs": {}, "output": list(output)}


def write_documents(unit: Path, data: Mapping[str, Any], *, name: str = "dump.json", **header: Any) -> Path:
    """A unit by json alone."""
    unit.mkdir(parents=True, exist_ok=True)
    top = {"task": "tensor", "level": "mix", "framework": "pytorch", "dump_data_dir": None, **header, "data": data}
    (unit / name).write_text(json.dumps(top, indent=1))
    return unit


def writer(
    unit: Path, backend: str = "files", *, document: Literal["dump.json", "debug.json"] = "debug.json"
) -> DumpWriter:
    """A writer of saved variables."""
    level = "debug" if document == "debug.json" else "mix"
    return DumpWriter(unit, Header("tensor", level, "pytorch"), backend=backend, document=document)


def save(to: DumpWriter, key: str, bits: NDArray[Any], dtype: DType = FLOAT32) -> str:
    """Put a tensor and its entry, as a capture would; the tensor's name."""
    name = to.data_name(f"{key}.pt")
    to.put_tensor(name, bits, dtype)
    to.put_entry(key, plain_record(dtype.logical_shape(bits.shape), dtype.torch_name, data_name=name))
    return name


def write_dump(
    root: Path,
    tensors: Mapping[str, NDArray[Any]],
    *,
    backend: str = "files",
    unit: str = "step0/rank0",
) -> Path:
    """A dump of one unit with float32 variables."""
    with writer(root / unit, backend) as to:
        for key, bits in tensors.items():
            save(to, key, bits)
    return root


def everywhere(source: Path, *options: str) -> Iterator[Path]:
    """The dump converted to every store, each of which must verify."""
    for name in ("copy", "copy.h5", "copy.zarr"):
        target = source.with_name(f"{source.name}_{name}")
        done = run("convert", source, target, *options)
        assert done.code == 0, done.err
        assert run("verify", target).code == 0
        yield target


def ramp(count: int, start: float = 0) -> NDArray[np.float32]:
    """Values that compress badly enough and differ everywhere."""
    return np.random.default_rng(int(start)).standard_normal(count).astype(np.float32)


@contextlib.contextmanager
def counted_calls() -> Iterator[Counter[str]]:
    """Calls and returns of functions in the block, in this thread: work that no clock and no other process changes."""
    counted: Counter[str] = Counter()
    sys.setprofile(lambda _frame, event, _what: counted.update((event,)))
    try:
        yield counted
    finally:
        sys.setprofile(None)


def strict_json(text: str) -> Any:
    """JSON as RFC 8259 has it: no NaN, no Infinity."""

    def refuse(token: str) -> Any:
        raise ValueError(f"{token} is no JSON")

    return json.loads(text, parse_constant=refuse)
