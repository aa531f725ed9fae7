"""The bits of tensors on the host: looked at where they are, copied when they are to be kept.

``Tensor.numpy()`` is never called on a tensor of the user: it marks the storage as not resizable for good (torch 2.13),
and FSDP resizes storages in every step. ``ctypes`` looks at the same memory and leaves no trace.
"""

from __future__ import annotations

import ctypes
from functools import lru_cache
from typing import Any

import numpy as np
import torch

from capture.framework import HostTensor
from capture.pytorch.raw import contiguous, data_ptr, element_size, numel, storage_offset, untyped_storage
from msformat import DType

__all__ = ["PinnedCopy", "array_type", "host_tensor", "live_array", "live_memory"]


def live_memory(tensor: torch.Tensor) -> ctypes.Array[ctypes.c_char]:
    """The bytes of a contiguous CPU tensor, where they are; the tensor must outlive every use.

    Raises
    ------
    ValueError
        The storage is smaller than the tensor: it was released (FSDP does so between uses).
    """
    size = element_size(tensor)
    nbytes: int = numel(tensor) * size
    if untyped_storage(tensor).nbytes() < nbytes + storage_offset(tensor) * size:
        raise ValueError("its storage was released")
    return array_type(nbytes).from_address(data_ptr(tensor))


@lru_cache(maxsize=4096)
def array_type(nbytes: int) -> type[ctypes.Array[ctypes.c_char]]:
    """``c_char * nbytes``, kept: making such a type takes ten times as long as using it."""
    return ctypes.c_char * nbytes


def live_array(tensor: torch.Tensor, storage: np.dtype[Any]) -> np.ndarray[Any, Any]:
    """Flat array over the bytes of a contiguous CPU tensor, where they are; the tensor must outlive every use."""
    memory: Any = live_memory(tensor)
    return np.frombuffer(memory, storage)


def host_tensor(memory: Any, dtype: DType, shape: list[int], *, owned: object = None) -> HostTensor:
    """What is to be stored.

    Parameters
    ----------
    memory
        Contiguous bytes (the logical values, conjugation and negation carried out).
    dtype, shape
        Of the tensor.
    owned
        Nobody but us can write to the memory, and this object keeps it: no further copy is made. None: copied.
    """
    bits = np.frombuffer(memory, dtype.storage).reshape(dtype.stored_shape(tuple(shape)))
    if owned is None:
        return HostTensor(bits.copy(), dtype)
    memory.keeper = owned  # the array keeps its buffer, and the buffer this
    return HostTensor(bits, dtype)


class PinnedCopy:
    """A copy from an accelerator that runs while the program goes on.

    The bytes may be looked at only after :meth:`wait`; until then the copy may not have happened. Written with care and
    not run, for want of a GPU: :class:`~capture.pytorch.tensors.TorchFramework` copies in the plain, blocking way
    unless told otherwise.

    Parameters
    ----------
    tensor
        On the device. Its memory is protected until the copy is done: the copy stands in the current stream, and the
        allocator is told of that stream in case it is not the one that the memory belongs to.
    """

    __slots__ = ("_done", "target")

    def __init__(self, tensor: torch.Tensor) -> None:
        module = getattr(torch, tensor.device.type)
        source: Any = contiguous(tensor)
        self.target: torch.Tensor = torch.empty(source.shape, dtype=source.dtype, device="cpu", pin_memory=True)
        with module.device(tensor.device):
            self.target.copy_(source, non_blocking=True)
            source.record_stream(module.current_stream())
            self._done = module.Event()
            self._done.record()

    def host(self, dtype: DType, shape: list[int]) -> HostTensor:
        """What is to be stored, once :meth:`wait` has returned."""
        return host_tensor(live_memory(self.target), dtype, shape, owned=self.target)

    def wait(self) -> None:
        """Return when the bytes are there."""
        self._done.synchronize()
