"""Pages about two dumps: the page model filled by a comparison."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from numpy.typing import NDArray

from msformat.columns import number_of
from msformat.compare.model import (
    BAD,
    VERDICTS,
    DiffResult,
    Divergence,
    EntryResult,
    Role,
    TensorResult,
    TensorSide,
    UnitResult,
)
from msformat.documents import ConstructDocument
from msformat.errors import MsformatError
from msformat.model import STATISTICS
from msformat.pages.dumps import find_tensor, gradient_norm
from msformat.pages.histogram import histogram
from msformat.pages.packing import number, shown_frames
from msformat.pages.unitpage import Column, UnitPage, gradients_last
from msformat.plaintext import shortened
from msformat.reader import Dump
from msformat.units import UnitKey

__all__ = ["ComparisonPages"]

_HELD = 2
_METRICS = ("cosine", "max_abs", "max_rel", "within_01", "within_05")
_MEANING: dict[Role, str] = {
    "output": "what went in was as it should be, so the fault lies in this call",
    "input": "it comes in like this, and nothing recorded before it differs",
    "parameter": "the parameters differ",
    "gradient": "a gradient that differs",
    "value": "",
}


class ComparisonPages:
    """Two compared dumps as pages show them.

    Parameters
    ----------
    result
        What the comparison found.
    a, b
        The dumps, for call stacks and histograms.
    """

    def __init__(self, result: DiffResult, a: Dump, b: Dump) -> None:
        self._result = result
        self._dumps = (a, b)
        self._held = lru_cache(maxsize=_HELD)(self._arranged)

    @property
    def labels(self) -> Sequence[str]:
        """Pairs of units, in order of step and rank."""
        return [unit.label for unit in self._result.units]

    def about(self) -> dict[str, Any]:
        """What the page says at its top."""
        return {
            "kind": "comparison",
            "sides": [shortened(self._result.a, 300), shortened(self._result.b, 300)],
            "notes": [shortened(text, 1000) for text in (*self._result.problems, *self._result.notes)],
            "ignoreMissing": self._result.ignore_missing,
        }

    def overview(self, at: int) -> dict[str, Any]:
        """A pair of units in a line, and where they part first."""
        found = self._result.units[at]
        key = found.a or found.b
        assert key is not None
        line: dict[str, Any] = {"step": key.step, "rank": key.rank, "branch": key.branch}
        if not found.entries:
            alone = f"only in {'B' if found.a is None else 'A'}" if found.a is None or found.b is None else "no entries"
            return {**line, "problem": shortened("; ".join(found.problems) or alone, 1000)}
        counts = found.counts
        unit = self.unit(at)
        return {
            **line,
            "entries": len(found.entries),
            "tensors": sum(counts.values()),
            "verdicts": {verdict: counts[verdict] for verdict in VERDICTS},
            "differing": sum(counts[verdict] for verdict in self._result.bad),
            "worst": number(_worst(found)),
            "gradientNorm": _gradient_norm(unit, ""),
            "gradientNormB": _gradient_norm(unit, "b_"),
            "first": self._described(found.divergence),
            "firstBits": self._described(found.first_bits),
            "notes": [shortened(text, 1000) for text in found.problems],
        }

    def unit(self, at: int) -> UnitPage:
        """A pair of units whole."""
        return self._held(at)

    def histograms(self, at: int, row: int) -> list[dict[str, Any]]:
        """Histograms of a tensor in A and in B, where its values were saved."""
        unit = self._result.units[at]
        entry, result = _tensors_of(self.unit(at), unit)[row]
        sides = zip(self._dumps, (unit.a, unit.b), (entry.a, entry.b), (result.a, result.b), strict=True)
        return [_histogram(*side) for side in sides]

    def series(self, at: int, row: int) -> list[dict[str, Any]]:
        """Statistics and errors of a tensor in every pair of units that has it."""
        entry, result = _tensors_of(self.unit(at), self._result.units[at])[row]
        return [point for unit in self._result.units for point in _points(unit, entry.key, result.name)]

    def _arranged(self, at: int) -> UnitPage:
        found = self._result.units[at]
        entries, depths = _tree_of(found.entries)
        owners = np.repeat(np.arange(len(entries)), [len(entry.tensors) for entry in entries]).astype(np.int64)
        tensors = [tensor for entry in entries for tensor in entry.tensors]
        places = {id(entry): place for place, entry in enumerate(found.entries)}
        verdicts = np.array([VERDICTS.index(tensor.verdict) for tensor in tensors], dtype=np.uint8)
        by_key = {entry.key: entry for entry in entries}
        return UnitPage(
            label=found.label,
            facts=_facts(self._result, found),
            notes=[*found.problems, *found.notes],
            keys=[entry.key for entry in entries],
            depths=depths,
            owners=owners,
            node_columns={
                "order": np.array([places[id(entry)] for entry in entries], dtype=np.int64),
                "other": [entry.b or "" for entry in entries],
                "verdict": np.array([VERDICTS.index(entry.verdict) for entry in entries], dtype=np.uint8),
            },
            columns={"verdict": verdicts, **_columns(tensors)},
            alarming=np.isin(verdicts, [VERDICTS.index(verdict) for verdict in BAD]),
            stacks=lambda key: self._stacks(found, by_key[key]),
            details={"scalars": list(_scalars(entries))},
        )

    def _stacks(self, unit: UnitResult, entry: EntryResult) -> tuple[tuple[str, ...] | None, ...]:
        sides = zip(self._dumps, (unit.a, unit.b), (entry.a, entry.b), strict=True)
        return tuple(_stack(dump, where, key) for dump, where, key in sides)

    def _described(self, found: Divergence | None) -> dict[str, Any] | None:
        if found is None:
            return None
        side = (found.tensor.a or found.tensor.b) if found.tensor is not None else None
        return {
            "key": shortened(found.entry.key, 300),
            "slot": shortened(side.slot, 300) if side else "",
            "path": shortened(side.path, 300) if side else "",
            "module": shortened(found.module, 300),
            "scalar": shortened(_below(found.scalar.name, found.entry.key), 300) if found.scalar is not None else "",
            "reasons": [shortened(text, 500) for text in _reasons(found)],
            "meaning": _MEANING[found.role] if found.tensor is not None else "",
            "stack": shown_frames(found.stack_a),
            "stackB": shown_frames(found.stack_b) if found.stack_b != found.stack_a else [],
            "parents": [shortened(key, 300) for key in found.parents],
            "before": [
                {
                    "key": shortened(entry.key, 300),
                    "verdict": VERDICTS.index(entry.verdict),
                    "severity": number(entry.severity),
                }
                for entry in found.before
            ],
        }


def _reasons(found: Divergence) -> Sequence[str]:
    if found.tensor is None and found.scalar is not None:
        return [f"{found.scalar.a} in A, {found.scalar.b} in B"]
    return found.reasons


# --- a pair of units -------------------------------------------------------------------------------------------------


def _tree_of(entries: Sequence[EntryResult]) -> tuple[list[EntryResult], NDArray[np.int64]]:
    """Entries in the order of the call tree, and their depths. Entries of B alone stand below what A calls it."""
    by_key = {entry.key: entry for entry in entries}
    in_a = {entry.b: entry.key for entry in entries if entry.b is not None}
    parents = {entry.key: _parent(entry, in_a) for entry in entries}
    keys, depths = gradients_last(ConstructDocument(parents, "").tree())
    return [by_key[key] for key in keys], depths


def _parent(entry: EntryResult, in_a: dict[str, str]) -> str | None:
    if entry.a is not None or entry.parent is None:
        return entry.parent
    return in_a.get(entry.parent, entry.parent)


def _columns(tensors: Sequence[TensorResult]) -> dict[str, Column]:
    """What a page shows of each tensor, but for its verdict."""
    places = [tensor.a or tensor.b for tensor in tensors]
    sides = {"": [tensor.a for tensor in tensors], "b_": [tensor.b for tensor in tensors]}
    columns: dict[str, Column] = {
        "slot": [side.slot if side else "" for side in places],
        "path": [side.path if side else "" for side in places],
        "saved": np.array([side is not None and side.data_name is not None for side in places], dtype=np.uint8),
        "severity": np.array([tensor.severity for tensor in tensors], dtype=np.float64),
        "reason": ["; ".join(tensor.reasons) for tensor in tensors],
    }
    for name in _METRICS:
        found = [None if tensor.metrics is None else getattr(tensor.metrics, name) for tensor in tensors]
        columns[name] = np.array([np.nan if value is None else value for value in found], dtype=np.float64)
    for prefix, side in sides.items():
        columns.update(_side_columns(prefix, side))
    return columns


def _side_columns(prefix: str, sides: Sequence[TensorSide | None]) -> dict[str, Column]:
    found = [_statistics(side) for side in sides]
    statistics = np.array(found, dtype=np.float64).reshape(len(sides), len(STATISTICS))
    return {
        f"{prefix}dtype": [side.dtype or "?" if side else "" for side in sides],
        f"{prefix}shape": [str(list(side.shape)) if side else "" for side in sides],
        f"{prefix}absent": np.array([_lacking(values) for values in found], dtype=np.uint8),
        **{f"{prefix}{name}": statistics[:, at] for at, name in enumerate(STATISTICS.values())},
    }


def _statistics(side: TensorSide | None) -> tuple[float | None, ...]:
    """Max, Min, Mean and Norm; None for what is null or missing."""
    stats = side.stats if side is not None else None
    if stats is None:
        return (None,) * len(STATISTICS)
    return number_of(stats.max), number_of(stats.min), number_of(stats.mean), number_of(stats.norm)


def _lacking(values: Sequence[float | None]) -> int:
    """A bit for each statistic that is null or missing, as :mod:`msformat.pages.dumps` has them."""
    return sum(1 << at for at, value in enumerate(values) if value is None)


def _below(name: str, key: str) -> str:
    """``input.4`` of ``Functional.layer_norm.3.forward.input.4``."""
    return name.removeprefix(f"{key}.")


def _scalars(entries: Sequence[EntryResult]) -> Iterator[list[str]]:
    for entry in entries:
        for scalar in entry.scalars:
            texts = (entry.key, _below(scalar.name, entry.key), scalar.a, scalar.b, scalar.verdict)
            yield [shortened(text, 300) for text in texts]


def _facts(result: DiffResult, unit: UnitResult) -> dict[str, str]:
    first, second = result.frameworks
    named = {"A": f"{first} {unit.a or ''}".strip(), "B": f"{second} {unit.b or ''}".strip()}
    return {name: text for name, text in named.items() if text}


def _worst(unit: UnitResult) -> float | None:
    """The largest finite error of what differs; infinite where there is none."""
    found = [tensor.severity for tensor in unit.tensors if tensor.verdict == "different"]
    finite = [severity for severity in found if np.isfinite(severity)]
    return max(finite) if finite else (float("inf") if found else 0.0)


def _gradient_norm(unit: UnitPage, side: str) -> float | str | None:
    norms = unit.columns[f"{side}norm"]
    assert isinstance(norms, np.ndarray)
    return number(gradient_norm(unit.columns["slot"], norms))


# --- one tensor ------------------------------------------------------------------------------------------------------


def _tensors_of(page: UnitPage, unit: UnitResult) -> list[tuple[EntryResult, TensorResult]]:
    """Entry and tensor of each row of a page."""
    by_key = {entry.key: entry for entry in unit.entries}
    return [(by_key[key], tensor) for key in page.keys for tensor in by_key[key].tensors]


def _points(unit: UnitResult, key: str, name: str) -> Iterator[dict[str, Any]]:
    where = unit.a or unit.b
    assert where is not None
    for entry in unit.entries:
        for tensor in entry.tensors if entry.key == key else ():
            if tensor.name == name:
                sides = (("", tensor.a), ("b_", tensor.b))
                values = {
                    f"{prefix}{statistic}": number(value)
                    for prefix, side in sides
                    for statistic, value in zip(STATISTICS.values(), _statistics(side), strict=True)
                }
                yield {"step": where.step, "rank": where.rank, "severity": number(tensor.severity), **values}


def _stack(dump: Dump, where: UnitKey | None, key: str | None) -> tuple[str, ...] | None:
    if where is None or key is None:
        return None
    try:
        return dump.unit(where).stack(key)
    except (MsformatError, OSError):
        return None


def _histogram(dump: Dump, where: UnitKey | None, key: str | None, side: TensorSide | None) -> dict[str, Any]:
    if where is None or key is None or side is None:
        return {"problem": "not there"}
    tensor = find_tensor(dump.unit(where), key, side.slot, side.path)
    return histogram(tensor) if tensor is not None else {"problem": "not found again"}
