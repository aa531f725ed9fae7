"""What tensor a ``data.pkl`` describes, without pickle: an interpreter for the few opcodes a saved tensor needs.

Nothing is ever imported or called. A global is an inert token; the handful of ``REDUCE`` calls that rebuild a tensor
are recognised by name and turned into a :class:`TensorRecord`; every other global is refused by name. Strings, counts
and memory are bounded by the size of the pickle, which is bounded itself. Values are never hashed, compared or printed
deeply, because shared tuples can nest exponentially. Opcodes: Python's ``pickletools``; rebuild functions:
``torch/_utils.py`` of torch 2.13.
"""

from __future__ import annotations

import struct
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Any, NoReturn

from msformat.dtypes import DType, dtype_named, known_dtypes
from msformat.errors import DTypeError, FormatError, UnsafeInputError

__all__ = ["MAX_PICKLE", "TensorRecord", "read_tensor_record"]

# A tensor takes about 200 bytes; a parameter with attributes may take more.
MAX_PICKLE = 1 << 20
MAX_DIMENSIONS = 64


@dataclass(frozen=True, slots=True)
class TensorRecord:
    """A tensor as a view of a storage.

    Attributes
    ----------
    storage
        Name of the storage: the member ``data/<storage>``.
    offset, stride
        In elements.
    conj, neg
        Lazy flags of torch: the values are to be conjugated or negated on reading.
    """

    storage: str
    dtype: DType
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]
    requires_grad: bool = False
    conj: bool = False
    neg: bool = False


@dataclass(frozen=True, slots=True)
class _Global:
    name: str


@dataclass(frozen=True, slots=True)
class _Storage:
    key: str
    dtype: DType | None  # None: untyped


_MARK = object()
_V2, _V3 = "torch._utils._rebuild_tensor_v2", "torch._utils._rebuild_tensor_v3"
_PARAMETER, _PARAMETER_STATE = "torch._utils._rebuild_parameter", "torch._utils._rebuild_parameter_with_state"
_FROM_TYPE = "torch._tensor._rebuild_from_type_v2"
_ORDERED_DICT = "collections.OrderedDict"
_PLAIN_CLASSES = ("torch.Tensor", "torch.nn.parameter.Parameter", "torch.nn.parameter.Buffer")
_STORAGES = {f"torch.{dtype.torch_storage}": dtype for dtype in known_dtypes() if dtype.torch_storage}
_UNTYPED = ("torch.storage.UntypedStorage", "torch.UntypedStorage")
_ALLOWED = {
    _V2, _V3, _PARAMETER, _PARAMETER_STATE, _FROM_TYPE, _ORDERED_DICT, "torch.Size",
    *_PLAIN_CLASSES, *_STORAGES, *_UNTYPED, *(dtype.torch_name for dtype in known_dtypes()),
}  # fmt: skip
# Harmless things a .pt may hold that are no dense tensor: worth a better message than "refused".
_OTHER_KINDS = {
    "torch._utils._rebuild_sparse_tensor": "a sparse tensor",
    "torch._utils._rebuild_sparse_csr_tensor": "a sparse tensor",
    "torch._utils._rebuild_nested_tensor": "a nested tensor",
    "torch._utils._rebuild_qtensor": "a quantised tensor",
    "torch._utils._rebuild_meta_tensor_no_storage": "a meta tensor, which has no data",
    "torch._utils._rebuild_wrapper_subclass": "a tensor subclass without storage",
    "torch._utils._rebuild_device_tensor_from_numpy": "a device tensor saved as a numpy array",
    "torch._utils._rebuild_device_tensor_from_cpu_tensor": "a device tensor of a foreign backend",
    "torch.distributed.tensor.DTensor": "a DTensor",
    "torch.distributed._tensor.api.DTensor": "a DTensor",
    "torch_npu.utils.storage._rebuild_npu_tensor": "an NPU tensor in a device layout (save a CPU copy)",
    "numpy.core.multiarray._reconstruct": "a numpy array",
    "numpy._core.multiarray._reconstruct": "a numpy array",
    "numpy.core.multiarray.scalar": "a numpy scalar",
    "numpy._core.multiarray.scalar": "a numpy scalar",
}


def read_tensor_record(data: bytes, source: str) -> TensorRecord:
    """Interpret the ``data.pkl`` of a ``.pt`` that holds one tensor.

    Raises
    ------
    UnsafeInputError
        A global outside the allow-list (named), or a pickle no saved tensor needs.
    FormatError
        Something else than a dense tensor is saved there; says what.
    """
    if len(data) > MAX_PICKLE:
        raise FormatError(f"{source}: data.pkl has {len(data)} bytes: this is no single tensor")
    known = _seen.get(data)
    if known is not None:
        return known
    try:
        found = _Machine(data, source).run()
    except (IndexError, struct.error, UnicodeDecodeError) as error:
        raise FormatError(f"{source}: damaged pickle ({type(error).__name__})") from error
    if not isinstance(found, TensorRecord):
        raise FormatError(f"{source}: holds {_kind_of(found)}, not a tensor")
    if len(_seen) < _SEEN_RECORDS and len(data) <= _SEEN_BYTES:
        _seen[data] = found
    return found


# Tensors of one shape have the same pickle, and a model has few shapes.
_seen: dict[bytes, TensorRecord] = {}
_SEEN_RECORDS, _SEEN_BYTES = 1024, 512


def _kind_of(value: Any) -> str:
    if isinstance(value, (_Global, _Storage)):
        return f"a bare {value.name if isinstance(value, _Global) else 'storage'}"
    return "None" if value is None else f"a {type(value).__name__}"


class _Machine:
    """A stack machine over ``data``; each opcode is one entry of ``_OPCODES``."""

    def __init__(self, data: bytes, source: str) -> None:
        self.data = data
        self.source = source
        self.at = 0
        self.stack: list[Any] = []
        self.memo: dict[int, Any] = {}

    def run(self) -> Any:
        while True:
            code = self.data[self.at]
            self.at += 1
            if code == ord("."):
                if len(self.stack) != 1:
                    self.refuse("leaves more than one value")
                return self.stack[0]
            action = _OPCODES.get(code)
            if action is None:
                raise UnsafeInputError(f"{self.source}: pickle opcode {bytes([code])!r}, which no saved tensor needs")
            action(self)

    def refuse(self, why: str) -> NoReturn:
        raise FormatError(f"{self.source}: the pickle {why}")

    # --- reading arguments -------------------------------------------------------------------------------------

    def take(self, length: int) -> bytes:
        end = self.at + length
        if end > len(self.data):
            self.refuse("is cut short")
        part = self.data[self.at : end]
        self.at = end
        return part

    def number(self, form: str) -> int:
        value: int = struct.unpack(form, self.take(struct.calcsize(form)))[0]
        return value

    def line(self) -> str:
        end = self.data.index(b"\n", self.at) if b"\n" in self.data[self.at : self.at + 256] else -1
        if end < 0:
            self.refuse("has a global without an end")
        part = self.data[self.at : end]
        self.at = end + 1
        return part.decode("utf-8")

    # --- values ------------------------------------------------------------------------------------------------

    def push(self, value: Any) -> None:
        self.stack.append(value)

    def pop_to_mark(self) -> list[Any]:
        for at in range(len(self.stack) - 1, -1, -1):
            if self.stack[at] is _MARK:
                items = self.stack[at + 1 :]
                del self.stack[at:]
                return items
        return self.refuse("closes what it never opened")

    def tuple_of(self, count: int) -> None:
        items = self.stack[len(self.stack) - count :]
        if len(items) < count:
            self.refuse("takes more values than it has")
        del self.stack[len(self.stack) - count :]
        self.stack.append(tuple(items))

    def protocol(self) -> None:
        version = self.take(1)[0]
        if version > 5:
            self.refuse(f"is of protocol {version}")

    def long(self) -> None:
        length = self.take(1)[0]
        if length > 9:
            raise UnsafeInputError(f"{self.source}: a pickled integer of {length} bytes")
        self.push(int.from_bytes(self.take(length), "little", signed=True))

    def set_items(self, pairs: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, dict) or len(pairs) % 2:
            self.refuse("sets items of something that is no dict")
        for key, value in zip(pairs[::2], pairs[1::2], strict=True):
            # Only scalar keys: hashing a nested tuple could take for ever.
            if not isinstance(key, (str, int, float, bool, type(None))):
                raise UnsafeInputError(f"{self.source}: a pickled dict with a {type(key).__name__} as a key")
            target[key] = value

    def append_items(self, items: list[Any]) -> None:
        target = self.stack[-1]
        if not isinstance(target, list):
            self.refuse("appends to something that is no list")
        target.extend(items)

    # --- globals and what is rebuilt from them -----------------------------------------------------------------

    def find_global(self) -> None:
        name = f"{self.line()}.{self.line()}"
        if name in _OTHER_KINDS:
            raise FormatError(f"{self.source}: holds {_OTHER_KINDS[name]}, not a dense tensor")
        if name not in _ALLOWED:
            raise UnsafeInputError(f"{self.source}: the pickle names {name!r}, which no saved tensor needs: refused")
        self.push(_Global(name))

    def persistent(self) -> None:
        what = self.stack.pop()
        good = isinstance(what, tuple) and len(what) == 5 and what[0] == "storage" and isinstance(what[2], str)
        if not good or not isinstance(what[1], _Global):
            self.refuse("names a storage in an unknown way")
        kind, key = what[1].name, what[2]
        if kind not in _STORAGES and kind not in _UNTYPED:
            self.refuse(f"names a storage of {kind}")
        self.push(_Storage(key, _STORAGES.get(kind)))

    def reduce(self) -> None:
        arguments, function = self.stack.pop(), self.stack.pop()
        if not isinstance(function, _Global) or not isinstance(arguments, tuple):
            raise UnsafeInputError(f"{self.source}: the pickle calls something that is no function")
        self.push(self.rebuild(function.name, arguments))

    def rebuild(self, function: str, arguments: tuple[Any, ...]) -> Any:
        if function == _ORDERED_DICT and not arguments:
            return {}
        if function == "torch.Size" and len(arguments) == 1 and isinstance(arguments[0], tuple):
            return arguments[0]
        if function == _V2 and len(arguments) in (6, 7):
            return self.tensor(arguments[:6], None, *arguments[6:])
        if function == _V3 and len(arguments) in (7, 8):
            return self.tensor(arguments[:6], arguments[6], *arguments[7:])
        if function in (_PARAMETER, _PARAMETER_STATE) and len(arguments) >= 3:
            return self.parameter(arguments[0], requires_grad=arguments[1])
        if function == _FROM_TYPE and len(arguments) == 4:
            return self.typed(*arguments[:3])
        raise UnsafeInputError(f"{self.source}: the pickle calls {function} with {len(arguments)} arguments: refused")

    def typed(self, function: Any, kind: Any, arguments: Any) -> Any:
        """A tensor that carried Python attributes, which are dropped."""
        if not isinstance(kind, _Global) or kind.name not in _PLAIN_CLASSES:
            self.refuse("rebuilds a tensor subclass")
        if not isinstance(function, _Global) or function.name not in (_V2, _V3) or not isinstance(arguments, tuple):
            self.refuse("rebuilds a tensor in an unknown way")
        return self.rebuild(function.name, arguments)

    def parameter(self, tensor: Any, *, requires_grad: Any) -> TensorRecord:
        if not isinstance(tensor, TensorRecord) or not isinstance(requires_grad, bool):
            self.refuse("makes a parameter of something that is no tensor")
        return replace(tensor, requires_grad=requires_grad)

    def tensor(self, arguments: tuple[Any, ...], dtype: Any, metadata: Any = None) -> TensorRecord:
        storage, offset, shape, stride, requires_grad, _hooks = arguments
        if not isinstance(storage, _Storage) or not isinstance(requires_grad, bool):
            self.refuse("makes a tensor of something that is no storage")
        self.check_geometry(offset, shape, stride)
        flags = metadata if isinstance(metadata, dict) else {}
        return TensorRecord(
            storage.key,
            self.element_type(storage, dtype),
            offset,
            shape,
            stride,
            requires_grad,
            conj=flags.get("conj") is True,
            neg=flags.get("neg") is True,
        )

    def element_type(self, storage: _Storage, dtype: Any) -> DType:
        if dtype is None and storage.dtype is not None:
            return storage.dtype
        if isinstance(dtype, _Global):
            try:
                return dtype_named(dtype.name.removeprefix("torch."))
            except DTypeError:
                self.refuse(f"gives {dtype.name} as an element type")
        return self.refuse("gives no element type")

    def check_geometry(self, offset: Any, shape: Any, stride: Any) -> None:
        if not isinstance(shape, tuple) or not isinstance(stride, tuple) or len(shape) != len(stride):
            self.refuse("gives a shape and a stride that do not fit")
        if len(shape) > MAX_DIMENSIONS:
            raise UnsafeInputError(f"{self.source}: a tensor of {len(shape)} dimensions")
        for value in (offset, *shape, *stride):
            if type(value) is not int or not 0 <= value < 1 << 63:
                raise UnsafeInputError(f"{self.source}: an offset, shape or stride that is negative or no integer")


def _memoise(machine: _Machine, at: int) -> None:
    machine.memo[at] = machine.stack[-1]


def _recall(machine: _Machine, at: int) -> None:
    if at not in machine.memo:
        machine.refuse("recalls what it never stored")
    machine.push(machine.memo[at])


def _set_item(machine: _Machine) -> None:
    value, key = machine.stack.pop(), machine.stack.pop()
    machine.set_items([key, value])


def _append(machine: _Machine) -> None:
    machine.append_items([machine.stack.pop()])


_OPCODES: dict[int, Callable[[_Machine], None]] = {
    code[0]: action
    for code, action in {
        b"\x80": _Machine.protocol,
        b"c": _Machine.find_global,
        b"q": lambda m: _memoise(m, m.take(1)[0]),
        b"r": lambda m: _memoise(m, m.number("<I")),
        b"h": lambda m: _recall(m, m.take(1)[0]),
        b"j": lambda m: _recall(m, m.number("<I")),
        b"(": lambda m: m.push(_MARK),
        b"t": lambda m: m.push(tuple(m.pop_to_mark())),
        b")": lambda m: m.push(()),
        b"\x85": lambda m: m.tuple_of(1),
        b"\x86": lambda m: m.tuple_of(2),
        b"\x87": lambda m: m.tuple_of(3),
        b"X": lambda m: m.push(m.take(m.number("<I")).decode("utf-8", "surrogatepass")),
        b"K": lambda m: m.push(m.take(1)[0]),
        b"M": lambda m: m.push(m.number("<H")),
        b"J": lambda m: m.push(m.number("<i")),
        b"\x8a": _Machine.long,
        b"G": lambda m: m.push(m.number(">d")),
        b"N": lambda m: m.push(None),
        b"\x88": lambda m: m.push(True),  # noqa: FBT003 (the opcode's value)
        b"\x89": lambda m: m.push(False),  # noqa: FBT003
        b"}": lambda m: m.push({}),
        b"]": lambda m: m.push([]),
        b"s": _set_item,
        b"u": lambda m: m.set_items(m.pop_to_mark()),
        b"a": _append,
        b"e": lambda m: m.append_items(m.pop_to_mark()),
        b"Q": _Machine.persistent,
        b"R": _Machine.reduce,
    }.items()
}
