"""Which tensors belong together: the same place in the same entry, over the units of a dump."""

from __future__ import annotations

import itertools
import warnings
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from msformat.errors import EntryNotFoundError, FormatError, MsformatError, TensorNotFoundError, UnitNotFoundError
from msformat.names import natural_key
from msformat.plaintext import shortened
from msformat.units import UnitKey

if TYPE_CHECKING:
    from msformat.entries import Entry, Tensor
    from msformat.unit import Unit

__all__ = ["Family", "Member", "choose_units", "find_family", "listed"]

_OUTPUT = "output.0"
_SHOWN = 6
_NAME = 240


@dataclass(frozen=True, slots=True, eq=False)
class Member:
    """One tensor of a family."""

    unit: UnitKey
    entry: str
    tensor: Tensor


@dataclass(slots=True)
class Family:
    """Tensors on a grid.

    Attributes
    ----------
    path
        Of the dump or unit they are in.
    entry
        The key or glob that was asked for.
    place
        Where each stands in its entry: ``output.0``.
    axes
        Labels along ``step``, ``rank`` and ``entry``, those there are.
    scalars
        The same for what is no axis.
    members
        The tensor at each position of the grid.
    reasons
        Why there is none in a unit, or in an entry of one.
    units
        Where it was looked for.
    """

    path: str
    entry: str
    place: str
    axes: dict[str, list[Any]] = field(default_factory=dict)
    scalars: dict[str, Any] = field(default_factory=dict)
    members: dict[tuple[int, ...], Member] = field(default_factory=dict)
    reasons: dict[tuple[UnitKey, str], str] = field(default_factory=dict)
    units: tuple[UnitKey, ...] = ()

    @property
    def grid(self) -> tuple[int, ...]:
        """Lengths of the axes."""
        return tuple(map(len, self.axes.values()))

    @property
    def title(self) -> str:
        """What messages call it."""
        return f"{self.path}: {shortened(self.entry, _NAME)} {shortened(self.place, _NAME)}"

    def label(self, member: Member) -> str:
        """What messages call one of it."""
        return f"{member.unit}: {member.entry}" if "entry" in self.axes else str(member.unit)

    def holes(self) -> Iterator[str]:
        """Why positions of the grid have no tensor, a sentence for each."""
        for position in itertools.product(*map(range, self.grid)):
            if position not in self.members:
                yield self._why_not(position)

    def _why_not(self, position: Sequence[int]) -> str:
        labels: dict[str, Any] = {
            name: along[at] for (name, along), at in zip(self.axes.items(), position, strict=True)
        }
        where = ", ".join(f"{name} {label}" for name, label in labels.items())
        here = [unit for unit in self.units if _is_at(unit, labels)]
        for (unit, entry), reason in self.reasons.items():
            if unit in here and entry in (labels.get("entry", self.entry), self.entry):
                return f"{where}: {reason}"
        return f"{where}: {'no such entry' if here else 'no such unit'}"


def find_family(path: str, units: Sequence[Unit], entry: str, place: str | None, *, over_units: bool) -> Family:
    """The tensors of one place in one entry, or in all whose key matches a glob, of some units.

    Parameters
    ----------
    path
        How messages call the whole.
    units
        Where to look.
    entry
        A key; or, where no entry is called so, a glob.
    place
        ``output.0``, ``parameters.weight``, …; None for the only output, or else the only tensor of an entry.
    over_units
        Whether step and rank are axes. Otherwise there is one unit, and they are scalars.

    Raises
    ------
    EntryNotFoundError, TensorNotFoundError
        No unit has such an entry, it has no such tensor, or of none were values saved; says why.
    FormatError
        The units found are of several branches, or some have steps and some not.

    Warns
    -----
    UserWarning
        Names units without such a tensor whose step or rank is therefore not on the grid.
    """
    found: list[Member] = []
    failures: dict[tuple[UnitKey, str], Exception] = {}
    for unit in units:
        try:
            for key in _keys(unit, entry):
                member = _member(unit, key, place, is_glob=key != entry, failures=failures)
                found.extend([member] if member is not None else [])
        except (MsformatError, OSError) as error:
            failures[unit.key, entry] = error
    if not found:
        raise _worst(failures, entry, path)
    family = Family(path, entry, found[0].tensor.place, units=tuple(unit.key for unit in units))
    family.reasons = {where: str(error) for where, error in failures.items()}
    _lay_out(family, found, over_units=over_units)
    _say_left_out(family)
    return family


def choose_units(
    units: Iterable[Unit],
    path: str,
    *,
    steps: Iterable[int] | None,
    ranks: Iterable[int | str | None] | None,
    branch: str | None,
) -> list[Unit]:
    """Units of some steps and ranks; None takes all.

    Raises
    ------
    UnitNotFoundError
        Nothing has one of the steps or ranks, or such a branch.
    """
    chosen = _with_one_of(list(units), "step", steps, lambda key: {key.step}, path)
    chosen = _with_one_of(chosen, "rank", ranks, _rank_names, path)
    return _with_one_of(chosen, "branch", None if branch is None else [branch], lambda key: {key.branch}, path)


def _with_one_of(
    units: list[Unit], what: str, wanted: Iterable[Any] | None, names: Callable[[UnitKey], set[Any]], path: str
) -> list[Unit]:
    if wanted is None:
        return units
    labels = set(wanted)
    missing = labels - {name for unit in units for name in names(unit.key)}
    if missing:
        raise UnitNotFoundError(f"{what} {missing.pop()}", path)
    return [unit for unit in units if labels & names(unit.key)]


def listed(texts: Iterable[str], most: int = _SHOWN) -> str:
    """A few texts of many, each of a length that a message can bear."""
    found = list(texts)
    first, rest = found[:most], len(found[most:])
    return "; ".join(shortened(text, _NAME) for text in first) + (f" and {rest} more" if rest else "")


# --- looking ---------------------------------------------------------------------------------------------------------


def _keys(unit: Unit, entry: str) -> list[str]:
    """Raises EntryNotFoundError, with near matches, where there is none."""
    if entry in unit:
        return [entry]
    if not any(sign in entry for sign in "*?["):
        unit[entry]  # raises, and names near matches
    found = [key for key in unit if fnmatchcase(key, entry)]
    if not found:
        raise EntryNotFoundError(entry, unit.path, reason="no key matches")
    return found


def _member(
    unit: Unit, key: str, place: str | None, *, is_glob: bool, failures: dict[tuple[UnitKey, str], Exception]
) -> Member | None:
    """The tensor of an entry; None, and why, where it has none."""
    try:
        entry = unit[key]
        if is_glob and all(tensor.place != (place or _OUTPUT) for tensor in entry.tensors):
            return None
        tensor = _choose(entry, place or (_OUTPUT if is_glob else None))
        tensor.stored  # noqa: B018 (raises where no values were saved)
    except (MsformatError, OSError) as error:
        failures[unit.key, key] = error
        return None
    return Member(unit.key, key, tensor)


def _choose(entry: Entry, place: str | None) -> Tensor:
    tensors = {tensor.place: tensor for tensor in entry.tensors}
    if place is not None:
        found = tensors.get(place)
    else:
        outputs = [tensor for name, tensor in tensors.items() if name == "output" or name.startswith("output.")]
        candidates = outputs or list(tensors.values())
        found = candidates[0] if len(candidates) == 1 else None
    if found is None:
        reason = f"entry {shortened(entry.key, _NAME)!r} has {listed(map(repr, tensors)) or 'no tensors'}"
        raise TensorNotFoundError(place or _OUTPUT, entry.unit.path, reason=reason)
    return found


def _worst(failures: dict[tuple[UnitKey, str], Exception], entry: str, path: str) -> Exception:
    """What came nearest to finding something."""
    nearest = [error for error in failures.values() if not isinstance(error, EntryNotFoundError)]
    every = [*nearest, *failures.values()]
    return every[0] if every else EntryNotFoundError(entry, path, reason="no entry that matches has such a tensor")


# --- laying out ------------------------------------------------------------------------------------------------------


def _lay_out(family: Family, found: Sequence[Member], *, over_units: bool) -> None:
    """Axes from what was found, and each tensor at its position."""
    _check_units(family, found)
    coordinates = _coordinates(family, found)
    labels = {name: list(dict.fromkeys(at[name] for at in coordinates)) for name in coordinates[0]}
    labels["rank"].sort(key=lambda label: natural_key(str(label)))
    for name, along in labels.items():
        if over_units or name == "entry":
            family.axes[name] = along
        else:
            family.scalars[name] = along[0]
    positions = {name: {label: at for at, label in enumerate(along)} for name, along in family.axes.items()}
    for member, at in zip(found, coordinates, strict=True):
        family.members[tuple(where[at[name]] for name, where in positions.items())] = member


def _check_units(family: Family, found: Sequence[Member]) -> None:
    branches = {member.unit.branch for member in found}
    if len(branches) > 1:
        raise FormatError(f"{family.title}: is in the branches {', '.join(sorted(branches))}: say branch=")
    if len({member.unit.step is None for member in found}) > 1:
        raise FormatError(f"{family.title}: some units have steps, some have none: say steps=")


def _coordinates(family: Family, found: Sequence[Member]) -> list[dict[str, Any]]:
    """Step, rank and entry of each tensor, as far as they tell something."""
    numbers = all(member.unit.rank_number is not None for member in found)
    over_entries = any(member.entry != family.entry for member in found)
    return [
        ({} if member.unit.step is None else {"step": member.unit.step})
        | {"rank": member.unit.rank_number if numbers else member.unit.rank}
        | ({"entry": member.entry} if over_entries else {})
        for member in found
    ]


def _say_left_out(family: Family) -> None:
    """Units and entries of which nothing is on the grid."""
    steps, entries = family.axes.get("step"), family.axes.get("entry")
    ranks = family.axes.get("rank", list(family.scalars.values()))
    left_out = [
        reason if str(unit) in reason else f"{unit}: {reason}"
        for (unit, entry), reason in family.reasons.items()
        if (steps is not None and unit.step not in steps)
        or not _rank_names(unit) & set(ranks)
        or (entries is not None and entry not in (*entries, family.entry))
    ]
    if left_out:
        warnings.warn(f"{family.title}: left out: {listed(left_out)}", stacklevel=4)


def _is_at(unit: UnitKey, labels: Mapping[str, Any]) -> bool:
    """Whether a unit has the step and rank, as far as they are axes."""
    return labels.get("step", unit.step) == unit.step and labels.get("rank", unit.rank) in _rank_names(unit)


def _rank_names(key: UnitKey) -> set[int | str | None]:
    """What a rank may be called; None, as in ``dump[0, None]``, where it has no number."""
    return {key.rank, key.rank_number}
