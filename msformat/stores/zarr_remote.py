"""A unit in Zarr written to a URL: chunks first, then the arrays' metadata, and that of the groups when all is there.

Until its ``zarr.json`` comes, last of all, a group does not open, neither here nor with plain zarr-python: a unit whose
writer died never looks finished. There is no log to go on from; such a unit is written again.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator, Sequence
from types import TracebackType
from typing import Any

import numpy as np
from numpy.typing import NDArray

from msformat.errors import StoreError
from msformat.filesystem import RemoteFileSystem, join, open_remote
from msformat.stores.base import COLUMNS, Mode, ReadOnlyBuffer, StoreOptions
from msformat.stores.codecs import CHUNK_TARGET
from msformat.stores.zarr import ZarrStore
from msformat.stores.zarr_codecs import Encoder, document_encoder, require_numcodecs
from msformat.stores.zarr_index import IndexLog, Place
from msformat.stores.zarr_metadata import METADATA_NAME, array_document, document_node, group_document
from msformat.stores.zarr_shards import Shard
from msformat.stores.zarr_stacks import Cut, Stacks
from msformat.stores.zarr_tree import CHILDREN, LAYOUT_VERSION
from msformat.stores.zarr_write import ArrayWriter, OpenPack

__all__ = ["RemoteZarrStore", "finish_root"]

# Each waits for the network most of the time.
_THREADS = 8
# An object lies in memory on its way, one a thread: 256 MiB of them, which is what tensors that wait may take as well.
_SHARD_BYTES = 32 << 20


def finish_root(location: str) -> None:
    """Write the root's metadata: what makes the groups of a URL, whole by now, one store."""
    open_remote(location).write(METADATA_NAME, group_document({}))


class RemoteZarrStore(ZarrStore):
    """A new unit at a URL, open for writing. Reading it is :class:`ZarrStore`'s.

    Closing makes it whole; leaving a ``with`` block by an error does not. The root's own metadata is written for a unit
    at the root; where units are groups of one store, :func:`finish_root` follows the last of them.
    """

    def __init__(
        self, location: str, *, mode: Mode = "a", group: str = "", options: StoreOptions | None = None
    ) -> None:
        self._remote = open_remote(location)
        super().__init__(location, mode=mode, group=group, options=options)

    def _prepare(self) -> IndexLog:
        require_numcodecs()
        if self._remote.kind(join(self.group, METADATA_NAME)) is not None:
            raise StoreError(f"{self._fs.describe(self.group)}: already holds a unit; at a URL a unit is written once")
        return _MetadataLast(self._remote, self.group)

    def _load(self) -> int:
        self._has_index, self._changed = False, True
        return 0

    def _start_writing(self, log: IndexLog, whole: int) -> None:  # noqa: ARG002 (there is no log)
        self._writer: ArrayWriter = _ObjectWriter(self._remote, self.group, max(_THREADS, self.options.threads))
        self._pack: OpenPack | None = None
        self._packed: dict[Hashable, tuple[str, int]] = {}
        self._next_pack = 0
        self._stacks = Stacks(self._compression, 0, _SHARD_BYTES)
        self._unlogged: dict[str, Place] = {}

    def _put_array_of_bytes(self, path: str, data: ReadOnlyBuffer) -> None:
        for name, content in _document_objects(data):
            self._remote.write(join(self.group, path, name), content)

    def put_document(self, name: str, data: ReadOnlyBuffer) -> None:
        """Store a document, once all that was put before is there."""
        self._check_writable()
        self.sync()
        self._put_array_of_bytes(f"documents/{document_node(name)}", data)

    def put_columns(self, data: ReadOnlyBuffer) -> None:
        self._check_writable()
        self._put_array_of_bytes(f"documents/{COLUMNS}", data)

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            self.abandon()
            return
        self.close()


class _MetadataLast(IndexLog):
    """In the log's place: there is none, and what its end says on a disk is said by the groups' metadata."""

    def __init__(self, fs: RemoteFileSystem, group: str) -> None:
        self.path = fs.describe(group)
        self.inherited = False
        self._remote = fs
        self._group = group

    def append(self, places: Iterable[tuple[str, Place]]) -> None:
        """Nothing: the index document holds them."""

    def close(self, *, drop: bool = False) -> None:
        if not drop:
            return
        for child in CHILDREN:
            self._remote.write(join(self._group, child, METADATA_NAME), group_document({}))
        parts = self._group.split("/") if self._group else []
        for depth in range(1, len(parts)):
            self._remote.write(join(*parts[:depth], METADATA_NAME), group_document({}))
        unit = group_document({"msformat": {"layout": LAYOUT_VERSION}})
        self._remote.write(join(self._group, METADATA_NAME), unit)


class _ObjectWriter(ArrayWriter):
    """Arrays as objects. Nothing is flushed: what the store took, it keeps."""

    def __init__(self, fs: RemoteFileSystem, group: str, threads: int) -> None:
        super().__init__(group, threads, fsync=False)
        self._remote = fs

    def write(
        self,
        node: str,
        bits: NDArray[Any],
        encoder: Encoder,
        *,
        key: str,
        owned: bool,
        row: int | None = None,
        cut: Cut | None = None,
        content: Hashable = None,  # noqa: ARG002 (a file with two names is what it would be for)
    ) -> None:
        super().write(node, bits, encoder, key=key, owned=owned, row=row, cut=cut)

    def _make_directory(self, directory: str, key: str) -> None:
        """There are no directories."""

    def _shard(self, path: str, count: int, positions: Sequence[int]) -> Shard:
        return _ObjectShard(path, count, positions, self._write_file)

    def _write_file(self, path: str, data: ReadOnlyBuffer) -> None:
        self._remote.write(path, bytes(data))


class _ObjectShard(Shard):
    """A shard that lies in memory until it is whole."""

    def __init__(
        self, path: str, count: int, positions: Sequence[int], write: Callable[[str, ReadOnlyBuffer], None]
    ) -> None:
        super().__init__(path, count, positions)
        self._write = write
        self._parts: dict[int, ReadOnlyBuffer] = {}

    def _put(self, start: int, data: ReadOnlyBuffer) -> None:
        # Without compression it is a view of the tensor, which nobody changes before the shard is whole.
        self._parts[start] = data

    def _seal(self) -> None:
        content = b"".join(self._parts.pop(start) for start in sorted(self._parts))
        self._write(self.path, content)

    def abandon(self) -> None:
        super().abandon()
        self._parts.clear()


def _document_objects(data: ReadOnlyBuffer) -> Iterator[tuple[str, bytes]]:
    """Names and contents of a document's array, its metadata last."""
    content = np.frombuffer(data, np.uint8)
    chunk = max(1, min(len(content), CHUNK_TARGET))
    encoder = document_encoder()
    for number, start in enumerate(range(0, len(content), chunk)):
        piece = content[start : start + chunk]
        whole = np.concatenate([piece, np.zeros(chunk - len(piece), np.uint8)])
        yield str(number), bytes(encoder.encode(whole))
    meta = array_document(content.shape, (chunk,), content.dtype, encoder, attributes={}, keys=("v2", "."))
    yield METADATA_NAME, bytes(meta)
