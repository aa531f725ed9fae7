"""Call stacks: raw while the model runs, texts when they are written.

A stack is taken at every call that is recorded, so it costs two attributes a frame: neither line numbers nor source
lines are looked up before the writing thread wants them.
"""

from __future__ import annotations

import linecache
import os
from types import CodeType, FrameType

__all__ = ["Frames", "StackTexts", "frame_texts", "frames_of"]

_OWN = os.path.dirname(os.path.abspath(__file__)) + os.sep


class Frames:
    """A raw call stack, innermost first. Equal stacks are equal, and it is a cheap key of a dict.

    Code objects themselves are poor keys: their hash reads all of their constants, and those of two files may be equal.

    Attributes
    ----------
    codes
        Code of each frame. Keeps the identities in ``key`` what they are.
    key
        Identity of the code and offset of the instruction of each frame.
    """

    __slots__ = ("codes", "key")

    def __init__(self, codes: list[CodeType], offsets: list[int]) -> None:
        self.codes = codes
        self.key = (*map(id, codes), *offsets)

    @property
    def offsets(self) -> tuple[int, ...]:
        """Where each frame is in its code."""
        return self.key[len(self.codes) :]

    def __len__(self) -> int:
        return len(self.codes)

    def __hash__(self) -> int:
        return hash(self.key)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Frames) and self.key == other.key


def frames_of(frame: FrameType | None, skip: int = 0) -> Frames:
    """The stack of a frame; no reference to a frame, and so to no local variable, is kept.

    Parameters
    ----------
    frame
        Where the stack begins, ``sys._getframe()``.
    skip
        Frames to leave out at the innermost end. Those of this package need not be: texts leave them out.
    """
    codes, offsets = [], []
    while frame is not None:
        codes.append(frame.f_code)
        offsets.append(frame.f_lasti)
        frame = frame.f_back
    return Frames(codes[skip:], offsets[skip:])


# Code made on the fly would otherwise collect for ever.
_MOST_PLACES = 1 << 16


class StackTexts:
    """Frames as the format writes them. Every place in a program is looked up once."""

    def __init__(self) -> None:
        # By identity: equal code objects may come from different files. The code is kept, so that its id stays its own.
        self._known: dict[tuple[int, int], tuple[CodeType, str | None]] = {}

    def texts(self, frames: Frames) -> list[str]:
        """``File {path}, line {n}, in {function}, \\n {source line}`` of each frame, innermost first.

        Frames of this package are left out. Where there is no source, the text ends after the line break.
        """
        return [text for text in map(self._text, frames.codes, frames.offsets) if text is not None]

    def _text(self, code: CodeType, offset: int) -> str | None:
        key = (id(code), offset)
        found = self._known.get(key)
        if found is None:
            if len(self._known) >= _MOST_PLACES:
                self._known.clear()
            found = self._known[key] = (code, _describe(code, offset))
        return found[1]


def frame_texts(frames: Frames) -> list[str]:
    """The texts of a single stack, see :class:`StackTexts`."""
    return StackTexts().texts(frames)


def _describe(code: CodeType, offset: int) -> str | None:
    if code.co_filename.startswith(_OWN):
        return None
    line = _line_of(code, offset)
    text = f"File {code.co_filename}, line {line}, in {code.co_name}, \n {_source(code.co_filename, line)}"
    # A path may hold bytes that are no text.
    return text if text.isascii() else text.encode("utf-8", "backslashreplace").decode()


def _line_of(code: CodeType, offset: int) -> int:
    lines = (line for start, end, line in code.co_lines() if start <= offset < end)
    return next(lines, None) or code.co_firstlineno


def _source(path: str, line: int) -> str:
    try:
        return linecache.getline(path, line).strip()
    except Exception:  # noqa: BLE001 (a loader of the user's is asked; a source line is worth no error)
        return ""
