"""Files of capture's own that are whole under their name, or not there. Dumps are msformat's to write."""

from __future__ import annotations

import contextlib
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

__all__ = ["write_aside", "write_whole"]

# Names are cut so that the mark still fits into the 255 bytes most file systems allow.
_STEM_BYTES = 180
_OTHERS = 0o077


def write_whole(path: Path, data: bytes) -> None:
    """Write or replace a file in one step: who reads it meanwhile gets the old bytes or the new ones.

    Raises
    ------
    OSError
        It cannot be written; what was there still is.
    """
    temporary = write_aside(path, lambda stream: stream.write(data))
    try:
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise


def write_aside(path: Path, write: Callable[[BinaryIO], object]) -> Path:
    """Write a temporary beside ``path``, under a name that msformat knows for one; its owner's alone until it is whole.

    Returns
    -------
    Path
        The temporary, with the mode that the umask leaves. The caller gives it its name.
    """
    stem = os.fsdecode(os.fsencode(path.name)[:_STEM_BYTES].decode("utf-8", "ignore").encode())
    temporary = path.with_name(f".{stem}.msformat-partial-{os.urandom(6).hex()}")
    try:
        with open(temporary, "xb") as stream:
            mode = stat.S_IMODE(os.fstat(stream.fileno()).st_mode)
            _change_mode(temporary, mode & ~_OTHERS)
            write(stream)
            _change_mode(temporary, mode)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    return temporary


def _change_mode(path: Path, mode: int) -> None:
    """File systems without modes are let be."""
    with contextlib.suppress(OSError):
        path.chmod(mode)
