"""``tensors.jsonl``: what a tensor file cannot say about itself.

One JSON object a line: ``{"file": …, "key": …, "dtype": …, "digest": …}``. ``key`` is given where the file bears
another name than the tensor, ``dtype`` where the file cannot tell it. A canonical dump needs no line, and then there
is no file. Lines are appended; the last one for a file wins; a torn last line (killed while writing) is no error.
"""

from __future__ import annotations

import json
import os
import warnings
from dataclasses import dataclass
from pathlib import Path

from msformat.dtypes import DType, dtype_named
from msformat.errors import DTypeError, StoreError

__all__ = ["SIDECAR", "SidecarLine", "SidecarWriter", "parse_sidecar"]

SIDECAR = "tensors.jsonl"
MAX_LINE = 1 << 16
# Of damaged lines so many are named one by one.
_MOST_NAMED = 10


@dataclass(frozen=True, slots=True)
class SidecarLine:
    """One tensor file. ``file`` is relative to ``dump_tensor_data``; it comes from a stranger and is checked on use."""

    file: str
    key: str
    dtype: DType | None = None
    digest: str | None = None

    def encode(self) -> bytes:
        fields = {"file": self.file}
        if self.key != self.file:
            fields["key"] = self.key
        if self.dtype is not None:
            fields["dtype"] = self.dtype.name
        if self.digest is not None:
            fields["digest"] = self.digest
        return json.dumps(fields).encode() + b"\n"


def parse_sidecar(data: bytes | memoryview, source: str) -> tuple[list[SidecarLine], int]:
    """All good lines, and how many bytes they and their predecessors take (a torn tail lies behind).

    A bad line that is not the last one is left out with a warning: the tensors it does not name are still whole.
    """
    text = bytes(data)
    whole = text.rfind(b"\n") + 1
    lines = [_parse_line(raw) for raw in text[:whole].splitlines()]
    damaged = [number for number, line in enumerate(lines, start=1) if line is None]
    for number in damaged[:_MOST_NAMED]:
        warnings.warn(f"{source}: line {number} is damaged and left out", stacklevel=2)
    if len(damaged) > _MOST_NAMED:
        warnings.warn(f"{source}: {len(damaged) - _MOST_NAMED} more lines are damaged and left out", stacklevel=2)
    return [line for line in lines if line is not None], whole


def _parse_line(raw: bytes) -> SidecarLine | None:
    if len(raw) > MAX_LINE:
        return None
    try:
        fields = json.loads(raw)
        file = fields["file"]
        key, digest, name = fields.get("key", file), fields.get("digest"), fields.get("dtype")
        dtype = dtype_named(name) if isinstance(name, str) else None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError, DTypeError):
        return None
    good = isinstance(file, str) and isinstance(key, str) and (digest is None or isinstance(digest, str))
    return SidecarLine(file, key, dtype, digest) if good else None


class SidecarWriter:
    """Appends lines; nothing is made on disk before the first one. ``flush`` hands them to the system."""

    def __init__(self, path: str | os.PathLike[str], *, keep: int) -> None:
        self.path = Path(path)
        self._keep = keep
        self._pending: list[bytes] = []

    def add(self, line: SidecarLine) -> None:
        self._pending.append(line.encode())

    def flush(self) -> bool:
        """Write pending lines; whether there were any.

        Raises
        ------
        StoreError
            The file cannot be written.
        """
        if not self._pending:
            return False
        data = b"".join(self._pending)
        try:
            # Not append mode: a torn tail of a killed writer must be overwritten, not continued.
            descriptor = os.open(self.path, os.O_WRONLY | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0), 0o666)
            with os.fdopen(descriptor, "wb") as stream:
                stream.truncate(self._keep)
                stream.seek(self._keep)
                stream.write(data)
        except OSError as error:
            raise StoreError(f"{self.path}: {error.strerror or error}") from error
        self._keep += len(data)
        self._pending.clear()
        return True
