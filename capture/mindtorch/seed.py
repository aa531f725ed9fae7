"""Making two runs comparable: seeds, deterministic kernels, no dropout."""

from __future__ import annotations

from capture.mindspore.seed import seed_all as seed_mindspore
from capture.mindtorch.environment import TorchEnvironment
from capture.seeding import pass_through_dropouts

__all__ = ["seed_all"]


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
        pass_through_dropouts(environment.place("torch.nn.functional"))
