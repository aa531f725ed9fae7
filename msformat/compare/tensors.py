"""One tensor against another: by values where both have them, by digests, by statistics, or by what is described."""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TypeVar

from msformat.compare.model import Basis, Role, TensorResult, TensorSide, Verdict
from msformat.compare.running import Measured
from msformat.compare.statistics import are_equal, say_anything, statistic_faults
from msformat.compare.thresholds import Thresholds
from msformat.compare.values import PairMeasure
from msformat.dtypes import DType, parse_dtype
from msformat.entries import Tensor
from msformat.errors import MsformatError
from msformat.stores.base import StoredTensor
from msformat.unwritten import is_unwritten

__all__ = ["BAD_TENSOR", "TensorComparer", "same_checksum", "side_of"]

# What a damaged file can raise on its way through a reader.
BAD_TENSOR = (MsformatError, OSError, ValueError, KeyError, MemoryError)

_CATEGORIES = {"input_args": "input", "input_kwargs": "kwargs", "parameters_grad": ""}
_CRC32 = re.compile(r"[0-9a-fA-F]{8}")
_XOR = re.compile(r"0x[0-9a-fA-F]{16}")

Value = TypeVar("Value", str, "tuple[int, ...]")


@lru_cache(maxsize=256)
def _known_type(spelling: str) -> DType | None:
    return parse_dtype(spelling)


def _type_of(tensor: Tensor) -> DType | None:
    """``tensor.dtype``, which is asked for several times a tensor and of few spellings."""
    return _known_type(tensor.meta.dtype)


def side_of(tensor: Tensor) -> TensorSide:
    """What the document says of a tensor, without the document."""
    meta = tensor.meta
    category = _CATEGORIES.get(tensor.slot, tensor.slot)
    name = ".".join(filter(None, (tensor.entry.key, category, tensor.path)))
    return TensorSide(
        _shared(name), tensor.slot, tensor.path, _shared(meta.dtype), _shared(meta.shape), meta.stats, meta.digest,
        meta.data_name,
    )  # fmt: skip


@lru_cache(maxsize=4096)
def _shared(value: Value) -> Value:
    """One object for equal values: both sides of a tensor say the same of it, and so do most tensors."""
    return value


class TensorComparer:
    """Compares tensors of two units.

    Parameters
    ----------
    thresholds
        When they are different.

    Attributes
    ----------
    missing
        By side, tensors that the document names and the store has not; documents are all there is of them.
    """

    def __init__(self, thresholds: Thresholds) -> None:
        self._thresholds = thresholds
        self.missing: dict[str, list[str]] = {"a": [], "b": []}
        self._measure = PairMeasure()

    def compare(self, a: Tensor, b: Tensor, role: Role) -> TensorResult:
        """Compare two tensors; one that cannot be read becomes a result that says so."""
        try:
            found = self._compare(a, b, role)
            return _without_values(found, a, b) if self._is_meaningless(found, a, b) else found
        except BAD_TENSOR as error:
            return TensorResult(
                side_of(a), side_of(b), role, "unreadable", "description", (str(error) or type(error).__name__,)
            )  # fmt: skip

    def _compare(self, a: Tensor, b: Tensor, role: Role) -> TensorResult:
        notes = _type_notes(a, b)
        if not (a.has_data and b.has_data):
            self._note_missing(a, b)
            verdict, basis, reasons = self._by_documents(a, b)
            return TensorResult(side_of(a), side_of(b), role, verdict, basis, (*reasons, *notes))
        stored_a, stored_b = a.stored, b.stored
        if stored_a.shape != stored_b.shape:
            reasons = (_shape_words(stored_a.shape, stored_b.shape),)
            return TensorResult(side_of(a), side_of(b), role, "different", "description", (*reasons, *notes))
        if _same_digests(stored_a, stored_b) and _type_of(a) == _type_of(b):
            return TensorResult(side_of(a), side_of(b), role, "same", "digest", notes)
        measured = self._measure.of(stored_a, a.meta.dtype, stored_b, b.meta.dtype)
        verdict, reasons = self._judge(measured, (_type_of(a) or stored_a.dtype, _type_of(b) or stored_b.dtype))
        return TensorResult(
            side_of(a), side_of(b), role, verdict, "bits" if measured.metrics is None else "values",
            (*reasons, *notes, *measured.notes), measured.metrics,
            measured.special_a, measured.special_b, measured.mismatch,
        )  # fmt: skip

    def _is_meaningless(self, found: TensorResult, a: Tensor, b: Tensor) -> bool:
        """Whether what differs is what lay in memory; not for who asks for every bit, or for msprobe's own verdict."""
        if found.verdict == "same" or found.basis == "description":
            return False
        asks_for_it = self._thresholds.exact or self._thresholds.rules == "msprobe"
        return not asks_for_it and _is_unwritten(a) and _is_unwritten(b)

    def _note_missing(self, a: Tensor, b: Tensor) -> None:
        for side, tensor in (("a", a), ("b", b)):
            if tensor.meta.data_name is not None and not tensor.has_data:
                self.missing[side].append(tensor.meta.data_name)

    def _judge(self, measured: Measured, dtypes: tuple[DType, DType]) -> tuple[Verdict, tuple[str, ...]]:
        if measured.same:
            return "same", ()
        if measured.metrics is None:
            words = f"{measured.differing} elements have other bits, which mean no numbers here"
            return "different", (words,)
        faults = []
        if measured.mismatch:
            faults.append(_special_words(measured))
        faults += self._thresholds.faults(measured.metrics, self._thresholds.tolerance(*dtypes))
        if self._thresholds.exact and not faults:
            faults.append("bits differ")
        if faults:
            return "different", tuple(faults)
        equal = measured.metrics.max_abs == 0.0 and not measured.mismatch and dtypes[0] == dtypes[1]
        return "close", ("equal values of other bits (-0.0, NaN of another kind)",) if equal else ()

    def _by_documents(self, a: Tensor, b: Tensor) -> tuple[Verdict, Basis, tuple[str, ...]]:
        """A verdict from digests and statistics."""
        if a.shape != b.shape:
            return "different", "description", (_shape_words(a.shape, b.shape),)
        digests = _compare_digests(a, b)
        if digests:
            return "same", "digest", ()
        said = ("digests differ",) if digests is False else ()
        if said and self._thresholds.exact:
            return "different", "digest", said
        stats_a, stats_b = a.statistics(), b.statistics()
        if stats_a is None or stats_b is None or not say_anything(stats_a, stats_b):
            return ("different", "digest", said) if said else ("unknown", "description", _why_unknown(a, b))
        faults = statistic_faults(stats_a, stats_b, (_type_of(a), _type_of(b)), a.shape, self._thresholds)
        if faults:
            return "different", "statistics", (*faults, *said)
        if not said and _type_of(a) == _type_of(b) and are_equal(stats_a, stats_b):
            return "same", "statistics", ()
        return ("different", "statistics", ("statistics differ",)) if self._thresholds.exact else (
            "close", "statistics", said)  # fmt: skip


def _is_unwritten(tensor: Tensor) -> bool:
    return is_unwritten(tensor.entry.key, tensor.slot, tensor.path, tensor.entry.unit.header.framework)


def _without_values(found: TensorResult, a: Tensor, b: Tensor) -> TensorResult:
    reasons = ("memory that was not written yet: what lay in it means nothing", *_type_notes(a, b))
    return TensorResult(found.a, found.b, found.role, "unknown", "description", reasons)


def _same_digests(a: StoredTensor, b: StoredTensor) -> bool:
    """Whether both stores recorded one content; a store records it when it writes, and checks it in ``verify``."""
    return a.digest is not None and a.digest == b.digest


def _compare_digests(a: Tensor, b: Tensor) -> bool | None:
    """Whether both documents record one checksum; None where they do not say, or are of tensors of other types."""
    if a.digest is None or b.digest is None or _type_of(a) != _type_of(b):
        return None
    return same_checksum(a.digest, b.digest)


def same_checksum(a: str, b: str) -> bool | None:
    """Whether two checksums of the documents are equal; None where they are not of one algorithm that is known."""
    for form in (_CRC32, _XOR):
        if form.fullmatch(a) and form.fullmatch(b):
            return a.lower() == b.lower()
    return None


def _why_unknown(a: Tensor, b: Tensor) -> tuple[str, ...]:
    if 0 in a.shape:
        return ()
    lacking = [side for side, tensor in (("a", a), ("b", b)) if tensor.stats is None]
    return (f"nothing to compare: no values or statistics in {' and '.join(lacking)}",) if lacking else ()


def _type_notes(a: Tensor, b: Tensor) -> tuple[str, ...]:
    if _type_of(a) == _type_of(b) and (_type_of(a) is not None or a.dtype_name == b.dtype_name):
        return ()
    return (f"dtype {a.dtype_name} against {b.dtype_name}",)


def _shape_words(a: tuple[int, ...], b: tuple[int, ...]) -> str:
    return f"shape {list(a)} against {list(b)}"


def _special_words(measured: Measured) -> str:
    a, b = measured.special_a, measured.special_b
    place = f", first at {list(measured.mismatch_at)}" if measured.mismatch_at is not None else ""
    return (
        f"NaN and infinities: {_special_counts(a.nan, a.posinf, a.neginf)} against "
        f"{_special_counts(b.nan, b.posinf, b.neginf)}{place}"
    )


def _special_counts(nan: int, posinf: int, neginf: int) -> str:
    found = [f"{count} {name}" for count, name in ((nan, "NaN"), (posinf, "+inf"), (neginf, "-inf")) if count]
    return ", ".join(found) or "none"
