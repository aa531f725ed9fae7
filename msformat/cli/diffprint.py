"""What ``msformat diff`` shows a person: where two dumps part, then which tensors differ, then how many."""

from __future__ import annotations

import argparse
from collections.abc import Iterator, Sequence
from itertools import islice
from typing import TYPE_CHECKING

from msformat.cli.output import seconds_text
from msformat.cli.tables import print_table
from msformat.compare.order import tensors_in_order
from msformat.plaintext import shortened

if TYPE_CHECKING:
    from msformat.compare.model import DiffResult, Divergence, EntryResult, TensorResult, UnitResult

__all__ = ["print_result"]

_SHOWN = ("tensor", "dtype", "shape", "verdict", "error", "max abs", "cosine", "in 0.1 %", "why")
_RIGHT = ("error", "max abs", "cosine", "in 0.1 %")
_VERDICTS = ("same", "close", "unknown", "different", "only_a", "only_b", "unreadable")
_MEANINGS = {
    "output": "its inputs are as they should be: look into this call",
    "input": "nothing recorded before it differs: look at where this comes from",
    "parameter": "the weights differ",
    "gradient": "the gradient of a parameter, behind a backward that does not differ",
    "value": "a saved variable",
}
_FRAMES = 6
# Of a line, a name, and why a tensor is not as it should be: a stranger's may be megabytes long.
_LONGEST_LINE, _LONGEST_NAME, _LONGEST_WHY = 600, 300, 500
# Frozen modules are Python's own start of a program (runpy, under a launcher) and of an import.
_LIBRARIES = ("site-packages", "dist-packages", "File <frozen ")


def print_result(result: DiffResult, arguments: argparse.Namespace) -> None:
    """Print a result as the options of the command ask."""
    if arguments.quiet:
        print(_one_line(result))
        return
    for line in _headline(result):
        print(shortened(line, _LONGEST_LINE))
    if arguments.rows:
        _print_tensors(result, arguments)
    print()
    _print_counts(result)


def _one_line(result: DiffResult) -> str:
    found = result.divergence
    if found is not None:
        name, why = shortened(found.name, _LONGEST_NAME), shortened("; ".join(found.reasons), _LONGEST_WHY)
        return f"first divergence: {_unit_of(found)}: {name}: {why}"
    if result.exit_code == 0 and result.only_described:
        return "the same, but only shapes and types were compared"
    return {0: "the same within the thresholds", 1: "compared in part", 2: "nothing to compare"}[result.exit_code]


# --- the headline ----------------------------------------------------------------------------------------------------


def _headline(result: DiffResult) -> Iterator[str]:
    found = result.divergence
    if found is None:
        if result.exit_code == 2:
            yield "Nothing could be compared."
            return
        if result.only_described:
            yield "No divergence, but only shapes and types were compared: there is nothing else on both sides."
        else:
            yield "No divergence: everything compared is within the thresholds."
        bits = result.first_bits
        if bits is not None:
            yield f"The first bits that differ: {_unit_of(bits)}: {bits.name}"
        return
    yield f"First divergence: {_unit_of(found)}, {f'module {found.module}' if found.module else 'outside of modules'}"
    yield from (f"  {line}" for line in _what(found))
    yield from (f"  {line}" for line in _around(found))
    bits = result.first_bits
    if bits is not None and bits.entry.key != found.entry.key:
        yield f"  bits differ, within the thresholds, from {_unit_of(bits)}: {bits.name} on"


def _unit_of(found: Divergence) -> str:
    return str(found.a) if found.a == found.b else f"{found.a} against {found.b}"


def _what(found: Divergence) -> Iterator[str]:
    entry = found.entry
    yield entry.key if entry.b in (None, entry.key) or entry.a is None else f"{entry.a} against {entry.b}"
    if found.scalar is not None:
        yield f"{found.scalar.name}: {found.scalar.a} against {found.scalar.b}"
    if found.tensor is not None:
        side = found.tensor.a or found.tensor.b
        assert side is not None
        yield f"{found.tensor.name} {side.dtype} {list(side.shape)}"
        yield from found.tensor.reasons
    elif found.scalar is None:
        yield from found.reasons
    if found.scalar is None and entry.match != "none":
        yield f"{found.role}: {_MEANINGS[found.role]}"


def _around(found: Divergence) -> Iterator[str]:
    if found.parents:
        yield f"inside: {' < '.join(found.parents[:4])}{' < …' if len(found.parents) > 4 else ''}"
    frames = found.stack_a or found.stack_b
    if frames:
        yield "called from:"
        yield from (f"  {' '.join(frame.split())}" for frame in _own_frames(frames)[:_FRAMES])
    if found.before:
        yield "before it:"
        yield from (f"  {entry.key}  {entry.verdict}" for entry in found.before)


def _own_frames(frames: Sequence[str]) -> Sequence[str]:
    """Frames of the user's code; all, where there are none."""
    return [frame for frame in frames if not any(place in frame for place in _LIBRARIES)] or frames


# --- tensors ---------------------------------------------------------------------------------------------------------


def _print_tensors(result: DiffResult, arguments: argparse.Namespace) -> None:
    wanted = [(unit, entry, tensor) for unit, entry, tensor in _tensors(result) if _is_shown(tensor, result, arguments)]
    if not wanted:
        return
    if arguments.sort == "worst":
        wanted.sort(key=lambda found: found[2].severity, reverse=True)
    units = len(result.units) > 1
    columns = ("unit", *_SHOWN) if units else _SHOWN
    rows = [[*((unit.label,) if units else ()), *_cells(tensor)] for unit, _, tensor in islice(wanted, arguments.rows)]
    of = f"the {'worst' if arguments.sort == 'worst' else 'first'} {len(rows)} of {len(wanted)} tensors"
    what = "tensors" if arguments.all else "that are not as they should be"
    print()
    print_table(columns, rows, title=f"{of} {what}" if not arguments.all else of, right=_RIGHT)


def _tensors(result: DiffResult) -> Iterator[tuple[UnitResult, EntryResult, TensorResult]]:
    return ((unit, entry, tensor) for unit in result.units for entry, tensor in tensors_in_order(unit.entries))


def _is_shown(tensor: TensorResult, result: DiffResult, arguments: argparse.Namespace) -> bool:
    return arguments.all or tensor.verdict in result.bad


def _cells(tensor: TensorResult) -> Sequence[object]:
    side = tensor.a or tensor.b
    assert side is not None
    metrics = tensor.metrics
    error = _number(tensor.severity) if tensor.basis in ("values", "statistics") else None
    numbers = (
        (_number(metrics.max_abs), _number(metrics.cosine, 8), f"{100 * metrics.within_01:.2f} %")
        if metrics is not None
        else (None, None, None)
    )
    return (
        shortened(tensor.name, _LONGEST_NAME), shortened(side.dtype.removeprefix("torch."), _LONGEST_NAME),
        shortened(str(list(side.shape)), _LONGEST_NAME), tensor.verdict.replace("_", " "), error, *numbers,
        shortened("; ".join(tensor.reasons), _LONGEST_WHY),
    )  # fmt: skip


def _number(value: float | None, digits: int = 3) -> str | None:
    return None if value is None else f"{value:.{digits}g}"


def _print_counts(result: DiffResult) -> None:
    columns = ("unit", "entries", "tensors", *_VERDICTS, "time")
    rows = [_counts(unit) for unit in result.units]
    total = ["total", *(sum(int(str(row[at])) for row in rows) for at in range(1, len(columns) - 1)), ""]
    names = [name.replace("_", " ") for name in columns]
    print_table(names, rows, title="tensors by verdict", right=names[1:], total=total)


def _counts(unit: UnitResult) -> list[object]:
    counts = unit.counts
    numbers = [counts[verdict] for verdict in _VERDICTS]  # type: ignore[index]  # the verdicts there are
    return [unit.label, len(unit.entries), sum(counts.values()), *numbers, seconds_text(unit.seconds)]
