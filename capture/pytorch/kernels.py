"""Kernel dumps (level L2) of one API on an NPU, forward or backward.

For a backward, msprobe runs the API a second time on copies of its arguments and calls ``backward`` on that, which
takes memory, draws random numbers and answers for another call than the program's. Here the program's own backward is
dumped: from just before the first node of the call runs until the node that was made first inside it, which runs last,
has run.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any

import torch
from torch._C import DisableTorchFunction

from capture.kernel.observer import KernelObserver
from capture.pytorch.graph import CallInputs, output_tensors, walk
from capture.pytorch.wrappers import ApiRecorder

if TYPE_CHECKING:
    from capture.observer import ApiCall

__all__ = ["KernelRecorder", "NpuDevice"]

_FUNCTIONS = ("synchronize", "init_dump", "set_dump", "finalize_dump")


class NpuDevice:
    """Dumps by ``torch_npu``; implements :class:`capture.kernel.device.KernelDevice`.

    The module is the one that the program imported: without it, no tensor of the program is on an NPU.
    """

    def why_not(self) -> str | None:
        """Why there is no dump here; None when there is one."""
        if "torch_npu" not in sys.modules:
            return "torch_npu is not imported: kernels are dumped on Ascend NPUs only"
        missing = [name for name in _FUNCTIONS if not callable(getattr(_npu(), name, None))]
        return f"torch_npu.npu has no {', '.join(missing)}: this version cannot dump kernels" if missing else None

    def begin(self, config_path: str) -> None:
        """See the protocol."""
        npu = _npu()
        npu.synchronize()
        npu.init_dump()
        npu.set_dump(config_path)
        npu.synchronize()

    def end(self) -> None:
        """See the protocol."""
        npu = _npu()
        try:
            npu.synchronize()
        finally:
            npu.finalize_dump()
        npu.synchronize()


def _npu() -> Any:
    return getattr(sys.modules.get("torch_npu"), "npu", None)


class KernelRecorder(ApiRecorder):
    """Puts hooks on the autograd nodes of the one call whose backward is dumped."""

    def hook_backward(self, call: ApiCall, output: Any, sequence: int) -> None:
        """Have the device switched on and off around the backward of a call."""
        observer = self.observer
        assert isinstance(observer, KernelObserver)
        try:
            with DisableTorchFunction():
                nodes = _nodes_of(output, sequence)
                if nodes:
                    _hook(observer, call, nodes, sequence)
                else:
                    observer.has_no_backward(call)
        except Exception as error:  # noqa: BLE001 (an odd tensor must not cost the training anything)
            observer.problem(f"backward hook {type(error).__name__}", call.forward, str(error))


def _nodes_of(output: Any, sequence: int) -> list[Any]:
    """Nodes of the outputs that were made inside the call: an output with an older node is one of the inputs."""
    nodes = (tensor.grad_fn for tensor in output_tensors(output))
    return list({node: None for node in nodes if node is not None and node._sequence_nr() >= sequence})


def _hook(observer: KernelObserver, call: ApiCall, nodes: list[Any], sequence: int) -> None:
    """Hooks hold names only, never a node or a tensor: a node that reaches itself through its hook is never freed."""
    last = walk(nodes, CallInputs(sequence, {}, [], has_leaf=False), {}).last
    begin, end = partial(_begin, observer, call), partial(_end, observer, call)
    for node in nodes:
        node.register_prehook(begin)
    last.register_hook(end)


def _begin(observer: KernelObserver, call: ApiCall, gradients: Any) -> None:
    """The engine is about to run a node of the call."""
    del gradients
    _guarded(observer, call, lambda: _switch_on(observer, call))


def _switch_on(observer: KernelObserver, call: ApiCall) -> None:
    if observer.begin_backward(call):
        # Where a part of the call's graph does not run, its last node may never come.
        end = partial(_guarded, observer, call, partial(observer.end_backward, call))
        torch.autograd.Variable._execution_engine.queue_callback(end)


def _end(observer: KernelObserver, call: ApiCall, inputs: Any, outputs: Any) -> None:
    """The node of the call that runs last has run."""
    del inputs, outputs
    _guarded(observer, call, lambda: observer.end_backward(call))


def _guarded(observer: KernelObserver, call: ApiCall, work: Callable[[], None]) -> None:
    try:
        work()
    except Exception as error:  # noqa: BLE001 (a hook never raises)
        observer.problem(f"backward hook {type(error).__name__}", call.backward, str(error))
