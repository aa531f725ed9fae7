"""A store in memory, for tests and documentation examples. It dies with the process."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any, ClassVar

from numpy.typing import NDArray

from msformat.dtypes import DType
from msformat.selection import Region
from msformat.stores.base import Mode, ReadOnlyBuffer, Store, StoredTensor, StoreOptions

__all__ = ["MemoryStore"]


class _MemoryTensor(StoredTensor):
    __slots__ = ("_bits",)

    def __init__(self, key: str, bits: NDArray[Any], dtype: DType, digest: str) -> None:
        super().__init__(key, dtype, dtype.logical_shape(bits.shape), digest)
        self._bits = bits

    @property
    def identity(self) -> Hashable:
        return id(self._bits)

    def _read(self, region: Region) -> NDArray[Any]:
        return self._bits[region.slices]


class MemoryStore(Store):
    """Tensors and documents in dictionaries. ``location`` is only a label."""

    backend: ClassVar[str] = "memory"

    def __init__(
        self,
        location: str = "memory",
        *,
        mode: Mode = "w",
        group: str = "",
        options: StoreOptions | None = None,
    ) -> None:
        super().__init__(location, mode=mode, group=group, options=options)
        self._tensors: dict[str, _MemoryTensor] = {}
        self._documents: dict[str, bytes] = {}

    def _write(self, key: str, bits: NDArray[Any], dtype: DType, digest: str, *, owned: bool) -> None:
        kept = bits if owned else bits.copy()
        kept.flags.writeable = False
        self._tensors[key] = _MemoryTensor(key, kept, dtype, digest)

    def _link(self, key: str, target: str) -> None:
        same = self._tensors[target]
        self._tensors[key] = _MemoryTensor(key, same._bits, same.dtype, same.digest or "")

    def get(self, key: str) -> StoredTensor:
        try:
            return self._tensors[key]
        except KeyError:
            raise self._not_found(key) from None

    def keys(self) -> Iterator[str]:
        return iter(self._tensors)

    def __contains__(self, key: object) -> bool:
        return key in self._tensors

    def put_document(self, name: str, data: ReadOnlyBuffer) -> None:
        self._check_writable()
        self._documents[name] = bytes(data)

    def get_document(self, name: str) -> ReadOnlyBuffer | None:
        return self._documents.get(name)

    def documents(self) -> tuple[str, ...]:
        return tuple(sorted(self._documents))

    def sync(self) -> None:
        """Nothing to do: memory is as durable as the process."""

    def close(self) -> None:
        """Nothing to do; the content stays readable."""
