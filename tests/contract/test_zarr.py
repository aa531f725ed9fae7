"""The Zarr store keeps the shared promises; plain zarr-python is the raw access."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from msformat.dtypes import DType
from tests.contract.store_contract import StoreContract

zarr = pytest.importorskip("zarr")


class TestZarr(StoreContract):
    backend: ClassVar[str] = "zarr"

    @pytest.fixture(autouse=True)
    def _fresh_cache(self) -> None:
        self._opened: tuple[Any, dict[str, Any]] | None = None
        self._packs: dict[str, NDArray[np.uint8]] = {}

    def location(self, tmp_path: Path) -> str:
        return str(tmp_path / "dump.zarr")

    def raw_get(self, tmp_path: Path, key: str, dtype: DType) -> tuple[NDArray[Any], tuple[int, ...]]:
        if self._opened is None:
            unit = zarr.open_group(self.location(tmp_path), mode="r")
            self._opened = unit, json.loads(unit["documents/index.json"][:].tobytes())["tensors"]
        unit, index = self._opened
        place = index[key]
        shape = tuple(place["shape"])
        if "array" in place:
            bits = unit[place["array"]][place["row"]]
            return np.asarray(bits), dtype.logical_shape(np.asarray(bits).shape)
        if place["pack"] not in self._packs:
            self._packs[place["pack"]] = unit[place["pack"]][...]
        packed = self._packs[place["pack"]]
        count = int(np.prod(dtype.stored_shape(shape))) * dtype.storage.itemsize
        return packed[place["offset"] : place["offset"] + count].view(dtype.storage), shape

    def flip_byte(self, tmp_path: Path, key: str) -> None:
        root = Path(self.location(tmp_path))
        place = json.loads(zarr.open_group(root, mode="r")["documents/index.json"][:].tobytes())["tensors"][key]
        node = root / place.get("pack", place.get("array"))
        (chunk,) = [node / "0"] if "pack" in place else node.glob(f"{place['row']}.*")
        data = bytearray(chunk.read_bytes())
        data[place.get("offset", 0) + 5] ^= 1
        chunk.write_bytes(data)
