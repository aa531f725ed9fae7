"""Documents of a unit in a Zarr store: 1-D uint8 arrays that are replaced in one step."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterable
from functools import partial

import numpy as np
import xxhash

from msformat.atomic import fsync_directory, write_atomic
from msformat.errors import CorruptTensorError, FormatError, StoreError, UnsafeInputError
from msformat.filesystem import FileSystem, join
from msformat.room import check_document
from msformat.stores.base import ReadOnlyBuffer
from msformat.stores.codecs import CHUNK_TARGET
from msformat.stores.zarr_codecs import document_encoder
from msformat.stores.zarr_metadata import METADATA_NAME, ArrayMeta, array_document, load_array
from msformat.stores.zarr_read import read_array

__all__ = ["list_documents", "read_document", "seal_document", "write_document"]

# Two ways to name the only axis' chunks, ``0`` and ``c.0``. A new version takes the one that the old does not use, so
# that both are whole until the rename of ``zarr.json`` says which one counts.
_GENERATIONS = (("v2", "."), ("default", "."))
# Of 8 MiB each where we write them.
_MOST_CHUNKS = 4096


def read_document(fs: FileSystem, node: str, limit: int | None = None) -> ReadOnlyBuffer | None:
    """The bytes of a document, None where there is none.

    Raises
    ------
    CorruptTensorError
        A chunk is missing or not decodable.
    UnsafeInputError
        More than ``limit`` bytes.
    """
    for last in (False, True):
        meta = load_array(fs, node)
        if meta is None:
            return None
        where = fs.describe(node)
        if len(meta.shape) != 1 or meta.storage != np.uint8:
            raise FormatError(f"{where}: a document is a 1-D uint8 array, not {list(meta.shape)} {meta.storage}")
        if limit is not None and meta.shape[0] > limit:
            raise UnsafeInputError(f"{where}: {meta.shape[0]} bytes, at most {limit} expected")
        check_document(meta.shape[0], partial(_stored_bytes, fs, node), where)
        try:
            return read_array(fs, node, meta, "document").data.toreadonly()
        except CorruptTensorError:
            # A writer may have replaced it between metadata and chunks.
            if last:
                raise
    return None


def _stored_bytes(fs: FileSystem, node: str) -> int:
    """What the chunks take; they lie in the array's directory, or in one called ``c`` there."""
    below = [path for path in (node, join(node, "c")) if fs.kind(path) == "directory"]
    return sum(item.size for path in below for item in fs.list(path) if item.kind == "file")


def seal_document(fs: FileSystem, node: str) -> tuple[int, str] | None:
    """Length of a document and a digest of its chunks as they are packed; None where there is none.

    Raises
    ------
    CorruptTensorError
        A chunk is missing.
    """
    meta = load_array(fs, node)
    if meta is None:
        return None
    state = xxhash.xxh3_128(f"{meta.shape}{meta.chunks}".encode())
    if len(meta.shape) != 1 or meta.shape[0] > _MOST_CHUNKS * meta.chunks[0]:
        return None
    for coordinates in meta.coordinates():
        path = join(node, meta.chunk_name(coordinates))
        try:
            state.update(fs.map(path))
        except OSError as error:
            raise CorruptTensorError(f"{fs.describe(path)}: {error}") from error
    return meta.shape[0], str(state.hexdigest())


def write_document(directory: str, data: ReadOnlyBuffer, old: ArrayMeta | None, *, fsync: bool = True) -> None:
    """Write or replace a document; durable when this returns.

    Parameters
    ----------
    directory
        Its array.
    data
        Its bytes.
    old
        Metadata of the version that lies there.
    fsync
        Wait for the disk. Without, the new version is whole for every process, but not after a loss of power.

    Raises
    ------
    StoreError
        Not written; the old version still stands.
    """
    if os.path.islink(directory):
        raise StoreError(f"{directory}: is a link")
    encoder = document_encoder()
    keys = _GENERATIONS[1] if old is not None and old.keys == _GENERATIONS[0] else _GENERATIONS[0]
    content = np.frombuffer(data, np.uint8)
    chunk = max(1, min(len(content), CHUNK_TARGET))
    meta = array_document(content.shape, (chunk,), content.dtype, encoder, attributes={}, keys=keys)
    try:
        with contextlib.suppress(FileExistsError):
            # Not the group around it: one that somebody removed with all its tensors is not made anew.
            os.mkdir(directory)
        for number, start in enumerate(range(0, len(content), chunk)):
            piece = content[start : start + chunk]
            piece = np.concatenate([piece, np.zeros(chunk - len(piece), np.uint8)])
            name = f"c.{number}" if keys[0] == "default" else str(number)
            write_atomic(os.path.join(directory, name), encoder.encode(piece), fsync=fsync)
        write_atomic(os.path.join(directory, METADATA_NAME), meta, fsync=fsync)
        if fsync:
            fsync_directory(os.path.dirname(directory))
    except OSError as error:
        raise StoreError(f"{directory}: {error.strerror or error}") from error
    if old is not None:
        _remove_chunks(directory, old)


def _remove_chunks(directory: str, old: ArrayMeta) -> None:
    """Chunks of a replaced version are rubbish; failing to remove them harms nobody."""
    for coordinates in _bounded(old.coordinates(), directory):
        with contextlib.suppress(OSError):
            os.unlink(os.path.join(directory, *old.chunk_name(coordinates).split("/")))


def _bounded(coordinates: Iterable[tuple[int, ...]], directory: str) -> list[tuple[int, ...]]:
    """No more chunks than there are files, whatever the old metadata said."""
    files = len(os.listdir(directory))
    return [at for at, _ in zip(coordinates, range(files), strict=False)]


def list_documents(fs: FileSystem, parent: str) -> list[str]:
    """Names of the arrays in the group of documents, unsorted."""
    if fs.kind(parent) != "directory":
        return []
    names = [item.name for item in fs.list(parent) if item.kind == "directory"]
    return [name for name in names if fs.kind(join(parent, name, METADATA_NAME)) == "file"]
