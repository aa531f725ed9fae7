"""Many units in few rows: what nobody reads of thousands, told by step and intervals of ranks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from msformat.units import UnitKey

if TYPE_CHECKING:
    from typing import TypeAlias

    Row: TypeAlias = Mapping[str, Any]

__all__ = ["fold_rows", "interval_text"]

# More pieces than that of one step are counted, not listed.
_MOST_PIECES = 6


def fold_rows(
    keys: Sequence[UnitKey], rows: Sequence[Row], alike: Sequence[str], total: Callable[[list[int]], Row]
) -> list[dict[str, Any]]:
    """A row for each step and each way its units are.

    Parameters
    ----------
    keys, rows
        Of each unit.
    alike
        What units of one row have in common, so that the one that is different stands in a row of its own.
    total
        Sums of the rows of these numbers.

    Returns
    -------
    list
        ``unit`` is ``step0/rank0-1023``; ``each`` are the entries of one unit, ``12`` or ``10-12``.
    """
    groups: dict[tuple[Any, ...], list[int]] = {}
    for number, (key, row) in enumerate(zip(keys, rows, strict=True)):
        groups.setdefault((key.branch, key.step, *(row.get(name) for name in alike)), []).append(number)
    return [_folded(keys, rows, numbers, alike, total) for numbers in groups.values()]


def _folded(
    keys: Sequence[UnitKey],
    rows: Sequence[Row],
    numbers: list[int],
    alike: Sequence[str],
    total: Callable[[list[int]], Row],
) -> dict[str, Any]:
    first = keys[numbers[0]]
    above = first.path.removesuffix(first.rank)
    entries = [rows[number]["entries"] or 0 for number in numbers]
    least, most = min(entries), max(entries)
    return {
        **{name: rows[numbers[0]].get(name) for name in alike},
        **total(numbers),
        "unit": above + interval_text(keys[number] for number in numbers),
        "each": f"{least}" if least == most else f"{least}-{most}",
    }


def interval_text(keys: Iterable[UnitKey]) -> str:
    """``rank0-511,513,rank,proc4711``; of many pieces the first ones, and how many more there are."""
    numbers: list[int] = []
    others: list[str] = []
    for key in keys:
        if key.rank_number is None:
            others.append(key.rank)
        else:
            numbers.append(key.rank_number)
    pieces = _intervals(sorted(numbers))
    if pieces:
        pieces[0] = f"rank{pieces[0]}"
    pieces += others
    more = f",… ({len(pieces) - _MOST_PIECES} more)" if len(pieces) > _MOST_PIECES else ""
    return ",".join(pieces[:_MOST_PIECES]) + more


def _intervals(numbers: list[int]) -> list[str]:
    runs: list[list[int]] = []
    for number in numbers:
        if runs and number == runs[-1][1] + 1:
            runs[-1][1] = number
        else:
            runs.append([number, number])
    return [f"{first}" if first == last else f"{first}-{last}" for first, last in runs]
