"""JSON files with the arguments of kernels, as facts of entries: each is read once, and all of them stay small."""

from __future__ import annotations

from typing import Any

from msformat.errors import UnsafeInputError
from msformat.filesystem import FileSystem
from msformat.jsontext import parse_json
from msformat.model import MAX_DEPTH

__all__ = ["Arguments"]

# They lie inside an entry of a document, which may not be deeper.
_MOST_DEPTH = MAX_DEPTH - 8
_MOST_FILE = 1 << 20
# One file may belong to thousands of launches: this much of a unit's document may be repetition.
_MOST_REPEATED = 16 << 20


class Arguments:
    """The arguments that the entries of a unit have got so far.

    Parameters
    ----------
    fs
        Where the files are.
    """

    def __init__(self, fs: FileSystem) -> None:
        self._fs = fs
        self._known: dict[str, tuple[Any, int]] = {}
        self._left = _MOST_REPEATED

    def read(self, path: str) -> Any:
        """What a file says; None where that was said too often, or the file was refused before.

        Raises
        ------
        OSError, ValueError
            It cannot be read, or is no JSON. Said once of each file.
        """
        if path not in self._known:
            self._known[path] = (None, 0)
            self._known[path] = self._parse(path)
            return self._known[path][0]
        value, size = self._known[path]
        self._left -= size
        return value if self._left >= 0 else None

    @property
    def is_full(self) -> bool:
        """Whether entries went without arguments that others have."""
        return self._left < 0

    def _parse(self, path: str) -> tuple[Any, int]:
        where = self._fs.describe(path)
        size = self._fs.size(path)
        if size > _MOST_FILE:
            raise UnsafeInputError(f"{where}: arguments of {size} bytes are not read")
        return parse_json(self._fs.read(path, 0, size), where, max_depth=_MOST_DEPTH), size
