"""Indices of stores: the columns of a document, places in a Zarr store and their log, the lines beside tensor files."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterator
from pathlib import Path
from random import Random

from msformat.columnfile import ColumnFile, decode_columns, encode_columns
from msformat.columnindex import document_columns
from msformat.documents import DumpDocument
from msformat.errors import MsformatError
from msformat.stores.sidecar import parse_sidecar
from msformat.stores.zarr_index import Place, decode_index, encode_index, encode_line, read_log
from tests.fuzz.mutators import change_json, change_lines, seal_index_line
from tests.fuzz.samples import golden_members
from tests.fuzz.target import Change, Target


def check(data: bytes, place: Path) -> None:
    """A letter that says which, and the bytes."""
    kind, content = data[:1], data[1:]
    try:
        if kind == b"c":
            file = decode_columns(content)
            assert encode_columns(file) == encode_columns(decode_columns(encode_columns(file)))
        elif kind == b"d":
            places = decode_index(content, "i")
            assert decode_index(encode_index(places), "i") == places
        elif kind == b"l":
            _check_log(content)
        elif kind == b"s":
            _check_sidecar(content)
    except MsformatError:
        return


def _check_log(content: bytes) -> None:
    places, length = read_log(content, "l")
    assert 0 <= length <= len(content)
    assert read_log(content[:length], "l") == (places, length)
    text = b"".join(encode_line(key, each) for key, each in places.items())
    assert read_log(text, "l")[0] == places


def _check_sidecar(content: bytes) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        lines, length = parse_sidecar(content, "s")
        again, _ = parse_sidecar(b"".join(line.encode() for line in lines), "s")
    assert length == content.rfind(b"\n") + 1
    assert again == lines


def seeds() -> Iterator[bytes]:
    """One of each."""
    for _, content in golden_members("dump.json", 1 << 16):
        document = json.loads(content)
        document["data"] = dict(list(document["data"].items())[:2])
        columns = document_columns(DumpDocument.parse(json.dumps(document).encode(), "d"))
        yield b"c" + encode_columns(ColumnFile("dump.json", 10, "0" * 32, "x", columns))
    places = {
        "a.0": Place(pack="packs/0", offset=64, dtype="float32", shape=(3,), digest="0" * 32),
        "b": Place(array="tensors/2", row=7, dtype="bfloat16", shape=(5, 1)),
        "\ud800": Place(array="tensors/x", dtype="bool", shape=()),
    }
    yield b"d" + encode_index(places)
    yield b"l" + b"".join(encode_line(key, place) for key, place in places.items())
    yield b's{"file": "a.pt"}\n{"file": "b~0.npy", "key": "b/c.npy", "dtype": "bfloat16", "digest": "0"}\n'


def mutate(data: bytes, change: Change, random: Random) -> bytes:
    """Texts in their structure; of columns, the header whose length fits."""
    kind, content = data[:1], data[1:]
    if kind == b"d":
        return kind + change_json(content, change, random)
    if kind == b"l":
        return kind + change_lines(content, change, random, _without_crc, seal_index_line)
    if kind == b"s":
        return kind + change_lines(content, change, random, lambda line: line, lambda text: text + b"\n")
    length = int.from_bytes(content[:8], "little")
    if kind == b"c" and length < len(content) and random.random() < 0.7:
        head = change_json(content[8 : 8 + length], change, random)
        return kind + len(head).to_bytes(8, "little") + head + content[8 + length :]
    return change(data)


def _without_crc(line: bytes) -> bytes:
    return line.rpartition(b',"crc32"')[0] or line


TARGET = Target(
    check, seeds, mutate, (b"tensors/", b"packs/", b'"row"', b'"offset"', b"..", b'"dtype"'), most_bytes=8192
)
