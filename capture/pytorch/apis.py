"""Installs everything by which calls of PyTorch's functions become known: stand-ins, a function mode, and watchers.

The names are those that msprobe replaces, seen by watching it (``tools/observe_peer_apis.py``), so that dumps of both
hold the same entries. Two ways lead here, because neither is enough: replaced attributes tell ``x + y`` from
``x.add(y)``, and the function mode sees functions that the program bound before they were replaced.
"""

from __future__ import annotations

import importlib.resources
import json
import sys
import threading
import types
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed

from capture.custom_apis import CustomApis
from capture.patches import Patches
from capture.pytorch.compiled import GraphWatch
from capture.pytorch.distributed import KNOWN_BY_IDENTITY, CommunicationApi, TorchWorks
from capture.pytorch.modes import EarlyBound, handing_over_originals
from capture.pytorch.optimizers import TreeRoots
from capture.pytorch.wrappers import Api, ApiMethod, ApiRecorder

if TYPE_CHECKING:
    from capture.observer import Observer
    from capture.pytorch.wrappers import ApiFramework

__all__ = ["ApiHooks"]

# Several names share a function (F.conv2d is torch.conv2d): one that was bound early counts under the first of these.
_PRECEDENCE = ("Functional", "Torch", "Tensor", "VF")


class ApiHooks(CustomApis):
    """Everything that is replaced in PyTorch while capture runs.

    Parameters
    ----------
    observer
        Hears of every call.
    framework
        Is told of tensors that were written to, and hooks gradients.
    recorder
        Class of what the stand-ins share.
    """

    def __init__(self, observer: Observer, framework: ApiFramework, recorder: type[ApiRecorder] = ApiRecorder) -> None:
        super().__init__()
        self._recorder = recorder(observer, framework)
        self._pending = TorchWorks(observer)
        self._names = _listed_names()
        self._apis: dict[tuple[str, str], Api] = {}
        self._patches = Patches()
        self._mode = self._recorder.mode = EarlyBound(self._recorder)
        self._roots = TreeRoots(observer)
        self._graphs = GraphWatch(observer, self)
        self._changed = False
        self._lock = threading.Lock()
        self._pauses = 0

    def install(self) -> None:
        """Replace PyTorch's functions; without effect when they are."""
        if self._installed:
            return
        self._installed = True
        self._pauses = 0
        self._put_apis()
        self._put_all_custom()
        self._pending.install()
        self._roots.install()
        self._graphs.install()
        self._mode.install()

    def remove(self) -> None:
        """Put back the very objects that were there."""
        if not self._installed:
            return
        self._installed = False
        self._recorder.are_in_place = False
        self._mode.remove()
        self._graphs.remove()
        self._roots.remove()
        self._pending.remove()
        self._custom_patches.restore()
        self._patches.restore()

    def drop_pending(self) -> None:
        """Let go of asynchronous communication that nobody waited for; a step ends with it."""
        self._pending.drop()

    def _put_apis(self) -> None:
        for prefix, place, owner, names in self._places():
            for name in names:
                if callable(getattr(owner, name, None)) and (place, name) not in KNOWN_BY_IDENTITY:
                    self._patches.put(owner, name, self._maker(prefix, name, place))
        # Bodies of functional.py give themselves to modes and tensor subclasses, by the name that is replaced now.
        self._patches.put(torch.nn.functional, "handle_torch_function", handing_over_originals)
        # The gradient of a loss that nobody gave is made here; it is no part of the model.
        self._patches.put(torch.autograd, "_make_grads", self._recorder.unrecorded)
        if self._changed:
            self._changed = False
            self._mode.name_functions(sorted(self._apis.values(), key=_precedence))
            self._recorder.aliases = self._aliases()
        self._recorder.are_in_place = True

    def _aliases(self) -> dict[int, list[tuple[dict[str, Any], Api]]]:
        found: dict[int, list[tuple[dict[str, Any], Api]]] = {}
        for (place, _), api in self._apis.items():
            owner = _resolve(place)
            if isinstance(owner, types.ModuleType):
                found.setdefault(id(api.original), []).append((vars(owner), api))
        return found

    def _places(self) -> Iterator[tuple[str, str, Any, list[str]]]:
        """Prefix, dotted path, object and names of every place whose attributes are replaced."""
        for prefix, places in self._names.items():
            for place, names in places.items():
                owner = _resolve(place)
                if owner is not None:
                    yield prefix, place, owner, names
        npu = sys.modules.get("torch_npu")
        for place, owner in (("torch_npu", npu), ("torch.ops.npu", npu and torch.ops.npu)):
            if owner is not None:
                yield "NPU", place, owner, [name for name in dir(owner) if name.startswith("npu_")]

    def _maker(self, prefix: str, name: str, place: str) -> Callable[[Any], Api]:
        """Stand-ins are kept, so that graphs compiled against one are found again at the next start."""

        def make(original: Any) -> Api:
            known = self._apis.get((place, name))
            if known is None or known.original is not original:
                known = self._apis[place, name] = self._make(original, prefix, name, place)
                self._changed = True
            return known

        return make

    def _make(self, original: Any, prefix: str, name: str, place: str) -> Api:
        if prefix == "Distributed":
            return CommunicationApi(original, name, place, self._recorder, self._pending)
        kind = ApiMethod if place == "torch.Tensor" else Api
        return kind(original, prefix, name, place, self._recorder)

    def _make_custom(self, function: Callable[..., Any], owner: Any, prefix: str, name: str) -> Any:
        return Api(function, prefix, name, getattr(owner, "__name__", type(owner).__name__), self._recorder)

    def pause(self) -> None:
        """Put the original functions in their places until :meth:`go_on`, for compilers that know them by identity."""
        with self._lock:
            self._pauses += 1
            if self._pauses > 1 or not self._installed:
                return
            self._recorder.are_in_place = False
            self._patches.suspend()
        self._mode.pause()

    def go_on(self) -> None:
        """Undo one :meth:`pause`; the last one brings the stand-ins back."""
        with self._lock:
            self._pauses = max(0, self._pauses - 1)
            if self._pauses or not self._installed:
                return
            self._patches.resume()
            self._recorder.are_in_place = True
        self._mode.go_on()


def _listed_names() -> dict[str, dict[str, list[str]]]:
    text = importlib.resources.files("capture.pytorch").joinpath("api_names.json").read_text("utf-8")
    listed: dict[str, dict[str, list[str]]] = json.loads(text)["replaced"]
    return {prefix: places for prefix, places in listed.items() if prefix != "other"}


def _resolve(place: str) -> Any:
    """The module or class of a dotted path, None in a PyTorch that has none (``torch.distributed`` may be left out)."""
    value: Any = sys.modules.get("torch")
    for part in place.split(".")[1:]:
        value = getattr(value, part, None)
    return value


def _precedence(api: Api) -> int:
    return _PRECEDENCE.index(api.prefix) if api.prefix in _PRECEDENCE else len(_PRECEDENCE)
