"""Names and links that would lead the files store out of its unit, or into something that is no file."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest

from msformat.dtypes import dtype_named
from msformat.errors import FormatError, MsformatError, StoreError, TensorNotFoundError, UnsafeInputError
from msformat.filesystem import MAP_FROM
from msformat.stores.files import FilesStore
from tests.small_dumps import write_unit

FLOAT32 = dtype_named("float32")


@pytest.fixture
def unit(tmp_path: Path) -> Path:
    """A unit with one good tensor, and a secret outside it."""
    unit = tmp_path / "tree" / "step0" / "rank0"
    with FilesStore(str(unit), mode="w") as store:
        store.put("good.npy", np.arange(3, dtype=np.float32), FLOAT32)
        store.put_document("dump.json", b"{}")
    np.save(tmp_path / "secret.npy", np.array([42.0]))
    (tmp_path / "secret.json").write_text("secret")
    return unit


def still_readable(unit: Path) -> bool:
    with FilesStore(str(unit)) as store:
        return store.get("good.npy").numpy().tolist() == [0, 1, 2] and "good.npy" in set(store.keys())


@pytest.mark.parametrize("name", ["../../../../secret.npy", "..", "x/../../good.npy", "/etc/passwd", "//good.npy"])
def test_names_that_lead_outside(name: str, unit: Path) -> None:
    with FilesStore(str(unit)) as store:
        with pytest.raises(UnsafeInputError, match=r"leads outside") as caught:
            store.get(name)
        assert name in str(caught.value)
        assert name not in store
    assert still_readable(unit)


def test_an_absolute_name_of_a_real_file(unit: Path, tmp_path: Path) -> None:
    with FilesStore(str(unit)) as store, pytest.raises(UnsafeInputError):
        store.get(str(tmp_path / "secret.npy"))


@pytest.mark.parametrize("name", ["", ".", "./good.npy", "good.npy/", ".//good.npy", "good.npy\0", "good.npy/x", "x\0"])
def test_second_names_of_a_file_do_not_exist(name: str, unit: Path) -> None:
    with FilesStore(str(unit)) as store:
        with pytest.raises(TensorNotFoundError):
            store.get(name)
        assert name not in store


@pytest.mark.parametrize("file", ["../../../../secret.npy", "/etc/passwd", "..", "a/../../good.npy"])
def test_a_sidecar_that_points_outside(file: str, unit: Path) -> None:
    (unit / "tensors.jsonl").write_text(f'{{"file": "{file}", "key": "trap.npy"}}\n')
    with FilesStore(str(unit)) as store, pytest.raises(UnsafeInputError, match="trap"):
        store.get("trap.npy")
    assert still_readable(unit)


def test_links_that_lead_outside(unit: Path, tmp_path: Path) -> None:
    data = unit / "dump_tensor_data"
    (data / "link.npy").symlink_to(tmp_path / "secret.npy")
    (data / "nested").symlink_to(tmp_path)
    (data / "dangling.npy").symlink_to(tmp_path / "nothing")
    (data / "loop.npy").symlink_to(data / "loop.npy")
    (unit / "stack.json").symlink_to(tmp_path / "secret.json")
    with FilesStore(str(unit)) as store:
        for name in ("link.npy", "nested/secret.npy"):
            with pytest.raises(UnsafeInputError, match=name):
                store.get(name)
            assert name not in store
        for name in ("dangling.npy", "loop.npy"):
            with pytest.raises(MsformatError):
                store.get(name)
        assert store.documents() == ("dump.json",)
        with pytest.raises(UnsafeInputError, match=r"stack\.json"):
            store.get_document("stack.json")
    assert still_readable(unit)


def test_links_within_the_boundary_are_followed(unit: Path) -> None:
    other = unit.parent / "rank1"
    other.mkdir()
    (other / "dump_tensor_data").symlink_to(unit / "dump_tensor_data")
    with FilesStore(str(other), boundary=str(unit.parents[1])) as store:
        assert store.get("good.npy").numpy().tolist() == [0, 1, 2]
    with FilesStore(str(other)) as store, pytest.raises(UnsafeInputError):
        store.get("good.npy")


def test_a_fifo_does_not_hang_the_reader(unit: Path) -> None:
    data = unit / "dump_tensor_data"
    os.mkfifo(data / "fifo.npy")
    os.mkfifo(unit / "stack.json")
    failures: list[BaseException] = []

    def read() -> None:
        with FilesStore(str(unit)) as store:
            for action in (lambda: store.get("fifo.npy"), lambda: store.get_document("stack.json")):
                try:
                    action()
                except UnsafeInputError as error:
                    failures.append(error)

    thread = threading.Thread(target=read, daemon=True)
    thread.start()
    thread.join(10)
    assert not thread.is_alive()
    assert [("fifo.npy" in str(failures[0])), ("stack.json" in str(failures[1]))] == [True, True]
    assert still_readable(unit)


def test_a_device_is_no_tensor(unit: Path) -> None:
    (unit / "dump_tensor_data" / "zero.npy").symlink_to("/dev/zero")
    with FilesStore(str(unit), boundary="/") as store, pytest.raises(UnsafeInputError, match=r"zero\.npy"):
        store.get("zero.npy")


def test_a_directory_is_no_tensor(unit: Path) -> None:
    (unit / "dump_tensor_data" / "folder.npy").mkdir()
    with FilesStore(str(unit)) as store, pytest.raises((UnsafeInputError, StoreError, TensorNotFoundError)):
        store.get("folder.npy")


def test_nested_files_of_peers_are_read(unit: Path) -> None:
    nested = unit / "dump_tensor_data" / "a" / "b"
    nested.mkdir(parents=True)
    np.save(nested / "x.npy", np.array([5.0]))
    with FilesStore(str(unit)) as store:
        assert list(store.keys()) == ["a/b/x.npy", "good.npy"]
        assert store.get("a/b/x.npy").numpy().tolist() == [5.0]


def test_a_bottomless_tree_ends(unit: Path) -> None:
    deep = unit / "dump_tensor_data"
    for _ in range(60):
        deep /= "d"
    deep.mkdir(parents=True)
    np.save(deep / "x.npy", np.array([5.0]))
    (unit / "dump_tensor_data" / "again").symlink_to(unit / "dump_tensor_data")
    with FilesStore(str(unit)) as store:
        assert len(list(store.keys())) < 100


@pytest.mark.parametrize("name", ["x.npy", "x.pt", "x", "x.bin"])
@pytest.mark.parametrize(
    "content", [b"", b"\x80\x04cos\nsystem\n", b"text" * 100, b"\x93NUMP", b"\x1f\x8b" + bytes(50)]
)
def test_strange_files(name: str, content: bytes, unit: Path) -> None:
    (unit / "dump_tensor_data" / name).write_bytes(content)
    with FilesStore(str(unit)) as store, pytest.raises((FormatError, StoreError), match="x"):
        store.get(name)
    assert still_readable(unit)


def test_writing_never_follows_a_planted_link(unit: Path, tmp_path: Path) -> None:
    victim = tmp_path / "victim"
    victim.write_text("precious")
    (unit / "dump_tensor_data" / "new.npy").symlink_to(victim)
    (unit / "tensors.jsonl").symlink_to(victim)
    (unit / "stack.json").symlink_to(victim)
    try:
        with FilesStore(str(unit), mode="a") as store:
            store.put_document("stack.json", b"[]")
            store.put("new.npy", np.zeros(1, np.float32), FLOAT32)
            store.put("a/b", np.zeros(2, np.float32), FLOAT32)
    except MsformatError:
        pass
    assert victim.read_text() == "precious"


def test_writing_never_goes_through_a_linked_directory(tmp_path: Path) -> None:
    unit, elsewhere = tmp_path / "unit", tmp_path / "elsewhere"
    unit.mkdir()
    elsewhere.mkdir()
    (unit / "dump_tensor_data").symlink_to(elsewhere)
    with FilesStore(str(unit), mode="a") as store, pytest.raises(UnsafeInputError):
        store.put("x.npy", np.zeros(1, np.float32), FLOAT32)
    assert list(elsewhere.iterdir()) == []


def test_reading_needs_no_framework_and_no_pickle(unit: Path) -> None:
    """torch, h5py, zarr and pickle stay unloaded; pickle is numpy's own import, so it is made to fail instead."""
    program = f"""
import sys
import pickle
for name in ("loads", "load", "Unpickler", "_Unpickler"):
    setattr(pickle, name, None)
from msformat.filesystem import MAP_FROM
from msformat.stores.files import FilesStore
from tests.small_dumps import write_unit
store = FilesStore({str(unit)!r})
assert store.get("good.npy").numpy().tolist() == [0, 1, 2]
assert bytes(store.get_document("dump.json")) == b"{{}}"
loaded = {{"torch", "h5py", "zarr", "mindspore", "fsspec", "pandas"}} & set(sys.modules)
assert not loaded, loaded
"""
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize("name", ["\ud800.npy", "x/\udfff.npy"])
def test_names_that_no_file_system_can_hold(name: str, unit: Path) -> None:
    with FilesStore(str(unit)) as store:
        assert name not in store
        with pytest.raises(TensorNotFoundError):
            store.get(name)
    assert still_readable(unit)


SHRINKS = """
import os, sys
import msformat
from msformat.errors import MsformatError
unit = msformat.open(sys.argv[1])[0]
keys = list(unit)
tensor = unit[keys[0]].tensors[0]
stored = tensor.stored
os.truncate(os.path.join(sys.argv[1], "step0/rank", "dump.json"), 10)
os.truncate(os.path.join(sys.argv[1], "step0/rank/dump_tensor_data", tensor.data_name), 10)
print(unit[keys[-1]].key)
try:
    stored.bits()
except MsformatError as error:
    print(error)
"""


def test_files_that_shrink_under_the_reader(tmp_path: Path) -> None:
    arrays = {f"Functional.relu.{n}.forward": np.zeros((200, 200), np.float32) for n in range(400)}
    unit = write_unit(tmp_path / "dump/step0/rank", arrays)
    assert (unit / "dump.json").stat().st_size > MAP_FROM
    # In a process of its own: a map of a file that shrinks would be its end.
    done = subprocess.run(
        [sys.executable, "-c", SHRINKS, str(tmp_path / "dump")], capture_output=True, text=True, check=False,
        cwd=Path(__file__).parents[2],
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[0] == "Functional.relu.399.forward"
    assert "bytes too early" in done.stdout
