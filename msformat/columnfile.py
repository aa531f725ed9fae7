"""Columns as bytes: a safetensors file, so that numpy and the safetensors package read it without us.

A strange file is refused before anything is believed: sizes are compared with the bytes there are, codes with the
values there are, and a digest guards the whole.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import msgspec
import numpy as np
import xxhash
from numpy.typing import NDArray

from msformat.columnbuild import CODED, Columns
from msformat.columns import LACKING, OTHER
from msformat.errors import FormatError
from msformat.jsontext import compact, parse_json
from msformat.model import STATISTICS

__all__ = ["ColumnFile", "decode_columns", "encode_columns", "most_bytes"]

_FORMAT = "msformat columns 1"
_TYPES = {"U8": np.uint8, "U16": np.uint16, "U32": np.uint32, "F32": np.float32, "F64": np.float64}
_NAMES = {np.dtype(kind): name for name, kind in _TYPES.items()}
_CODES = ("U8", "U16", "U32")
_MOST_HEADER = 64 << 10
# A record of a tensor takes more bytes of JSON, and a row of ours fewer.
_LEAST_RECORD = 32


@dataclass(frozen=True, slots=True)
class ColumnFile:
    """Columns, and of which document they are.

    Attributes
    ----------
    document
        Its name.
    length, digest
        Its bytes: how many, and their xxh3 of 128 bits.
    seal
        What :meth:`msformat.stores.base.Store.document_seal` said of it as it is stored.
    columns
        The columns.
    """

    document: str
    length: int
    digest: str
    seal: str
    columns: Columns


def most_bytes(length: int) -> int:
    """More than the columns of any document of that length take."""
    return 2 * length + _MOST_HEADER


def encode_columns(file: ColumnFile) -> bytes:
    """The bytes of columns; the same columns always give the same."""
    arrays = _arrays(file.columns)
    header: dict[str, Any] = {"__metadata__": {}}
    at = 0
    for name, array in arrays.items():
        kind = {"dtype": _NAMES[array.dtype], "shape": list(array.shape)}
        header[name] = {**kind, "data_offsets": [at, at + array.nbytes]}
        at += array.nbytes
    data = b"".join(array.tobytes() for array in arrays.values())
    header["__metadata__"] = {
        "format": _FORMAT,
        "document": file.document,
        "length": str(file.length),
        "digest": file.digest,
        "seal": file.seal,
    }
    header["__metadata__"]["content"] = _content_digest(header, data)
    text = compact(header)
    text += b" " * (-len(text) % 8)
    return len(text).to_bytes(8, "little") + text + data


def _arrays(columns: Columns) -> dict[str, NDArray[Any]]:
    """Arrays by name, those of wide elements first, so that all of them are aligned."""
    sums, kinds, digests = columns.digest
    codes, names = columns.data_name
    found: dict[str, NDArray[Any]] = {"counts": columns.counts, "keys": _text(columns.keys)}
    for name, (numbers, values) in columns.coded.items():
        found |= {name: numbers, f"{name}.values": _text(values)}
    for name, (numbers, standing, others) in columns.statistics.items():
        found |= {name: numbers, f"{name}.kinds": standing, f"{name}.others": _text(others)}
    found |= {"md5": kinds, "md5.crc32": sums, "md5.values": _text(digests)}
    found |= {"data_name": codes, "data_name.values": _text(names)}
    return dict(sorted(found.items(), key=lambda item: -item[1].itemsize))


def _text(values: list[Any]) -> NDArray[np.uint8]:
    return np.frombuffer(compact(values), np.uint8)


def _content_digest(header: Mapping[str, Any], data: bytes | memoryview) -> str:
    state = xxhash.xxh3_128(compact(header))
    state.update(data)
    return str(state.hexdigest())


# --- decoding --------------------------------------------------------------------------------------------------------


def decode_columns(data: bytes | memoryview) -> ColumnFile:
    """The columns of bytes from a stranger. Arrays are views of ``data``.

    Raises
    ------
    FormatError
        They are damaged, or no columns.
    """
    header, area = _split(memoryview(data).cast("B"))
    metadata = header.get("__metadata__")
    if not isinstance(metadata, dict) or metadata.get("format") != _FORMAT:
        raise FormatError("an index of columns of another format")
    metadata = {name: _require(value, str) for name, value in metadata.items()}
    content = metadata.pop("content", "")
    if _content_digest({**header, "__metadata__": metadata}, area) != content:
        raise FormatError("the index of columns is damaged: its bytes do not match its digest")
    arrays = {name: _array(entry, area) for name, entry in header.items() if name != "__metadata__"}
    try:
        columns = _columns(arrays)
        document, length, digest = metadata["document"], int(metadata["length"][:20]), metadata["digest"]
        found = ColumnFile(document, length, digest, metadata["seal"], columns)
    except (KeyError, ValueError) as error:
        raise FormatError(f"the index of columns lacks parts: {error}") from error
    if columns.rows * _LEAST_RECORD > length:
        raise FormatError("the index of columns has more rows than its document can have")
    return found


def _split(data: memoryview) -> tuple[dict[str, Any], memoryview]:
    length = int.from_bytes(data[:8], "little")
    if len(data) < 8 or length > min(_MOST_HEADER, len(data) - 8):
        raise FormatError("the index of columns ends too early")
    header = parse_json(bytes(data[8 : 8 + length]), "index of columns")
    return _require(header, dict), data[8 + length :]


def _require(value: Any, kind: type) -> Any:
    if type(value) is not kind:
        raise FormatError(f"the index of columns has {type(value).__name__} where {kind.__name__} belongs")
    return value


def _array(entry: Any, area: memoryview) -> NDArray[Any]:
    found = _require(entry, dict)
    kind, shape, offsets = found.get("dtype"), found.get("shape"), found.get("data_offsets")
    numbers = [_require(number, int) for number in (*_require(shape, list), *_require(offsets, list))]
    if kind not in _TYPES or len(numbers) != 3:
        raise FormatError("the index of columns has an array of a strange type or shape")
    count, start, end = numbers
    dtype = np.dtype(_TYPES[kind]).newbyteorder("<")
    if not 0 <= start <= end <= len(area) or end - start != count * dtype.itemsize:
        raise FormatError("the index of columns has an array that is not where it says")
    return np.frombuffer(area[start:end], dtype)


def _columns(arrays: Mapping[str, NDArray[Any]]) -> Columns:
    keys = _values(arrays["keys"], list[str], _is_text)
    counts = _codes(arrays["counts"], len(keys), None)
    rows = int(counts.sum(dtype=np.uint64))
    coded = {name: _coded(arrays, name, rows) for name in CODED}
    statistics = {name: _statistic(arrays, name, rows) for name in STATISTICS}
    digests = _values(arrays["md5.values"], list[str | None], lambda value: value is None or _is_text(value))
    kinds = _codes(arrays["md5"], rows, len(digests) + 1)
    sums = _codes(arrays["md5.crc32"], rows, None)
    names = _values(arrays["data_name.values"], list[str | list[str] | None], _is_name)
    names = [tuple(name) if isinstance(name, list) else name for name in names]
    return Columns(
        keys=keys,
        counts=counts,
        coded=coded,
        statistics=statistics,
        digest=(sums, kinds, digests),
        data_name=(_codes(arrays["data_name"], rows, len(names)), names),
    )


def _coded(arrays: Mapping[str, NDArray[Any]], name: str, rows: int) -> tuple[NDArray[Any], list[Any]]:
    kind, check = _KINDS.get(name, (list[str], _is_text))
    values = _values(arrays[f"{name}.values"], kind, check)
    if name == "shape":
        values = list(map(tuple, values))
    return _codes(arrays[name], rows, len(values)), values


def _statistic(
    arrays: Mapping[str, NDArray[Any]], name: str, rows: int
) -> tuple[NDArray[Any], NDArray[Any], list[Any]]:
    values, others = arrays[name], _values(arrays[f"{name}.others"], list[int | str], _is_text_or_int)
    kinds = _codes(arrays[f"{name}.kinds"], rows, OTHER + 1)
    if values.dtype.kind != "f" or len(values) != rows:
        raise FormatError(f"the index of columns has no whole column {name}")
    numbers = values[kinds == OTHER]
    whole = values[(kinds != OTHER) & (kinds > 0) & (kinds < LACKING)]
    # The comparison is False for NaN, so that what follows may take them for integers.
    if not ((numbers >= 0) & (numbers < len(others)) & (numbers % 1 == 0)).all() or not (abs(whole) <= 2.0**53).all():
        raise FormatError(f"the index of columns has a column {name} that points nowhere")
    return values, kinds, others


def _codes(array: NDArray[Any], rows: int, values: int | None) -> NDArray[Any]:
    """Whole numbers, one a row, each below ``values``."""
    if array.dtype.kind != "u" or len(array) != rows:
        raise FormatError("the index of columns has columns of different length")
    if values is not None and rows and int(array.max()) >= values:
        raise FormatError("the index of columns has a column that points nowhere")
    return array


def _values(text: NDArray[Any], kind: Any, check: Callable[[Any], bool]) -> list[Any]:
    """A list in JSON. msgspec checks types on the way, but knows no lone surrogates."""
    data = text.tobytes() if text.dtype == np.uint8 else b""
    found: list[Any]
    try:
        found = msgspec.json.decode(data, type=kind)
    except (msgspec.MsgspecError, RecursionError):
        found = _require(parse_json(data, "index of columns"), list)
    else:
        if kind == list[str]:
            return found
    if not all(map(check, found)):
        raise FormatError("the index of columns has a value of a strange type")
    return found


def _is_text(value: Any) -> bool:
    return type(value) is str


def _is_text_or_int(value: Any) -> bool:
    return type(value) is str or type(value) is int


def _is_name(value: Any) -> bool:
    return value is None or _is_text(value) or (type(value) is list and len(value) == 1 and _is_text(value[0]))


def _is_shape(value: Any) -> bool:
    return type(value) is list and all(type(length) is int and length >= 0 for length in value)


_KINDS: dict[str, tuple[Any, Callable[[Any], bool]]] = {
    "shape": (list[list[int]], _is_shape),
    "requires_grad": (list[bool | None], lambda value: value is None or type(value) is bool),
}
