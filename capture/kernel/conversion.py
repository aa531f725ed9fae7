"""Takes the kernel files of a step into the dump's store, behind the training, and says when there are none."""

from __future__ import annotations

import contextlib
import os
import shutil
import stat
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, Protocol

from capture.earlier import is_occupied, remove_unit
from msformat import ConvertOptions, convert_dump

if TYPE_CHECKING:
    from capture.config import StorageConfig

__all__ = ["KernelFiles", "Places"]

Problem = Callable[[str, str, str], None]
# How msformat ends what it says of files that it did not take along.
_LEFT_ALONE = "[left-alone]"
# What says that a unit is whole comes last.
_DOCUMENTS = ("stack.json", "construct.json", "dump.json")


class Places(Protocol):
    """Where the kernels of steps lie."""

    def source(self, number: int) -> Path:
        """A directory that holds those of a step, perhaps with those of other steps."""

    def parts(self, number: int) -> list[Path]:
        """Directories that hold nothing but those of the step."""


@dataclass(frozen=True, slots=True)
class KernelFiles:
    """The kernel files of one step, once the device has written them.

    Attributes
    ----------
    step
        Number of the step.
    places
        Where they are.
    unit_dir
        Where they go in the dump.
    storage
        What becomes of them.
    absent
        What it means when there are none, in words; None when that was said already.
    on_problem
        Told what went wrong: kind, place, text.
    """

    step: int
    places: Places
    unit_dir: Path
    storage: StorageConfig
    absent: str | None
    on_problem: Problem

    def settle(self) -> None:
        """Do what the storage asks for. A job of the writing thread: it raises nothing."""
        if not any(_has_files(part) for part in self.places.parts(self.step)):
            if self.absent is not None:
                self.on_problem("no kernels", f"step {self.step}", self.absent)
            return
        if self.storage.kernels == "keep":
            return
        try:
            self._convert()
        except Exception as error:  # noqa: BLE001 (nothing here may reach the training)
            self._tell(f"not converted, and kept as they are in {self._source}: {type(error).__name__}: {error}")

    @property
    def _source(self) -> Path:
        return self.places.source(self.step)

    def _convert(self) -> None:
        if self.storage.overwrite:
            remove_unit(self.unit_dir)
        if is_occupied(self.unit_dir):
            raise FileExistsError(f"{self.unit_dir} holds another dump")
        # Beside the steps: a destination must neither lie in its source nor around it.
        aside = self.unit_dir.parents[1] / f".kernels-{self.unit_dir.parent.name}-{self.unit_dir.name}"
        shutil.rmtree(aside, ignore_errors=True)
        if os.path.lexists(aside):
            raise FileExistsError(f"{aside} is in the way")
        parts = self.places.parts(self.step)
        before = _files_of(parts)
        try:
            problems, notes = self._convert_into(aside)
        finally:
            shutil.rmtree(aside, ignore_errors=True)
        if problems:
            kept = f"; not removed from {self._source}" if self.storage.kernels == "move" else ""
            self._tell(f"not all is in {self.unit_dir}{kept}: {'; '.join(problems)}")
        elif self.storage.kernels == "move":
            self._remove(parts, before, notes)

    def _remove(self, parts: Sequence[Path], before: Mapping[Path, _State], notes: Sequence[str]) -> None:
        """Remove what was taken over and compared, and nothing else."""
        left = [note for note in notes if note.endswith(_LEFT_ALONE) and any(str(part) in note for part in parts)]
        left += [f"{path} is no regular file" for path, state in before.items() if not stat.S_ISREG(state.mode)]
        now = _files_of(parts)
        left += [f"{path} came or changed meanwhile" for path, state in now.items() if before.get(path) != state]
        if left:
            self._tell(f"not removed from {self._source}: {'; '.join(left)}")
            return
        for path in before:
            path.unlink(missing_ok=True)
        for part in parts:
            for directory, _, _ in os.walk(part, topdown=False):
                with contextlib.suppress(OSError):  # something came into it
                    os.rmdir(directory)

    def _tell(self, text: str) -> None:
        """Of every step: no dump lists what the log leaves out."""
        self.on_problem(f"kernels of step {self.step}", f"step {self.step}", text)

    def _convert_into(self, aside: Path) -> tuple[list[str], list[str]]:
        """Convert, compare, give the unit its place; what could not be taken along, and what is good to know."""
        storage = self.storage
        options = ConvertOptions(
            to=storage.format,
            compression=storage.compression,
            links=storage.links,
            steps=frozenset({self.step}),
            verify=True,
        )
        report = convert_dump(self._source, aside, options)
        units = [unit for unit in report.units if not unit.failed]
        problems = [*report.problems, *(problem for unit in report.units for problem in unit.problems)]
        if len(units) != 1:
            found = ", ".join(unit.key for unit in units) or "none"
            raise ValueError("; ".join([f"one unit was expected, there are: {found}", *problems]))
        _put_in_place(aside / units[0].key, self.unit_dir)
        return problems, units[0].notes


class _State(NamedTuple):
    """What tells that a file is the one that was seen before."""

    mode: int
    inode: int
    size: int
    changed: int


def _files_of(parts: Iterable[Path]) -> dict[Path, _State]:
    """Everything but directories, links not followed."""
    found: dict[Path, _State] = {}
    for part in parts:
        for directory, folders, files in os.walk(part):
            for path in (Path(directory, name) for name in (*files, *folders)):
                state = path.lstat()
                if not stat.S_ISDIR(state.st_mode):
                    found[path] = _State(state.st_mode, state.st_ino, state.st_size, state.st_mtime_ns)
    return found


def _has_files(part: Path) -> bool:
    return any(names for _, _, names in os.walk(part))


def _put_in_place(made: Path, unit_dir: Path) -> None:
    """In one go where nothing is there yet; beside the device's directories otherwise."""
    unit_dir.parent.mkdir(parents=True, exist_ok=True)
    if not unit_dir.exists():
        os.rename(made, unit_dir)
        return
    names = sorted(os.listdir(made), key=lambda name: (name in _DOCUMENTS, name))
    moved: list[Path] = []
    try:
        for name in names:
            os.rename(made / name, unit_dir / name)
            moved.append(unit_dir / name)
    except OSError:
        for path in moved:  # half a unit would be taken for a whole one
            with contextlib.suppress(OSError):
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        raise
