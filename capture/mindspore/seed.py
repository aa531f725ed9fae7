"""Making two runs comparable: seeds, deterministic kernels, no dropout."""

from __future__ import annotations

from typing import Any

import mindspore
from mindspore import mint, nn, ops
from mindspore.nn.layer import basic

from capture.seeding import seed_python

__all__ = ["seed_all"]

_EXTENDED = ("DropoutExt", "Dropout2dExt")  # of ``mint``; 2.7.0 has the first only
_LAYERS = (
    *(nn.Dropout, nn.Dropout1d, nn.Dropout2d, nn.Dropout3d),
    *(getattr(basic, name) for name in _EXTENDED if hasattr(basic, name)),
)
_FUNCTIONS = ("dropout", "dropout1d", "dropout2d", "dropout3d")
_PRIMITIVES = ("Dropout", "Dropout2D", "Dropout3D")


def seed_all(seed: int = 1234, mode: bool = False, rm_dropout: bool = True) -> None:  # noqa: FBT001, FBT002 (msprobe's)
    """Seed Python, numpy and MindSpore on every device, and make what can be deterministic so.

    Parameters
    ----------
    seed
        From 0 to 2**32 - 1.
    mode
        Also demand deterministic kernels (``deterministic="ON"``); slower.
    rm_dropout
        Make dropout pass everything through, in layers (also those made before), functions and primitives, until the
        process ends.

    Raises
    ------
    CaptureError
        An argument is of the wrong type or out of range.
    """
    seed_python(seed, mode=mode, rm_dropout=rm_dropout)
    mindspore.set_seed(seed)
    mindspore.manual_seed(seed)  # the generator of ``mint``
    # ``set_deterministic`` refuses a second call in a process.
    mindspore.set_context(deterministic="ON" if mode else "OFF")
    if rm_dropout:
        _remove_dropout()


def _remove_dropout() -> None:
    for layer in _LAYERS:
        layer.construct = _Passing.construct
    for home in (ops, ops.function, ops.function.nn_func, mint.nn.functional):
        for name in _FUNCTIONS:
            if hasattr(home, name):
                setattr(home, name, dropout)
    for name in _PRIMITIVES:
        passing = _passing(getattr(ops, name))
        for home in (ops, ops.operations):
            setattr(home, name, passing)


class _Passing:
    """What layers get their ``construct`` from. MindSpore parses its source, so it is as plain as can be."""

    def construct(self, x: Any) -> Any:
        return x


def dropout(input: Any, p: float = 0.5, training: bool = True, seed: Any = None, inplace: bool = False) -> Any:  # noqa: A002, ARG001, FBT001, FBT002 (MindSpore's)
    """Stands for every function of dropout, under its name."""
    return input


def _passing(primitive: Any) -> Any:
    """The primitive with everything kept, however it is made."""
    if getattr(primitive, "_passes_through", False):
        return primitive

    def __init__(self: Any, keep_prob: float = 0.5, *seeds: Any, **named: Any) -> None:  # noqa: N807 (it is one)
        del keep_prob
        primitive.__init__(self, 1.0, *seeds, **named)

    # By its own name: dumps and graphs call a primitive by that of its class.
    return type(primitive.__name__, (primitive,), {"__init__": __init__, "_passes_through": True})
