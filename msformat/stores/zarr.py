"""Dumps in Zarr v3: written straight to a directory, read from a directory or URL, open to plain zarr-python.

Layout of one unit, at the root of the store or in a group such as ``step0/rank3``::

    zarr.json                   group; attribute "msformat": {"layout": 2}
    tensors/<n>/                array whose rows are the tensors of one type and shape; each row is a file
    packs/<n>/                  1-D uint8 arrays: the bytes of many tensors of up to 64 KiB each
    documents/<name>/           1-D uint8 arrays: dump.json, stack.json, …
    documents/columns.safetensors/   the index of :mod:`msformat.columnindex`
    documents/index.json/       which key lies where (:mod:`msformat.stores.zarr_index`)
    index.jsonl                 the same as a log, while the unit is being written or if the writer was killed

Attributes of an array of rows: ``rows``, and ``dtype`` (the logical type, where the stored one is another: bfloat16
lies in uint16). Every chunk is written, zeros too: a lost chunk is an error, never zeros. A row above 8 MiB is cut into
chunks of at most that, which lie in shards (the codec ``sharding_indexed``) of up to 256 MiB: one file, of which a
slice reads what it touches.

Any tensor, with zarr-python (3.0 or later) alone::

    unit = zarr.open_group("DST.zarr", mode="r")["step0/rank"]
    dump = json.loads(unit["documents/dump.json"][:].tobytes())
    index = json.loads(unit["documents/index.json"][:].tobytes())["tensors"]
    place = index["Functional.relu.0.forward.input.0.pt"]
    if "array" in place:
        bits = unit[place["array"]][place.get("row", ...)]
    else:
        end = place["offset"] + prod(place["shape"]) * stored.itemsize
        bits = unit[place["pack"]][place["offset"]:end].view(stored).reshape(place["shape"])

where ``stored`` is ``numpy.dtype(place["dtype"])``, or the unsigned integer of that size for a type numpy does not have
(``bits.view(ml_dtypes.bfloat16)`` gives the values). Two keys with one place have equal content.

The same bytes under another shape, or another type of that size, are stored once as well: in a pack as a place of the
same offset, in rows of up to 256 MiB that are cut alike as a hard link to the file of the other. Each still is a whole
one, with a digest of its own (type, shape and bits). Whoever changes such a file in place changes both.

Version 1 of the layout had an array ``tensors/<key>`` for each tensor above 64 KiB, and a file for each chunk. It is
read as before, and so are arrays that other programs put there.
"""

from __future__ import annotations

import math
import os
import re
from collections.abc import Hashable, Iterator, Sequence
from operator import attrgetter
from typing import Any, ClassVar

import xxhash
from numpy.typing import NDArray

from msformat.digest import byte_view
from msformat.dtypes import DType, dtype_named
from msformat.errors import DTypeError, FormatError, StoreError
from msformat.filesystem import FileSystem, RemoteFileSystem, is_url, join, open_filesystem
from msformat.selection import Region
from msformat.stores.base import COLUMNS, Mode, ReadOnlyBuffer, Store, StoredTensor, StoreOptions
from msformat.stores.codecs import parse_compression
from msformat.stores.many import Found, attempt, hold_groups
from msformat.stores.zarr_codecs import pack_encoder, require_numcodecs
from msformat.stores.zarr_documents import list_documents, read_document, seal_document, write_document
from msformat.stores.zarr_index import INDEX_LIMIT, LOG_NAME, IndexLog, Place, decode_index, encode_index, read_log
from msformat.stores.zarr_metadata import document_node, load_array, read_optional
from msformat.stores.zarr_places import PlaceReader
from msformat.stores.zarr_read import ChunkCache
from msformat.stores.zarr_stacks import Stacks
from msformat.stores.zarr_tree import check_unit, find_groups, foreign_places, make_unit, remove_temporaries
from msformat.stores.zarr_write import ArrayWriter, OpenPack

__all__ = ["PACK_BELOW", "PACK_BYTES", "ZarrStore"]

# An array of its own costs a directory, two files and three fsyncs: 0.6 ms on an idle disk, 5 ms on a busy one. As part
# of a pack, 64 KiB cost 0.15 ms. Bigger ones would pay off too, but a pack is read as a whole.
PACK_BELOW = 64 << 10
PACK_BYTES = 4 << 20
# Chunks of packs that are fetched from a URL at the same time, and kept until all their tensors are read.
_REMOTE_CHUNKS = 8
_INDEX = "documents/index.json"
# A row has an axis more than the tensor, and NumPy 1 has 32. What has as many is a pack of its own.
_ROW_AXES = 31


class ZarrTensor(StoredTensor):
    """A tensor in an array of its own, or in a pack."""

    __slots__ = ("_place", "_store")

    def __init__(self, key: str, dtype: DType, place: Place, store: ZarrStore) -> None:
        super().__init__(key, dtype, place.shape or (), place.digest)
        self._place = place
        self._store = store

    @property
    def identity(self) -> Hashable:
        return self._place.home, self._place.offset

    def _read(self, region: Region) -> NDArray[Any]:
        slices = region.slices
        if self.dtype.lanes > 1:
            slices = (*slices, slice(0, self.dtype.lanes, 1))
        return self._store._read(self.key, self._place, self.dtype, slices)


class ZarrStore(Store):
    """Tensors and documents of one unit in a Zarr v3 store.

    ``location`` is the directory or URL of the whole store, ``group`` the unit in it. URLs are read only. Owned tensors
    are compressed and written by ``options.threads`` threads, which start with the first of them.
    """

    backend: ClassVar[str] = "zarr"
    keeps_columns: ClassVar[bool] = True
    reads_faster_in_threads: ClassVar[bool] = True

    def __init__(
        self, location: str, *, mode: Mode = "r", group: str = "", options: StoreOptions | None = None
    ) -> None:
        super().__init__(location, mode=mode, group=group.strip("/"), options=options)
        self._compression = parse_compression(self.options.compression)
        self._fs: FileSystem = open_filesystem(location)
        self._is_remote = isinstance(self._fs, RemoteFileSystem)
        self._reader = PlaceReader(
            self._fs, self.group, ChunkCache(_REMOTE_CHUNKS) if self._is_remote else ChunkCache()
        )
        self._places: dict[str, Place] = {}
        self._closed = False
        self._log = self._prepare() if mode != "r" else None
        try:
            whole = self._load()
            if self._log is not None:
                self._start_writing(self._log, whole)
        except BaseException:
            if self._log is not None:
                self._log.close()
            raise

    # --- opening ---------------------------------------------------------------------------------------------------

    def _prepare(self) -> IndexLog:
        """Make the unit and lock it, so that nobody else writes what is read next."""
        if is_url(self.location) and not self.location.startswith("file://"):
            raise StoreError(f"{self.location}: Zarr stores are written to a local directory only")
        require_numcodecs()
        unit = self._fs.describe(self.group)
        # A writer that died while it made the unit left neither an index nor a log.
        was_begun = os.path.isdir(unit) and self._fs.kind(self._at(_INDEX)) is None
        try:
            make_unit(self._fs, self.group, self.mode, fsync=self.options.fsync)
            log = IndexLog(self._fs.describe(self._at(LOG_NAME)), fsync=self.options.fsync)
        except OSError as error:
            raise self._named(error, unit) from error
        if was_begun or log.inherited:
            remove_temporaries(unit)
        return log

    def _load(self) -> int:
        """Read the index; returns the length of the log's whole lines."""
        check_unit(self._fs, self.group)
        # The log first: a writer that finishes in between writes the document before it drops the log.
        log = read_optional(self._fs, self._at(LOG_NAME), INDEX_LIMIT)
        index = read_document(self._fs, self._at(_INDEX), INDEX_LIMIT)
        if index is not None:
            self._places.update(decode_index(index, self._fs.describe(self._at(_INDEX))))
        whole = 0
        if log:
            added, whole = read_log(log, self._fs.describe(self._at(LOG_NAME)))
            self._places.update(added)
        if not whole and index is None:
            self._places.update(foreign_places(self._fs, self.group))
        self._has_index = index is not None
        self._changed = whole > 0 or index is None
        return whole

    def _start_writing(self, log: IndexLog, whole: int) -> None:
        if self.mode == "w" and self._places:
            raise StoreError(f"{self._fs.describe(self.group)}: another process was faster and wrote here")
        log.start(whole)
        self._writer = ArrayWriter(self._fs.describe(self.group), self.options.threads, fsync=self.options.fsync)
        self._pack: OpenPack | None = None
        self._packed: dict[Hashable, tuple[str, int]] = {}
        self._next_pack = self._first_free("packs")
        self._stacks = Stacks(self._compression, self._first_free("tensors"))
        self._unlogged: dict[str, Place] = {}
        if not whole and not self._has_index:
            # From now on only the index counts, so it must know what it finds.
            self._unlogged = {key: self._reader.describe(key, place) for key, place in self._places.items()}
            self._places.update(self._unlogged)
        self._by_digest = {place.digest: key for key, place in reversed(self._places.items()) if place.digest}

    def _first_free(self, group: str) -> int:
        names = os.listdir(self._fs.describe(self._at(group)))
        return max((int(name) for name in names if re.fullmatch(r"[0-9]{1,9}", name)), default=-1) + 1

    def _at(self, path: str) -> str:
        return join(self.group, path)

    def _named(self, error: OSError, path: str) -> Exception:
        if isinstance(error, StoreError):
            return error
        named = StoreError(f"{error.filename or path}: {error.strerror or error}")
        named.errno = error.errno
        return named

    def _check_writable(self) -> None:
        super()._check_writable()
        if self._closed:
            raise StoreError(f"{self._fs.describe(self.group)}: is closed")

    # --- putting ---------------------------------------------------------------------------------------------------

    def _write(self, key: str, bits: NDArray[Any], dtype: DType, digest: str, *, owned: bool) -> None:
        self._raise_first(self._writer.failed())
        self._writer.check_process()
        shape = dtype.logical_shape(bits.shape)
        if bits.nbytes <= PACK_BELOW or bits.ndim > _ROW_AXES:
            pack, offset = self._add_to_pack(key, bits, self._content(bits))
            place = Place(pack=pack, offset=offset, dtype=dtype.name, shape=shape, digest=digest)
        else:
            stack, row = self._stacks.add(dtype, bits)
            # Only what is one file can share it with others.
            content = None if stack.cut.layout is None else self._content(bits)
            place = Place(array=stack.node, row=row, dtype=dtype.name, shape=shape, digest=digest)
            self._writer.write(
                stack.node, bits, stack.encoder, key=key, row=row, cut=stack.cut, owned=owned, content=content
            )
        self._remember(key, place)
        if self._pack is not None and len(self._pack) >= PACK_BYTES:
            self._seal(wait=False)

    def _content(self, bits: NDArray[Any]) -> Hashable:
        return (xxhash.xxh3_128_digest(byte_view(bits)), bits.itemsize) if self.options.links else None

    def _link(self, key: str, target: str) -> None:
        self._remember(key, self._places[target])

    def _remember(self, key: str, place: Place) -> None:
        self._places[key] = place
        self._unlogged[key] = place

    def _add_to_pack(self, key: str, bits: NDArray[Any], content: Hashable) -> tuple[str, int]:
        """Node and offset of bytes in a pack: where they lie already, under whatever shape, or at its end."""
        known = self._packed.get(content)
        if known is not None:
            return known
        pack = self._open_pack()
        found = pack.node, pack.add(key, bits)
        if content is not None:
            self._packed[content] = found
        return found

    def _open_pack(self) -> OpenPack:
        if self._pack is None:
            self._pack = OpenPack(f"packs/{self._next_pack}")
            self._next_pack += 1
        return self._pack

    def _seal(self, *, wait: bool) -> None:
        """Write the open pack."""
        pack, self._pack = self._pack, None
        if pack is None or not pack.keys:  # an interrupt may leave an empty one
            return
        content = pack.seal()
        label = pack.keys[0] if len(pack.keys) == 1 else f"{pack.keys[0]} … {pack.keys[-1]}"
        try:
            self._writer.write(pack.node, content, pack_encoder(self._compression), key=label, owned=not wait)
        except StoreError as error:
            self._raise_first({pack.node: error})

    def _raise_first(self, failures: dict[str, BaseException]) -> None:
        """Forget every tensor that came to nothing, so that it can be put again, and raise the first error."""
        if not failures:
            return
        lost = [key for key, place in self._unlogged.items() if place.home in failures]
        for key in lost:
            del self._places[key]
            del self._unlogged[key]
        self._by_digest = {digest: key for digest, key in self._by_digest.items() if key in self._places}
        self._packed = {content: at for content, at in self._packed.items() if at[0] not in failures}
        raise next(iter(failures.values()))

    def sync(self) -> None:
        """Seal the open pack, wait for the threads, flush files, then tell the index.

        Raises
        ------
        StoreError
            Some tensor could not be written; it names the first and forgets them, what else was put is kept.
        """
        if self.mode == "r" or self._closed:
            return
        self._writer.check_process()
        failures: dict[str, BaseException] = {}
        try:
            self._seal(wait=True)
        except StoreError as error:
            failures["packs"] = error
        failures.update(self._writer.drain())
        self._raise_first(failures)
        self._tell_rows()
        self._writer.flush()
        if self._unlogged and self._log is not None:
            try:
                self._log.append(self._unlogged.items())
            except OSError as error:
                raise self._named(error, self._log.path) from error
            self._unlogged = {}
            self._changed = True

    def close(self) -> None:
        """Sync, turn the log into the index document, let go."""
        if self._closed:
            return
        if self.mode == "r" or self._log is None or os.getpid() != self._writer._pid:
            self._closed = True
            return
        finished = False
        try:
            self.sync()
            if self._changed:
                self._put_array_of_bytes(_INDEX, encode_index(self._places))
            finished = True
        finally:
            self._closed = True
            self._writer.close()
            self._log.close(drop=finished)

    def abandon(self) -> None:
        if self._closed:
            return
        self._closed = True
        if self.mode != "r" and self._log is not None:
            self._writer.abandon()
            self._log.close()

    # --- getting ---------------------------------------------------------------------------------------------------

    def get(self, key: str) -> StoredTensor:
        try:
            place = self._places[key]
        except KeyError:
            raise self._not_found(key, self._fs.describe(self.group)) from None
        place = self._reader.describe(key, place)
        try:
            dtype = dtype_named(place.dtype or "")
        except DTypeError as error:
            raise FormatError(f"{self._fs.describe(self.group)}: tensor {key!r}: {error}") from error
        return ZarrTensor(key, dtype, place, self)

    def get_many(self, keys: Sequence[str]) -> list[Found]:
        """See :class:`msformat.stores.many.SupportsMany`: packs are unpacked once each."""
        found = [attempt(self.get, key) for key in keys]
        if self.mode == "r":
            part = "home" if self._is_remote else "pack"
            hold_groups(found, attrgetter(f"_place.{part}"), requests=_REMOTE_CHUNKS if self._is_remote else 1)
        return found

    def _read(self, key: str, place: Place, dtype: DType, slices: tuple[slice, ...]) -> NDArray[Any]:
        if place.pack is None:
            self._settle(place)
            return self._reader.read_array(key, place, dtype, slices)
        pack = self._pack if self.mode != "r" else None
        if pack is not None and pack.node == place.node:
            shape = dtype.stored_shape(place.shape or ())
            found = pack.read(place.offset or 0, math.prod(shape) * dtype.storage.itemsize)
            return found.view(dtype.storage).reshape(shape)[slices]
        self._settle(place)
        return self._reader.read_packed(key, place, dtype)[slices]

    def _settle(self, place: Place) -> None:
        """Until a thread has written what is to be read."""
        if self.mode == "r":
            return
        try:
            self._writer.wait(place.home)
            self._tell_rows(place.node)
        except StoreError as error:
            self._raise_first({place.home: error})

    def _tell_rows(self, node: str | None = None) -> None:
        """Write the metadata of arrays (or one) that have new rows."""
        for each, metadata in self._stacks.grown(node):
            self._writer.write_metadata(each, metadata)

    def keys(self) -> Iterator[str]:
        return iter(self._places)

    def __len__(self) -> int:
        return len(self._places)

    def __contains__(self, key: object) -> bool:
        return key in self._places

    # --- documents -------------------------------------------------------------------------------------------------

    def put_document(self, name: str, data: ReadOnlyBuffer) -> None:
        self._check_writable()
        self._writer.check_process()
        self._put_array_of_bytes(f"documents/{document_node(name)}", data)

    def _put_array_of_bytes(self, path: str, data: ReadOnlyBuffer) -> None:
        node = self._at(path)
        write_document(self._fs.describe(node), data, load_array(self._fs, node), fsync=self.options.fsync)

    def put_columns(self, data: ReadOnlyBuffer) -> None:
        """Without waiting for the disk: an index that a loss of power damages is ignored."""
        self._check_writable()
        node = self._at(f"documents/{COLUMNS}")
        write_document(self._fs.describe(node), data, load_array(self._fs, node), fsync=False)

    def get_document(self, name: str) -> ReadOnlyBuffer | None:
        return read_document(self._fs, self._at(f"documents/{document_node(name)}"))

    def document_seal(self, name: str) -> tuple[int, str] | None:
        return seal_document(self._fs, self._at(f"documents/{document_node(name)}"))

    def documents(self) -> tuple[str, ...]:
        names = list_documents(self._fs, self._at("documents"))
        return tuple(sorted(name.removesuffix("~") for name in names if name not in ("index.json", COLUMNS)))

    @classmethod
    def groups(cls, location: str) -> tuple[str, ...]:
        """Groups of the store that hold a unit: those with ``documents`` or ``tensors``, at most 4 levels deep."""
        return find_groups(open_filesystem(location))
