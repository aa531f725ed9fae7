"""Saving single variables: ``PrecisionDebugger.save`` at level debug, for any framework.

The variable is recorded under ``{name}.{n}.debug``, as it is. Its gradients go under ``{name}_grad.{n}.debug``: the
same structure with null for everything that has no gradient, written at once and again as gradients arrive.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, cast

from capture.errors import CaptureError
from capture.framework import Captured, Framework, Wanted
from capture.record import EntryRecord, Recorder
from capture.values import clean_text

if TYPE_CHECKING:
    from capture.config import CaptureConfig

__all__ = ["Records", "Saver"]

_Path: TypeAlias = "tuple[int | str, ...]"

# An entry with many gradients is written again about so many times, else the journal grows with their square.
_MOST_EDITIONS = 64


class Records(Protocol):
    """Where entries go; what the saver needs of :class:`capture.unit.StepRecords`."""

    def add(self, entry: EntryRecord) -> None:
        """Take an entry that is complete."""

    def reserve(self, entry: EntryRecord) -> None:
        """Take an entry that is still filled; at the end of the step it is taken as it is then."""

    def complete(self, entry: EntryRecord) -> None:
        """A reserved entry is complete."""


class Saver:
    """Counts and records variables. Nothing it does raises, and it keeps no tensor.

    Parameters
    ----------
    framework
        Whose tensors are saved.
    recorder
        Its limits and its reports of problems are used.
    config
        Task and summary mode say what is recorded of a tensor.
    """

    def __init__(self, framework: Framework, recorder: Recorder, config: CaptureConfig) -> None:
        self._framework = framework
        self.problem = recorder.on_problem
        self._watch = _Watch(framework)
        watched = cast("Framework", self._watch)  # it has the four members that a recorder uses
        self._recorder = Recorder(watched, max_depth=recorder.max_depth, on_problem=recorder.on_problem)
        self._wanted = Wanted(statistics=True, data=config.task == "tensor", md5=config.summary_mode == "md5")
        # A signal handler that saves may find its own thread in here.
        self._mutex = threading.RLock()
        self._records: Records | None = None
        self._counts: dict[str, int] = {}
        self._taken: set[str] = set()

    def save(self, variable: Any, name: object, records: Records, *, save_backward: bool = True) -> None:
        """Record a variable as it is now.

        Parameters
        ----------
        variable
            A value of any nesting.
        name
            Any text. It is a name and never a path; calls are counted by name in each step.
        records
            Those of the step in hand: new ones begin new counts.
        save_backward
            Record the gradients of its tensors too, when they come.
        """
        if not isinstance(name, str):
            self.problem("name", "", f"save(…, name={_shown(name)}): a name is a text; this variable is not saved")
            return
        name = clean_text(name)
        with self._guarded(name):
            number, key = self._next_key(name, records)
            entry = EntryRecord(key)
            with self._watch.watching() as seen:
                entry.value = self.record(variable, key, entry)
            # Before the writer has the entry and adds to its records.
            paths: list[tuple[_Path, Any]] = []
            outline = _outline(entry.value, (), {id(node): tensor for node, tensor in seen}, paths)
            records.add(entry)
            if save_backward:
                gradients = _Gradients(self, records, f"{name}_grad", number, outline)
                gradients.listen(self._framework, paths)

    def new_step(self) -> None:
        """The step is over: counts begin again, and gradients that come from now on are too late."""
        with self._mutex:
            self._begin(None)

    def arrived(self, gradients: _Gradients, path: _Path, gradient: Any) -> None:
        """A gradient has come; called by the framework, on any thread."""
        with self._guarded(gradients.name):
            if gradients.records is self._records:
                gradients.put(path, gradient)
                return
            text = "a gradient came after the end of its step and is lost: call step() after the backward pass"
            self.problem("late gradient", gradients.name, text)

    def record(self, value: Any, name: str, entry: EntryRecord) -> Any:
        """JSON of a value, as the task wants it."""
        return self._recorder.values(value, name, entry, self._wanted)

    def take_key(self, name: str, number: int) -> str:
        """The key of a call, or of the next one that no other variable has."""
        with self._mutex:
            return self._take(name, number)

    # --- inside ------------------------------------------------------------------------------------------------------

    @contextmanager
    def _guarded(self, where: str) -> Iterator[None]:
        """Work that the user's modes do not see, and whose failure costs one variable."""
        try:
            with self._framework.quiet():
                yield
        except Exception as error:  # noqa: BLE001 (whatever it is, the training goes on)
            self.problem(f"save {type(error).__name__}", where, clean_text(str(error)))

    def _next_key(self, name: str, records: Records) -> tuple[int, str]:
        with self._mutex:
            if records is not self._records:
                self._begin(records)
            number = self._counts.get(name, 0)
            while f"{name}.{number}.debug" in self._taken:  # by gradients: of `y`, before a variable called `y_grad`
                number += 1
            self._counts[name] = number + 1
            return number, self._take(name, number)

    def _take(self, name: str, number: int) -> str:
        while (key := f"{name}.{number}.debug") in self._taken:
            number += 1
        self._taken.add(key)
        return key

    def _begin(self, records: Records | None) -> None:
        self._records = records
        self._counts = {}
        self._taken = set()


class _Gradients:
    """The gradients of one variable, by backward pass. Holds names and JSON, no tensor.

    Parameters
    ----------
    name, number
        Of the key, ``{name}.{number}.debug``.
    outline
        The structure of the variable, with null for every leaf.
    """

    def __init__(self, saver: Saver, records: Records, name: str, number: int, outline: Any) -> None:
        self.name = name
        self.records = records
        self._saver = saver
        self._number = number
        self._outline = outline
        self._mutex = threading.RLock()
        self._expected = 0
        self._times: dict[_Path, int] = {}
        self._passes = [_Pass(saver, records, saver.take_key(name, number), outline)]

    def listen(self, framework: Framework, tensors: list[tuple[_Path, Any]]) -> None:
        """Write the entry without gradients, and ask the framework for them."""
        self._passes[0].announce()
        for path, tensor in tensors:
            # Counted first: the call back may come at once.
            self._expected += 1
            if not self._asked(framework, path, tensor):
                self._expected -= 1

    def _asked(self, framework: Framework, path: _Path, tensor: Any) -> bool:
        try:
            return framework.on_gradient(tensor, partial(self._saver.arrived, self, path))
        except CaptureError as error:
            self._saver.problem("no gradient", self.name, str(error))
            return False

    def put(self, path: _Path, gradient: Any) -> None:
        """Record the gradient of the tensor in a place: the first one, or that of a later backward pass."""
        with self._mutex:
            turn = self._times[path] = self._times.get(path, 0) + 1
            if turn > len(self._passes):
                key = self._saver.take_key(f"{self.name}~{turn}", self._number)
                self._passes.append(_Pass(self._saver, self.records, key, self._outline))
            self._passes[turn - 1].put(path, gradient, self._expected)


class _Pass:
    """The entry of one backward pass."""

    def __init__(self, saver: Saver, records: Records, key: str, outline: Any) -> None:
        self._saver = saver
        self._records = records
        self._key = key
        self._root = _copy(outline)
        self._filled = 0
        self._entry: EntryRecord | None = None
        self._in_entry = 0

    def announce(self) -> None:
        """Write the entry as far as it is known."""
        entry = EntryRecord(self._key)
        entry.value = _copy(self._root)
        self._records.add(entry)

    def put(self, path: _Path, gradient: Any, expected: int) -> None:
        """Fill a place, and write the entry again now or with the next ones."""
        if self._entry is None:
            self._entry = EntryRecord(self._key)
            self._entry.value = self._root
            self._records.reserve(self._entry)
        name = ".".join((self._key, *map(str, path)))
        self._fill(path, self._saver.record(gradient, name, self._entry))
        if self._in_entry * _MOST_EDITIONS >= expected or self._filled >= expected:
            # What is written from now on must not change while the writer reads it.
            self._entry.value = _copy(self._root)
            self._records.complete(self._entry)
            self._entry, self._in_entry = None, 0

    def _fill(self, path: _Path, node: Any) -> None:
        self._filled += 1
        self._in_entry += 1
        if not path:
            self._root = node
            return
        place = self._root
        for step in path[:-1]:
            place = place[step]
        place[path[-1]] = node


class _Watch:
    """A framework that notes which tensors it described, by thread, while somebody watches."""

    def __init__(self, framework: Framework) -> None:
        self.suffix, self.rules = framework.suffix, framework.rules
        self.is_tensor = framework.is_tensor
        self.leaf = framework.leaf
        self._describe = framework.describe
        self._local = threading.local()

    @contextmanager
    def watching(self) -> Iterator[list[tuple[dict[str, Any], Any]]]:
        """Nodes and tensors described in the block."""
        seen: list[tuple[dict[str, Any], Any]] = []
        self._local.seen = seen
        try:
            yield seen
        finally:
            self._local.seen = None

    def describe(self, tensor: Any, wanted: Wanted) -> Captured:
        """As the framework does."""
        found = self._describe(tensor, wanted)
        seen = getattr(self._local, "seen", None)
        if seen is not None:
            seen.append((found.node, tensor))
        return found


def _shown(value: object) -> str:
    """What a message calls a value that may be anything."""
    try:
        return clean_text(f"{value!r:.200}")
    except Exception:  # noqa: BLE001 (an object of the program, which cannot say what it is)
        return f"a {type(value).__name__}"


def _outline(node: Any, path: _Path, tensors: dict[int, Any], found: list[tuple[_Path, Any]]) -> Any:
    """The structure with null for every leaf; where tensors are goes to ``found``."""
    if id(node) in tensors:
        found.append((path, tensors[id(node)]))
    elif isinstance(node, list):
        return [_outline(part, (*path, at), tensors, found) for at, part in enumerate(node)]
    elif isinstance(node, dict) and not isinstance(node.get("type"), str):  # a text there marks a record
        return {key: _outline(part, (*path, key), tensors, found) for key, part in node.items()}
    return None


def _copy(node: Any) -> Any:
    """The containers anew, with the same records in them: the writer adds names of data to those."""
    if isinstance(node, list):
        return [_copy(part) for part in node]
    if isinstance(node, dict) and not isinstance(node.get("type"), str):
        return {key: _copy(part) for key, part in node.items()}
    return node
