"""Tensors as datasets of one HDF5 file, readable by any HDF5 without plug-ins.

::

    /step0/rank3                 a unit: any group, the root included
        tensors/<key>            a dataset: the tensor's bits in a plain type; attribute ``dtype`` where the stored type
                                 does not say all, attribute ``xxh3_128`` the content digest; equal content is one
                                 dataset with several names (hard links)
        documents/<name>         dump.json, …: their bytes; columns.safetensors the index of :mod:`msformat.columnindex`

Link names are keys, with ``%``, ``/`` and NUL percent-escaped. Groups track creation order, so keys keep the order in
which they were put. Written files are of the default HDF5 format (no SWMR, nothing newer), see
:mod:`msformat.stores.hdf5_paged` for what a crash leaves.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from functools import partial
from typing import Any, ClassVar, NoReturn

import numpy as np
from numpy.typing import NDArray

from msformat.dtypes import DType, dtype_named
from msformat.errors import CorruptTensorError, StoreError
from msformat.selection import Region, plan_selection
from msformat.stores import hdf5_guard as guard
from msformat.stores.base import COLUMNS, Mode, ReadOnlyBuffer, Store, StoredTensor, StoreOptions
from msformat.stores.codecs import chunk_shape, parse_compression
from msformat.stores.hdf5_chunks import FILTER_FROM, ChunkFilter, ChunkPipeline, Packed, choose_filter, pieces
from msformat.stores.hdf5_documents import Document
from msformat.stores.hdf5_garbage import calm
from msformat.stores.hdf5_layout import (
    as_stored,
    groups_of,
    make_dataset,
    make_group,
    open_for_reading,
    open_for_writing,
    tracks_order,
    utf8_names,
    write_attribute,
)
from msformat.stores.hdf5_links import TensorLinks, escape, link_names, unescape
from msformat.stores.hdf5_paged import PagedFile
from msformat.stores.hdf5_read import OpenDataset
from msformat.stores.many import HELD_BYTES, Found, HeldTensor, attempt

__all__ = ["Hdf5Store"]

_UINT8 = dtype_named("uint8")


class _Hdf5Tensor(StoredTensor):
    __slots__ = ("_described", "_digest", "_store")

    def __init__(self, store: Hdf5Store, key: str, described: guard.Described) -> None:
        self._store = store
        self._described = described
        self._digest: str | None = None
        super().__init__(key, described.dtype, described.shape)

    @property
    def digest(self) -> str | None:
        """Read on first use: most readers never ask."""
        if self._digest is None:
            with self._store._calm, guard.named_errors(self._store._label(self.key), CorruptTensorError):
                self._digest = guard.read_text_attribute(self._store._opened(self.key).dataset, b"xxh3_128")
        return self._digest

    @digest.setter
    def digest(self, value: str | None) -> None:
        self._digest = value

    @property
    def identity(self) -> Hashable:
        """The address of the dataset: names are hard links."""
        with self._store._calm, guard.named_errors(self._store._label(self.key), CorruptTensorError):
            return int(guard.load_h5py().h5o.get_info(self._store._opened(self.key).dataset).addr)

    def _read(self, region: Region) -> NDArray[Any]:
        with self._store._calm:
            found = self._store._opened(self.key)
            if found.described != self._described:
                label = self._store._label(self.key)
                raise StoreError(f"{label}: the file has another tensor of this name than when it was looked up")
            return self._store._values(found, region)


class Hdf5Store(Store):
    """See the module's text. ``location`` is the path of an ``.h5`` file, for reading also a URL."""

    backend: ClassVar[str] = "hdf5"
    keeps_columns: ClassVar[bool] = True

    def __init__(
        self, location: str, *, mode: Mode = "r", group: str = "", options: StoreOptions | None = None
    ) -> None:
        super().__init__(os.fspath(location), mode=mode, group=group.strip("/"), options=options)
        guard.load_h5py()
        self._filter: ChunkFilter | None = choose_filter(parse_compression(self.options.compression))
        self._closed = False
        self._failed: str | None = None
        self._recent: OpenDataset | None = None
        self._paged: PagedFile | None = None
        self._file: Any = None
        self._pid = os.getpid()
        self._calm = calm(self.location)
        self._open()

    # --- opening -----------------------------------------------------------------------------------------------

    def _open(self) -> None:
        self._pid = os.getpid()
        self._recent = None
        self._size: int | None = None
        self._pipeline = ChunkPipeline(self.options.threads)
        try:
            if self.mode == "r":
                self._file, self._paged, self._walks = open_for_reading(self.location)
            else:
                self._file, self._paged = open_for_writing(self.location, fsync=self.options.fsync)
                self._walks = self._paged.walks
            with self._calm, guard.named_errors(f"{self.location}: cannot be read as HDF5"):
                self._open_groups()
            self.sync()  # a unit that dies before its first sync is an empty unit, not a strange file
        except BaseException:
            self._release(commit=False)
            raise

    def _open_groups(self) -> None:
        unit = self._walk(self._file.id, self.group)
        if self.mode == "r" and unit is None:
            raise StoreError(f"{self.location}: has no group {self.group!r}")
        self._tensors = self._child(unit, b"tensors")
        self._documents = self._child(unit, b"documents")
        if self.mode == "w" and (self._link_count(self._tensors) or self._link_count(self._documents)):
            raise StoreError(f"{self.location}: group {self.group or '/'!r} already holds a unit; mode 'a' adds to it")
        self._links = TensorLinks(self._tensors, is_fixed=self.mode == "r")
        # Foreign groups keep no order of creation.
        self._ordered = self._tensors is not None and tracks_order(self._tensors)
        # A writer of a new unit knows its keys without asking HDF5, which takes longer than to make a link.
        self._put: set[str] = set()
        self._knows_all = self.mode != "r" and not self._link_count(self._tensors)

    def _walk(self, root: Any, path: str) -> Any | None:
        group = guard.load_h5py().h5g.open(root, b"/")
        for name in filter(None, path.split("/")):
            group = self._child(group, name.encode("utf-8", "surrogateescape"))
            if group is None:
                return None
        return group

    def _child(self, parent: Any | None, name: bytes) -> Any | None:
        if parent is None:
            return None
        label = f"{self.location}: group {name.decode('utf-8', 'replace')!r}"
        found = guard.open_group(parent, name, label)
        return make_group(parent, name) if found is None and self.mode != "r" else found

    @staticmethod
    def _link_count(group: Any | None) -> int:
        return 0 if group is None else int(group.get_num_objs())

    @classmethod
    def groups(cls, location: str) -> tuple[str, ...]:
        return groups_of(os.fspath(location))

    def _ensure_open(self) -> None:
        """Reopen in a process that inherited or received the store; refuse what cannot be read any more."""
        if self._closed:
            raise StoreError(f"{self.location}: is closed")
        if self._failed is not None:
            raise StoreError(self._failed)
        if os.getpid() != self._pid or self._file is None:
            if self.mode != "r":
                raise StoreError(f"{self.location}: is being written by the process that opened it")
            self._release(commit=False)
            self._open()

    def __getstate__(self) -> dict[str, Any]:
        if self.mode != "r":
            raise StoreError(f"{self.location}: only a store opened for reading can be sent to another process")
        return {"location": self.location, "group": self.group, "options": self.options}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__init__(state["location"], group=state["group"], options=state["options"])  # type: ignore[misc]

    # --- reading -----------------------------------------------------------------------------------------------

    def _label(self, key: str) -> str:
        return f"{self.location}: tensor {key!r}"

    def _file_size(self) -> int:
        if self._size is None or self.mode != "r":
            self._size = int(self._file.id.get_filesize())
        return self._size

    def _opened(self, key: str) -> OpenDataset:
        """The dataset of a key, ready to be read. The last one stays open, for its cache of chunks."""
        self._ensure_open()
        if self.mode != "r":
            self._guarded(self._pipeline.drain)
        recent = self._recent  # another reading thread may replace it meanwhile
        return recent if recent is not None and recent.key == key else self._look_up(key)

    def _look_up(self, key: str) -> OpenDataset:
        label = self._label(key)
        with self._calm:
            dataset = self._links.find(key, label)
            if dataset is None:
                raise self._not_found(key)
            found = OpenDataset(key, dataset, guard.describe(dataset, label), label)
        self._recent = found
        return found

    def get(self, key: str) -> StoredTensor:
        self._ensure_open()
        return _Hdf5Tensor(self, key, self._look_up(key).described)

    def _values(self, found: OpenDataset, region: Region) -> NDArray[Any]:
        with self._walks:
            return found.read(region, self._file_size(), self._pipeline)

    def get_many(self, keys: Sequence[str]) -> list[Found]:
        """Small ones with their bits: what HDF5 opened would have to be opened again."""
        with self._calm:
            found = [attempt(self._get_held, key) for key in keys]
            self._links.expect(len(found))
            return found

    def _get_held(self, key: str) -> StoredTensor:
        found = self._opened(key)
        tensor = _Hdf5Tensor(self, key, found.described)
        if tensor.nbytes > HELD_BYTES:
            return tensor
        return HeldTensor(tensor, self._values(found, plan_selection(..., tensor.shape)))

    def keys(self) -> Iterator[str]:
        self._ensure_open()
        if self._tensors is None:
            return iter(())
        with self._calm, guard.named_errors(f"{self.location}: names of tensors cannot be read"):
            links = guard.links_of(self._tensors, by_creation=self._ordered)
        return iter([unescape(name) for name, _ in links])

    def __len__(self) -> int:
        self._ensure_open()
        with self._calm:
            return self._link_count(self._tensors)

    def __contains__(self, key: object) -> bool:
        if not isinstance(key, str):
            return False
        self._ensure_open()
        if self._tensors is None:
            return False
        if self._knows_all or key in self._put:
            return key in self._put
        with self._calm, guard.named_errors(self._label(key)):
            return any(self._tensors.links.exists(name) for name in link_names(key))

    # --- writing -----------------------------------------------------------------------------------------------

    def _check_writable(self) -> None:
        super()._check_writable()
        self._ensure_open()

    def _guarded(self, action: Callable[[], None], key: str | None = None) -> None:
        """Run something that may write; a failed write ends all writing."""
        assert self._failed is None
        try:
            action()
        except (OSError, RuntimeError, ValueError, MemoryError) as error:
            self._fail(error, key)
        if self._paged is not None and self._paged.error is not None:
            self._fail(self._paged.error, key)

    def _fail(self, error: BaseException, key: str | None) -> NoReturn:
        name = self._pipeline.writing or key
        what = repr(name) if name else "sync"
        reason = self._paged.error if self._paged is not None and self._paged.error is not None else error
        self._failed = f"{self.location}: {what} could not be written: {reason}; the file is as at its last sync"
        # Whoever gets the error may never close us, and HDF5 itself would at the end, when Python is no more.
        self._release(commit=False)
        raise StoreError(self._failed) from error

    def _write(self, key: str, bits: NDArray[Any], dtype: DType, digest: str, *, owned: bool) -> None:
        def action() -> None:
            dataset = self._write_dataset(self._tensors, escape(key), bits, dtype, key, owned=owned)
            write_attribute(dataset, b"xxh3_128", digest)

        self._guarded(action, key)
        self._put.add(key)

    def _link(self, key: str, target: str) -> None:
        assert self._tensors is not None
        links = self._tensors.links
        names = link_names(target)
        name = escape(target) if target in self._put else next(name for name in names if links.exists(name))
        self._guarded(lambda: links.create_hard(escape(key), self._tensors, name, lcpl=utf8_names()), key)
        self._put.add(key)

    def _write_dataset(
        self, group: Any, name: bytes, bits: NDArray[Any], dtype: DType, label: str, *, owned: bool, packed: bool = True
    ) -> Any:
        """Make a dataset and write it, or leave its chunks with the pipeline."""
        chunked = packed and self._filter is not None and bits.nbytes >= FILTER_FROM
        row = as_stored(bits)
        chunk = chunk_shape(row.shape, row.itemsize)
        dataset, kind = make_dataset(group, name, bits, dtype, chunk if chunked else None, self._filter)
        if chunked and self._filter is not None and self._filter.level is not None:
            self._add_chunks(dataset, row, chunk, label, owned=owned)
        elif row.size:
            dataset.write(guard.load_h5py().h5s.ALL, guard.load_h5py().h5s.ALL, row, kind)
        return dataset

    def _add_chunks(self, dataset: Any, bits: NDArray[Any], chunk: tuple[int, ...], label: str, *, owned: bool) -> None:
        assert self._filter is not None
        pack = self._filter.pack
        copy = not owned and self.options.threads > 0
        for offset, data in pieces(bits, chunk):
            kept = data.copy() if copy else data
            self._pipeline.add(
                label, partial(pack, kept, bits.itemsize), kept.nbytes, partial(self._write_chunk, dataset, offset)
            )

    def _write_chunk(self, dataset: Any, offset: tuple[int, ...], packed: Packed) -> None:
        with guard.library_lock():
            dataset.write_direct_chunk(offset, packed[0], packed[1])
        assert self._paged is not None
        if self._paged.error is not None:
            raise self._paged.error

    # --- documents ---------------------------------------------------------------------------------------------

    def put_document(self, name: str, data: ReadOnlyBuffer) -> None:
        """Store a document and sync, so that it is whole on disk, or the older one is."""
        self.put_documents({name: data})

    def put_documents(self, documents: Mapping[str, ReadOnlyBuffer]) -> None:
        """:meth:`put_document` of several, which one sync brings to disk all together."""
        self._check_writable()
        for name, data in documents.items():
            self._write_document(name, data)
        self.sync()

    def _write_document(self, name: str, data: ReadOnlyBuffer, *, packed: bool = True) -> None:
        assert self._documents is not None
        bits = np.frombuffer(data, np.uint8)
        group, link = self._documents, escape(name)

        def action() -> None:
            if group.links.exists(link):
                group.unlink(link)
            self._write_dataset(group, link, bits, _UINT8, name, owned=False, packed=packed)

        self._guarded(action, name)

    def put_columns(self, data: ReadOnlyBuffer) -> None:
        """Not packed: reading it must take no time. The next sync brings it to disk."""
        self._check_writable()
        self._write_document(COLUMNS, data, packed=False)

    def _document(self, name: str) -> Document | None:
        self._ensure_open()
        self._guarded(self._pipeline.drain)
        label = f"{self.location}: document {name!r}"
        dataset = None if self._documents is None else guard.open_dataset(self._documents, escape(name), label)
        return None if dataset is None else Document(dataset, self._file_size(), label)

    def get_document(self, name: str) -> ReadOnlyBuffer | None:
        with self._calm:
            found = self._document(name)
            return None if found is None else found.read(self._pipeline)

    def document_seal(self, name: str) -> tuple[int, str] | None:
        with self._calm:
            found = self._document(name)
            return None if found is None else (found.length, found.seal(self._pipeline))

    def documents(self) -> tuple[str, ...]:
        self._ensure_open()
        if self._documents is None:
            return ()
        with self._calm, guard.named_errors(f"{self.location}: names of documents cannot be read"):
            names = {unescape(name) for name, _ in guard.links_of(self._documents)}
        return tuple(sorted(names - {COLUMNS}))

    # --- life --------------------------------------------------------------------------------------------------

    def sync(self) -> None:
        """Everything put before is on disk, or none of it that was not there already."""
        if self.mode == "r":
            return
        self._ensure_open()

        def action() -> None:
            self._pipeline.drain()
            self._file.flush()
            assert self._paged is not None
            self._paged.commit()

        self._guarded(action)

    def close(self) -> None:
        """Sync and let go. After a failure that was raised before, only let go."""
        if self._closed:
            return
        owner = os.getpid() == self._pid
        try:
            if self.mode != "r" and self._failed is None and owner:
                self._guarded(self._pipeline.drain)
        finally:
            self._closed = True
            self._release(commit=self._failed is None and owner)

    def abandon(self) -> None:
        if not self._closed:
            self._closed = True
            self._release(commit=False)

    def _release(self, *, commit: bool) -> None:
        """Close HDF5's file, which still writes to ours; then commit that, or drop it."""
        self._pipeline.close()
        paged, self._recent = self._paged, None
        if paged is not None and not commit:
            paged.abandon()
        if self._file is not None:
            with contextlib.suppress(OSError, RuntimeError, ValueError) if not commit else contextlib.nullcontext():
                self._file.close()
        self._file = self._paged = None
        self._tensors = self._documents = None
        self._links = TensorLinks(None, is_fixed=True)
        if paged is None:
            return
        try:
            if commit:
                paged.commit()
                if paged.error is not None:
                    raise paged.error
        except OSError as error:
            self._failed = f"{self.location}: could not be written: {error}; the file is as at its last sync"
            raise StoreError(self._failed) from error
        finally:
            paged.close()
