"""Small models that a capture must record as msprobe does, each a function ``build() -> (models, run_step)``.

They run in two environments (ours, and the one that holds msprobe): they import torch and the standard library only.
All of it is deterministic: weights, data and dropout come from seeds. ``run_step(step)`` runs forward and backward
once; whoever trains updates the parameters outside of what is captured.
"""

from __future__ import annotations

from collections.abc import Callable

from tests.peer.capture_models.networks import (
    Built,
    build_checkpoint,
    build_checkpoint_reentrant,
    build_cnn,
    build_keywords,
    build_lstm,
    build_outputs,
    build_tied,
    build_transformer,
    build_tuple_of_models,
    build_two_models,
)
from tests.peer.capture_models.operations import (
    build_branches,
    build_custom_function,
    build_inplace,
    build_kinds,
    build_moe,
    build_no_grad,
)

SUITE: dict[str, Callable[[], Built]] = {
    "cnn": build_cnn,
    "transformer": build_transformer,
    "checkpoint": build_checkpoint,
    "checkpoint_reentrant": build_checkpoint_reentrant,
    "lstm": build_lstm,
    "tied": build_tied,
    "outputs": build_outputs,
    "keywords": build_keywords,
    "two_models": build_two_models,
    "tuple_of_models": build_tuple_of_models,
    "moe": build_moe,
    "inplace": build_inplace,
    "kinds": build_kinds,
    "no_grad": build_no_grad,
    "custom_function": build_custom_function,
    "branches": build_branches,
}
