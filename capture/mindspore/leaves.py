"""Values of MindSpore that are no tensor, as msprobe 8.1.0 records them."""

from __future__ import annotations

from typing import Any

import mindspore
from mindspore._c_expression import typing

from capture.values import NOT_A_LEAF, Fields
from msformat import parse_dtype

__all__ = ["dtype_name", "leaf"]


def leaf(value: object) -> Any:
    """JSON of a dtype, the parts of a sparse tensor; ``NOT_A_LEAF`` for anything else."""
    if isinstance(value, typing.Type):
        return {"type": "mindspore.dtype", "value": dtype_name(value)}
    for kind, parts in _SPARSE:
        if isinstance(value, kind):
            return Fields({"class_type": f"mindspore.{kind.__name__}"} | {part: getattr(value, part) for part in parts})
    return NOT_A_LEAF


def dtype_name(dtype: object) -> str:
    """As MindSpore spells it (``Float32``, ``BFloat16``), also where a package changed how types print (mindtorch)."""
    text = str(dtype)
    known = parse_dtype(text)
    return text if known is None else known.mindspore_name


_SPARSE: tuple[tuple[Any, tuple[str, ...]], ...] = (
    (mindspore.COOTensor, ("indices", "values", "shape")),
    (mindspore.CSRTensor, ("indptr", "indices", "values", "shape")),
    (mindspore.RowTensor, ("indices", "values", "dense_shape")),
)
