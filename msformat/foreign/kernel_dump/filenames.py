"""Names of kernel dump files, taken apart; nothing else in this package does so.

``{op_type}.{op_name}.{task}.{stream}.{timestamp}`` is the usual form. In type and name every blank, dot, slash and
backslash was replaced by ``_``, so that the number of fields tells the forms apart.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

__all__ = ["KernelName", "is_hash_name", "parse_kernel_name", "sanitised"]

# Writers that leave dots in the operator's name were seen: the name is what stands between type and numbers.
_T = r"(?P<op_type>[^.]*)\.(?P<op_name>.*?)"
_N = r"[0-9]{1,20}"
# A short timestamp (nano) counts from the start of the system. Five digits keep libx.so.1.2.3 apart.
_STAMP = r"(?P<timestamp>[0-9]{5,20})"
_TAIL = rf"(?:\.(?P<task_type>{_N})\.(?P<context_id>{_N})\.(?P<thread_id>{_N})\.(?P<device_id>{_N}))?"
_TENSOR = (
    r"\.(?P<slot>input|output|buffer|space)\.(?P<index>[0-9]{1,6})"
    r"(?:\.(?P<format>(?!npy$)[A-Za-z0-9_]+))?(?:\.(?P<dtype>(?!npy$)[A-Za-z0-9_]+))?(?P<suffix>\.npy)?"
)
_FORMS = (
    re.compile(rf"exception_info\.(?P<stream_id>{_N})\.(?P<task_id>{_N})\.(?P<timestamp>[0-9]{{17}})"),
    re.compile(rf"{_T}\.(?P<task_id>{_N})\.(?P<stream_id>{_N})\.{_STAMP}{_TAIL}", re.DOTALL),
    re.compile(rf"{_T}\.(?P<task_id>{_N})\.(?P<timestamp>[0-9]{{9,20}})", re.DOTALL),
)
_TENSOR_FORMS = (
    re.compile(rf"{_T}\.(?P<task_id>{_N})\.(?P<stream_id>{_N})\.{_STAMP}{_TAIL}{_TENSOR}", re.DOTALL),
    re.compile(rf"{_T}\.(?P<task_id>{_N})\.(?P<timestamp>[0-9]{{9,20}}){_TENSOR}", re.DOTALL),
)
# Reference data of Caffe and TensorFlow models.
_REFERENCE = re.compile(r"(?P<op_name>[^.]+)\.(?P<index>[0-9]{1,6})\.(?P<timestamp>[0-9]{9,20})(?P<suffix>\.npy)")
_HASH = re.compile(r"[0-9]{1,20}|(?:[0-9]{32}|[0-9a-f]{32})(?:\.npy)?")
_OVERFLOW = re.compile(r"op_?debug", re.IGNORECASE)
_REPLACED = str.maketrans({" ": "_", ".": "_", "/": "_", "\\": "_"})
_NOT_KNOWN = 65535


@dataclass(frozen=True, slots=True)
class KernelName:
    """What a file name says.

    Attributes
    ----------
    stem
        The kernel's part of the name: everything before ``.input.0…`` of a single tensor.
    op_type, op_name
        As in the name; aclnn operators have them the other way round, which only the header can tell.
    task_id, stream_id
        None where the name has none; 65535 (not known) is None, too.
    timestamp
        Microseconds since 1970, or what else the writer counts; None for none.
    task_type, context_id, thread_id, device_id
        Of FFTS+ names.
    slot, index, format, dtype, suffix
        Of a file that holds a single tensor; ``""`` and None otherwise.
    """

    stem: str
    op_type: str = ""
    op_name: str = ""
    task_id: int | None = None
    stream_id: int | None = None
    timestamp: int | None = None
    task_type: int | None = None
    context_id: int | None = None
    thread_id: int | None = None
    device_id: int | None = None
    slot: str = ""
    index: int | None = None
    format: str = ""
    dtype: str = ""
    suffix: str = ""

    @property
    def is_tensor(self) -> bool:
        """Whether the file holds one tensor (``.npy`` or raw bytes), not a record."""
        return self.index is not None

    @property
    def is_overflow(self) -> bool:
        """Whether it is what the overflow detection leaves (``Opdebug.Node_OpDebug…``)."""
        return _OVERFLOW.fullmatch(self.op_type) is not None

    @property
    def is_slice(self) -> bool:
        """Whether it is one thread's slice of an FFTS+ operator."""
        return self.task_type == 4 and self.thread_id is not None


def parse_kernel_name(name: str) -> KernelName | None:
    """Take a file name apart; None for a name of no known form."""
    for form in _FORMS:
        found = form.fullmatch(name)
        if found is not None:
            return _made(name, found)
    for form in _TENSOR_FORMS:
        found = form.fullmatch(name)
        if found is not None:
            return _made(name[: found.start("slot") - 1], found)
    found = _REFERENCE.fullmatch(name)
    return None if found is None else _made(name.rpartition(".")[0], found, slot="output")


def _made(stem: str, found: re.Match[str], **more: str) -> KernelName:
    values: dict[str, object] = dict(more)
    for field, text in found.groupdict().items():
        if text is not None:
            values[field] = int(text) if text.isdigit() and field not in _TEXTS else text
    for field in ("task_id", "stream_id"):
        if values.get(field) == _NOT_KNOWN:
            del values[field]
    return KernelName(stem, **values)  # type: ignore[arg-type] # groups are called like the fields


_TEXTS = frozenset({"op_type", "op_name", "format", "dtype", "slot", "suffix"})


def is_hash_name(name: str) -> bool:
    """Whether a name may stand for one that was too long; ``mapping.csv`` says for which."""
    return _HASH.fullmatch(name) is not None


def sanitised(name: str) -> str:
    """An operator's name as it stands in file names."""
    return name.translate(_REPLACED)
