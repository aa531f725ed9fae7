"""Installs everything by which calls of MindSpore's functions become known.

The names are those that msprobe records (``tools/read_mindspore_apis.py``), as far as the MindSpore at hand has them,
so that dumps of both hold the same entries.
"""

from __future__ import annotations

import importlib.resources
import json
import sys
import threading
from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, Any

from mindspore import GRAPH_MODE, get_context

from capture.custom_apis import CustomApis
from capture.mindspore.distributed import CommunicationApi, CommunicationHandles
from capture.mindspore.jit import JitWatch, tracing
from capture.mindspore.primitives import PrimitiveHooks
from capture.mindspore.wrappers import Api, ApiRecorder
from capture.patches import Patches

if TYPE_CHECKING:
    from capture.mindspore.wrappers import ApiBackwards, ApiFramework
    from capture.observer import Observer

__all__ = ["ApiHooks"]

_COMMUNICATION = ("Distributed", "MintDistributed")
_GRAPH_MODE = (
    "GRAPH_MODE: functions inside a graph are not called one by one and not recorded. set_context(mode=PYNATIVE_MODE) "
    "records them; save and save_grad of capture.mindspore work inside a graph"
)


class ApiHooks(CustomApis):
    """Everything that is replaced in MindSpore while capture runs.

    Parameters
    ----------
    observer
        Hears of every call.
    framework
        Brings out the program's errors.
    backwards
        Follows the backward of calls.
    recorder
        Class of what the stand-ins share.
    """

    def __init__(
        self,
        observer: Observer,
        framework: ApiFramework,
        backwards: ApiBackwards,
        recorder: type[ApiRecorder] = ApiRecorder,
    ) -> None:
        super().__init__()
        self._recorder = recorder(observer, framework, backwards, tracing())
        self._pending = CommunicationHandles(observer)
        self._primitives = PrimitiveHooks(self._recorder)
        self._jit = JitWatch(self._recorder, self)
        self._names = _listed_names()
        self._stand_ins: dict[tuple[str, str], tuple[Any, Any]] = {}
        self._patches = Patches()
        self._lock = threading.Lock()
        self._pauses = 0

    def install(self, model: Any = None) -> None:
        """Replace MindSpore's functions, and watch the primitives of a model's cells; without effect when it is done.

        Parameters
        ----------
        model
            A Cell, a list of them, or None.
        """
        if self._installed:
            return
        self._installed = True
        self._pauses = 0
        if get_context("mode") == GRAPH_MODE:
            self._recorder.observer.problem("graph mode", "", _GRAPH_MODE)
        for prefix, place, owner, names in self._places():
            for name in names:
                if callable(getattr(owner, name, None)):
                    self._patches.put(owner, name, self._maker(prefix, name, place))
        self._put_all_custom()
        if model is not None:
            self._primitives.install(model)
        self._pending.install()
        self._jit.install()

    def remove(self) -> None:
        """Put back the very objects that were there."""
        if not self._installed:
            return
        self._installed = False
        self._jit.remove()
        self._pending.remove()
        self._primitives.remove()
        self._custom_patches.restore()
        self._patches.restore()

    def drop_pending(self) -> None:
        """Let go of asynchronous communication that nobody waited for; a step ends with it."""
        self._pending.drop()

    def pause(self) -> None:
        """Put the original functions in their places until :meth:`go_on`, for compilers that read them."""
        with self._lock:
            self._pauses += 1
            if self._pauses > 1 or not self._installed:
                return
            self._primitives.suspend()
            self._custom_patches.suspend()
            self._patches.suspend()

    def go_on(self) -> None:
        """Undo one :meth:`pause`; the last one brings the stand-ins back."""
        with self._lock:
            self._pauses = max(0, self._pauses - 1)
            if self._pauses or not self._installed:
                return
            self._patches.resume()
            self._custom_patches.resume()
            self._primitives.resume()

    def _places(self) -> Iterator[tuple[str, str, Any, list[str]]]:
        """Prefix, dotted path, object and names of every place whose attributes are replaced."""
        for prefix, places in self._names.items():
            for place, names in places.items():
                owner = _resolve(place)
                if owner is not None:
                    yield prefix, place, owner, names

    def _maker(self, prefix: str, name: str, place: str) -> Callable[[Any], Any]:
        """Stand-ins are kept, so that a start makes none that there was before."""

        def make(original: Any) -> Any:
            known, stand_in = self._stand_ins.get((place, name), (None, None))
            if known is not original:
                stand_in = self._make(original, prefix, name)
                self._stand_ins[place, name] = original, stand_in
            return stand_in

        return make

    def _make(self, original: Any, prefix: str, name: str) -> Any:
        if isinstance(original, (staticmethod, classmethod)):
            return type(original)(self._make(original.__func__, prefix, name))
        if prefix in _COMMUNICATION:
            return CommunicationApi(original, prefix, name, self._pending).stand_in(self._recorder)
        return Api(original, prefix, name).stand_in(self._recorder)

    def _make_custom(self, function: Callable[..., Any], owner: Any, prefix: str, name: str) -> Any:
        del owner
        return Api(function, prefix, name, is_closed=False).stand_in(self._recorder)


def _listed_names() -> dict[str, dict[str, list[str]]]:
    text = importlib.resources.files("capture.mindspore").joinpath("api_names.json").read_text("utf-8")
    listed: dict[str, dict[str, list[str]]] = json.loads(text)["replaced"]
    return listed


def _resolve(place: str) -> Any:
    """The module or class of a dotted path, None in a MindSpore that has none."""
    value: Any = sys.modules.get("mindspore")
    for part in place.split(".")[1:]:
        value = getattr(value, part, None)
    return value
