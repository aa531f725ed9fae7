"""Where ``save`` and ``save_grad`` write: ``{save_dir}/step{N}/rank{R}``, as files of TensorDump or as one store.

Called from the program's threads and from those on which MindSpore runs its kernels, in the order of execution. Nothing
here raises into them: what cannot be written is said once, and the training goes on.
"""

from __future__ import annotations

import atexit
import contextlib
import json
import logging
import os
import re
import threading
from collections import Counter
from collections.abc import Callable
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

from capture.config import StorageConfig, try_store
from capture.whole import write_aside
from msformat import DType, DumpWriter, Header, MsformatError, safe_data_name, tensor_stats

__all__ = ["GRADIENT", "STORAGES", "Place", "SaveDirectories"]

_LOGGER = logging.getLogger("msformat.capture")
STORAGES = ("files", "hdf5", "zarr")
GRADIENT = "_grad"
# Names that msformat's reader of such directories looks for.
_EXPECTED = "save_grad.jsonl"
_MISSING = "missing_gradient"
_NUMBERED = re.compile(r"_([0-9]{1,18})\.npy")
_MOST_SAID = 1000
# A file name takes 255 bytes; type, number and suffix come behind the name.
_NAME_BYTES = 200


class Place(NamedTuple):
    """Where a tensor goes.

    Attributes
    ----------
    directory
        As the user named it.
    storage
        ``files`` (a ``.npy`` a tensor), ``hdf5`` or ``zarr``.
    """

    directory: str
    storage: str = "files"


class _Unit(Protocol):
    """One rank of one step in one place."""

    def put(self, name: str, bits: NDArray[Any], dtype: DType) -> None:
        """Write a tensor."""

    def expect(self, name: str) -> None:
        """``save_grad`` was called: a gradient is to come."""

    def finish(self) -> None:
        """The step is over."""


class SaveDirectories:
    """All places of a process, the step in hand, and the one counter of files.

    Parameters
    ----------
    rank
        Gives the rank of this process, None for a single one; asked when the first tensor comes.
    settle
        Waits for what the program has started: a graph may run behind it, and save after the program's last line.

    Attributes
    ----------
    step
        Number of the step in hand.
    """

    def __init__(self, rank: Callable[[], int | None], settle: Callable[[], None]) -> None:
        self.step = 0
        self._rank = rank
        self._settle = settle
        self._number = 0
        self._mutex = threading.RLock()
        self._units: dict[Place, _Unit | None] = {}
        self._storages: dict[str, str] = {}
        self._said: set[tuple[str, str, str]] = set()
        self._pid = os.getpid()

    def put(self, place: Place, name: str, bits: NDArray[Any], dtype: DType) -> None:
        """Write a tensor; ``bits`` (``dtype.storage``) stay the caller's."""
        self._guarded(place, lambda unit: unit.put(name, bits, dtype), name)

    def await_end(self, storage: str) -> None:
        """Have the end of the process wait for what the program has started, and make the step in hand whole."""
        _load(storage)
        if not self._units or not any(self._units.values()):
            atexit.unregister(self.close)
            atexit.register(self.close)

    def expect(self, place: Place, name: str) -> None:
        """Note that the gradient of ``name`` was asked for."""
        self._guarded(place, lambda unit: unit.expect(name), name)

    def next_step(self) -> None:
        """End the step: what is written from now on goes into the next step's directory."""
        self.finish()
        self.step += 1

    def close(self) -> None:
        """The process ends."""
        try:
            self._settle()
        except Exception as error:  # noqa: BLE001 (the program's own, which it did not wait for)
            _LOGGER.warning("the program ended with an error of a kernel: %s", error)
        self.finish()

    def finish(self) -> None:
        """Make every unit of the step whole."""
        with self._mutex:
            units, self._units = self._units, {}
            for place, unit in units.items():
                if unit is not None:
                    self._attempt(place, unit.finish, "the end of the step")

    def problem(self, place: Place, name: str, text: str) -> None:
        """Say once what was not saved."""
        if (where := (place.directory, name, text)) not in self._said and len(self._said) < _MOST_SAID:
            self._said.add(where)
            _LOGGER.warning("save into %s: %s: %s (said once; the training goes on)", place.directory, name, text)

    # --- inside ------------------------------------------------------------------------------------------------------

    def _guarded(self, place: Place, action: Callable[[_Unit], None], name: str) -> None:
        if os.getpid() != self._pid:
            return  # a forked worker leaves the parent's files alone
        with self._mutex:
            unit = self._unit(place)
            if unit is not None and not self._attempt(place, lambda: action(unit), name):
                self._units[place] = None

    def _attempt(self, place: Place, action: Callable[[], None], name: str) -> bool:
        try:
            action()
        except Exception as error:  # noqa: BLE001 (a full disk, a lost server: not the training's fault)
            self.problem(place, name, f"{type(error).__name__}: {error}; nothing more is saved there in this step")
            return False
        return True

    def _unit(self, place: Place) -> _Unit | None:
        """The open unit of a place; None where it cannot be written."""
        if place not in self._units:
            self._units[place] = None
            self._attempt(place, lambda: self._open(place), "a new step")
        return self._units[place]

    def _open(self, place: Place) -> None:
        known = self._storages.setdefault(os.path.abspath(place.directory), place.storage)
        if known != place.storage:
            raise ValueError(f"this directory is written as {known} already, and a dump has one storage")
        self.await_end(place.storage)
        directory = Path(place.directory) / f"step{self.step}" / f"rank{self._rank() or 0}"
        self._units[place] = (
            _NpyFiles(directory, self._next_number)
            if place.storage == "files"
            else _Container(directory, place.storage)
        )

    def _next_number(self, at_least: int) -> int:
        number = max(self._number, at_least)
        self._number = number + 1
        return number


class _NpyFiles:
    """``{name}_{dtype}_{id}.npy``, as ops.TensorDump writes them; each is whole or not there."""

    def __init__(self, directory: Path, next_number: Callable[[int], int]) -> None:
        directory.mkdir(parents=True, exist_ok=True)
        self._directory = directory
        self._next_number = next_number
        self._is_shared = False
        found = [int(match[1]) for name in os.listdir(directory) if (match := _NUMBERED.search(name))]
        self._first = max(found, default=-1) + 1
        if found:
            _LOGGER.warning(
                "%s holds files of an earlier run, which are kept: new ones are numbered from %s",
                directory,
                self._first,
            )

    def put(self, name: str, bits: NDArray[Any], dtype: DType) -> None:
        """Write a file. bfloat16 becomes float32, exactly, as no ``.npy`` can hold it."""
        array = dtype.widen_bfloat16(bits) if dtype.name == "bfloat16" else bits
        stem = f"{_short(name)}_{dtype.name}"
        temporary = write_aside(
            self._directory / stem,
            lambda stream: np.lib.format.write_array(stream, np.asarray(array), allow_pickle=False),
        )
        try:
            self._publish(temporary, stem)
        finally:
            temporary.unlink(missing_ok=True)

    def _publish(self, temporary: Path, stem: str) -> None:
        """Give a file the next number that is free: another process that knows of no rank may write here, too."""
        while True:
            file = self._directory / f"{stem}_{self._next_number(self._first)}.npy"
            try:
                _name_without_replacing(temporary, file)
            except FileExistsError:
                self._say_shared()
                continue
            return

    def _say_shared(self) -> None:
        if not self._is_shared:
            self._is_shared = True
            _LOGGER.warning(
                "%s: another process saves there, too. Nothing is overwritten, but whose a file is cannot be told: "
                "give each process a rank (init()) or a directory of its own",
                self._directory,
            )

    def expect(self, name: str) -> None:
        """A line a call, so that a verifier can count what came against what was asked for."""
        with open(self._directory / _EXPECTED, "a", encoding="utf-8") as stream:
            stream.write(json.dumps({"name": _harmless(name)}) + "\n")

    def finish(self) -> None:
        """Nothing is open."""


def _name_without_replacing(temporary: Path, file: Path) -> None:
    """Give a file its name, unless it is taken: no call on all systems renames a file without replacing another.

    Raises
    ------
    FileExistsError
        It is taken.
    """
    try:
        os.link(temporary, file)
    except FileExistsError:
        raise
    except OSError:
        # No hard links there: taken by being made. A death in between leaves an empty file.
        os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))
        try:
            os.replace(temporary, file)
        except BaseException:
            file.unlink(missing_ok=True)
            raise


@lru_cache(maxsize=len(STORAGES))
def _load(storage: str) -> None:
    """Import what a storage needs before we ask for the end of the process.

    Exit handlers run last in, first out. That of h5py takes its converters out of the HDF5 library, and a kernel's
    thread may be inside the library until ours has waited for it.
    """
    if storage != "files":
        with contextlib.suppress(MsformatError, OSError):  # said when the container is opened
            try_store(StorageConfig(format=storage))


def _short(name: str) -> str:
    """The name in a file's name; a gradient's is that of its tensor and ``_grad``."""
    end = GRADIENT if name.endswith(GRADIENT) else ""
    return _harmless(name.removesuffix(GRADIENT)) + end


def _harmless(name: str) -> str:
    """A name that leaves room in a file name and leads nowhere."""
    return safe_data_name(name if len(name.encode("utf-8", "replace")) <= _NAME_BYTES else f"/{name}")


class _Container:
    """``dump.h5`` or ``dump.zarr`` with an entry ``{name}.{n}.debug`` a call, as ``PrecisionDebugger.save`` has."""

    def __init__(self, directory: Path, storage: str) -> None:
        header = Header(task="tensor", level="debug", framework="mindspore")
        self._writer = DumpWriter(directory, header, backend=storage, document="debug.json")
        self._counts: Counter[str] = Counter()
        self._asked: Counter[str] = Counter()

    def put(self, name: str, bits: NDArray[Any], dtype: DType) -> None:
        """Write a tensor and its entry."""
        key = f"{name}.{self._counts[name]}.debug"
        self._counts[name] += 1
        data_name = self._writer.data_name(f"{key}.npy")
        self._writer.put_tensor(data_name, bits, dtype)
        stats = tensor_stats(bits, dtype)
        record = {
            "type": "mindspore.Tensor",
            "dtype": dtype.mindspore_name,
            "shape": list(dtype.logical_shape(bits.shape)),
            "Max": stats.max,
            "Min": stats.min,
            "Mean": stats.mean,
            "Norm": stats.norm,
            "data_name": data_name,
        }
        self._writer.put_entry(key, record)

    def expect(self, name: str) -> None:
        """An entry that says what is missing, until the first gradient takes its place."""
        self._asked[name] += 1
        # A graph runs what does not depend on one another in any order: the gradient may have come already.
        if not self._counts[name + GRADIENT]:
            self._writer.put_entry(f"{name}{GRADIENT}.0.debug", {"type": _MISSING, "value": self._asked[name]})

    def finish(self) -> None:
        """Write the documents."""
        self._writer.finish()
