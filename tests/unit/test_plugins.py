"""A store that another package registers under the entry-point group ``msformat.stores``."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import msformat
from msformat.stores.registry import store_class

MODULE = """
from msformat.stores.files import FilesStore


class ShelfStore(FilesStore):
    backend = "shelf"
"""
HEADER = msformat.Header(task="tensor", level="L1", framework="pytorch")


@pytest.fixture
def shelf(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Install a package with a store, for this test; the folder a dump may go to."""
    site = tmp_path / "site"
    information = site / "shelf_store-1.0.dist-info"
    information.mkdir(parents=True)
    (information / "METADATA").write_text("Metadata-Version: 2.1\nName: shelf-store\nVersion: 1.0\n")
    (information / "entry_points.txt").write_text("[msformat.stores]\nshelf = shelf_store:ShelfStore\n")
    (site / "shelf_store.py").write_text(MODULE)
    monkeypatch.syspath_prepend(str(site))
    store_class.cache_clear()
    return tmp_path / "dump"


def test_a_store_of_another_package_is_written_found_and_converted(shelf: Path) -> None:
    assert "shelf" in msformat.available_stores()
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    record = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2, 3], "data_name": "x.0.debug.npy"}
    with msformat.DumpWriter(shelf / "step0" / "rank0", HEADER, backend="shelf", document="debug.json") as writer:
        writer.put_tensor("x.0.debug.npy", values, msformat.parse_dtype("float32"))
        writer.put_entry("x.0.debug", record)
    assert [path.name for path in (shelf / "step0" / "rank0").iterdir()] == ["dump.shelf"]
    with msformat.open(shelf) as dump:
        unit = dump[0, 0]
        assert unit.backend == "shelf"
        assert unit.complete
        assert np.array_equal(unit.tensor("x.0.debug.npy").numpy(), values)
    assert msformat.verify_dump(shelf).exit_code == 0
    assert msformat.convert_dump(shelf, shelf.with_name("back")).exit_code == 0
    stored = shelf.with_name("back") / "step0/rank0/dump_tensor_data/x.0.debug.npy"
    assert np.array_equal(np.load(stored), values)


def test_without_the_package_the_directory_is_no_unit(tmp_path: Path) -> None:
    (tmp_path / "step0" / "rank0" / "dump.shelf").mkdir(parents=True)
    with pytest.raises(msformat.FormatError, match="no dump in it"):
        msformat.open(tmp_path)


def test_a_writer_knows_at_once_that_there_is_no_such_store(tmp_path: Path) -> None:
    with pytest.raises(msformat.StoreError, match="unknown store 'hdf'; installed: files, hdf5, zarr"):
        msformat.DumpWriter(tmp_path / "step0" / "rank0", HEADER, backend="hdf")
