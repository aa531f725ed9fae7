"""The stand-ins that take the place of MindSpore's functions and methods while capture is installed.

They are plain functions, because MindSpore asks whether what it is given is one (``jit``, ``grad``, ``vmap``), and
because methods bind themselves. What is compiled must not meet them: see :mod:`capture.mindspore.jit`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    from capture.mindspore.graph import CallInputs
    from capture.observer import ApiCall, Observer

__all__ = ["Api", "ApiBackwards", "ApiFramework", "ApiRecorder", "original_of"]

Values = tuple[Any, ...]
_ORIGINAL = "__original_of_capture__"


class ApiFramework(Protocol):
    """What the stand-ins ask of the framework."""

    def settle(self) -> None:
        """Let the errors of kernels that the program started come out, where its values are about to be read."""

    def give_back(self) -> None:
        """Raise an error of the program's that capture came upon."""


class ApiBackwards(Protocol):
    """Who follows the backward of calls; :class:`capture.mindspore.backward.CellBackwards` does."""

    def begin(self, args: Values, *, is_closed: bool = False) -> CallInputs | None:
        """A call begins with these inputs, and uses no others (or may); None when autograd does not look."""

    def end(self, inputs: CallInputs, output: Any, listener: Any) -> bool:
        """A call has ended; the listener is told about its backward."""


class Api:
    """One function of one place, and what its calls are named.

    Parameters
    ----------
    original
        The function itself.
    prefix, name
        ``Functional``, ``relu``.
    is_closed
        It uses nothing but its arguments, as MindSpore's own functions do and the user's may not.
    """

    __slots__ = ("is_closed", "name", "original", "prefix")

    def __init__(self, original: Callable[..., Any], prefix: str, name: str, *, is_closed: bool = True) -> None:
        self.original, self.prefix, self.name, self.is_closed = original, prefix, name, is_closed

    def finish(
        self, recorder: ApiRecorder, call: ApiCall, args: Values, kwargs: Mapping[str, Any], output: Any
    ) -> None:
        """Record what a call returned."""
        del args, kwargs  # communication needs them
        recorder.observer.end_api(call, output)

    def stand_in(self, recorder: ApiRecorder) -> Callable[..., Any]:
        """The function that takes the place."""
        original, observer, local = self.original, recorder.observer, recorder.observer.local

        @functools.wraps(original)
        def api(*args: Any, **kwargs: Any) -> Any:
            if not observer.running or local.in_api or local.busy or recorder.is_making_a_graph(self):
                return original(*args, **kwargs)
            return recorder.record(self, args, kwargs)

        vars(api)[_ORIGINAL] = original
        return api


def original_of(function: Any) -> Any:
    """The function behind a stand-in; anything else as it is."""
    return getattr(function, _ORIGINAL, function)


class ApiRecorder:
    """What all stand-ins of one capture share: they hand their calls to it.

    Parameters
    ----------
    observer
        Hears of every call.
    framework
        Brings out the program's errors.
    backwards
        Follows the backward of calls.
    is_tracing
        Whether MindSpore makes a graph of what is called now.
    """

    def __init__(
        self, observer: Observer, framework: ApiFramework, backwards: ApiBackwards, is_tracing: Callable[[], bool]
    ) -> None:
        self.observer, self.framework, self._backwards = observer, framework, backwards
        self._is_tracing = is_tracing

    def is_making_a_graph(self, api: Api) -> bool:
        """Whether what is called now is looked at to make a graph of it; it is not recorded then, which is said."""
        if not self._is_tracing():
            return False
        text = "not recorded while jit(capture_mode='trace') makes a graph of it"
        self.observer.problem("traced", f"{api.prefix}.{api.name}", text)
        return True

    def record(self, api: Api, args: Values, kwargs: dict[str, Any]) -> Any:
        """Call the function with its inputs and outputs recorded; nothing inside it is."""
        observer, local = self.observer, self.observer.local
        call = observer.begin_api(api.prefix, api.name, args, kwargs)
        local.in_api = True
        try:
            if call is None:
                return api.original(*args, **kwargs)
            inputs = self._inputs(api, call, (args, kwargs))
            output = self._call(api, call, args, kwargs)
        finally:
            local.in_api = False
        api.finish(self, call, args, kwargs, output)
        if inputs is not None:
            self._follow(call, inputs, output)
        self.framework.give_back()
        return output

    def _call(self, api: Api, call: ApiCall, args: Values, kwargs: dict[str, Any]) -> Any:
        """The call itself. What its kernels raise behind the program comes out here, as if they had not been behind."""
        try:
            self.framework.give_back()
            output = api.original(*args, **kwargs)
            if call.entry is not None:
                self.framework.settle()
        except BaseException:
            self.observer.fail_api(call)
            raise
        return output

    def _inputs(self, api: Api, call: ApiCall, values: Values) -> CallInputs | None:
        """Where the inputs hang in the graph, before the function can change that."""
        observer = self.observer
        if not observer.wants_backward(call):
            return None
        try:
            return self._backwards.begin(values, is_closed=api.is_closed)
        except Exception as error:  # noqa: BLE001 (an odd tensor must not cost the training anything)
            observer.problem(f"backward hook {type(error).__name__}", call.forward, str(error))
            return None

    def _follow(self, call: ApiCall, inputs: CallInputs, output: Any) -> None:
        """Have the gradients of a call recorded when its backward runs."""
        observer = self.observer
        try:
            self._backwards.end(inputs, output, _Listener(observer, call))
        except Exception as error:  # noqa: BLE001 (as above)
            observer.problem(f"backward hook {type(error).__name__}", call.forward, str(error))


class _Listener:
    """Is told about the backward of one call. Holds names only."""

    __slots__ = ("call", "observer")

    def __init__(self, observer: Observer, call: ApiCall) -> None:
        self.observer, self.call = observer, call

    def opened(self) -> None:
        """The first gradient of an output is there."""

    def closed(self, grad_outputs: Values, grad_inputs: Values) -> None:
        """All gradients are there."""
        self.observer.api_backward(self.call, grad_outputs, grad_inputs)

    def dropped(self) -> None:
        """The backward raised."""
