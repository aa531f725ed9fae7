"""What an earlier run left where this one is to write: refused at the start, or replaced when the config says so."""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

from capture.errors import CaptureError

__all__ = ["earlier_units", "is_occupied", "refuse_earlier", "remove_unit"]

_STEP = re.compile(r"step(\d{1,18})")
_DOCUMENTS = ("dump.json", "debug.json", "journal.jsonl")
_PARTS = (
    *_DOCUMENTS,
    "stack.json",
    "construct.json",
    "dump_error_info.log",
    "dump_tensor_data",
    "dump.h5",
    "dump.zarr",
)


def is_occupied(unit_dir: Path) -> bool:
    """Whether anything of a dump lies in a unit's directory."""
    return any(os.path.lexists(unit_dir / name) for name in _PARTS)


def earlier_units(dump_path: Path, rank_name: str, is_wanted: Callable[[int], bool]) -> Iterator[Path]:
    """Units of an earlier run that this rank would write again."""
    try:
        names = sorted(os.listdir(dump_path))
    except OSError:
        return
    for name in names:
        step = _STEP.fullmatch(name)
        if step and is_wanted(int(step[1])) and is_occupied(dump_path / name / rank_name):
            yield dump_path / name / rank_name


def refuse_earlier(dump_path: Path, rank_name: str, is_wanted: Callable[[int], bool]) -> None:
    """Say at the start that a dump is in the way.

    Raises
    ------
    CaptureError
        There is one.
    """
    found = next(earlier_units(dump_path, rank_name, is_wanted), None)
    if found is not None:
        raise CaptureError(
            f"{found} holds a dump of an earlier run, which is never overwritten by itself: "
            'choose another dump_path, or say "storage": {"overwrite": true} in config.json'
        )


def remove_unit(unit_dir: Path) -> None:
    """Remove a unit that an earlier run left. Only the parts of a dump, and only where a document says it is one."""
    if not any((unit_dir / name).is_file() for name in _DOCUMENTS):
        return
    for name in _PARTS:
        part = unit_dir / name
        if part.is_dir() and not part.is_symlink():
            shutil.rmtree(part)
        elif os.path.lexists(part):
            part.unlink()
