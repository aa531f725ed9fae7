"""Text attributes of variable length, which lie in a heap of their own kind."""

from __future__ import annotations

import os
from typing import Any

from msformat.stores.hdf5_paged import PagedFile

__all__ = ["variable_text"]


def variable_text(h5py: Any, dataset: Any, name: str) -> str | None:
    """A scalar text attribute of variable length; None where it is something else.

    HDF5 reads it through a file of ours, which looks at heaps first (:mod:`msformat.stores.hdf5_heap`).
    """
    file = h5py.h5i.get_file_id(dataset)
    if file.get_access_plist().get_driver() == h5py.h5fd.fileobj_driver:
        value = h5py.Dataset(dataset).attrs[name]
    else:
        with PagedFile(os.fsdecode(file.name), "r") as checked, h5py.File(checked, "r") as again:
            value = again[h5py.h5i.get_name(dataset)].attrs[name]
    return value if isinstance(value, str) else None
