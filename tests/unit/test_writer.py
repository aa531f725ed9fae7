"""DumpWriter: what it promises, in which order, and how it dies."""

from __future__ import annotations

import contextlib
import json
import os
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

import msformat
from msformat.dtypes import dtype_named
from msformat.errors import DTypeError, FormatError, KeyExistsError, SchemaError, StoreError
from msformat.finish import store_location
from msformat.journal import read_journal, replay
from msformat.model import Header
from msformat.stores.base import Store, StoreOptions
from msformat.stores.registry import open_store
from msformat.writer import DumpWriter
from tests.crash.workload import BACKENDS, HEADER, put, step, steps
from tests.judges import judge

torch = judge("torch")
zarr = judge("zarr")

FLOAT32 = dtype_named("float32")
SCALAR = {"type": "int", "value": 3}


def write(unit: Path, backend: str, count: int = 10, **arguments: Any) -> None:
    with DumpWriter(unit, HEADER, backend=backend, **arguments) as writer:
        for one in steps(1, count):
            put(writer, one)


def documents(unit: Path, backend: str) -> dict[str, bytes]:
    """Document bytes without msformat's stores."""
    if backend == "files":
        return {path.name: path.read_bytes() for path in unit.iterdir() if path.suffix in (".json", ".log")}
    if backend == "hdf5":
        with h5py.File(unit / "dump.h5") as file:
            return {name: data[:].tobytes() for name, data in file["documents"].items()}
    group = zarr.open_group(str(unit / "dump.zarr"), mode="r")["documents"]
    return {name: group[name][:].tobytes() for name in group if name != "index.json"}  # type: ignore[union-attr,index]


@pytest.mark.parametrize("backend", BACKENDS)
def test_documents_are_the_canonical_bytes(tmp_path: Path, backend: str) -> None:
    unit = tmp_path / "step0" / "rank"
    write(unit, backend)
    found = documents(unit, backend)
    data = {one.key: one.value for one in steps(1, 10)}
    directory = str(unit / "dump_tensor_data")
    dump = {"task": "tensor", "level": "L1", "framework": "pytorch", "dump_data_dir": directory, "data": data}
    groups: dict[str, list[str]] = {}
    for one in steps(1, 10):
        groups.setdefault(one.frames[0], []).append(one.key)
    stack = {str(number): [keys, [frame]] for number, (frame, keys) in enumerate(groups.items())}
    wanted = {"dump.json": dump, "stack.json": stack, "construct.json": {one.key: one.parent for one in steps(1, 10)}}
    assert found == {name: json.dumps(obj, indent=1).encode() for name, obj in wanted.items()}
    assert not (unit / "journal.jsonl").exists()


@pytest.mark.parametrize("backend", BACKENDS)
def test_tensors_keep_their_bits(tmp_path: Path, backend: str) -> None:
    write(tmp_path, backend)
    with open_store(backend, store_location(tmp_path, backend)) as store:
        for one in steps(1, 10):
            for name, (bits, dtype) in one.tensors.items():
                stored = store.get(name)
                assert stored.shape == bits.shape
                assert stored.bits().tobytes() == (
                    dtype.widen_bfloat16(bits) if stored.dtype.name != dtype.name else bits
                ).tobytes()  # fmt: skip


def test_files_open_in_torch_and_numpy(tmp_path: Path) -> None:
    values = np.arange(6, dtype=np.float32).reshape(2, 3)
    with DumpWriter(tmp_path, HEADER) as writer:
        writer.put_tensor("y.0.debug.pt", values, FLOAT32)
        writer.put_tensor("y.0.debug.npy", values, FLOAT32)
    assert torch.equal(torch.load(tmp_path / "dump_tensor_data" / "y.0.debug.pt"), torch.from_numpy(values))
    np.testing.assert_array_equal(np.load(tmp_path / "dump_tensor_data" / "y.0.debug.npy"), values)


def test_nothing_put_leaves_nothing(tmp_path: Path) -> None:
    for number, backend in enumerate(BACKENDS):
        unit = tmp_path / f"step{number}" / "rank"
        with DumpWriter(unit, HEADER, backend=backend) as writer:
            writer.put_problem("nothing was captured")
            writer.commit()
    DumpWriter(tmp_path / "step8" / "rank", HEADER).close()
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("backend", BACKENDS)
def test_statistics_alone(tmp_path: Path, backend: str) -> None:
    record = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [2], "Max": 1.0}
    with DumpWriter(tmp_path, Header("statistics", "L1", "pytorch"), backend=backend) as writer:
        writer.put_entry("Functional.relu.0.forward", {"input_args": [record], "output": []})
        writer.commit()
        # No store has to be made for what needs none.
        assert [path.name for path in tmp_path.iterdir()] == ["journal.jsonl"]
    found = json.loads(documents(tmp_path, backend)["dump.json"])
    assert found["dump_data_dir"] is None
    assert not (tmp_path / "dump_tensor_data").exists()


def test_structure_has_trees_and_no_entries(tmp_path: Path) -> None:
    with DumpWriter(tmp_path, Header("structure", "mix", "pytorch")) as writer:
        writer.put_parent("Module.a.A.forward.0", None)
        writer.put_stack(["Module.a.A.forward.0"], ["File x"])
    found = documents(tmp_path, "files")
    assert json.loads(found["dump.json"])["data"] == {}
    assert json.loads(found["construct.json"]) == {"Module.a.A.forward.0": None}
    assert json.loads(found["stack.json"]) == {"0": [["Module.a.A.forward.0"], ["File x"]]}


def test_debug_document_stands_alone(tmp_path: Path) -> None:
    with DumpWriter(tmp_path, Header("tensor", "debug", "pytorch"), document="debug.json") as writer:
        writer.put_entry("x.0.debug", SCALAR)
    assert list(documents(tmp_path, "files")) == ["debug.json"]


def test_same_key_replaces_in_place(tmp_path: Path) -> None:
    with DumpWriter(tmp_path, HEADER, sync_entries=1) as writer:
        for key, value in (("a.0", 1), ("b.0", 2), ("a.0", 3)):
            writer.put_entry(key, {"type": "int", "value": value})
    data = json.loads((tmp_path / "dump.json").read_text())["data"]
    assert list(data.items()) == [("a.0", {"type": "int", "value": 3}), ("b.0", {"type": "int", "value": 2})]


def test_values_are_taken_as_they_are_now(tmp_path: Path) -> None:
    value = {"type": "list", "value": [1]}
    array = np.zeros(3, np.float32)
    with DumpWriter(tmp_path, HEADER) as writer:
        writer.put_entry("a.0", value)
        value["value"] = "changed"
        writer.put_tensor("x.0.debug.npy", array, FLOAT32)
        array += 1
    assert json.loads((tmp_path / "dump.json").read_text())["data"]["a.0"]["value"] == [1]
    assert not np.load(tmp_path / "dump_tensor_data" / "x.0.debug.npy").any()


def test_problems_end_up_in_the_log(tmp_path: Path) -> None:
    with DumpWriter(tmp_path, HEADER) as writer:
        writer.put_problem("x was not captured: no storage")
        writer.put_entry("a.0", SCALAR)
    assert (tmp_path / "dump_error_info.log").read_text() == "x was not captured: no storage\n"


@pytest.mark.parametrize(
    "value",
    [object(), {1, 2}, 3, {"type": "torch.Tensor", "dtype": "torch.float32"}, {"a": np.float32(1)}],
)
def test_bad_entries_are_refused_and_harm_nothing(tmp_path: Path, value: Any) -> None:
    with DumpWriter(tmp_path, HEADER) as writer:
        writer.put_entry("good.0", SCALAR)
        with pytest.raises(FormatError, match=r"bad\.0"):
            writer.put_entry("bad.0", value)
        writer.put_entry("good.1", SCALAR)
    assert list(json.loads((tmp_path / "dump.json").read_text())["data"]) == ["good.0", "good.1"]


def test_a_trusted_entry_is_the_same_text(tmp_path: Path) -> None:
    for trusted in (True, False):
        with DumpWriter(tmp_path / str(trusted), Header("statistics", "L1", "pytorch")) as writer:
            for one in (*steps(1, 10), *steps(2, 3)):
                for name, (bits, dtype) in one.tensors.items():
                    with contextlib.suppress(KeyExistsError):
                        writer.put_tensor(name, bits, dtype)
                writer.put_entry(one.key, one.value, trusted=trusted)
    found = [documents(tmp_path / str(trusted), "files")["dump.json"] for trusted in (True, False)]
    assert found[0].replace(b"/True/", b"/False/") == found[1]


def test_a_trusted_entry_still_has_its_tensors(tmp_path: Path) -> None:
    names = ("x.0.debug.pt", "梯度.0.debug.pt", 'quo"te.0.debug.pt')
    with DumpWriter(tmp_path, HEADER) as writer:
        for name in names:
            value = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [3], "data_name": name}
            with pytest.raises(FormatError, match="which was not put"):
                writer.put_entry("x.0.debug", [value], trusted=True)
            writer.put_tensor(name, np.zeros(3, np.float32), FLOAT32)
            writer.put_entry(f"{name}.debug", [value], trusted=True)
        # Neither is the name of a tensor.
        writer.put_entry("text.0.debug", {"type": "str", "value": '{"data_name":"y"}'}, trusted=True)
        writer.put_entry("dict.0.debug", {"data_name": {"type": "str", "value": "y"}}, trusted=True)


def test_a_trusted_entry_that_nobody_could_read_again_is_refused(tmp_path: Path) -> None:
    deep: Any = None
    for _ in range(300):
        deep = [deep]
    with DumpWriter(tmp_path, HEADER) as writer:
        writer.put_entry("a.0", SCALAR, trusted=True)
        with pytest.raises(FormatError, match=r"deep"):
            writer.put_entry("bad.0", deep, trusted=True)
    assert list(json.loads((tmp_path / "dump.json").read_text())["data"]) == ["a.0"]


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_second_name_for_a_tensor(tmp_path: Path, backend: str) -> None:
    values = np.arange(30_000, dtype=np.float32)
    with DumpWriter(tmp_path, HEADER, backend=backend) as writer:
        writer.put_tensor("x.0.debug.pt", values, FLOAT32)
        writer.put_same("y.0.debug.pt", "x.0.debug.pt")
        with pytest.raises(FormatError, match=r"'z\.0\.debug\.pt' was not put"):
            writer.put_same("y.1.debug.pt", "z.0.debug.pt")
        value = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [30_000], "data_name": "y.0.debug.pt"}
        writer.put_entry("y.0.debug", value)
        assert writer.data_name("y.0.debug.pt") == "y.0.debug~2.pt"
    with open_store(backend, store_location(tmp_path, backend)) as store:
        assert store.get("y.0.debug.pt").bits().tobytes() == values.tobytes()
        assert store.get("y.0.debug.pt").identity == store.get("x.0.debug.pt").identity


def test_deep_and_circular_values_are_refused(tmp_path: Path) -> None:
    circular: list[Any] = []
    circular.append(circular)
    deep: Any = None
    for _ in range(100_000):
        deep = [deep]
    with DumpWriter(tmp_path, HEADER) as writer:
        for value in (circular, deep):
            with pytest.raises(FormatError, match=r"bad\.0"):
                writer.put_entry("bad.0", value)
    while deep:
        deep = deep[0]


def test_an_entry_must_not_name_what_was_not_put(tmp_path: Path) -> None:
    one = step(1, 0)
    with DumpWriter(tmp_path, HEADER) as writer:
        name, (bits, dtype) = next(iter(one.tensors.items()))
        writer.put_tensor(name, bits, dtype)
        with pytest.raises(FormatError, match=r"output\.0\.pt', which was not put"):
            writer.put_entry(one.key, one.value)


def test_header_is_checked(tmp_path: Path) -> None:
    with pytest.raises(SchemaError, match="/level"):
        DumpWriter(tmp_path, Header("tensor", "L9", "pytorch"))


@pytest.mark.parametrize("call", [("put_parent", 1, None), ("put_parent", "a", 2), ("put_parents", {"a": 2}),
                                  ("put_stack", ["a"], [1]),
                                  ("put_stack", [None], []), ("put_problem", 5), ("put_entry", 7, None)])  # fmt: skip
def test_what_the_journal_could_not_read_again_is_refused(tmp_path: Path, call: tuple[Any, ...]) -> None:
    writer = DumpWriter(tmp_path, HEADER)
    with pytest.raises(FormatError, match="is no string"):
        getattr(writer, call[0])(*call[1:])
    writer.close()


# --- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_names_are_data_and_never_a_path(tmp_path: Path, backend: str) -> None:
    unit = tmp_path / "deep" / "step0" / "rank"
    raws = [
        "a/../../b.0.debug.pt",
        "../../../../x.pt",
        "/abs.pt",
        "a\0b.pt",
        "back\\slash.pt",
        "..",
        "",
        "n" * 400 + ".pt",
    ]
    with DumpWriter(unit, HEADER, backend=backend) as writer:
        names = [writer.data_name(raw) for raw in raws]
        for number, name in enumerate(names):
            writer.put_tensor(name, np.full(3, number, np.float32), FLOAT32)
    assert len(set(names)) == len(raws)
    assert [path.name for path in tmp_path.iterdir()] == ["deep"]
    assert [path.name for path in (tmp_path / "deep").iterdir()] == ["step0"]
    with open_store(backend, store_location(unit, backend)) as store:
        assert [float(store.get(name).numpy()[0]) for name in names] == list(range(len(raws)))


def test_names_are_given_out_once(tmp_path: Path) -> None:
    writer = DumpWriter(tmp_path, HEADER)
    names = [writer.data_name(raw) for raw in ("a.0.debug.pt", "a.0.debug.pt", "a.0.debug.pt", "a.0.debug~2.pt")]
    assert names[0] == "a.0.debug.pt"
    assert len(set(names)) == 4
    assert all(name.endswith(".pt") for name in names)
    writer.close()


def test_a_tensor_is_never_overwritten(tmp_path: Path) -> None:
    with DumpWriter(tmp_path, HEADER) as writer:
        writer.put_tensor("x.0.debug.pt", np.zeros(2, np.float32), FLOAT32)
        with pytest.raises(KeyExistsError):
            writer.put_tensor("x.0.debug.pt", np.ones(2, np.float32), FLOAT32)
        writer.put_entry("x.0.debug", SCALAR)
    assert (tmp_path / "dump.json").exists()


# --- one writer, one unit --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_finished_unit_is_never_overwritten(tmp_path: Path, backend: str) -> None:
    write(tmp_path, backend, 2)
    before = documents(tmp_path, backend)
    with pytest.raises(StoreError, match="a dump lies here already"):
        DumpWriter(tmp_path, HEADER)
    assert documents(tmp_path, backend) == before


def test_an_unfinished_unit_is_never_overwritten(tmp_path: Path) -> None:
    writer = DumpWriter(tmp_path, HEADER)
    late = DumpWriter(tmp_path, HEADER)
    writer.put_entry("a.0", SCALAR)
    with pytest.raises(StoreError, match="still being written by process"):
        late.put_entry("b.0", SCALAR)
    with pytest.raises(StoreError, match="still being written by process"):
        DumpWriter(tmp_path, HEADER)
    late.close()
    writer.close()
    with pytest.raises(StoreError, match="msformat recover"):
        DumpWriter(tmp_path, HEADER)
    assert list(replay(read_journal(tmp_path / "journal.jsonl").records).entries) == ["a.0"]


def test_other_files_do_not_disturb(tmp_path: Path) -> None:
    (tmp_path / "notes.txt").write_text("mine")
    write(tmp_path, "files", 2)
    assert (tmp_path / "notes.txt").read_text() == "mine"


@pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")  # 3.12 warns if any library has a thread
def test_a_forked_child_cannot_write(tmp_path: Path) -> None:
    writer = DumpWriter(tmp_path, HEADER, backend="hdf5")
    put(writer, step(1, 0))
    child = os.fork()
    if child == 0:
        try:
            writer.put_entry("child.0", SCALAR)
        except StoreError:
            writer.close()
            os._exit(0)
        os._exit(1)
    assert os.waitpid(child, 0)[1] == 0
    put(writer, step(1, 1))
    writer.finish()
    assert list(json.loads(documents(tmp_path, "hdf5")["dump.json"])["data"]) == [one.key for one in steps(1, 2)]


def test_many_threads_lose_nothing(tmp_path: Path) -> None:
    writer = DumpWriter(tmp_path, HEADER, backend="zarr", sync_entries=5)

    def put_every_fourth(start: int) -> None:
        for number in range(start, 40, 4):
            put(writer, step(1, number))

    threads = [threading.Thread(target=put_every_fourth, args=(start,)) for start in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    writer.finish()
    found = json.loads(documents(tmp_path, "zarr")["dump.json"])["data"]
    assert sorted(found) == sorted(one.key for one in steps(1, 40))


def test_permissions_follow_the_umask(tmp_path: Path) -> None:
    before = os.umask(0o027)
    try:
        write(tmp_path / "step0" / "rank", "files", 2)
    finally:
        os.umask(before)
    for path in tmp_path.rglob("*"):
        assert path.stat().st_mode & 0o777 == (0o750 if path.is_dir() else 0o640), path


# --- order and death -------------------------------------------------------------------------------------------------


def test_bytes_barrier_journal_documents(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The one order in which a promise is never broken."""
    from msformat import journal
    from msformat.stores.files import FilesStore

    log: list[str] = []

    def logged(owner: Any, name: str, label: str) -> None:
        original = getattr(owner, name)

        def call(*arguments: Any, **named: Any) -> Any:
            log.append(label)
            return original(*arguments, **named)

        monkeypatch.setattr(owner, name, call)

    logged(FilesStore, "put", "bytes")
    logged(FilesStore, "sync", "barrier")
    logged(FilesStore, "put_document", "document")
    logged(journal.JournalWriter, "append", "journal")
    logged(journal.JournalWriter, "remove", "drop")
    with DumpWriter(tmp_path, HEADER, sync_entries=1) as writer:
        put(writer, step(1, 0))
        put(writer, step(1, 1))
    batches = ["bytes", "bytes", "barrier", "journal"]
    # The first journal is the header; stack and parent follow with the next batch; closing a store is a barrier too.
    assert log == ["journal", *batches, *batches, "journal", "document", "document", "document", "barrier", "drop"]


def test_commit_by_entries_and_by_bytes(tmp_path: Path) -> None:
    def journalled() -> int:
        return len(replay(read_journal(tmp_path / "journal.jsonl").records).entries)

    with DumpWriter(tmp_path, HEADER, sync_entries=3, sync_bytes=1000) as writer:
        for number in range(5):
            writer.put_entry(f"a.{number}", SCALAR)
        assert journalled() == 3
        writer.put_tensor("x.0.debug.pt", np.zeros(300, np.float32), FLOAT32)
        assert journalled() == 3
        writer.put_entry("x.0.debug", SCALAR)
        assert journalled() == 6


def test_close_without_finish_keeps_everything(tmp_path: Path) -> None:
    writer = DumpWriter(tmp_path, HEADER)
    put(writer, step(1, 0))
    writer.close()
    writer.close()
    found = read_journal(tmp_path / "journal.jsonl")
    assert found.reason == "closed before it was finished"
    assert replay(found.records).entries.keys() == {step(1, 0).key}
    assert not (tmp_path / "dump.json").exists()
    with pytest.raises(StoreError, match="it is closed"):
        writer.put_entry("late.0", SCALAR)


def test_an_exception_leaves_it_unfinished_with_the_reason(tmp_path: Path) -> None:
    def user() -> None:
        with DumpWriter(tmp_path, HEADER) as writer:
            put(writer, step(1, 0))
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        user()
    found = read_journal(tmp_path / "journal.jsonl")
    assert found.reason == "KeyError: 'mine'"
    assert step(1, 0).key in replay(found.records).entries


def test_finish_twice_is_fine_and_puts_afterwards_are_not(tmp_path: Path) -> None:
    writer = DumpWriter(tmp_path, HEADER)
    put(writer, step(1, 0))
    writer.finish()
    writer.finish()
    writer.close()
    with pytest.raises(StoreError, match="it is finished"):
        put(writer, step(1, 1))


@pytest.mark.parametrize("method", ["put", "sync", "put_documents"])
@pytest.mark.parametrize("error", [OSError(28, "No space left on device"), RuntimeError("dead"), StoreError("gone")])
def test_a_dead_store_is_told_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, method: str, error: Exception
) -> None:
    def fail(*_: Any, **__: Any) -> None:
        raise error

    writer = DumpWriter(tmp_path, HEADER, backend="hdf5", sync_entries=1)
    put(writer, step(1, 0))
    assert isinstance(writer._store, Store)
    monkeypatch.setattr(writer._store, method, fail)
    first = writer.finish if method == "put_documents" else lambda: put(writer, step(1, 1))
    with pytest.raises(StoreError, match=error.args[-1]):
        first()
    calls: list[Callable[[], None]] = [
        lambda: put(writer, step(1, 2)),
        lambda: writer.put_problem("x"),
        writer.commit,
        writer.finish,
    ]
    for call in calls:
        with pytest.raises(StoreError, match="cannot be written any more: writing failed: "):
            call()
    writer.close()
    found = read_journal(tmp_path / "journal.jsonl")
    assert found.reason is not None
    assert found.reason.startswith("writing failed: ")
    assert step(1, 0).key in replay(found.records).entries


def test_with_never_hides_the_users_exception(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail() -> None:
        raise OSError(28, "No space left on device")

    def user() -> None:
        with DumpWriter(tmp_path, HEADER) as writer:
            put(writer, step(1, 0))
            monkeypatch.setattr(writer._store, "sync", fail)
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        user()
    assert "No space left" in str(read_journal(tmp_path / "journal.jsonl").reason)


def test_a_failure_that_was_told_is_not_told_again_at_the_end(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with DumpWriter(tmp_path, HEADER) as writer:
        put(writer, step(1, 0))

        def fail() -> None:
            raise OSError(28, "No space left on device")

        monkeypatch.setattr(writer._store, "sync", fail)
        with pytest.raises(StoreError):
            writer.commit()


def test_a_directory_that_cannot_be_made(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    writer = DumpWriter(tmp_path / "file" / "step0", HEADER)
    with pytest.raises(StoreError, match="Not a directory"):
        writer.put_entry("a.0", SCALAR)
    writer.close()


@pytest.mark.parametrize("backend", BACKENDS)
def test_a_relative_directory_stays_where_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    monkeypatch.chdir(tmp_path)
    writer = DumpWriter("step0", HEADER, backend=backend)
    put(writer, step(1, 0))
    monkeypatch.chdir(elsewhere)
    put(writer, step(1, 1))
    writer.finish()
    assert list(json.loads(documents(tmp_path / "step0", backend)["dump.json"])["data"]) == [
        step(1, number).key for number in range(2)
    ]
    assert not any(elsewhere.iterdir())


def test_a_url_is_no_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(StoreError, match=r"s3://bucket/step0: .* convert"):
        DumpWriter("s3://bucket/step0", HEADER)
    assert not any(tmp_path.iterdir())


def test_options_reach_the_store(tmp_path: Path) -> None:
    with DumpWriter(tmp_path, HEADER, options=StoreOptions(links=False)) as writer:
        for name in ("a.0.debug.npy", "b.0.debug.npy"):
            writer.put_tensor(name, np.zeros(5, np.float32), FLOAT32)
    assert all(path.stat().st_nlink == 1 for path in (tmp_path / "dump_tensor_data").iterdir())


@pytest.mark.parametrize("backend", BACKENDS)
def test_durability_says_whether_the_disk_is_waited_for(
    tmp_path: Path, backend: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    waits: list[str] = []

    def fsync(_: int) -> None:
        waits.append("fsync")

    monkeypatch.setattr(os, "fsync", fsync)
    write(tmp_path / "a", backend, options=StoreOptions(durability="process"))
    assert not waits
    write(tmp_path / "b", backend, options=StoreOptions(durability="fsync"))
    assert waits
    found = [documents(tmp_path / name, backend)["construct.json"] for name in ("a", "b")]
    assert found[0] == found[1]


def test_no_such_durability() -> None:
    with pytest.raises(FormatError, match="choices: fsync, process"):
        StoreOptions(durability="memory")  # type: ignore[arg-type]


def test_a_spelling_is_no_dtype(tmp_path: Path) -> None:
    with DumpWriter(tmp_path / "rank", HEADER) as writer, pytest.raises(DTypeError, match="parse_dtype"):
        writer.put_tensor("x.npy", np.zeros(3, np.float32), "float32")  # type: ignore[arg-type]


def test_many_parents_at_once_are_as_many_alone(tmp_path: Path) -> None:
    parents = {f"Module.m{at}.M.forward.0": f"Module.m{at - 1}.M.forward.0" if at else None for at in range(2500)}
    documents = []
    for name in ("one", "many"):
        writer = DumpWriter(tmp_path / name, HEADER)
        writer.put_entry("Module.m0.M.forward.0", {"output": []})
        if name == "many":
            writer.put_parents(parents)
        else:
            for child, parent in parents.items():
                writer.put_parent(child, parent)
        writer.commit()
        with next(iter(msformat.open(tmp_path / name))) as unfinished:
            assert unfinished.parent("Module.m2499.M.forward.0") == "Module.m2498.M.forward.0"
        writer.finish()
        documents.append((tmp_path / name / "construct.json").read_bytes())
    assert documents[0] == documents[1]


def test_entries_at_once_are_as_many_alone(tmp_path: Path) -> None:
    numbers = [1.0, 1e-5, -1e-07, 1e300, float("nan"), float("inf"), -0.0, 3, True, None, "a\nb", "ü", 'q"']
    entries = [(f"Functional.f.{at}.forward", {"output": [{"type": "float", "value": number}]})
               for at, number in enumerate(numbers)]  # fmt: skip
    documents = []
    for name, batches in (("alone", None), ("plain", [entries[:4], entries[6:10]]), ("odd", [entries])):
        with DumpWriter(tmp_path / name, HEADER) as writer:
            for key, value in entries if batches is None else []:
                writer.put_entry(key, value)
            for batch in batches or []:
                writer.put_entries(batch)
        documents.append(json.loads((tmp_path / name / "dump.json").read_bytes())["data"])
    assert str(documents[2]) == str(documents[0])
    assert documents[1].items() <= documents[0].items()
    assert len(documents[1]) == 8
    assert (tmp_path / "odd" / "dump.json").read_bytes() == (tmp_path / "alone" / "dump.json").read_bytes()


def test_a_batch_with_a_tensor_that_was_not_put_records_nothing(tmp_path: Path) -> None:
    tensor = {"type": "torch.Tensor", "dtype": "torch.float32", "shape": [], "data_name": "x.pt"}
    with DumpWriter(tmp_path / "unit", HEADER) as writer:
        with pytest.raises(FormatError, match=r"x\.pt"):
            writer.put_entries(
                [("Functional.f.0.forward", {"output": []}), ("Functional.g.0.forward", {"output": [tensor]})]
            )
        writer.put_entries([("Functional.h.0.forward", {"output": []})])
    assert list(json.loads((tmp_path / "unit" / "dump.json").read_bytes())["data"]) == ["Functional.h.0.forward"]
