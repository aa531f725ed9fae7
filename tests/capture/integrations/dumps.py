"""Reading what a training left, and comparing it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import torch

import msformat


def entries(path: Path, step: int, rank: str = "rank") -> dict[str, Any]:
    """The entries of a unit as its document has them; a unit that is not there has none."""
    document = path / f"step{step}" / rank / "dump.json"
    return json.loads(document.read_text())["data"] if document.exists() else {}  # type: ignore[no-any-return]


def steps(path: Path) -> list[str]:
    """Names of the steps of a dump, in order."""
    return sorted((child.name for child in path.glob("step*")), key=lambda name: int(name[4:]))


def unfinished(path: Path) -> list[int]:
    """Steps whose unit says that it is not whole."""
    return [unit.key.step for unit in msformat.open(path) if not unit.complete]  # type: ignore[misc]


def bits(model: torch.nn.Module) -> list[bytes]:
    """Every parameter and buffer, bit by bit."""
    return [tensor.detach().numpy().tobytes() for tensor in model.state_dict().values()]
