"""Reading a dump: :func:`open_dump` finds its units, a :class:`Unit` gives entries, an entry gives tensors.

Everything is lazy: opening lists directories, a unit indexes its documents when it is first touched, an entry is
decoded when it is asked for, a tensor is read when its values are. A unit that cannot be read raises when *it* is
touched; the others never notice.
"""

from __future__ import annotations

import os
import warnings
import weakref
from collections.abc import Callable, Iterable, Iterator, Sequence
from numbers import Real
from types import TracebackType
from typing import TYPE_CHECKING, Any, TypeAlias

from msformat.arguments import path_text, require_instance
from msformat.entries import Entry, Tensor
from msformat.errors import MsformatError, UnitNotFoundError
from msformat.families import choose_units, find_family
from msformat.foreign.views import with_layout
from msformat.htmlview import dump_html
from msformat.layout import UnitKey, UnitLocation, find_units, parse_unit_path
from msformat.table import Table
from msformat.unit import Unit
from msformat.xarrays import family_array

if TYPE_CHECKING:
    from xarray import DataArray

__all__ = ["Dump", "Entry", "Tensor", "Unit", "open_dump"]

Rank: TypeAlias = "int | str | None"


def open_dump(path: str | os.PathLike[str], *, layout: str = "framework") -> Dump:
    """Open a dump for reading: also as ``msformat.open``.

    Parameters
    ----------
    path
        A dump tree, one unit of it, a ``.h5`` file, a ``.zarr`` directory, a tree of kernel dumps or a file of one, or
        a URL of one of these. A tree may mix stores.
    layout
        Of kernel dumps: ``framework`` gives tensors the axes that the framework had, ``device`` leaves them as they lay
        on the device (NC1HWC0, FRACTAL_NZ, …).

    Raises
    ------
    StoreError
        Nothing is there.
    FormatError
        What is there is no dump; says what was looked for. Or an unknown layout.

    Examples
    --------
    >>> import msformat
    >>> dump = msformat.open("my_dump")
    >>> dump.units
    (UnitKey(step=0, rank='rank', branch=''), UnitKey(step=1, rank='rank', branch=''))
    >>> dump[0, None]["Functional.gelu.0.forward"].outputs[0].numpy().shape
    (2, 5, 8)
    """
    locations, problems = find_units(path)
    return Dump(path_text(path), with_layout(locations, layout), problems)


class Dump:
    """The units of a dump, in order of step, rank and branch.

    ``dump[step, rank]`` is a :class:`Unit`; ``rank`` is a number, a label (``"rank"``, ``"proc4711"``), or None for the
    one process of a run without ranks. ``dump[step]`` does where a step has one unit. A third index names the branch
    (``"graph"``, ``"pynative"``) where MindSpore wrote two. Iterating gives the units themselves. A unit is indexed
    once and kept as long as somebody holds it.

    Attributes
    ----------
    path
        As given to :func:`open_dump`.

    Examples
    --------
    >>> import msformat
    >>> for unit in msformat.open("my_dump"):
    ...     print(unit.key.step, unit.key.rank, len(unit), unit.complete)
    0 rank 123 True
    1 rank 38 True
    """

    def __init__(self, path: str, locations: Iterable[UnitLocation], problems: Iterable[str] = ()) -> None:
        self.path = path
        self._locations = {location.key: location for location in sorted(locations, key=lambda found: found.key)}
        self._problems = tuple(problems)
        self._open: weakref.WeakValueDictionary[UnitKey, Unit] = weakref.WeakValueDictionary()

    @property
    def units(self) -> tuple[UnitKey, ...]:
        """Which units there are; numbers sort as numbers."""
        return tuple(self._locations)

    @property
    def steps(self) -> tuple[int, ...]:
        """Every step once, in order."""
        return tuple(dict.fromkeys(key.step for key in self._locations if key.step is not None))

    @property
    def ranks(self) -> tuple[str, ...]:
        """Every rank's label once, in order."""
        by_rank = sorted({UnitKey(None, key.rank) for key in self._locations})
        return tuple(key.rank for key in by_rank)

    @property
    def problems(self) -> tuple[str, ...]:
        """What is wrong, in sentences: with the tree, and with each unit. Indexes every unit, reads no tensor."""
        found = [*self._problems]
        for unit in self:
            try:
                found.extend(f"{unit.key}: {problem}" for problem in unit.problems)
            except (MsformatError, OSError) as error:
                found.append(f"{unit.key}: {error}")
        return tuple(found)

    @property
    def tree_problems(self) -> tuple[str, ...]:
        """What is wrong with the tree around the units, in sentences; looks into none of them."""
        return self._problems

    def unit(self, key: UnitKey | str) -> Unit:
        """The unit of a key, or of a path in the dump (``step0/rank3``). It is opened when it is touched.

        Raises
        ------
        UnitNotFoundError
            No such unit; says which there are.
        """
        found = parse_unit_path(key) if isinstance(key, str) else key
        if not isinstance(found, UnitKey) or found not in self._locations:
            raise UnitNotFoundError(str(key), self.path, reason=self._available())
        held = self._open.get(found)  # not "or": asking an empty unit whether it is true would index it
        return held if held is not None else self._open.setdefault(found, Unit(self._locations[found]))

    def __getitem__(self, index: UnitKey | int | str | tuple[Any, ...] | None) -> Unit:
        """The unit of ``[step, rank]``, ``[step]``, ``[step, rank, branch]``, a key or a path.

        Raises
        ------
        UnitNotFoundError
            None matches, or several do; says which there are.
        """
        if isinstance(index, (UnitKey, str)):
            return self.unit(index)
        found = self._indexed(index)
        if found is None:
            raise UnitNotFoundError(
                str(index), self.path, reason="index a dump as [step, rank] or [step, rank, branch]"
            )
        if len(found) == 1:
            return self.unit(found[0])
        reason = f"matches {len(found)}: {_listed(map(_index_of, found))}" if found else self._available()
        raise UnitNotFoundError(str(index), self.path, reason=reason)

    def __len__(self) -> int:
        return len(self._locations)

    def __iter__(self) -> Iterator[Unit]:
        return (self.unit(key) for key in self._locations)

    def __contains__(self, key: object) -> bool:
        """Whether there is such a unit: by its key, its path, or as it is indexed (several match ``[step]``, too)."""
        if isinstance(key, Unit):
            return self._locations.get(key.key) == key.location
        if isinstance(key, str):
            return parse_unit_path(key) in self._locations
        return key in self._locations if isinstance(key, UnitKey) else bool(self._indexed(key))

    def _indexed(self, index: object) -> list[UnitKey] | None:
        """Keys that an index means; None for what is no index."""
        parts = index if isinstance(index, tuple) else (index,)
        plain = all(part is None or isinstance(part, (str, Real)) for part in parts)
        if not (1 <= len(parts) <= 3 and plain):
            return None
        return [key for key in self._locations if key.step == parts[0] and _matches(key, parts[1:])]

    def table(self, *, filter: str | None = None) -> Table:  # noqa: A002 (what it is called everywhere)
        """Statistics and shapes of every tensor of every unit; a unit that cannot be read is left out with a warning.

        Parameters
        ----------
        filter
            Only entries whose key contains this, or matches it as a glob (``Module.*.forward.*``).
        """
        if filter is not None:
            require_instance("filter", filter, str)
        return Table.concat(list(self._tables(filter)))

    def _tables(self, filter: str | None) -> Iterator[Table]:  # noqa: A002
        for unit in self:
            try:
                yield unit.table(filter=filter)
            except (MsformatError, OSError) as error:
                warnings.warn(f"{unit.key}: left out: {error}", stacklevel=4)

    def to_xarray(  # noqa: PLR0913 (all but two by name only)
        self,
        entry: str,
        tensor: str | None = None,
        *,
        steps: Iterable[int] | None = None,
        ranks: Iterable[Rank] | None = None,
        branch: str | None = None,
        dims: Sequence[str] | None = None,
        widen: bool = False,
        lazy: bool | None = None,
        fill_value: float | None = None,
    ) -> DataArray:
        """The same tensor over steps and ranks, as one ``xarray.DataArray``.

        Its axes are ``step`` (where the dump has steps), ``rank``, ``entry`` (where a glob was given) and those of the
        tensor. Units that do not have it are left out with a warning, if nothing else of their step or rank is there.

        Parameters
        ----------
        entry
            Key of an entry, or a glob (``Module.layers.*.forward.0``).
        tensor
            Which of its tensors, as slot and path of :meth:`table` spell it: ``output.0``, ``input_args.1``,
            ``parameters.weight``. Default: the only output, or the only tensor; with a glob ``output.0``.
        steps, ranks, branch
            Only these.
        dims, widen, lazy, fill_value
            As :meth:`Unit.to_xarray` takes them.

        Raises
        ------
        UnitNotFoundError
            There is no such step, rank or branch. And what :meth:`Unit.to_xarray` raises.

        Examples
        --------
        >>> import msformat
        >>> gelu = msformat.open("my_dump").to_xarray("Functional.gelu.0.forward", steps=[0])
        >>> dict(gelu.sizes)
        {'step': 1, 'rank': 1, 'dim_0': 2, 'dim_1': 5, 'dim_2': 8}
        """
        units = choose_units(self, self.path, steps=steps, ranks=ranks, branch=branch)
        family = find_family(self.path, units, entry, tensor, over_units=True)
        return family_array(family, dims=dims, widen=widen, lazy=lazy, fill_value=fill_value)

    def close(self) -> None:
        """Let go of the open files of every unit. Views stay usable."""
        for unit in list(self._open.values()):
            unit.close()

    def __enter__(self) -> Dump:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def _available(self) -> str:
        return f"there are {_listed(map(_index_of, self._locations))}"

    def __reduce__(self) -> tuple[Callable[..., Dump], tuple[Any, ...]]:
        return Dump, (self.path, tuple(self._locations.values()), self._problems)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return dump_html(self)

    def __repr__(self) -> str:
        return f"<Dump {self.path!r}: {len(self)} units, {len(self.steps)} steps, {len(self.ranks)} ranks>"


def _matches(key: UnitKey, rest: Sequence[Rank]) -> bool:
    """Whether rank and branch, as far as they are given, are those of a key."""
    if rest and rest[0] != (key.rank if isinstance(rest[0], str) else key.rank_number):
        return False
    return len(rest) < 2 or rest[1] == key.branch


def _index_of(key: UnitKey) -> str:
    """What to write between the brackets to get this unit."""
    rank = key.rank if key.rank_number is None else key.rank_number
    branch = f", {key.branch!r}" if key.branch else ""
    return f"[{key.step}, {rank!r}{branch}]"


def _listed(texts: Iterable[str], most: int = 12) -> str:
    found = list(texts)
    more = f" and {len(found) - most} more" if len(found) > most else ""
    return ", ".join(found[:most]) + more
