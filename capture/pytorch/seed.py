"""Making two runs comparable: seeds, deterministic kernels, no dropout."""

from __future__ import annotations

import functools
import inspect
import os
import random
from typing import Any

import numpy as np
import torch

from capture.errors import CaptureError

__all__ = ["seed_all"]

_DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")


def seed_all(seed: int = 1234, mode: bool = False, rm_dropout: bool = True) -> None:  # noqa: FBT001, FBT002 (msprobe's)
    """Seed Python, numpy and torch on every device, and make what can be deterministic so.

    Parameters
    ----------
    seed
        From 0 to 2**32 - 1.
    mode
        Also demand deterministic kernels (``torch.use_deterministic_algorithms``); slower, and some have none.
    rm_dropout
        Make dropout pass everything through, in ``torch.nn.functional`` and so in its modules, until the process ends.

    Raises
    ------
    CaptureError
        An argument is of the wrong type or out of range.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**32:
        raise CaptureError(f"seed_all(seed={seed!r}): an integer from 0 to 2**32 - 1 is needed")
    for name, value in (("mode", mode), ("rm_dropout", rm_dropout)):
        if not isinstance(value, bool):
            raise CaptureError(f"seed_all({name}={value!r}): True or False is needed")
    random.seed(seed)
    os.environ["PYTHONHASHSEED"] = str(seed)
    np.random.seed(seed)  # the generator that user code draws from
    torch.manual_seed(seed)  # every device of this build, npu included once torch_npu is imported
    os.environ["HCCL_DETERMINISTIC"] = str(mode).lower()
    if torch.version.cuda is not None:
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(mode)
    if rm_dropout:
        _remove_dropout()


def _remove_dropout() -> None:
    for name in _DROPOUTS:
        original = getattr(torch.nn.functional, name)
        if not hasattr(original, "_passes_through"):
            setattr(torch.nn.functional, name, _without_probability(original))


def _without_probability(original: Any) -> Any:
    """The dropout with probability 0, however it is called; its name and its place in a dump stay."""

    @functools.wraps(original)
    def dropout(*args: Any, **kwargs: Any) -> Any:
        given = inspect.signature(original).bind(*args, **kwargs)
        given.arguments["p"] = 0.0
        return original(*given.args, **given.kwargs)

    dropout._passes_through = True  # type: ignore[attr-defined]
    return dropout
