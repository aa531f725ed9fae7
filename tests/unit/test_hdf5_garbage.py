"""Who reads HDF5 from a URL waits for a thread that fetches; garbage that this one collects must not hang both.

Each hang is played in a process of its own, which is ended should it come true.
"""

from __future__ import annotations

import gc
import os
import subprocess
import sys
import threading
from pathlib import Path

import h5py
import numpy as np
import pytest

from msformat.stores import hdf5_garbage
from msformat.stores.hdf5_garbage import NO_COLLECTIONS, calm

_TIMEOUT_S = 120

# A file system that has one thread fetch, as those of fsspec do that are asynchronous.
_PREPARED = """
import gc, sys, threading
import fsspec, h5py
from concurrent.futures import ThreadPoolExecutor
from fsspec.implementations.memory import MemoryFileSystem
from msformat.stores.registry import open_store

fetching = ThreadPoolExecutor(1)
objects = [h5py.h5p.create(h5py.h5p.LINK_CREATE) for _ in range(2000)]  # each in a cycle, once it is dropped
real = MemoryFileSystem.cat_file

def drop():
    cycle = [objects.pop()]
    cycle.append(cycle)

def patch(before):
    def fetch(*args, **settings):
        before()
        return real(*args, **settings)
    MemoryFileSystem.cat_file = lambda *args, **settings: fetching.submit(fetch, *args, **settings).result()

fsspec.filesystem("memory").pipe_file("/bucket/d.h5", open(sys.argv[1], "rb").read())
"""

_READ_ALL = """
with open_store("hdf5", "memory://bucket/d.h5") as store:
    assert store.groups("memory://bucket/d.h5") == ("",)
    assert list(store.keys()) == ["x"] and len(store) == 1 and "x" in store
    tensor = store.get("x")
    assert tensor.digest is None and tensor.identity
    assert (tensor.bits() == 7).all()
    assert bytes(store.get_document("dump.json")) == b"{}" and store.document_seal("dump.json")
    assert store.documents() == ("dump.json",)
"""

_WHILE_FETCHING = """
def collect_now_and_then():
    drop()
    kept = [[] for _ in range(5000)]  # Python collects after 700, or 2000

patch(collect_now_and_then)
"""

_SINCE_BEFORE = """
collecting, asked = threading.Event(), threading.Event()

class Slow:
    def __del__(self):
        collecting.set()
        asked.wait(2)  # in vain, where nobody asks in the middle of a collection

def collect():
    drop()
    slow = Slow()
    slow.itself = slow
    del slow
    gc.collect()

patch(lambda: None)
store = open_store("hdf5", "memory://bucket/d.h5")
tensor = store.get("x")
far = MemoryFileSystem.cat_file

def ask(*args, **settings):
    asked.set()
    return far(*args, **settings)

MemoryFileSystem.cat_file = ask
fetching.submit(collect)
assert collecting.wait(60)
assert (tensor.bits() == 7).all()
store.close()
"""


@pytest.fixture
def stored(tmp_path: Path) -> Path:
    path = tmp_path / "d.h5"
    with h5py.File(path, "w") as file:
        file["tensors/x"] = np.full((64, 4096), 7, np.float32)
        file["documents/dump.json"] = np.frombuffer(b"{}", np.uint8)
    return path


def _play(script: str, stored: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", _PREPARED + script, str(stored)],
        timeout=_TIMEOUT_S,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr


def test_garbage_that_the_fetching_thread_may_collect(stored: Path) -> None:
    _play(_WHILE_FETCHING + _READ_ALL, stored)


def test_a_collection_of_the_fetching_thread_that_began_before(stored: Path) -> None:
    _play(_SINCE_BEFORE, stored)


def test_collections_are_off_for_as_long_as_any_thread_is_inside() -> None:
    entered, leave = threading.Event(), threading.Event()

    def other() -> None:
        with NO_COLLECTIONS:
            entered.set()
            assert leave.wait(60)

    thread = threading.Thread(target=other)
    with NO_COLLECTIONS:
        thread.start()
        assert entered.wait(60)
        with NO_COLLECTIONS:
            assert not gc.isenabled()
    assert not gc.isenabled()
    leave.set()
    thread.join()
    assert gc.isenabled()


def test_what_was_off_stays_off_and_errors_leave_no_trace() -> None:
    with pytest.raises(KeyError), NO_COLLECTIONS:
        raise KeyError
    assert gc.isenabled()
    gc.disable()
    try:
        with NO_COLLECTIONS:
            pass
        assert not gc.isenabled()
    finally:
        gc.enable()


def test_local_files_are_read_as_ever() -> None:
    with calm("/somewhere/d.h5"):
        assert gc.isenabled()
    with calm("s3://somewhere/d.h5"):
        assert not gc.isenabled()


def test_a_finalizer_that_reads_does_not_wait_for_its_own_collection(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(hdf5_garbage, "_PATIENCE_S", 0.01)
    read: list[bool] = []

    class Reader:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            with NO_COLLECTIONS:
                read.append(True)

    Reader()
    gc.collect()
    assert read == [True]
    assert gc.isenabled()


def test_a_collection_is_noticed() -> None:
    began, end = threading.Event(), threading.Event()

    class Slow:
        def __init__(self) -> None:
            self.itself = self

        def __del__(self) -> None:
            began.set()
            assert end.wait(60)

    def collect() -> None:
        Slow()
        gc.collect()

    thread = threading.Thread(target=collect)
    thread.start()
    assert began.wait(60)
    assert hdf5_garbage._is_collecting()
    end.set()
    thread.join()
    assert not hdf5_garbage._is_collecting()


@pytest.mark.skipif(not hasattr(os, "fork"), reason="a process is forked")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_child_of_a_process_that_is_inside_collects() -> None:
    entered, leave = threading.Event(), threading.Event()

    def inside() -> None:
        with NO_COLLECTIONS:
            entered.set()
            assert leave.wait(60)

    thread = threading.Thread(target=inside)
    thread.start()
    assert entered.wait(60)
    child = os.fork()
    if child == 0:
        os._exit(0 if gc.isenabled() else 1)
    leave.set()
    thread.join()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0


def test_a_reader_that_outlives_python_ends_in_peace(stored: Path) -> None:
    # The class keeps the function, which keeps the script's names, for ever.
    _play('patch(lambda: None)\nstore = open_store("hdf5", "memory://bucket/d.h5")\n', stored)
