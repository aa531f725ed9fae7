"""Kernel dumps (level L2) of one API in PyNative mode: the device, and when its backward begins and ends."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Any

import mindspore
from mindspore._c_expression import PyNativeExecutor_

from capture.kernel.acl import AclDevice
from capture.kernel.observer import KernelObserver
from capture.mindspore.graph import NO_GRAPH, SHOWS_GRAPH, CallInputs, Clock, edge_of, tensors_of, walk
from capture.mindspore.wrappers import ApiRecorder

if TYPE_CHECKING:
    from capture.mindspore.passes import BackwardPasses
    from capture.module_calls import BackwardListener
    from capture.observer import ApiCall, Observer

__all__ = ["KernelBackwards", "KernelRecorder", "kernel_device", "synchronize"]

_executor = PyNativeExecutor_.get_instance()


def kernel_device() -> AclDevice:
    """What dumps kernels of a program on Ascend."""
    return AclDevice(synchronize, _why_not)


def _why_not() -> str | None:
    target = mindspore.get_context("device_target")
    if target == "Ascend":
        return None
    return f"the program runs on {target}: kernels of single APIs are dumped on Ascend NPUs only"


def synchronize() -> None:
    """Wait until the device has done all it was given; a CPU has nothing to wait for, and says so as an error."""
    if mindspore.get_context("device_target") != "CPU":
        place: Any = getattr(mindspore, "runtime", None) or mindspore.hal
        place.synchronize()


class KernelRecorder(ApiRecorder):
    """Has the device switched on and off around the backward of the one call that is dumped."""

    def _follow(self, call: ApiCall, inputs: CallInputs, output: Any) -> None:
        observer = self.observer
        assert isinstance(observer, KernelObserver)
        try:
            if not self._backwards.end(inputs, output, _Listener(observer, call)):
                observer.has_no_backward(call)
        except Exception as error:  # noqa: BLE001 (an odd tensor must not cost the training anything)
            observer.problem(f"backward hook {type(error).__name__}", call.forward, str(error))


class _Listener:
    """Is told about the backward of one call. Holds names only."""

    __slots__ = ("call", "observer")

    def __init__(self, observer: KernelObserver, call: ApiCall) -> None:
        self.observer, self.call = observer, call

    def opened(self) -> None:
        """It begins."""
        self.observer.begin_backward(self.call)

    def closed(self, grad_outputs: tuple[Any, ...], grad_inputs: tuple[Any, ...]) -> None:
        """It is over."""
        del grad_outputs, grad_inputs
        self.observer.end_backward(self.call)

    def dropped(self) -> None:
        """It raised."""
        self.observer.end_backward(self.call)


class KernelBackwards:
    """Follows the backward of the one call that is dumped: from its first node to the one that runs last.

    Takes the place of :class:`capture.mindspore.backward.CellBackwards`, which collects gradients, and would add them
    up while the device dumps.
    """

    def __init__(self, observer: Observer, passes: BackwardPasses) -> None:
        self._observer = observer
        self._clock: Clock | None = None
        self._open: list[BackwardListener] = []
        passes.listen(on_end=self._ended)

    def begin(self, args: tuple[Any, ...], *, is_closed: bool = False) -> CallInputs | None:
        """A call begins: what autograd makes from here on is its own. None when autograd does not look."""
        del args, is_closed
        if not _executor.requires_grad():
            return None
        if not SHOWS_GRAPH:
            self._observer.problem("no graph", "", NO_GRAPH)
            return None
        with self._observer.local.at_work():
            if self._clock is None:
                self._clock = Clock()
            return CallInputs(self._clock.now(), {}, [], has_leaf=False)

    def end(self, inputs: CallInputs, output: Any, listener: BackwardListener) -> bool:
        """The call has ended. False when it has no backward of its own: an older node belongs to an input."""
        if not _executor.requires_grad():
            return False
        with self._observer.local.at_work():
            roots: dict[int, Any] = {}
            for tensor in tensors_of(output):
                edge = edge_of(tensor)
                if edge is not None and not isinstance(edge, str) and edge[0] >= inputs.start:
                    roots[edge[0]] = tensor._grad_node
            if not roots:
                return False
            found = walk(roots, inputs, {})
            for node in roots.values():
                node.register_prehook(partial(self._begins, listener))
            found.nodes[found.last].register_hook(partial(self._ends, listener))
        return True

    def _begins(self, listener: BackwardListener, gradients: Any) -> None:
        del gradients
        self._guarded(self._opened, listener)

    def _ends(self, listener: BackwardListener, gradients: Any, given: Any) -> None:
        del gradients, given
        self._guarded(self._closed, listener)

    def _ended(self, number: int, failed: bool) -> None:  # noqa: FBT001 (a callback)
        """A backward pass has ended. Where a part of the call's graph did not run, its last node never comes."""
        del number, failed
        for listener in list(self._open):
            self._guarded(self._closed, listener)

    def _opened(self, listener: BackwardListener) -> None:
        if listener not in self._open:
            self._open.append(listener)
            listener.opened()

    def _closed(self, listener: BackwardListener) -> None:
        if listener in self._open:
            self._open.remove(listener)
            listener.closed((), ())

    def _guarded(self, work: Any, listener: BackwardListener) -> None:
        try:
            work(listener)
        except Exception as error:  # noqa: BLE001 (a hook never raises)
            self._observer.problem(f"backward hook {type(error).__name__}", "", str(error))
