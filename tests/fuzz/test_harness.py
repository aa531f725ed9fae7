"""What watches the targets sees what it is there for, and changes inside a structure leave the structure whole."""

from __future__ import annotations

import contextlib
import json
import os
import re
import socket
import zlib
from collections.abc import Callable
from pathlib import Path
from random import Random

import h5py
import numpy as np
import pytest

from msformat.stores.zarr_codecs import crc32c
from msformat.stores.zipmembers import read_members
from tests.fuzz import mutators
from tests.fuzz.guard import MOST_MEMORY, TouchedOutsideError, run, run_measured
from tests.fuzz.hdf5_bytes import change_hdf5, lookup3
from tests.fuzz.samples import pack_tree, unpack_tree
from tests.fuzz.target import NAMES, Target, load_target
from tools.fuzz.campaign import Outcome, read_log

ROOT = Path(__file__).parents[2]


def _flip(random: Random) -> Callable[[bytes], bytes]:
    """What the engine does, more or less."""

    def change(data: bytes) -> bytes:
        if not data:
            return random.randbytes(3)
        at = random.randrange(len(data))
        return data[:at] + bytes([random.randrange(256)]) + data[at + random.randrange(3) :]

    return change


def _target(check: Callable[[bytes, Path], None]) -> Target:
    return Target(check, lambda: [b""])


@pytest.mark.parametrize(
    "act",
    [
        lambda place: (place / ".." / "x").write_bytes(b""),
        lambda place: (place.parent / "x").mkdir(),
        lambda place: os.link(place.parent / "there", place / "x"),
        lambda place: os.rename(place.parent / "there", place / "x"),
        lambda place: (place.parent / "there").read_bytes(),
        lambda place: (place.parent / "there").unlink(),
        lambda place: socket.create_connection(("127.0.0.1", 1)),
        lambda place: os.system("true"),
    ],
)
def test_what_happens_outside_is_found(tmp_path: Path, act: Callable[[Path], object]) -> None:
    (tmp_path / "there").write_bytes(b"")

    def check(data: bytes, place: Path) -> None:
        with contextlib.suppress(OSError):
            act(place)

    with pytest.raises(TouchedOutsideError):
        run(_target(check), b"", tmp_path / "place")


def test_what_happens_inside_is_none(tmp_path: Path) -> None:
    def check(data: bytes, place: Path) -> None:
        (place / "a").write_bytes(data)
        (place / "a").rename(place / "b")
        assert (place / "b").read_bytes() == data

    run(_target(check), b"x", tmp_path / "place")
    # Behind a target the process is free again.
    (tmp_path / "outside").write_bytes(b"")


def test_memory_is_found(tmp_path: Path) -> None:
    with pytest.raises(AssertionError, match="bytes of memory"):
        run_measured(_target(lambda data, place: np.zeros(MOST_MEMORY, np.uint8).fill(1)), b"", tmp_path / "place")


def test_a_file_beside_leads_nowhere(tmp_path: Path) -> None:
    files = {"a/b": b"1", "../c": b"2", "/d": b"3", "e//f": b"4"}
    assert unpack_tree(pack_tree(files)) == {"a/b": b"1"}


@pytest.mark.parametrize("name", NAMES)
def test_mutations_are_bytes_and_change_something(name: str) -> None:
    target = load_target(name)
    if target.mutate is None:
        pytest.skip("bytes are changed by the engine")
    seeds = list(target.seeds())
    random = Random(3)
    changed = 0
    for number in range(200):
        data = seeds[number % len(seeds)]
        new = target.mutate(data, _flip(random), random)
        changed += new != data
        assert isinstance(new, bytes)
    assert changed > 100


def test_lines_keep_their_checksums() -> None:
    target, random = load_target("journal"), Random(1)
    assert target.mutate is not None
    data = next(iter(target.seeds()))
    good = total = 0
    for _ in range(300):
        lines = target.mutate(data, _flip(random), random).splitlines()
        good += sum(line[:9] == b"%08x " % zlib.crc32(line[9:]) for line in lines)
        total += len(lines)
    assert good > 0.95 * total


def test_a_zip_stays_a_zip() -> None:
    target, random = load_target("pt"), Random(2)
    data = next(iter(target.seeds()))
    readable = 0
    for _ in range(200):
        try:
            readable += bool(read_members(mutators.change_zip(data, _flip(random), random), "x"))
        except ValueError:
            continue
        except OSError:
            continue
    assert readable > 120


def test_the_index_of_a_shard_keeps_its_checksum() -> None:
    index = np.arange(8, dtype="<u8").tobytes()
    shard = b"chunks" + index + crc32c(index).to_bytes(4, "little")
    random = Random(4)
    for _ in range(50):
        new = mutators.change_shard(shard, lambda part: part[::-1], random)
        assert int.from_bytes(new[-4:], "little") == crc32c(new[6:-4])


def test_json_stays_json() -> None:
    random = Random(5)
    good = 0
    for _ in range(200):
        try:
            json.loads(mutators.change_json(b'{"a": [1, {"b": "c"}], "d": null}', lambda part: part + b"!", random))
        except ValueError:
            continue
        good += 1
    assert good > 120


def test_checksums_of_hdf5_are_those_of_hdf5(tmp_path: Path) -> None:
    """The library opens a header whose bytes we summed; the sum itself is Jenkins's, of his own examples."""
    assert lookup3(b"") == 0xDEADBEEF
    assert lookup3(b"Four score and seven years ago") == 0x17770551
    path = tmp_path / "x.h5"
    with h5py.File(path, "w", libver="latest") as file:
        file["a"] = [1, 2, 3]
    data = path.read_bytes()
    at = data.find(b"OHDR")
    assert at > 0
    random = Random(6)
    opened = 0
    for _ in range(100):
        path.write_bytes(change_hdf5(data, random))
        try:
            with h5py.File(path) as file:
                opened += list(file) == ["a"]
        except (OSError, RuntimeError):
            continue
    assert opened > 20


# --- the campaign --------------------------------------------------------------------------------------------------

_LOG = b"""INFO: Running with entropic power schedule (0xFF, 100).
#2\tINITED cov: 26 ft: 26 corp: 1/1b exec/s: 0 rss: 90Mb
#262144\tpulse  cov: 31 ft: 40 corp: 7/30b lim: 4096 exec/s: 87381 rss: 91Mb
#300000\tDONE   cov: 33 ft: 42 corp: 8/35b lim: 4096 exec/s: 75000 rss: 91Mb
Done 300000 runs in 4 second(s)
stat::number_of_executed_units: 300001
"""
_FIND = b"""#99\tNEW    cov: 5 ft: 5 corp: 2/9b lim: 4 exec/s: 0 rss: 9Mb L: 4/4 MS: 1 ChangeByte-

 === Uncaught Python exception: ===
AssertionError: two readers
Traceback (most recent call last):
  File "x.py", line 1, in f
==12== ERROR: libFuzzer: fuzz target exited
Test unit written to /x/find-crash-00
"""


def test_what_the_engine_prints_is_read() -> None:
    assert read_log(_LOG) == (300001, 33, 8, "")
    assert read_log(_FIND) == (99, 5, 2, "AssertionError: two readers")
    assert read_log(b"==7== ERROR: libFuzzer: out-of-memory (used: 2100Mb)\n")[3] == "out-of-memory (used: 2100Mb)"
    assert read_log(b"") == (0, 0, 0, "")


def test_a_find_or_an_error_is_no_success() -> None:
    assert Outcome("pt", 5, 1, 1).is_good
    assert not Outcome("pt", 5, 1, 1, Path("find"), "AssertionError").is_good
    assert not Outcome("pt", 0, 0, 0, reason="ModuleNotFoundError").is_good


def test_an_unknown_target_and_a_missing_engine_are_named(capsys: pytest.CaptureFixture[str]) -> None:
    from tools.fuzz.__main__ import main

    assert main(["nonsense"]) == 2
    assert "nonsense" in capsys.readouterr().err


def test_the_guide_names_every_target() -> None:
    text = (ROOT / "docs" / "fuzzing.md").read_text("utf-8")
    named = re.findall(r"^\| `([a-z0-9]+)` \|", text, re.MULTILINE)
    assert named == sorted(NAMES) == list(NAMES)
    modules = {path.stem for path in (Path(__file__).parent / "targets").glob("*.py")} - {"__init__"}
    assert modules == set(NAMES)
