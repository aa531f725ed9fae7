"""From the layout of the device to that of the framework: which axes to split, reorder, join and cut.

``shape`` tells how the bytes lie, ``original_shape`` what the framework had, in the framework's own order of axes. The
width of a fractal (C0, 16 or 32 or 64) is always the last length of ``shape``.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any, NamedTuple

from numpy.typing import NDArray

from msformat.foreign.kernel_dump.record import DoubtName

__all__ = ["HostLayout", "HostPlan", "plan_host_layout"]

Shape = tuple[int, ...]
# Formats whose axes are those of the framework, in the order of the letters.
_LETTERS = frozenset(["NCHW", "NHWC", "CHWN", "HWCN", "NDHWC", "NCDHW", "DHWCN", "DHWNC", "NCL", "CN", "NC"])
_PLAIN = _LETTERS | {"ND", "MD", "RESERVED", "ALL", "NULL", "MAX"}
_ORDERS_4D = ("NCHW", "NHWC", "HWCN", "CHWN")
_ORDERS_5D = ("NCDHW", "NDHWC", "DHWCN", "DHWNC")


@dataclass(frozen=True, slots=True)
class HostLayout:
    """How to turn a device array into the framework's.

    Attributes
    ----------
    split
        Shape with all axes apart.
    order
        Axes of ``split`` in their new order.
    joined
        Shape after neighbours were joined.
    cut
        Lengths without padding.
    final_order
        Axes in the framework's order.
    shape
        What comes out.
    """

    split: Shape
    order: Shape
    joined: Shape
    cut: Shape
    final_order: Shape
    shape: Shape

    def apply(self, array: NDArray[Any]) -> NDArray[Any]:
        """The framework's array of a device array; a copy where axes are joined."""
        joined = array.reshape(self.split).transpose(self.order).reshape(self.joined)
        inside = joined[tuple(slice(0, length) for length in self.cut)]
        return inside.transpose(self.final_order).reshape(self.shape)


class HostPlan(NamedTuple):
    """What :func:`plan_host_layout` found.

    Attributes
    ----------
    layout
        None: the array is given as it lies on the device.
    doubt, text
        Why, or what else is doubtful; None for nothing.
    """

    layout: HostLayout | None
    doubt: DoubtName | None = None
    text: str = ""


class _Canonical(NamedTuple):
    """A device layout with its axes named: ``letters`` after joining, before cutting."""

    letters: str
    split: Shape
    order: Shape
    joined: Shape


def plan_host_layout(
    format_name: str, shape: Shape, original: Shape | None, sub_format: int, original_format: str | None
) -> HostPlan:
    """Plan the conversion of a tensor.

    Parameters
    ----------
    format_name
        Layout on the device.
    shape, original
        On the device, and of the framework; None where the file does not say.
    sub_format
        Groups of FRACTAL_Z.
    original_format
        The framework's order of axes, where the file says.
    """
    if format_name in _PLAIN:
        return _plan_plain(format_name, shape, original, original_format)
    if original is None:
        return _as_on_device(format_name, "the file has no original shape")
    if format_name == "FRACTAL_Z" and 1 < sub_format < 0xFFFF:
        return _as_on_device(format_name, f"with {sub_format} groups")
    if format_name.startswith("FRACTAL_NZ"):
        layout = _plan_nz(shape, original)
        return HostPlan(layout) if layout else _does_not_fit(format_name, shape, original)
    split = _SPLITTERS.get(format_name)
    if split is None:
        return _as_on_device(format_name, "how to convert it is not known")
    return _plan_by_letters(format_name, split, shape, original, original_format)


def _as_on_device(format_name: str, why: str) -> HostPlan:
    return HostPlan(None, DoubtName.device_layout, f"layout {format_name} is given as it lay on the device: {why}")


def _does_not_fit(format_name: str, shape: Shape, original: Shape) -> HostPlan:
    return _as_on_device(format_name, f"original shape {list(original)} does not fit {list(shape)}")


# --- plain formats -----------------------------------------------------------------------------------------------


def _plan_plain(format_name: str, shape: Shape, original: Shape | None, original_format: str | None) -> HostPlan:
    if original is None or original == shape:
        return HostPlan(None)
    orders = [
        order for order in _orders(format_name, original_format) if _permuted(format_name, order, shape) == original
    ]
    if orders:
        order = tuple(map(format_name.index, orders[0]))
        layout = HostLayout(shape, tuple(range(len(shape))), shape, shape, order, original)
        return HostPlan(layout, *_doubt_orders(format_name, original, orders))
    if format_name in ("ND", "NULL", "RESERVED") and math.prod(shape) == math.prod(original):
        straight = tuple(range(len(shape)))
        return HostPlan(HostLayout(shape, straight, shape, shape, straight, original))
    return _does_not_fit(format_name, shape, original)


def _permuted(letters: str, order: str, shape: Shape) -> Shape | None:
    if len(shape) != len(letters) or sorted(letters) != sorted(order):
        return None
    return tuple(shape[letters.index(letter)] for letter in order)


def _orders(letters: str, original_format: str | None) -> tuple[str, ...]:
    """Orders of axes to try: the one the file names, or all that there are."""
    if original_format is not None and sorted(original_format) == sorted(letters):
        return (original_format,)
    return tuple(order for order in (*_ORDERS_4D, *_ORDERS_5D) if sorted(order) == sorted(letters))


def _doubt_orders(format_name: str, original: Shape, orders: list[str]) -> tuple[DoubtName | None, str]:
    if len(orders) < 2:
        return None, ""
    text = f"layout {format_name}: original shape {list(original)} may be {' or '.join(orders)}, taken as {orders[0]}"
    return DoubtName.axes_doubtful, text


# --- fractal formats -----------------------------------------------------------------------------------------------


def _plan_nz(shape: Shape, original: Shape) -> HostLayout | None:
    """``(…, N1, M1, M0, N0)``; a vector counts as one row."""
    if len(shape) < 4:
        return None
    *batch, n1, m1, m0, n0 = shape
    rows, columns = (1, original[0]) if len(original) == 1 else original[-2:]
    if not (_fits(rows, m1, m0) and _fits(columns, n1, n0)) or math.prod(batch) != math.prod(original[:-2]):
        return None
    axes = tuple(range(len(batch)))
    first = len(batch)
    order = (*axes, first + 1, first + 2, first, first + 3)
    joined = (*batch, m1 * m0, n1 * n0)
    return HostLayout(shape, order, joined, (*batch, rows, columns), (*axes, first, first + 1), original)


def _fits(length: int, blocks: int, width: int) -> bool:
    """Whether a length fills that many blocks, the last perhaps in part."""
    return length <= blocks * width and (blocks == 0 or length > (blocks - 1) * width)


def _plan_by_letters(
    format_name: str,
    split: Callable[[Shape, dict[str, int]], _Canonical | None],
    shape: Shape,
    original: Shape,
    original_format: str | None,
) -> HostPlan:
    letters = "NCDHW" if "D" in format_name.removeprefix("FRACTAL") else "NCHW"
    fitting = list(_fitting(split, shape, original, _orders(letters, original_format)))
    if not fitting:
        return _does_not_fit(format_name, shape, original)
    _, layout = fitting[0]
    return HostPlan(layout, *_doubt_orders(format_name, original, [order for order, _ in fitting]))


def _fitting(
    split: Callable[[Shape, dict[str, int]], _Canonical | None], shape: Shape, original: Shape, orders: tuple[str, ...]
) -> Iterator[tuple[str, HostLayout]]:
    for order in orders:
        if len(order) != len(original):
            continue
        lengths = dict(zip(order, original, strict=True))
        found = split(shape, lengths)
        if found is None or not _is_padded(found, lengths, shape):
            continue
        cut = tuple(lengths[letter] for letter in found.letters)
        final = tuple(map(found.letters.index, order))
        yield order, HostLayout(found.split, found.order, found.joined, cut, final, original)


def _is_padded(found: _Canonical, lengths: dict[str, int], shape: Shape) -> bool:
    """Whether the joined shape is the original one, padded by less than a block in the axes that are split."""
    c0 = shape[-1]
    for letter, length in zip(found.letters, found.joined, strict=True):
        width = c0 if letter == "C" else shape[-2] if letter == "N" and len(found.split) != len(shape) else 1
        if not _fits(lengths[letter], length // max(1, width), max(1, width)):
            return False
    return True


def _split_nc1hwc0(shape: Shape, _: dict[str, int]) -> _Canonical | None:
    if len(shape) != 5:
        return None
    n, c1, h, w, c0 = shape
    return _Canonical("NCHW", shape, (0, 1, 4, 2, 3), (n, c1 * c0, h, w))


def _split_ndc1hwc0(shape: Shape, _: dict[str, int]) -> _Canonical | None:
    if len(shape) != 6:
        return None
    n, d, c1, h, w, c0 = shape
    return _Canonical("NCDHW", shape, (0, 2, 5, 1, 3, 4), (n, c1 * c0, d, h, w))


def _split_nhwc1c0(shape: Shape, _: dict[str, int]) -> _Canonical | None:
    if len(shape) != 5:
        return None
    n, h, w, c1, c0 = shape
    return _Canonical("NCHW", shape, (0, 3, 4, 1, 2), (n, c1 * c0, h, w))


def _split_c1hwnc0(shape: Shape, _: dict[str, int]) -> _Canonical | None:
    if len(shape) != 5:
        return None
    c1, h, w, n, c0 = shape
    return _Canonical("NCHW", shape, (3, 0, 4, 1, 2), (n, c1 * c0, h, w))


def _split_fractal_z(shape: Shape, lengths: dict[str, int]) -> _Canonical | None:
    """``(C1*H*W, N1, N0, C0)``: only the original lengths tell C1, H and W apart."""
    h, w = lengths["H"], lengths["W"]
    if len(shape) != 4 or h * w == 0 or shape[0] % (h * w):
        return None
    merged, n1, n0, c0 = shape
    c1 = merged // (h * w)
    return _Canonical("NCHW", (c1, h, w, n1, n0, c0), (3, 4, 0, 5, 1, 2), (n1 * n0, c1 * c0, h, w))


_SPLITTERS: dict[str, Callable[[Shape, dict[str, int]], _Canonical | None]] = {
    "NC1HWC0": _split_nc1hwc0,
    "NC1HWC0_C04": _split_nc1hwc0,
    "NDC1HWC0": _split_ndc1hwc0,
    "NHWC1C0": _split_nhwc1c0,
    "C1HWNC0": _split_c1hwnc0,
    "FRACTAL_Z": _split_fractal_z,
}
