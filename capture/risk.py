"""Which APIs are worth recording at a ``risk_level``, as msprobe 26.2.0 sorts them.

``CORE`` are the APIs that multiply, normalise, look up or communicate, where precision is lost; ``LOW`` those that
only move, convert or create values. ``ALL`` records everything, ``FOCUS`` leaves out the low ones, ``CORE`` all others.
Calls are counted either way, so names do not depend on the level.
"""

from __future__ import annotations

__all__ = ["is_worth_recording"]

_MOVES = (
    "squeeze unsqueeze reshape reshape_as view view_as flatten unflatten ravel expand expand_as repeat "
    "repeat_interleave tile transpose permute moveaxis movedim swapaxes swapdims align_as align_to unfold "
    "atleast_1d atleast_2d atleast_3d stride"
)
_CUTS_AND_JOINS = (
    "chunk unsafe_chunk split split_with_sizes unsafe_split unsafe_split_with_sizes tensor_split hsplit vsplit dsplit "
    "unbind stack cat concat concatenate hstack vstack dstack column_stack row_stack"
)
_CONVERSIONS = "to type_as float double int long half bfloat16 byte char bool cfloat numpy __bool__ clone clamp"
_CREATIONS = (
    "empty empty_like zeros zeros_like ones ones_like full full_like arange linspace logspace eye identity diag "
    "diagflat diag_embed triu tril triu_indices tril_indices"
)
_PRODUCTS = (
    "matmul __matmul__ bmm mm mv addmm addmm_ addbmm addbmm_ baddbmm baddbmm_ addmv addmv_ addr addr_ chain_matmul "
    "linear bilinear linalg.matmul linalg.multi_dot linalg.vecdot scaled_dot_product_attention "
    "multi_head_attention_forward"
)
_CONVOLUTIONS = (
    "conv1d conv2d conv3d conv_transpose1d conv_transpose2d conv_transpose3d conv_tbc convolution _convolution"
)
_NORMS = (
    "batch_norm instance_norm layer_norm group_norm local_response_norm _batch_norm_impl_index batch_norm_elemt "
    "batch_norm_stats batch_norm_update_stats batch_norm_gather_stats batch_norm_gather_stats_with_counts "
    "batch_norm_backward_elemt batch_norm_backward_reduce"
)
_OTHER_CORE = "embedding embedding_bag _fused_adam_ _fused_adamw_"

_LOW = frozenset(f"{_MOVES} {_CUTS_AND_JOINS} {_CONVERSIONS} {_CREATIONS}".split())
_CORE = frozenset(f"{_PRODUCTS} {_CONVOLUTIONS} {_NORMS} {_OTHER_CORE}".split())
# Every API of these is core: they communicate, or are fused kernels.
_CORE_PREFIXES = frozenset({"Distributed", "NPU", "MindSpeed"})


def is_worth_recording(risk_level: str, base: str) -> bool:
    """Whether an API (``Functional.linear``) is recorded at ``ALL``, ``FOCUS`` or ``CORE``."""
    if risk_level == "ALL":
        return True
    prefix, _, name = base.partition(".")
    is_core = prefix in _CORE_PREFIXES or name in _CORE
    return is_core or (risk_level == "FOCUS" and name not in _LOW)
