"""One debugger's life: which step it is, whether anything is recorded, and where it goes.

The session opens a unit when a wanted step begins, hands it over to the writer thread when the step ends, and closes it
when the process does. It raises only from calls the user makes, and there only what the user can mend.
"""

from __future__ import annotations

import atexit
import functools
import logging
import os
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Literal, ParamSpec, Protocol, TypeVar

from capture.earlier import is_occupied, refuse_earlier, remove_unit
from capture.errors import CaptureError
from capture.observer import Observer
from capture.queue import WriteQueue
from capture.scope import Scope
from capture.sink import UnitSink
from capture.stacks import StackTexts
from capture.unit import StepRecords
from msformat import DumpWriter, Header, StoreOptions

if TYPE_CHECKING:
    from capture.config import CaptureConfig
    from capture.framework import Framework

__all__ = ["Hooks", "Session"]

_LOGGER = logging.getLogger("msformat.capture")
# A fault in every call of a long step is said often enough by then.
_MOST_PROBLEMS = 1000
# What a killed process loses at most; each commit waits for the disk, on the writer's thread.
_COMMIT_ENTRIES = 128


_P = ParamSpec("_P")
_R = TypeVar("_R")


def _one_at_a_time(method: Callable[Concatenate[Session, _P], _R]) -> Callable[Concatenate[Session, _P], _R]:
    """Let other threads wait: a start that meets a stop would leave hooks that nobody takes off."""

    @functools.wraps(method)
    def alone(session: Session, /, *args: _P.args, **kwargs: _P.kwargs) -> _R:
        with session.control:
            return method(session, *args, **kwargs)

    return alone


class Hooks(Protocol):
    """A framework's hooks on a model and on its functions, there only while something is recorded."""

    def install(self, model: Any) -> None:
        """Set the hooks."""

    def finish(self) -> None:
        """Record what no hook brought; called while recording still goes on."""

    def new_step(self) -> None:
        """Let go of what a step left waiting."""

    def remove(self) -> None:
        """Take every one of them off again."""

    def never_fired(self) -> list[str]:
        """Paths of modules that were hooked and never called."""

    def add_custom(self, module: Any, api_name: str, prefix: str) -> None:
        """Record calls of ``module.api_name`` too, from now on, while the hooks are set."""

    def remove_custom(self, module: Any, api_name: str) -> None:
        """Undo ``add_custom``."""


class _Capturing:
    """Which session of this process captures: hooks of two would record each other."""

    session: weakref.ReferenceType[Session] | None = None

    @classmethod
    def take(cls, session: Session) -> None:
        other = cls.session() if cls.session is not None else None
        if other is not None and other is not session and other.observer.running:
            raise CaptureError(
                f"another debugger is capturing into {other.config.dump_path}; stop() it before you start this one"
            )
        cls.session = weakref.ref(session)


class Session:
    """Steps, units and problems of one debugger."""

    said_once = "said once; the dump lists every place"

    def __init__(self, config: CaptureConfig, framework: Framework) -> None:
        self.config = config
        self.framework = framework
        self.scope = Scope(config)
        self.observer = self._make_observer()
        self.queue = WriteQueue(config.max_queue_bytes)
        self.step_number = 0
        self.rank: int | None = None
        self._records: StepRecords | None = None
        self._hooks: Hooks | None = None
        self._pid = os.getpid()
        self._mutex = threading.RLock()
        # Apart from the mutex, which the writer's thread takes while a step may wait for the writer.
        self.control = threading.RLock()
        self._kinds: set[str] = set()
        self._said: set[tuple[str, str]] = set()
        self._failure: BaseException | None = None
        self._texts = StackTexts()
        self._is_ready = False
        self._is_closed = False
        self.captured_steps = 0
        self._seen_steps: list[int] = []
        self._started_empty = False
        self._opened_steps: set[int] = set()
        self.has_entries_elsewhere = False  # this step's went into a unit beside ours: ours may be empty

    # --- what the debugger calls -------------------------------------------------------------------------------------

    @property
    def is_closed(self) -> bool:
        """Whether it captures no more."""
        return self._is_closed

    @property
    def is_capturing(self) -> bool:
        """Whether hooks are set."""
        return self._hooks is not None

    @property
    def is_wanted(self) -> bool:
        """Whether this step of this rank is to be recorded."""
        self._prepare()
        if self._failure is not None or not self._is_wanted_rank:
            return False
        return self._is_wanted_step(self.step_number) and self._has_room()

    def prepare(self) -> None:
        """What must come before the program's first step, wanted or not."""

    @_one_at_a_time
    def start(self, hooks: Hooks, model: Any, *, paused: bool = False) -> bool:
        """Begin to record, if this step is wanted; ``paused`` sets the hooks only (token ranges switch later).

        Raises
        ------
        CaptureError
            Another debugger captures; a dump lies where this one would go; or an earlier failure (``on_error: raise``).
        """
        self._raise_failure()
        if not self.is_wanted:
            return False
        if self.observer.running or self._hooks is not None:
            return True
        _Capturing.take(self)
        self._open()
        self._hooks = hooks
        try:
            hooks.install(model)
        except BaseException:
            self.pause()
            raise
        self._started_empty = True
        self.observer.running = not paused
        return True

    @_one_at_a_time
    def pause(self) -> None:
        """Stop recording and take the hooks off; the unit stays open for more of the same step."""
        hooks, self._hooks = self._hooks, None
        try:
            if hooks is not None and self.observer.running:
                hooks.finish()
        finally:
            self.observer.running = False
            if hooks is not None:
                self._report_unfired(hooks)
                hooks.remove()
                hooks.new_step()

    @_one_at_a_time
    def stop(self) -> None:
        """End recording for now. What was recorded is handed to the writer."""
        if self._hooks is None and not self.observer.running:
            return
        self.pause()
        if self._records is not None:
            self._records.flush(everything=True)
        self._raise_failure()

    @_one_at_a_time
    def step(self) -> None:
        """End the step: its unit is finished behind the training, and the next step has the next number."""
        self.stop()
        self._finish()
        self._seen_steps.append(self.step_number)
        del self._seen_steps[:-20]
        self.step_number += 1
        self._raise_failure()

    @_one_at_a_time
    def abandon(self, reason: BaseException | str) -> None:
        """The step ended too early: what was recorded stays, marked incomplete, and the next step begins."""
        try:
            self.pause()
        except Exception as error:  # noqa: BLE001 (the program's own, and most likely the reason itself)
            self.problem("error at the end", "", f"{type(error).__name__}: {error}")
        records = self._leave()
        if records is not None:
            records.flush(everything=True)
            cause = reason if isinstance(reason, str) else f"{type(reason).__name__}: {reason}"
            records.sink.close(f"step {self.step_number} ended by {cause}")
        self.step_number += 1

    @_one_at_a_time
    def set_init_step(self, number: int) -> None:
        """Number of the step in hand."""
        self.stop()
        self._finish()
        self.step_number = number

    @_one_at_a_time
    def records(self) -> StepRecords:
        """Records of the step in hand, opening its unit if need be (saved variables come without a start)."""
        self._prepare()
        self._open()
        assert self._records is not None
        return self._records

    def wait(self, timeout: float | None = None) -> None:
        """Come back when everything recorded so far is written."""
        records = self._records
        if records is not None:
            records.flush()
        self.queue.drain(timeout)

    @_one_at_a_time
    def close(self) -> None:
        """The process or the debugger ends: finish what was stopped, mark what was not, say what matched nothing."""
        if os.getpid() != self._pid:
            return
        atexit.unregister(self.close)
        interrupted = self._hooks is not None and self.config.level != "debug"
        if interrupted:
            self.pause()
            records = self._leave()
            if records is not None:
                records.flush(everything=True)
                records.sink.close(f"the process ended in the middle of step {self.step_number}")
        self._finish()
        self.queue.drain()
        self.queue.close()
        if not self._is_closed:
            self._is_closed = True
            self._report_unmatched()

    # --- problems ----------------------------------------------------------------------------------------------------

    def problem(self, kind: str, where: str, text: str) -> None:
        """Say a problem of a kind once, and record each place of it in the dump."""
        with self._mutex:
            if (kind, where) in self._said or len(self._said) >= _MOST_PROBLEMS:
                return
            self._said.add((kind, where))
            message = f"{where}: {text}" if where else text
            if kind not in self._kinds:
                self._kinds.add(kind)
                _LOGGER.warning("capture: %s (%s)", message, self.said_once)
            if self._records is not None:
                self._records.sink.put_problem(f"{kind}: {message}")

    def failed(self, where: str, error: BaseException) -> None:
        """The writer died (disk full, …): capture ends, training goes on. Called on the writer's thread."""
        is_first = self._failure is None  # of several steps that were on their way
        self._failure = error
        self.observer.running = False
        log = _LOGGER.error if is_first else _LOGGER.debug
        log("capture ends, training goes on: %s: %s", where, error)

    # --- inside ------------------------------------------------------------------------------------------------------

    def _make_observer(self) -> Observer:
        return Observer(self.config, self.framework, self.scope, self.problem)

    def _refuse_earlier(self) -> None:
        if not self.config.storage.overwrite:
            refuse_earlier(Path(self.config.dump_path), self._rank_name, self._is_to_come)

    @property
    def _is_wanted_rank(self) -> bool:
        return self.config.ranks is None or self.rank in self.config.ranks

    def _is_to_come(self, number: int) -> bool:
        return number >= self.step_number and self._is_wanted_step(number)

    def _is_wanted_step(self, number: int) -> bool:
        return self.config.steps is None or number in self.config.steps

    def _has_room(self) -> bool:
        """A dump that came in the way after the start costs this step, never the training."""
        if self._records is not None or self.config.storage.overwrite or not self._is_occupied():
            return True
        self.problem("occupied", "", f"{self.unit_dir} holds another dump: this step is not captured")
        return False

    def _is_occupied(self) -> bool:
        # One of our own may still wait for the writer.
        return self.step_number in self._opened_steps or is_occupied(self.unit_dir)

    def _raise_failure(self) -> None:
        if self._failure is not None and self.config.on_error == "raise":
            failure, self._failure = self._failure, None
            raise CaptureError(f"capture failed: {failure}") from failure

    def _prepare(self) -> None:
        """What must wait for the first use: the rank is known only once the process group is there."""
        if self._is_ready:
            return
        self.rank = self.framework.rank()
        if self._is_wanted_rank:
            self._refuse_earlier()
        self._is_ready = True
        for note in self.config.notes:
            _LOGGER.warning("%s", note)
        if self.config.ranks is not None and not self._is_wanted_rank:
            wanted = sorted(self.config.ranks)
            mine = "a single process, which has no rank" if self.rank is None else f"rank {self.rank}"
            _LOGGER.warning("nothing will be captured here: this is %s, and config asks for rank %s", mine, wanted)
        atexit.register(self.close)
        reference = weakref.ref(self)
        os.register_at_fork(after_in_child=lambda: _forget_in_child(reference))

    def _open(self) -> None:
        if self._records is not None:
            return
        if self._is_closed:
            raise CaptureError("this debugger is closed; make another one to capture more")
        config = self.config
        unit_dir = self.unit_dir
        document: Literal["dump.json", "debug.json"] = "debug.json" if config.level == "debug" else "dump.json"
        header = Header(task=config.task, level=config.level, framework=self.framework.name)
        storage = config.storage
        options = StoreOptions(compression=storage.compression, links=storage.links, durability=storage.durability)

        def make_writer() -> DumpWriter:
            return DumpWriter(
                unit_dir,
                header,
                backend=storage.format,
                options=options,
                document=document,
                sync_entries=_COMMIT_ENTRIES,
            )

        if config.storage.overwrite:
            if self.step_number in self._opened_steps:
                self.queue.drain()  # what is taken away from under the writer ends capture
            remove_unit(unit_dir)
        sink = UnitSink(
            self.queue, make_writer, on_failure=self.failed, md5=config.summary_mode == "md5", texts=self._texts
        )
        self._records = StepRecords(sink, self.framework, is_structure=config.task == "structure")
        self.observer.records = self._records
        self.captured_steps += 1
        self._opened_steps.add(self.step_number)
        _LOGGER.info("step %s is captured into %s", self.step_number, unit_dir)

    @property
    def unit_dir(self) -> Path:
        """Directory of the unit in hand: ``{dump_path}/step{N}/rank{R}``."""
        return Path(self.config.dump_path) / f"step{self.step_number}" / self._rank_name

    @property
    def _rank_name(self) -> str:
        return "rank" if self.rank is None else f"rank{self.rank}"

    def _finish(self) -> None:
        records = self._leave()
        if records is None:
            return
        records.flush(everything=True)
        if records.is_empty and self._started_empty and not self.has_entries_elsewhere:
            self._warn_empty()
        self._started_empty = self.has_entries_elsewhere = False
        records.sink.finish()
        self.framework.new_step()
        self.scope.new_step()

    def _leave(self) -> StepRecords | None:
        """Let go of the unit in hand."""
        records, self._records = self._records, None
        self.observer.records = None
        self._said.clear()
        return records

    def _warn_empty(self) -> None:
        if "empty" in self._kinds:
            return
        self._kinds.add("empty")
        _LOGGER.warning(
            "step %s: nothing was captured (level %s): between start() and stop() nothing ran that is recorded%s",
            self.step_number,
            self.config.level,
            " and matches scope or list" if self.scope.is_filtering else "",
        )

    def _report_unfired(self, hooks: Hooks) -> None:
        paths = hooks.never_fired()
        if paths and "never fired" not in self._kinds:
            listed = ", ".join(paths[:20]) + (f" and {len(paths) - 20} more" if len(paths) > 20 else "")
            why = "unused, called by their forward or construct, or inside a compiled graph"
            self.problem("never fired", "", f"{len(paths)} modules were never called as modules ({why}): {listed}")

    def _report_unmatched(self) -> None:
        """Filters that matched nothing in the whole run are most likely misspelt."""
        config = self.config
        if self._is_wanted_rank and config.steps is not None and not self.captured_steps and self._seen_steps:
            last = self._seen_steps[-1]
            _LOGGER.warning("step %s was never reached; the last one was %s", sorted(config.steps), last)
        if self.captured_steps:
            for text in self.scope.unmatched():
                _LOGGER.warning("%s", text)


def _forget_in_child(reference: weakref.ReferenceType[Session]) -> None:
    """A forked worker (DataLoader) records nothing and leaves the parent's files alone."""
    session = reference()
    if session is not None:
        session.control = threading.RLock()  # a thread that is not there any more may have held it
        session.observer.running = False
        session.observer.records = None
