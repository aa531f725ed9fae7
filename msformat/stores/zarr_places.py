"""Tensors of a Zarr store at the places the index names, which are checked against what lies there."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from msformat.dtypes import DType
from msformat.errors import CorruptTensorError
from msformat.filesystem import FileSystem, join
from msformat.stores.zarr_index import Place
from msformat.stores.zarr_metadata import METADATA_NAME, ArrayMeta, load_array
from msformat.stores.zarr_read import ChunkCache, read_region

__all__ = ["PlaceReader"]

# A unit of ours has some dozen arrays of rows, and a pack for 4 MiB of small tensors.
_METAS = 1024


class PlaceReader:
    """Reads what lies at places of a unit.

    Parameters
    ----------
    fs, group
        The store, and the unit in it.
    cache
        Keeps chunks of packs.
    """

    def __init__(self, fs: FileSystem, group: str, cache: ChunkCache | None = None) -> None:
        self._fs = fs
        self._group = group
        self._cache = cache or ChunkCache()
        # Of arrays with many tensors; without attributes, of which a stranger's may be long.
        self._metas: dict[str, ArrayMeta] = {}

    def describe(self, key: str, place: Place) -> Place:
        """The place with the dtype and shape that only the array of a foreign store knows."""
        if place.dtype is not None:
            return place
        node = join(self._group, place.node)
        meta = load_array(self._fs, node)
        where = self._fs.describe(node)
        if meta is None:
            raise CorruptTensorError(f"{where}: tensor {key!r}: there is no {METADATA_NAME}")
        dtype = meta.dtype(where)
        digest = meta.attributes.get("xxh3_128")
        return Place(
            array=place.array,
            dtype=dtype.name,
            shape=dtype.logical_shape(meta.shape),
            digest=digest if isinstance(digest, str) else None,
        )

    def read_array(self, key: str, place: Place, dtype: DType, slices: tuple[slice, ...]) -> NDArray[Any]:
        """Some bits of a tensor that is an array, or a row of one.

        Raises
        ------
        CorruptTensorError
            Something else lies there, or nothing.
        """
        node = join(self._group, place.node)
        where = self._fs.describe(node)
        meta = self._meta(node, place)
        if meta is None:
            raise CorruptTensorError(f"{where}: tensor {key!r}: the array is missing")
        shape = dtype.stored_shape(place.shape or ())
        if place.row is None:
            self._check(key, where, meta, shape, dtype)
            return read_region(self._fs, node, meta, slices, f"tensor {key!r}")
        if not meta.shape or place.row >= meta.shape[0]:
            raise CorruptTensorError(f"{where}: tensor {key!r}: no row {place.row} in {list(meta.shape)}")
        self._check(key, where, meta, (meta.shape[0], *shape), dtype)
        slices = (slice(place.row, place.row + 1, 1), *slices)
        found = read_region(self._fs, node, meta, slices, f"tensor {key!r}")
        return found.reshape(found.shape[1:])

    def _check(self, key: str, where: str, meta: ArrayMeta, shape: tuple[int, ...], dtype: DType) -> None:
        if meta.shape != shape or meta.storage != dtype.storage:
            raise CorruptTensorError(
                f"{where}: tensor {key!r}: holds {meta.storage} {list(meta.shape)}, which is no {dtype.name} "
                f"{list(shape)}"
            )

    def _meta(self, node: str, place: Place) -> ArrayMeta | None:
        """Metadata; kept where many tensors share it, until more rows are there than it knows."""
        known = self._metas.get(node)
        if known is not None and (place.row is None or place.row < known.shape[0]):
            return known
        meta = load_array(self._fs, node)
        if meta is not None and meta.shape and (place.row is not None or place.pack is not None):
            if len(self._metas) >= _METAS:
                self._metas.clear()
            self._metas[node] = replace(meta, attributes={})
        return meta

    def read_packed(self, key: str, place: Place, dtype: DType) -> NDArray[Any]:
        """All bits of a packed tensor; it is small.

        Raises
        ------
        CorruptTensorError
            There is no such pack, or no such bytes in it.
        """
        shape = dtype.stored_shape(place.shape or ())
        start, count = place.offset or 0, math.prod(shape) * dtype.storage.itemsize
        node = join(self._group, place.node)
        where = self._fs.describe(node)
        meta = self._meta(node, place)
        if meta is None:
            raise CorruptTensorError(f"{where}: tensor {key!r}: the pack is missing")
        if len(meta.shape) != 1 or meta.storage != np.uint8 or start + count > meta.shape[0]:
            raise CorruptTensorError(
                f"{where}: tensor {key!r}: no bytes {start} to {start + count} in {meta.storage} {list(meta.shape)}"
            )
        taken = (slice(start, start + count, 1),)
        found = read_region(self._fs, node, meta, taken, f"tensor {key!r}", self._cache)
        return np.ascontiguousarray(found).view(dtype.storage).reshape(shape)
