"""Files, groups and datasets in h5py's low-level terms: how the HDF5 store opens, makes and reads each."""

from __future__ import annotations

import contextlib
import os
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from msformat.atomic import fsync_directory, temporary_sibling
from msformat.dtypes import DType
from msformat.errors import StoreError
from msformat.filesystem import is_url, open_filesystem
from msformat.stores import hdf5_guard as guard
from msformat.stores.farblocks import FarFile
from msformat.stores.hdf5_checked import CheckedFile
from msformat.stores.hdf5_chunks import COMPACT_BELOW, ChunkFilter
from msformat.stores.hdf5_forks import close_in_children
from msformat.stores.hdf5_garbage import calm
from msformat.stores.hdf5_paged import PagedFile, has_pending_sync
from msformat.stores.hdf5_walks import Walks

__all__ = [
    "as_stored",
    "groups_of",
    "make_dataset",
    "make_group",
    "open_for_reading",
    "open_for_writing",
    "tracks_order",
    "utf8_names",
    "write_attribute",
]

_CHUNK_CACHE = 16 << 20


def open_for_reading(location: str) -> tuple[Any, PagedFile | None, Walks]:
    """An h5py file, what lies below it where a process died in the middle of a sync, and what looks at all it reads.

    Raises
    ------
    StoreError
        Not there, not HDF5, cut off, or being written.
    """
    h5py = guard.load_h5py()
    below: PagedFile | CheckedFile | FarFile | None = None
    try:
        if is_url(location):
            parent, _, name = location.rpartition("/")
            below = FarFile(open_filesystem(parent), name)
        else:
            guard.check_regular(location)
            below = PagedFile(location, "r") if has_pending_sync(location) else CheckedFile(location)
        with calm(location):
            file = close_in_children(h5py.File(below, "r", rdcc_nbytes=_CHUNK_CACHE))
        return file, below if isinstance(below, PagedFile) else None, below.walks
    except StoreError:
        raise
    except (OSError, RuntimeError, ValueError) as error:
        if below is not None:
            below.close()
        raise guard.open_error(location, error) from error


def groups_of(location: str) -> tuple[str, ...]:
    """Paths of the groups of a file that hold a unit. Raises as :func:`open_for_reading` does."""
    file, paged, _ = open_for_reading(location)
    try:
        with calm(location), guard.named_errors(f"{location}: cannot be read as HDF5"):
            return tuple(guard.find_groups(guard.load_h5py().h5g.open(file.id, b"/")))
    finally:
        file.close()
        if paged is not None:
            paged.close()


def open_for_writing(location: str, *, fsync: bool = True) -> tuple[Any, PagedFile]:
    """An h5py file over a :class:`PagedFile`; made where there is none. ``fsync``: commits wait for the disk.

    Raises
    ------
    StoreError
        Not a local path, not HDF5, not writable, or being written by somebody else.
    """
    h5py = guard.load_h5py()
    if is_url(location):
        raise StoreError(f"{location}: HDF5 files are written to local paths only")
    try:
        if not os.path.lexists(location):
            _make_file(h5py, location, fsync=fsync)
        guard.check_regular(location)
        paged = PagedFile(location, "a", fsync=fsync)
    except StoreError:
        raise
    except OSError as error:
        raise StoreError(f"{location}: cannot be written: {error}") from error
    try:
        if paged.seek(0, os.SEEK_END) == 0:  # what tempfile and touch make
            return close_in_children(h5py.File(paged, "w", track_order=True)), paged
        return close_in_children(h5py.File(paged, "r+")), paged
    except (OSError, RuntimeError, ValueError) as error:
        paged.abandon()
        paged.close()
        raise guard.open_error(location, error) from error


def _make_file(h5py: Any, location: str, *, fsync: bool) -> None:
    """An empty HDF5 file, whole under its name or not there."""
    temporary = temporary_sibling(location)
    paged = PagedFile(temporary, "x", fsync=fsync)
    try:
        h5py.File(paged, "w", track_order=True).close()
        if paged.error is not None:
            raise paged.error
        paged.commit()
        paged.close()
        os.replace(temporary, location)
    except BaseException:
        paged.abandon()
        paged.close()
        with contextlib.suppress(OSError):
            Path(temporary).unlink()
        raise
    if fsync:
        fsync_directory(Path(location).parent)


def make_group(parent: Any, name: bytes) -> Any:
    """A new group that remembers the order in which its members came."""
    h5py = guard.load_h5py()
    plan = h5py.h5p.create(h5py.h5p.GROUP_CREATE)
    plan.set_link_creation_order(h5py.h5p.CRT_ORDER_TRACKED | h5py.h5p.CRT_ORDER_INDEXED)
    return h5py.h5g.create(parent, name, lcpl=utf8_names(), gcpl=plan)


def tracks_order(group: Any) -> bool:
    """Whether a group can be walked in order of creation; strangers' groups often cannot."""
    h5py = guard.load_h5py()
    return bool(group.get_create_plist().get_link_creation_order() & h5py.h5p.CRT_ORDER_INDEXED)


@lru_cache(maxsize=1)
def utf8_names() -> Any:
    """Property list of links whose names are UTF-8."""
    h5py = guard.load_h5py()
    plan = h5py.h5p.create(h5py.h5p.LINK_CREATE)
    plan.set_char_encoding(h5py.h5t.CSET_UTF8)
    return plan


def as_stored(bits: NDArray[Any]) -> NDArray[Any]:
    """The bits in the shape in which they are stored: in a row, where HDF5 knows no so many axes."""
    return bits if bits.ndim <= guard.MOST_AXES else bits.reshape(-1)


def make_dataset(
    group: Any, name: bytes, bits: NDArray[Any], dtype: DType, chunk: tuple[int, ...] | None, how: ChunkFilter | None
) -> tuple[Any, Any]:
    """A new dataset with what its stored type and shape do not say, and the type to write it in; nothing is written."""
    h5py = guard.load_h5py()
    row = as_stored(bits)
    kind = h5py.h5t.py_create(row.dtype, logical=True)
    space = h5py.h5s.create_simple(row.shape) if row.shape else h5py.h5s.create(h5py.h5s.SCALAR)
    dataset = h5py.h5d.create(group, name, kind, space, _creation_plan(h5py, row, chunk, how), lcpl=utf8_names())
    if not dtype.is_native or row is not bits:
        write_attribute(dataset, b"dtype", dtype.name)
    if row is not bits:
        write_attribute(dataset, b"shape", ",".join(map(str, bits.shape)))
    return dataset, kind


def _creation_plan(h5py: Any, bits: NDArray[Any], chunk: tuple[int, ...] | None, how: ChunkFilter | None) -> Any:
    """Layout and filters of a new dataset; without a chunk shape the values stand in one run or in the header."""
    plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plan.set_obj_track_times(False)
    if chunk is None or how is None:
        compact = 0 < bits.nbytes <= COMPACT_BELOW
        plan.set_layout(h5py.h5d.COMPACT if compact else h5py.h5d.CONTIGUOUS)
        return plan
    plan.set_chunk(chunk)
    plan.set_fill_time(h5py.h5d.FILL_TIME_NEVER)
    if how.shuffle:
        plan.set_shuffle()
    if how.plugin is not None:
        plan.set_filter(how.plugin[0], h5py.h5z.FLAG_MANDATORY, how.plugin[1])
    elif how.level is not None:
        plan.set_deflate(how.level)
    return plan


def write_attribute(dataset: Any, name: bytes, text: str) -> None:
    """A scalar attribute of fixed length: HDF5 would put variable-length text on a heap of its own."""
    h5py = guard.load_h5py()
    value = np.array(text.encode())
    kind, space = _text_of(value.dtype.itemsize)
    attribute = h5py.h5a.create(dataset, name, kind, space)
    attribute.write(value, kind)


@lru_cache(maxsize=64)
def _text_of(length: int) -> tuple[Any, Any]:
    h5py = guard.load_h5py()
    return h5py.h5t.py_create(np.dtype(f"S{length}")), h5py.h5s.create(h5py.h5s.SCALAR)
