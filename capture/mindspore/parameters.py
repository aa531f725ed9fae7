"""Gradients of parameters: as ``value_and_grad`` returns them, every use of a parameter added up.

No hook is put on a parameter (see ``passes``). A step may run several backward passes; the last gradient comes first.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from mindspore import nn

    from capture.mindspore.passes import Pair
    from capture.observer import Observer

__all__ = ["ParameterGradients", "own_parameters"]


class ParameterGradients:
    """Knows which cells own which parameters. One that several cells share has a record in each.

    Parameters
    ----------
    observer
        Where gradients go.
    """

    def __init__(self, observer: Observer) -> None:
        self._observer = observer
        # With the parameter itself, so that its identity is not given to another one before ``forget``.
        self._owners: dict[int, tuple[Any, list[tuple[str, str]]]] = {}
        self._came = False

    def add(self, prefix: str, cell: nn.Cell) -> None:
        """Note the parameters that a cell itself has; ``prefix`` is ``Cell.{path}.{class}``."""
        for name, parameter in own_parameters(cell).items():
            _, owners = self._owners.setdefault(id(parameter), (parameter, []))
            if (prefix, name) not in owners:
                owners.append((prefix, name))

    def arrived(self, pairs: list[Pair]) -> None:
        """A backward pass gave these gradients."""
        for leaf, gradient in pairs:
            _, owners = self._owners.get(id(leaf), (None, ()))
            for prefix, name in owners:
                self._came = True
                self._observer.parameter_gradient(prefix, name, gradient)

    def finish(self, *, had_backward: bool) -> None:
        """After a backward that left no gradient of any parameter, say so."""
        if had_backward and self._owners and not self._came:
            text = f"0 of {len(self._owners)} parameter gradients: the backward was not asked for any (weights=…)"
            self._observer.problem("no parameter gradients", "", text)

    def forget(self) -> None:
        """Let go of every parameter."""
        self._owners.clear()
        self._came = False


def own_parameters(cell: nn.Cell) -> dict[str, Any]:
    """Parameters of a cell by attribute, without those of its children."""
    return {name: parameter for name, parameter in cell._params.items() if parameter is not None}
