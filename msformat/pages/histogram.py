"""How the values of a tensor are spread, counted in pieces: by value, and by power of two."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
from numpy.typing import NDArray

from msformat.compare.elements import element_kind, to_numbers
from msformat.entries import Tensor
from msformat.errors import MsformatError
from msformat.logical import logical_bits
from msformat.plaintext import shortened
from msformat.selection import Selection, slabs
from msformat.stores.base import StoredTensor

__all__ = ["histogram"]

_BINS = 64
# Bytes of stored values looked at at once.
_PIECE = 1 << 24
# What frexp says of the smallest and the largest float64.
_LOWEST, _HIGHEST = -1073, 1024


def histogram(tensor: Tensor) -> dict[str, Any]:
    """How the values of a tensor are spread, as JSON; why not, where they cannot be read.

    Returns
    -------
    dict
        ``elements``, ``nan``, ``posinf``, ``neginf``, ``zero``; of the finite values ``low``, ``high`` and ``counts``
        of equal bins between these; ``exponents``: how many are in ``[2**n, 2**(n+1))`` in magnitude, by ``n`` from
        ``lowestExponent`` on. Of complex numbers the modulus counts. Or only ``problem``.
    """
    try:
        return _histogram(tensor)
    except (MsformatError, OSError, MemoryError) as error:
        return {"problem": shortened(str(error) or type(error).__name__, 500)}


def _histogram(tensor: Tensor) -> dict[str, Any]:
    stored = tensor.stored
    first = Spread()
    for values in _pieces(stored, tensor.dtype_name):
        first.add(values)
    found = first.as_json()
    if first.finite:
        edges = np.linspace(first.low, first.high, _BINS + 1) if first.high > first.low else None
        counts = np.zeros(_BINS if edges is not None else 1, dtype=np.int64)
        for values in _pieces(stored, tensor.dtype_name):
            finite = values[np.isfinite(values)]
            counts += len(finite) if edges is None else np.histogram(finite, edges)[0]
        found["counts"] = counts.tolist()
    return found


class Spread:
    """What one look at all values tells.

    Attributes
    ----------
    elements, nan, posinf, neginf, zero, finite
        How many there are.
    low, high
        Of the finite values.
    """

    def __init__(self) -> None:
        self.elements = self.nan = self.posinf = self.neginf = self.zero = self.finite = 0
        self.low, self.high = np.inf, -np.inf
        self._exponents = np.zeros(_HIGHEST - _LOWEST + 1, dtype=np.int64)

    def add(self, values: NDArray[np.float64]) -> None:
        """Count some values."""
        finite = values[np.isfinite(values)]
        self.elements += values.size
        self.nan += int(np.count_nonzero(np.isnan(values)))
        self.posinf += int(np.count_nonzero(np.isposinf(values)))
        self.neginf += int(np.count_nonzero(np.isneginf(values)))
        self.finite += finite.size
        if finite.size:
            self.low, self.high = min(self.low, float(finite.min())), max(self.high, float(finite.max()))
        powers = np.frexp(finite[finite != 0])[1]
        self.zero += finite.size - powers.size
        self._exponents += np.bincount(powers - _LOWEST, minlength=len(self._exponents))

    def as_json(self) -> dict[str, Any]:
        """The counts."""
        found: dict[str, Any] = {
            name: getattr(self, name) for name in ("elements", "nan", "posinf", "neginf", "zero", "finite")
        }
        if self.finite:
            found.update(low=self.low, high=self.high)
        used = np.flatnonzero(self._exponents)
        if used.size:
            # frexp gives a fraction below 1, so its exponent is one more.
            found["lowestExponent"] = int(used[0]) + _LOWEST - 1
            found["exponents"] = self._exponents[used[0] : used[-1] + 1].tolist()
        return found


def _pieces(stored: StoredTensor, declared: str) -> Iterator[NDArray[np.float64]]:
    """All values as float64, some at a time."""
    for selection in _selections(stored):
        found = logical_bits(stored, declared, selection)
        if element_kind(found.dtype) == "x":
            raise MsformatError(f"bits of {found.dtype.name} mean no number here")
        numbers = to_numbers(np.ascontiguousarray(found.bits).reshape(-1), found.dtype)
        yield np.abs(numbers) if numbers.dtype.kind == "c" else numbers


def _selections(stored: StoredTensor) -> Iterator[Selection]:
    """Basic indices that together give everything once; all at once where a store cannot read parts."""
    if stored.nbytes <= _PIECE or not stored.reads_parts:
        yield ...
        return
    stored.check_whole()
    yield from slabs(stored.shape, stored.nbytes, _PIECE)
