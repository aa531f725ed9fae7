"""The store in memory keeps the shared promises."""

from __future__ import annotations

from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from msformat.dtypes import DType
from msformat.stores.base import Mode, Store, StoreOptions
from msformat.stores.memory import MemoryStore
from tests.contract.store_contract import StoreContract


class TestMemory(StoreContract):
    backend: ClassVar[str] = "memory"
    persistent: ClassVar[bool] = False

    @pytest.fixture(autouse=True)
    def _one_store_a_test(self) -> None:
        self._store: MemoryStore | None = None

    def location(self, tmp_path: Path) -> str:
        return "memory"

    def open(self, tmp_path: Path, mode: Mode, **options: Any) -> Store:
        if self._store is None:
            self._store = MemoryStore(mode=mode, options=StoreOptions(**options))
        self._store.mode = mode
        return self._store

    def raw_get(self, tmp_path: Path, key: str, dtype: DType) -> tuple[NDArray[Any], tuple[int, ...]]:
        assert self._store is not None
        bits = self._store._tensors[key]._bits
        return bits, dtype.logical_shape(bits.shape)

    def stored_size(self, tmp_path: Path) -> int:
        assert self._store is not None
        return sum({id(t._bits): t._bits.nbytes for t in self._store._tensors.values()}.values())

    def flip_byte(self, tmp_path: Path, key: str) -> None:
        assert self._store is not None
        tensor = self._store._tensors[key]
        broken = np.array(tensor._bits)
        broken.reshape(-1).view(np.uint8)[0] ^= 1
        tensor._bits = broken
