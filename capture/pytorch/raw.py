"""PyTorch's functions as they are in C, whatever stands in their place while capture is installed.

Methods are taken from the base class that ``torch.Tensor`` adds Python to: they skip the stand-ins, and called as plain
functions they are the cheapest way in.
"""

from __future__ import annotations

from typing import Any

import torch

__all__ = [
    "aminmax",
    "complex_abs",
    "contiguous",
    "copy_to",
    "data_ptr",
    "dispatch_keys",
    "dot",
    "element_size",
    "is_contiguous",
    "item",
    "mean",
    "narrow",
    "numel",
    "permute",
    "storage_offset",
    "stride",
    "summed",
    "untyped_storage",
    "vector_norm",
    "view",
]

_METHODS: Any = torch.Tensor.__bases__[0]
_C: Any = torch._C
_FUNCTIONS = _C._VariableFunctions

aminmax = _FUNCTIONS.aminmax
dot = _FUNCTIONS.dot
complex_abs = _FUNCTIONS.abs
mean = _FUNCTIONS.mean
vector_norm = _C._linalg.linalg_vector_norm
summed = _METHODS.sum
item = _METHODS.item
view = _METHODS.view
narrow = _METHODS.narrow
permute = _METHODS.permute
stride = _METHODS.stride
numel = _METHODS.numel
element_size = _METHODS.element_size
data_ptr = _METHODS.data_ptr
is_contiguous = _METHODS.is_contiguous
contiguous = _METHODS.contiguous
copy_to = _METHODS.to
storage_offset = _METHODS.storage_offset
untyped_storage = _METHODS.untyped_storage
dispatch_keys = _C._dispatch_keys
