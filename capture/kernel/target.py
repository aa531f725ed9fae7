"""The one call whose kernels are dumped: an entry name of an API, as level L1 writes it."""

from __future__ import annotations

from typing import NamedTuple

from msformat import parse_entry

__all__ = ["Target", "looks_like_api", "parse_target"]

_MODULES = ("Module", "Cell")
REGEX = "name-regex("


class Target(NamedTuple):
    """A call of an API.

    Attributes
    ----------
    base
        ``Functional.linear``: what calls are counted by.
    number
        Which call of a step, from 0.
    is_backward
        Whether its backward is meant.
    """

    base: str
    number: int
    is_backward: bool

    @property
    def name(self) -> str:
        """The entry name."""
        return f"{self.base}.{self.number}.{'backward' if self.is_backward else 'forward'}"


def parse_target(name: str) -> Target | None:
    """The call that an entry name means; None for any other text."""
    found = parse_entry(name)
    if found is None or found.order != "api" or found.stage not in ("forward", "backward"):
        return None
    base, number, stage = name.rsplit(".", 2)
    if found.kind in _MODULES or "." not in base or not (number.isascii() and number.isdecimal()):
        return None
    return Target(base, int(number), stage == "backward")


def looks_like_api(name: str) -> bool:
    """Whether an API is meant, rather than a kernel of a graph (``Default/fc-Dense/MatMul-op0``, ``MatMul``)."""
    return "." in name and "/" not in name and not name.startswith(REGEX)
