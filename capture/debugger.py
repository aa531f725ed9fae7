"""The methods of PrecisionDebugger, written once; a framework adds its tensors and its hooks.

Every method works on the instance and, as in msprobe, on the class, where it means the debugger made last: a program
starts in one file what it made in another.
"""

from __future__ import annotations

import functools
import inspect
import operator
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from numbers import Integral
from types import TracebackType
from typing import TYPE_CHECKING, Any, ClassVar, Generic, SupportsIndex, TypeVar

from capture.config import load_config, reread_enable
from capture.errors import CaptureError
from capture.kernel.session import KernelSession
from capture.record import Recorder
from capture.saving import Saver
from capture.session import Hooks, Session

if TYPE_CHECKING:
    import os

    from typing_extensions import Self

    from capture.framework import Framework
    from capture.kernel.device import KernelDevice

__all__ = ["DebuggerBase", "either"]

_STEPS = 10**18

_R = TypeVar("_R")


class either(Generic[_R]):  # noqa: N801 (a decorator, named as classmethod is)
    """A method that also works on the class, for the debugger made last."""

    def __init__(self, method: Callable[..., _R]) -> None:
        self._method = method
        functools.update_wrapper(self, method)  # type: ignore[arg-type]

    def __get__(self, instance: DebuggerBase | None, owner: type[DebuggerBase]) -> Callable[..., _R]:
        return functools.partial(self._method, owner.latest() if instance is None else instance)


class DebuggerBase(ABC):
    """Records what runs between ``start`` and ``stop``, a unit of the dump a step.

    Parameters
    ----------
    config_path
        config.json; its keys are in docs/config.md. The other arguments win over it.
    task
        ``statistics``, ``tensor`` or ``structure``.
    dump_path
        Directory of the dump; made when needed.
    level
        ``L0`` (modules), ``L1`` (APIs), ``mix`` (both), ``L2`` (kernels), ``debug`` (only what ``save`` is given).
    model
        As for ``start``.
    step
        Steps to record: numbers, ``"3"``, ``"4-6"``.

    Raises
    ------
    CaptureError
        A key is unknown, contradictory or of the wrong type; the message names it and suggests another.
    """

    framework_name: ClassVar[str] = ""
    _latest: ClassVar[dict[type, DebuggerBase]] = {}
    _made_with: Mapping[str, Any] | None = None
    model: Any = None

    def __new__(cls, *arguments: Any, **named: Any) -> Self:
        """The one made before, where it is meant: without arguments, or with those it was made with, as in msprobe.

        A program may make its debugger in a function that it calls for each epoch. Another one would find the dump of
        the first in its way.
        """
        known, settings = cls._latest.get(cls), _settings_of(cls, arguments, named)
        if known is not None and (not (arguments or named) or known.is_made_with(settings)):
            return known  # type: ignore[return-value]
        made = super().__new__(cls)
        made._made_with = settings
        return made

    def __init__(
        self,
        config_path: str | os.PathLike[str] | None = None,
        task: str | None = None,
        dump_path: str | os.PathLike[str] | None = None,
        level: str | None = None,
        model: Any = None,
        step: Any = None,
    ) -> None:
        if getattr(self, "_session", None) is not None:
            self.model = model if model is not None else self.model
            return
        self.config = load_config(
            config_path, task=task, dump_path=dump_path, level=level, step=step, framework=self.framework_name
        )
        self.framework = self._make_framework()
        self.model = model
        self._config_path = config_path
        self._session = self._make_session()
        self._hooks: Hooks | None = None
        self._saver: Saver | None = None
        self._undo_token_range: Callable[[], None] | None = None
        self._latest[type(self)] = self

    @classmethod
    def latest(cls) -> Self:
        """The debugger made last."""
        known = cls.made_last()
        if known is None:
            raise CaptureError(f"no {cls.__name__} was made yet: {cls.__name__}(config_path=…) comes first")
        return known

    @classmethod
    def made_last(cls) -> Self | None:
        """The debugger made last, None when there is none."""
        return cls._latest.get(cls)  # type: ignore[return-value]

    @classmethod
    def another(cls, *arguments: Any) -> Self:
        """A new one, also with the arguments of the one made last: for who owns it alone, as a callback does."""
        known = cls.made_last()
        if known is not None:
            known.step_aside()
        try:
            return cls(*arguments)
        except BaseException:
            if known is not None:
                cls._latest[type(known)] = known
            raise

    def is_made_with(self, settings: Mapping[str, Any] | None) -> bool:
        """Whether it was made with these arguments, and still captures."""
        return settings is not None and repr(settings) == repr(self._made_with) and not self._session.is_closed

    def step_aside(self) -> None:
        """Be the debugger made last no more: what the program calls on the class means one of its own."""
        if self._latest.get(type(self)) is self:
            del self._latest[type(self)]

    # --- what a framework adds ---------------------------------------------------------------------------------------

    @abstractmethod
    def _make_framework(self) -> Framework:
        """Whose tensors are recorded; ``config`` is known."""

    def _make_session(self) -> Session:
        """Whose steps are counted; at level L2 around a device that dumps."""
        if self.config.level != "L2":
            return Session(self.config, self.framework)
        return KernelSession(self.config, self.framework, self._make_device())

    def _make_device(self) -> KernelDevice:
        """What dumps kernels at level L2."""
        raise CaptureError(f"level L2: there is no kernel dump for {self.framework_name}")

    @abstractmethod
    def _make_hooks(self) -> Hooks:
        """What is set at ``start`` and taken off at ``stop``."""

    @abstractmethod
    def _check_model(self, model: Any) -> None:
        """Refuse what cannot be hooked."""

    @abstractmethod
    def _count_tokens(self, model: Any, on_token: Callable[[int], None]) -> Callable[[], None]:
        """Call back before each forward of ``model`` with its number; returns what takes that off again."""

    # --- the methods of msprobe --------------------------------------------------------------------------------------

    @either
    def start(self, model: Any = None, token_range: list[int] | tuple[int, int] | None = None) -> None:
        """Begin to record this step, if it is wanted.

        Parameters
        ----------
        model
            A module or a list of modules; needed for levels L0 and mix and for ``token_range``. The model itself is not
            recorded, its children are.
        token_range
            First and last token of an inference loop to record, both included: a token is a forward of the model.

        Raises
        ------
        CaptureError
            No model where one is needed; another debugger captures; a dump lies where this one would go.
        """
        session = self._session
        needs_model = self.config.level in ("L0", "mix")
        if needs_model and model is not None and session.is_capturing and not _same(model, self.model):
            session.problem("other model", "", "start() with another model has no effect before stop(): not recorded")
            return
        self.model = model if model is not None else self.model
        if self.config.level == "L2":
            session.prepare()
        if self.config.level == "debug" or not self._is_enabled():
            return
        if needs_model or token_range is not None:
            if not _parts(self.model):
                raise CaptureError(f"start(model=…): level {self.config.level} or token_range needs the model")
            self._check_model(self.model)
        if not session.is_wanted:
            return
        tokens = _checked_token_range(token_range)
        if session.start(self._own_hooks(), self.model, paused=tokens is not None) and tokens is not None:
            self._follow_tokens(tokens)

    @either
    def stop(self) -> None:
        """Stop recording; hooks and wrapped functions are gone afterwards. ``start`` may follow in the same step."""
        self._undo_tokens()
        self._session.stop()

    @either
    def step(self) -> None:
        """End the step. Its unit is completed by the writer thread; ``wait`` waits for it."""
        self.stop()
        self._session.step()
        if self._saver is not None:
            self._saver.new_step()

    @either
    def forward_backward_dump_end(self) -> None:
        """Same as ``stop``, as in msprobe."""
        self.stop()

    @either
    def save(self, variable: Any, name: str, save_backward: bool = True) -> None:  # noqa: FBT001, FBT002 (msprobe's)
        """Record a variable of any nesting as ``{name}.{n}.debug``, its gradients as ``{name}_grad.{n}.debug``.

        Only at level debug. Counted per name and step. ``name`` is a name, never a path.
        """
        session = self._session
        if self.config.level != "debug" or not session.is_wanted:
            return
        records = session.records()
        if self._saver is None:
            self._saver = self._make_saver()
        self._saver.save(variable, name, records, save_backward=save_backward)

    @either
    def set_init_step(self, step: SupportsIndex) -> None:
        """Number of the step in hand (a resumed training).

        Raises
        ------
        CaptureError
            ``step`` is no integer from 0, or longer than the name of a step can be.
        """
        is_number = not isinstance(step, bool) and isinstance(step, Integral)
        if not is_number or not 0 <= int(step) < _STEPS:
            raise CaptureError(f"set_init_step({step!r:.40}): an integer from 0 is needed, of 18 digits at most")
        self._session.set_init_step(int(step))

    @either
    def register_custom_api(self, module: Any, api_name: str, api_prefix: str | None = None) -> None:
        """Record calls of ``module.api_name`` too, as ``{api_prefix}.{api_name}.{n}.forward``.

        Raises
        ------
        CaptureError
            There is no such function.
        """
        if not isinstance(api_name, str) or not callable(getattr(module, api_name, None)):
            raise CaptureError(f"{module!r} has no function {api_name!r}")
        prefix = str(api_prefix or getattr(module, "__name__", "Custom"))
        self._own_hooks().add_custom(module, api_name, prefix)

    @either
    def restore_custom_api(self, module: Any, api_name: str) -> None:
        """Undo ``register_custom_api``."""
        self._own_hooks().remove_custom(module, api_name)

    # --- what msprobe has not ----------------------------------------------------------------------------------------

    @contextmanager
    def capture(self, model: Any = None) -> Iterator[Self]:
        """Record one step: ``with debugger.capture(model): …`` is start, stop and step, whatever the block raises."""
        self.start(model)
        try:
            yield self
        except BaseException as error:
            self.abandon(error)
            raise
        self.stop()
        self.step()

    @either
    def abandon(self, reason: BaseException | str) -> None:
        """End a step that did not come to its end: its unit stays, marked incomplete with the reason.

        Parameters
        ----------
        reason
            The exception that ended it, or what else did.
        """
        self._undo_tokens()
        self._session.abandon(reason)
        if self._saver is not None:
            self._saver.new_step()

    @property
    def step_number(self) -> int:
        """Number of the step in hand."""
        return self._session.step_number

    @property
    def captured_steps(self) -> int:
        """How many steps were captured, also in part."""
        return self._session.captured_steps

    @either
    def wait(self, timeout: float | None = None) -> None:
        """Come back when everything recorded so far is on disk (or after ``timeout`` seconds)."""
        self._session.wait(timeout)

    @either
    def close(self) -> None:
        """Finish everything now; at the end of the process this happens by itself."""
        self._session.close()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    # --- inside ------------------------------------------------------------------------------------------------------

    def _is_enabled(self) -> bool:
        """``dump_enable`` of the config file, read again whenever the file changed."""
        if self.config.dump_enable is None or self._config_path is None:
            return self.config.dump_enable is not False
        return reread_enable(self._config_path, self.config.dump_enable)

    def _follow_tokens(self, tokens: tuple[int, int]) -> None:
        first, last = tokens
        observer = self._session.observer

        def on_token(number: int) -> None:
            observer.running = first <= number <= last

        if self._undo_token_range is None:
            self._undo_token_range = self._count_tokens(self.model, on_token)

    def _undo_tokens(self) -> None:
        if self._undo_token_range is not None:
            self._undo_token_range()
            self._undo_token_range = None

    def _make_saver(self) -> Saver:
        """What ``save`` goes to."""
        return Saver(self.framework, Recorder(self.framework, on_problem=self._session.problem), self.config)

    def _own_hooks(self) -> Hooks:
        """The hooks, made on first use."""
        if self._hooks is None:
            self._hooks = self._make_hooks()
        return self._hooks


def _parts(model: Any) -> Sequence[Any]:
    if isinstance(model, (list, tuple)):
        return model
    return () if model is None else (model,)


def _same(one: Any, other: Any) -> bool:
    """Whether two models, or lists of some, are the same objects."""
    ours, theirs = _parts(one), _parts(other)
    return len(ours) == len(theirs) and all(map(operator.is_, ours, theirs))


def _settings_of(cls: type, arguments: tuple[Any, ...], named: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Arguments of a constructor by name, but for the model, which is for ``start``; None where they do not fit."""
    try:
        given = inspect.signature(cls.__init__).bind(None, *arguments, **named).arguments  # type: ignore[misc]
    except TypeError:  # the constructor says so
        return None
    return {name: value for name, value in given.items() if name not in ("self", "model") and value is not None}


def _checked_token_range(token_range: Any) -> tuple[int, int] | None:
    if token_range is None:
        return None
    is_pair = isinstance(token_range, (list, tuple)) and len(token_range) == 2
    if not is_pair or not all(type(number) is int and number >= 0 for number in token_range):
        raise CaptureError(f"token_range={token_range!r}: two integers from 0, first and last token, are needed")
    first, last = token_range
    if first > last:
        raise CaptureError(f"token_range={token_range!r}: the first token lies after the last")
    return first, last
