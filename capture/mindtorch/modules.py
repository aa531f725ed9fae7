"""Hooks on the modules of a torch that runs on MindSpore: its own forward hooks, and listening for the backward."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Any

from mindspore import Tensor

from capture.mindspore.parameters import ParameterGradients
from capture.module_calls import ModuleListener, RunningModules, inert, models_of, own_parameters

if TYPE_CHECKING:
    from capture.mindspore.passes import BackwardPasses
    from capture.mindtorch.backwards import Backwards
    from capture.observer import Observer

__all__ = ["ModuleHooks"]


class _Parameters(ParameterGradients):
    """Knows the parameters of modules of torch, and the gradients that they had before."""

    def __init__(self, observer: Observer) -> None:
        super().__init__(observer)
        self._before: dict[int, tuple[int, Any] | None] = {}

    def add(self, prefix: str, module: Any) -> None:
        """Note the parameters that a module itself has; ``prefix`` is ``Module.{path}.{class}``."""
        for name, parameter in own_parameters(module).items():
            if id(parameter) not in self._owners:
                self._before[id(parameter)] = _state(_gradient(parameter))
            _, owners = self._owners.setdefault(id(parameter), (parameter, []))
            if (prefix, name) not in owners:
                owners.append((prefix, name))

    def finish(self, *, had_backward: bool) -> None:
        """Record gradients that a backward of another way (``loss.backward()`` of MSAdapter) has left in ``grad``."""
        if not self._came:
            known = [(parameter, _gradient(parameter)) for parameter, _ in self._owners.values()]
            self.arrived([(one, found) for one, found in known if _state(found) != self._before.get(id(one))])
        super().finish(had_backward=had_backward)

    def forget(self) -> None:
        """Let go of every parameter."""
        super().forget()
        self._before.clear()


class ModuleHooks:
    """Sets and removes the hooks of a model's modules.

    Parameters
    ----------
    observer
        Where events go.
    backwards
        Follows the backward of calls.
    passes
        Gives the gradients of parameters.
    give_back
        Raises an error of the program's that capture came upon, where the program can catch it.
    """

    def __init__(
        self, observer: Observer, backwards: Backwards, passes: BackwardPasses, give_back: Callable[[], None]
    ) -> None:
        self._observer, self._backwards, self.give_back = observer, backwards, give_back
        self._parameters = _Parameters(observer)
        passes.listen(on_end=self._end_of_pass, on_result=self._parameters.arrived)
        self._had_backward = False
        self._running = RunningModules(observer)
        self._handles: list[Any] = []
        self._single: list[Any] = []
        self._single_id: int | None = None
        self._silent: dict[str, None] = {}
        self._hooked: set[int] = set()

    # --- set and remove ----------------------------------------------------------------------------------------------

    def install(self, models: Any) -> None:
        """Hook every module below a model, or below each model of a list or tuple; the models themselves are not."""
        self.remove()
        for base, model in models_of(models):
            try:
                for path, module in model.named_modules():
                    if module is not model:
                        self._handles += self._hook(module, f"{base}{path}")
            except Exception as error:  # noqa: BLE001 (named_modules is the model's own, and may be replaced)
                self._observer.problem("not hooked", base or type(model).__name__, f"{type(error).__name__}: {error}")

    def install_one(self, module: Any, name: str) -> bool:
        """Hook one module alone as ``Module.{name}.{class}``; False when it is recorded already."""
        if id(module) in self._hooked:
            text = "module_dump has no effect: it is recorded already, under its own name"
            self._observer.problem("not hooked", name, text)
            return False
        self._single = self._hook(module, name)
        self._single_id = id(module)
        return True

    def remove_one(self) -> None:
        """Undo ``install_one``."""
        handles, self._single = self._single, []
        for handle in handles:
            handle.remove()
        if self._single_id is not None:
            self._hooked.discard(self._single_id)
            self._single_id = None

    def finish(self) -> None:
        """Say what did not come; called before recording stops."""
        self._parameters.finish(had_backward=self._had_backward)

    def remove(self) -> None:
        """Take every hook off again."""
        self.remove_one()
        handles, self._handles = self._handles, []
        for handle in handles:
            handle.remove()
        self._hooked.clear()
        self._silent.clear()
        self._parameters.forget()
        self._had_backward = False
        self._running.abandon()

    def never_fired(self) -> list[str]:
        """Paths of modules that were hooked and never called: unused, or only their ``forward`` was."""
        return list(self._silent)

    def _hook(self, module: Any, path: str) -> list[Any]:
        handles: list[Any] = []
        try:
            prefix = f"Module.{path}.{type(module).__name__}"
            before = _Hook(self, path, prefix)
            handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
            handles.append(_register_after(module, _AfterHook(before)))
            self._hooked.add(id(module))
            self._parameters.add(prefix, module)
            if not _is_never_called(type(module)):
                self._silent[path] = None
        except Exception as error:  # noqa: BLE001 (a class of its own mind costs itself only)
            self._observer.problem("not hooked", path, str(error))
        return handles

    # --- events ------------------------------------------------------------------------------------------------------

    def enter(self, hook: _Hook, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> None:
        """A module is called."""
        self._silent.pop(hook.path, None)
        observer = self._observer
        if not observer.running or observer.local.busy:
            return
        call = observer.begin_module(hook.prefix, args, kwargs)
        if call is None:
            return
        inputs = self._backwards.begin(args) if observer.wants_backward(call) else None
        self._running.begin(hook, call, inputs)

    def leave(self, hook: _Hook, module: Any, output: Any) -> None:
        """A module's forward has returned, or raised."""
        run = self._running.end(hook)
        if run is None:
            return
        observer = self._observer
        if run.has_raised:
            observer.abort_module(run.call)
            return
        observer.end_module(run.call, output, own_parameters(module))
        self._parameters.add(hook.prefix, module)  # some are made by the first forward
        if run.inputs is not None:
            self._backwards.end(run.inputs, output, ModuleListener(observer, run.call))

    def failed(self, where: str, error: BaseException) -> None:
        """Report; the training goes on."""
        self._observer.problem(f"module hook {type(error).__name__}", where, str(error))

    def _end_of_pass(self, _: int, failed: bool) -> None:  # noqa: FBT001 (a callback)
        self._had_backward |= not failed


class _Hook:
    """Forward pre-hook of one module."""

    __slots__ = ("hooks", "path", "prefix")

    def __init__(self, hooks: ModuleHooks, path: str, prefix: str) -> None:
        self.hooks, self.path, self.prefix = hooks, path, prefix

    def __call__(self, _module: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        try:
            self.hooks.enter(self, args, kwargs)
        except Exception as error:  # noqa: BLE001 (a hook never raises)
            self.hooks.failed(self.path, error)

    def __reduce__(self) -> tuple[Any, ...]:
        return inert()


class _AfterHook:
    """Forward hook of one module; runs also when its forward raised."""

    __slots__ = ("before",)

    def __init__(self, before: _Hook) -> None:
        self.before = before

    def __call__(self, module: Any, _args: object, _kwargs: object, output: Any) -> None:
        before = self.before
        try:
            before.hooks.leave(before, module, output)
        except Exception as error:  # noqa: BLE001 (a hook never raises)
            before.hooks.failed(before.path, error)
        before.hooks.give_back()

    def __reduce__(self) -> tuple[Any, ...]:
        return inert()


def _register_after(module: Any, after: _AfterHook) -> Any:
    """Before the hooks of others, and also when the forward raises: mindtorch's method knows not how to ask for it."""
    handle = module.register_forward_hook(after, with_kwargs=True, prepend=True)
    always = getattr(module, "_forward_hooks_always_called", None)
    if always is not None:
        always[handle.id] = True
    return _Handle(handle, always)


class _Handle:
    """Takes a forward hook off, with the note that it is always called."""

    __slots__ = ("_always", "_handle")

    def __init__(self, handle: Any, always: dict[int, bool] | None) -> None:
        self._handle, self._always = handle, always

    def remove(self) -> None:
        """Take it off."""
        self._handle.remove()
        if self._always is not None:
            self._always.pop(self._handle.id, None)


def _is_never_called(kind: type[Any]) -> bool:
    """Containers have the ``forward`` of the class that they are all made from, which only raises."""
    return any(kind.forward is base.__dict__.get("forward") for base in kind.__mro__ if base.__name__ == "Module")


def _gradient(parameter: Any) -> Any:
    """What lies in ``grad``, if anything does."""
    try:
        found = parameter.grad
    except Exception:  # noqa: BLE001 (a class of its own mind)
        return None
    return found if isinstance(found, Tensor) else None


def _state(gradient: Any) -> tuple[int, Any] | None:
    """Tells whether a gradient is another one or, where MindSpore counts that, was added to."""
    return None if gradient is None else (id(gradient), getattr(gradient, "_version", None))
