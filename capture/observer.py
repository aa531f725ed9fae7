"""What hooks call. An event comes in, a record goes to the session; nothing ever comes out but None and call tickets.

Every method may be called from any thread and swallows its own exceptions: a failure costs one entry, is said once,
and the training goes on.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from capture.record import EntryRecord, Recorder
from capture.risk import is_worth_recording
from capture.stacks import frames_of
from capture.tree import CallState, ThreadState, backward_name
from capture.unit import StepRecords

if TYPE_CHECKING:
    from capture.config import CaptureConfig
    from capture.framework import Framework, Wanted
    from capture.scope import Scope

__all__ = ["ApiCall", "ModuleCall", "Observer"]

_T = TypeVar("_T")


class ApiCall:
    """Ticket of one call of an API, from its begin to its backward. Holds names only, once the call is over."""

    __slots__ = ("backward", "entry", "forward", "parent_backward", "records")

    def __init__(self, base: str, number: int, parent: str | None, records: StepRecords) -> None:
        self.forward = f"{base}.{number}.forward"
        self.backward = f"{base}.{number}.backward"
        self.parent_backward = backward_name(parent)
        self.records: StepRecords = records
        self.entry: EntryRecord | None = None


class ModuleCall:
    """Ticket of one call of a module, from its begin to its backward."""

    __slots__ = ("backward", "entry", "forward", "parent_backward", "prefix", "records")

    def __init__(self, prefix: str, number: int, parent: str | None, records: StepRecords) -> None:
        self.prefix = prefix
        self.forward = f"{prefix}.forward.{number}"
        self.backward = f"{prefix}.backward.{number}"
        self.parent_backward = backward_name(parent)
        self.records: StepRecords = records
        self.entry: EntryRecord | None = None


class Observer:
    """Turns events of a running model into records of the step in hand.

    Attributes
    ----------
    running
        Whether anything is recorded now. Hooks look at it first and go on at once when it is False.
    local
        State of the current thread.
    """

    def __init__(
        self,
        config: CaptureConfig,
        framework: Framework,
        scope: Scope,
        on_problem: Callable[[str, str, str], None],
    ) -> None:
        self.running = False
        self.local: CallState = ThreadState()
        self.records: StepRecords | None = None
        self.problem = on_problem
        self._framework = framework
        self._scope = scope
        self._recorder = Recorder(framework, on_problem=on_problem)
        self._config = config
        self._keeps_data = config.task != "structure"
        self._keeps_stacks = config.extra_info
        self._keeps_module_tree = config.extra_info and config.level in ("L0", "mix")
        self._keeps_api_tree = config.extra_info and config.level == "mix"
        # Whoever names what is wanted gets it, however harmless it is.
        self._risk_level = "ALL" if config.scope or config.list else config.risk_level
        mode = config.data_mode
        self._forward_inputs, self._forward_outputs = mode.forward and mode.input, mode.forward and mode.output
        self._backward_inputs, self._backward_outputs = mode.backward and mode.input, mode.backward and mode.output
        self._keeps_parameter_gradients = mode.backward and self._keeps_data

    @property
    def listening(self) -> bool:
        """Whether gradients have a step to belong to: after ``stop``, calls before it still have their backward."""
        return self.records is not None

    # --- APIs --------------------------------------------------------------------------------------------------------

    def begin_api(self, prefix: str, name: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> ApiCall | None:
        """Count a call and record its inputs as they are now; None when nothing of it is wanted."""
        return self._guarded(self._begin_api, f"{prefix}.{name}", args, kwargs)

    def end_api(self, call: ApiCall, output: Any) -> None:
        """Record what a call returned."""
        if call.entry is not None:
            self._guarded(self._end_api, call.forward, call, output)

    def fail_api(self, call: ApiCall) -> None:
        """The call raised: its inputs stay recorded, without an output."""
        if call.entry is not None:
            self._guarded(self._fail_api, call.forward, call, call.entry)

    def wants_backward(self, call: ApiCall | ModuleCall) -> bool:
        """Whether the backward pass of a call leaves any trace in the dump."""
        del call  # today the configuration alone decides
        return self._backward_inputs or self._backward_outputs or self._keeps_module_tree

    def api_backward(self, call: ApiCall, grad_outputs: Sequence[Any], grad_inputs: Sequence[Any]) -> None:
        """Record the gradients of a call: of its outputs (slot ``input``) and of its inputs (slot ``output``)."""
        if self._is_current(call):
            self._guarded(self._api_backward, call.backward, call, tuple(grad_outputs), tuple(grad_inputs))

    def tree_root(self, name: str | None) -> None:
        """Name what calls from now on, outside of modules, are part of (``optimizer``, ``clip_grad``)."""
        self.local.root = name
        if name is not None and self.running and self._keeps_api_tree and self.records is not None:
            self.records.parent(name, None)

    # --- modules -----------------------------------------------------------------------------------------------------

    def begin_module(self, prefix: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> ModuleCall | None:
        """Enter a module (``Module.path.Class``) and record its inputs before it can change them."""
        return self._guarded(self._begin_module, prefix, args, kwargs)

    def end_module(self, call: ModuleCall, output: Any, parameters: Mapping[str, Any]) -> None:
        """Leave a module: record its outputs and its own parameters."""
        self._guarded(self._end_module, call.forward, call, output, parameters)

    def abort_module(self, call: ModuleCall) -> None:
        """Leave a module whose forward raised (checkpointing ends its second forward that way)."""
        self.local.leave(call.forward)
        self._scope.end_module(call.forward)
        call.entry = None

    def open_module_backward(self, call: ModuleCall) -> None:
        """The gradients of a module's outputs are complete: its backward begins in this thread."""
        if self._is_current(call):
            self._guarded(self._open_module_backward, call.backward, call)

    def module_backward(self, call: ModuleCall, grad_outputs: Sequence[Any], grad_inputs: Sequence[Any]) -> None:
        """The gradients of a module's inputs are complete."""
        if self._is_current(call):
            self._guarded(self._module_backward, call.backward, call, tuple(grad_outputs), tuple(grad_inputs))

    def parameter_gradient(self, prefix: str, parameter: str, gradient: Any) -> None:
        """Record a parameter's gradient as accumulated so far; the last one of the step comes first in the dump."""
        if self.running and self._keeps_parameter_gradients:
            key = f"{prefix}.parameters_grad"
            self._guarded(self._parameter_gradient, key, prefix, parameter, gradient)

    # --- inside ------------------------------------------------------------------------------------------------------

    def _guarded(self, work: Callable[..., _T], name: str, *details: Any) -> _T | None:
        """Run capture's own work: nothing it calls is recorded, nothing it raises gets out."""
        local = self.local
        if local.busy or self.records is None:
            return None
        local.busy = True
        try:
            with self._framework.quiet():
                return work(name, *details)
        except Exception as error:  # noqa: BLE001 (whatever it is, it is not the training's fault)
            self.problem(f"hook {work.__name__} {type(error).__name__}", name, str(error))
            return None
        finally:
            local.busy = False

    def _is_current(self, call: ApiCall | ModuleCall) -> bool:
        """A backward that runs after its step was closed belongs nowhere, which is said; one after ``stop`` does."""
        if call.records.sink.failed:
            return False
        if call.records is self.records:
            return True
        text = "a backward came after the end of its step and is not recorded: call step() after the backward pass"
        self.problem("late backward", "", text)
        return False

    def _wanted(self, name: str) -> Wanted:
        return self._scope.wanted(name)

    def _records(self) -> StepRecords:
        assert self.records is not None
        return self.records

    def _begin_api(self, base: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> ApiCall | None:
        records = self._records()
        parent = self.local.parent()
        call = ApiCall(base, records.counters.next(base), parent, records)
        name = call.forward
        if self._keeps_api_tree:
            records.parent(name, parent)
        if not self._is_worth(base) or not self._scope.check(name):
            return call
        self._note_stack(records, name)
        if not (self._keeps_data and (self._forward_inputs or self._forward_outputs)):
            return call
        call.entry = entry = EntryRecord(name)
        if self._forward_inputs:
            self._put_inputs(entry, args, kwargs, self._wanted(name))
            self._note_recompute(entry)
            records.reserve(entry)
        return call

    def _put_inputs(self, entry: EntryRecord, args: tuple[Any, ...], kwargs: Mapping[str, Any], wanted: Wanted) -> None:
        key, value = entry.key, entry.value
        value["input_args"] = self._recorder.values(args, f"{key}.input", entry, wanted)
        value["input_kwargs"] = self._recorder.values(kwargs, f"{key}.kwargs", entry, wanted) if kwargs else {}

    def _end_api(self, name: str, call: ApiCall, output: Any) -> None:
        entry = call.entry
        assert entry is not None
        try:
            if self._forward_outputs:
                entry.value["output"] = self._recorder.values(
                    _as_tuple(output), f"{name}.output", entry, self._wanted(name)
                )
                if not self._forward_inputs:
                    self._note_recompute(entry)
        finally:
            self._finish(call, entry)

    def _fail_api(self, name: str, call: ApiCall, entry: EntryRecord) -> None:
        del name
        self._finish(call, entry)

    def _finish(self, call: ApiCall, entry: EntryRecord) -> None:
        call.entry = None
        if self._forward_inputs:
            call.records.complete(entry)
        else:
            call.records.add(entry)

    def _api_backward(
        self, name: str, call: ApiCall, grad_outputs: tuple[Any, ...], grad_inputs: tuple[Any, ...]
    ) -> None:
        if self._keeps_api_tree:
            call.records.parent(name, call.parent_backward)
        if self._is_worth(name.rsplit(".", 2)[0]):
            self._put_backward(name, call.records, grad_outputs, grad_inputs)

    def _is_worth(self, base: str) -> bool:
        return self._risk_level == "ALL" or is_worth_recording(self._risk_level, base)

    def _put_backward(
        self, name: str, records: StepRecords, grad_outputs: tuple[Any, ...], grad_inputs: tuple[Any, ...]
    ) -> bool:
        """Whether anything was recorded."""
        if not self._scope.check(name) or not self._keeps_data:
            return False
        if not (self._backward_inputs or self._backward_outputs):
            return False
        if not records.is_first_backward(name):
            self.problem("second backward", name, "it ran backward again in this step; the first time is recorded")
            return False
        entry = EntryRecord(name)
        wanted = self._wanted(name)
        if self._backward_inputs:
            entry.value["input"] = self._recorder.values(grad_outputs, f"{name}.input", entry, wanted)
        if self._backward_outputs:
            entry.value["output"] = self._recorder.values(grad_inputs, f"{name}.output", entry, wanted)
        records.add(entry)
        return True

    def _begin_module(self, prefix: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> ModuleCall:
        records, local = self._records(), self.local
        parent = local.parent()
        call = ModuleCall(prefix, records.counters.next(prefix), parent, records)
        if self._keeps_module_tree:
            records.parent(call.forward, parent)
            records.enclose(call.backward, call.parent_backward)
        local.stack.append(call.forward)
        self._scope.begin_module(call.forward)
        if self._keeps_data and self._scope.check(call.forward):
            call.entry = EntryRecord(call.forward)
            if self._forward_inputs:
                self._put_inputs(call.entry, args, kwargs, self._wanted(call.forward))
        return call

    def _end_module(self, name: str, call: ModuleCall, output: Any, parameters: Mapping[str, Any]) -> None:
        entry, call.entry = call.entry, None
        try:
            if entry is not None:
                self._put_module(entry, call, output, parameters)
            elif not self._keeps_data and self._scope.check(name):
                self._note_stack(call.records, name)
        finally:
            self.local.leave(name)
            self._scope.end_module(name)

    def _put_module(self, entry: EntryRecord, call: ModuleCall, output: Any, parameters: Mapping[str, Any]) -> None:
        records, name, wanted = call.records, call.forward, self._wanted(call.forward)
        self._note_stack(records, name)
        if self._forward_inputs or self._forward_outputs:
            if self._forward_outputs:
                value = self._recorder.values(_as_tuple(output), f"{name}.output", entry, wanted)
                entry.value["output"] = value
            entry.value["parameters"] = self._recorder.values(dict(parameters), f"{name}.parameters", entry, wanted)
            self._note_recompute(entry)
            records.add(entry)
        trained = [key for key, parameter in parameters.items() if getattr(parameter, "requires_grad", False)]
        if trained and self._keeps_parameter_gradients:
            # Where filters leave out gradients, none is announced: msprobe takes such an announcement back.
            records.expect_gradients(f"{call.prefix}.parameters_grad", trained, announce=not self._scope.is_filtering)

    def _open_module_backward(self, name: str, call: ModuleCall) -> None:
        if self._keeps_module_tree:
            call.records.parent(name, call.parent_backward)
        self.local.stack.append(name)
        self._scope.begin_module(name)

    def _module_backward(
        self, name: str, call: ModuleCall, grad_outputs: tuple[Any, ...], grad_inputs: tuple[Any, ...]
    ) -> None:
        try:
            if self._put_backward(name, call.records, grad_outputs, grad_inputs):
                call.records.note_backward(call.prefix)
        finally:
            if name in self.local.stack:
                self.local.stack.remove(name)  # backward passes of two modules may overlap
            self._scope.end_module(name)

    def _parameter_gradient(self, key: str, prefix: str, parameter: str, gradient: Any) -> None:
        records = self._records()
        if self._scope.is_filtering and not (records.has_backward(prefix) or self._scope.check(prefix)):
            return
        entry = records.gradients_of(key)
        if entry is None:
            return  # its module's forward was not recorded
        wanted = self._wanted(key)
        node = self._recorder.values(gradient, f"{key}.{parameter}", entry, wanted)
        records.put_gradient(entry, parameter, node)

    def _note_recompute(self, entry: EntryRecord) -> None:
        is_recompute = self._framework.is_recompute()
        if is_recompute is not None:
            entry.value["is_recompute"] = is_recompute

    def _note_stack(self, records: StepRecords, name: str) -> None:
        if self._keeps_stacks:
            records.stack(name, frames_of(sys._getframe(1)))


def _as_tuple(output: Any) -> Any:
    return output if isinstance(output, tuple) else (output,)
