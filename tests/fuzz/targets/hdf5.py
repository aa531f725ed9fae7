"""HDF5 files: whatever became of their bytes, tensors are read or refused, and agree with h5py."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path
from random import Random

import h5py
import numpy as np

from msformat.dtypes import dtype_named
from msformat.errors import MsformatError
from msformat.stores.base import StoreOptions
from msformat.stores.hdf5 import Hdf5Store
from msformat.stores.hdf5_links import escape
from tests.fuzz.hdf5_bytes import change_hdf5
from tests.fuzz.reading import read_tensor
from tests.fuzz.target import Change, Target


def check(data: bytes, place: Path) -> None:
    """A whole file."""
    path = place / "dump.h5"
    path.write_bytes(data)
    try:
        groups = ("", *Hdf5Store.groups(str(path)))
    except MsformatError:
        return
    for group in groups:
        try:
            store = Hdf5Store(str(path), group=group)
        except MsformatError:
            continue
        try:
            _check_unit(store, path, group)
        finally:
            store.close()


def _check_unit(store: Hdf5Store, path: Path, group: str) -> None:
    read: dict[str, bytes] = {}
    try:
        for key in store.keys():  # noqa: SIM118 (a Store is no mapping)
            try:
                bits = read_tensor(store.get(key))
                if bits is not None:
                    read[key] = bits.tobytes()
            except MsformatError:
                continue
        for name in store.documents():
            found = store.get_document(name)
            assert found is None or isinstance(bytes(found), bytes)
    except MsformatError:
        pass
    _check_h5py(path, group, read)


def _check_h5py(path: Path, group: str, read: dict[str, bytes]) -> None:
    with h5py.File(path, "r") as file:
        for key, bits in read.items():
            try:
                dataset = file[f"{group}/tensors".lstrip("/")][escape(key)]
                theirs = dataset[()]
            except (OSError, RuntimeError, ValueError, KeyError, TypeError):
                continue
            array = np.asarray(theirs)
            assert array.astype(array.dtype.newbyteorder("<")).tobytes() == bits


def seeds() -> Iterator[bytes]:
    """Units of ours, and what h5py writes of every layout."""
    with tempfile.TemporaryDirectory() as folder:
        path = Path(folder, "ours.h5")
        options = StoreOptions(threads=0, durability="process")
        with Hdf5Store(str(path), mode="w", group="step0/rank", options=options) as store:
            for number, name in enumerate(("float32", "bfloat16", "complex64")):
                dtype = dtype_named(name)
                store.put(f"x.{number}", np.ones((number, 2), dtype.storage), dtype)
            store.put("large", np.zeros((200, 100), np.float32), dtype_named("float32"))
            store.put_document("dump.json", b'{"task": "tensor", "level": "L1", "data": {}}')
        yield path.read_bytes()
        for libver in ("earliest", "latest"):
            yield _foreign(Path(folder, f"{libver}.h5"), libver)


def _foreign(path: Path, libver: str) -> bytes:
    with h5py.File(path, "w", libver=libver) as file:
        tensors = file.create_group("tensors")
        values = np.arange(24, dtype=np.int16).reshape(4, 6)
        tensors["plain"] = values
        tensors.create_dataset("gzip", data=values, chunks=(2, 3), compression="gzip", shuffle=True, fletcher32=True)
        tensors.create_dataset("grows", data=values, chunks=(2, 3), maxshape=(None, 6), scaleoffset=4)
        tensors.create_dataset("big", data=values.astype(">f8"), fillvalue=3.0)
        tensors["same"] = tensors["plain"]
        tensors["plain"].attrs["dtype"] = "float16"
        plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
        plan.set_layout(h5py.h5d.COMPACT)
        h5py.h5d.create(tensors.id, b"compact", h5py.h5t.STD_I32LE, h5py.h5s.create_simple((3,)), plan)
    return path.read_bytes()


def mutate(data: bytes, change: Change, random: Random) -> bytes:
    """Fields of the metadata, or bytes."""
    return change_hdf5(data, random) if random.random() < 0.8 else change(data)


TARGET = Target(check, seeds, mutate, most_bytes=65536)
