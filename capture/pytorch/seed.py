"""Making two runs comparable: seeds, deterministic kernels, no dropout."""

from __future__ import annotations

import os

import torch

from capture.seeding import pass_through_dropouts, seed_python

__all__ = ["seed_all"]


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
    seed_python(seed, mode=mode, rm_dropout=rm_dropout)
    torch.manual_seed(seed)  # every device of this build, npu included once torch_npu is imported
    if torch.version.cuda is not None:
        os.environ["CUBLAS_WORKSPACE_CONFIG"] = ":4096:8"
        torch.backends.cudnn.deterministic = True
        torch.backends.cudnn.benchmark = False
    torch.use_deterministic_algorithms(mode)
    if rm_dropout:
        pass_through_dropouts(torch.nn.functional)
