"""Kernel dump files: read or refused, and what is read agrees with the document that is made of it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from random import Random

from msformat.errors import MsformatError
from msformat.foreign.kernel_dump.store import DeviceLayoutStore, KernelStore
from tests.fuzz.reading import read_tensor
from tests.fuzz.samples import kernel_files
from tests.fuzz.target import Change, Target


def check(data: bytes, place: Path) -> None:
    """The name of a file, a line break, and the file."""
    raw, _, content = data.partition(b"\n")
    name = raw.decode("utf-8", "replace")
    if "/" in name or "\0" in name or name in ("", ".", "..") or len(name.encode()) > 200:
        return
    (place / name).write_bytes(content)
    for kind in (KernelStore, DeviceLayoutStore):
        try:
            _read(kind(str(place)))
        except MsformatError:
            continue


def _read(store: KernelStore) -> None:
    shapes = {}
    for key in store.keys():  # noqa: SIM118 (a Store is no mapping)
        tensor = store.get(key)
        shapes[key] = list(tensor.shape)
        try:
            read_tensor(tensor)
        except MsformatError:
            continue
    document = json.loads(bytes(store.get_document("dump.json") or b"{}"))
    named = dict(_named(document["data"]))
    assert set(shapes) <= set(named)
    assert all(named[key] == shape for key, shape in shapes.items())


def _named(value: object) -> Iterator[tuple[str, object]]:
    if isinstance(value, dict):
        if isinstance(value.get("data_name"), str):
            yield value["data_name"], value["shape"]
        for each in value.values():
            yield from _named(each)
    elif isinstance(value, list):
        for each in value:
            yield from _named(each)


def seeds() -> Iterator[bytes]:
    """Real ones, of each form."""
    yield from (name.rpartition("/")[2].encode() + b"\n" + data for name, data in kernel_files().items())


def mutate(data: bytes, change: Change, random: Random) -> bytes:
    """Name, header or values; of a header that is changed the length fits."""
    name, _, content = data.partition(b"\n")
    if random.random() < 0.1:
        return change(name).replace(b"\n", b"") + b"\n" + content
    length = int.from_bytes(content[:8], "little")
    if random.random() < 0.4 or length > len(content) - 8:
        return name + b"\n" + change(content)
    head = change(content[8 : 8 + length])
    return name + b"\n" + len(head).to_bytes(8, "little") + head + content[8 + length :]


TARGET = Target(check, seeds, mutate, most_bytes=4096)
