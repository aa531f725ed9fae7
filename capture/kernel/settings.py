"""The files that tell a device what to dump, as msprobe 8.1.0 and 26.2.0 write them.

``kernel_config.json``
    For ACL (``aclmdlSetDump``, ``torch_npu.npu.set_dump``): everything that runs until the dump ends.
``kernel_kbyk_dump.json``
    For MindSpore's runtime, where it launches kernels one by one (jit_level O0 and O1).
``kernel_graph_dump.json``
    For graphs that run as a whole (jit_level O2).

What the peer writes wrongly is left out: ``stat_calc_mode`` and ``device_stat_precision_mode`` as null, which
MindSpore refuses.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capture.whole import write_whole

if TYPE_CHECKING:
    from capture.config import CaptureConfig
    from capture.config_values import DataMode

__all__ = ["acl_settings", "graph_settings", "kbyk_settings", "write_settings"]

_DEVICES = range(8)
# The runtime searches the text for every kernel, so long runs of steps are written as ranges.
_LONG_RUN = 16
_CATEGORIES = {"mean": "avg"}
_HASHES = ("md5", "hash")
_ALL_STATISTICS = ("max", "min", "avg", "l2norm")


def acl_settings(dump_path: str | os.PathLike[str], mode: DataMode) -> dict[str, Any]:
    """Settings for ACL: all kernels, with the sides that ``data_mode`` names."""
    sides = "all" if mode.input == mode.output else "input" if mode.input else "output"
    return {
        "dump": {"dump_list": [], "dump_path": os.fspath(dump_path), "dump_mode": sides, "dump_op_switch": "on"},
    }


def kbyk_settings(config: CaptureConfig, *, every: str = "all", md5: str = "hash:md5") -> dict[str, Any]:
    """Settings for kernels that are launched one by one.

    Parameters
    ----------
    config
        Its task, path, steps, ranks, list, data_mode, summary_mode, device, precision and async_dump count.
    every
        How all steps are spelled.
    md5
        What the MindSpore at hand calls that hash; up to 2.7.0 ``md5``.
    """
    common = _common(config, every)
    common["statistic_category"] = [] if config.task == "tensor" else _categories(config.summary_mode, md5)
    launched: dict[str, Any] = {"enable": not config.async_dump, "trans_flag": True}
    if config.task == "statistics":
        launched |= {"stat_calc_mode": config.device, "device_stat_precision_mode": config.precision}
    return {"common_dump_settings": common, "e2e_dump_settings": launched}


def graph_settings(config: CaptureConfig) -> dict[str, Any]:
    """Settings for graphs that run as a whole."""
    common = _common(config, "all")
    common |= {"op_debug_mode": 0, "file_format": config.file_format if config.task == "tensor" else "npy"}
    return {"common_dump_settings": common}


def _common(config: CaptureConfig, every: str) -> dict[str, Any]:
    mode = config.data_mode
    return {
        "dump_mode": 1 if config.list else 0,
        "path": config.dump_path,
        "net_name": "Net",
        "iteration": every if config.steps is None else _spelled(sorted(config.steps)),
        "saved_data": "tensor" if config.task == "tensor" else "statistic",
        "input_output": 0 if mode.input == mode.output else 1 if mode.input else 2,
        "kernels": list(config.list),
        "support_device": _devices(config.ranks),
    }


def _devices(ranks: Iterable[int] | None) -> list[int]:
    """The ranks, as the peer has it, and the devices they have on machines of eight: rank 8 is device 0 of its own.

    A rank that is not wanted is never armed, so a device too many does no harm.
    """
    if ranks is None:
        return list(_DEVICES)
    return sorted({device for rank in ranks for device in (rank, rank % len(_DEVICES))})


def _spelled(steps: list[int]) -> str:
    """``0|2``, as the peer writes it; a long run of steps as ``10-99``."""
    parts: list[str] = []
    start = 0
    for end in range(1, len(steps) + 1):
        if end < len(steps) and steps[end] == steps[end - 1] + 1:
            continue
        run = steps[start:end]
        parts += [f"{run[0]}-{run[-1]}"] if len(run) > _LONG_RUN else [str(step) for step in run]
        start = end
    return "|".join(parts)


def _categories(summary_mode: str | tuple[str, ...], md5: str) -> list[str]:
    if summary_mode == "statistics":
        return list(_ALL_STATISTICS)
    chosen = (summary_mode,) if isinstance(summary_mode, str) else summary_mode
    named = (md5 if name in _HASHES else _CATEGORIES.get(name, name) for name in chosen)
    return list(dict.fromkeys(named))


def write_settings(path: Path, settings: Mapping[str, Any]) -> None:
    """Write a file whole: other ranks write the same one, and a device may be reading it.

    Raises
    ------
    OSError
        It cannot be written.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    write_whole(path, json.dumps(settings, indent=4).encode())
