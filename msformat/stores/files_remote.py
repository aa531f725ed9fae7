"""The canonical layout written to a URL: an object a file, all of a unit's tensors before its first document.

An object store has no hard links, so equal content is copied by the store itself: its bytes travel once and lie there
twice. A tensor is called as its file would be, unless its name means something in a URL or pattern (``?*[]{}#%``).
"""

from __future__ import annotations

import contextlib
import re
from collections.abc import Iterable
from types import TracebackType

from msformat.errors import StoreError
from msformat.filesystem import RemoteFileSystem, open_remote
from msformat.names import safe_data_name
from msformat.stores.base import Mode, ReadOnlyBuffer, StoredTensor, StoreOptions
from msformat.stores.files import DATA_DIRECTORY, FilesStore
from msformat.stores.sidecar import SIDECAR, SidecarLine, SidecarWriter
from msformat.stores.uploads import Uploads

__all__ = ["RemoteFilesStore"]

_MEANS_SOMETHING = re.compile(r"[?*#%\[\]{}]|//|::")


class RemoteFilesStore(FilesStore):
    """Files of one unit below a URL, open for writing. Reading them is :class:`FilesStore`'s.

    Parameters
    ----------
    location
        URL of the unit's directory, which need not exist: object stores have names only.
    """

    def __init__(
        self, location: str, *, mode: Mode = "a", group: str = "", options: StoreOptions | None = None
    ) -> None:
        self._remote: RemoteFileSystem = open_remote(f"{location}/{group}" if group else location)
        self._uploads = Uploads(self._remote)
        super().__init__(location, mode=mode, group=group, options=options)

    def _make_directory(self) -> None:
        """There are no directories."""

    def _require_directory(self) -> None:
        if self._files.kind("") == "file":
            raise StoreError(f"{self.location}: is an object, not a directory")

    def _sidecar_writer(self, lines: list[SidecarLine], length: int) -> SidecarWriter:  # noqa: ARG002 (of a disk)
        return _SidecarObject(self._remote, lines)

    def _safe_name(self, key: str) -> str:
        name = safe_data_name(key)
        return safe_data_name(f"{key}\0{key[-4:]}") if _MEANS_SOMETHING.search(name) else name

    def _stands(self, name: str) -> bool:  # noqa: ARG002 (objects are called as they are written)
        return False

    def _put_file(self, name: str, parts: Iterable[bytes | memoryview]) -> None:
        self._uploads.put(f"{DATA_DIRECTORY}/{name}", b"".join(parts))

    def _second_name(self, existing: str, name: str) -> None:
        self._uploads.copy(f"{DATA_DIRECTORY}/{existing}", f"{DATA_DIRECTORY}/{name}")

    def get(self, key: str) -> StoredTensor:
        if key not in self:
            raise self._not_found(key)
        self._uploads.drain()
        return super().get(key)

    def put_document(self, name: str, data: ReadOnlyBuffer) -> None:
        """Store a document, once all that was put before is there.

        Raises
        ------
        StoreError
            This or something put before could not be written.
        """
        self._check_writable()
        self._check_document_name(name)
        self.sync()
        self._remote.write(name, bytes(data))

    def documents(self) -> tuple[str, ...]:
        with contextlib.suppress(FileNotFoundError):
            return super().documents()
        return ()

    def sync(self) -> None:
        """Wait until the store has everything."""
        self._uploads.drain()
        self._sidecar.flush()
        self._unsynced.clear()

    def close(self) -> None:
        """Sync, and let the threads end."""
        try:
            self.sync()
        finally:
            self._uploads.close()

    def abandon(self) -> None:
        self._uploads.close()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if error is not None:
            # What waits is not worth waiting for.
            self.abandon()
            return
        self.close()


class _SidecarObject(SidecarWriter):
    """All lines in one object, which is written anew: objects cannot be appended to."""

    def __init__(self, fs: RemoteFileSystem, lines: list[SidecarLine]) -> None:
        super().__init__(SIDECAR, keep=0)
        self._fs = fs
        self._all = [line.encode() for line in lines]

    def flush(self) -> bool:
        if not self._pending:
            return False
        self._all += self._pending
        self._fs.write(SIDECAR, b"".join(self._all))
        self._pending.clear()
        return True
