"""Views of a foreign form: the same units, whose store gives tensors otherwise."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from msformat.errors import FormatError
from msformat.foreign import FORMS

if TYPE_CHECKING:
    from msformat.layout import UnitLocation

__all__ = ["LAYOUTS", "with_layout"]

# Whose order of axes the tensors of kernel dumps get.
LAYOUTS = ("framework", "device")


def with_layout(units: Sequence[UnitLocation], layout: str) -> list[UnitLocation]:
    """The same units; those of kernel dumps with tensors as they lay on the device, for ``layout="device"``.

    Raises
    ------
    FormatError
        Neither ``framework`` nor ``device``.
    """
    if layout not in LAYOUTS:
        raise FormatError(f"layout={layout!r}: choose one of {', '.join(LAYOUTS)}")
    device = layout == "device"
    return [
        replace(unit, backend=f"{unit.backend}_device") if device and f"{unit.backend}_device" in FORMS else unit
        for unit in units
    ]
