"""The stand-ins that take the place of PyTorch's functions and methods while capture is installed.

A stand-in compares and hashes as the function it stands for, so that ``config.activation == F.gelu``, tables keyed by
function (``__torch_function__`` of tensor subclasses, the list that makes ``with torch.device(...)`` work) and caches
that PyTorch happens to fill meanwhile go on finding what they look for.
Methods reached through the class (``torch.Tensor.add``) are the originals for the same reason: that is where PyTorch
itself takes the function that it hands to ``__torch_function__``.
"""

from __future__ import annotations

import functools
import pkgutil
import threading
import types
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

import torch
from torch._C import DisableTorchFunction, _len_torch_function_stack
from torch.overrides import has_torch_function

from capture.pytorch.releases import is_compiling, is_dynamo_compiling

if TYPE_CHECKING:
    from capture.observer import ApiCall, Observer

__all__ = ["Api", "ApiFramework", "ApiMethod", "ApiRecorder"]

Values = tuple[Any, ...]


class ApiFramework(Protocol):
    """What the stand-ins ask of the framework."""

    def on_gradient(self, tensor: Any, callback: Callable[[Any], None]) -> bool:
        """Call back with the tensor's gradient; False when it takes none."""


class SideSteppingMode(Protocol):
    """A function mode that need not see what a call does inside."""

    def step_aside(self) -> bool:
        """Leave the stack of modes if possible."""

    def step_back(self) -> None:
        """Return to it."""


class Api:
    """Stands for one function of one place and records its calls.

    Parameters
    ----------
    original
        The function itself; whatever is not asked of the stand-in is asked of it.
    prefix, name
        What its calls are named: ``Functional``, ``relu``.
    place
        Dotted path of the module that it stands in, for pickles.
    recorder
        Where calls go.
    """

    __slots__ = (
        "__dict__",
        "__weakref__",
        "local",
        "name",
        "observer",
        "original",
        "place",
        "prefix",
        "recorder",
    )

    def __init__(self, original: Callable[..., Any], prefix: str, name: str, place: str, recorder: ApiRecorder) -> None:
        self.original = original
        self.prefix = prefix
        self.name = name
        self.place = place
        self.recorder = recorder
        self.observer = recorder.observer
        self.local = recorder.observer.local
        functools.update_wrapper(self, original)

    def __call__(self, /, *args: Any, **kwargs: Any) -> Any:
        # Dynamo takes the first test for a constant, and sees nothing of the rest.
        if is_compiling():
            if not is_dynamo_compiling():
                self.recorder.note_export(self)
            return self.original(*args, **kwargs)
        local = self.local
        if local.in_api:
            return self.recorder.call_inside(self, args, kwargs)
        if not self.observer.running or local.busy:
            return self.original(*args, **kwargs)
        return self.recorder.record(self, args, kwargs)

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        """Bind where the function would have: one written in Python does, a builtin one does not."""
        if instance is None or not hasattr(type(self.original), "__get__"):
            return self
        return types.MethodType(self, instance)

    def __getattr__(self, name: str) -> Any:
        return getattr(object.__getattribute__(self, "original"), name)

    def __eq__(self, other: object) -> bool:
        return bool(self.original == (other.original if isinstance(other, Api) else other))

    def __hash__(self) -> int:
        return hash(self.original)

    def __repr__(self) -> str:
        return repr(self.original)

    def __copy__(self) -> Api:
        return self

    def __deepcopy__(self, memo: object) -> Api:
        return self

    def __reduce__(self) -> tuple[Any, ...]:
        """A pickle looks the function up where it stands, and needs nothing of this package."""
        return pkgutil.resolve_name, (f"{self.place}:{self.name}",)

    def finish(self, call: ApiCall, args: Values, kwargs: Mapping[str, Any], output: Any, sequence: int) -> None:
        """Record the outcome of a call, and have its gradients recorded when they come."""
        del args, kwargs  # communication needs them
        self.observer.end_api(call, output)
        if self.observer.wants_backward(call):
            self.recorder.hook_backward(call, output, sequence)


class ApiMethod(Api):
    """Stands for a method: an instance gets the stand-in, the class the original."""

    __slots__ = ()

    def __get__(self, instance: Any, owner: type | None = None) -> Any:
        return self.original if instance is None else types.MethodType(self, instance)


class ApiRecorder:
    """What all stand-ins of one capture share: they hand their calls to it."""

    def __init__(self, observer: Observer, framework: ApiFramework) -> None:
        self.observer = observer
        self.framework = framework
        self.mode: SideSteppingMode | None = None
        self.aliases: dict[int, list[tuple[dict[str, Any], Api]]] = {}
        """Stand-ins of each function (by identity) and the modules' namespaces that they stand in."""
        self.are_in_place = False
        self._watched = _Watched()
        # Who listens to gradients as well may have something to record before the event of a node.
        self.advance: Callable[[int], None] = getattr(framework, "advance", _ignore)

    def record(self, api: Api, args: Values, kwargs: dict[str, Any]) -> Any:
        """Call the function with its inputs and outputs recorded; nothing inside it is."""
        if torch._C._get_tracing_state() is not None:
            where = f"{api.prefix}.{api.name}"
            self.observer.problem("scripted", where, "not recorded while torch.jit.trace runs")
            return api.original(*args, **kwargs)
        mode = self.mode
        if mode is None or not mode.step_aside():
            return self._record(api, args, kwargs)
        try:
            return self._record(api, args, kwargs)
        finally:
            mode.step_back()

    def _record(self, api: Api, args: Values, kwargs: dict[str, Any]) -> Any:
        observer, local = self.observer, self.observer.local
        call = self._begin(api, args, kwargs)
        sequence = torch._C._autograd._get_sequence_nr()
        watched = _len_torch_function_stack() > 0 or has_torch_function(args)
        local.in_api = True
        try:
            output = self._call_watched(api, args, kwargs) if watched else api.original(*args, **kwargs)
        except BaseException:
            if call is not None:
                observer.fail_api(call)
            raise
        finally:
            local.in_api = False
        if call is not None:
            api.finish(call, args, kwargs, output, sequence)
        return output

    def call_inside(self, api: Api, args: Values, kwargs: dict[str, Any]) -> Any:
        """Call a function from within one that is being recorded."""
        if self._watched.now:
            return self._show_original(api, args, kwargs)
        return api.original(*args, **kwargs)

    def _call_watched(self, api: Api, args: Values, kwargs: dict[str, Any]) -> Any:
        self._watched.now = True
        try:
            return self._show_original(api, args, kwargs)
        finally:
            self._watched.now = False

    def _show_original(self, api: Api, args: Values, kwargs: dict[str, Any]) -> Any:
        """Call a function with itself in its place: a mode or a subclass may ask ``func is torch.add``."""
        original = api.original
        aliases = self.aliases.get(id(original), ())
        for namespace, other in aliases:
            if namespace.get(other.name) is other:
                namespace[other.name] = original
        try:
            return original(*args, **kwargs)
        finally:
            for namespace, other in aliases if self.are_in_place else ():
                if namespace.get(other.name) is original:
                    namespace[other.name] = other

    def _begin(self, api: Api, args: Values, kwargs: dict[str, Any]) -> ApiCall | None:
        if "self" in kwargs:
            # Recorded in its place, as if it had been given there.
            args, kwargs = (kwargs["self"], *args), {key: kwargs[key] for key in kwargs if key != "self"}
        return self.observer.begin_api(api.prefix, api.name, args, kwargs)

    def unrecorded(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Stand in for a function of PyTorch's own, inside which nothing is the model's."""

        @functools.wraps(function)
        def pass_on(*args: Any, **kwargs: Any) -> Any:
            local = self.observer.local
            before, local.in_api = local.in_api, True
            try:
                return function(*args, **kwargs)
            finally:
                local.in_api = before

        return pass_on

    def note_export(self, api: Api) -> None:
        """Say that a call went by unrecorded because a graph is being made of it."""
        if self.observer.running:
            where = f"{api.prefix}.{api.name}"
            self.observer.problem("compiled", where, "not recorded while torch.export or torch.compile makes a graph")

    def hook_backward(self, call: ApiCall, output: Any, sequence: int) -> None:
        """Have the gradients of a call recorded when its backward runs.

        Parameters
        ----------
        sequence
            Autograd's sequence number before the call: an output whose node is older is one of the inputs.
        """
        try:
            tensor = _first_tensor(output)
            if tensor is None:
                return
            if type(tensor) is torch.Tensor and not _len_torch_function_stack():
                self._hook_backward(call, tensor, sequence)
                return
            with DisableTorchFunction():
                self._hook_backward(call, tensor, sequence)
        except Exception as error:  # noqa: BLE001 (an odd tensor must not cost the training anything)
            self.observer.problem(f"backward hook {type(error).__name__}", call.forward, str(error))

    def _hook_backward(self, call: ApiCall, tensor: torch.Tensor, sequence: int) -> None:
        if not (tensor.requires_grad and torch.is_grad_enabled()):
            return
        node = tensor.grad_fn
        if node is None:
            return
        observer, advance, number = self.observer, self.advance, node._sequence_nr()
        if number < sequence:
            self.framework.on_gradient(tensor, lambda gradient: observer.api_backward(call, (gradient,), (gradient,)))
            return

        def record(inputs: Values, outputs: Values) -> None:
            advance(number)
            observer.api_backward(call, outputs, inputs)

        # It holds names, never the node or a tensor: a node that reaches itself through its hook is never freed.
        node.register_hook(record)


class _Watched(threading.local):
    """Whether a mode or a tensor subclass of the user is told of what a thread calls now."""

    now = False


def _ignore(_: int) -> None:
    pass


def _first_tensor(value: Any) -> torch.Tensor | None:
    """The tensor whose gradient stands for the call's: the peer hooks the same one."""
    while not isinstance(value, torch.Tensor):
        if isinstance(value, dict):
            value = next((item for item in value.values() if isinstance(item, torch.Tensor)), None)
        elif isinstance(value, (list, tuple)) and value:
            value = value[0]
        else:
            return None
    return value
