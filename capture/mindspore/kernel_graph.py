"""Kernel dumps (level L2) of static graphs: how MindSpore's runtime is told what to dump, and when.

Learnt by running 2.7.1 and 2.10.0 on a CPU, and from the runtime's published source:

- The settings that ``MINDSPORE_DUMP_CONFIG`` names are read once, with the first graph or by ``_set_init_iter``. What
  the runtime then refuses, it refuses again with every graph, and a refusal leaves a part of the settings in force.
- On Ascend ``_dump_set_dynamic`` makes ``_dump_start`` and ``_dump_stop`` the switch. On CPU and GPU nobody asks that
  switch; the number of the iteration is looked up in the settings before each kernel. While capture is stopped there,
  the runtime is given a number that no settings name.
- ``_dump_step`` counts only after ``_set_init_iter``; otherwise each run of a graph is an iteration.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from typing import TYPE_CHECKING, Any

import mindspore
from mindspore import _c_expression as runtime

from capture.kernel.graph import GraphPlan
from capture.kernel.settings import graph_settings, kbyk_settings
from capture.mindspore.kernels import synchronize

if TYPE_CHECKING:
    from capture.config import CaptureConfig

__all__ = ["MindSporeRuntime"]

_CONFIG, _ACL_CONFIG = "MINDSPORE_DUMP_CONFIG", "MS_ACL_DUMP_CFG_PATH"
_PARKED = 2**32 - 1
"""Number of no iteration: the largest that the runtime's counter holds."""
_EVERY_COUNTED = f"0-{_PARKED - 1}"
_LAST_WITH_OLD_NAMES = (2, 7, 0)


class MindSporeRuntime:
    """Implements :class:`capture.kernel.graph.GraphRuntime`."""

    def __init__(self, config: CaptureConfig) -> None:
        self._config = config
        self._at = _PARKED

    def why_not(self) -> str | None:
        """Why nothing can be dumped here; None when it can."""
        if _target() == "CPU" and self._config.task == "statistics":
            return "on a CPU MindSpore dumps data only, no statistics: use task tensor"
        return None

    def plan(self) -> GraphPlan:
        """Settings by the way in which this program's graphs run."""
        if _runs_whole_graphs():
            variables = (_CONFIG,) if self._config.list else (_CONFIG, _ACL_CONFIG)
            cleared = (_ACL_CONFIG,) if self._config.list else ()
            return GraphPlan("kernel_graph_dump.json", graph_settings(self._config), variables, cleared, self._notes())
        md5 = "md5" if _version() <= _LAST_WITH_OLD_NAMES else "hash:md5"
        every = _EVERY_COUNTED if self._is_parked_by_number else "all"
        settings = kbyk_settings(self._config, every=every, md5=md5)
        notes = self._notes()
        if self._config.file_format != "npy":
            notes += ("file_format: has no effect where kernels are launched one by one: they are .npy files",)
        return GraphPlan("kernel_kbyk_dump.json", settings, (_CONFIG,), (_ACL_CONFIG,), notes)

    def _notes(self) -> tuple[str, ...]:
        missing = [name for name in ("_dump_start", "_dump_stop", "_dump_step") if not hasattr(runtime, name)]
        if not missing:
            return ()
        text = "level L2: this MindSpore cannot be told when to dump, so it dumps every step of its own counting"
        return (f"{text} that step names, also outside of start() and stop()",)

    def arm(self, step: int) -> None:
        """Read the settings now.

        Raises
        ------
        RuntimeError, ValueError
            MindSpore refuses them.
        """
        _call("_dump_set_dynamic")
        try:
            self._count_from(_PARKED if self._is_parked_by_number else step)
        except Exception:
            # A part of the settings is in force all the same; without the variable, the number is taken.
            os.environ.pop(_CONFIG, None)
            self._count_from(_PARKED)
            raise

    def start(self, step: int) -> None:
        """Dump from here on."""
        if self._at != step:
            self._count_from(step)
        _call("_dump_start")

    def stop(self) -> None:
        """Finish what runs, then dump no more."""
        try:
            synchronize()
        finally:
            _call("_dump_stop")
            if self._is_parked_by_number:
                self._count_from(_PARKED)

    def step(self) -> None:
        """Count on."""
        if self._at != _PARKED:
            _call("_dump_step", 1)
            self._at += 1

    @property
    def _is_parked_by_number(self) -> bool:
        return _target() != "Ascend" and hasattr(runtime, "_set_init_iter")

    def _count_from(self, number: int) -> None:
        _call("_set_init_iter", number)
        self._at = number


def _call(name: str, *arguments: int) -> None:
    """One of the runtime's functions, if this build has it."""
    function: Callable[..., Any] | None = getattr(runtime, name, None)
    if function is not None:
        function(*arguments)


def _target() -> str:
    return str(mindspore.get_context("device_target"))


def _version() -> tuple[int, ...]:
    return tuple(int(part) for part in re.findall(r"[0-9]+", mindspore.__version__)[:3])


def _runs_whole_graphs() -> bool:
    """Whether graphs run as a whole on the device (jit_level O2), as msprobe 8.1.0 decides it."""
    if mindspore.get_context("mode") != mindspore.GRAPH_MODE or _target() != "Ascend":
        return False
    level = _asked(lambda: mindspore.context.get_jit_config().get("jit_level"))
    level = level or _asked(lambda: mindspore.get_context("jit_level"))
    if level:
        return bool(level == "O2")
    # The default is O2 on the first generation of the chip alone.
    context: Any = mindspore.context.MSContext.get_instance()
    return bool(_asked(context.get_ascend_soc_version) == "ascend910")


def _asked(question: Callable[[], Any]) -> Any:
    """What MindSpore says, None where this version does not know the question."""
    try:
        return question()
    except (AttributeError, KeyError, ValueError, RuntimeError):
        return None
