"""Installs the stand-ins by which calls of torch's functions become known, in a torch that runs on MindSpore.

The names are those of ``capture.pytorch``, which are msprobe's, as far as this torch has them. They are put where the
functions are, past the proxies that a program sees, so that calls by modules of torch are recorded as well.
"""

from __future__ import annotations

import importlib.resources
import json
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from capture.custom_apis import CustomApis
from capture.mindspore.jit import JitWatch
from capture.mindspore.wrappers import Api, ApiRecorder
from capture.mindtorch.distributed import KNOWN_BY_IDENTITY, BackendWorks, CommunicationApi, holding_originals
from capture.patches import Patches

if TYPE_CHECKING:
    from capture.mindtorch.environment import TorchEnvironment
    from capture.observer import Observer

__all__ = ["TorchApis"]

_PREFIXES = ("Functional", "Tensor", "Torch", "Distributed")


class TorchApis(CustomApis):
    """Everything that is replaced in torch while capture runs.

    Parameters
    ----------
    observer
        Where events go.
    recorder
        Makes the calls.
    environment
        Whose functions are replaced.
    """

    def __init__(self, observer: Observer, recorder: ApiRecorder, environment: TorchEnvironment) -> None:
        super().__init__()
        self._recorder, self._environment = recorder, environment
        self._pending = BackendWorks(observer)
        self._names = _listed_names()
        self._patches = Patches()
        self._pauses = 0
        self._lock = threading.Lock()
        self._jit = JitWatch(recorder, self)

    def install(self) -> None:
        """Replace torch's functions; without effect when they are."""
        if self._installed:
            return
        self._installed, self._pauses = True, 0
        for prefix, place, owner, names in self._places():
            for name in names:
                if (place, name) not in KNOWN_BY_IDENTITY and _is_replaceable(owner, name):
                    self._patches.put(owner, name, self._maker(prefix, name))
        operation = self._environment.place("torch.distributed.P2POp")
        for name in ("__new__", "__init__"):
            if operation is not None and name in vars(operation):
                self._patches.put(operation, name, holding_originals)
        self._put_all_custom()
        self._jit.install()

    def remove(self) -> None:
        """Put back the very objects that were there."""
        self._installed = False
        self._jit.remove()
        self._custom_patches.restore()
        self._patches.restore()

    def pause(self) -> None:
        """Put the original functions in their places until :meth:`go_on`: MindSpore makes a graph of them."""
        with self._lock:
            self._pauses += 1
            if self._pauses == 1 and self._installed:
                self._patches.suspend()
                self._custom_patches.suspend()

    def go_on(self) -> None:
        """Undo one :meth:`pause`; the last one brings the stand-ins back."""
        with self._lock:
            self._pauses = max(0, self._pauses - 1)
            if self._pauses == 0 and self._installed:
                self._custom_patches.resume()
                self._patches.resume()

    def drop_pending(self) -> None:
        """Let go of asynchronous communication that nobody waited for."""
        self._pending.drop()

    def _places(self) -> Iterator[tuple[str, str, Any, list[str]]]:
        """Prefix, dotted path, object and names of every place whose attributes are replaced."""
        for prefix in _PREFIXES:
            for place, names in self._names[prefix].items():
                owner = self._environment.place(place)
                if owner is not None:
                    yield prefix, place, owner, names
        npu = self._environment.npu()
        if npu is not None:
            yield "NPU", "torch_npu", npu, [name for name in dir(npu) if name.startswith("npu_")]
        operators = getattr(getattr(self._environment.torch, "ops", None), "npu", None)
        if operators is not None:
            yield "NPU", "torch.ops.npu", operators, [name for name in dir(operators) if name.startswith("npu_")]

    def _maker(self, prefix: str, name: str) -> Callable[[Any], Any]:
        def make(original: Any) -> Any:
            if prefix == "Distributed":
                return CommunicationApi(original, prefix, name, self._pending).stand_in(self._recorder)
            return Api(original, prefix, name).stand_in(self._recorder)

        return make

    def _make_custom(self, function: Callable[..., Any], owner: Any, prefix: str, name: str) -> Any:
        del owner
        return Api(function, prefix, name, is_closed=False).stand_in(self._recorder)


def _is_replaceable(owner: Any, name: str) -> bool:
    """A function of the owner's own: a class answers for its metaclass too (``Tensor | None``), and keeps classes."""
    if isinstance(owner, type):
        own = next((vars(base)[name] for base in owner.__mro__ if name in vars(base)), None)
        if own is None or isinstance(own, (staticmethod, classmethod)):
            return False
    found = getattr(owner, name, None)
    return callable(found) and not isinstance(found, type)


def _listed_names() -> dict[str, dict[str, list[str]]]:
    text = importlib.resources.files("capture").joinpath("pytorch/api_names.json").read_text("utf-8")
    listed: dict[str, dict[str, list[str]]] = json.loads(text)["replaced"]
    return listed
