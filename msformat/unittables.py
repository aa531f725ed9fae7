"""Tables of many units, each made where an executor runs."""

from __future__ import annotations

import threading
import warnings
from collections.abc import Iterable
from concurrent.futures import Executor
from dataclasses import dataclass

from msformat.errors import MsformatError
from msformat.layout import UnitLocation
from msformat.parallel import run_all
from msformat.table import Table
from msformat.unit import Unit
from msformat.units import UnitKey

__all__ = ["TableOfUnit", "tables_of_units"]

# Warnings are caught for a whole process, and a worker may have several threads.
_ONE_AT_A_TIME = threading.Lock()


@dataclass(frozen=True, slots=True)
class TableOfUnit:
    """What became of a unit.

    Attributes
    ----------
    table
        None if the unit could not be read.
    problem
        Why not.
    warnings
        What was warned about on the way.
    """

    table: Table | None
    problem: str = ""
    warnings: tuple[str, ...] = ()


def tables_of_units(
    locations: Iterable[UnitLocation],
    filter: str | None,  # noqa: A002 (as of Unit.table)
    executor: Executor,
) -> dict[UnitKey, TableOfUnit]:
    """The tables of units, made by an executor's workers.

    Raises
    ------
    StoreError
        The cluster went away.
    """
    units = list(locations)
    found = run_all(
        [(table_of_unit, unit, filter) for unit in units],
        workers=1,
        executor=executor,
        lost=lambda _, error: TableOfUnit(None, str(error)),
    )
    return {unit.key: table for unit, table in zip(units, found, strict=True)}


def table_of_unit(location: UnitLocation, filter: str | None) -> TableOfUnit:  # noqa: A002
    """The table of one unit. Never raises for what is wrong with it."""
    with _ONE_AT_A_TIME, warnings.catch_warnings(record=True) as caught:
        warnings.simplefilter("always", UserWarning)
        try:
            with Unit(location) as unit:
                if not unit.complete:
                    warnings.warn(f"{unit.key}: not complete: {unit.incomplete_reason}", stacklevel=1)
                table = unit.table(filter=filter)
        except (MsformatError, OSError, MemoryError) as error:
            return TableOfUnit(None, str(error) or type(error).__name__)
    said = (str(item.message) for item in caught if issubclass(item.category, UserWarning))
    return TableOfUnit(table, "", tuple(dict.fromkeys(said)))
