"""Hooks on modules: forward by PyTorch's own forward hooks, backward by listening to the graph (see backward)."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import nn
from torch.nn.modules.linear import NonDynamicallyQuantizableLinear

from capture.framework import Framework
from capture.module_calls import ModuleListener, RunningModules, inert, models_of, own_parameters
from capture.observer import Observer
from capture.pytorch.backward import ModuleBackwards
from capture.pytorch.gradients import GradientGroups
from capture.pytorch.parameters import ParameterHooks
from capture.pytorch.releases import is_compiling, is_dynamo_compiling
from capture.pytorch.scripting import ScriptingGuard

__all__ = ["ModuleHooks"]

_SKIPPED_CLASSES = ("FullyShardedDataParallel",)  # a wrapper around modules that are recorded themselves


class ModuleHooks:
    """Sets and removes the hooks of a model's modules and of their parameters.

    Parameters
    ----------
    observer
        Where events go.
    framework
        Whose tensors they are about.
    groups
        Who listens to gradients; hooks of APIs may share it.
    """

    def __init__(self, observer: Observer, framework: Framework, groups: GradientGroups | None = None) -> None:
        self.groups = groups or GradientGroups(observer)
        self._observer = observer
        self._backwards = ModuleBackwards(observer, framework, self.groups)
        self._parameters = ParameterHooks(observer)
        self._scripting = ScriptingGuard(_is_ours, self._on_script)
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
        self._scripting.install()
        for base, model in models_of(models):
            if not isinstance(model, nn.Module):
                self._observer.problem("not hooked", base, f"a {type(model).__qualname__} is no module")
                continue
            try:
                self._hook_all(model, base)
            except Exception as error:  # noqa: BLE001 (named_modules is the model's own, and may be replaced)
                self._observer.problem("not hooked", base or type(model).__name__, f"{type(error).__name__}: {error}")

    def _hook_all(self, model: nn.Module, base: str) -> None:
        for path, module in self._hookable(model, base):
            if module is not model and type(module).__name__ not in _SKIPPED_CLASSES:
                self._handles += self._hook(module, f"{base}{path}")

    def install_one(self, module: nn.Module, name: str) -> bool:
        """Hook one module alone as ``Module.{name}.{class}`` (for ``module_dump``).

        Returns
        -------
        bool
            False when it cannot be hooked, or is already.
        """
        if id(module) in self._hooked or _obstacle(module) is not None:
            obstacle = _obstacle(module) or "it is recorded already, under its own name"
            self._observer.problem("not hooked", name, f"module_dump has no effect: {obstacle}")
            return False
        self._single += self._hook(module, name)
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
        """Record what no hook brought, gradients that a framework writes by itself; called before recording stops."""
        self._parameters.finish(had_backward=self._backwards.had_any)

    def remove(self) -> None:
        """Take every hook off again."""
        self.remove_one()
        handles, self._handles = self._handles, []
        for handle in handles:
            handle.remove()
        self._scripting.remove()
        self._hooked.clear()
        self._silent.clear()
        self._parameters.remove()
        self._running.abandon()
        self._backwards.reset()
        self.groups.reset()

    def never_fired(self) -> list[str]:
        """Paths of modules that were hooked and never called: unused, or only their ``forward`` was."""
        return list(self._silent)

    def _hookable(self, model: nn.Module, base: str) -> Iterator[tuple[str, nn.Module]]:
        """Modules with their paths, without those that never call a hook: they are named."""
        closed: list[str] = []
        for path, module in model.named_modules():
            if any(path.startswith(prefix) for prefix in closed):
                continue
            obstacle = _obstacle(module)
            if obstacle is None:
                yield path, module
                continue
            closed.append(f"{path}." if path else "")
            self._observer.problem("not hooked", f"{base}{path}" or type(module).__name__, obstacle)

    def _on_script(self, name: str) -> None:
        self._observer.problem("not hooked", name, "torch.jit makes a copy of it, which is not recorded")

    def _hook(self, module: nn.Module, path: str) -> list[Any]:
        handles: list[Any] = []
        try:
            prefix = f"Module.{path}.{type(module).__name__}"
            before = _Hook(self, path, prefix)
            handles.append(module.register_forward_pre_hook(before, with_kwargs=True))
            after = _AfterHook(before)
            handles.append(module.register_forward_hook(after, with_kwargs=True, always_call=True, prepend=True))
            self._hooked.add(id(module))
            self._parameters.install(prefix, module)
            if not _is_never_called(module):
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
        if torch._C._get_tracing_state() is not None:
            observer.problem("traced", hook.path, "calls while torch.jit.trace looks are not recorded")
            return
        self._backwards.settle()
        call = observer.begin_module(hook.prefix, args, kwargs)
        if call is None:
            return
        inputs = self._backwards.begin(args) if observer.wants_backward(call) else None
        self._running.begin(hook, call, inputs)

    def leave(self, hook: _Hook, module: nn.Module, output: Any) -> None:
        """A module's forward has returned, or raised."""
        run = self._running.end(hook)
        if run is None:
            return
        observer, call = self._observer, run.call
        if run.has_raised:
            observer.abort_module(call)
            return
        observer.end_module(call, output, own_parameters(module))
        self._parameters.install(hook.prefix, module)
        if run.inputs is not None:
            self._backwards.end(run.inputs, output, ModuleListener(observer, call))

    def note_export(self, path: str) -> None:
        """Say that a call went by unrecorded because a graph is being made of it."""
        if self._observer.running:
            self._observer.problem("compiled", path, "not recorded while torch.export or torch.compile makes a graph")

    def failed(self, where: str, error: BaseException) -> None:
        """Report; the training goes on."""
        self._observer.problem(f"module hook {type(error).__name__}", where, str(error))


class _Hook:
    """Forward pre-hook of one module."""

    __slots__ = ("hooks", "path", "prefix")

    def __init__(self, hooks: ModuleHooks, path: str, prefix: str) -> None:
        self.hooks, self.path, self.prefix = hooks, path, prefix

    def __call__(self, _module: nn.Module, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        # Dynamo takes the first test for a constant, and sees nothing of the rest.
        if is_compiling():
            if not is_dynamo_compiling():
                self.hooks.note_export(self.path)
            return
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

    def __call__(self, module: nn.Module, _args: object, _kwargs: object, output: Any) -> None:
        if is_compiling():
            return
        before = self.before
        try:
            before.hooks.leave(before, module, output)
        except Exception as error:  # noqa: BLE001 (a hook never raises)
            before.hooks.failed(before.path, error)

    def __reduce__(self) -> tuple[Any, ...]:
        return inert()


def _obstacle(module: nn.Module) -> str | None:
    """Why hooks on a module would never be called."""
    try:
        if isinstance(module, torch.jit.ScriptModule):
            return f"a {type(module).__name__} runs no hooks of Python: nothing inside it is recorded"
        dynamo = sys.modules.get("torch._dynamo.eval_frame")
        is_compiled = dynamo is not None and isinstance(module, dynamo.OptimizedModule)
        if is_compiled or getattr(module, "_compiled_call_impl", None) is not None:
            return "it is compiled by torch.compile: nothing inside it is recorded (partial capture)"
    except Exception as error:  # noqa: BLE001 (a class of its own mind costs itself only)
        return f"{type(error).__name__}: {error}"
    return None


def _is_never_called(module: nn.Module) -> bool:
    """Containers, and the last layer of ``nn.MultiheadAttention``, of which only the weight is used."""
    return type(module).forward is nn.Module.forward or type(module) is NonDynamicallyQuantizableLinear


def _is_ours(hook: object) -> bool:
    return isinstance(hook, (_Hook, _AfterHook))
