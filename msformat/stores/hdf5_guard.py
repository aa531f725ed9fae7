"""What a stranger's HDF5 file may do to its reader, and how it is kept from it.

HDF5 follows links by itself: to other files, through drivers and plug-ins, in circles. So every step of a path is
looked at before it is taken, and only hard links to groups and datasets are. A dataset may declare any shape; nothing
is allocated before it is known that the stored bytes can back it. Missing chunks are an error: HDF5 reads them as
zeros without a word.
"""

from __future__ import annotations

import math
import os
import re
import stat
from dataclasses import dataclass
from functools import lru_cache
from importlib import import_module
from types import TracebackType
from typing import Any

import numpy as np

from msformat.dtypes import DType, dtype_from_numpy, dtype_named
from msformat.errors import (
    BackendMissingError,
    CorruptTensorError,
    DTypeError,
    MsformatError,
    StoreError,
    UnsafeInputError,
)
from msformat.stores.hdf5_paged import LOCK_ADVICE

__all__ = [
    "Described",
    "are_all_hard",
    "check_backing",
    "check_regular",
    "describe",
    "find_groups",
    "library_lock",
    "links_of",
    "load_h5py",
    "named_errors",
    "open_dataset",
    "open_error",
    "open_group",
    "read_text_attribute",
]

_CHUNK_LIMIT = 1 << 30
# More no dataset has. A tensor of torch may have 64, and complex32 one more.
MOST_AXES = 32
_AXES = re.compile(r"[0-9]{1,15}(,[0-9]{1,15})*")
# Deflate cannot pack more than 1032 bytes in one (zlib's technical notes).
_DEFLATE_RATIO = 1040
# blosc and scale-offset keep a constant chunk in some thirty bytes.
_ANY_RATIO = 1 << 20
_GROUP_DEPTH = 4
_COMPLAINTS = (OSError, RuntimeError, ValueError, KeyError, TypeError)
_PLUGIN_ADVICE = "pip install hdf5plugin brings the usual ones"


@lru_cache(maxsize=1)
def load_h5py() -> Any:
    """The h5py package, imported on first use.

    Raises
    ------
    BackendMissingError
        h5py is not installed.
    """
    try:
        return import_module("h5py")
    except ImportError as error:
        raise BackendMissingError("h5py", "hdf5", "the HDF5 store") from error


@lru_cache(maxsize=1)
def library_lock() -> Any:
    """The re-entrant lock h5py holds in each call of HDF5, which does not stand two threads.

    h5py 3.8 forgets it where chunks are read and written directly.
    """
    load_h5py()
    return import_module("h5py._objects").phil


class named_errors:  # noqa: N801 (used as contextlib's functions are; a generator would cost as much as a call of HDF5)
    """Turn HDF5's complaints, of which a broken file has many kinds, into one of ours that says where."""

    __slots__ = ("_kind", "_what")

    def __init__(self, what: str, kind: type[MsformatError] = StoreError) -> None:
        self._what = what
        self._kind = kind

    def __enter__(self) -> None:
        return

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if isinstance(error, _COMPLAINTS) and not isinstance(error, MsformatError):
            raise self._kind(f"{self._what}: {error}") from error


# --- links and objects -----------------------------------------------------------------------------------------------


def links_of(group: Any, *, by_creation: bool = False) -> list[tuple[bytes, bool]]:
    """Name of each link of a group, and whether it is a hard one."""
    h5py = load_h5py()
    found: list[tuple[bytes, bool]] = []

    def note(name: bytes, info: Any) -> None:
        found.append((name, info.type == h5py.h5l.TYPE_HARD))

    index = h5py.h5.INDEX_CRT_ORDER if by_creation else h5py.h5.INDEX_NAME
    group.links.iterate(note, info=True, idx_type=index)
    return found


def _check_hard(group: Any, name: bytes, label: str) -> bool:
    """Whether a link is there; raises unless it is a hard one."""
    h5py = load_h5py()
    try:
        kind = group.links.get_info(name).type
    except (OSError, RuntimeError, ValueError, KeyError):
        with named_errors(label):
            if not group.links.exists(name):
                return False
        raise StoreError(f"{label}: broken link") from None
    if kind != h5py.h5l.TYPE_HARD:
        words = {h5py.h5l.TYPE_SOFT: "soft link", h5py.h5l.TYPE_EXTERNAL: "link to another file"}
        raise UnsafeInputError(f"{label}: is a {words.get(kind, 'user-defined link')}; only hard links are followed")
    return True


def open_group(parent: Any, name: bytes, label: str) -> Any | None:
    """The group behind a hard link, None where there is no link.

    Raises
    ------
    UnsafeInputError
        Another kind of link.
    StoreError
        Something else than a group.
    """
    h5py = load_h5py()
    if not _check_hard(parent, name, label):
        return None
    with named_errors(f"{label}: cannot be opened as a group"):
        return h5py.h5g.open(parent, name)


def are_all_hard(group: Any) -> bool:
    """Whether every link of a group is a hard one, so that none has to be asked before it is followed."""
    h5py = load_h5py()
    others: list[int] = []

    def note(_: bytes, info: Any) -> bool | None:
        if info.type == h5py.h5l.TYPE_HARD:
            return None
        others.append(info.type)
        return True  # ends the walk

    try:
        group.links.iterate(note, info=True, order=h5py.h5.ITER_NATIVE)
    except _COMPLAINTS:
        return False
    return not others


def open_dataset(group: Any, name: bytes, label: str, *, all_hard: bool = False) -> Any | None:
    """The dataset behind a hard link, None where there is no link. Raises as :func:`open_group` does.

    Parameters
    ----------
    all_hard
        What :func:`are_all_hard` said of the group: the link is looked up once, not twice.
    """
    h5py = load_h5py()
    if all_hard:
        try:
            return h5py.h5d.open(group, name)
        except _COMPLAINTS:  # not there, or broken: told apart below
            pass
    if not _check_hard(group, name, label):
        return None
    with named_errors(f"{label}: cannot be opened as a dataset", CorruptTensorError):
        return h5py.h5d.open(group, name)


def find_groups(root: Any) -> list[str]:
    """Paths of the groups at most four deep that hold a group ``tensors`` or ``documents``; ``""`` is the root."""
    found: list[str] = []
    seen: set[Any] = set()

    def visit(group: Any, path: str, depth: int) -> None:
        address = load_h5py().h5o.get_info(group).addr
        if address in seen:
            return
        seen.add(address)
        children = {name: _subgroup(group, name) for name, hard in links_of(group) if hard}
        if any(children.get(name) is not None for name in (b"tensors", b"documents")):
            found.append(path)
        for name, child in children.items():
            if child is not None and depth < _GROUP_DEPTH and name not in (b"tensors", b"documents"):
                text = name.decode("utf-8", "surrogateescape")
                visit(child, f"{path}/{text}".lstrip("/"), depth + 1)

    visit(root, "", 0)
    return found


def _subgroup(group: Any, name: bytes) -> Any | None:
    h5py = load_h5py()
    try:
        return h5py.h5g.open(group, name)
    except (OSError, RuntimeError, ValueError, KeyError):
        return None  # a dataset, a named type, or broken: no unit in any case


# --- datasets --------------------------------------------------------------------------------------------------------


def read_text_attribute(dataset: Any, name: bytes) -> str | None:
    """A scalar text attribute, None where there is none of that name or it is something else."""
    h5py = load_h5py()
    if not h5py.h5a.exists(dataset, name):
        return None
    attribute = h5py.h5a.open(dataset, name)
    kind = attribute.get_type()
    if not isinstance(kind, h5py.h5t.TypeStringID) or attribute.shape != ():
        return None
    if kind.is_variable_str():
        value = h5py.Dataset(dataset).attrs[name.decode()]
        return value if isinstance(value, str) else None
    if kind.get_size() > 1024:
        return None
    out = np.empty((), f"S{kind.get_size()}")
    attribute.read(out, mtype=kind)
    return bytes(out[()]).decode("utf-8", "replace")


@dataclass(slots=True)
class Described:
    """What HDF5 said of a dataset. It is asked once: each answer takes as long as to read a small tensor.

    Attributes
    ----------
    dtype
        Logical element type.
    whole
        Shape as stored, with the lanes axis.
    itemsize
        Bytes of an element as stored.
    axes
        The shape, with the lanes axis, of what has too many axes for HDF5 and is stored as a row.
    """

    dtype: DType
    whole: tuple[int, ...]
    itemsize: int
    axes: tuple[int, ...] | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """The logical shape."""
        return self.dtype.logical_shape(self.whole if self.axes is None else self.axes)


def describe(dataset: Any, label: str) -> Described:
    """Element type and shape of a dataset.

    Raises
    ------
    CorruptTensorError
        Its ``dtype`` attribute and its stored type contradict each other.
    DTypeError
        A type that holds references, objects or variable-length data, or that numpy does not know.
    """
    with named_errors(f"{label}: stored type cannot be read", DTypeError):
        shape = dataset.shape
        stored, itemsize = _stored_type(dataset.get_type().encode())
        declared = read_text_attribute(dataset, b"dtype")
    if shape is None:
        raise CorruptTensorError(f"{label}: has a null dataspace")
    if stored.hasobject or stored.kind in "OV":
        raise DTypeError(f"{label}: {stored} is no element type of a tensor")
    try:
        dtype = _plain_dtype(stored) if declared is None else dtype_named(declared)
    except DTypeError as error:
        raise DTypeError(f"{label}: {error}") from error
    if declared is not None and stored.newbyteorder("<") != dtype.storage.newbyteorder("<"):
        raise CorruptTensorError(f"{label}: attribute dtype says {declared}, but {stored} are stored")
    # A native type is declared only of a row that was made flat: others are not asked for one attribute more.
    axes = _axes_of(dataset, shape, label) if declared is not None and len(shape) == 1 else None
    stored_shape = shape if axes is None else axes
    if dtype.lanes > 1 and stored_shape[-1:] != (dtype.lanes,):
        raise CorruptTensorError(
            f"{label}: {declared} needs a last axis of {dtype.lanes}, but the shape is {stored_shape}"
        )
    return Described(dtype, shape, itemsize, axes)


def _axes_of(dataset: Any, whole: tuple[int, ...], label: str) -> tuple[int, ...] | None:
    with named_errors(f"{label}: attribute shape cannot be read", CorruptTensorError):
        text = read_text_attribute(dataset, b"shape")
    if text is None:
        return None
    if text.count(",") < MOST_AXES and read_text_attribute(dataset, b"xxh3_128") is None:
        return None  # what another writer, who sums nothing up, notes under that name
    axes = tuple(map(int, text.split(","))) if _AXES.fullmatch(text) else ()
    if not MOST_AXES < len(axes) <= 2 * MOST_AXES + 1 or math.prod(axes) != whole[0]:
        raise CorruptTensorError(f"{label}: attribute shape is not one of {whole[0]} elements in a row")
    return axes


@lru_cache(maxsize=64)
def _stored_type(encoded: bytes) -> tuple[np.dtype[Any], int]:
    """The numpy type of an HDF5 type, and its bytes: most datasets have one of few, and h5py takes it apart each time.

    The bytes are not always numpy's: a float of 24 bits becomes one of 32.
    """
    h5t = load_h5py().h5t
    kind = h5t.decode(encoded)
    if isinstance(kind, h5t.TypeCompoundID) and any(
        kind.get_member_offset(at) + kind.get_member_type(at).get_size() > kind.get_size()
        for at in range(kind.get_nmembers())
    ):
        # Old releases of HDF5 would read what lies behind an element.
        raise ValueError("a member of the compound type lies outside of it")
    return kind.dtype, kind.get_size()


@lru_cache(maxsize=64)
def _plain_dtype(stored: np.dtype[Any]) -> DType:
    """The type of a dataset that declares none: what is stored is what is meant."""
    dtype = dtype_from_numpy(stored)
    if not dtype.is_native:
        raise DTypeError(f"{stored} is no element type of a tensor")
    return dtype


def check_backing(dataset: Any, described: Described, file_size: int, label: str) -> Any:
    """Make sure that the stored bytes can back the declared shape, before anything of its size is allocated.

    Returns
    -------
    plan
        The creation property list of a dataset in chunks: asking for it again would cost more than a small read.

    Raises
    ------
    CorruptTensorError
        Bytes or chunks are missing, or the declared sizes are absurd.
    UnsafeInputError
        The data lie in another file.
    StoreError
        Compressed with a filter that is not installed.
    """
    with named_errors(label, CorruptTensorError):
        plan = dataset.get_create_plist()
        layout = plan.get_layout()
        _check_backing(dataset, plan, layout, described, file_size, label)
    return plan if layout == load_h5py().h5d.CHUNKED else None


def _check_backing(dataset: Any, plan: Any, layout: int, described: Described, file_size: int, label: str) -> None:
    h5py = load_h5py()
    if layout not in (h5py.h5d.COMPACT, h5py.h5d.CONTIGUOUS, h5py.h5d.CHUNKED):
        raise UnsafeInputError(f"{label}: is a virtual dataset, whose data lie elsewhere")
    if layout == h5py.h5d.CONTIGUOUS and plan.get_external_count():
        raise UnsafeInputError(f"{label}: its data lie in another file")
    stored = dataset.get_storage_size()
    wanted = math.prod(described.whole) * described.itemsize
    if wanted == 0:
        return
    if stored > file_size:
        raise CorruptTensorError(f"{label}: declares {stored} stored bytes in a file of {file_size}")
    if layout == h5py.h5d.CHUNKED:
        _check_chunks(dataset, plan, described.whole, described.itemsize, stored, label)
    elif stored < wanted:
        raise CorruptTensorError(f"{label}: declares {wanted} bytes, but {stored} are stored")


def _check_chunks(dataset: Any, plan: Any, shape: tuple[int, ...], itemsize: int, stored: int, label: str) -> None:
    h5py = load_h5py()
    chunk = plan.get_chunk()
    chunk_bytes = math.prod(chunk) * itemsize
    if chunk_bytes > _CHUNK_LIMIT:
        raise CorruptTensorError(f"{label}: chunks of {chunk_bytes} bytes are refused (limit {_CHUNK_LIMIT})")
    expected = math.prod(-(-length // part) for length, part in zip(shape, chunk, strict=True))
    found = dataset.get_num_chunks()
    if found != expected:
        raise CorruptTensorError(f"{label}: {found} of {expected} chunks are stored")
    codes = [plan.get_filter(number)[0] for number in range(plan.get_nfilters())]
    for code in codes:
        if not _filter_available(h5py, code):
            raise StoreError(f"{label}: compressed with HDF5 filter {code}, which is not installed; {_PLUGIN_ADVICE}")
    known = set(codes) <= {h5py.h5z.FILTER_DEFLATE, h5py.h5z.FILTER_SHUFFLE, h5py.h5z.FILTER_FLETCHER32}
    wanted = math.prod(shape) * itemsize
    if wanted > stored * (_DEFLATE_RATIO if known else _ANY_RATIO):
        raise CorruptTensorError(f"{label}: {stored} stored bytes cannot hold {wanted}")


def _filter_available(h5py: Any, code: int) -> bool:
    if h5py.h5z.filter_avail(code):
        return True
    try:
        import_module("hdf5plugin")  # registers its filters
    except ImportError:
        return False
    return bool(h5py.h5z.filter_avail(code))


# --- files -----------------------------------------------------------------------------------------------------------


def check_regular(path: str) -> None:
    """Refuse what is not a regular file before HDF5 opens it (a FIFO would hang it)."""
    try:
        mode = os.stat(path).st_mode
    except OSError as error:
        raise StoreError(f"{path}: cannot be opened: {error.strerror}") from error
    if not stat.S_ISREG(mode):
        raise StoreError(f"{path}: is not a regular file")


def open_error(path: str, error: Exception) -> StoreError:
    """HDF5's complaint about opening a file, in words that help."""
    text = str(error)
    if "unable to lock file" in text:
        return StoreError(f"{path}: cannot be opened: {LOCK_ADVICE}")
    if "signature not found" in text:
        return StoreError(f"{path}: is not an HDF5 file, or was cut off before its first sync")
    if "truncated file" in text:
        return StoreError(f"{path}: is cut off: shorter than it says it is; copy it again from where it came from")
    if "already open for" in text or "consistency flags" in text:
        return StoreError(f"{path}: was not closed by whoever wrote it: {text}; h5clear -s may help")
    return StoreError(f"{path}: cannot be read as HDF5: {text}")
