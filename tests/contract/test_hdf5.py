"""The HDF5 store keeps the shared promises; plain h5py is the judge."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import h5py
import numpy as np
from numpy.typing import NDArray

from msformat.dtypes import DType
from tests.contract.store_contract import StoreContract

#: Link names of keys that cannot stand verbatim, written down by hand: the format, not the code.
LINK_NAMES = {
    "": "%",
    ".": "%2E",
    "..": "%2E%2E",
    "/": "%2F",
    "/abs": "%2Fabs",
    "../../escape": "..%2F..%2Fescape",
    "a/b": "a%2Fb",
    "a//b": "a%2F%2Fb",
    "x/": "x%2F",
    "nul\0inside": "nul%00inside",
    "percent%2Fescaped": "percent%252Fescaped",
}


class TestHdf5(StoreContract):
    backend: ClassVar[str] = "hdf5"
    live_reads: ClassVar[bool] = False  # a reader is told that the file is being written

    def location(self, tmp_path: Path) -> str:
        return str(tmp_path / "dump.h5")

    def raw_get(self, tmp_path: Path, key: str, dtype: DType) -> tuple[NDArray[Any], tuple[int, ...]]:
        with h5py.File(tmp_path / "dump.h5", "r") as file:
            dataset = file["tensors"][LINK_NAMES.get(key, key)]
            declared = dataset.attrs.get("dtype")
            assert (declared is None) == dtype.is_native
            assert declared is None or declared.decode() == dtype.name
            assert len(dataset.attrs["xxh3_128"]) == 32
            bits = np.asarray(dataset[()])
        assert bits.dtype == dtype.storage
        return bits, dtype.logical_shape(bits.shape)

    def flip_byte(self, tmp_path: Path, key: str) -> None:
        path = tmp_path / "dump.h5"
        with h5py.File(path, "r") as file:
            offset = file["tensors"][key].id.get_offset()
        data = bytearray(path.read_bytes())
        data[offset] ^= 1
        path.write_bytes(data)
