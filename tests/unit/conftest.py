"""Fixtures that several files share: a tree of four units, one unit in each store, and what was read of stores."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import msformat
from msformat.stores.base import StoredTensor
from msformat.stores.registry import open_store
from tests.unit.reader_dumps import VALUES, X, entries, write_tensor, write_unit


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """Two steps of two ranks."""
    for step in (0, 1):
        for rank in (2, 10):
            unit = write_unit(tmp_path / "d" / f"step{step}" / f"rank{rank}", entries())
            write_tensor(unit, X, VALUES)
    return tmp_path / "d"


@pytest.fixture(params=["files", "hdf5", "zarr"])
def stored(request: pytest.FixtureRequest, tree: Path) -> Path:
    """One unit in each store; documents and bits go in through the store's own writer."""
    backend = request.param
    source = tree / "step0" / "rank2"
    if backend == "files":
        return source
    target = tree.parent / {"hdf5": "one.h5", "zarr": "one.zarr"}[backend]
    with open_store(backend, str(target), mode="w", group="step0/rank2") as store:
        store.put(X, VALUES, msformat.dtype_named("float32"))
        store.put_document("dump.json", (source / "dump.json").read_bytes())
    return target


@pytest.fixture
def reads(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Keys whose bits were read."""
    found: list[str] = []
    real = StoredTensor.bits

    def counted(self: StoredTensor, *args: Any) -> Any:
        found.append(self.key)
        return real(self, *args)

    monkeypatch.setattr(StoredTensor, "bits", counted)
    return found
