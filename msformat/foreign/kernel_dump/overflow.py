"""Records of the overflow detection, which an ``Opdebug.Node_OpDebug…`` file holds in place of tensor values."""

from __future__ import annotations

import struct
from typing import Any

__all__ = ["parse_overflow"]

_MAGIC = 0x5A5A5A5A
_HEAD = struct.Struct("<IIIIII")
_OLD_SIZE = 2048
_COMMON = ("model_id", "stream_id", "task_id", "task_type", "context_id")
_CORE = (*_COMMON, "thread_id", "pc_start", "para_base", "core_id", "block_id")
# accelerator type -> its name, and the numbers before the status words
_KINDS = {
    0: ("AIC", _CORE),
    1: ("AIV", _CORE),
    2: ("AICPU", (*_COMMON, "cpu_id", "thread_id")),
    3: ("SDMA", (*_COMMON, "thread_id", "src_addr", "dst_addr", "channel_id")),
}
_ADD_INFO = ("model_id", "stream_id", "task_id", "task_type", "pc_start", "para_base")
# Name in the old record, where it begins, its numbers.
_OLD = (
    ("dha_atomic_add", 0, _ADD_INFO),
    ("l2_atomic_add", 128, _ADD_INFO),
    ("ai_core", 256, _ADD_INFO),
    ("dha_atomic_add", 512, ("status",)),
    ("l2_atomic_add", 768, ("status",)),
    ("ai_core", 1024, ("kernel_code", "block_idx", "status")),
)
_MOST_STATUS_WORDS = 4


def parse_overflow(data: bytes) -> dict[str, Any] | None:
    """What an output of an overflow file says; None for bytes of no known form.

    Parameters
    ----------
    data
        The first bytes of the block, 2048 at most.
    """
    if len(data) >= _HEAD.size and int.from_bytes(data[:4], "little") == _MAGIC:
        return _new(data)
    return _old(data) if len(data) == _OLD_SIZE else None


def _new(data: bytes) -> dict[str, Any]:
    _, version, valid, kind, _, length = _HEAD.unpack_from(data)
    name, fields = _KINDS.get(kind, (f"unknown_{kind}", ()))
    count = min(length, len(data) - _HEAD.size) // 8
    numbers = struct.unpack_from(f"<{count}Q", data, _HEAD.size)
    found: dict[str, Any] = {"version": version, "valid": bool(valid), "acc_type": name}
    if not fields:
        return {**found, "words": list(numbers)}
    found |= zip(fields, numbers, strict=False)
    status = list(numbers[len(fields) : len(fields) + _MOST_STATUS_WORDS])
    if status:
        found["status"] = status if len(status) > 1 else status[0]
    return found


def _old(data: bytes) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for name, start, fields in _OLD:
        numbers = struct.unpack_from(f"<{len(fields)}Q", data, start)
        found.setdefault(name, {}).update(zip(fields, numbers, strict=True))
    return found
