"""Hears calls as level L1 does, counts them the same way, and switches the device's dump around one of them.

It records nothing: everything that an observer keeps of modules and tensors stays out of the way, because no records
are open.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from capture.counters import Counters
from capture.kernel.device import KernelDevice, KernelSwitch
from capture.kernel.target import Target
from capture.observer import ApiCall, ModuleCall, Observer

if TYPE_CHECKING:
    from capture.config import CaptureConfig
    from capture.framework import Framework
    from capture.scope import Scope

__all__ = ["KernelCall", "KernelObserver", "KernelStep"]

_LOGGER = logging.getLogger("msformat.capture")


class KernelStep:
    """What is known of the step in hand.

    Attributes
    ----------
    number
        Of the step.
    directory
        Where the device writes, in a directory of its own below.
    config_path
        The device's settings.
    has_begun
        Whether the device was to be switched on in this step: that happens once.
    has_dumped
        Whether it was on, and went off as it should.
    was_called
        Whether the API was called.
    """

    def __init__(self, number: int, directory: Path, config_path: Path) -> None:
        self.number = number
        self.directory = directory
        self.config_path = config_path
        self.counters = Counters()
        self.has_begun = False
        self.has_dumped = False
        self.was_called = False


class KernelCall(ApiCall):
    """Ticket of the one call that is dumped. Holds names only."""

    __slots__ = ("step",)

    def __init__(self, target: Target, step: KernelStep) -> None:
        self.forward = f"{target.base}.{target.number}.forward"
        self.backward = f"{target.base}.{target.number}.backward"
        self.parent_backward = None
        self.entry = None
        self.step = step


class KernelObserver(Observer):
    """An observer whose events switch a device.

    Parameters
    ----------
    target
        The call that is dumped.
    device
        What dumps it.
    config, framework, scope, on_problem
        As for :class:`capture.observer.Observer`.

    Attributes
    ----------
    step
        The step in hand; None between steps.
    """

    def __init__(
        self,
        target: Target,
        device: KernelDevice,
        config: CaptureConfig,
        framework: Framework,
        scope: Scope,
        on_problem: Callable[[str, str, str], None],
    ) -> None:
        super().__init__(config, framework, scope, on_problem)
        self.target = target
        self.step: KernelStep | None = None
        self.switch = KernelSwitch(device, on_problem)

    @property
    def listening(self) -> bool:
        """Whether a backward has a step to belong to."""
        return self.step is not None

    def begin_api(self, prefix: str, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> ApiCall | None:
        """Count a call; the one that is meant gets a ticket, and its kernels are dumped if its forward is meant."""
        del args, kwargs
        step, target = self.step, self.target
        if step is None:
            return None
        base = f"{prefix}.{name}"
        number = step.counters.next(base)
        self._scope.check(f"{base}.{number}.{'backward' if target.is_backward else 'forward'}")
        if base != target.base or number != target.number:
            return None
        step.was_called = True
        call = KernelCall(target, step)
        if not target.is_backward:
            self._begin(call)
        return call

    def end_api(self, call: ApiCall, output: Any) -> None:
        """The call has returned."""
        del output
        if not self.target.is_backward:
            self._end(call)

    def fail_api(self, call: ApiCall) -> None:
        """The call raised: what its kernels did until then is dumped."""
        if not self.target.is_backward:
            self._end(call)

    def wants_backward(self, call: ApiCall | ModuleCall) -> bool:
        """Whether the backward of the call is what is dumped."""
        return isinstance(call, KernelCall) and self.target.is_backward

    def has_no_backward(self, call: ApiCall) -> None:
        """Autograd has nothing to run for the call."""
        text = "has no backward: nothing it returned needs a gradient that it computes, so no kernels are dumped"
        self.problem("no backward", call.backward, text)

    def begin_backward(self, call: ApiCall) -> bool:
        """The first kernel of the call's backward is about to run. Whether the dump has begun, here and now."""
        return self._begin(call)

    def end_backward(self, call: ApiCall) -> None:
        """The last kernel of the call's backward has run, or the backward pass has ended, perhaps by an exception."""
        self._end(call)

    def api_backward(self, call: ApiCall, grad_outputs: Sequence[Any], grad_inputs: Sequence[Any]) -> None:
        """Gradients are of no interest."""

    def end_any(self) -> None:
        """Dump no more, whatever a call or a backward pass left on."""
        step = self.step
        if self.switch.end() and step is not None:
            step.has_dumped = True
            _LOGGER.info("the dump of %s ended with the block it is in", self.target.name)

    # --- inside ------------------------------------------------------------------------------------------------------

    def _begin(self, call: ApiCall) -> bool:
        """A retained graph may run backward again; the first time is dumped."""
        step = self.step
        if step is None or not isinstance(call, KernelCall) or call.step is not step or step.has_begun:
            return False
        step.has_begun = True
        return self.switch.begin(self.target.name, str(step.config_path))

    def _end(self, call: ApiCall) -> None:
        if isinstance(call, KernelCall) and call.step is self.step and self.switch.end():
            call.step.has_dumped = True
            _LOGGER.info("the device dumped while %s ran; files are below %s", self.target.name, call.step.directory)
