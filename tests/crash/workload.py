"""A dump that follows from a seed, so that whoever finds its remains knows what they should say."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from msformat.dtypes import DType, dtype_named
from msformat.model import Header
from msformat.writer import DumpWriter

HEADER = Header("tensor", "L1", "pytorch")
BACKENDS = ("files", "hdf5", "zarr")
# Entries that capture may not have in the journal yet: a batch that is being filled, and one that is not committed.
AT_RISK = 48 + 128
_DTYPES = ("float32", "bfloat16", "int64", "float16", "bool", "float8_e4m3fn")
_SHAPES: tuple[tuple[int, ...], ...] = ((), (3,), (4, 5), (0, 2), (64, 33), (300, 101))


@dataclass(frozen=True)
class Step:
    """One entry and its tensors."""

    key: str
    value: dict[str, Any]
    tensors: dict[str, tuple[NDArray[Any], DType]]
    frames: list[str]
    parent: str | None


def tensor(seed: int, number: int, position: int) -> tuple[NDArray[Any], DType]:
    """Any bit pattern of any type; every third has content that occurred before, every sixth in another shape."""
    source = number // 3 if number % 3 == 2 else number
    random = np.random.default_rng((seed, source, position))
    dtype = dtype_named(_DTYPES[int(random.integers(len(_DTYPES)))])
    shape = _SHAPES[int(random.integers(len(_SHAPES)))]
    count = int(np.prod(shape)) * dtype.itemsize
    raw = random.integers(0, 2 if dtype.name == "bool" else 256, count, dtype=np.uint8)
    return raw.view(dtype.storage).reshape(-1 if number % 6 == 5 else shape), dtype


def step(seed: int, number: int) -> Step:
    """The n-th entry."""
    key = f"Functional.op{number % 7}.{number // 7}.forward"
    tensors = {
        f"{key}.{category}.0.{'npy' if number % 5 == 4 else 'pt'}": tensor(seed, number, position)
        for position, category in enumerate(("input", "output"))
    }
    inputs, outputs = (
        {"type": "torch.Tensor", "dtype": f"torch.{dtype.name}", "shape": list(bits.shape), "Max": float("nan"),
         "Min": None, "Mean": 0.5, "Norm": number, "requires_grad": False, "data_name": name}
        for name, (bits, dtype) in tensors.items()
    )  # fmt: skip
    value = {"input_args": [inputs, None], "input_kwargs": {}, "output": [outputs]}
    parent = None if number % 4 == 0 else f"Functional.op{(number - 1) % 7}.{(number - 1) // 7}.forward"
    return Step(key, value, tensors, [f"File a.py, line {number % 3}, in f, \n x"], parent)


def steps(seed: int, count: int) -> Iterator[Step]:
    """The first entries."""
    return (step(seed, number) for number in range(count))


def put(writer: DumpWriter, one: Step) -> None:
    """Give a step to a writer, tensors first."""
    for name, (bits, dtype) in one.tensors.items():
        writer.put_tensor(name, bits, dtype, owned=bool(bits.size % 2))
    writer.put_entry(one.key, one.value)
    writer.put_stack([one.key], one.frames)
    writer.put_parent(one.key, one.parent)
