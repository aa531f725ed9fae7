"""The seam between capture and a framework: whose tensors these are, and what can be learnt of one.

Session, record, scope and tree know tensors through :class:`Framework` only, so that PyTorch, MindSpore and MSAdapter
share them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from contextlib import AbstractContextManager
from typing import Any, NamedTuple, Protocol

from numpy.typing import NDArray

from msformat import DType

__all__ = ["Captured", "Framework", "HostTensor", "ValueRules", "Wanted"]


class HostTensor:
    """The bits of a tensor on the host, on their way to the store; every name of the same content shares one.

    Attributes
    ----------
    bits
        Array of ``dtype.storage``, contiguous and owned: nobody changes it. None once stored, so that memory goes.
    dtype
        Logical element type.
    nbytes
        Size of the bits, also after they are gone.
    name
        ``data_name`` the content was stored under first, in the unit that is ``owner``.
    crc
        CRC-32 as the format writes it, once computed.
    owner
        Who stored it; a name means nothing in another unit.
    """

    __slots__ = ("__weakref__", "bits", "crc", "dtype", "name", "nbytes", "owner")

    def __init__(self, bits: NDArray[Any], dtype: DType) -> None:
        self.bits: NDArray[Any] | None = bits
        self.dtype = dtype
        self.nbytes = int(bits.nbytes)
        self.name: str | None = None
        self.crc: str | None = None
        self.owner: object | None = None


class Captured(NamedTuple):
    """What :meth:`Framework.describe` learnt of one tensor."""

    node: dict[str, Any]
    """JSON of the tensor in canonical order, without ``data_name``."""
    host: HostTensor | None
    """The bits, when they are wanted and could be had."""
    pending: object | None
    """Statistics still on the device; :meth:`Framework.resolve` brings them over in batches."""


class Wanted(NamedTuple):
    """What a tensor is recorded with."""

    statistics: bool
    data: bool
    md5: bool


class ValueRules(NamedTuple):
    """How values that are no tensors are recorded, where the dumps of frameworks differ."""

    odd_is_null: bool = False
    """Values of a type that the format does not know (bytes, complex, an object) are null; False: their type's name."""
    none_key: str = "None"
    """What a key that is None is called."""
    bound: Callable[[object], Any] | None = None
    """The number that a bound of a slice stands for, when it is no Python number; None: null."""
    named: Mapping[str, Callable[[object], Any]] = {}
    """Key of a mapping to what makes the node of a value under it, or ``values.NOT_A_LEAF`` for the usual one."""


class Framework(Protocol):
    """A framework's side of capture. No method raises for an odd tensor; it is recorded with the reason."""

    name: str
    """As the header says: ``pytorch``, ``mindspore``, ``mindtorch``."""
    suffix: str
    """Of tensor files: ``.pt`` or ``.npy``."""
    rules: ValueRules
    """How its dumps record other values."""

    def is_tensor(self, value: object) -> bool:
        """Whether ``describe`` is to be asked about the value."""

    def describe(self, tensor: Any, wanted: Wanted) -> Captured:
        """Everything wanted of a tensor as it is now; no reference to it is kept."""

    def leaf(self, value: object) -> Any:
        """JSON of a value of the framework that is no tensor (dtype, device, …), or ``values.NOT_A_LEAF``."""

    def resolve(self, pending: list[tuple[dict[str, Any], object]]) -> None:
        """Fill statistics that were left on the device into their nodes, with one copy for all."""

    def quiet(self) -> AbstractContextManager[object]:
        """A block whose operations neither autograd nor the user's function and dispatch modes see."""

    def rank(self) -> int | None:
        """Rank of this process, None when there is only one."""

    def is_recompute(self) -> bool | None:
        """Whether this forward is the second one of activation checkpointing; None: dumps do not say it."""

    def on_gradient(self, tensor: Any, callback: Callable[[Any], None]) -> bool:
        """Call back with the tensor's gradient; False when it takes none.

        Raises
        ------
        CaptureError
            It may take one that nobody can bring; the message says why.
        """

    def new_step(self) -> None:
        """Forget everything kept about tensors."""
