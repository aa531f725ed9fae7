"""Calls of the primitives that cells hold as attributes: ``self.matmul = ops.MatMul()``.

A call looks its method up at the class, so a primitive gets a subclass of its own class for as long as capture is
installed, and its class back afterwards; the object stays the same one, for the program and for MindSpore's C++.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from mindspore.ops import Primitive

from capture.mindspore.wrappers import Api, ApiRecorder

__all__ = ["PrimitiveHooks"]


class PrimitiveHooks:
    """The primitives of a model that are recorded, as ``Primitive.{attribute}.{class}.{n}``."""

    def __init__(self, recorder: ApiRecorder) -> None:
        self._recorder = recorder
        self._hooked: list[tuple[Any, type, type]] = []
        self._classes: dict[tuple[type, str], type] = {}

    def install(self, model: Any) -> None:
        """Hook what the cells of a model, or of a list of models, hold; the first attribute that holds one names it."""
        seen: set[int] = set()
        for name, primitive in _primitives_of(model):
            if id(primitive) in seen:
                continue
            seen.add(id(primitive))
            kind = type(primitive)
            hooked = self._class_for(kind, name)
            try:
                primitive.__class__ = hooked
            except TypeError:  # a class with a layout of its own
                text = f"a {kind.__qualname__} cannot be watched: its calls are not recorded"
                self._recorder.observer.problem("primitive not hooked", f"Primitive.{name}.{kind.__name__}", text)
                continue
            self._hooked.append((primitive, kind, hooked))

    def remove(self) -> None:
        """Give every primitive its class back."""
        self.suspend()
        self._hooked = []

    def suspend(self) -> None:
        """Give the classes back until :meth:`resume`."""
        for primitive, kind, hooked in self._hooked:
            if type(primitive) is hooked:
                primitive.__class__ = kind

    def resume(self) -> None:
        """Undo :meth:`suspend`."""
        for primitive, kind, hooked in self._hooked:
            if type(primitive) is kind:
                primitive.__class__ = hooked

    def _class_for(self, kind: type, name: str) -> type:
        """Made once for a class and a name, and kept: a program that starts in every step makes no more of them."""
        found = self._classes.get((kind, name))
        if found is None:
            known: dict[str, Any] = {part: getattr(kind, part) for part in ("__module__", "__qualname__", "__doc__")}
            known["__call__"] = self._calling(kind, f"{name}.{kind.__name__}")
            known["__deepcopy__"] = _copying(kind)
            found = self._classes[kind, name] = type(kind.__name__, (kind,), known)
        return found

    def _calling(self, kind: Any, name: str) -> Callable[..., Any]:
        call, recorder = kind.__call__, self._recorder
        observer, local = recorder.observer, recorder.observer.local

        @functools.wraps(call)
        def record(primitive: Any, *args: Any, **kwargs: Any) -> Any:
            if not observer.running or local.in_api or local.busy:
                return call(primitive, *args, **kwargs)
            api = Api(functools.partial(call, primitive), "Primitive", name)
            if recorder.is_making_a_graph(api):
                return call(primitive, *args, **kwargs)
            return recorder.record(api, args, kwargs)

        return record


def _copying(kind: Any) -> Callable[..., Any]:
    """A copy made meanwhile is an ordinary primitive."""

    def __deepcopy__(primitive: Any, memo: Any) -> Any:  # noqa: N807 (that is its name)
        copied = kind.__deepcopy__(primitive, memo)
        copied.__class__ = kind
        return copied

    return __deepcopy__


def _primitives_of(model: Any) -> Iterator[tuple[str, Any]]:
    """Names and primitives among the attributes of every cell, the model itself included."""
    for one in model if isinstance(model, (list, tuple)) else [model]:
        for _, cell in _cells_of(one):
            for name, value in list(vars(cell).items()):
                if isinstance(value, Primitive):
                    yield name, value


def _cells_of(model: Any) -> Iterable[tuple[str, Any]]:
    return model.cells_and_names() if hasattr(model, "cells_and_names") else ()
