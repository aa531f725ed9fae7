"""Puts stand-ins in the place of attributes and takes them out again, to the very object that was there before."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

__all__ = ["Patches"]

_ABSENT = object()


class _Patch(NamedTuple):
    owner: Any
    name: str
    stand_in: Any
    before: Any
    """What the owner itself held, or ``_ABSENT`` where the attribute came from elsewhere (a base class)."""


class Patches:
    """Attributes replaced at present.

    Only what is still ours is put back: where somebody else replaced an attribute in the meantime, theirs stays.
    """

    def __init__(self) -> None:
        self._applied: list[_Patch] = []

    def put(self, owner: Any, name: str, make: Callable[[Any], Any]) -> Any:
        """Replace ``owner.name`` by what ``make`` makes of its present value; returns the stand-in.

        Parameters
        ----------
        owner
            A module, a class or any object with attributes of its own.
        make
            Gets the attribute as the owner holds it (a ``staticmethod`` as such), or as it is inherited.
        """
        before = vars(owner).get(name, _ABSENT)
        stand_in = make(getattr(owner, name) if before is _ABSENT else before)
        setattr(owner, name, stand_in)
        self._applied.append(_Patch(owner, name, stand_in, before))
        return stand_in

    def restore(self) -> None:
        """Put every attribute back, the last one first."""
        self.suspend()
        self._applied = []

    def restore_one(self, owner: Any, name: str) -> None:
        """Put one attribute back; nothing happens when it was not replaced."""
        for index, patch in enumerate(self._applied):
            if patch.owner is owner and patch.name == name:
                _take_out(self._applied.pop(index))
                return

    def suspend(self) -> None:
        """Put every attribute back, to be replaced again by :meth:`resume`."""
        for patch in reversed(self._applied):
            _take_out(patch)

    def resume(self) -> None:
        """Replace every attribute again that is still what it was."""
        for patch in self._applied:
            if vars(patch.owner).get(patch.name, _ABSENT) is patch.before:
                setattr(patch.owner, patch.name, patch.stand_in)


def _take_out(patch: _Patch) -> None:
    owner, name, stand_in, before = patch
    if vars(owner).get(name, _ABSENT) is not stand_in:
        return
    if before is _ABSENT:
        delattr(owner, name)
    else:
        setattr(owner, name, before)
