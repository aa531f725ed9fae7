"""Tensor files of an attacker: every form of ``.pt`` with code in it, archives and headers that lie."""

from __future__ import annotations

import gzip
import io
import os
import pickle
import struct
import tarfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.security.corpus import Attacks, Place, good_unit, named

# torch/serialization.py: MAGIC_NUMBER and PROTOCOL_VERSION of the layout before 1.6.
_LEGACY = (0x1950A86A20F9469CFC6C, 1001, {"protocol_version": 1001, "little_endian": True, "type_sizes": {}})


class Runs:
    """Makes a directory when it is unpickled."""

    def __init__(self, canary: Path) -> None:
        self.canary = str(canary)

    def __reduce__(self) -> Any:
        return os.mkdir, (self.canary,)


# --- .pt -------------------------------------------------------------------------------------------------------------


def zipped(members: Mapping[str, bytes], compression: int = zipfile.ZIP_STORED) -> bytes:
    """A zip as Python writes it."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", compression) as archive:
        for name, data in members.items():
            archive.writestr(name, data)
    return out.getvalue()


def saved(pickled: bytes, **more: bytes) -> bytes:
    """The ``.pt`` around a pickle."""
    members = {"archive/data.pkl": pickled, "archive/byteorder": b"little", "archive/data/0": bytes(64), **more}
    return zipped(members)


def tensor_pickle(storage: str = "0", shape: tuple[int, ...] = (4,), *, more: bytes = b"") -> bytes:
    """What torch pickles for a float32 tensor."""

    def plain(value: Any) -> bytes:
        return pickle.dumps(value, protocol=2)[2:-1]

    return b"".join((
        b"\x80\x02", more, b"ctorch._utils\n_rebuild_tensor_v2\n((", plain("storage"), b"ctorch\nFloatStorage\n",
        plain(storage), plain("cpu"), plain(16), b"tQ", plain(0), plain(shape), plain((1,) * len(shape)),
        b"\x89ccollections\nOrderedDict\n)RtR.",
    ))  # fmt: skip


def _tar(payload: bytes) -> bytes:
    out = io.BytesIO()
    with tarfile.open(fileobj=out, mode="w", format=tarfile.USTAR_FORMAT) as archive:
        for name in ("sys_info", "pickle", "storages", "tensors"):
            member = tarfile.TarInfo(name)
            member.size = len(payload)
            archive.addfile(member, io.BytesIO(payload))
    return out.getvalue()


def _object_array(run: Runs) -> bytes:
    out = io.BytesIO()
    np.save(out, np.array([run], dtype=object), allow_pickle=True)
    return out.getvalue()


def _object_archive(run: Runs) -> bytes:
    out = io.BytesIO()
    np.savez(out, x=np.array([run], dtype=object), allow_pickle=True)
    return out.getvalue()


def pickles(canary: Path) -> dict[str, bytes]:
    """Files that run code in whoever unpickles them."""
    run = Runs(canary)
    payload = pickle.dumps(run, protocol=2)
    script = {"archive/data.pkl": payload, "archive/constants.pkl": payload, "archive/code/__torch__.py": b"pass"}
    behind = tensor_pickle(more=payload[2:-1] + b"0")
    legacy = b"".join(pickle.dumps(part, protocol=2) for part in _LEGACY)
    return {
        **{f"protocol{n}.pt": saved(pickle.dumps(run, protocol=n)) for n in range(6)},
        "before a tensor.pt": saved(behind),
        "as a storage.pt": saved(tensor_pickle("0").replace(b"ctorch\nFloatStorage\n", payload[2:-1])),
        "legacy.pt": legacy + payload,
        "legacy first.pt": payload + legacy,
        "tar.pt": _tar(payload),
        "script.pt": zipped(script),
        "packed script.pt": zipped(script, zipfile.ZIP_DEFLATED),
        "nested.pt": saved(saved(payload)),
        "nested storage.pt": zipped({"archive/x.pt": saved(payload)}),
        "bare.pt": payload,
        "bare.npy": payload,
        "gzip.pt": gzip.compress(payload),
        "objects.npy": _object_array(run),
        "objects.npz": _object_archive(run),
        "objects.pt": _object_archive(run),
        "no suffix": saved(payload),
    }


def _patched(content: bytes, at: int, form: str, *values: int) -> bytes:
    out = bytearray(content)
    struct.pack_into(form, out, at, *values)
    return bytes(out)


def _entry_of(content: bytes, name: bytes) -> int:
    """Where the directory entry of a member begins."""
    at = content.find(b"PK\x01\x02")
    while content[at + 46 : at + 46 + len(name)] != name:
        at = content.find(b"PK\x01\x02", at + 4)
    return at


def archives() -> dict[str, bytes]:
    """Zips whose members lie outside, over each other, twice, or unpack without end."""
    good = saved(tensor_pickle())
    storage, end = _entry_of(good, b"archive/data/0"), good.rfind(b"PK\x05\x06")
    twice = good.replace(b"archive/byteorder", b"archive/data.pkl\0")
    return {
        "deflated.pt": zipped({"a/data.pkl": tensor_pickle(), "a/data/0": bytes(8 << 20)}, zipfile.ZIP_DEFLATED),
        "traversal.pt": zipped({"../data.pkl": tensor_pickle(), "../../secret/data/0": bytes(64)}),
        "absolute.pt": zipped({"/data.pkl": tensor_pickle(), "/etc/passwd": bytes(64)}),
        "climbing storage.pt": saved(tensor_pickle("../../../../secret/secret.npy")),
        "twice.pt": twice.replace(b"data.pkl\0", b"data.pkl"[:8] + b"x"),
        "two folders.pt": zipped({"a/data.pkl": tensor_pickle(), "b/data.pkl": tensor_pickle(), "a/data/0": bytes(64)}),
        "outside.pt": _patched(good, storage + 42, "<I", 1 << 30),
        "long.pt": _patched(good, storage + 20, "<II", 1 << 30, 1 << 30),
        "over.pt": _patched(good, storage + 42, "<I", 0),
        "zip64.pt": _patched(good, storage + 20, "<III", 0xFFFFFFFF, 0xFFFFFFFF, 0xE0000),
        "end64.pt": _patched(good, end + 8, "<HH", 0xFFFF, 0xFFFF),
        "members.pt": _patched(good, end + 8, "<HH", 60_000, 60_000),
        "directory.pt": _patched(good, end + 12, "<II", 1 << 30, 1 << 30),
        "encrypted.pt": _patched(good, storage + 8, "<H", 1),
        "cut.pt": good[:-30],
        "shape.pt": saved(tensor_pickle(shape=(1 << 40,))),
        "axes.pt": saved(tensor_pickle(shape=(1 << 62, 1 << 62))),
        "empty.pt": b"",
    }


# --- .npy ------------------------------------------------------------------------------------------------------------


def npy(header: str, data: bytes = bytes(64), *, version: int = 1, length: int | None = None) -> bytes:
    """A ``.npy`` with any header."""
    text = header.encode("latin-1") + b"\n"
    size = len(text) if length is None else length
    return b"\x93NUMPY" + bytes([version, 0]) + size.to_bytes(2 if version == 1 else 4, "little") + text + data


def _fields(descr: str, shape: str = "(3,)") -> str:
    return f"{{'descr': {descr}, 'fortran_order': False, 'shape': {shape}, }}"


def headers() -> dict[str, bytes]:
    """Headers of ``.npy`` that nest, lie, or hold more than a header."""
    return {
        "parentheses.npy": npy("(" * 9000),
        "brackets.npy": npy(_fields("[" * 4000 + "]" * 4000)),
        "minus.npy": npy(_fields("'<f4'", "-" * 9000 + "1")),
        "attributes.npy": npy(_fields("'<f4'", "1" + ".x" * 4000)),
        "sums.npy": npy(_fields("'<f4'", "(" + "1+" * 4000 + "1j,)")),
        "code.npy": npy(_fields("__import__('os').mkdir('canary')")),
        "comprehension.npy": npy(_fields("'<f4'", "tuple(1 for _ in iter(int, 1))")),
        "escape.npy": npy(_fields("'\\d'")),
        "digits.npy": npy(_fields("'<f4'", f"({'9' * 9000},)")),
        "huge.npy": npy(_fields("'<f4'", f"({1 << 62},)")),
        "overflow.npy": npy(_fields("'<f4'", f"({1 << 62}, {1 << 62})")),
        "axes.npy": npy(_fields("'<f4'", f"({'1, ' * 2000})")),
        "negative.npy": npy(_fields("'<f4'", "(-3,)")),
        "flag.npy": npy(_fields("'<f4'", "(True,)")),
        "objects2.npy": npy(_fields("'|O'")),
        "objects3.npy": npy(_fields("[('a', '|O')]")),
        "fields.npy": npy(_fields("'<f4,O'")),
        "wide.npy": npy(_fields("'|V999999999'")),
        "wider.npy": npy(_fields("'<U999999999'", "(9, 9)")),
        "unit.npy": npy(_fields("'<M8[999999999us]'")),
        "no type.npy": npy(_fields("'<f3'")),
        "a dict.npy": npy(_fields("{'names': ['a'], 'formats': ['O']}")),
        "version.npy": npy(_fields("'<f4'"), version=9),
        "long header.npy": npy(_fields("'<f4'"), version=2, length=0xFFFFFFFF),
        "header beyond.npy": npy(_fields("'<f4'"), length=9999),
        "short.npy": npy(_fields("'<f4'", "(100,)")),
        "two.npy": npy("{'descr': '<f4'}, {'shape': ()}"),
        "sets.npy": npy("{'descr', 'fortran_order', 'shape'}"),
        "cut.npy": b"\x93NUMPY\x01",
        "none.npy": b"\x93NUMPY\x01\0\0\0",
    }


def tensor_files(place: Place) -> Attacks:
    """All of these in one unit, each named by an entry."""
    files = {**pickles(place.canary), **archives(), **headers()}
    data = good_unit(place.unit(0), named(files))
    for name, content in files.items():
        (data / name).write_bytes(content)
    for name, size in (("sparse.npy", 1 << 40), ("sparse.pt", 1 << 40)):
        with (data / name).open("wb") as stream:
            stream.truncate(size)
    # What is said of a tensor names its file, whatever the reason.
    return Attacks(place.dump, {name: name.replace(".", r"\.") for name in files})
