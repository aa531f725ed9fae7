"""Kernel dumps of static graphs of MindSpore: the runtime dumps by itself, while a step is wanted.

The runtime reads its settings when it compiles the first graph, so they must be there before: the debugger arms at its
first ``start``, whichever step that is. Which kernels, sides, steps and statistics are dumped is then the runtime's
business; ``start``, ``stop`` and ``step`` tell it when and in which step.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from capture.errors import CaptureError
from capture.kernel.conversion import KernelFiles
from capture.kernel.places import GraphPlaces, refuse_or_remove
from capture.kernel.settings import write_settings
from capture.session import Session

if TYPE_CHECKING:
    from capture.config import CaptureConfig
    from capture.framework import Framework

__all__ = ["Environment", "GraphKernelSession", "GraphPlan", "GraphRuntime", "NoHooks"]

_LOGGER = logging.getLogger("msformat.capture")
_ABSENT = (
    "MindSpore dumped nothing: no graph ran between start() and stop(), or it was compiled before the first start(), "
    "or no kernel matches list"
)


class GraphPlan(NamedTuple):
    """What the runtime is to read.

    Attributes
    ----------
    file_name
        Of the settings, in the dump's directory.
    settings
        Its content.
    variables
        Names of environment variables that are to hold its path.
    cleared
        Names of environment variables that would mislead the runtime.
    notes
        What the configuration asks for in vain, for the log.
    """

    file_name: str
    settings: Mapping[str, Any]
    variables: tuple[str, ...]
    cleared: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


class GraphRuntime(Protocol):
    """The runtime that dumps."""

    def why_not(self) -> str | None:
        """Why it cannot dump here, in words for the user; None when it can."""

    def plan(self) -> GraphPlan:
        """What it is to read."""

    def arm(self, step: int) -> None:
        """Read the settings now, and dump nothing yet.

        Raises
        ------
        Exception
            It refuses them.
        """

    def start(self, step: int) -> None:
        """Dump from here on, as part of a step."""

    def stop(self) -> None:
        """Finish what runs, then dump no more."""

    def step(self) -> None:
        """The next step begins."""


class Environment:
    """Variables set for the runtime, and what they were before."""

    def __init__(self) -> None:
        self._before: dict[str, str | None] = {}

    def put(self, name: str, value: str | None) -> None:
        """Set a variable, or take it out."""
        self._before.setdefault(name, os.environ.get(name))
        _put(name, value)

    def restore(self) -> None:
        """Give every variable the value it had."""
        before, self._before = self._before, {}
        for name, value in before.items():
            _put(name, value)


def _put(name: str, value: str | None) -> None:
    if value is None:
        os.environ.pop(name, None)
    else:
        os.environ[name] = value


class NoHooks:
    """Nothing is hooked: the runtime does all of it."""

    def install(self, model: Any) -> None:
        """Set nothing."""

    def finish(self) -> None:
        """Record nothing."""

    def new_step(self) -> None:
        """Let go of nothing."""

    def remove(self) -> None:
        """Take off nothing."""

    def never_fired(self) -> list[str]:
        """No module is hooked."""
        return []

    def add_custom(self, module: Any, api_name: str, prefix: str) -> None:
        """Functions inside a graph are not called."""

    def remove_custom(self, module: Any, api_name: str) -> None:
        """There is none."""


class GraphKernelSession(Session):
    """Dumps the kernels of static graphs.

    Parameters
    ----------
    runtime
        What dumps them. Where it cannot, that is said once.
    """

    said_once = "said once"

    def __init__(self, config: CaptureConfig, framework: Framework, runtime: GraphRuntime) -> None:
        self._runtime = runtime
        self._environment = Environment()
        self._is_armed = False
        self._is_on = False
        self._open_step: int | None = None
        self._why_not: str | None = None
        super().__init__(config, framework)

    def prepare(self) -> None:
        """Arm, also when this step is not wanted: graphs are compiled once, for all steps."""
        with self.control:
            self._prepare()

    @property
    def is_wanted(self) -> bool:
        """Whether kernels of this step of this rank are to be dumped, and can be."""
        return super().is_wanted and self._is_armed

    def pause(self) -> None:
        """Stop dumping."""
        with self.control:
            if self._is_on:
                self._is_on = False
                self._tell("stop")
            super().pause()

    def step(self) -> None:
        """End the step for the runtime, too."""
        with self.control:
            super().step()
            if self._is_armed:
                self._tell("step")

    def abandon(self, reason: BaseException | str) -> None:
        """The step ended too early; what was dumped until then is settled like a step."""
        with self.control:
            self.pause()
            self._finish()
            super().abandon(reason)
            if self._is_armed:
                self._tell("step")

    def close(self) -> None:
        """Also give the environment back."""
        super().close()
        if os.getpid() == self._pid:
            self._environment.restore()

    # --- inside ------------------------------------------------------------------------------------------------------

    def _tell(self, what: str, *details: int) -> None:
        """The runtime's failures are told and never raised."""
        try:
            getattr(self._runtime, what)(*details)
        except Exception as error:  # noqa: BLE001 (whatever it is, it is not the training's fault)
            self.problem("kernel dump", what, f"{type(error).__name__}: {error}")

    @property
    def _places(self) -> GraphPlaces:
        return GraphPlaces(Path(self.config.dump_path), self.rank)

    def _prepare(self) -> None:
        if self._is_ready:
            return
        super()._prepare()
        if self._is_wanted_rank and self._why_not is None:
            self._arm()

    def _refuse_earlier(self) -> None:
        self._why_not = self._runtime.why_not()
        if self._why_not is not None:
            reason = self._why_not
            _LOGGER.warning("level L2: no kernels are dumped, because %s; the training goes on without capture", reason)
            return
        super()._refuse_earlier()
        refuse_or_remove(self._places.earlier(self._is_to_come), overwrite=self.config.storage.overwrite)

    def _arm(self) -> None:
        """Leave the settings where the runtime looks for them. If it refuses them, it must not find them later."""
        try:
            plan = self._runtime.plan()
            path = Path(self.config.dump_path) / plan.file_name
            write_settings(path, plan.settings)
            for name in plan.variables:
                self._note_earlier(name, path)
                self._environment.put(name, str(path))
            for name in plan.cleared:
                self._environment.put(name, None)
            self._runtime.arm(self.step_number)
        except Exception as error:  # noqa: BLE001 (as above)
            self._environment.restore()
            self.failed("the kernel dump of graphs", error)
            return
        self._is_armed = True
        for note in plan.notes:
            _LOGGER.warning("%s", note)
        _LOGGER.info("kernels of graphs are dumped as %s says", path)

    def _note_earlier(self, name: str, path: Path) -> None:
        earlier = os.environ.get(name)
        if earlier not in (None, str(path)):
            text = "if MindSpore has read those settings already, nothing is dumped as this configuration asks"
            _LOGGER.warning("level L2: %s was %s: %s", name, earlier, text)

    def _open(self) -> None:
        if self._is_closed:
            raise CaptureError("this debugger is closed; make another one to capture more")
        self._open_step = self.step_number
        self.captured_steps += 1
        self._is_on = True
        self._tell("start", self.step_number)

    def _finish(self) -> None:
        number, self._open_step = self._open_step, None
        if number is None:
            return
        unit_dir = Path(self.config.dump_path) / f"step{number}" / self._rank_name
        files = KernelFiles(number, self._places, unit_dir, self.config.storage, _ABSENT, self.problem)
        self.queue.submit(files.settle)
        self._said.clear()

    def _leave(self) -> None:
        """No records are open."""
        self._said.clear()
