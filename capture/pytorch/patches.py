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
        while self._applied:
            self._undo(self._applied.pop())

    def restore_one(self, owner: Any, name: str) -> bool:
        """Put one attribute back; False when it was not replaced."""
        for index, patch in enumerate(self._applied):
            if patch.owner is owner and patch.name == name:
                self._undo(self._applied.pop(index))
                return True
        return False

    @staticmethod
    def _undo(patch: _Patch) -> None:
        if vars(patch.owner).get(patch.name, _ABSENT) is not patch.stand_in:
            return
        if patch.before is _ABSENT:
            delattr(patch.owner, patch.name)
        else:
            setattr(patch.owner, patch.name, patch.before)
