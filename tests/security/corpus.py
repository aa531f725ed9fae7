"""Dumps of an attacker. Each holds a good entry, and beside it one attack of each kind that its builder knows.

A builder gets a :class:`Place`: where the dump goes, and what must stay as it was, unread and not run.
"""

from __future__ import annotations

import json
import os
import stat
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from tests.small_dumps import FRAMES, HEADER, record, write_document

GOOD = "Functional.good.0.forward"
VALUES = np.array([3.0, 1.0, 2.0], np.float32)
# In every file beside the dump, and nowhere else: as text, and as numbers.
SECRET = b"top-secret-7c1f09"
SECRET_NUMBER = np.float32(123456.78125)


@dataclass(frozen=True)
class Place:
    """Where an attacker works.

    Attributes
    ----------
    dump
        What a user opens; not made yet.
    secret
        A directory beside it that no link and no name may lead to.
    canary
        Nothing makes this, unless code of the dump runs.
    """

    dump: Path
    secret: Path
    canary: Path

    @classmethod
    def make(cls, folder: Path) -> Place:
        """Secrets of every kind that a dump could name."""
        secret = folder / "secret"
        (secret / "step0/rank0/dump_tensor_data").mkdir(parents=True)
        for name in ("secret.npy", "step0/rank0/dump_tensor_data/secret.npy"):
            np.save(secret / name, np.full(8, SECRET_NUMBER))
        text = json.dumps({**HEADER, "data": {SECRET.decode(): None}})
        for name in ("secret.json", "step0/rank0/dump.json", "secret.bin"):
            (secret / name).write_text(text)
        return cls(folder / "dump", secret, folder / "canary")

    def unit(self, step: int) -> Path:
        """The directory of a unit."""
        return self.dump / f"step{step}/rank0"


@dataclass
class Attacks:
    """What a builder made.

    Attributes
    ----------
    path
        What a user opens.
    refused
        A word of each attack (the name of its tensor, entry or unit), and what ``verify`` says in the same problem.
    """

    path: Path
    refused: dict[str, str] = field(default_factory=dict)


Builder = Callable[[Place], Attacks]


def entry(name: str, array: Any = VALUES, **more: Any) -> dict[str, Any]:
    """An entry with one output."""
    return {"input_args": [], "input_kwargs": {}, "output": [{**record(array, name), **more}]}


def good_unit(unit: Path, entries: Mapping[str, Any] | None = None) -> Path:
    """A unit with the good entry; returns its directory of tensors."""
    data = unit / "dump_tensor_data"
    data.mkdir(parents=True, exist_ok=True)
    name = f"{GOOD}.output.0.npy"
    np.save(data / name, VALUES)
    write_document(unit / "dump.json", {**HEADER, "data": {GOOD: entry(name), **(entries or {})}})
    write_document(unit / "stack.json", {"0": [[GOOD], FRAMES]})
    write_document(unit / "construct.json", {GOOD: None})
    return data


def named(names: Iterable[str]) -> dict[str, Any]:
    """An entry for each tensor name."""
    return {f"Functional.bad{number}.0.forward": entry(name) for number, name in enumerate(names)}


# --- trees -----------------------------------------------------------------------------------------------------------

# Names of tensors that lead elsewhere, and what is said of them.
WAYS_OUT = {
    "../../../../secret/secret.npy": "outside",
    "..": "outside",
    "x/../../dump.json": "outside",
    "link.npy": "link that leads outside",
    "absolute.npy": "link that leads outside",
    "folder/secret.npy": "link that leads outside",
    "dangling.npy": "link that leads outside",
    "loop.npy": "symbolic links",
    "zero.npy": "link that leads outside",
    "fifo.npy": "not a regular file",
    "socket.npy": "No such device or address|not a regular file",
}


def links_and_pipes(place: Place) -> Attacks:
    """Links that lead out, in circles, to devices and nowhere; FIFOs and sockets; names that climb up."""
    absolute = str(place.secret / "secret.npy")
    data = good_unit(place.unit(0), named([*WAYS_OUT, absolute, "sidecar.npy", "nul\0.npy", "a//b.npy", "\ud800.npy"]))
    (data / "link.npy").symlink_to("../../../../secret/secret.npy")
    (data / "absolute.npy").symlink_to(absolute)
    (data / "folder").symlink_to(place.secret)
    (data / "dangling.npy").symlink_to("../../../../secret/nothing")
    (data / "loop.npy").symlink_to("loop.npy")
    (data / "zero.npy").symlink_to("/dev/zero")
    (data / "again").symlink_to(".")
    make_special(data / "fifo.npy", stat.S_IFIFO)
    make_special(data / "socket.npy", stat.S_IFSOCK)
    lines = [{"file": "../../../../secret/secret.npy", "key": "sidecar.npy"}, {"file": absolute, "key": "more.npy"}]
    (place.unit(0) / "tensors.jsonl").write_text("".join(f"{json.dumps(line)}\n" for line in lines))
    for name in ("notes.json", "more.log"):
        (place.unit(0) / name).symlink_to(place.secret / "secret.json")
    _units_that_are_links(place)
    return Attacks(place.dump, {"step1": "leads outside", "step3/rank0": "leads outside", "step4": "no regular file"})


def _units_that_are_links(place: Place) -> None:
    (place.dump / "step1").symlink_to(place.secret / "step0")
    (place.dump / "step3").mkdir()
    (place.dump / "step3/rank0").symlink_to(place.secret / "step0/rank0")
    (place.dump / "graph").symlink_to(".")
    make_special(place.dump / "step4", stat.S_IFIFO)
    for step, name in ((5, "dump.json"), (6, "dump.h5"), (7, "dump.zarr"), (8, "journal.jsonl")):
        place.unit(step).mkdir(parents=True)
        (place.unit(step) / name).symlink_to(place.secret / "secret.json")
        make_special(place.unit(step) / "stack.json", stat.S_IFIFO)


def make_special(path: Path, kind: int) -> None:
    """A FIFO or a socket; no privilege is needed for these."""
    os.mknod(path, 0o600 | kind)


# --- documents -------------------------------------------------------------------------------------------------------

_DIGITS = "9" * 4000
_GOOD_TEXT = json.dumps(entry("x.npy"))


def _dump(data: str, more: str = "") -> bytes:
    header = '"task": "tensor", "level": "mix", "framework": "pytorch"'
    return f'{{{header}, {more}"data": {{{data}}}}}'.encode("utf-8", "surrogatepass")


# Documents, and what verify says of their unit; None where they are odd but mean something.
DOCUMENTS: dict[str, tuple[bytes, str | None]] = {
    "deep": (b"[" * 100_000, "an array"),
    "deep data": (_dump('"k": ' + "[" * 5000 + "]" * 5000), "deep"),
    "deep header": (_dump("", '"x": ' + '{"a":' * 5000 + "1" + "}" * 5000 + ", "), "deep"),
    "digits": (_dump(f'"k": [{"1" * 100_000}]'), "digits"),
    "exponents": (_dump('"k": {"type": "float", "value": 1e999999999}'), None),
    "same keys": (_dump(f'"k": {_GOOD_TEXT}, "k": null, "k": {_GOOD_TEXT}'), None),
    "data twice": (_dump('"k": null', f'"data": {{"other": {_GOOD_TEXT}}}, '), None),
    "byte order mark": (b"\xef\xbb\xbf" + _dump('"k": null'), None),
    "utf-16": (_dump('"k": null').decode().encode("utf-16"), "dump.json"),
    "constants": (_dump('"k": {"type": "float", "value": NaN}, "i": {"type": "float", "value": -Infinity}'), None),
    "surrogates": (_dump('"\\ud800": {"type": "str", "value": "\\udfff"}, "k\\ud83d": null'), None),
    "raw surrogate": (_dump('"k\ud800": null'), "UTF-8"),
    "not utf-8": (b'{"data": {"\xff": null}}', "UTF-8"),
    "NUL": (_dump('"k\0": null'), "dump.json"),
    "zeros": (bytes(1 << 20), "dump.json"),
    "quotes": (b'"' * 1_000_000, "dump.json"),
    "empty": (b"", "dump.json"),
    "a list": (b"[]", "object"),
    "data is a list": (b'{"data": []}', "data"),
    "many keys": (_dump(",".join(f'"k{number}": null' for number in range(5000))), None),
    "a long key": (_dump(f'"{"k" * 1_000_000}": null'), None),
    "no values": (_dump('"a": 7, "b": "text", "c": [[[]]], "d": {"type": 3}, "e": {"type": "x"}'), None),
}


def documents(place: Place) -> Attacks:
    """A unit each, whose ``dump.json`` would exhaust or mislead a reader; what stands beside it is bad, too."""
    found = Attacks(place.dump)
    good_unit(place.unit(0))
    for step, (text, words) in enumerate(DOCUMENTS.values(), 1):
        good_unit(place.unit(step))
        (place.unit(step) / "dump.json").write_bytes(text)
        if words is not None:
            found.refused[f"step{step}/rank0"] = words
    return found


# Records that a document may hold, each against what a reader would take for granted.
RECORDS: dict[str, dict[str, Any]] = {
    "digits": {"Max": int(_DIGITS), "Min": -int(_DIGITS), "Mean": int(_DIGITS), "Norm": int(_DIGITS)},
    "texts": {"Max": "=1+1", "Min": "nan", "Mean": "x" * 10_000, "Norm": ""},
    "containers": {"Max": [1], "Min": {"a": 1}, "Mean": [[[]]], "Norm": {}},
    "flags": {"Max": True, "Min": False, "Mean": None, "Norm": None},
    "axes": {"shape": [1] * 10_000},
    "long axes": {"shape": [2**63, 2**64, int(_DIGITS)]},
    "negative axes": {"shape": [-1, 3]},
    "axes that are none": {"shape": ["3", 2.0, None, True]},
    "no shape": {"shape": None},
    "no type": {"type": None, "dtype": 7},
    "type": {"dtype": "__import__('os').system('id')"},
    "object": {"dtype": "object"},
    "list of names": {"data_name": ["a", "b"]},
    "number of names": {"data_name": 7},
    "checksum": {"md5": {"a": 1}},
    "long checksum": {"md5": "f" * 100_000},
    "gradient": {"requires_grad": "yes"},
    "unknown": {"__class__": "os.system", "x": [None] * 1000},
}


def records(place: Place) -> Attacks:
    """Records whose statistics, shapes and names are no statistics, shapes and names; trees and stacks in circles."""
    entries = {f"Functional.{name}.0.forward": entry("missing.npy", **lie) for name, lie in RECORDS.items()}
    good_unit(place.unit(0), entries)
    keys = [GOOD, *entries]
    circle = dict(zip(keys, [*keys[1:], GOOD], strict=True))
    write_document(place.unit(0) / "construct.json", {**circle, "self": "self", "a": 7, "b": ["c"]})
    write_document(place.unit(0) / "stack.json", {"0": [keys, 7], "x": [[GOOD] * 1000, FRAMES], "1": "text", "2": []})
    chain = {f"m{number}": f"m{number + 1}" for number in range(20_000)}
    good_unit(place.unit(1))
    write_document(place.unit(1) / "construct.json", {GOOD: "m0", **chain})
    return Attacks(place.dump, {"missing.npy": "is missing"})


# What a terminal, a page, a spreadsheet, a shell, a URL or a regular expression would take for more than text.
TEXTS = (
    "=cmd|'/c calc'!A1", "@SUM(1+1)*cmd|' /C calc'!A0", "+1+1", "-1+1", "\t=1+1", "\r=1+1",
    "<script>alert(1)</script>", "</script><img src=x onerror=alert(1)>", "&lt;b&gt;", "\"'`${1}@data@",
    "\x1b]0;owned\x07", "\x1b[2J\x1b[31m", "\x9b31m", "a\nb", "a\r\nb", "nul\0", "\u202egnp.exe\u2066", "\u2028",
    "[bold red]x[/]", ":bomb:", "%s%n{0}{self}", "../../etc/passwd", "C:\\con", "$(id)", "`id`", "; rm -rf /",
    "s3://bucket/x", "memory://a::file://b", "https://me:hunter2@host/x", "x" * 5000, "\ud800",
    "a://" + "?sig" * 2000, "a://" + "&" * 5000, "." * 5000, "9" * 5000, ".forward.0" * 500, "Module." + "a." * 3000,
)  # fmt: skip


def texts(place: Place) -> Attacks:
    """Every name, path, type and frame is a text that something would take for more."""
    entries: dict[str, Any] = {}
    for number, text in enumerate(TEXTS):
        value = record(VALUES, f"{text[:60]}.npy", dtype=text, type=text)
        entries[f"{text}.0.forward"] = {"input_args": [], "input_kwargs": {text: value}, "output": [{text: value}]}
        entries[f"Module.{text}.{text}.forward.{number}"] = {"output": [value], text: [{"type": text, "value": text}]}
    good_unit(place.unit(0), entries)
    document = json.loads((place.unit(0) / "dump.json").read_text())
    document.update(task=TEXTS[0], level=TEXTS[6], framework=TEXTS[10], dump_data_dir=TEXTS[26])
    write_document(place.unit(0) / "dump.json", document)
    write_document(place.unit(0) / "construct.json", {**dict.fromkeys(entries, GOOD), GOOD: None})
    write_document(place.unit(0) / "stack.json", {"0": [[GOOD, *entries], list(TEXTS)]})
    (place.unit(0) / "dump_error_info.log").write_text("\n".join(TEXTS[:12]))
    for text in TEXTS:
        if "/" not in text and "\0" not in text and text.isprintable() and len(text) < 200:
            np.save(place.unit(0) / "dump_tensor_data" / f"{text}.npy", VALUES)
    return Attacks(place.dump, {"etc/passwd": "is missing"})
