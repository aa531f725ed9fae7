"""A kernel dump as a store: its files give the tensors, and ``dump.json`` is made from their headers."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cached_property
from typing import Any, ClassVar, NoReturn

from numpy.typing import NDArray

from msformat.documents import encode_dump
from msformat.dtypes import DType
from msformat.errors import FormatError, StoreError
from msformat.filesystem import FileSystem, is_url, open_filesystem
from msformat.foreign.kernel_dump.collect import Collected, collect
from msformat.foreign.kernel_dump.places import Place, place_of_file, scan
from msformat.foreign.kernel_dump.record import Doubt
from msformat.model import Header
from msformat.stores.base import Mode, ReadOnlyBuffer, Store, StoredTensor, StoreOptions
from msformat.units import UnitKey, parse_unit_path

__all__ = ["DeviceLayoutStore", "KernelStore"]

_DOCUMENT = "dump.json"
_NOWHERE = UnitKey(None, "rank")


class KernelStore(Store):
    """Kernel files of one step and rank. Read only; tensors have the framework's layout.

    Headers are read when the first tensor or document is asked for; values when they are. Memory does not grow with the
    size of files, only with the number of tensors.

    Parameters
    ----------
    location
        A directory with kernel files in it or below it, or one such file.
    group
        Path of the unit (``step0/rank3``) where the directory holds others, too.
    """

    backend: ClassVar[str] = "kernel_dump"
    keeps_device_layout: ClassVar[bool] = False

    def __init__(
        self, location: str, *, mode: Mode = "r", group: str = "", options: StoreOptions | None = None
    ) -> None:
        super().__init__(location, mode=mode, group=group, options=options)
        if mode != "r":
            raise StoreError(f"{location}: kernel dumps are read, never written")
        fs = open_filesystem(location)
        self._file = ""
        if fs.kind("") == "file":
            above, _, self._file = location.rpartition("/")
            fs = open_filesystem(above or ("." if not location.startswith("/") else "/"))
        elif fs.kind("") != "directory" and not is_url(location):
            raise StoreError(f"{location}: no such file or directory")
        self._files: FileSystem = fs

    def _places(self, doubts: list[Doubt]) -> Iterator[Place]:
        if self._file:
            yield place_of_file(self._files, self._file, _NOWHERE)
            return
        only = parse_unit_path(self.group) if self.group else None
        places = scan(self._files, "", only or _NOWHERE, only=only, doubts=doubts)
        yield from (place for place in places if only is None or place.key == only)

    @cached_property
    def _found(self) -> Collected:
        doubts: list[Doubt] = []
        found = collect(self._files, self._places(doubts), device=self.keeps_device_layout)
        found.doubts[:0] = doubts
        if not found.entries and found.unreadable:
            first = next(doubt.text for doubt in found.doubts if doubt.name.value == "unreadable")
            raise FormatError(f"{self.location}: none of its {found.files} kernel files can be read: {first}")
        return found

    # --- tensors -----------------------------------------------------------------------------------------------

    def get(self, key: str) -> StoredTensor:
        """The tensor of that name; no values are read yet.

        Raises
        ------
        TensorNotFoundError
            No such tensor.
        CorruptTensorError, FormatError
            Its file is not what it was.
        """
        opener = self._found.tensors.get(key)
        if opener is None:
            raise self._not_found(key)
        return opener()

    def keys(self) -> Iterator[str]:
        """Names of all tensors that have values, kernel by kernel."""
        return iter(self._found.tensors)

    def __contains__(self, key: object) -> bool:
        return key in self._found.tensors

    def _write(self, key: str, bits: NDArray[Any], dtype: DType, digest: str, *, owned: bool) -> NoReturn:
        del bits, dtype, digest, owned
        raise StoreError(f"{self.location}: tensor {key!r}: opened for reading")

    # --- documents ---------------------------------------------------------------------------------------------

    @property
    def problems(self) -> tuple[str, ...]:
        """What is missing or may be wrong, by name."""
        return tuple(str(doubt) for doubt in self._found.doubts if doubt.name.is_loss)

    @property
    def notes(self) -> tuple[str, ...]:
        """What is good to know, by name."""
        return tuple(str(doubt) for doubt in self._found.doubts if not doubt.name.is_loss)

    def put_document(self, name: str, data: ReadOnlyBuffer) -> NoReturn:
        """Never."""
        del data
        raise StoreError(f"{self.location}: {name}: opened for reading")

    def get_document(self, name: str) -> ReadOnlyBuffer | None:
        """``dump.json``, made from headers; tables as they are; None for any other name."""
        if name == _DOCUMENT:
            return self._document
        path = self._found.documents.get(name)
        return None if path is None else self._files.read(path)

    def documents(self) -> tuple[str, ...]:
        """``dump.json`` and the tables beside the kernels."""
        return tuple(sorted((_DOCUMENT, *self._found.documents)))

    @cached_property
    def _document(self) -> bytes:
        task = "tensor" if self._found.tensors else "statistics"
        header = Header(task, "L2", self._found.framework)
        return b"".join(encode_dump(header, self._found.entries))

    # --- life --------------------------------------------------------------------------------------------------

    def sync(self) -> None:
        """Nothing to do: nothing is written."""

    def close(self) -> None:
        """Nothing to do: no file stays open."""


class DeviceLayoutStore(KernelStore):
    """The same with tensors as they lay on the device."""

    backend: ClassVar[str] = "kernel_dump_device"
    keeps_device_layout: ClassVar[bool] = True
