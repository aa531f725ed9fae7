"""Tensors that are more, or less, than strided values in memory: what of them can be recorded, and why the rest cannot.

Nothing here raises for a tensor: what cannot be had becomes a reason. Metadata is read below ``__torch_function__`` and
``__torch_dispatch__``, so that a subclass never notices.
"""

from __future__ import annotations

import sys
from typing import Any, NamedTuple

import torch

from capture.pytorch.raw import contiguous, copy_to, dispatch_keys
from capture.pytorch.releases import keys_as_value

__all__ = ["Subject", "plain_keys", "subject_of"]


class Subject(NamedTuple):
    """What of a tensor is recorded.

    Attributes
    ----------
    tensor
        A plain strided tensor with the values; None when there are none to be had.
    extras
        Keys added to the tensor's record.
    reason
        Why values, or bits, are not captured; empty when they are.
    zeros
        Elements that are zero without being in ``tensor`` (sparse layouts).
    shape
        To be recorded, where it is not that of ``tensor``.
    """

    tensor: torch.Tensor | None
    extras: dict[str, Any]
    reason: str = ""
    zeros: int = 0
    shape: list[int] | None = None


_PLAIN_TYPES = (torch.Tensor, torch.nn.Parameter)
_SPARSE = {torch.sparse_csr, torch.sparse_csc, torch.sparse_bsr, torch.sparse_bsc}


def plain_keys() -> frozenset[object]:
    """Dispatch keys of ordinary CPU tensors. Any other key means a view that is not what its memory says, or no memory.

    One comparison instead of ten questions: conjugated, negated, zero, quantised, nested, sparse, functorch, Python.
    """
    ordinary = torch.empty(0, dtype=torch.float32, device="cpu")
    with torch.inference_mode():
        inference = torch.empty(0, dtype=torch.float32, device="cpu")
    return frozenset(keys_as_value(dispatch_keys(tensor)) for tensor in (ordinary, inference))


def subject_of(tensor: torch.Tensor) -> Subject:
    """What of a tensor can be recorded.

    To be called where ``__torch_function__`` and ``__torch_dispatch__`` are disabled.
    """
    kind = type(tensor)
    extras: dict[str, Any] = {}
    if kind not in _PLAIN_TYPES:
        extras["class"] = f"{kind.__module__}.{kind.__qualname__}"
        inner = _unwrapped(tensor, extras)
        if isinstance(inner, Subject):
            return inner
        tensor = inner
    return _of_layout(tensor, extras)


def _unwrapped(tensor: Any, extras: dict[str, Any]) -> torch.Tensor | Subject:
    """The tensor inside a subclass, as a plain one."""
    name = type(tensor).__name__
    # The module was named with an underscore before 2.5.
    if any(_is_a(tensor, f"torch.distributed.{module}", "DTensor") for module in ("tensor", "_tensor")):
        extras["dtensor"] = _placement(tensor)
        return subject_inside(tensor._local_tensor, extras)
    if name == "AsyncCollectiveTensor" and hasattr(tensor, "elem"):
        # The values exist only once the collective is over; the program would wait at their first use.
        sys.modules[type(tensor).__module__].wait_tensor(tensor.elem)
        return subject_inside(tensor.elem, extras)
    if _is_a(tensor, "torch.nn.parameter", "UninitializedTensorMixin"):
        return Subject(None, extras, "uninitialised parameter: it has no shape yet")
    if _is_a(tensor, "torch._subclasses.fake_tensor", "FakeTensor"):
        return Subject(None, extras, "fake tensor: it has no values")
    if name == "NestedTensor" and hasattr(tensor, "_values"):
        return _jagged(tensor, extras)
    if tensor.is_meta:
        return Subject(None, extras, "meta tensor: it has no values")
    if not tensor.numel():
        return torch.Tensor.as_subclass(tensor, torch.Tensor)
    if tensor.layout == torch.strided and not _has_memory(tensor):
        return Subject(None, extras, f"values are inside {extras['class']}")
    return torch.Tensor.as_subclass(tensor, torch.Tensor)


def subject_inside(inner: torch.Tensor, extras: dict[str, Any]) -> Subject:
    """What of a wrapped tensor can be recorded; it may be a wrapper again."""
    found = subject_of(inner)
    return found._replace(extras=extras | {key: value for key, value in found.extras.items() if key not in extras})


def _is_a(value: object, module: str, name: str) -> bool:
    """Whether the value is of a class that may never have been imported."""
    kind = getattr(sys.modules.get(module), name, None)
    return isinstance(kind, type) and isinstance(value, kind)


def _has_memory(tensor: torch.Tensor) -> bool:
    try:
        return tensor.data_ptr() != 0
    except (RuntimeError, NotImplementedError):
        return False


def _placement(tensor: Any) -> dict[str, Any]:
    mesh = tensor.device_mesh
    names = getattr(mesh, "mesh_dim_names", None)  # not in 2.1
    return {
        "mesh": {
            "device_type": str(mesh.device_type),
            "ranks": mesh.mesh.tolist(),
            "dim_names": list(names) if names else None,
        },
        "placements": [str(placement) for placement in tensor.placements],
        "global_shape": [int(length) for length in tensor._spec.shape],
    }


def _jagged(tensor: Any, extras: dict[str, Any]) -> Subject:
    values = tensor._values
    extras["nested"] = {"layout": "jagged", "offsets": tensor._offsets.tolist()}
    return subject_inside(values, extras)


# --- layouts ---------------------------------------------------------------------------------------------------------


def _of_layout(tensor: torch.Tensor, extras: dict[str, Any]) -> Subject:
    keys = str(dispatch_keys(tensor))
    if "FuncTorch" in keys or "Functionalize" in keys:
        return Subject(None, extras, "inside a transform of torch.func (vmap, grad, …): it has no values of its own")
    if tensor.is_meta:
        return Subject(None, extras, "meta tensor: it has no values")
    if tensor.is_nested:
        return _nested(tensor, extras)
    if tensor.layout != torch.strided:
        return _unstrided(tensor, extras)
    if tensor.is_quantized:
        return _quantized(tensor, extras)
    if tensor.is_conj():
        tensor = tensor.resolve_conj()
    if tensor.is_neg():
        tensor = tensor.resolve_neg()
    if tensor._is_zerotensor():
        tensor = torch.zeros(tensor.shape, dtype=tensor.dtype, device=tensor.device)
    return Subject(tensor, extras)


def _nested(tensor: torch.Tensor, extras: dict[str, Any]) -> Subject:
    parts = tensor.unbind()
    extras["nested"] = {"layout": "strided", "shapes": [list(part.shape) for part in parts]}
    flat = [contiguous(part).view(-1) for part in parts]
    empty = torch.empty(0, dtype=tensor.dtype, device=tensor.device)
    return Subject(torch.cat(flat) if flat else empty, extras)


def _unstrided(tensor: torch.Tensor, extras: dict[str, Any]) -> Subject:
    extras["layout"] = str(tensor.layout)
    if tensor.layout == torch.sparse_coo:
        values = tensor.coalesce()._values()
    elif tensor.layout in _SPARSE:
        values = tensor.values()
    else:  # mkldnn has an order of its own in memory
        return Subject(tensor.to_dense(), extras)
    extras["nnz"] = int(tensor._nnz())
    reason = "sparse tensor: its statistics are recorded, its values are not stored"
    return Subject(values, extras, reason, tensor.numel() - values.numel(), list(tensor.shape))


def _quantized(tensor: torch.Tensor, extras: dict[str, Any]) -> Subject:
    extras["quantization"] = {"scheme": str(tensor.qscheme())}
    if tensor.qscheme() in (torch.per_tensor_affine, torch.per_tensor_symmetric):
        extras["quantization"] |= {"scale": tensor.q_scale(), "zero_point": tensor.q_zero_point()}
    else:
        scales, points = tensor.q_per_channel_scales(), tensor.q_per_channel_zero_points()
        axis = tensor.q_per_channel_axis()
        extras["quantization"] |= {"scales": scales.tolist(), "zero_points": points.tolist(), "axis": axis}
    return Subject(tensor, extras)


def dequantized(tensor: torch.Tensor) -> torch.Tensor:
    """The numbers that a quantised tensor stands for, float64 because a scale is."""
    wide: torch.Tensor = copy_to(contiguous(tensor.dequantize()), torch.float64)
    return wide
