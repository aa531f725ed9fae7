"""What a place that is no dump looks like, so that a message can say more than "not found". Judged by names alone."""

from __future__ import annotations

import re
from collections.abc import Sequence

from msformat.filesystem import Item
from msformat.unitfiles import DOCUMENTS

__all__ = ["describe_directory", "describe_file", "describe_no_unit"]

_ZARR_V2 = {".zgroup", ".zarray", ".zmetadata"}
_CHECKPOINT_FILE = re.compile(
    r".*\.(pth|ckpt|safetensors|bin|distcp|tar)|\.metadata|latest_checkpointed_iteration\.txt|latest"
)
_CHECKPOINT_FOLDER = re.compile(r"mp_rank_[0-9_]+|global_step[0-9]+|iter_[0-9]+|checkpoint-[0-9]+")
# rank_0 is MindSpore's kernel dump, 14 digits are the time folder of a CANN dump inside step{N}.
_KERNEL_FOLDER = re.compile(r"rank_[0-9]+|\.dump_metadata|[0-9]{14}")
_KERNEL_CONFIG = re.compile(r"[0-9]*kernel_(kbyk|graph)_\w+\.json|kernel_config\w*\.json|acl_dump_[0-9]+\.json")
# {type}.{name}.{task}.{stream}.{timestamp in microseconds}, then .{input|output}.{slot}… once converted.
_KERNEL_FILE = re.compile(r"[^.]+\.[^.]+\.[0-9]+\.([0-9]+\.)?[0-9]{16}(\..+)?")

_KERNEL_DUMP = "it looks like a kernel dump (level L2) of MindSpore or Ascend, but no file of a kernel is in it"
_CHECKPOINT = "it looks like a model checkpoint, not a dump"


def describe_directory(name: str, items: Sequence[Item]) -> str | None:
    """What a directory of that name with that content seems to be; None if it reminds of nothing."""
    if not items:
        return "it is empty"
    files = {item.name for item in items if item.kind == "file"}
    folders = {item.name for item in items if item.kind == "directory"}
    if files & _ZARR_V2:
        return "it looks like a Zarr v2 store; only Zarr v3 (with a zarr.json) is read"
    if _any(_KERNEL_FOLDER, folders) or _any(_KERNEL_CONFIG, files) or _any(_KERNEL_FILE, files):
        return _KERNEL_DUMP
    if name == "dump_tensor_data":
        return "it holds the tensors of a dump; name the directory above it"
    if _any(_CHECKPOINT_FILE, files) or _any(_CHECKPOINT_FOLDER, folders):
        return _CHECKPOINT
    for suffix in (".npy", ".pt"):
        if any(file.endswith(suffix) for file in files):
            return f"it holds {suffix} files without dump.json, under names that save of a static graph does not give"
    return None


def describe_no_unit(name: str, items: Sequence[Item]) -> str:
    """Why a directory, which by its name is a unit, is none."""
    hint = describe_directory(name, items)
    return f"no dump in it ({hint or f'no {DOCUMENTS[0]}, {DOCUMENTS[1]}, dump.h5 or dump.zarr'}): left alone"


def describe_file(name: str) -> str | None:
    """What a file of that name seems to be; None if it reminds of nothing."""
    lower = name.lower()
    if lower.endswith((".zip", ".tar", ".tar.gz", ".tgz", ".tar.zst", ".7z")):
        return "it looks like an archive; unpack it first"
    if _KERNEL_CONFIG.fullmatch(name) or _KERNEL_FILE.fullmatch(name):
        return _KERNEL_DUMP
    if lower.endswith((".npy", ".pt")):
        return "it is a single tensor or a checkpoint; name the directory that holds dump.json"
    if _CHECKPOINT_FILE.fullmatch(lower):
        return _CHECKPOINT
    return None


def _any(pattern: re.Pattern[str], names: set[str]) -> bool:
    return any(pattern.fullmatch(name) for name in names)
