"""The seam between capture and a device that dumps its kernels, and the switch that never stays on."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable
from typing import Protocol

__all__ = ["KernelDevice", "KernelSwitch"]


class KernelDevice(Protocol):
    """A device that writes the kernels it runs into files, while told to."""

    def why_not(self) -> str | None:
        """Why it cannot dump here, in words for the user; None when it can. Never raises, imports nothing."""

    def begin(self, config_path: str) -> None:
        """Finish what runs, then dump what comes, as the file says.

        Raises
        ------
        Exception
            Whatever the device's library raises; the dump may have begun.
        """

    def end(self) -> None:
        """Finish what runs, then dump no more. Harmless when nothing was begun.

        Raises
        ------
        Exception
            Whatever the device's library raises.
        """


class KernelSwitch:
    """A device's dump, on or off: failures are told and never raised, and off is off.

    Parameters
    ----------
    device
        What is switched.
    on_problem
        Told what failed: kind, place, text.
    """

    def __init__(self, device: KernelDevice, on_problem: Callable[[str, str, str], None]) -> None:
        self._device = device
        self._problem = on_problem
        # The backward pass, which runs in a thread of its own, may meet a stop.
        self._lock = threading.RLock()
        self._name: str | None = None

    @property
    def is_on(self) -> bool:
        """Whether kernels are dumped now."""
        return self._name is not None

    def begin(self, name: str, config_path: str) -> bool:
        """Dump from here on, for the call ``name``. False when that failed (and nothing is dumped), or it is on."""
        with self._lock:
            if self._name is not None:
                return False
            try:
                self._device.begin(config_path)
            except Exception as error:  # noqa: BLE001 (a device's library raises what it likes)
                self._problem("kernel dump", name, f"the device did not begin: {type(error).__name__}: {error}")
                with contextlib.suppress(Exception):
                    self._device.end()
                return False
            self._name = name
            return True

    def end(self) -> bool:
        """Dump no more. Whether it was on, and all is well."""
        with self._lock:
            name, self._name = self._name, None
            if name is None:
                return False
            try:
                self._device.end()
            except Exception as error:  # noqa: BLE001 (as above)
                self._problem("kernel dump", name, f"the device did not end: {type(error).__name__}: {error}")
                return False
            return True
