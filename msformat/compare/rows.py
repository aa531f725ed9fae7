"""A row a tensor, with the columns that ``msprobe compare`` gives its results, and ours behind them.

Names of columns: msprobe 8.1.0, ``core/common/const.py`` (CompareConst). ``NPU`` is A and ``Bench`` is B.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Literal, TypeAlias

from msformat.columns import number_of
from msformat.compare.model import DiffResult, EntryResult, TensorResult, TensorSide, UnitResult
from msformat.compare.thresholds import peer_verdict
from msformat.model import Stats

__all__ = ["COLUMNS", "NUMBERS", "Kind", "columns_of", "kind_of", "rows_of"]

# What a result rests on decides which columns msprobe has.
Kind: TypeAlias = Literal["values", "statistics", "digest"]
Cell: TypeAlias = "str | int | float | bool | None"
_Where: TypeAlias = "tuple[UnitResult, EntryResult, TensorResult]"

_BOTH = ("NPU Name", "Bench Name", "NPU Dtype", "Bench Dtype", "NPU Tensor Shape", "Bench Tensor Shape")
_STATISTICS = (
    "NPU max", "NPU min", "NPU mean", "NPU l2norm", "Bench max", "Bench min", "Bench mean", "Bench l2norm",
)  # fmt: skip
_SHOWN = {"max": "max", "min": "min", "mean": "mean", "l2norm": "norm"}
COLUMNS: dict[Kind, tuple[str, ...]] = {
    "values": (
        *_BOTH, "Cosine", "EucDist", "MaxAbsErr", "MaxRelativeErr", "One Thousandth Err Ratio",
        "Five Thousandths Err Ratio", *_STATISTICS, "Accuracy Reached or Not", "Err_message",
    ),
    "statistics": (
        *_BOTH, "Max diff", "Min diff", "Mean diff", "L2norm diff", "MaxRelativeErr", "MinRelativeErr",
        "MeanRelativeErr", "NormRelativeErr", *_STATISTICS, "Result", "Err_message",
    ),
    "digest": (*_BOTH, "NPU MD5", "BENCH MD5", "Result"),
}  # fmt: skip
_OURS = (
    "Unit", "Module", "Match", "Verdict", "Basis", "Reasons", "Severity", "RelL2Err", "RMSE", "MeanAbsErr",
    "MeanRelErr", "Compared", "Elements", "NPU NaN", "NPU Inf", "Bench NaN", "Bench Inf", "NPU_Stack_Info", "Data_name",
)  # fmt: skip
#: Columns of numbers; the others are text.
NUMBERS = frozenset(
    ("Cosine", "EucDist", "MaxAbsErr", "MaxRelativeErr", "MinRelativeErr", "MeanRelativeErr", "NormRelativeErr",
     "One Thousandth Err Ratio", "Five Thousandths Err Ratio", "Max diff", "Min diff", "Mean diff", "L2norm diff",
     *_STATISTICS, "Severity", "RelL2Err", "RMSE", "MeanAbsErr", "MeanRelErr", "Compared", "Elements", "NPU NaN",
     "NPU Inf", "Bench NaN", "Bench Inf")
)  # fmt: skip


def kind_of(result: DiffResult) -> Kind:
    """Which columns a result has: those for values where any were compared."""
    bases = {tensor.basis for unit in result.units for tensor in unit.tensors}
    if bases & {"values", "bits"}:
        return "values"
    return "digest" if bases and bases <= {"digest", "description"} and "digest" in bases else "statistics"


def columns_of(kind: Kind) -> tuple[str, ...]:
    """Names of all columns in order."""
    return (*COLUMNS[kind], *_OURS)


def rows_of(result: DiffResult, kind: Kind | None = None) -> Iterator[dict[str, Cell]]:
    """A row a tensor, in the order of the result; entries without a tensor have none."""
    wanted = columns_of(kind or kind_of(result))
    for unit in result.units:
        for entry in unit.entries:
            for tensor in entry.tensors:
                where = unit, entry, tensor
                yield {name: _CELLS[name](where) for name in wanted}


# --- cells ----------------------------------------------------------------------------------------------------------


def _side(at: int, get: Callable[[TensorSide], Cell]) -> Callable[[_Where], Cell]:
    def cell(where: _Where) -> Cell:
        side = (where[2].a, where[2].b)[at]
        return get(side) if side is not None else None

    return cell


def _statistic(at: int, name: str) -> Callable[[_Where], Cell]:
    def get(side: TensorSide) -> Cell:
        value = getattr(side.stats or Stats(), name)
        is_large = isinstance(value, int) and not isinstance(value, bool) and abs(value) > _LARGE
        return number_of(value) if is_large else value

    return _side(at, get)


# Neither Excel nor Parquet's columns hold longer integers.
_LARGE = 1 << 53


def _metric(name: str) -> Callable[[_Where], Cell]:
    return lambda where: getattr(where[2].metrics, name) if where[2].metrics is not None else None


def _change(name: str, part: str) -> Callable[[_Where], Cell]:
    def cell(where: _Where) -> Cell:
        change = where[2].changes.get(name)
        value: float | None = getattr(change, part) if change is not None else None
        return value

    return cell


def _relative(name: str) -> Callable[[_Where], Cell]:
    """Of values where they were compared, else of statistics."""

    def cell(where: _Where) -> Cell:
        metrics = where[2].metrics
        return metrics.max_rel if name == "max" and metrics is not None else _change(name, "relative")(where)

    return cell


def _special(at: int, names: tuple[str, ...]) -> Callable[[_Where], Cell]:
    def cell(where: _Where) -> Cell:
        found = (where[2].special_a, where[2].special_b)[at]
        return sum(getattr(found, name) for name in names) if found is not None else None

    return cell


def _accuracy(where: _Where) -> Cell:
    tensor = where[2]
    if tensor.a is None or tensor.b is None:
        return "No"
    if tensor.metrics is not None:
        return "No" if tensor.special_mismatch else peer_verdict(tensor.metrics)
    if tensor.verdict == "different" and tensor.a.shape != tensor.b.shape:
        return "Unmatched"
    return {"same": "Yes", "close": "Yes", "different": "No"}.get(tensor.verdict, "None")


def _result(where: _Where) -> Cell:
    """What msprobe writes for statistics (nothing or a warning) and digests."""
    tensor = where[2]
    if tensor.a is None or tensor.b is None:
        return None
    if tensor.basis == "digest":
        return "pass" if tensor.verdict == "same" else "Different"
    return "Warning" if tensor.verdict in ("different", "unreadable") else ""


def _message(where: _Where) -> Cell:
    tensor = where[2]
    return "No bench data matched." if tensor.b is None else "; ".join(tensor.reasons)


def _stack(where: _Where) -> Cell:
    unit, entry, tensor = where
    divergence = unit.divergence
    is_first = divergence is not None and divergence.entry.key == entry.key and divergence.tensor is tensor
    return "\n".join(divergence.stack_a or divergence.stack_b) if divergence is not None and is_first else None


def _data_name(where: _Where) -> Cell:
    sides = (where[2].a, where[2].b)
    return ", ".join(side.data_name or "-1" if side is not None else "N/A" for side in sides)


def _severity(where: _Where) -> Cell:
    found = where[2].severity
    return found if math.isfinite(found) else math.inf


_CELLS: dict[str, Callable[[_Where], Cell]] = {
    "NPU Name": _side(0, lambda side: side.name),
    "Bench Name": _side(1, lambda side: side.name),
    "NPU Dtype": _side(0, lambda side: side.dtype),
    "Bench Dtype": _side(1, lambda side: side.dtype),
    "NPU Tensor Shape": _side(0, lambda side: str(list(side.shape))),
    "Bench Tensor Shape": _side(1, lambda side: str(list(side.shape))),
    "NPU MD5": _side(0, lambda side: side.digest),
    "BENCH MD5": _side(1, lambda side: side.digest),
    "Cosine": _metric("cosine"),
    "EucDist": _metric("euclidean"),
    "MaxAbsErr": _metric("max_abs"),
    "MaxRelativeErr": _relative("max"),
    "MinRelativeErr": _relative("min"),
    "MeanRelativeErr": _relative("mean"),
    "NormRelativeErr": _relative("norm"),
    "One Thousandth Err Ratio": _metric("within_01"),
    "Five Thousandths Err Ratio": _metric("within_05"),
    "Max diff": _change("max", "absolute"),
    "Min diff": _change("min", "absolute"),
    "Mean diff": _change("mean", "absolute"),
    "L2norm diff": _change("norm", "absolute"),
    "Accuracy Reached or Not": _accuracy,
    "Result": _result,
    "Err_message": _message,
    "Unit": lambda where: where[0].label,
    "Module": lambda where: where[1].module,
    "Match": lambda where: where[1].match,
    "Verdict": lambda where: where[2].verdict,
    "Basis": lambda where: where[2].basis,
    "Reasons": lambda where: "; ".join(where[2].reasons),
    "Severity": _severity,
    "RelL2Err": _metric("rel_l2"),
    "RMSE": _metric("rmse"),
    "MeanAbsErr": _metric("mean_abs"),
    "MeanRelErr": _metric("mean_rel"),
    "Compared": _metric("compared"),
    "Elements": _metric("elements"),
    "NPU NaN": _special(0, ("nan",)),
    "NPU Inf": _special(0, ("posinf", "neginf")),
    "Bench NaN": _special(1, ("nan",)),
    "Bench Inf": _special(1, ("posinf", "neginf")),
    "NPU_Stack_Info": _stack,
    "Data_name": _data_name,
    **{f"NPU {shown}": _statistic(0, name) for shown, name in _SHOWN.items()},
    **{f"Bench {shown}": _statistic(1, name) for shown, name in _SHOWN.items()},
}
