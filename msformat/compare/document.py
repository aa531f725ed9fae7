"""A result as JSON values, for programs."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import fields, is_dataclass
from typing import Any

from msformat.compare.model import DiffResult, Divergence, EntryResult, TensorResult, UnitResult

__all__ = ["as_json"]


def as_json(result: DiffResult) -> dict[str, Any]:
    """A whole result; numbers that JSON lacks become ``"NaN"``, ``"Infinity"`` and ``"-Infinity"``."""
    return {
        "exit_code": result.exit_code,
        "a": result.a,
        "b": result.b,
        "frameworks": list(result.frameworks),
        "ignore_missing": result.ignore_missing,
        "counts": dict(result.counts),
        "divergence": _divergence_json(result.divergence),
        "first_bits": _divergence_json(result.first_bits),
        "problems": list(result.problems),
        "notes": list(result.notes),
        "units": [_unit_json(unit) for unit in result.units],
    }


def _unit_json(unit: UnitResult) -> dict[str, Any]:
    return {
        "unit": unit.label,
        "a": str(unit.a) if unit.a is not None else None,
        "b": str(unit.b) if unit.b is not None else None,
        "counts": dict(unit.counts),
        "divergence": _divergence_json(unit.divergence),
        "first_bits": _divergence_json(unit.first_bits),
        "problems": list(unit.problems),
        "notes": list(unit.notes),
        "seconds": unit.seconds,
        "entries": [_entry_json(entry) for entry in unit.entries],
    }


def _divergence_json(found: Divergence | None) -> dict[str, Any] | None:
    """A divergence, with the keys and verdicts of what was before it."""
    if found is None:
        return None
    return {
        "unit_a": str(found.a) if found.a is not None else None,
        "unit_b": str(found.b) if found.b is not None else None,
        "entry_a": found.entry.a,
        "entry_b": found.entry.b,
        "module": found.module,
        "role": found.role,
        "tensor": _tensor_json(found.tensor) if found.tensor is not None else None,
        "scalar": _plain(found.scalar),
        "reasons": list(found.reasons),
        "stack_a": list(found.stack_a),
        "stack_b": list(found.stack_b),
        "parents": list(found.parents),
        "before": [{"a": entry.a, "b": entry.b, "verdict": entry.verdict} for entry in found.before],
    }


def _entry_json(entry: EntryResult) -> dict[str, Any]:
    return {
        "a": entry.a,
        "b": entry.b,
        "match": entry.match,
        "verdict": entry.verdict,
        "parent": entry.parent,
        "module": entry.module,
        "tensors": [_tensor_json(tensor) for tensor in entry.tensors],
        "scalars": [_plain(scalar) for scalar in entry.scalars],
    }


def _tensor_json(tensor: TensorResult) -> dict[str, Any]:
    found: dict[str, Any] = _plain(tensor)
    return {**found, "changes": _plain(tensor.changes), "severity": _plain(tensor.severity)}


def _plain(value: Any) -> Any:
    """A value of the model as JSON values."""
    if is_dataclass(value) and not isinstance(value, type):
        return {item.name: _plain(getattr(value, item.name)) for item in fields(value)}
    if isinstance(value, Mapping):
        return {str(name): _plain(item) for name, item in value.items()}
    if isinstance(value, float) and not math.isfinite(value):
        return "NaN" if math.isnan(value) else ("Infinity" if value > 0 else "-Infinity")
    if isinstance(value, str) or not isinstance(value, Iterable):
        return value
    return [_plain(item) for item in (sorted(value) if isinstance(value, frozenset) else value)]
