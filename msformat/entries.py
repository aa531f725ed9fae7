"""What a unit gives back: :class:`Entry`, one call or saved variable, and :class:`Tensor`, one tensor of it.

Both are views: they hold metadata and know where the bytes lie. Nothing is read before ``numpy()``, ``bits()``,
indexing, or a framework conversion asks.
"""

from __future__ import annotations

import operator
import warnings
from collections.abc import Iterator, Mapping
from functools import cached_property
from typing import TYPE_CHECKING, Any

from numpy.typing import NDArray

from msformat import interop, model, schema
from msformat.dtypes import DType, parse_dtype
from msformat.errors import MsformatError, TensorNotFoundError
from msformat.htmlview import entry_html, tensor_html
from msformat.lazy import reading
from msformat.logical import LogicalBits, logical_bits
from msformat.names import OpName
from msformat.selection import Selection
from msformat.smallfloats import to_float32
from msformat.stats import tensor_stats
from msformat.stores.base import StoredTensor

if TYPE_CHECKING:
    from msformat.reader import Unit

__all__ = ["Entry", "Tensor"]

_GRADIENTS = "parameters_grad"


class Tensor:
    """One tensor of an entry: its metadata at once, its values on demand.

    Reading is lazy and by slice: ``tensor[0, :8]`` costs what it returns, as far as the store allows. What comes back
    belongs to the caller. Shape and type of the values are those of the stored bytes; where the document says
    otherwise, ``msformat verify`` reports it.

    Attributes
    ----------
    entry
        The entry it belongs to.
    meta
        Everything the document says of it (:class:`msformat.model.TensorMeta`).
    slot
        ``input_args``, ``output``, ``parameters``, …; ``""`` for a saved variable.
    keys
        The way from the slot to the tensor: ``("0", "hidden")``.

    Examples
    --------
    >>> import msformat
    >>> dump = msformat.open("my_dump")
    >>> ids = dump[0]["Functional.embedding.0.forward"].inputs[0]
    >>> ids.shape, ids.dtype_name, ids.stats.max
    ((2, 5), 'torch.int64', 9.0)
    >>> ids[0, 1:4]
    array([1, 2, 3])
    """

    __slots__ = ("entry", "keys", "meta", "slot")

    def __init__(self, entry: Entry, meta: model.TensorMeta, slot: str, keys: tuple[str, ...]) -> None:
        self.entry = entry
        self.meta = meta
        self.slot = slot
        self.keys = keys

    # --- what the document says ------------------------------------------------------------------------------------

    @property
    def path(self) -> str:
        """``keys`` joined by dots, as in the tensor's name."""
        return ".".join(self.keys)

    @property
    def place(self) -> str:
        """Slot and path in the entry: ``output.0``, ``parameters.weight``."""
        return ".".join(filter(None, (self.slot, *self.keys)))

    @property
    def data_name(self) -> str | None:
        """Key of the tensor in the store, None where the run saved no data."""
        return self.meta.data_name

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape as the document says."""
        return self.meta.shape

    @property
    def dtype_name(self) -> str:
        """Element type as the document spells it: ``torch.float32``, ``BFloat16``."""
        return self.meta.dtype

    @property
    def dtype(self) -> DType | None:
        """Element type, None for a spelling nobody knows."""
        return parse_dtype(self.meta.dtype)

    @property
    def stats(self) -> model.Stats | None:
        """Max, Min, Mean and Norm; None where the document has none."""
        return self.meta.stats

    def statistics(self) -> model.Stats | None:
        """:attr:`stats`, or where the document has none those of the values, which are read for it.

        Save directories of MindSpore and kernel dumps have no document, so theirs is made without any. None where there
        are no values, or they cannot be read (:meth:`numpy` says why).
        """
        if self.stats is not None or not self.has_data:
            return self.stats
        try:
            found = self._read(...)
        except (MsformatError, OSError, MemoryError):
            return None
        return tensor_stats(found.bits, found.dtype)

    @property
    def digest(self) -> str | None:
        """The document's ``md5`` field (a CRC-32, see format.md §2), None where it has none."""
        return self.meta.digest

    @property
    def requires_grad(self) -> bool | None:
        """None where the document does not say, as for MindSpore."""
        return self.meta.requires_grad

    # --- what the store holds --------------------------------------------------------------------------------------

    @property
    def has_data(self) -> bool:
        """Whether the store holds values of this tensor."""
        return self.data_name is not None and self.data_name in self.entry.unit.store

    @property
    def stored(self) -> StoredTensor:
        """The tensor in its store; nothing is read yet.

        Raises
        ------
        TensorNotFoundError
            There are no data; says why.
        """
        unit, name = self.entry.unit, self.data_name
        if name is None:
            said = self.meta.extra.get("problem") or self.meta.extra.get("note")
            reason = str(said or f"task {unit.header.task!r} saved no data of it, only what the document says")
            raise TensorNotFoundError(self.label, unit.path, reason=reason)
        with reading(self.entry.key, unit.path):
            return unit.store.get(name)

    @property
    def nbytes(self) -> int:
        """Bytes of the stored values, uncompressed."""
        return self.stored.nbytes

    def bits(self, selection: Selection = ...) -> NDArray[Any]:
        """Values as plain bits: uint16 for bfloat16, uint8 for float8, and the type itself where numpy has it.

        Raises
        ------
        TensorNotFoundError
            There are no data; says why.
        CorruptTensorError
            Stored bytes are missing or short.
        """
        return self._read(selection).bits

    def numpy(self, selection: Selection = ...) -> NDArray[Any]:
        """Values as an array of numpy's or ``ml_dtypes``' type (``ml_dtypes.bfloat16``).

        A MindSpore dump keeps bfloat16 as float32: it comes back as bfloat16 where that is exact, else as float32
        with a warning.
        """
        found = self._read(selection)
        return found.dtype.from_bits(found.bits)

    def float32(self, selection: Selection = ...) -> NDArray[Any]:
        """Values as float32, exactly, for types that are awkward to calculate with: float8, HiFloat8, bfloat16, int4.

        Raises
        ------
        DTypeError
            The type has values that no float32 has.
        """
        found = self._read(selection)
        return to_float32(found.bits, found.dtype)

    def to_torch(self, selection: Selection = ...) -> Any:
        """Values as a ``torch.Tensor`` on the CPU, bit for bit. See :func:`msformat.interop.to_torch`."""
        found = self._read(selection)
        return interop.to_torch(found.bits, found.dtype)

    def to_mindspore(self, selection: Selection = ...) -> Any:
        """Values as a ``mindspore.Tensor``. See :func:`msformat.interop.to_mindspore`."""
        found = self._read(selection)
        return interop.to_mindspore(found.bits, found.dtype)

    def __getitem__(self, selection: Selection) -> NDArray[Any]:
        return self.numpy(selection)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> NDArray[Any]:  # noqa: FBT001 (numpy's protocol)
        found = self.numpy()
        return found if dtype is None else found.astype(dtype, copy=bool(copy))

    def _read(self, selection: Selection) -> LogicalBits:
        unit = self.entry.unit
        found = unit.unclosed(lambda: self._read_once(selection))
        if found.note:
            warnings.warn(f"{unit.path}: {found.note}", stacklevel=3)
        return found

    def _read_once(self, selection: Selection) -> LogicalBits:
        stored = self.stored
        with reading(self.entry.key, self.entry.unit.path):
            return logical_bits(stored, self.meta.dtype, selection)

    @property
    def label(self) -> str:
        """Entry and place, for messages: ``Functional.relu.0.forward: input_args.0``."""
        return f"{self.entry.key}: {self.place}"

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return tensor_html(self)

    def __repr__(self) -> str:
        data = "" if self.data_name is not None else ", no data"
        return f"<Tensor {self.label!r} {self.dtype_name} {list(self.shape)}{data}>"


class Entry:
    """One entry of a dump: a call of an API or module, the gradients of a module's parameters, or a saved variable.

    In every tree that an entry gives back, tensors are :class:`Tensor` views, plain values are
    :class:`msformat.model.Scalar` (with ``.type`` and ``.value``), sequences are tuples, mappings are dicts, and None
    is None.

    Attributes
    ----------
    key
        The entry key, verbatim: ``Module.head.Linear.forward.0``.
    unit
        The unit it belongs to.

    Examples
    --------
    >>> import msformat
    >>> entry = msformat.open("my_dump")[0]["Module.norm.LayerNorm.forward.0"]
    >>> entry.inputs
    (<Tensor 'Module.norm.LayerNorm.forward.0: input_args.0' torch.float32 [2, 5, 8]>,)
    >>> sorted(entry.parameters)
    ['bias', 'weight']
    """

    def __init__(self, unit: Unit, entry: model.Entry) -> None:
        self.unit = unit
        self.key = entry.key
        self._entry = entry

    @cached_property
    def name(self) -> OpName | None:
        """The key taken apart, None for a key of no known form."""
        return self._entry.name

    @cached_property
    def value(self) -> Any:
        """Everything the document says of this entry, as one tree: a dict by slot, or a saved variable as it is."""
        slots = self._entry.slots
        if not slots:
            return self._bind(self._entry.value, "", ())
        if self._is_gradients:
            return {name: self._bind_gradient(name, node) for name, node in slots.items()}
        return {slot: self._bind(node, slot, ()) for slot, node in slots.items()}

    @property
    def inputs(self) -> tuple[Any, ...]:
        """Positional arguments of a forward; gradients of the outputs for a backward (format.md §2)."""
        return self._sequence("input_args") or self._sequence("input")

    @property
    def kwargs(self) -> dict[str, Any]:
        """Keyword arguments of a forward call."""
        return self._mapping("input_kwargs")

    @property
    def outputs(self) -> tuple[Any, ...]:
        """What a forward returned; gradients of the inputs for a backward."""
        return self._sequence("output")

    @property
    def parameters(self) -> dict[str, Any]:
        """Parameters of a module's forward, or the gradients of its parameters, by parameter name.

        A gradient that never came is None.
        """
        if not self._is_gradients:
            return self._mapping("parameters")
        return {name: _only(node) for name, node in self._slots.items()}

    @property
    def is_recompute(self) -> bool | None:
        """Whether the call was a recomputation of checkpointed activations; None where the document does not say."""
        return self._entry.is_recompute

    @property
    def stack(self) -> tuple[str, ...] | None:
        """The call stack, innermost frame first; None where none was recorded."""
        return self.unit.stack(self.key)

    @property
    def parent(self) -> str | None:
        """Key of the enclosing module's entry; None at the top, or where none was recorded."""
        return self.unit.parent(self.key)

    @cached_property
    def tensors(self) -> tuple[Tensor, ...]:
        """Every tensor of the entry, in the document's order."""
        return tuple(_tensors_in(self.value))

    def json(self) -> Any:
        """The entry as it stands in the document, as plain JSON values."""
        return schema.dump_entry(self._entry)

    def _repr_html_(self) -> str:
        """What a notebook shows."""
        return entry_html(self)

    def __repr__(self) -> str:
        return f"<Entry {self.key!r}: {len(self.tensors)} tensors>"

    def __reduce__(self) -> tuple[Any, ...]:
        return operator.getitem, (self.unit, self.key)

    # --- binding ---------------------------------------------------------------------------------------------------

    @property
    def _is_gradients(self) -> bool:
        return self.name is not None and self.name.stage == _GRADIENTS

    @property
    def _slots(self) -> dict[str, Any]:
        return self.value if self._entry.slots else {}

    def _sequence(self, slot: str) -> tuple[Any, ...]:
        found = self._slots.get(slot)
        if found is None:
            return ()
        return found if isinstance(found, tuple) else (found,)

    def _mapping(self, slot: str) -> dict[str, Any]:
        found = self._slots.get(slot)
        return found if isinstance(found, dict) else {}

    def _bind_gradient(self, name: str, node: model.Node) -> Any:
        """The document keeps a list of one gradient a parameter; the tensor's name has no index for it."""
        if isinstance(node, (list, tuple)) and len(node) == 1:
            return (self._bind(node[0], _GRADIENTS, (name,)),)
        return self._bind(node, _GRADIENTS, (name,))

    def _bind(self, node: model.Node, slot: str, keys: tuple[str, ...]) -> Any:
        if isinstance(node, model.TensorMeta):
            return Tensor(self, node, slot, keys)
        if isinstance(node, Mapping):
            return {key: self._bind(child, slot, (*keys, key)) for key, child in node.items()}
        if isinstance(node, (list, tuple)):
            return tuple(self._bind(child, slot, (*keys, str(at))) for at, child in enumerate(node))
        return node


def _only(node: Any) -> Any:
    return node[0] if isinstance(node, tuple) and len(node) == 1 else node


def _tensors_in(node: Any) -> Iterator[Tensor]:
    """Tensors of a bound tree in order, without recursion."""
    waiting = [node]
    while waiting:
        node = waiting.pop()
        if isinstance(node, Tensor):
            yield node
        elif isinstance(node, dict):
            waiting.extend(reversed(node.values()))
        elif isinstance(node, tuple):
            waiting.extend(reversed(node))
