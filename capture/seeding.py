"""What ``seed_all`` does in every framework: check what was asked, seed Python and numpy, silence dropouts."""

from __future__ import annotations

import functools
import inspect
import os
import random
from typing import Any

import numpy as np

from capture.errors import CaptureError

__all__ = ["pass_through_dropouts", "seed_python"]

_DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")


def seed_python(seed: int, *, mode: bool, rm_dropout: bool) -> None:
    """Seed Python and numpy, and tell the collective library of NPUs whether to be deterministic.

    Parameters
    ----------
    seed
        From 0 to 2**32 - 1.
    mode, rm_dropout
        As of ``seed_all``.

    Raises
    ------
    CaptureError
        An argument is of the wrong type or out of range; nothing was seeded.
    """
    if isinstance(seed, bool) or not isinstance(seed, int) or not 0 <= seed < 2**32:
        raise CaptureError(f"seed_all(seed={seed!r}): an integer from 0 to 2**32 - 1 is needed")
    for name, value in (("mode", mode), ("rm_dropout", rm_dropout)):
        if not isinstance(value, bool):
            raise CaptureError(f"seed_all({name}={value!r}): True or False is needed")
    random.seed(seed)
    os.environ["PYTHONHASHSEED"] = str(seed)
    np.random.seed(seed)  # the generator that user code draws from
    os.environ["HCCL_DETERMINISTIC"] = str(mode).lower()


def pass_through_dropouts(functional: Any) -> None:
    """Make every dropout of a ``torch.nn.functional`` pass everything through, until the process ends."""
    for name in _DROPOUTS:
        original = getattr(functional, name, None)
        if original is not None and not hasattr(original, "_passes_through"):
            setattr(functional, name, _without_probability(original))


def _without_probability(original: Any) -> Any:
    """The dropout with probability 0, however it is called; its name and its place in a dump stay."""

    @functools.wraps(original)
    def dropout(*args: Any, **kwargs: Any) -> Any:
        given = inspect.signature(original).bind(*args, **kwargs)
        given.arguments["p"] = 0.0
        return original(*given.args, **given.kwargs)

    dropout._passes_through = True  # type: ignore[attr-defined]
    return dropout
