"""Which modules a program trains, found from outside: those that hold the parameters of its optimizers."""

from __future__ import annotations

import gc
from collections.abc import Iterable
from typing import Any

from torch import nn

__all__ = ["trained_models"]


def trained_models(called: nn.Module, parameters: Iterable[Any]) -> list[nn.Module]:
    """The outermost modules that hold these parameters.

    Parameters
    ----------
    called
        A module that the program has called: of several with the same parameters, the one that holds it is meant; and
        where no module holds any of the parameters, its outermost module.
    parameters
        Of all optimizers, in their order.

    Returns
    -------
    list of nn.Module
        One at least, in the order of the parameters. Wrappers of ``DistributedDataParallel`` are taken off, so that
        names are those of a single process.
    """
    places = {id(parameter): place for place, parameter in enumerate(parameters)}
    roots = _outermost()
    owned = [(root, {places[id(own)] for own in _parameters(root) if id(own) in places}) for root in roots]
    holding = {id(root) for root in roots if any(module is called for module in root.modules())}
    chosen: list[tuple[int, nn.Module]] = []
    left = set(places.values())
    # Largest first: what shares its parameters with a larger one (a view of some layers) adds nothing.
    for root, own in sorted(owned, key=lambda pair: (len(pair[1]), id(pair[0]) in holding), reverse=True):
        if own & left:
            chosen.append((min(own), root))
            left -= own
    found = [_unwrapped(root) for _, root in sorted(chosen, key=lambda pair: pair[0])]
    return found or [_unwrapped(next((root for root in roots if id(root) in holding), called))]


def _outermost() -> list[nn.Module]:
    """Modules that no other module holds."""
    # type(), not isinstance(), which asks a proxy for the class of what it stands for.
    modules = [item for item in gc.get_objects() if nn.Module in type(item).__mro__ and "_modules" in vars(item)]
    held = {id(child) for module in modules for child in module._modules.values()}
    return [module for module in modules if id(module) not in held]


def _parameters(module: nn.Module) -> list[Any]:
    try:
        return list(module.parameters())
    except Exception:  # noqa: BLE001 (a class of its own mind is not the model)
        return []


def _unwrapped(module: nn.Module) -> nn.Module:
    while isinstance(module, nn.parallel.DistributedDataParallel):
        module = module.module
    return module
