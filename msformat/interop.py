"""Stored bits as tensors of a framework, which is imported here, in the function that needs it, and nowhere else."""

from __future__ import annotations

from importlib import import_module
from typing import Any

import numpy as np
from numpy.typing import NDArray

from msformat.dtypes import DType
from msformat.errors import BackendMissingError, DTypeError

__all__ = ["to_mindspore", "to_torch"]

# torch makes a tensor of these from bits, but one without a scale: nothing can be done with it, not even printing.
_QUANTISED = ("qint8", "quint8", "qint32", "quint4x2", "quint2x4")


def to_torch(bits: NDArray[Any], dtype: DType) -> Any:
    """A ``torch.Tensor`` on the CPU with exactly these bits.

    Parameters
    ----------
    bits
        C-contiguous writable array of ``dtype.storage``. The tensor shares its memory.
    dtype
        The element type: anything torch has, bfloat16, float8, complex32, float4 pairs and unsigned types included.

    Raises
    ------
    BackendMissingError
        torch is not installed.
    DTypeError
        This torch has no such type or cannot make it from bits; or it is a quantised type, whose scale no dump holds.

    Examples
    --------
    >>> import numpy as np
    >>> from msformat.dtypes import dtype_named
    >>> to_torch(np.array([0x3F80, 0x4000], np.uint16), dtype_named("bfloat16"))
    tensor([1., 2.], dtype=torch.bfloat16)
    """
    torch = _framework("torch", "to_torch()")
    target = getattr(torch, dtype.name, None)
    if not isinstance(target, torch.dtype) or dtype.name in _QUANTISED:
        raise DTypeError(f"torch {torch.__version__} takes no {dtype.name} from bits; use numpy() or bits()")
    try:
        if dtype.is_native and dtype.storage.kind != "u":
            return torch.from_numpy(bits)
        # Signed integers of the same width: older torch knows no unsigned ones but uint8.
        carrier = np.dtype(f"i{dtype.storage.itemsize}")
        return torch.from_numpy(bits.view(carrier)).view(target)
    except (RuntimeError, NotImplementedError) as error:
        raise DTypeError(f"torch {torch.__version__} cannot make {dtype.name} from bits: {error}") from error


def to_mindspore(bits: NDArray[Any], dtype: DType) -> Any:
    """A ``mindspore.Tensor`` of the same values.

    bfloat16 goes through float32, because MindSpore takes bfloat16 from numpy only when both were built for the same
    numpy. The detour is exact but for signalling NaNs, which MindSpore 2.10.0 makes quiet (seen on CPU).

    Raises
    ------
    BackendMissingError
        MindSpore is not installed.
    DTypeError
        MindSpore has no such element type.
    """
    mindspore = _framework("mindspore", "to_mindspore()")
    target = getattr(mindspore, dtype.name if dtype.name != "bool" else "bool_", None)
    if target is not None and dtype.name == "bfloat16":
        return mindspore.Tensor(dtype.widen_bfloat16(bits)).astype(target)
    if target is not None and dtype.is_native:
        return mindspore.Tensor(bits)
    raise DTypeError(f"MindSpore {mindspore.__version__} takes no {dtype.name} from numpy; use numpy() or bits()")


def _framework(name: str, purpose: str) -> Any:
    try:
        return import_module(name)
    except ModuleNotFoundError as error:
        if error.name != name:  # the framework is there and broken: its own message says more than ours
            raise
        raise BackendMissingError(name, name, purpose) from error
