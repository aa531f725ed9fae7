"""Containers of an attacker: HDF5 files and Zarr stores in which a tensor, a document or an index lies."""

from __future__ import annotations

import json
import os
import pickle
import shutil
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np

from msformat.columnbuild import ColumnBuilder
from msformat.columnfile import ColumnFile, encode_columns
from msformat.stores.registry import open_store
from tests.security.corpus import GOOD, SECRET, VALUES, Attacks, Place, entry, good_unit, named
from tests.security.corpus_tensors import Runs
from tests.security.test_hdf5_attacks import ATTACKS
from tests.small_dumps import HEADER, convert_whole
from tests.zarr_layout import as_first_layout

_UNIT = "step0/rank0"


# --- HDF5 ------------------------------------------------------------------------------------------------------------


def _hdf5_unit(file: h5py.File, unit: str, entries: dict[str, Any]) -> tuple[h5py.Group, h5py.Group]:
    """A unit by h5py alone; its tensors and its documents."""
    tensors, documents = file.create_group(f"{unit}/tensors"), file.create_group(f"{unit}/documents")
    name = f"{GOOD}.output.0.npy"
    tensors[name] = VALUES
    text = json.dumps({**HEADER, "data": {GOOD: entry(name), **entries}})
    documents["dump.json"] = np.frombuffer(text.encode("utf-8", "surrogatepass"), np.uint8)
    return tensors, documents


def array_type(tensors: h5py.Group) -> None:
    """Each element is a million."""
    tensors.create_dataset("array", (3,), np.dtype(("f4", (1000, 1000))))


def strange_floats(tensors: h5py.Group) -> None:
    """Bits in an order that no machine has."""
    kind = h5py.h5t.IEEE_F32LE.copy()
    kind.set_fields(31, 1, 30, 0, 1)
    h5py.h5d.create(tensors.id, b"floats", kind, h5py.h5s.create_simple((3,)))


def enumeration(tensors: h5py.Group) -> None:
    """Numbers with names."""
    tensors.create_dataset("enum", (3,), h5py.enum_dtype({"\x1b[2J": 1, "=1+1": 2}, basetype="i4"))


def attributes(tensors: h5py.Group) -> None:
    """A type that is 60 KB of text, a digest that is none, and attributes without end."""
    tensors["attributes"] = VALUES
    tensors["attributes"].attrs["dtype"] = "bfloat16" * 7000
    tensors["digest"] = VALUES
    tensors["digest"].attrs["xxh3_128"] = "../" * 1000
    many = tensors.create_dataset("many", data=VALUES, track_order=True)
    for number in range(300):
        many.attrs[f"a{number}"] = np.zeros(100)
    many.attrs["dtype"] = h5py.Empty("S10")
    tensors["vlen"] = VALUES
    tensors["vlen"].attrs.create("dtype", np.array(["float32", "x" * 100_000], object), dtype=h5py.string_dtype())


def fill_values(tensors: h5py.Group) -> None:
    """Nothing is stored; all is made of one value."""
    tensors.create_dataset("fill", (1 << 30,), "f4", fillvalue=7.0)
    tensors.create_dataset("early", (1 << 24,), "u1", chunks=(1 << 24,), compression="gzip", fillvalue=7)


def grown(tensors: h5py.Group) -> None:
    """A shape that became larger than its chunks."""
    dataset = tensors.create_dataset("grown", (4,), "f4", maxshape=(None,), chunks=(4,))
    dataset[:] = 1
    dataset.resize((1 << 50,))


_MORE = (array_type, strange_floats, enumeration, attributes, fill_values, grown)
# What may be read, as it is stored or said to be.
_HARMLESS = {"many", "vlen", "enum", "digest", "fill"}
# A link has no type, so the tensor behind it is missing.


def hdf5(place: Place) -> Attacks:
    """Links, types, layouts, filters and chunk maps, each a tensor of one unit."""
    place.dump.mkdir(parents=True)
    with h5py.File(place.secret / "secret.h5", "w") as file:
        file["tensors/secret"] = np.full(4, 123456.78125, np.float32)
    names = [attack.__name__ for attack, _, _ in ATTACKS]
    more = ["array", "floats", "enum", "attributes", "digest", "many", "vlen", "fill", "early", "grown"]
    path = place.dump / "dump.h5"
    with h5py.File(path, "w", userblock_size=512) as file:
        tensors, documents = _hdf5_unit(file, _UNIT, named([*names, *more]))
        for (attack, _, _), name in zip(ATTACKS, names, strict=True):
            attack(tensors, place.secret)
            tensors.move("x", name)
        for make in _MORE:
            make(tensors)
        _hdf5_documents(file, documents, place)
    with path.open("r+b") as stream:
        stream.write(b"<script>" * 64)
    found = {name: name for name in (*names, "array", "attributes", "early", "grown")}
    return Attacks(path, found)


def _hdf5_documents(file: h5py.File, documents: h5py.Group, place: Place) -> None:
    documents["stack.json"] = h5py.ExternalLink(str(place.secret / "secret.h5"), "/tensors/secret")
    documents["construct.json"] = h5py.SoftLink("/step0")
    documents["../../secret/made.json"] = np.frombuffer(b"{}", np.uint8)
    documents.create_dataset("more.json", (1 << 40,), "u1", chunks=(1 << 20,), compression="gzip")
    file["step0/rank0/again"] = file["/"]
    file["step0/rank1"] = h5py.ExternalLink(str(place.secret / "secret.h5"), "/")
    file["step0/rank2"] = h5py.SoftLink("/step0/rank2")
    file["step0/rank3"] = np.zeros(3)
    file.create_group("step" + "9" * 5000 + "/rank0/tensors")
    file.create_group("\x1b[2J/documents")


# --- Zarr ------------------------------------------------------------------------------------------------------------


def edit(node: Path, **lies: Any) -> None:
    """Say something else in the metadata of an array."""
    path = node / "zarr.json"
    path.write_text(json.dumps({**json.loads(path.read_text()), **lies}))


def _codecs(*names: str) -> list[Any]:
    return ["bytes", *({"name": name, "configuration": {}} for name in names)]


def _pickle(node: Path, place: Place) -> None:
    edit(node, codecs=_codecs("zstd", "numcodecs.pickle"))
    for chunk in node.glob("[0-9]*"):
        chunk.write_bytes(pickle.dumps(Runs(place.canary), protocol=2))


def _link(node: Path, place: Place) -> None:
    chunk = next(node.glob("[0-9]*"))
    chunk.unlink()
    chunk.symlink_to(place.secret / "secret.npy")


def _pipe(node: Path, _: Place) -> None:
    chunk = next(node.glob("[0-9]*"))
    chunk.unlink()
    os.mkfifo(chunk)


def _folder(node: Path, place: Place) -> None:
    shutil.rmtree(node)
    node.symlink_to(place.secret)


def _cut(node: Path, _: Place) -> None:
    chunk = next(node.glob("[0-9]*"))
    chunk.write_bytes(chunk.read_bytes()[:20])


def _lie(**lies: Any) -> Callable[[Path, Place], None]:
    return lambda node, _: edit(node, **lies)


def _grid(*chunks: int) -> dict[str, Any]:
    return {"name": "regular", "configuration": {"chunk_shape": list(chunks)}}


ARRAYS: dict[str, Callable[[Path, Place], None]] = {
    "pickle": _pickle,
    "link": _link,
    "pipe": _pipe,
    "folder": _folder,
    "cut": _cut,
    "missing": lambda node, _: next(node.glob("[0-9]*")).unlink(),
    "json2": _lie(codecs=_codecs("numcodecs.json2")),
    "import": _lie(codecs=_codecs("os.system")),
    "huge": _lie(shape=[1 << 62, 1 << 62]),
    "long": _lie(shape=[1 << 40, 200], chunk_grid=_grid(1 << 20, 200)),
    "chunk": _lie(chunk_grid=_grid(1 << 31, 1000)),
    "no chunk": _lie(chunk_grid=_grid(0, 0)),
    "climbs": _lie(chunk_key_encoding={"name": "default", "configuration": {"separator": "/../"}}),
    "objects": _lie(data_type="object"),
    "type": _lie(data_type={"name": "numpy.void", "configuration": {"length_bytes": 1 << 40}}),
    "fill": _lie(fill_value="a" * 1000, data_type="float64"),
    "transformer": _lie(storage_transformers=[{"name": "x"}]),
    "deep": lambda node, _: (node / "zarr.json").write_text("[" * 100_000) and None,
    "sparse": lambda node, _: os.truncate(node / "zarr.json", 1 << 40),
}


def zarr_arrays(place: Place) -> Attacks:
    """An array each, whose metadata or chunks lie, as the first layout keeps them."""
    source = place.dump.parent / "source"
    rng = np.random.default_rng(0)
    data = good_unit(source / _UNIT, named(f"{name}.npy" for name in ARRAYS))
    for name in ARRAYS:
        np.save(data / f"{name}.npy", rng.standard_normal((100, 200)).astype(np.float32))
    target = place.dump.with_suffix(".zarr")
    converted(source, target)
    as_first_layout(target / _UNIT)
    for name, attack in ARRAYS.items():
        attack(target / _UNIT / "tensors" / f"{name}.npy", place)
    return Attacks(target, {f"{name}.npy": rf"{name}\.npy" for name in ARRAYS})


def converted(source: Path, target: Path) -> None:
    """A container of records whose statistics nobody checks here."""
    convert_whole(source, target)
    shutil.rmtree(source)


def index_of(**tensors: Any) -> bytes:
    """An index as a log, which needs no codec."""
    lines = []
    for key, place in tensors.items():
        text = json.dumps({"key": key, **place}).encode()[:-1]
        lines.append(text + f',"crc32":"{zlib.crc32(text):08x}"}}\n'.encode())
    return b"".join(lines)


_PACKED = {"pack": "packs/0", "offset": 0, "dtype": "float32", "shape": [3]}
# Indexes, each of a unit of its own, and what verify says of it.
INDEXES: dict[str, tuple[bytes, str]] = {
    "climbs": (index_of(x={**_PACKED, "pack": "../../../../secret"}), "unsafe node"),
    "absolute": (index_of(x={"array": "/etc", "dtype": "float32", "shape": [3]}), "unsafe node"),
    "another unit": (index_of(x={"array": "tensors/../../../step0/x", "dtype": "float32", "shape": [3]}), "unsafe"),
    "offset": (index_of(x={**_PACKED, "offset": -8}), "line 1"),
    "far": (index_of(x={**_PACKED, "offset": 1 << 60}), "'x'"),
    "shape": (index_of(x={**_PACKED, "shape": [1 << 62]}), "'x'"),
    "type": (index_of(x={**_PACKED, "dtype": "|O"}), "'x'"),
    "digest": (index_of(x={**_PACKED, "digest": "0" * 32}), "'x'"),
    "no json": (b"[" * 100_000, "is missing"),
}


def zarr_indexes(place: Place) -> Attacks:
    """A unit each, whose index or documents lie."""
    source = place.dump.parent / "source"
    for step in range(len(INDEXES) + 3):
        good_unit(source / f"step{step}/rank0")
    target = place.dump.with_suffix(".zarr")
    converted(source, target)
    found = Attacks(target)
    for step, (text, words) in enumerate(INDEXES.values(), 1):
        unit = target / f"step{step}/rank0"
        shutil.rmtree(unit / "documents/index.json")
        (unit / "index.jsonl").write_bytes(text)
        found.refused[f"step{step}/rank0"] = words
    last = len(INDEXES)
    edit(target / f"step{last + 1}/rank0/documents/dump.json", codecs=_codecs("numcodecs.pickle"))
    edit(target / f"step{last + 2}/rank0/documents/dump.json", shape=[1 << 40], chunk_grid=_grid(1 << 20))
    found.refused |= {f"step{last + 1}/rank0": "allow-list", f"step{last + 2}/rank0": r"dump\.json"}
    (target / "step90").symlink_to(place.secret)
    (target / "\x1b[2J").mkdir()
    return found


# --- the columnar index ----------------------------------------------------------------------------------------------


def columns(place: Place) -> Attacks:
    """An index of columns with the right seal, about entries and tensors that the document does not have."""
    place.dump.mkdir(parents=True)
    path = place.dump / "dump.h5"
    lies = [
        {"Functional.ghost.0.forward": entry(f"{GOOD}.output.0.npy")},
        {GOOD: {"output": [_bare(f"{GOOD}.output.0.npy") for _ in range(5)]}},
        {"Functional.ghost.0.forward": {"output": [_bare(f"{GOOD}.output.0.npy")]}},
        {GOOD: entry(f"{GOOD}.output.0.npy", np.zeros((9, 9)), Max="=1+1", dtype="\x1b[2J")},
    ]
    with h5py.File(path, "w") as file:
        for step in range(len(lies) + 1):
            _hdf5_unit(file, f"step{step}/rank0", {})
    for step, lie in enumerate(lies, 1):
        with open_store("hdf5", str(path), mode="a", group=f"step{step}/rank0") as store:
            seal = store.document_seal("dump.json")
            assert seal is not None
            builder = ColumnBuilder()
            builder.add_texts((key, json.dumps(value).encode()) for key, value in lie.items())
            store.put_columns(encode_columns(ColumnFile("dump.json", seal[0], "0" * 32, seal[1], builder.finish())))
    return Attacks(path, {f"step{step}/rank0": "index of columns" for step in range(1, len(lies) + 1)})


def _bare(name: str) -> dict[str, Any]:
    """A record without statistics, which are then made of the values."""
    return {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [3], "data_name": name}


__all__ = ["ARRAYS", "INDEXES", "SECRET", "columns", "hdf5", "zarr_arrays", "zarr_indexes"]
