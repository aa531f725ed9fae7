"""A save directory as a store: its files are the tensors, and ``debug.json`` is made from names and headers."""

from __future__ import annotations

import io
from collections import Counter
from collections.abc import Iterator
from functools import cached_property
from itertools import islice
from typing import Any, ClassVar, NoReturn

from numpy.typing import NDArray

from msformat.documents import encode_dump
from msformat.dtypes import DType, parse_dtype
from msformat.errors import CorruptTensorError, FormatError, MsformatError, StoreError
from msformat.filesystem import FileSystem, open_filesystem
from msformat.foreign.mindspore_dump.find import EXPECTED
from msformat.foreign.mindspore_dump.names import SUFFIX, SavedFile, parse_file_names
from msformat.jsontext import parse_object
from msformat.model import MISSING_GRADIENT, Header
from msformat.stores.base import Mode, ReadOnlyBuffer, Store, StoredTensor, StoreOptions
from msformat.stores.npyfile import MAGIC, open_npy

__all__ = ["SaveDirectoryStore"]

_DOCUMENT = "debug.json"
# A header has 10,000 bytes at most; a small tensor comes along with it.
_HEAD = 1 << 14
# A line a call: more than this is no list that save_grad wrote.
_MOST_EXPECTED = 64 << 20
_MOST_LINES = 1_000_000


class SaveDirectoryStore(Store):
    """The files of one ``step{N}/rank{R}`` directory of ``save`` and ``save_grad``. Read only.

    A tensor's key is its file name. The document is made when it is first asked for, from names and headers: no values
    are read. Each file is an entry ``{name}.{n}.debug``, as ``PrecisionDebugger.save`` writes them; ``n`` counts files
    of one name in the order of execution.
    """

    backend: ClassVar[str] = "mindspore_dump"

    def __init__(
        self, location: str, *, mode: Mode = "r", group: str = "", options: StoreOptions | None = None
    ) -> None:
        super().__init__(location, mode=mode, group=group, options=options)
        if mode != "r":
            raise StoreError(f"{location}: directories of MindSpore's save are read, never written")
        self._files: FileSystem = open_filesystem(location)
        if self._files.kind("") != "directory":
            raise StoreError(f"{location}: no such directory")

    @cached_property
    def _names(self) -> tuple[list[SavedFile], list[str]]:
        names = [item.name for item in self._files.list("") if item.kind == "file" and item.name.endswith(SUFFIX)]
        return parse_file_names(names)

    # --- tensors -----------------------------------------------------------------------------------------------

    def get(self, key: str) -> StoredTensor:
        """The tensor of that file.

        Raises
        ------
        TensorNotFoundError
            No such file.
        FormatError
            The file is no ``.npy``.
        CorruptTensorError
            The file is cut short, as one is that a dying process was writing.
        """
        if key not in self:
            raise self._not_found(key)
        try:
            size, head = self._files.size(key), self._files.read(key, 0, _HEAD)
        except OSError as error:
            if isinstance(error, StoreError):
                raise
            raise StoreError(f"{self._files.describe(key)}: {error.strerror or error}") from error
        if len(head) < len(MAGIC):
            raise CorruptTensorError(f"{self._files.describe(key)}: the file has only {len(head)} bytes")
        return open_npy(key, self._files, key, head, size)

    def keys(self) -> Iterator[str]:
        """File names in the order of execution, then those that are not TensorDump's."""
        saved, strangers = self._names
        return iter([*(file.file for file in saved), *strangers])

    @cached_property
    def _known(self) -> frozenset[str]:
        return frozenset(self.keys())

    def __contains__(self, key: object) -> bool:
        return key in self._known

    def _write(self, key: str, bits: NDArray[Any], dtype: DType, digest: str, *, owned: bool) -> NoReturn:
        del bits, dtype, digest, owned
        raise StoreError(f"{self.location}: tensor {key!r}: opened for reading")

    # --- documents ---------------------------------------------------------------------------------------------

    def put_document(self, name: str, data: ReadOnlyBuffer) -> NoReturn:
        """Never."""
        del data
        raise StoreError(f"{self.location}: {name}: opened for reading")

    def get_document(self, name: str) -> ReadOnlyBuffer | None:
        """``debug.json``, made anew for each store that is opened; None for any other name."""
        return self._document if name == _DOCUMENT else None

    def documents(self) -> tuple[str, ...]:
        """The one document."""
        return (_DOCUMENT,)

    @cached_property
    def _document(self) -> bytes:
        header = Header("tensor", "debug", "mindspore", self.location)
        return b"".join(encode_dump(header, self._entries()))

    def _entries(self) -> Iterator[tuple[str, Any]]:
        counts: Counter[str] = Counter()
        for file in self._names[0]:
            record = self._record(file)
            if record is not None:
                yield f"{file.variable}.{counts[file.variable]}.debug", record
                counts[file.variable] += 1
        for name, calls in self._expected().items():
            # Fewer gradients than calls say nothing: a compiled program runs some calls twice for one backward pass.
            if not counts[f"{name}_grad"]:
                yield f"{name}_grad.0.debug", {"type": MISSING_GRADIENT, "value": calls}

    def _record(self, file: SavedFile) -> dict[str, Any] | None:
        """What name and header say of a tensor; None for a damaged file, which stays a tensor that no entry names."""
        try:
            stored = self.get(file.file)
        except (MsformatError, OSError):
            return None
        declared = parse_dtype(file.dtype) if file.dtype is not None else None
        record: dict[str, Any] = {
            "type": "mindspore.Tensor",
            "dtype": (declared or stored.dtype).mindspore_name,
            "shape": list(stored.shape),
            "data_name": file.file,
        }
        return record

    def _expected(self) -> Counter[str]:
        """How often a gradient was asked for, by name; a line that is none, or torn, is left out."""
        if self._files.kind(EXPECTED) != "file" or self._files.size(EXPECTED) > _MOST_EXPECTED:
            return Counter()
        lines = (line for line in io.BytesIO(self._files.read(EXPECTED, 0, _MOST_EXPECTED)) if line.strip())
        return Counter(name for line in islice(lines, _MOST_LINES) if (name := _name_in(line.rstrip())))

    # --- life --------------------------------------------------------------------------------------------------

    def sync(self) -> None:
        """Nothing is ever written."""

    def close(self) -> None:
        """Nothing is held open."""


def _name_in(line: bytes) -> str | None:
    try:
        name = parse_object(line, EXPECTED).get("name")
    except FormatError:
        return None
    return name if isinstance(name, str) else None
