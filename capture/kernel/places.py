"""Where a device leaves the kernels of a step, and what an earlier run left there.

=====================================================  =======================================================
``step{N}/{time}/{device}/``                           the kernels of an API, in a run of one process
``step{N}/rank{R}/{time}/{device}/``                   the same, of one rank of several
``rank_{R}/{net}/{graph}/{N}/``                        the kernels of static graphs of MindSpore
=====================================================  =======================================================

The peer lets all ranks write into ``step{N}``. There the directory's name is a second and a device's number, so ranks
of two machines that share a disk may write into one.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from capture.errors import CaptureError

__all__ = ["ApiPlaces", "GraphPlaces", "refuse_or_remove"]

_TIME = re.compile(r"20[0-9]{12}")
_STEP = re.compile(r"step([0-9]{1,18})")
_NUMBER = re.compile(r"[0-9]{1,18}")
# MindSpore writes these beside the kernels; a directory without any of them is somebody else's.
_BESIDE = ("execution_order", "graphs", ".dump_metadata")


class ApiPlaces:
    """Directories of an API's kernels.

    Parameters
    ----------
    dump_path
        Of the dump.
    rank
        Of this process, None for a single one.
    """

    def __init__(self, dump_path: Path, rank: int | None) -> None:
        self._dump_path, self._rank = dump_path, rank

    def step_directory(self, number: int) -> Path:
        """What the device is told to write into."""
        directory = self._dump_path / f"step{number}"
        return directory if self._rank is None else directory / f"rank{self._rank}"

    def config_path(self, number: int) -> Path:
        """The device's settings; every rank has a file of its own."""
        suffix = "" if self._rank is None else f"_{self._rank}"
        return self._dump_path / f"step{number}" / f"kernel_config{suffix}.json"

    def source(self, number: int) -> Path:
        """Where the kernels of a step are found."""
        return self.step_directory(number)

    def parts(self, number: int) -> list[Path]:
        """Directories that hold nothing but kernels of the step."""
        return [path for path in _directories(self.step_directory(number)) if _TIME.fullmatch(path.name)]

    def earlier(self, is_wanted: Callable[[int], bool]) -> list[Path]:
        """Kernels of wanted steps that lie there already."""
        return [part for number in _steps(self._dump_path) if is_wanted(number) for part in self.parts(number)]


class GraphPlaces:
    """Directories of the kernels of static graphs, as MindSpore names them; it counts a single process as rank 0."""

    def __init__(self, dump_path: Path, rank: int | None) -> None:
        self._directory = dump_path / f"rank_{rank or 0}"

    def source(self, number: int) -> Path:
        """Where the kernels of a step are found, among others."""
        del number
        return self._directory

    def parts(self, number: int) -> list[Path]:
        """Directories that hold nothing but kernels of the step."""
        return [part for part in self._iterations() if int(part.name) == number]

    def earlier(self, is_wanted: Callable[[int], bool]) -> list[Path]:
        """Kernels of wanted steps that lie there already."""
        if not any((self._directory / name).is_dir() for name in _BESIDE):
            return []
        return [part for part in self._iterations() if is_wanted(int(part.name))]

    def _iterations(self) -> Iterator[Path]:
        for net in _directories(self._directory):
            for graph in _directories(net):
                yield from (part for part in _directories(graph) if _NUMBER.fullmatch(part.name))


def refuse_or_remove(parts: Iterable[Path], *, overwrite: bool) -> None:
    """Make room for a dump where an earlier one lies.

    Raises
    ------
    CaptureError
        There is one, and it may not be removed.
    """
    for part in parts:
        if not overwrite:
            raise CaptureError(
                f"{part} holds kernels of an earlier run, which are never mixed with new ones: "
                'choose another dump_path, or say "storage": {"overwrite": true} in config.json'
            )
        shutil.rmtree(part)


def _steps(dump_path: Path) -> list[int]:
    found = (_STEP.fullmatch(path.name) for path in _directories(dump_path))
    return [int(match[1]) for match in found if match]


def _directories(path: Path) -> list[Path]:
    """Its directories in order, links left out; none where it cannot be read."""
    try:
        with os.scandir(path) as items:
            return sorted(path / item.name for item in items if item.is_dir(follow_symlinks=False))
    except OSError:
        return []
