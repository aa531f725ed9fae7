"""What hooks of PyTorch and of a torch that runs on MindSpore have in common: ``module_dump``, tokens."""

from __future__ import annotations

import weakref
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Protocol

from capture.errors import CaptureError

__all__ = ["ApiPart", "ModulePart", "TorchLikeDebugger", "TorchLikeHooks"]


class ApiPart(Protocol):
    """Hooks of functions."""

    def install(self) -> None:
        """Set them."""

    def remove(self) -> None:
        """Take them off."""

    def drop_pending(self) -> None:
        """Let go of what a step left waiting."""

    def add_custom(self, module: Any, api_name: str, prefix: str) -> None:
        """Record calls of ``module.api_name`` too."""

    def remove_custom(self, module: Any, api_name: str) -> None:
        """Undo ``add_custom``."""


class ModulePart(Protocol):
    """Hooks of modules."""

    def never_fired(self) -> list[str]:
        """Paths of modules that were hooked and never called."""

    def install_one(self, module: Any, name: str) -> bool:
        """Hook one module alone; False when it cannot be, or is already."""

    def remove_one(self) -> None:
        """Undo ``install_one``."""


class TorchLikeHooks:
    """Hooks of modules (L0, mix) and of functions (L1, L2, mix) of one program.

    Parameters
    ----------
    apis, modules
        The two parts.
    level
        ``L0``, ``L1``, ``L2`` or ``mix``.
    """

    def __init__(self, apis: ApiPart, modules: ModulePart, *, level: str) -> None:
        self._hooks_apis, self._hooks_modules = level in ("L1", "L2", "mix"), level in ("L0", "mix")
        self._api_part, self._module_part = apis, modules
        self._are_set = False
        self._alone: tuple[weakref.ReferenceType[Any], str] | None = None

    def new_step(self) -> None:
        """Let go of what a step left waiting."""
        self._api_part.drop_pending()

    def never_fired(self) -> list[str]:
        """Paths of modules that were hooked and never called."""
        return self._module_part.never_fired()

    def add_custom(self, module: Any, api_name: str, prefix: str) -> None:
        """Record calls of ``module.api_name`` too."""
        self._api_part.add_custom(module, api_name, prefix)

    def remove_custom(self, module: Any, api_name: str) -> None:
        """Undo ``add_custom``."""
        self._api_part.remove_custom(module, api_name)

    def begin_module_dump(self, module: Any, name: str) -> None:
        """Record one module alone, APIs not at all, until ``end_module_dump``; that may begin before a start."""
        self._alone = weakref.ref(module), name
        if self._are_set:
            self._module_part.remove_one()
            self._leave_alone()

    def end_module_dump(self) -> None:
        """Record as before again."""
        self._alone = None
        self._module_part.remove_one()
        if self._are_set and self._hooks_apis:
            self._api_part.install()

    def _leave_alone(self) -> None:
        module, name = (self._alone[0](), self._alone[1]) if self._alone is not None else (None, "")
        if module is not None and self._module_part.install_one(module, name):
            self._api_part.remove()


class TorchLikeDebugger(ABC):
    """What a debugger of such a program has beside :class:`capture.debugger.DebuggerBase`; to be named before it."""

    config: Any
    _hooks: Any
    _own_hooks: Callable[[], Any]

    def begin_module_dump(self, module: Any, name: str) -> None:
        """Record one module, not what is inside it, under ``Module.{name}.{class}``; APIs are not recorded meanwhile.

        Raises
        ------
        CaptureError
            An argument is of the wrong type, or the level records no modules.
        """
        if not self._is_module(module):
            raise CaptureError(f"module_dump: a torch.nn.Module is needed, not {type(module).__qualname__}")
        if not isinstance(name, str):
            raise CaptureError(f"module_dump: the name is a string, not {type(name).__qualname__}")
        if self.config.level == "L2":
            raise CaptureError("module_dump: level L2 dumps kernels of one API and records no modules")
        self._own_hooks().begin_module_dump(module, name)

    def end_module_dump(self) -> None:
        """End what ``begin_module_dump`` began."""
        if self._hooks is not None:
            self._hooks.end_module_dump()

    @abstractmethod
    def _is_module(self, value: object) -> bool:
        """Whether this is a module of the program's torch."""

    def _runs_no_hooks(self, module: object) -> bool:
        """Whether a module as a whole is out of reach of Python."""
        del module
        return False

    def _check_model(self, model: Any) -> None:
        for part in model if isinstance(model, (list, tuple)) else [model]:
            if not self._is_module(part) or self._runs_no_hooks(part):
                raise CaptureError(
                    f"start(model=…): a torch.nn.Module or a list of them is needed, not {type(part).__qualname__}"
                )

    def _count_tokens(self, model: Any, on_token: Callable[[int], None]) -> Callable[[], None]:
        first = model[0] if isinstance(model, (list, tuple)) else model
        number = -1

        def count(*_: object) -> None:
            nonlocal number
            number += 1
            on_token(number)

        handle = first.register_forward_pre_hook(count)
        return handle.remove  # type: ignore[no-any-return]
