"""Memory that a program has got and not written yet: what lies in it means nothing, NaN and infinities included.

Outputs of ``empty`` and its like, buffers that a communication is about to fill, what an in-place function replaces
whole, and arguments ``out=``. No page may put them on top as the first NaN, and no comparison as the place where two
runs part. (msprobe's overflow check has such a list, too; there, a buffer given by keyword was once forgotten.)
"""

from __future__ import annotations

from msformat.names import parse_entry

__all__ = ["is_unwritten"]

_MAKERS = frozenset({
    "empty", "empty_like", "empty_permuted", "empty_quantized", "empty_strided", "empty_with_format", "new_empty",
    "new_empty_strided",
})  # fmt: skip
_OVERWRITERS = frozenset({
    "bernoulli_", "cauchy_", "copy_", "exponential_", "fill_", "geometric_", "log_normal_", "normal_", "random_",
    "uniform_", "zero_",
})  # fmt: skip
# Position and name of the buffer, in the signatures of torch.distributed and mindspore.mint.distributed.
_RECEIVERS = dict.fromkeys(("recv", "irecv"), ("0", "tensor"))
_COLLECTIVES = {
    "all_gather": ("0", "tensor_list"),
    "all_gather_coalesced": ("0", "output_tensor_lists"),
    "all_gather_into_tensor": ("0", "output_tensor"),
    "all_gather_into_tensor_uneven": ("0", "output"),
    "all_gather_single": ("0", "output_tensor"),
    "_all_gather_base": ("0", "output_tensor"),
    "all_to_all": ("0", "output_tensor_list"),
    "all_to_all_single": ("0", "output"),
    "gather": ("1", "gather_list"),
    "reduce_scatter": ("0", "output"),
    "_reduce_scatter_base": ("0", "output"),
    "reduce_scatter_single": ("0", "output"),
    "reduce_scatter_tensor": ("0", "output"),
    "reduce_scatter_tensor_uneven": ("0", "output"),
    "scatter": ("0", "tensor"),
}
_FUNCTIONS = frozenset({"Torch", "Tensor", "Functional", "NPU", "Mint", "MintFunctional"})
_COMMUNICATION = frozenset({"Distributed", "MintDistributed"})


def is_unwritten(entry: str, slot: str, path: str, framework: str) -> bool:
    """Whether a tensor of a call was recorded before anything was written into it.

    Parameters
    ----------
    entry, slot, path
        Where it stands, as tables have it: ``Distributed.recv.0.forward``, ``input_kwargs``, ``tensor``.
    framework
        As the document says. ``Distributed`` of MindSpore returns what it receives, and takes no buffer for it.
    """
    argument = path.partition(".")[0]
    name = parse_entry(entry) if _may_be(entry, slot, argument) else None
    if name is None or name.order != "api" or name.stage != "forward":
        return False
    if name.kind in _COMMUNICATION:
        return _is_buffer(name.path, slot, argument, returns=(name.kind, framework) == ("Distributed", "mindspore"))
    if name.kind not in _FUNCTIONS:
        return False
    if slot == "output":
        return name.path in _MAKERS
    if slot == "input_kwargs":
        return argument == "out"
    return name.kind == "Tensor" and name.path in _OVERWRITERS and argument == "0"


def _may_be(entry: str, slot: str, argument: str) -> bool:
    """False for nearly all there are; taking a name apart takes twenty times as long."""
    if slot == "output":
        return "empty" in entry
    if slot == "input_kwargs":
        return argument == "out" or "Distributed." in entry
    return slot == "input_args" and argument in ("0", "1") and ("_." in entry or "Distributed." in entry)


def _is_buffer(function: str, slot: str, argument: str, *, returns: bool) -> bool:
    known = _RECEIVERS.get(function) or (None if returns else _COLLECTIVES.get(function))
    if known is None:
        return False
    position, keyword = known
    return (slot, argument) in (("input_args", position), ("input_kwargs", keyword))
