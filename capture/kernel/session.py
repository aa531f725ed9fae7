"""A debugger's life at level L2: steps as ever, no records, and a device that is off whenever nothing is captured."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import TYPE_CHECKING

from capture.errors import CaptureError
from capture.kernel.conversion import KernelFiles
from capture.kernel.device import KernelDevice
from capture.kernel.observer import KernelObserver, KernelStep
from capture.kernel.places import ApiPlaces, refuse_or_remove
from capture.kernel.settings import acl_settings, write_settings
from capture.kernel.target import parse_target
from capture.observer import Observer
from capture.session import Session

if TYPE_CHECKING:
    from capture.config import CaptureConfig
    from capture.framework import Framework

__all__ = ["KernelSession"]

_LOGGER = logging.getLogger("msformat.capture")


class KernelSession(Session):
    """Dumps the kernels of one call of an API, once a step.

    Parameters
    ----------
    device
        What dumps them. Where it cannot, that is said once and nothing is hooked.
    """

    said_once = "said once"
    observer: KernelObserver

    def __init__(self, config: CaptureConfig, framework: Framework, device: KernelDevice) -> None:
        self._device = device
        self._is_able: bool | None = None
        super().__init__(config, framework)

    def _make_observer(self) -> Observer:
        target = parse_target(self.config.list[0])
        if target is None:
            raise CaptureError(f"list: {self.config.list[0]!r} is no entry name of an API")
        return KernelObserver(target, self._device, self.config, self.framework, self.scope, self.problem)

    @property
    def is_wanted(self) -> bool:
        """Whether kernels of this step of this rank are to be dumped, and can be."""
        return super().is_wanted and self._is_there()

    def pause(self) -> None:
        """Stop dumping first of all, whatever a call or a backward pass left on."""
        with self.control:
            self.observer.end_any()
            super().pause()

    def abandon(self, reason: BaseException | str) -> None:
        """The step ended too early: what the device wrote until then is settled like a step."""
        with self.control:
            self.pause()
            self._finish()
            super().abandon(reason)

    # --- inside ------------------------------------------------------------------------------------------------------

    def _is_there(self) -> bool:
        if self._is_able is None:
            reason = self._device.why_not()
            self._is_able = reason is None
            if reason is not None:
                _LOGGER.warning(
                    "level L2: no kernels are dumped, because %s; the training goes on without capture", reason
                )
        return self._is_able

    @property
    def _places(self) -> ApiPlaces:
        return ApiPlaces(Path(self.config.dump_path), self.rank)

    def _refuse_earlier(self) -> None:
        if not self._is_there():
            return  # nothing will come that anything has to make room for
        super()._refuse_earlier()
        refuse_or_remove(self._places.earlier(self._is_to_come), overwrite=self.config.storage.overwrite)

    def _open(self) -> None:
        if self.observer.step is not None:
            return
        if self._is_closed:
            raise CaptureError("this debugger is closed; make another one to capture more")
        number = self.step_number
        step = KernelStep(number, self._places.step_directory(number), self._places.config_path(number))
        try:
            step.directory.mkdir(parents=True, exist_ok=True)
            write_settings(step.config_path, acl_settings(step.directory, self.config.data_mode))
        except OSError as error:
            self.failed(f"kernels of step {number}", error)
            return
        self.observer.step = step
        self.captured_steps += 1
        _LOGGER.info("step %s: the kernels of %s go below %s", number, self.observer.target.name, step.directory)

    def _finish(self) -> None:
        self.observer.end_any()
        step, self.observer.step = self.observer.step, None
        if step is None:
            return
        self.scope.new_step()
        name, where = self.observer.target.name, f"step {step.number}"
        if not step.was_called:
            self.problem("not called", where, f"{name} did not come between start() and stop()")
        elif not step.has_begun:
            self.problem("not called", where, f"{name} did not run")
        absent = f"the device dumped nothing of {name}: perhaps it ran on the host" if step.has_dumped else None
        self._settle(step.number, absent)
        self._said.clear()

    def _settle(self, number: int, absent: str | None) -> None:
        """Look after the files of a step on the writer's thread."""
        unit_dir = Path(self.config.dump_path) / f"step{number}" / self._rank_name
        files = KernelFiles(number, self._places, unit_dir, self.config.storage, absent, self.problem)
        self.queue.submit(files.settle)

    def _leave(self) -> None:
        """No records are open."""
        self._said.clear()
