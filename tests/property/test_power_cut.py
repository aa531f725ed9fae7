"""Power cuts in front of every call: what was synced is there, and what was not has harmed nothing."""

from __future__ import annotations

import itertools
import os
from pathlib import Path

import pytest

from msformat.atomic import make_directories, write_atomic
from msformat.stores.hdf5_paged import PAGE, PagedFile
from tests.property.disk import WatchedDisk

SEEDS = range(8)


def _cuts(disk: WatchedDisk, place: Path, action: object) -> list[tuple[int, Path]]:
    """Each state that a cut in the middle of an action may leave, and in front of which call."""
    assert callable(action)
    numbers, left = itertools.count(), list[tuple[int, Path]]()

    def before() -> None:
        call = next(numbers)
        for seed in SEEDS:
            target = place / f"{call}-{seed}"
            disk.cut_power(target, seed)
            left.append((call, target))

    with disk.watched(before):
        action()
    return left


def test_what_is_not_synced_is_lost(tmp_path: Path) -> None:
    """The disk of these tests is one: otherwise they would show nothing."""
    root = tmp_path / "disk"
    root.mkdir()
    disk = WatchedDisk(root)
    with disk.watched(lambda: None):
        (root / "a").write_bytes(b"1")
        write_atomic(root / "b", b"2", fsync=False)
        write_atomic(root / "c", b"3")
        (root / "c").write_bytes(b"4")
    disk.cut_power(tmp_path / "after", 0)
    found = {path.name: path.read_bytes() for path in (tmp_path / "after").iterdir()}
    assert found == {"a": b"", "b": b"", "c": b"3"}


def test_a_directory_is_there_with_all_above_it(tmp_path: Path) -> None:
    root = tmp_path / "disk"
    root.mkdir()
    disk = WatchedDisk(root)
    with disk.watched(lambda: None):
        make_directories(root / "a" / "b" / "c")
        make_directories(root / "a" / "b" / "d")
        make_directories(root / "x" / "y", fsync=False)
    disk.cut_power(tmp_path / "after", 0)
    assert (tmp_path / "after" / "a" / "b" / "c").is_dir()
    assert (tmp_path / "after" / "a" / "b" / "d").is_dir()
    assert not (tmp_path / "after" / "x" / "y").exists()


@pytest.mark.parametrize("grows", [True, False])
def test_a_commit_of_hdf5_happens_or_does_not(tmp_path: Path, grows: bool) -> None:
    """Pages that were synced before are changed in place, from a side file that must be on disk by name, too."""
    root = tmp_path / "disk"
    unit = root / "unit"
    unit.mkdir(parents=True)
    disk = WatchedDisk(root)
    states = [bytes([number]) * (3 * PAGE) for number in range(3)]
    with disk.watched(lambda: None):
        file = PagedFile(str(unit / "dump.h5"), "x")

    def change(content: bytes) -> None:
        file.seek(0)
        file.write(content)
        file.commit()

    with disk.watched(lambda: None):
        change(states[0])
        change(states[1])
        # As the store does it, which makes the file under another name.
        disk.sync_directory(unit)
    new = states[2] + states[2] if grows else states[2]
    left = _cuts(disk, tmp_path, lambda: change(new))
    file.close()
    assert len(left) > 4 * len(SEEDS)
    for call, place in left:
        with PagedFile(str(place / "unit" / "dump.h5"), "a") as found:
            size = found.seek(0, os.SEEK_END)
            found.seek(0)
            content = found.read(size)
        # Behind the synced end anything may lie: nothing points there yet.
        assert content == new or content[: len(states[1])] == states[1], call
