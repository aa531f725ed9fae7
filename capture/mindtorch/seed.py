"""Making two runs comparable: seeds, deterministic kernels, no dropout."""

from __future__ import annotations

import functools
import inspect
from typing import Any

from capture.mindspore.seed import seed_all as seed_mindspore
from capture.mindtorch.environment import TorchEnvironment

__all__ = ["seed_all"]

_DROPOUTS = ("dropout", "dropout1d", "dropout2d", "dropout3d", "alpha_dropout", "feature_alpha_dropout")


def seed_all(seed: int = 1234, mode: bool = False, rm_dropout: bool = True) -> None:  # noqa: FBT001, FBT002 (msprobe's)
    """Seed Python, numpy, MindSpore and the torch on top of it, and make what can be deterministic so.

    Parameters
    ----------
    seed
        From 0 to 2**32 - 1.
    mode
        Also demand deterministic kernels.
    rm_dropout
        Make dropout pass everything through, in ``torch.nn.functional`` and so in its modules, until the process ends.

    Raises
    ------
    CaptureError
        An argument is of the wrong type or out of range; there is no torch that runs on MindSpore.
    """
    environment = TorchEnvironment.current()
    seed_mindspore(seed, mode, rm_dropout)
    environment.torch.manual_seed(seed)
    if rm_dropout:
        _remove_dropout(environment.place("torch.nn.functional"))


def _remove_dropout(functional: Any) -> None:
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
