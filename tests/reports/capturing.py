"""What the cases of the reports on capture share: a debugger from a config.json, and what it left on disk."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch

import msformat
from capture.pytorch import PrecisionDebugger

BATCH = torch.linspace(-1, 1, 6).reshape(2, 3)


@contextmanager
def debugging(dump: Path, *, task: str = "tensor", level: str = "L0", **config: Any) -> Iterator[PrecisionDebugger]:
    """A debugger made of a config.json, finished at the end of the block."""
    inner = {key: config.pop(key) for key in ("list", "scope", "data_mode", "summary_mode") if key in config}
    config = {"task": task, "dump_path": str(dump), "level": level, task: inner, **config}
    config.setdefault("storage", {"durability": "process"})
    file = dump.with_name(f"{dump.name}.config.json")
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(config))
    with PrecisionDebugger(str(file)) as debugger:
        yield debugger


def captured(dump: Path, run: Callable[[], Any], model: Any = None, **config: Any) -> msformat.Unit:
    """What is on disk after one step of ``run``."""
    with debugging(dump, **config) as debugger:
        debugger.start(model)
        run()
        debugger.stop()
        debugger.step()
    return msformat.open(dump)[0]


def saved(dump: Path, value: Any, name: str = "a", **config: Any) -> msformat.Unit:
    """What is on disk after one variable was saved."""
    with debugging(dump, level="debug", **config) as debugger:
        debugger.save(value, name)
        debugger.step()
    return msformat.open(dump)[0]


def two_layers(*, inplace: bool = False) -> torch.nn.Sequential:
    """A small model, always the same."""
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(3, 4), torch.nn.ReLU(inplace=inplace), torch.nn.Linear(4, 2))


def train(model: torch.nn.Module, batch: torch.Tensor = BATCH) -> None:
    """A forward and a backward pass."""
    model(batch).square().sum().backward()


def gradients(model: torch.nn.Module) -> list[torch.Tensor | None]:
    """Copies of what is in ``.grad``."""
    return [None if one.grad is None else one.grad.clone() for one in model.parameters()]


def same_bits(left: list[Any], right: list[Any]) -> bool:
    """Whether tensors are equal, bit for bit."""
    pairs = zip(left, right, strict=True)
    return all(a is b is None or a.untyped_storage().tolist() == b.untyped_storage().tolist() for a, b in pairs)


def unfinished(tensor: msformat.Tensor) -> str | None:
    """Why a tensor's values are not there, as the dump says."""
    reason = node_of(tensor).get("not_captured")
    return None if reason is None else str(reason)


def node_of(tensor: msformat.Tensor) -> Any:
    """The tensor's record as plain JSON."""
    node = tensor.entry.json()
    slots = () if tensor.slot in ("", "parameters_grad") else (tensor.slot,)
    for key in (*slots, *tensor.keys):
        node = node[int(key)] if isinstance(node, list) else node[key]
    return node[0] if isinstance(node, list) else node
