"""Columns as JSON that a page takes apart quickly, and text that may stand in a script block."""

from __future__ import annotations

import base64
import json
import math
from collections.abc import Iterable, Sequence
from itertools import islice
from typing import Any

import numpy as np
from numpy.typing import NDArray

from msformat.plaintext import shortened

__all__ = ["MOST_FRAMES", "Texts", "number", "packed", "script_json", "shown_frames"]

_LONGEST = 300
_LONGEST_FRAME = 600
_LOOKED_AT = 4000
#: Frames of a call stack that are shown.
MOST_FRAMES = 60
_INTEGERS = ("u1", "i1", "u2", "i2", "u4", "i4")
# Seven digits are what a page shows.
_ROUNDING = 1e-6


class Texts:
    """Every different text once, cut and made fit to be shown; rows hold its number."""

    def __init__(self) -> None:
        self._numbers: dict[str, int] = {}
        self.shown: list[str] = []

    def number(self, text: str) -> int:
        """The number of a text."""
        found = self._numbers.get(text)
        if found is None:
            found = self._numbers[text] = len(self.shown)
            self.shown.append(shortened(text, _LONGEST))
        return found

    def pack(self, texts: Iterable[str]) -> dict[str, Any]:
        """A column of texts: their numbers, packed."""
        return {"text": packed(np.fromiter(map(self.number, texts), dtype=np.int64))}


def packed(values: NDArray[Any] | Sequence[int]) -> dict[str, Any]:
    """Numbers as the narrowest little-endian type that holds them, in base64: ``{"type": "u2", "data": "AAEC…"}``.

    Floating point becomes float32 where that leaves seven digits of every value, else float64. NaN and infinities stay.
    Of a column that holds one value only, ``data`` is that value and ``repeat`` says how often.
    """
    array = np.asarray(values)
    kind = _float_type(array) if array.dtype.kind == "f" else _integer_type(array)
    data = np.ascontiguousarray(array, dtype=f"<{kind}").tobytes()
    width = int(kind[1])
    if len(array) > 1 and data == data[:width] * len(array):
        return {"type": kind, "data": base64.b64encode(data[:width]).decode("ascii"), "repeat": len(array)}
    return {"type": kind, "data": base64.b64encode(data).decode("ascii")}


def _integer_type(array: NDArray[Any]) -> str:
    low, high = (int(array.min()), int(array.max())) if array.size else (0, 0)
    for kind in _INTEGERS:
        limits = np.iinfo(kind)
        if limits.min <= low and high <= limits.max:
            return kind
    return "f8"


def _float_type(array: NDArray[Any]) -> str:
    finite = array[np.isfinite(array)].astype(np.float64)
    with np.errstate(all="ignore"):
        error = np.abs(finite.astype(np.float32).astype(np.float64) - finite)
    return "f4" if bool(np.all(error <= _ROUNDING * np.abs(finite))) else "f8"


def number(value: float | None) -> float | str | None:
    """A number as strict JSON has it: NaN and infinities as the texts that JavaScript's ``Number`` reads."""
    if value is None or math.isfinite(value):
        return value
    return "NaN" if math.isnan(value) else "Infinity" if value > 0 else "-Infinity"


def script_json(value: Any) -> str:
    """JSON that may stand in a script block: pure ASCII, and no character that ends the block or begins a comment."""
    text = json.dumps(value, ensure_ascii=True, allow_nan=False, separators=(",", ":"))
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


def shown_frames(frames: Iterable[str]) -> list[str]:
    """Frames of a call stack, a line each."""
    return [shortened(" ".join(frame[:_LOOKED_AT].split()), _LONGEST_FRAME) for frame in islice(frames, MOST_FRAMES)]
