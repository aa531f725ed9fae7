"""Metadata of Zarr v3 nodes (``zarr.json``): written for what we store, validated for what strangers stored.

Source: the Zarr v3 core specification, https://zarr-specs.readthedocs.io/en/latest/v3/core/.
"""

from __future__ import annotations

import itertools
import json
import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np

from msformat.atomic import is_temporary
from msformat.dtypes import DType, dtype_from_numpy, dtype_named
from msformat.errors import DTypeError, FormatError, StoreError, UnsafeInputError
from msformat.filesystem import FileSystem, join
from msformat.stores.base import ReadOnlyBuffer
from msformat.stores.zarr_codecs import Encoder, Pipeline, parse_codecs
from msformat.stores.zarr_shards import LITTLE_ENDIAN, Shards, find_sharding, parse_sharding, sharding_codec

__all__ = [
    "METADATA_NAME",
    "ArrayMeta",
    "array_document",
    "document_node",
    "group_document",
    "is_hashed",
    "load_array",
    "load_node",
    "old_zarr",
    "read_optional",
]

METADATA_NAME = "zarr.json"
_METADATA_LIMIT = 1 << 20
_NAME_BYTES = 200
# A chunk of 2 GiB is more than blosc can hold, and more than anybody should have to decode for one number.
_CHUNK_LIMIT = (1 << 31) - 1
_MAX_AXES = 64
_DATA_TYPES = (
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
)
_HASHED = re.compile(r".*~[0-9a-f]{32}")
_KNOWN_FIELDS = {
    *("zarr_format", "node_type", "shape", "data_type", "chunk_grid", "chunk_key_encoding", "fill_value", "codecs"),
    *("attributes", "dimension_names", "storage_transformers"),
}


# --- names -----------------------------------------------------------------------------------------------------


def is_hashed(name: str) -> bool:
    """Whether the name of an array of the first layout is no key, so that its attribute ``key`` must be asked."""
    return _HASHED.fullmatch(name) is not None


def document_node(name: str) -> str:
    """The array's name for a document; a ``~`` keeps names apart that mean something to Zarr or to us.

    Raises
    ------
    StoreError
        ``name`` is no plain file name.
    """
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,200}", name) or not name.strip("."):
        raise StoreError(f"document name {name!r} is no plain file name")
    reserved = name in (METADATA_NAME, "index.json") or name.startswith("__") or is_temporary(name)
    return f"{name}~" if reserved else name


# --- writing -----------------------------------------------------------------------------------------------------


def group_document(attributes: Mapping[str, Any] | None = None) -> bytes:
    """``zarr.json`` of a group."""
    node = {"zarr_format": 3, "node_type": "group", "attributes": dict(attributes or {})}
    return json.dumps(node, separators=(",", ":")).encode()


def array_document(
    shape: tuple[int, ...],
    chunks: tuple[int, ...],
    dtype: np.dtype[Any],
    encoder: Encoder,
    *,
    attributes: Mapping[str, Any],
    shards: tuple[int, ...] | None = None,
    keys: tuple[str, str] = ("v2", "."),
) -> bytes:
    """``zarr.json`` of an array.

    Parameters
    ----------
    shape, chunks
        Shape of the stored bits, and of one chunk.
    dtype
        The storage type.
    encoder
        What the chunks were encoded with.
    attributes
        User attributes.
    shards
        Shape of what one file holds, where that is many chunks.
    keys
        Chunk key encoding. ``v2`` with ``.`` names chunks ``0.1`` beside ``zarr.json``: no directory more an array.

    Raises
    ------
    StoreError
        A chunk of 2 GiB or more.
    """
    if math.prod(chunks) * dtype.itemsize > _CHUNK_LIMIT:
        raise StoreError(f"chunks {chunks} of {dtype} hold 2 GiB or more")
    codecs = [LITTLE_ENDIAN, *([encoder.codec] if encoder.codec else [])]
    node = {
        "zarr_format": 3,
        "node_type": "array",
        "shape": shape,
        "data_type": dtype.name,
        "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": shards or chunks}},
        "chunk_key_encoding": {"name": keys[0], "configuration": {"separator": keys[1]}},
        "fill_value": _zero(dtype),
        "codecs": [sharding_codec(chunks, codecs)] if shards else codecs,
        "attributes": dict(attributes),
    }
    return json.dumps(node, separators=(",", ":")).encode()


def _zero(dtype: np.dtype[Any]) -> Any:
    """The fill value Zarr insists on. Nothing reads it: every chunk is written."""
    return {"b": False, "c": [0.0, 0.0], "f": 0.0}.get(dtype.kind, 0)


# --- reading -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class ArrayMeta:
    """Validated metadata of an array.

    Attributes
    ----------
    shape, chunks
        Stored shape and the shape of what is decoded at once, of equal length.
    storage
        Element type in native byte order.
    pipeline
        How chunks are decoded.
    keys
        Chunk key encoding: name and separator.
    attributes
        User attributes, as they stand.
    shards
        How chunks lie in shards; None where each is a file.
    """

    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    storage: np.dtype[Any]
    pipeline: Pipeline
    keys: tuple[str, str]
    attributes: Mapping[str, Any]
    shards: Shards | None = None

    def file_of(self, coordinates: tuple[int, ...]) -> tuple[str, int | None]:
        """Name of the file below its array that a chunk is in, and which one of a shard's it is."""
        if self.shards is None:
            return self.chunk_name(coordinates), None
        shard, position = self.shards.locate(coordinates)
        return self.chunk_name(shard), position

    def chunk_name(self, coordinates: tuple[int, ...]) -> str:
        """Name below its array of a chunk that is a file, or of a shard."""
        name, separator = self.keys
        parts = [str(at) for at in coordinates]
        if name == "default":
            return separator.join(["c", *parts])
        return separator.join(parts) or "0"

    @property
    def chunk_nbytes(self) -> int:
        """Bytes of a decoded chunk."""
        return math.prod(self.chunks) * self.storage.itemsize

    def coordinates(self) -> Iterator[tuple[int, ...]]:
        """Every file of the grid: chunks, or shards."""
        files = self.shards.shape if self.shards else self.chunks
        return itertools.product(*(range(-(-length // file)) for length, file in zip(self.shape, files, strict=True)))

    def dtype(self, where: str) -> DType:
        """The logical element type: attribute ``dtype``, or what is stored.

        Raises
        ------
        FormatError
            The attribute names a type whose bits are not stored like this.
        """
        name = self.attributes.get("dtype")
        if name is None:
            return dtype_from_numpy(self.storage)
        try:
            dtype = dtype_named(str(name))
        except DTypeError as error:
            raise FormatError(f"{where}: attribute dtype: {error}") from error
        if dtype.storage != self.storage or (dtype.lanes > 1 and self.shape[-1:] != (dtype.lanes,)):
            raise FormatError(f"{where}: {self.storage} {list(self.shape)} are no bits of {dtype.name}")
        return dtype


def read_optional(fs: FileSystem, path: str, limit: int | None = None) -> bytes | None:
    """A small file, None where there is none.

    Raises
    ------
    UnsafeInputError
        Bigger than ``limit``, or not a regular file inside the store.
    """
    try:
        # One byte too many is quickly read, but not of a file that may have a gigabyte.
        if limit is not None and limit > _METADATA_LIMIT and fs.size(path) > limit:
            raise UnsafeInputError(f"{fs.describe(path)}: bigger than {limit} bytes")
        data = fs.read(path, 0, None if limit is None else limit + 1)
    except (FileNotFoundError, NotADirectoryError):
        return None
    except StoreError as error:
        if isinstance(error.__cause__, FileNotFoundError):
            return None
        raise
    except OSError as error:
        raise StoreError(f"{fs.describe(path)}: {error.strerror or error}") from error
    if limit is not None and len(data) > limit:
        raise UnsafeInputError(f"{fs.describe(path)}: bigger than {limit} bytes")
    return data


def load_node(fs: FileSystem, node: str) -> dict[str, Any] | None:
    """The ``zarr.json`` of a node, None where there is none.

    Raises
    ------
    FormatError
        Not a JSON object of Zarr v3.
    StoreError
        Of another version of Zarr.
    """
    path = join(node, METADATA_NAME)
    data = read_optional(fs, path, _METADATA_LIMIT)
    if data is None:
        return None
    found = _parsed(data, fs.describe(path))
    if found.get("zarr_format") != 3:
        raise old_zarr(fs.describe(node), f"zarr_format {found.get('zarr_format')!r:.80}")
    if found.get("node_type") not in ("group", "array"):
        raise FormatError(f"{fs.describe(path)}: node_type {found.get('node_type')!r:.80} is no node of Zarr v3")
    return found


def old_zarr(where: str, sign: str) -> StoreError:
    """One clear message for stores of Zarr v2 and of the v3 draft that zarr 2.x wrote."""
    return StoreError(
        f"{where}: holds {sign}: a store of Zarr v2 or of the v3 draft; only Zarr v3 is read. "
        "Rewrite it with zarr-python 3 (zarr_format=3)"
    )


def _parsed(data: ReadOnlyBuffer, where: str) -> dict[str, Any]:
    try:
        found = json.loads(bytes(data))
    except RecursionError:
        raise UnsafeInputError(f"{where}: nested too deep") from None
    except ValueError as error:
        raise FormatError(f"{where}: {error}") from error
    if not isinstance(found, dict):
        raise FormatError(f"{where}: expected an object, found {type(found).__name__}")
    return found


def load_array(fs: FileSystem, node: str) -> ArrayMeta | None:
    """Validated metadata of an array, None where there is none.

    Raises
    ------
    FormatError
        Not valid.
    UnsafeInputError
        A codec that is not on the allow-list, or a chunk of 2 GiB or more.
    StoreError
        Valid, but of a kind this reader lacks.
    """
    found = load_node(fs, node)
    where = fs.describe(node)
    if found is None:
        return None
    if found["node_type"] != "array":
        raise FormatError(f"{where}: is a group, not an array")
    _refuse_extensions(found, where)
    shape = _lengths(found.get("shape"), 0, "shape", where)
    # First of all: who cannot be trusted with the bytes.
    sharding = find_sharding(found.get("codecs"))
    pipeline = parse_codecs(found.get("codecs") if sharding is None else sharding.get("codecs"), len(shape), where)
    grid = _lengths(_configuration(found, "chunk_grid", "regular", where).get("chunk_shape"), 1, "chunk_shape", where)
    chunks = grid if sharding is None else _lengths(sharding.get("chunk_shape"), 1, "chunk_shape of shards", where)
    for each in (grid, chunks):
        if len(each) != len(shape):
            raise FormatError(f"{where}: chunk_shape {list(each)} does not fit shape {list(shape)}")
    shards = None if sharding is None else parse_sharding(sharding, grid, chunks, where)
    storage = _storage(found.get("data_type"), where)
    if math.prod(shape) * storage.itemsize >= 1 << 63:
        raise UnsafeInputError(f"{where}: shape {list(shape)} is beyond any memory")
    if math.prod(chunks) * storage.itemsize > _CHUNK_LIMIT:
        raise UnsafeInputError(f"{where}: chunks of {list(chunks)} hold 2 GiB or more")
    attributes = found.get("attributes", {})
    if not isinstance(attributes, dict):
        raise FormatError(f"{where}: attributes are no object")
    return ArrayMeta(shape, chunks, storage, pipeline, _chunk_keys(found, where), attributes, shards)


def _refuse_extensions(found: Mapping[str, Any], where: str) -> None:
    if found.get("storage_transformers"):
        raise StoreError(f"{where}: storage transformers are not supported")
    for name, value in found.items():
        understood = name in _KNOWN_FIELDS or (isinstance(value, dict) and value.get("must_understand") is False)
        if not understood:
            raise StoreError(f"{where}: the extension {name!r:.80} is not supported")


def _lengths(value: object, least: int, what: str, where: str) -> tuple[int, ...]:
    if not isinstance(value, list) or len(value) > _MAX_AXES:
        raise FormatError(f"{where}: {what} is {value!r:.80}")
    if not all(type(length) is int and least <= length < 1 << 63 for length in value):
        raise FormatError(f"{where}: {what} {value!r:.200} holds what is no length")
    return tuple(value)


def _configuration(found: Mapping[str, Any], field: str, name: str, where: str) -> Mapping[str, Any]:
    value = found.get(field)
    if isinstance(value, dict) and value.get("name") == name and isinstance(value.get("configuration"), dict):
        configuration: Mapping[str, Any] = value["configuration"]
        return configuration
    raise FormatError(f"{where}: {field} {value!r:.80} is not {name!r}")


def _storage(data_type: object, where: str) -> np.dtype[Any]:
    if not isinstance(data_type, str) or data_type not in _DATA_TYPES:
        raise StoreError(f"{where}: data_type {data_type!r:.80} is not supported")
    return np.dtype(data_type)


def _chunk_keys(found: Mapping[str, Any], where: str) -> tuple[str, str]:
    value = found.get("chunk_key_encoding")
    name = value.get("name") if isinstance(value, dict) else value
    configuration = value.get("configuration", {}) if isinstance(value, dict) else {}
    if name in ("default", "v2") and isinstance(configuration, dict):
        separator = configuration.get("separator", "/" if name == "default" else ".")
        if separator in ("/", "."):
            return str(name), str(separator)
    raise FormatError(f"{where}: unknown chunk_key_encoding {value!r:.80}")
