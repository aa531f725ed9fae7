"""Which rank of which step: the name of a unit, as directories and groups spell it."""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import total_ordering
from typing import TypeVar

from msformat.errors import FormatError
from msformat.filesystem import join
from msformat.names import NaturalKey, natural_key

__all__ = [
    "BRANCHES",
    "UnitKey",
    "is_rank_label",
    "parse_step_label",
    "parse_unit_path",
    "separate_runs",
    "wanted_units",
]

BRANCHES = ("graph", "pynative")

_MOST_NAMED = 8
T = TypeVar("T")

# No leading zeros, so that a key leads back to its directory; 18 digits keep int() far from its digit limit.
_NUMBER = r"(?:0|[1-9][0-9]{0,17})"
_STEP = re.compile(rf"step({_NUMBER})")
_RANK = re.compile(rf"rank({_NUMBER})?|proc{_NUMBER}")


@total_ordering
@dataclass(frozen=True, slots=True)
class UnitKey:
    """Which rank of which step. Ordered by step, rank and branch, numbers as numbers.

    Attributes
    ----------
    step
        None where the dump has no steps (saved variables of msprobe 1.2.2).
    rank
        The label as written: ``rank3``, ``rank``, ``proc4711``.
    branch
        ``graph`` or ``pynative`` (MindSpore with jit cells), else ``""``.
    """

    step: int | None
    rank: str
    branch: str = ""

    @property
    def rank_number(self) -> int | None:
        """The rank; None for ``rank`` and ``proc{pid}``: a process id is no rank."""
        digits = self.rank.removeprefix("rank")
        return int(digits) if digits != self.rank and digits else None

    @property
    def path(self) -> str:
        """Path inside a dump, ``graph/step0/rank3``; :func:`parse_unit_path` is the inverse."""
        return join(self.branch, "" if self.step is None else f"step{self.step}", self.rank)

    def is_of(self, steps: Collection[int] | None, ranks: Collection[int | str] | None) -> bool:
        """Whether it is one of these steps and ranks (numbers, or labels as written); None for any."""
        if steps is not None and self.step not in steps:
            return False
        return ranks is None or self.rank in ranks or self.rank_number in ranks

    def __str__(self) -> str:
        return self.path

    def __lt__(self, other: object) -> bool:
        if not isinstance(other, UnitKey):
            return NotImplemented
        return self.sort_key() < other.sort_key()

    def sort_key(self) -> tuple[int, NaturalKey, str]:
        """What ``<`` compares; faster as the key of a sort."""
        return (-1 if self.step is None else self.step, natural_key(self.rank), self.branch)


def wanted_units(
    units: Sequence[T],
    steps: Collection[int] | None,
    ranks: Collection[int | str] | None,
    source: str,
    *,
    key: Callable[[T], UnitKey],
) -> list[T]:
    """Those of the wanted steps and ranks, see :meth:`UnitKey.is_of`.

    Raises
    ------
    FormatError
        There is none; says which there are in ``source``.
    """
    chosen = [unit for unit in units if key(unit).is_of(steps, ranks)]
    if not chosen:
        there = ", ".join(key(unit).path for unit in units[:_MOST_NAMED]) + (", …" if len(units) > _MOST_NAMED else "")
        raise FormatError(f"{source}: no unit of the wanted steps and ranks; there are {there}")
    return chosen


def parse_unit_path(path: str) -> UnitKey | None:
    """The key of ``step0/rank3``, ``graph/step0/rank``, ``rank``, …; None for any other path."""
    parts = path.strip("/").split("/")
    branch = parts.pop(0) if parts[0] in BRANCHES else ""
    step = parse_step_label(parts.pop(0)) if len(parts) == 2 else None
    if len(parts) != 1 or not is_rank_label(parts[0]):
        return None
    key = UnitKey(step, parts[0], branch)
    return key if key.path == path.strip("/") else None


def is_rank_label(name: str) -> bool:
    """Whether a name is ``rank{R}``, ``rank`` or ``proc{pid}``."""
    return _RANK.fullmatch(name) is not None


def parse_step_label(name: str) -> int | None:
    """The number of ``step{N}``; None for any other name."""
    found = _STEP.fullmatch(name)
    return int(found[1]) if found else None


def separate_runs(keys: Iterable[UnitKey]) -> Iterator[str]:
    """Say where single processes lie beside each other or beside numbered ranks: each is a run of its own."""
    ranks: dict[str, list[str]] = {}
    for key in keys:
        ranks.setdefault(join(key.branch, "" if key.step is None else f"step{key.step}"), []).append(key.rank)
    places: dict[tuple[str, ...], list[str]] = {}
    for place, labels in ranks.items():
        if len(labels) > 1 and any(UnitKey(None, label).rank_number is None for label in labels):
            places.setdefault(tuple(labels[:4]), []).append(place or "the dump")
    for labels_shown, where in places.items():
        more = f" and {len(where) - 4} more" if len(where) > 4 else ""
        yield (
            f"{', '.join(where[:4])}{more}: {', '.join(labels_shown)} are separate runs into one path, "
            "never ranks of one run"
        )
