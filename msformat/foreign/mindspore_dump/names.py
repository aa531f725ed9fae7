"""File names of ``ops.TensorDump``: the four shapes, and how a name that fits several of them is read.

::

    {name}_{dtype}_{id}.npy                        2.5 and later, output slice
    {name}_{mode}_{dtype}_{id}.npy                 2.5 and later, input slice (mode "in")
    {id}_{name}.npy                                2.4 and earlier, output slice
    {id}_{name}_{cNode}_{mode}_{rank}.npy          2.4 and earlier, input slice (mode "in" or "all")

(MindSpore's documents of ``ops.TensorDump`` for 2.4.1, 2.5.0 and 2.7.0.) ``id`` is one counter a process, in the order
of execution. The name is the user's: it may hold underscores, digits, dots, and what looks like a type.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import NamedTuple

from msformat.dtypes import known_dtypes
from msformat.names import natural_key

__all__ = ["SUFFIX", "SavedFile", "parse_file_name", "parse_file_names"]

SUFFIX = ".npy"
# The longest first, or float8_e4m3fn would be a type e4m3fn of a tensor called x_float8.
_DTYPES = "|".join(sorted((dtype.name for dtype in known_dtypes()), key=lambda name: (-len(name), name)))
_ID = r"[0-9]{1,18}"
_NEW = re.compile(rf"(?P<name>.+?)(?:_(?P<mode>in|out))?_(?P<dtype>{_DTYPES})_(?P<id>{_ID})\.npy", re.DOTALL)
_OLD_SLICE = re.compile(
    rf"(?P<id>{_ID})_(?P<name>.+?)_(?P<node>(?:CNode_?)?{_ID})_(?P<mode>in|out|all)_(?P<rank>{_ID})\.npy",
    re.DOTALL | re.IGNORECASE,
)
_OLD = re.compile(rf"(?P<id>{_ID})_(?P<name>.+)\.npy", re.DOTALL)


class SavedFile(NamedTuple):
    """What a file name says.

    Attributes
    ----------
    file
        The name itself.
    name
        What the user called the tensor; a path in a structure and ``_grad`` are part of it.
    number
        ``id``: the order of execution.
    dtype
        Element type before it was written: ``bfloat16`` means float32 values that were bfloat16. None in old names.
    mode
        ``in`` or ``all`` for an input slice, ``out`` for an output slice that says so, else None.
    node, rank
        Number of the node and of the rank, in old names of input slices.
    """

    file: str
    name: str
    number: int
    dtype: str | None = None
    mode: str | None = None
    node: str | None = None
    rank: int | None = None

    @property
    def variable(self) -> str:
        """What the tensor is called in the dump: its name, and the mode, which nobody can tell from a name's end.

        An input slice of ``x`` and a tensor that the user called ``x_in`` make the same file name; so they do here.
        """
        return f"{self.name}_{self.mode}" if self.mode is not None else self.name


def parse_file_name(file: str, *, old: bool = False) -> SavedFile | None:
    """Take a file name apart; None for any other.

    Parameters
    ----------
    file
        ``x_float32_0.npy``.
    old
        Read a name that fits old and new shapes (``0_x_float32_1.npy``) as an old one.
    """
    shapes = (_OLD_SLICE, _OLD, _NEW) if old else (_NEW, _OLD_SLICE, _OLD)
    found = next((match for shape in shapes if (match := shape.fullmatch(file)) is not None), None)
    if found is None:
        return None
    parts = found.groupdict()
    rank = parts.get("rank")
    return SavedFile(
        file=file,
        name=parts["name"],
        number=int(parts["id"]),
        dtype=parts.get("dtype"),
        mode=parts.get("mode"),
        node=parts.get("node"),
        rank=None if rank is None else int(rank),
    )


def parse_file_names(files: Iterable[str]) -> tuple[list[SavedFile], list[str]]:
    """The files of one directory in the order of execution, and those whose names are none of TensorDump's.

    One release writes a directory: where no name has a new shape alone but some have an old one alone, names that fit
    both are old.
    """
    names = sorted(files, key=natural_key)
    new = [_NEW.fullmatch(name) is not None for name in names]
    old = [_OLD.fullmatch(name) is not None for name in names]
    is_old = any(o and not n for n, o in zip(new, old, strict=True)) and not any(
        n and not o for n, o in zip(new, old, strict=True)
    )
    parsed = {name: parse_file_name(name, old=is_old) for name in names}
    found = [saved for saved in parsed.values() if saved is not None]
    found.sort(key=lambda saved: saved.number)
    return found, [name for name, saved in parsed.items() if saved is None]
