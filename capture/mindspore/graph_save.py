"""``save``, ``save_grad`` and ``step``: tensors of a program that may be compiled to a graph.

The same calls work in PyNative, in GRAPH_MODE and under ``@jit``, on every device. The functions here that say so are
*read* by MindSpore's compiler and use only what it understands; :mod:`capture.mindspore.graph_ops` tells how a tensor
leaves a graph. On Ascend ``ops.TensorDump`` writes the files, elsewhere we do.
"""

from __future__ import annotations

from collections.abc import Mapping
from functools import lru_cache, partial
from typing import Any

import mindspore
from mindspore import Tensor, ops
from mindspore.ops import primitive
from numpy.typing import NDArray

from capture.framework import Wanted
from capture.mindspore.graph_files import GRADIENT, STORAGES, Place, SaveDirectories
from capture.mindspore.graph_ops import IN_GRAPH, IS_ASCEND, Tap, carry
from capture.mindspore.quiet import settle
from capture.mindspore.tensors import MindSporeFramework
from msformat import DType

__all__ = ["save", "save_grad", "step"]

_FRAMEWORK = MindSporeFramework()
_SAVED = SaveDirectories(_FRAMEWORK.rank, settle)
_DATA = Wanted(statistics=False, data=True, md5=False)
# Structures inside one another.
_MAX_DEPTH = 50


def save(save_dir: str, name: str, data: Any, storage: str = "files") -> None:
    """Save a tensor, or every tensor of lists, tuples and dicts of them: ``{name}.{key or index}…``.

    Files are ``{save_dir}/step{N}/rank{R}/{name}_{dtype}_{id}.npy``, numbered in the order of execution over the whole
    process; N is moved by :func:`step`. None is left out. Works in PyNative, GRAPH_MODE and ``@jit``.

    Parameters
    ----------
    save_dir, name
        Text; in a graph a constant of it.
    data
        What to save.
    storage
        ``files``; or ``hdf5`` or ``zarr`` for one ``dump.h5`` or ``dump.zarr`` a step and rank. One for all that goes
        into a directory.

    Raises
    ------
    TypeError
        ``data`` holds something that is no tensor.
    ValueError
        No such storage; or one other than ``files`` in a graph on Ascend, where TensorDump writes the files
        (``msformat convert`` makes one of them).

    Examples
    --------
    >>> class Net(nn.Cell):
    ...     def construct(self, x):
    ...         save("saved", "x", x)
    ...         return x * x
    """
    if IN_GRAPH():
        _save_in_graph(save_dir, name, data, storage)
    else:
        _save_now(Place(save_dir, _checked(storage)), name, data)


def save_grad(save_dir: str, name: str, data: Tensor, storage: str = "files") -> Tensor:
    """Save the gradient of a tensor as ``{name}_grad``, when it comes. The tensor itself is returned, unchanged.

    **Go on with what is returned**: only its gradient is listened to. Where that was forgotten no gradient comes, and
    ``msformat verify`` says so.

    Parameters
    ----------
    save_dir, name, storage
        As for :func:`save`.
    data
        A tensor.

    Raises
    ------
    TypeError
        ``data`` is no tensor.
    ValueError
        As for :func:`save`.

    Examples
    --------
    >>> class Net(nn.Cell):
    ...     def construct(self, x):
    ...         x = save_grad("saved", "x", x)
    ...         return x * x
    """
    if not isinstance(data, Tensor):
        raise TypeError(f"For 'save_grad', the type of argument 'data' must be mindspore.Tensor, but got {type(data)}")
    if IN_GRAPH():
        return _GradientListener(save_dir, name, storage)(data)
    return _listen_now(Place(save_dir, _checked(storage)), name, data)


def step() -> None:
    """The step is over: what is saved from now on goes into the directory of the next one."""
    settle()
    if IS_ASCEND():
        _move_tensor_dump()
    _SAVED.next_step()
    _FRAMEWORK.new_step()


# --- in Python -------------------------------------------------------------------------------------------------------


def _checked(storage: str) -> str:
    if storage not in STORAGES:
        raise ValueError(f"storage={storage!r}: choose one of {', '.join(STORAGES)}")
    return storage


def _save_now(place: Place, name: str, data: Any, depth: int = 0) -> None:
    if data is None:
        return
    if isinstance(data, Tensor):
        _save_tensor(place, name, data)
    elif isinstance(data, (list, tuple, Mapping)) and depth < _MAX_DEPTH:
        for key, part in data.items() if isinstance(data, Mapping) else enumerate(data):
            _save_now(place, f"{name}.{key}", part, depth + 1)
    else:
        raise TypeError(f"For 'save', the type of {name!r} must be mindspore.Tensor, but got {type(data)}")


def _save_tensor(place: Place, name: str, tensor: Tensor) -> None:
    with _FRAMEWORK.quiet():
        node, host, _ = _FRAMEWORK.describe(tensor, _DATA)
    if host is None or host.bits is None:
        _SAVED.problem(place, name, f"not saved: {node.get('not_captured', 'it has no values')}")
    else:
        _SAVED.put(place, name, host.bits, host.dtype)


def _listen_now(place: Place, name: str, data: Tensor) -> Tensor:
    _SAVED.expect(place, name)
    return _listening(place, name)(data)


@lru_cache(maxsize=1024)
def _listening(place: Place, name: str) -> Any:
    """The operator that is told of a gradient. MindSpore reads ``listen`` as if to compile it, and then calls it."""
    take = partial(_save_gradient, place, name + GRADIENT)

    def listen(gradient: Tensor) -> Tensor:
        take(gradient)
        return gradient

    return ops.InsertGradientOf(listen)


def _save_gradient(place: Place, name: str, gradient: Tensor) -> None:
    try:
        _save_tensor(place, name, gradient)
    except Exception as error:  # noqa: BLE001 (it would end the backward pass)
        _SAVED.problem(place, name, f"{type(error).__name__}: {error}")


# --- in a graph ------------------------------------------------------------------------------------------------------


class _SaveTap(Tap):
    """Writes what comes out of a graph. Its address is directory, storage and name."""

    def __init__(self, address: tuple[str, ...], dtype: str, shape: tuple[int, ...]) -> None:
        # Now, in the program's own thread: the graph may run when Python is at its end and takes no more handlers.
        _SAVED.await_end(address[1])
        super().__init__(address, dtype, shape)

    def receive(self, address: tuple[str, ...], bits: NDArray[Any], dtype: DType, number: int) -> None:
        del number
        directory, storage, name = address
        _SAVED.put(Place(directory, storage), name, bits, dtype)

    def failed(self, address: tuple[str, ...], reason: str) -> None:
        directory, storage, name = address
        _SAVED.problem(Place(directory, storage), name, reason)


class _GradientTap(_SaveTap):
    """For the graph of a gradient."""

    stands_alone = False


class _Announcer(_SaveTap):
    """Notes that a gradient was asked for."""

    def receive(self, address: tuple[str, ...], bits: NDArray[Any], dtype: DType, number: int) -> None:
        del bits, dtype, number
        directory, storage, name = address
        _SAVED.expect(Place(directory, storage), name)


def _save_in_graph(save_dir: str, name: str, data: Any, storage: str) -> None:
    """Read by the compiler."""
    if isinstance(data, (list, tuple)):
        for index, part in enumerate(data):
            _save_in_graph(save_dir, f"{name}.{index}", part, storage)
    elif isinstance(data, dict):
        for key, part in data.items():
            _save_in_graph(save_dir, f"{name}.{key}", part, storage)
    elif isinstance(data, Tensor):
        _dump(save_dir, name, data, storage)
    elif data is not None:
        raise TypeError(f"For 'save', the type of {name!r} must be mindspore.Tensor, but got {type(data)}")


def _dump(save_dir: str, name: str, tensor: Tensor, storage: str) -> Any:
    """Read by the compiler."""
    if IS_ASCEND():
        return ops.TensorDump()(_dump_path(save_dir, name, storage), tensor)
    return carry(_SaveTap, (save_dir, storage, name), tensor)


def _dump_path(save_dir: str, name: str, storage: str) -> str:
    """Read by the compiler. TensorDump itself puts step and rank in."""
    if storage != "files":
        raise ValueError("on Ascend a graph saves files; `msformat convert` makes HDF5 or Zarr of them")
    return save_dir + "/{step}/{rank}/" + name


@mindspore.jit_class
class _GradientListener:
    """Made with constants while a graph is compiled."""

    def __init__(self, save_dir: str, name: str, storage: str) -> None:
        self.announcer = _Announcer((save_dir, _checked(storage), name), "uint8", (1,))
        self.listen = ops.InsertGradientOf(_listener(save_dir, name + GRADIENT, storage))

    def __call__(self, tensor: Tensor) -> Tensor:
        """Read by the compiler."""
        if not IS_ASCEND():
            self.announcer(ops.ones((1,), mindspore.uint8))
        return self.listen(tensor)


def _listener(save_dir: str, name: str, storage: str) -> Any:
    dump = ops.TensorDump()
    dump.add_prim_attr("side_effect_io", False)  # noqa: FBT003 (as for taps in the graph of a gradient)

    def listen(gradient: Tensor) -> Tensor:
        if IS_ASCEND():
            return ops.depend(gradient, dump(_dump_path(save_dir, name, storage), gradient))
        return ops.depend(gradient, carry(_GradientTap, (save_dir, storage, name), gradient))

    return listen


def _move_tensor_dump() -> None:
    """Let TensorDump write ``{step}`` as the next number: it takes this name for an order.

    Given twice, to the kernel and to what counts in front of it, between two waits for the device, as msprobe 26.2.0
    does on Ascend. **Not run on a device.**
    """
    order, anything = "<tensordump-update-step>", Tensor([1.0], mindspore.float32)
    mindspore.hal.synchronize()
    primitive._run_op(ops.TensorDump(), "TensorDump", (order, anything))
    ops.tensordump(order, anything)
    mindspore.hal.synchronize()
