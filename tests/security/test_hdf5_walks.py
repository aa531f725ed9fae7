"""What HDF5 walks through for ever, or until its stack is full: named, and the other tensors are read.

The files are read by one process of their own, which a missing guard would have end or stay.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from msformat.errors import StoreError
from msformat.stores.registry import open_store
from tests.fuzz.hdf5_bytes import lookup3

h5py: Any = pytest.importorskip("h5py")

ROOT = Path(__file__).parents[2]
GOOD = np.arange(12, dtype=np.float32)
CHUNKED = np.arange(20_000, dtype=np.float32)

READER = """
import json, resource, sys
from msformat.errors import MsformatError
from msformat.stores.registry import open_store
resource.setrlimit(resource.RLIMIT_AS, (4 << 30, 4 << 30))
for path in sys.argv[1:]:
    said = {}
    try:
        with open_store("hdf5", path) as store:
            for key in store.keys():
                try:
                    said[key] = float(store.get(key).bits().sum())
                except MsformatError as error:
                    said[key] = str(error)
    except MsformatError as error:
        said["file"] = str(error)
    print(json.dumps([path, said]), flush=True)
"""


def honest(path: Path, **how: Any) -> bytes:
    """Groups of the old kind, chunks, a virtual dataset and one in an external file."""
    with h5py.File(path, "w", **how) as file:
        file.create_group("documents")
        group = file.create_group("tensors")
        group["good"] = GOOD
        group.create_dataset("chunked", data=CHUNKED, chunks=(100,))
        layout = h5py.VirtualLayout(shape=(1, 5), dtype="f4")
        layout[0] = h5py.VirtualSource("elsewhere.h5", "x", shape=(5,))
        group.create_virtual_dataset("virtual", layout)
        group.create_dataset("external", (5,), "f4", external=[("elsewhere.bin", 0, 20)])
    return path.read_bytes()


def number(data: bytes, at: int) -> int:
    return int.from_bytes(data[at : at + 8], "little")


def places(data: bytes, signature: bytes, wanted: Callable[[int], bool]) -> list[int]:
    """Where structures with a signature begin."""
    found, at = [], data.find(signature)
    while at >= 0:
        if wanted(at):
            found.append(at)
        at = data.find(signature, at + 1)
    return found


def changed(data: bytes, *edits: tuple[int, int, int]) -> bytes:
    """Little-endian numbers in other places: offset, value, bytes."""
    new = bytearray(data)
    for at, value, width in edits:
        new[at : at + width] = value.to_bytes(width, "little")
    return bytes(new)


def circular_free_space(data: bytes, name: bytes) -> bytes:
    """The free space of the local heap that holds a name leads back to itself."""
    (heap,) = places(data, b"HEAP", lambda at: name in data[number(data, at + 24) :][: number(data, at + 8)])
    piece, block = number(data, heap + 8) - 16, number(data, heap + 24)
    return changed(data, (heap + 16, piece, 8), (block + piece, piece, 8), (block + piece + 8, 16, 8))


def empty_free_space(data: bytes) -> bytes:
    """Free space in the global heap that takes no room."""
    (heap,) = places(data, b"GCOL", lambda at: True)
    first = number(data, heap + 24)
    return changed(data, (heap + 16 + 16 + -(-first // 8) * 8 + 8, 0, 8))


def own_child(data: bytes, kind: int, level: int, key: int) -> bytes:
    """A node of a group's tree (kind 0) or of chunks (1) that is its own first child."""
    node = places(data, b"TREE", lambda at: data[at + 4] == kind and number(data, at + 6) & 0xFFFF > 0)[-1]
    return changed(data, (node + 5, level, 1), (node + 24 + key, node, 8))


def one_child_twice(data: bytes) -> bytes:
    (node,) = places(data, b"TREE", lambda at: data[at + 4] == 1 and data[at + 5] == 1)
    return changed(data, (node + 24 + 24 + 32, number(data, node + 24 + 24), 8))


CASES: dict[str, tuple[Callable[[bytes], bytes], str, str]] = {
    "names of a group": (lambda data: circular_free_space(data, b"chunked"), "file", "damaged local heap"),
    "names of external files": (lambda data: circular_free_space(data, b"elsewhere.bin"), "external", "local heap"),
    "sources of a virtual dataset": (empty_free_space, "virtual", "damaged global heap"),
    "members of a group": (lambda data: own_child(data, 0, 1, 8), "file", "damaged B-tree: a node of level 1"),
    "members, at every level": (lambda data: own_child(data, 0, 255, 8), "file", "damaged B-tree: a node of level 255"),
    "chunks": (lambda data: own_child(data, 1, 1, 24), "chunked", "damaged B-tree: a node of level 1"),
    "chunks, two ways": (one_child_twice, "chunked", "damaged B-tree: there are two ways"),
}


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Any]]:
    """What reading each file said, by the name of its case; nothing where the process did not come back."""
    folder = tmp_path_factory.mktemp("walks")
    data = honest(folder / "honest.h5")
    for case, (damage, _, _) in CASES.items():
        (folder / case).write_bytes(damage(data))
    paths = [str(folder / name) for name in ("honest.h5", *CASES)]
    said: dict[str, dict[str, Any]] = {}
    while paths:
        command = [sys.executable, "-c", READER, *paths]
        try:
            done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False)
            lines = done.stdout.splitlines()
        except subprocess.TimeoutExpired as late:
            lines = (late.stdout or b"").decode().splitlines()
        for path, found in map(json.loads, lines):
            said[Path(path).name] = found
        paths = paths[len(lines) + 1 :]  # the next one is where it stayed
    return said


def test_an_honest_file_of_that_kind(told: dict[str, dict[str, Any]]) -> None:
    found = told["honest.h5"]
    assert found["good"] == GOOD.sum()
    assert found["chunked"] == CHUNKED.astype(np.float64).sum() or np.isclose(found["chunked"], CHUNKED.sum())
    assert "virtual dataset" in found["virtual"]
    assert "another file" in found["external"]


@pytest.mark.parametrize("case", CASES)
def test_named_and_the_rest_is_read(case: str, told: dict[str, dict[str, Any]]) -> None:
    _, place, words = CASES[case]
    assert case in told, "the process that read it ended, or stayed"
    assert words in told[case][place]
    if place != "file":
        assert told[case]["good"] == GOOD.sum()


def test_addresses_of_another_width(tmp_path: Path) -> None:
    plan = h5py.h5p.create(h5py.h5p.FILE_CREATE)
    plan.set_sizes(4, 4)
    with h5py.File(h5py.h5f.create(str(tmp_path / "d.h5").encode(), fcpl=plan)) as file:
        file.create_group("documents")
        file.create_dataset("tensors/chunked", data=CHUNKED, chunks=(100,))
    with (
        pytest.raises(Exception, match="addresses of 4 and lengths of 4 bytes"),
        open_store("hdf5", str(tmp_path / "d.h5")) as store,
    ):
        store.get("chunked").bits()


@pytest.mark.parametrize("mark", [1, 5])
def test_a_file_that_its_writer_left_open(tmp_path: Path, mark: int) -> None:
    """Judged by h5py, which refuses it as well."""
    path = tmp_path / "d.h5"
    with h5py.File(path, "w", libver="latest") as file:
        file.create_group("documents")
        file["tensors/x"] = GOOD
    with open_store("hdf5", str(path)) as store:
        assert np.array_equal(store.get("x").bits(), GOOD)
    data = changed(path.read_bytes(), (11, mark, 1))
    path.write_bytes(changed(data, (44, lookup3(data[:44]), 4)))
    with pytest.raises(OSError, match="already open for"):
        h5py.File(path)
    with pytest.raises(StoreError, match="marked as open for writing"):
        open_store("hdf5", str(path))


@pytest.mark.parametrize("signature", [b"TREE", b"HEAP", b"GCOL\x01\0\0\0"])
@pytest.mark.parametrize("more", [b"", b"\1", bytes(60), b"\xff" * 600])
def test_values_that_look_like_one(tmp_path: Path, signature: bytes, more: bytes) -> None:
    """Bytes of a tensor may begin with anything."""
    path = tmp_path / "d.h5"
    bits = np.frombuffer(signature + more, np.uint8)
    with h5py.File(path, "w") as file:
        file.create_group("documents")
        file["tensors/x"] = bits
    with open_store("hdf5", str(path)) as store:
        assert np.array_equal(store.get("x").bits(), bits)


@pytest.mark.parametrize("userblock", [0, 512, 4096])
def test_trees_of_three_levels_behind_what_a_user_put_first(tmp_path: Path, userblock: int) -> None:
    """Judged by h5py: 10,000 chunks and 3,000 members."""
    path = tmp_path / "d.h5"
    values = np.arange(10_000, dtype=np.int64)
    with h5py.File(path, "w", userblock_size=userblock) as file:
        file.create_group("documents")
        group = file.create_group("tensors")
        group.create_dataset("chunked", data=values, chunks=(1,))
        for name in range(3000):
            group[f"x{name}"] = np.float32(name)
    with h5py.File(path) as file, open_store("hdf5", str(path)) as store:
        assert sorted(store.keys()) == sorted(file["tensors"])
        assert np.array_equal(store.get("chunked").bits(), file["tensors/chunked"][()])
        for name in range(0, 3000, 211):
            assert store.get(f"x{name}").bits() == file[f"tensors/x{name}"][()]
    levels = {data[at + 5] for data in [path.read_bytes()] for at in places(data, b"TREE", lambda _: True)}
    assert levels >= {0, 1, 2}
