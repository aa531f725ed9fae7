"""Values of MindSpore that are no tensor, as msprobe 8.1.0 records them."""

from __future__ import annotations

import math
from functools import lru_cache
from typing import Any

import mindspore
import numpy as np
from mindspore._c_expression import typing

from capture.values import NOT_A_LEAF, Fields, clean_text
from msformat import parse_dtype

__all__ = ["dtype_leaf", "dtype_name", "leaf", "number"]


def leaf(value: object) -> Any:
    """JSON of a dtype, the parts of a sparse tensor; ``NOT_A_LEAF`` for anything else."""
    if isinstance(value, typing.Type):
        return {"type": "mindspore.dtype", "value": dtype_name(value)}
    for kind, parts in _SPARSE:
        if isinstance(value, kind):
            return Fields({"class_type": f"mindspore.{kind.__name__}"} | {part: getattr(value, part) for part in parts})
    return NOT_A_LEAF


@lru_cache(maxsize=128)
def dtype_name(dtype: object) -> str:
    """As MindSpore spells it (``Float32``, ``BFloat16``), also where a package changed how types print (mindtorch)."""
    text = str(dtype)
    known = parse_dtype(text)
    return text if known is None else known.mindspore_name


def dtype_leaf(value: object) -> Any:
    """A value that stands under the key ``dtype``: msprobe records it as a dtype, whatever it is.

    Tensors and containers keep their values here; ``None`` is null.
    """
    if isinstance(value, typing.Type):
        return leaf(value)
    is_text = isinstance(value, (str, bool, int, float, np.dtype)) or type(value) is type
    return {"type": "mindspore.dtype", "value": clean_text(str(value))} if is_text else NOT_A_LEAF


def number(bound: object) -> int | None:
    """What a bound of a slice counts as: one element of a tensor, a float without its fraction (msprobe: ``int``)."""
    if isinstance(bound, mindspore.Tensor):
        return int(bound.asnumpy().item())
    return int(bound) if isinstance(bound, (float, np.floating)) and math.isfinite(bound) else None


_SPARSE: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (mindspore.COOTensor, ("indices", "values", "shape")),
    (mindspore.CSRTensor, ("indptr", "indices", "values", "shape")),
    (mindspore.RowTensor, ("indices", "values", "dense_shape")),
)
