"""Many tensors of a store in one call: what is gained by asking for them together.

A pack of a Zarr store is unpacked once for all that is wanted of it, and objects behind a URL travel at the same time.
Where nothing is gained, tensors are opened one after the other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, Protocol, TypeAlias, TypeVar, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from msformat.errors import MsformatError
from msformat.selection import Region, Selection
from msformat.stores.base import Store, StoredTensor

__all__ = [
    "HELD_BYTES",
    "READ_ERRORS",
    "Found",
    "HeldTensor",
    "SupportsMany",
    "at_once",
    "attempt",
    "get_many",
    "hold_groups",
]

T = TypeVar("T")
R = TypeVar("R")

#: A tensor, or why it cannot be had.
Found: TypeAlias = "StoredTensor | Exception"
#: What ends the reading of one tensor; the others go on.
READ_ERRORS = (MsformatError, OSError, MemoryError)
#: Only what is smaller is read before it is asked for.
HELD_BYTES = 128 << 10
# Each waits for the network most of the time.
REQUESTS = 16


@runtime_checkable
class SupportsMany(Protocol):
    """A store that gives many tensors quicker than one after the other."""

    def get_many(self, keys: Sequence[str]) -> list[Found]:
        """The tensors of these keys in their order; those of up to :data:`HELD_BYTES` may be held in memory."""


def get_many(store: Store, keys: Sequence[str]) -> list[Found]:
    """Tensors of several keys, in their order.

    Those of up to :data:`HELD_BYTES` may be read already; of larger ones nothing is, so that a call takes no more than
    so much memory a key. Never raises for what is wrong with one of them: that stands in its place.
    """
    if isinstance(store, SupportsMany):
        return store.get_many(keys)

    def get(key: str) -> StoredTensor:
        # At once: what HDF5 opened would have to be opened again.
        found = store.get(key)
        return _held(found) if found.nbytes <= HELD_BYTES else found

    return [attempt(get, key) for key in keys]


def attempt(action: Callable[[T], R], argument: T) -> R | Exception:
    """What an action gives, or its error."""
    try:
        return action(argument)
    except READ_ERRORS as error:
        return error


def at_once(action: Callable[[T], R], arguments: Iterable[T], *, requests: int = REQUESTS) -> list[R | Exception]:
    """Do something for each argument, at the same time for as many as ``requests``; results in their order."""
    waiting = list(arguments)
    if min(requests, len(waiting)) < 2:
        return [attempt(action, argument) for argument in waiting]
    with ThreadPoolExecutor(min(requests, len(waiting))) as pool:
        return list(pool.map(lambda argument: attempt(action, argument), waiting))


def hold_groups(found: list[Found], group_of: Callable[[StoredTensor], str | None], *, requests: int) -> None:
    """Read the small ones of some tensors, and put what holds their bits in their places.

    Parameters
    ----------
    found
        Tensors of one store, or errors, which stay.
    group_of
        What a tensor lies in together with others, which are read with it; None leaves it as it is.
    requests
        How many groups are read at the same time.
    """
    groups: dict[str, list[int]] = {}
    for number, tensor in enumerate(found):
        group = group_of(tensor) if isinstance(tensor, StoredTensor) and tensor.nbytes <= HELD_BYTES else None
        if group is not None:
            groups.setdefault(group, []).append(number)

    def hold(numbers: list[int]) -> None:
        for number in numbers:
            found[number] = attempt(_held, found[number])

    at_once(hold, groups.values(), requests=requests)


def _held(stored: Any) -> HeldTensor:
    return HeldTensor(stored, stored.bits())


class HeldTensor(StoredTensor):
    """A small tensor whose bits are in memory already.

    Parameters
    ----------
    stored
        The tensor in its store.
    bits
        All its bits; nobody changes them.
    """

    __slots__ = ("_bits", "_stored")

    def __init__(self, stored: StoredTensor, bits: NDArray[Any]) -> None:
        self._stored = stored
        self._bits = bits
        super().__init__(stored.key, stored.dtype, stored.shape)

    @property
    def digest(self) -> str | None:
        """As recorded by the store."""
        return self._stored.digest

    @digest.setter
    def digest(self, value: str | None) -> None:
        """The store's counts, which may have to be looked up."""

    def _read(self, region: Region) -> NDArray[Any]:
        return self._bits[region.slices]

    def bits(self, selection: Selection = ...) -> NDArray[Any]:
        # Planning a selection takes longer than to copy what is small.
        return np.array(self._bits, order="C", copy=True) if selection is Ellipsis else super().bits(selection)
