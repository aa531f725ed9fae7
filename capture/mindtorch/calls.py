"""Backward passes of calls (of modules and of functions) by hooks on their inputs and outputs.

For a MindSpore that shows no graph. A call *opens* when the gradient of one of its outputs is there, and *closes* when
those of all its inputs are, or when the backward pass ends. Leaves, of which nobody knows whether their gradient was
asked for, are waited for until something made before the call begins its backward.

Nothing is put into the graph, so an input's gradient is the sum over all uses of that tensor. Where calls share an
input, and the sum is not what this call alone gives, the dump says so.
"""

from __future__ import annotations

import itertools
from typing import TYPE_CHECKING, Any

from capture.mindspore.graph import tensors_of
from capture.mindtorch.tensorhooks import TensorGroups, is_inner, records_gradients

if TYPE_CHECKING:
    from capture.mindspore.passes import BackwardPasses
    from capture.module_calls import BackwardListener
    from capture.observer import Observer

__all__ = ["Call", "CallBackwards"]

# Calls that wait for an input which others use too. What is detached never comes, and must not hold all gradients.
_MOST_LATE = 64


class CallBackwards:
    """Follows the backward of calls; the interface is that of :class:`capture.mindspore.backward.CellBackwards`.

    Parameters
    ----------
    observer
        Says whether anything is recorded now, and takes problems.
    passes
        Says when a backward pass ends.
    """

    def __init__(self, observer: Observer, passes: BackwardPasses) -> None:
        self._observer = observer
        self._groups = TensorGroups(observer)
        self._clock = itertools.count(1)
        self._opened: list[Call] = []
        passes.listen(on_end=self._end_of_pass)

    # --- forward -----------------------------------------------------------------------------------------------------

    def begin(self, args: tuple[Any, ...], *, is_closed: bool = False) -> Call | None:
        """A call begins with these positional arguments; None when it will have no backward."""
        del is_closed  # tensors are listened to here, and no graph is followed
        if not records_gradients():
            return None
        call = Call(self, next(self._clock))
        numbers = call.inputs
        # Before anything inside the call watches them: what is inside is called first.
        for tensor in tensors_of(args):
            is_new = id(tensor) not in numbers
            call.input_slots.append(numbers.setdefault(id(tensor), len(numbers)))
            if is_new:
                self._watch_input(call, numbers[id(tensor)], tensor)
        return call

    def _watch_input(self, call: Call, number: int, tensor: Any) -> None:
        is_inside = is_inner(tensor) and _has_gradient(tensor)
        is_trained = not is_inside and bool(getattr(tensor, "requires_grad", False))
        if is_inside or is_trained or _has_gradient(tensor):  # the program may ask for that of any leaf (grad_position)
            call.inner += is_inside
            call.leaves += is_trained
            self._groups.watch(tensor, _Input(call, number, is_inside=is_inside, is_trained=is_trained))

    def end(self, call: Call, output: Any, listener: BackwardListener) -> bool:
        """A call has ended; ``listener`` is told about its backward. False when it will have none."""
        given, call.inputs = call.inputs, {}
        call.end, call.listener = next(self._clock), listener
        if not records_gradients():
            return False
        numbers: dict[int, int] = {}
        for tensor in tensors_of(output):
            is_new = id(tensor) not in numbers
            call.output_slots.append(numbers.setdefault(id(tensor), len(numbers)))
            if is_new and is_inner(tensor) and _has_gradient(tensor):
                call.has_backward = True
                if id(tensor) in given:
                    call.returned.add(given[id(tensor)])
                self._groups.watch(tensor, _Output(call, numbers[id(tensor)]), anew=id(tensor) in given)
        return call.has_backward

    # --- backward ----------------------------------------------------------------------------------------------------

    def output_arrived(self, call: Call, number: int, gradient: Any) -> None:
        """The gradient of an output is complete: what was called after this call is over."""
        if call.is_over:
            return
        self._pass_by([other for other in self._opened if other.begin > call.end])
        if not call.is_open:
            call.is_open = True
            self._opened.append(call)
            if call.listener is not None:
                call.listener.opened()
        call.gradients_out[number] = gradient
        if call.returned and call.is_complete:
            self._complete(call)

    def input_arrived(self, watcher: _Input, gradient: Any, everybody: list[Any]) -> None:
        """The gradient of an input is complete."""
        call = watcher.call
        # An input that is an output too, unchanged, comes as the first before it comes as the second.
        if call.is_over or not (call.is_open or watcher.number in call.returned):
            return  # it comes from other uses: no output of this call was used
        call.gradients_in[watcher.number] = gradient
        if any(isinstance(one, _Input) and one.call.is_beside(call) for one in everybody):
            self._note_shared(call)
        call.inner -= watcher.is_inside
        call.leaves -= watcher.is_trained
        if call.is_open and call.is_complete and (watcher.is_inside or watcher.is_trained):
            self._complete(call)

    def reset(self) -> None:
        """Close what is open, and take the hooks off leaves."""
        self._close_all(list(self._opened))
        self._groups.reset()

    def _note_shared(self, call: Call) -> None:
        if not call.is_shared:
            call.is_shared = True
            where = getattr(getattr(call.listener, "call", None), "backward", "")
            text = "another call uses an input too: its gradient here is that of all its uses"
            self._observer.problem("shared input", where, text)

    def _end_of_pass(self, _: int, failed: bool) -> None:  # noqa: FBT001 (a callback)
        if not failed:
            self._close_all(list(self._opened))
            return
        for call in reversed(self._opened):
            call.finish()
            if call.listener is not None:
                call.listener.dropped()
        self._opened.clear()

    def _complete(self, call: Call) -> None:
        self._pass_by([other for other in self._opened if call.begin < other.begin < call.end])
        self._close_all([call])

    def _pass_by(self, calls: list[Call]) -> None:
        """These calls are over. What waits for an input that others use too goes on waiting."""
        for call in calls:
            call.is_passed = True
        late = [call for call in self._opened if call.is_passed and call.inner > 0]
        late.sort(key=lambda one: one.begin, reverse=True)
        self._close_all([call for call in calls if call.inner <= 0] + late[:-_MOST_LATE])

    def _close_all(self, calls: list[Call]) -> None:
        """Close calls, what began last first."""
        for call in sorted(calls, key=lambda one: one.begin, reverse=True):
            self._opened.remove(call)
            given = tuple(call.gradients_out.get(slot) for slot in call.output_slots)
            taken = tuple(call.gradients_in.get(slot) for slot in call.input_slots)
            call.finish()
            if call.listener is not None:
                call.listener.closed(given, taken)


class Call:
    """One call. It holds gradients while its backward is open, and never a tensor of the forward.

    Attributes
    ----------
    begin, end
        Place among all calls; what lies between ran inside this one.
    inputs
        While the forward runs: numbers of the inputs, by identity.
    input_slots, output_slots
        The number of each tensor among the inputs and outputs; ``f(x, x)`` has two at one number.
    returned
        Numbers of inputs that are outputs too: unchanged, or written to in place.
    inner, leaves
        Gradients that are still to come: of inputs that an operation made, of parameters.
    is_passed
        Something made before the call has begun its backward.
    """

    __slots__ = (
        "begin", "end", "gradients_in", "gradients_out", "has_backward", "inner", "input_slots", "inputs", "is_open",
        "is_over", "is_passed", "is_shared", "leaves", "listener", "output_slots", "owner", "returned",
    )  # fmt: skip

    def __init__(self, owner: CallBackwards, begin: int) -> None:
        self.owner, self.begin, self.end = owner, begin, begin
        self.inputs: dict[int, int] = {}
        self.input_slots: list[int] = []
        self.output_slots: list[int] = []
        self.returned: set[int] = set()
        self.inner = self.leaves = 0
        self.has_backward = self.is_open = self.is_over = self.is_passed = self.is_shared = False
        self.gradients_in: dict[int, Any] = {}
        self.gradients_out: dict[int, Any] = {}
        self.listener: BackwardListener | None = None

    @property
    def is_complete(self) -> bool:
        """Whether nothing is waited for any more."""
        return self.inner <= 0 and (self.leaves <= 0 or self.is_passed)

    def is_beside(self, other: Call) -> bool:
        """Whether neither of two calls runs inside the other. One that raised is no other use."""
        return self.listener is not None and (self.begin > other.end or self.end < other.begin)

    def finish(self) -> None:
        """Let go of the gradients."""
        self.is_open, self.is_over = False, True
        self.gradients_in, self.gradients_out = {}, {}


class _Output:
    """Waits for the gradient of an output."""

    __slots__ = ("call", "number")

    def __init__(self, call: Call, number: int) -> None:
        self.call, self.number = call, number

    def __call__(self, gradient: Any, _: list[Any]) -> None:
        self.call.owner.output_arrived(self.call, self.number, gradient)


class _Input:
    """Waits for the gradient of an input."""

    __slots__ = ("call", "is_inside", "is_trained", "number")

    def __init__(self, call: Call, number: int, *, is_inside: bool, is_trained: bool) -> None:
        self.call, self.number, self.is_inside, self.is_trained = call, number, is_inside, is_trained

    def __call__(self, gradient: Any, everybody: list[Any]) -> None:
        self.call.owner.input_arrived(self, gradient, everybody)


def _has_gradient(tensor: Any) -> bool:
    """Whether there can be one: masks and indices are said to have a backward, too."""
    dtype = str(tensor.dtype).lower()
    return "float" in dtype or "complex" in dtype
