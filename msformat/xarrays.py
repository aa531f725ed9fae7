"""A tensor family as one ``xarray.DataArray``: the same tensor of the same entry over steps and ranks.

What belongs together is decided from documents and stored shapes; values are read when dask asks for a chunk, or all at
once where there is no dask. xarray and dask are imported here, in the functions that need them, and nowhere else.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from msformat.credentials import hide_credentials
from msformat.errors import FormatError
from msformat.extras import optional
from msformat.families import Family, Member, listed
from msformat.logical import logical_dtype
from msformat.plaintext import shortened
from msformat.room import check_room
from msformat.selection import Selection
from msformat.smallfloats import to_float32

if TYPE_CHECKING:
    from xarray import DataArray

    from msformat.entries import Tensor

__all__ = ["family_array"]

# One chunk of a lazy array: small tensors whole, of large ones what fits easily beside a few others.
_CHUNK = 64 << 20
_NAME = 200


def family_array(
    family: Family,
    *,
    dims: Sequence[str] | None = None,
    widen: bool = False,
    lazy: bool | None = None,
    fill_value: float | None = None,
) -> DataArray:
    """The tensors of a family as one array.

    Parameters
    ----------
    family
        Its tensors and the axes over them.
    dims, widen, lazy, fill_value
        As :meth:`msformat.Unit.to_xarray` takes them.
    """
    xarray = optional("xarray", "xarray", "to_xarray()")
    layout = _Layout.of(family, widen=widen)
    _check_holes(family, layout, fill_value)
    names = _dimensions(family, layout, dims)
    make = _lazy if (find_spec("dask") is not None if lazy is None else lazy) else _eager
    array: DataArray = xarray.DataArray(make(family, layout, fill_value), dims=names, name=family.place)
    coords = {name: _labels(labels) for name, labels in family.axes.items()}
    return array.assign_coords(coords | family.scalars).assign_attrs(_attributes(family))


@dataclass(frozen=True, slots=True)
class _Layout:
    """What every tensor of a family has in common.

    Attributes
    ----------
    shape
        Of one tensor.
    dtype
        Of the array that is made.
    widens
        Whether what is read becomes float32.
    """

    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    widens: bool

    @classmethod
    def of(cls, family: Family, *, widen: bool) -> _Layout:
        """Raises FormatError where they have it not; names the odd ones."""
        kinds = {member: _kind(member.tensor, widen=widen) for member in family.members.values()}
        shape = _common(family, {member: kind.shape for member, kind in kinds.items()}, "shapes", _shape_text)
        dtype = _common(family, {member: kind.dtype for member, kind in kinds.items()}, "element types", str)
        return cls(shape, dtype, any(kind.widens for kind in kinds.values()))


def _kind(tensor: Tensor, *, widen: bool) -> _Layout:
    stored = tensor.stored
    dtype = logical_dtype(stored, tensor.meta.dtype)
    if not widen or dtype.is_native:
        return _Layout(stored.shape, dtype.numpy, widens=False)
    to_float32(np.empty(0, dtype.storage), dtype)  # raises where there is no such value, before anything is read
    return _Layout(stored.shape, np.dtype(np.float32), widens=True)


def _common(family: Family, found: dict[Member, Any], what: str, spell: Callable[[Any], str]) -> Any:
    """The one value that all have."""
    counts = Counter(found.values())
    usual = counts.most_common(1)[0][0]
    odd = [f"{family.label(member)} has {spell(value)}" for member, value in found.items() if value != usual]
    if odd:
        others = f"{counts[usual]} other{'s have' if counts[usual] > 1 else ' has'} {spell(usual)}"
        hint = "; widen=True makes float32 of both" if what == "element types" else ""
        raise FormatError(f"{family.title}: {what} differ: {listed(odd)}; {others}{hint}")
    return usual


def _check_holes(family: Family, layout: _Layout, fill_value: float | None) -> None:
    """A grid with holes is no array, unless something is named that is put there."""
    if fill_value is not None:
        _filling(layout, fill_value)
    holes = list(family.holes())
    if holes and fill_value is None:
        raise FormatError(
            f"{family.title}: not in every place of the array: {listed(holes)}; choose steps=, ranks= or entries that "
            "have it, or give a fill_value"
        )


def _filling(layout: _Layout, fill_value: float) -> NDArray[Any]:
    with np.errstate(all="ignore"):
        filling = np.asarray(fill_value, np.float64).astype(layout.dtype)
        back = filling.astype(np.float64) if layout.dtype.kind != "c" else np.asarray(fill_value)
    if not np.array_equal(back, np.float64(fill_value), equal_nan=True):
        raise FormatError(f"fill_value {fill_value} is no value of {layout.dtype}")
    return filling


def _dimensions(family: Family, layout: _Layout, dims: Sequence[str] | None) -> tuple[str, ...]:
    inner = tuple(f"dim_{axis}" for axis in range(len(layout.shape))) if dims is None else tuple(dims)
    if len(inner) != len(layout.shape):
        raise FormatError(f"{family.title}: {len(inner)} names in dims for shape {_shape_text(layout.shape)}")
    names = (*family.axes, *inner)
    if len(set(names)) != len(names):
        raise FormatError(f"{family.title}: dimensions {', '.join(names)} are not all different")
    return names


def _labels(labels: Sequence[Any]) -> NDArray[Any]:
    """Numbers as int64; texts as objects: numpy's own text type gives each the room of the longest."""
    if all(isinstance(label, int) for label in labels):
        return np.asarray(labels, np.int64)
    return np.fromiter(labels, dtype=object, count=len(labels))


def _attributes(family: Family) -> dict[str, str]:
    tensors = [member.tensor for member in family.members.values()]
    spelled = dict.fromkeys(tensor.dtype_name for tensor in tensors)
    return {
        "entry": family.entry,
        "tensor": family.place,
        "dtype": ", ".join(spelled),
        "framework": tensors[0].entry.unit.header.framework,
        "path": hide_credentials(family.path),
    }


# --- values ----------------------------------------------------------------------------------------------------------


def _read(tensor: Tensor, layout: _Layout, selection: Selection) -> NDArray[Any]:
    """Values of one tensor, of exactly the type that the array has."""
    found = tensor.float32(selection) if layout.widens else tensor.numpy(selection)
    if found.dtype != layout.dtype:
        raise FormatError(
            f"{tensor.entry.key} in {tensor.entry.unit.path}: the document says {tensor.dtype_name}, the values need "
            f"{found.dtype}: widen=True takes them as they are"
        )
    return found


def _eager(family: Family, layout: _Layout, fill_value: float | None) -> NDArray[Any]:
    shape = (*family.grid, *layout.shape)
    check_room(math.prod(shape) * layout.dtype.itemsize, f"{family.title}, read without dask (msformat[dask])")
    made = np.empty(shape, layout.dtype)
    if fill_value is not None:
        made[...] = _filling(layout, fill_value)
    for place, member in family.members.items():
        made[place] = _read(member.tensor, layout, ...)
    return made


class _OnDemand:
    """A tensor in its store as dask wants it: shape, type, and values of what is asked for."""

    def __init__(self, tensor: Tensor, layout: _Layout) -> None:
        self._tensor = tensor
        self._layout = layout
        self.shape = layout.shape
        self.ndim = len(layout.shape)
        self.dtype = layout.dtype

    def __getitem__(self, selection: Selection) -> NDArray[Any]:
        return _read(self._tensor, self._layout, selection)


def _lazy(family: Family, layout: _Layout, fill_value: float | None) -> Any:
    dask_array = optional("dask.array", "dask", "to_xarray(lazy=True)")
    chunks = _chunks(dask_array, layout, [member.tensor for member in family.members.values()])
    meta = np.empty((0,) * len(layout.shape), layout.dtype)

    def one(place: tuple[int, ...]) -> Any:
        member = family.members.get(place)
        if member is None:
            assert fill_value is not None
            return dask_array.full(layout.shape, _filling(layout, fill_value), dtype=layout.dtype, chunks=chunks)
        # No name from the content: what lies under a path may change between two calls.
        return dask_array.from_array(
            _OnDemand(member.tensor, layout),
            chunks,
            name=False,
            asarray=False,
            fancy=False,
            inline_array=True,
            meta=meta,
        )

    def stacked(place: tuple[int, ...]) -> Any:
        if len(place) == len(family.grid):
            return one(place)
        return dask_array.stack([stacked((*place, at)) for at in range(family.grid[len(place)])])

    return stacked(())


def _chunks(dask_array: Any, layout: _Layout, tensors: Iterable[Tensor]) -> Any:
    """Whole tensors, but large ones of stores that read parts."""
    nbytes = math.prod(layout.shape) * layout.dtype.itemsize
    if nbytes <= _CHUNK or not all(tensor.stored.reads_parts for tensor in tensors):
        return layout.shape
    return dask_array.core.normalize_chunks("auto", layout.shape, limit=_CHUNK, dtype=layout.dtype)


# --- words -----------------------------------------------------------------------------------------------------------


def _shape_text(shape: Sequence[int]) -> str:
    return shortened(str(list(shape)), _NAME)
