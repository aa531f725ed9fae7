"""Compiled cells beside those that are called: when they are tapped, and where their dump lies.

Where a model has cells under ``jit`` its dump has two branches, as msprobe's has: ``graph`` for what ran in compiled
programs, ``pynative`` for what Python called. In GRAPH_MODE there is only one, and nothing but the compiled cells.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import mindspore

from capture.mindspore.graph_capture import GraphCapture
from capture.mindspore.graph_cells import GraphCells, has_compiled_cells
from capture.mindspore.graph_ops import IS_ASCEND
from capture.mindspore.jit import BytecodeWatch
from capture.mindspore.quiet import settle

if TYPE_CHECKING:
    from capture.config import CaptureConfig
    from capture.session import Session

__all__ = ["GraphHooks"]

_LOGGER = logging.getLogger("msformat.capture")
_COMPILED_BEFORE = (
    "no cell of the model ran in GRAPH_MODE: a program keeps what it was compiled with, so start() has to come before "
    "its first call"
)
_ASCEND = (
    "compiled cells are not recorded on Ascend, where a graph takes no Python function: save() and save_grad() of "
    "capture.mindspore work there, and level L2 dumps the kernels"
)
_APIS = "functions are not recorded in GRAPH_MODE, where they are compiled: set mode=PYNATIVE_MODE for level %s"


class GraphHooks:
    """Taps on compiled cells, in step with the session of a debugger."""

    def __init__(self, session: Session) -> None:
        self._session = session
        # As the user gave it: the session's own may move into a branch.
        self._config: CaptureConfig = session.config
        self._cells = GraphCells(session.problem)
        self._bytecode = BytecodeWatch(self._cells, session.problem)
        self._capture: GraphCapture | None = None
        self._said: set[str] = set()

    @property
    def is_whole(self) -> bool:
        """Whether the program runs in GRAPH_MODE, where Python calls nothing."""
        return bool(mindspore.get_context("mode") == mindspore.GRAPH_MODE)

    @property
    def records_all(self) -> bool:
        """Whether nothing but compiled cells is to be recorded."""
        return self.is_whole and self._capture is not None

    def prepare(self, model: Any) -> None:
        """Tap the cells, whether or not this step is wanted: a program is compiled in its first.

        Before the first step is opened also say where it goes, and what will not be recorded.
        """
        if self._capture is None:
            self._begin(model)
        if self._capture is not None:
            self._cells.install(model, self._capture)
            self._bytecode.install()

    def _begin(self, model: Any) -> None:
        if IS_ASCEND():
            if self.is_whole or has_compiled_cells(model):
                self._say(_ASCEND)
            return
        if self.is_whole and self._config.level == "mix":
            self._say(_APIS % self._config.level)
        self._capture = GraphCapture(self._config, is_whole=self.is_whole, settle=settle)
        if not self.is_whole and has_compiled_cells(model):
            self._session.config = replace(self._config, dump_path=str(Path(self._config.dump_path) / "pynative"))

    def start(self) -> None:
        """Record from here on."""
        if self._capture is not None:
            self._capture.start(self._session.step_number)

    def finish(self) -> None:
        """Record what has come."""
        if self._capture is None or not self._capture.is_running:
            return
        self._capture.stop()
        if self._capture.is_whole and not self._capture.fired and self._cells.prefixes:
            self._say(_COMPILED_BEFORE)

    def remove(self) -> None:
        """Give the cells their own ``construct`` back."""
        self._bytecode.remove()
        self._cells.remove()

    def has_fired(self, path: str) -> bool:
        """Whether the cell of this path ran in a graph."""
        fired = self._capture.fired if self._capture is not None else ()
        return any(prefix.rpartition(".")[0] == f"Cell.{path}" for prefix in fired)

    @property
    def has_content(self) -> bool:
        """Whether the step in hand has entries of compiled cells."""
        return self._capture is not None and self._capture.has_content

    def step(self) -> None:
        """End the step."""
        if self._capture is not None:
            self._capture.step()

    def abandon(self, reason: BaseException | str) -> None:
        """End a step that did not come to its end."""
        if self._capture is None:
            return
        try:
            self._capture.stop()
        except Exception as error:  # noqa: BLE001 (a kernel's error, which is most likely the reason itself)
            self._capture.problem("", f"the step ended with an error of a kernel: {error}")
        self._capture.session.abandon(reason)

    def wait(self, timeout: float | None) -> None:
        """Come back when everything is written."""
        if self._capture is not None:
            self._capture.session.wait(timeout)

    def close(self) -> None:
        """Finish everything."""
        if self._capture is not None:
            self._capture.stop()
            self._cells.release(self._capture)
            self._capture.session.close()

    def _say(self, text: str) -> None:
        if text not in self._said:
            self._said.add(text)
            _LOGGER.warning("%s", text)
