"""Values of PyTorch that are no tensor, as msprobe 8.1.0 records them; what it leaves out gets a type and a text."""

from __future__ import annotations

import zlib
from typing import Any

import numpy as np
import torch

from capture.values import NOT_A_LEAF, Fields, type_name

__all__ = ["leaf"]


def leaf(value: object) -> Any:
    """JSON of a dtype, device, size, process group and the like; ``NOT_A_LEAF`` for anything else."""
    if isinstance(value, torch.Size):
        return {"type": "torch.Size", "value": [_length(length) for length in value]}
    if isinstance(value, torch.memory_format):
        return {"type": "torch.memory_format", "format": str(value).removeprefix("torch.")}
    for kind, name in _BY_TEXT:
        if isinstance(value, kind):
            return {"type": name, "value": str(value)}
    if isinstance(value, torch.Generator):
        return {"type": "torch.Generator", "value": str(value.device)}  # its state is not asked for
    if isinstance(value, (torch.SymInt, torch.SymFloat, torch.SymBool)):
        return {"type": f"torch.{type(value).__name__}", "value": str(value.node)}
    return _distributed(value)


def _length(length: Any) -> Any:
    return int(length) if isinstance(length, (int, np.integer)) else str(length)


def _distributed(value: object) -> Any:
    distributed = torch.distributed
    if not distributed.is_available():
        return NOT_A_LEAF
    if isinstance(value, distributed.ProcessGroup):
        return _group(value)
    if isinstance(value, distributed.P2POp):
        return Fields(_p2p(value))
    if isinstance(value, (distributed.ReduceOp, distributed.ReduceOp.RedOpType)):
        return {"type": "torch.distributed.ReduceOp", "value": str(value)}
    if isinstance(value, distributed.Work):
        return {"type": type_name(type(value)), "value": None}
    return NOT_A_LEAF


def _group(value: Any) -> dict[str, Any]:
    ranks = _ranks(value)
    if ranks is None:
        return {"type": "torch.ProcessGroup"}
    return {"type": "torch.ProcessGroup", "group_ranks": ranks, "group_id": _group_id(ranks)}


def _ranks(value: Any) -> list[int] | None:
    try:
        return list(torch.distributed.get_process_group_ranks(value))
    except (RuntimeError, KeyError, ValueError):  # destroyed, or of another backend
        return None


def _group_id(ranks: list[int] | None) -> str | None:
    """As msprobe 8.1.0 has it, so that its tools match the ranks of a group."""
    return None if ranks is None else f"{zlib.crc32(str(ranks).encode('utf-8')):08x}"


def _p2p(value: Any) -> dict[str, Any]:
    group = value.group if value.group is not None else torch.distributed.group.WORLD
    return {
        "class_type": "torch.distributed.P2POp",
        "tensor": value.tensor,
        "op": getattr(value.op, "__name__", None),
        "peer": value.peer,
        "tag": value.tag,
        "group_id": _group_id(_ranks(group)),
    }


_BY_TEXT: tuple[tuple[type, str], ...] = (
    (torch.dtype, "torch.dtype"),
    (torch.device, "torch.device"),
    (torch.layout, "torch.layout"),
    (torch.qscheme, "torch.qscheme"),
)
