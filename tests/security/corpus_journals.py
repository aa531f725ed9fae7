"""Journals of an attacker, whose checksums are right; and dumps that other tools are said to have written."""

from __future__ import annotations

import json
import os
import stat
import struct
import zlib
from typing import Any

import numpy as np

from tests import kernel_files as kf
from tests.security.corpus import GOOD, VALUES, Attacks, Place, entry, good_unit, make_special
from tests.security.corpus_tensors import headers, pickles
from tests.small_dumps import FRAMES, HEADER

_STEP = 2000


def line(value: Any) -> bytes:
    """A line of a journal, whose CRC is that of its text."""
    text = value if isinstance(value, bytes) else json.dumps(value, separators=(",", ":")).encode()
    return b"%08x %b\n" % (zlib.crc32(text), text)


def head(**more: Any) -> bytes:
    """The first line."""
    first = {"kind": "header", "version": 1, "document": "dump.json", "backend": "files", "header": HEADER}
    return line({**first, "pid": os.getpid(), "host": "x", **more})


def put(key: str, value: Any) -> bytes:
    """The line of an entry."""
    return line({"kind": "entry", "key": key, "value": value})


# Journals, and what verify says of their unit; None where they mean something.
JOURNALS: dict[str, tuple[bytes, str | None]] = {
    "bad sum in the middle": (head() + b"00000000 {}\n" + put("k", None), "line 2 does not match its CRC"),
    "no header": (put("k", None) + put("l", None), "line 1 is not the header"),
    "two headers": (head() + head() + put("k", None), "line 2 is a second header"),
    "another document": (head(document="../../secret/x.json") + put("k", None), "line 1 is no valid record"),
    "a backend with a path": (head(backend="../../secret/x") + put("k", None), "line 1 is no valid record"),
    "a backend of a plug-in": (head(backend="os.system") + put("k", None), None),
    "memory": (head(backend="memory") + put("k", None), None),
    "another version": (head(version=2) + put("k", None), "journal version 2"),
    "unknown kind": (head() + line({"kind": "exec", "code": "x"}) + put("k", None), "no valid record"),
    "deep": (head() + line(b'{"kind":"entry","key":"k","value":' + b"[" * 9000 + b"]" * 9000 + b"}"), "deep|nest"),
    "digits": (head() + line(b'{"kind":"entry","key":"k","value":' + b"1" * 9000 + b"}"), "digits"),
    "no object": (head() + line([1]) + line(7), "no valid record"),
    "names that climb": (head() + put("k", entry("../../../../secret/secret.npy")), "is missing"),
    "names of another unit": (head() + put("k", entry("../../../step0/rank0/dump_tensor_data/x.npy")), "is missing"),
    "no such stack": (head() + line({"kind": "stack", "entries": ["k"], "ref": 10**9}), "no valid record"),
    "negative stack": (head() + line({"kind": "stack", "entries": ["k"], "ref": -1}), "no valid record"),
    "stacks without end": (
        head()
        + line({"kind": "stack", "entries": ["k"], "frames": FRAMES * 2000})
        + line({"kind": "stack", "entries": ["k"], "ref": 0}) * _STEP,
        None,
    ),
    "one entry without end": (head() + put("k", entry("x.npy")) * _STEP, None),
    "a circle": (head() + line({"kind": "parents", "parents": {"k": "l", "l": "k"}}) + put("k", None), None),
    "parents that are none": (head() + line({"kind": "parents", "parents": {"k": 7}}), "no valid record"),
    "problems": (head() + line({"kind": "problem", "message": "\x1b[2J=1+1\n"}) * 20, None),
    "a reason": (head() + line({"kind": "close", "reason": "\x1b[2J</script>" * 1000}), None),
    "an endless line": (head() + b"00000000 " + bytes(1 << 20), None),
    "empty": (b"", None),
}


def journals(place: Place) -> Attacks:
    """A unit each, which has a journal and a good tensor."""
    found = Attacks(place.dump)
    good_unit(place.unit(0))
    for step, (text, words) in enumerate(JOURNALS.values(), 1):
        data = good_unit(place.unit(step))
        (place.unit(step) / "dump.json").unlink()
        np.save(data / "x.npy", VALUES)
        (place.unit(step) / "journal.jsonl").write_bytes(text)
        if words is not None:
            found.refused[f"step{step}/rank0"] = words
    return found


# --- other tools -----------------------------------------------------------------------------------------------------


def save_directory(place: Place) -> Attacks:
    """What MindSpore's TensorDump leaves, with bad files in it. Nothing names entries, so names of files do."""
    place.dump.mkdir(parents=True)
    unit = place.dump / "step0/rank0"
    unit.mkdir(parents=True)
    np.save(unit / "good_float32_0.npy", VALUES)
    files = {**pickles(place.canary), **headers()}
    bad = {f"bad{n}_float32_{n + 1}.npy": data for n, data in enumerate(files.values())}
    for name, data in bad.items():
        (unit / name).write_bytes(data)
    (unit / "link_float32_900.npy").symlink_to(place.secret / "secret.npy")
    (unit / "folder_float32_901.npy").mkdir()
    make_special(unit / "fifo_float32_902.npy", stat.S_IFIFO)
    (unit / ("x" * 200 + "_float32_" + "9" * 40 + ".npy")).write_bytes(b"")
    (place.dump / "step1").symlink_to(place.secret)
    return Attacks(place.dump)


def kernels(place: Place) -> Attacks:
    """What an Ascend device leaves, with headers, tables and arguments that lie."""
    unit = place.dump / "20250101000000/0/net/0/0"
    part = kf.Part.of(VALUES)
    kf.write_dump(unit, [part], [part])
    lies = {
        "Shape": kf.dump_bytes([kf.Part.of(VALUES, shape=(1 << 62, 1 << 62))]),
        "Axes": kf.dump_bytes([kf.Part.of(VALUES, shape=(1,) * 5000)]),
        "Size": kf.dump_bytes([kf.Part.of(VALUES, size=1 << 62)]),
        "Type": kf.dump_bytes([kf.Part.of(VALUES, dtype=9999)]),
        "Layout": kf.dump_bytes([kf.Part.of(VALUES, format=9999, sub_format=1 << 62, original=(1 << 40,))]),
        "Head": struct.pack("<Q", 1 << 62) + bytes(64),
        "Fields": struct.pack("<Q", 1 << 6) + b"\x22\0" * (1 << 5),
        "Text": kf.dump_bytes([part], op_name="\x1b[2J</script>=1+1" * 100),
        "Nothing": b"",
        "Pickle": pickles(place.canary)["bare.pt"],
    }
    for number, (name, data) in enumerate(lies.items()):
        (unit / f"{name}.{name}_op.{number}.2.{kf.STAMP + number + 1}").write_bytes(data)
    (unit / f"Link.Link.90.2.{kf.STAMP + 90}").symlink_to(place.secret / "secret.bin")
    make_special(unit / f"Pipe.Pipe.91.2.{kf.STAMP + 91}", stat.S_IFIFO)
    (unit / "mapping.csv").write_text("1,../../../../secret/secret.bin\n" + '"' * 1000)
    (unit / "statistic.csv").write_text("Op Type,Op Name\n" + "=1+1,\x1b[2J\n" * 100)
    (unit / "again").symlink_to(".")
    return Attacks(place.dump)


__all__ = ["GOOD", "JOURNALS", "journals", "kernels", "save_directory"]
