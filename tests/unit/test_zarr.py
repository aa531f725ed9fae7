"""Inside the Zarr store: names, the index log, chunks read, threads, forks, modes, a full disk."""

from __future__ import annotations

import json
import multiprocessing
import os
import re
import resource
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from msformat.atomic import temporary_sibling
from msformat.digest import content_digest
from msformat.dtypes import dtype_named
from msformat.errors import BackendMissingError, CorruptJournalError, FormatError, StoreError
from msformat.filesystem import LocalFileSystem
from msformat.stores import zarr_codecs, zarr_write
from msformat.stores.base import Mode, StoreOptions
from msformat.stores.zarr import PACK_BELOW, PACK_BYTES, ZarrStore
from msformat.stores.zarr_index import Place, decode_index, encode_index, encode_line, read_log
from msformat.stores.zarr_places import PlaceReader
from tests.zarr_layout import row_file

pytest.importorskip("numcodecs")

FLOAT32 = dtype_named("float32")
BIG = np.random.default_rng(0).standard_normal((PACK_BELOW // 4 + 1,)).astype(np.float32)


def small(number: int) -> np.ndarray[Any, Any]:
    return np.full(5, number, np.float32)


def open_at(path: Path, mode: Mode = "r", **options: Any) -> ZarrStore:
    return ZarrStore(str(path / "d.zarr"), mode=mode, options=StoreOptions(**options))


# --- the index ----------------------------------------------------------------------------------------------------


KEYS = st.text(st.characters(codec=None), max_size=8)
PLACES = st.builds(
    Place,
    array=st.just("tensors/7"),
    row=st.none() | st.integers(0, 1 << 40),
    dtype=st.just("float32"),
    shape=st.lists(st.integers(0, 1 << 40), max_size=3).map(tuple),
    digest=st.none() | st.just("0" * 32),
) | st.builds(
    Place, pack=st.just("packs/7"), offset=st.integers(0, 1 << 40), dtype=st.just("bfloat16"), shape=st.just((3,))
)


@settings(max_examples=100, deadline=None)
@given(st.dictionaries(KEYS, PLACES, max_size=4))
def test_index_and_log_come_back(places: dict[str, Place]) -> None:
    index = encode_index(places)
    assert list(json.loads(index)["tensors"]) == list(places)
    assert list(decode_index(index, "index").items()) == list(places.items())
    log = b"".join(encode_line(key, place) for key, place in places.items())
    assert all("crc32" in json.loads(line) for line in log.splitlines())
    assert read_log(log, "log") == (places, len(log))


def test_a_torn_tail_is_left_out_and_a_broken_middle_is_named() -> None:
    lines = [encode_line(f"k{n}", Place(pack="packs/0", offset=8 * n, dtype="float32", shape=(2,))) for n in range(3)]
    log = b"".join(lines)
    for cut in range(len(lines[2])):
        places, good = read_log(log[: len(log) - len(lines[2]) + cut], "log")
        assert list(places) == ["k0", "k1"]
        assert good == len(lines[0] + lines[1])
    flipped = log.replace(b'"k2"', b'"k9"')
    assert list(read_log(flipped, "log")[0]) == ["k0", "k1"]
    with pytest.raises(CorruptJournalError, match=r"log: line 2 "):
        read_log(log.replace(b'"k1"', b'"k9"'), "log")
    with pytest.raises(CorruptJournalError, match=r"log: line 3 "):
        read_log(flipped + b'{"key"', "log")


def test_a_torn_log_goes_on(tmp_path: Path) -> None:
    store = open_at(tmp_path, "w")
    store.put("a", small(1), FLOAT32)
    store.sync()
    log = tmp_path / "d.zarr/index.jsonl"
    kept = log.read_bytes()
    store.close()
    assert not log.exists()
    (tmp_path / "d.zarr/documents/index.json/zarr.json").unlink()
    log.write_bytes(kept + b'{"key":"torn')
    stray = Path(temporary_sibling(tmp_path / "d.zarr/packs/0/0"))
    stray.write_bytes(b"half")
    with open_at(tmp_path) as reader:
        assert list(reader.keys()) == ["a"]
    with open_at(tmp_path, "a") as later:
        later.put("b", small(2), FLOAT32)
    assert not stray.exists()
    with open_at(tmp_path) as reader:
        assert [(key, int(reader.get(key)[0])) for key in tuple(reader.keys())] == [("a", 1), ("b", 2)]


# --- what is on disk ----------------------------------------------------------------------------------------------


def test_small_tensors_share_packs(tmp_path: Path) -> None:
    bits = np.random.default_rng(0).standard_normal((400, PACK_BELOW // 4)).astype(np.float32)
    with open_at(tmp_path, "w") as store:
        for number, row in enumerate(bits):
            store.put(f"k{number}", row, FLOAT32)
            assert np.array_equal(store.get(f"k{number}").bits(), row)
        assert np.array_equal(store.get("k0").bits(), bits[0])
    packs = [path for path in (tmp_path / "d.zarr/packs").iterdir() if path.is_dir()]
    assert len(packs) == -(-bits.nbytes // PACK_BYTES)
    assert not [path for path in (tmp_path / "d.zarr/tensors").iterdir() if path.is_dir()]
    with open_at(tmp_path) as store:
        assert all(np.array_equal(store.get(f"k{n}").bits(), bits[n]) for n in (399, 0, 200, 1, 63, 64))


def test_zeros_are_stored(tmp_path: Path) -> None:
    with open_at(tmp_path, "w") as store:
        store.put("zeros", np.zeros_like(BIG), FLOAT32)
        store.put("negative", -np.zeros_like(BIG), FLOAT32)
    assert {path.name for path in (tmp_path / "d.zarr/tensors/0").iterdir()} == {"zarr.json", "0.0", "1.0"}
    with open_at(tmp_path) as store:
        assert np.signbit(store.get("negative").numpy()).all()
        assert not np.signbit(store.get("zeros").numpy()).any()


class _Counting(LocalFileSystem):
    parts: int = 0
    nbytes: int = 0

    def part(self, path: str, start: int, length: int) -> bytes | memoryview:
        self.parts += 1
        self.nbytes += length
        return super().part(path, start, length)


def test_a_slice_reads_only_its_chunks(tmp_path: Path) -> None:
    bits = np.arange(10 << 20, dtype=np.float32).reshape(1024, -1)
    with open_at(tmp_path, "w") as store:
        store.put("x", bits, FLOAT32)
    store = open_at(tmp_path)
    counting = _Counting(str(tmp_path / "d.zarr"))
    store._reader = PlaceReader(counting, "")
    chunks = 6
    size = row_file(tmp_path / "d.zarr", "x").stat().st_size
    whole: list[Any] = [np.s_[:, 3], ...]
    cases = [(np.s_[0], 1), (np.s_[::1023], 2), (np.s_[3:3], 0), *((selection, chunks) for selection in whole)]
    for selection, wanted in cases:
        counting.parts = counting.nbytes = 0
        assert np.array_equal(store.get("x")[selection], bits[selection])
        assert counting.parts == wanted, selection
        assert abs(counting.nbytes - size * wanted / chunks) < size / 20


def test_urls_are_read(tmp_path: Path) -> None:
    fsspec = pytest.importorskip("fsspec")
    with open_at(tmp_path, "w") as store:
        store.put("small", small(7), FLOAT32)
        store.put("big", BIG, FLOAT32)
        store.put_document("dump.json", b"{}")
    fsspec.filesystem("memory").put(str(tmp_path / "d.zarr"), "/remote/d.zarr", recursive=True)
    for url in ("memory://remote/d.zarr", f"file://{tmp_path}/d.zarr"):
        with ZarrStore(url) as store:
            assert list(store.keys()) == ["small", "big"]
            assert store.get("small")[2] == 7
            assert np.array_equal(store.get("big")[100:300], BIG[100:300])
            assert store.get_document("dump.json") == b"{}"
            assert store.get_document("stack.json") is None
        assert ZarrStore.groups(url) == ("",)
    with pytest.raises(StoreError, match="local directory"):
        ZarrStore("memory://remote/e.zarr", mode="w")


def test_groups(tmp_path: Path) -> None:
    location = str(tmp_path / "d.zarr")
    for group in ("step10/rank0", "step2/rank10", "step2/rank", "step2/rank2"):
        with ZarrStore(location, mode="w", group=group) as store:
            store.put("x", small(1), FLOAT32)
    assert ZarrStore.groups(location) == ("step2/rank", "step2/rank2", "step2/rank10", "step10/rank0")
    with pytest.raises(StoreError, match=r"rank7: no Zarr store"):
        ZarrStore(location, group="step2/rank7")
    with pytest.raises(StoreError, match="already holds"):
        ZarrStore(location, group="step2/rank", mode="w")
    with pytest.raises(StoreError):
        ZarrStore.groups(str(tmp_path))


# --- modes --------------------------------------------------------------------------------------------------------


def test_a_strangers_directory_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "d.zarr").mkdir()
    (tmp_path / "d.zarr/thesis.tex").write_text("years of work")
    modes: tuple[Mode, ...] = ("w", "a", "r")
    for mode in modes:
        with pytest.raises(StoreError, match="no Zarr store"):
            open_at(tmp_path, mode)
    assert [path.name for path in (tmp_path / "d.zarr").iterdir()] == ["thesis.tex"]
    (tmp_path / "file").write_text("x")
    for mode in modes:
        with pytest.raises(StoreError):
            ZarrStore(str(tmp_path / "file"), mode=mode)


def test_two_writers_are_refused(tmp_path: Path) -> None:
    with open_at(tmp_path, "w") as store:
        store.put("x", small(1), FLOAT32)
        store.sync()
        script = (
            "import sys; from msformat.stores.zarr import ZarrStore\n"
            "try: ZarrStore(sys.argv[1], mode='a')\n"
            "except OSError as error: print(error)\n"
            "print(list(ZarrStore(sys.argv[1]).keys()))"
        )
        command = [sys.executable, "-c", script, str(tmp_path / "d.zarr")]
        found = subprocess.run(command, capture_output=True, text=True, check=True)
        assert "another process is writing" in found.stdout
        assert "['x']" in found.stdout


def test_a_closed_store_takes_nothing(tmp_path: Path) -> None:
    store = open_at(tmp_path, "w")
    store.put("x", small(1), FLOAT32)
    store.close()
    with pytest.raises(StoreError, match="is closed"):
        store.put("y", small(2), FLOAT32)
    with pytest.raises(StoreError, match="is closed"):
        store.put_document("dump.json", b"{}")
    assert store.get("x")[0] == 1


def test_a_newer_layout_is_refused(tmp_path: Path) -> None:
    open_at(tmp_path, "w").close()
    node = tmp_path / "d.zarr/zarr.json"
    node.write_text(node.read_text().replace('"layout":2', '"layout":3'))
    with pytest.raises(StoreError, match="newer msformat"):
        open_at(tmp_path)


def test_bad_compression_and_document_names(tmp_path: Path) -> None:
    with pytest.raises(FormatError, match="choices"):
        open_at(tmp_path, "w", compression="rar")
    assert not (tmp_path / "d.zarr").exists()
    with open_at(tmp_path, "w") as store:
        for name in ("../dump.json", "a/b", "", "..", "a\0"):
            with pytest.raises(StoreError, match="document name"):
                store.put_document(name, b"")


def test_missing_numcodecs_names_the_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    zarr_codecs.require_numcodecs.cache_clear()
    monkeypatch.setitem(sys.modules, "numcodecs", None)
    try:
        with pytest.raises(BackendMissingError, match=r"msformat\[zarr\]"):
            open_at(tmp_path, "w")
        assert not (tmp_path / "d.zarr").exists()
    finally:
        zarr_codecs.require_numcodecs.cache_clear()


def test_opening_loads_no_zarr(tmp_path: Path) -> None:
    script = "import sys, msformat.stores.zarr; print({'zarr', 'numcodecs', 'fsspec'} & set(sys.modules))"
    found = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "set()"


# --- threads and forks --------------------------------------------------------------------------------------------


@pytest.mark.parametrize("threads", [0, 1, 3])
def test_threads_write_the_same(tmp_path: Path, threads: int) -> None:
    bits = np.random.default_rng(0).standard_normal((6, 1500, 700)).astype(np.float32)
    with open_at(tmp_path, "w", threads=threads) as store:
        for number, owned in ((0, True), (1, False), (2, True)):
            mine = bits + number
            digest = store.put(f"x{number}", mine, FLOAT32, owned=owned)
            assert digest == content_digest(mine, FLOAT32)
            if not owned:
                mine[...] = -1
        assert np.array_equal(store.get("x0")[5], bits[5])
        assert np.array_equal(store.get("x2")[0], bits[0] + 2)
    with open_at(tmp_path) as store:
        for number in range(3):
            store.get(f"x{number}").verify()
            assert np.array_equal(store.get(f"x{number}").numpy(), bits + number)


def test_waiting_tensors_take_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(zarr_write, "_PENDING_BYTES", 3 * BIG.nbytes)
    most = [0]
    original: Callable[..., None] = zarr_write.ArrayWriter._submit

    def watched(self: zarr_write.ArrayWriter, *args: Any) -> None:
        original(self, *args)
        most[0] = max(most[0], self._pending)

    monkeypatch.setattr(zarr_write.ArrayWriter, "_submit", watched)
    slow: Callable[..., None] = zarr_write.ArrayWriter._write_file

    def slowly(*args: Any) -> None:
        time.sleep(0.005)
        slow(*args)

    monkeypatch.setattr(zarr_write.ArrayWriter, "_write_file", slowly)
    with open_at(tmp_path, "w") as store:
        for number in range(12):
            store.put(f"x{number}", BIG + number, FLOAT32, owned=True)
    assert 0 < most[0] <= 3 * BIG.nbytes
    with open_at(tmp_path) as store:
        assert len(store) == 12


def _in_child(store: ZarrStore, answers: Any) -> None:
    seen: list[Any] = [float(store.get("small")[0]), float(store.get("big")[0])]
    try:
        store.put("child", BIG + 1, FLOAT32)
    except StoreError as error:
        seen.append(str(error))
    store.close()
    answers.put(seen)


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")
@pytest.mark.filterwarnings("ignore:.*multi-threaded.*fork:DeprecationWarning")
def test_a_fork_reads_and_must_not_write(tmp_path: Path) -> None:
    context = multiprocessing.get_context("fork")
    with open_at(tmp_path, "w") as store:
        store.put("small", small(1), FLOAT32)
        store.put("big", BIG, FLOAT32, owned=True)
        store.sync()
        answers = context.Queue()
        child = context.Process(target=_in_child, args=(store, answers))
        child.start()
        seen = answers.get(timeout=30)
        child.join(30)
        assert child.exitcode == 0
        assert seen[:2] == [1.0, float(BIG[0])]
        assert "another process" in seen[2]
        store.put("later", BIG + 2, FLOAT32, owned=True)
    with open_at(tmp_path) as store:
        assert list(store.keys()) == ["small", "big", "later"]


# --- failures -----------------------------------------------------------------------------------------------------


def failing_at_poison() -> Callable[..., None]:
    """Writes, but for the second row of the first array: there the disk is full."""
    real: Callable[..., None] = zarr_write.write_atomic  # type: ignore[attr-defined]

    def failing(path: str, data: Any, **options: Any) -> None:
        if path.endswith("tensors/0/1.0"):
            raise OSError(28, "No space left on device", path)
        real(path, data, **options)

    return failing


@pytest.mark.parametrize("owned", [True, False])
def test_an_error_names_the_tensor_and_the_rest_is_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owned: bool
) -> None:
    failing = failing_at_poison()

    monkeypatch.setattr(zarr_write, "write_atomic", failing)
    with open_at(tmp_path, "w") as store:
        store.put("good", BIG, FLOAT32, owned=owned)

        def poisoned() -> None:
            store.put("poison", BIG + 1, FLOAT32, owned=owned)
            store.put("alias", BIG + 1, FLOAT32, owned=owned)
            store.sync()

        with pytest.raises(StoreError, match=r"d\.zarr/tensors/0/1\.0.*'poison'.*No space left") as caught:
            poisoned()
        assert caught.value.errno == 28
        assert list(store.keys()) == ["good"]
        monkeypatch.undo()
        store.put("poison", BIG + 1, FLOAT32, owned=owned)
    with open_at(tmp_path) as store:
        for key in ("good", "poison"):
            store.get(key).verify()


FULL_DISK = """
import resource, sys
import numpy as np
from msformat.dtypes import dtype_named
from msformat.errors import StoreError
from msformat.stores.zarr import ZarrStore
store = ZarrStore(sys.argv[1], mode="w")
float32 = dtype_named("float32")
data = np.random.default_rng(0).standard_normal(1 << 20).astype(np.float32)
store.put("synced", data[: 1 << 18], float32)
store.put("packed", data[:100], float32)
store.sync()
limit = int(sys.argv[2])
resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
for step in (lambda: store.put("lost", data, float32), lambda: store.put("many", data[:9000], float32) and store.sync(),
             store.close, store.close):
    try:
        step()
    except StoreError as error:
        print(error)
"""


@pytest.mark.parametrize("limit", [1 << 14, 60])
def test_a_full_disk_is_named_and_synced_data_stay(tmp_path: Path, limit: int) -> None:
    command = [sys.executable, "-c", FULL_DISK, str(tmp_path / "d.zarr"), str(limit)]
    found = subprocess.run(command, capture_output=True, text=True, check=True)
    # The chunk, or where that has room the metadata behind it.
    assert re.search(r"/d\.zarr/tensors/1/(0\.0|zarr\.json): tensor 'lost': File too large", found.stdout)
    assert "'many'" in found.stdout
    with open_at(tmp_path) as store:
        assert list(store.keys()) == ["synced", "packed"]
        store.get("synced").verify()
        store.get("packed").verify()
    with open_at(tmp_path, "a") as store:
        store.put("lost", BIG, FLOAT32)
    with open_at(tmp_path) as store:
        assert list(store.keys()) == ["synced", "packed", "lost"]
    assert resource.getrlimit(resource.RLIMIT_FSIZE)[0] != limit


def test_a_document_is_replaced_in_one_step(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from msformat.stores import zarr_documents

    old, new = (np.random.default_rng(seed).bytes(9 << 20) for seed in (1, 2))
    real: Callable[..., None] = zarr_documents.write_atomic  # type: ignore[attr-defined]
    with open_at(tmp_path, "w") as store:
        store.put_document("dump.json", old)
        for steps in range(3):
            left = [steps]

            def dying(path: str, data: Any, left: list[int] = left, **options: Any) -> None:
                if left[0] == 0:
                    raise OSError(28, "No space left on device", path)
                left[0] -= 1
                real(path, data, **options)

            monkeypatch.setattr(zarr_documents, "write_atomic", dying)
            with pytest.raises(StoreError, match="No space left"):
                store.put_document("dump.json", new)
            monkeypatch.undo()
            with open_at(tmp_path) as reader:
                assert reader.get_document("dump.json") == old
        for version in (new, b"", old, b"short"):
            store.put_document("dump.json", version)
            assert store.get_document("dump.json") == version
    assert len(list((tmp_path / "d.zarr/documents/dump.json").iterdir())) == 2


# --- the same bytes under other shapes -------------------------------------------------------------------------------


EVEN = np.random.default_rng(1).standard_normal(1 << 15).astype(np.float32)


def _file(tmp_path: Path, key: str) -> Path:
    return row_file(tmp_path / "d.zarr", key)


@pytest.mark.parametrize("owned", [True, False])
@pytest.mark.parametrize("threads", [0, 1, 4])
def test_equal_bytes_are_one_file_whatever_their_shape(tmp_path: Path, threads: int, owned: bool) -> None:
    with open_at(tmp_path, "w", threads=threads) as store:
        digests = [store.put("flat", EVEN.reshape(-1), FLOAT32, owned=owned)]
        digests.append(store.put("deep", EVEN.reshape(1, -1, 4), FLOAT32, owned=owned))
        digests.append(store.put("ints", EVEN.view(np.int32).reshape(-1, 2), dtype_named("int32"), owned=owned))
        digests.append(store.put("bytes", EVEN.reshape(-1).view(np.uint8), dtype_named("uint8"), owned=owned))
    assert len(set(digests)) == 4
    inodes = [_file(tmp_path, key).stat().st_ino for key in ("flat", "deep", "ints")]
    assert len(set(inodes)) == 1
    # Encoded in elements of another size.
    assert _file(tmp_path, "bytes").stat().st_ino != inodes[0]
    zarr: Any = pytest.importorskip("zarr")
    group = zarr.open_group(str(tmp_path / "d.zarr"), mode="r")["tensors"]
    assert np.array_equal(group["1"][0], EVEN.reshape(1, -1, 4))
    assert np.array_equal(group["2"][0], EVEN.view(np.int32).reshape(-1, 2))


def test_small_equal_bytes_are_one_place_in_a_pack(tmp_path: Path) -> None:
    small = np.arange(12, dtype=np.float32)
    with open_at(tmp_path, "w") as store:
        store.put("a", small, FLOAT32)
        store.put("b", small.reshape(3, 4), FLOAT32)
        assert store.get("b").identity == store.get("a").identity
    with open_at(tmp_path) as store:
        assert store.get("b").identity == store.get("a").identity
        assert np.array_equal(store.get("b").numpy(), small.reshape(3, 4))


def test_without_links_each_has_its_own(tmp_path: Path) -> None:
    with open_at(tmp_path, "w", links=False) as store:
        store.put("flat", EVEN.reshape(-1), FLOAT32)
        store.put("deep", EVEN.reshape(-1, 4), FLOAT32)
    assert _file(tmp_path, "flat").stat().st_nlink == _file(tmp_path, "deep").stat().st_nlink == 1


def test_a_file_system_without_links_gets_the_bytes_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object, **__: object) -> None:
        raise PermissionError("no links here")

    monkeypatch.setattr(os, "link", refuse)
    with open_at(tmp_path, "w") as store:
        store.put("flat", EVEN.reshape(-1), FLOAT32, owned=True)
        store.put("deep", EVEN.reshape(-1, 4), FLOAT32, owned=True)
    with open_at(tmp_path) as store:
        store.get("deep").verify()


@pytest.mark.parametrize("owned", [True, False])
def test_what_came_to_nothing_is_no_source_of_links(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, owned: bool
) -> None:
    failing = failing_at_poison()

    store = open_at(tmp_path, "w")
    store.put("good", EVEN + 1, FLOAT32)
    monkeypatch.setattr(zarr_write, "write_atomic", failing)

    def poisoned() -> None:
        store.put("poison", EVEN, FLOAT32, owned=owned)
        store.put("deep", EVEN.reshape(-1, 4), FLOAT32, owned=owned)
        store.sync()

    with pytest.raises(StoreError, match="No space left"):
        poisoned()
    store.put("other", EVEN.reshape(-1, 2), FLOAT32, owned=owned)
    store.close()
    with open_at(tmp_path) as found:
        for key in list(found.keys()):
            found.get(key).verify()
        assert "other" in found
        assert "poison" not in found
