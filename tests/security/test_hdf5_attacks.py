"""HDF5 files made to harm their reader: each attack is one named error for its tensor, and the rest stays readable."""

from __future__ import annotations

import resource
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from msformat.dtypes import dtype_named
from msformat.errors import CorruptTensorError, DTypeError, MsformatError, StoreError, UnsafeInputError
from msformat.stores import hdf5_read
from msformat.stores.base import StoredTensor
from msformat.stores.hdf5 import Hdf5Store
from msformat.stores.registry import open_store
from tests.fuzz.hdf5_bytes import lookup3, sealed_parts

Attack = Callable[[h5py.Group, Path], None]


def external_link(tensors: h5py.Group, folder: Path) -> None:
    tensors["x"] = h5py.ExternalLink(str(folder / "secret.h5"), "/tensors/secret")


def soft_link(tensors: h5py.Group, folder: Path) -> None:
    tensors["x"] = h5py.SoftLink("/tensors/good")


def soft_loop(tensors: h5py.Group, folder: Path) -> None:
    tensors["x"] = h5py.SoftLink("/tensors/x")


def dangling(tensors: h5py.Group, folder: Path) -> None:
    tensors["x"] = h5py.SoftLink("/nowhere")


def external_storage(tensors: h5py.Group, folder: Path) -> None:
    tensors.create_dataset("x", (16,), "u1", external=[(str(folder / "secret.bin"), 0, 16)])


def virtual(tensors: h5py.Group, folder: Path) -> None:
    layout = h5py.VirtualLayout((4,), "f4")
    layout[:] = h5py.VirtualSource(str(folder / "secret.h5"), "/tensors/secret", (4,))
    tensors.create_virtual_dataset("x", layout)


def a_group(tensors: h5py.Group, folder: Path) -> None:
    tensors.create_group("x")


def named_type(tensors: h5py.Group, folder: Path) -> None:
    tensors["x"] = np.dtype("f4")


def vlen_text(tensors: h5py.Group, folder: Path) -> None:
    tensors.create_dataset("x", data=["a", "bc"], dtype=h5py.string_dtype())


def ragged(tensors: h5py.Group, folder: Path) -> None:
    tensors.create_dataset("x", (2,), h5py.vlen_dtype(np.int32))[0] = [1, 2]


def reference(tensors: h5py.Group, folder: Path) -> None:
    tensors.create_dataset("x", (1,), h5py.ref_dtype)[0] = tensors.ref


def region_reference(tensors: h5py.Group, folder: Path) -> None:
    tensors.create_dataset("x", (1,), h5py.regionref_dtype)


def opaque(tensors: h5py.Group, folder: Path) -> None:
    tensors["x"] = np.zeros(3, "V16")


def compound(tensors: h5py.Group, folder: Path) -> None:
    tensors["x"] = np.zeros(3, [("a", "i4"), ("b", "f8")])


def null_space(tensors: h5py.Group, folder: Path) -> None:
    tensors["x"] = h5py.Empty("f4")


def lying_dtype(tensors: h5py.Group, folder: Path) -> None:
    tensors["x"] = np.zeros(3, np.float64)
    tensors["x"].attrs["dtype"] = "bfloat16"


def unknown_dtype(tensors: h5py.Group, folder: Path) -> None:
    tensors["x"] = np.zeros(3, np.float64)
    tensors["x"].attrs["dtype"] = "__import__('os')"


def object_dtype(tensors: h5py.Group, folder: Path) -> None:
    tensors["x"] = np.zeros(3, np.uint64)
    tensors["x"].attrs["dtype"] = "|O"


def short_lanes(tensors: h5py.Group, folder: Path) -> None:
    tensors["x"] = np.zeros((3, 5), np.uint8)
    tensors["x"].attrs["dtype"] = "<U3"


def no_chunks(tensors: h5py.Group, folder: Path) -> None:
    tensors.create_dataset("x", (2**50,), "f4", chunks=(1024,), fillvalue=7)


def no_storage(tensors: h5py.Group, folder: Path) -> None:
    tensors.create_dataset("x", (2**40, 2**10), "f4")


def one_chunk_missing(tensors: h5py.Group, folder: Path) -> None:
    dataset = tensors.create_dataset("x", (300,), "f4", chunks=(100,))
    dataset[:100] = 1
    dataset[200:] = 1


def huge_chunk(tensors: h5py.Group, folder: Path) -> None:
    tensors.create_dataset("x", (2**28,), "f8", chunks=(2**28,), compression="gzip")


def bomb(tensors: h5py.Group, folder: Path) -> None:
    dataset = tensors.create_dataset("x", (2**27 * 100,), "f8", chunks=(2**27,), compression="gzip")
    for number in range(100):
        dataset.id.write_direct_chunk((number * 2**27,), b"x\x9c\x03\x00\x00\x00\x00\x01", 0)


def garbage_chunk(tensors: h5py.Group, folder: Path) -> None:
    dataset = tensors.create_dataset("x", (1000,), "f8", chunks=(1000,), compression="gzip")
    dataset.id.write_direct_chunk((0,), b"\xff" * 100, 0)


def short_chunk(tensors: h5py.Group, folder: Path) -> None:
    dataset = tensors.create_dataset("x", (1000,), "f8", chunks=(1000,), compression="gzip")
    dataset.id.write_direct_chunk((0,), b"x\x9c\x03\x00\x00\x00\x00\x01" + bytes(100), 0)


def unknown_filter(tensors: h5py.Group, folder: Path) -> None:
    plan = h5py.h5p.create(h5py.h5p.DATASET_CREATE)
    plan.set_chunk((8,))
    plan.set_filter(500, h5py.h5z.FLAG_OPTIONAL, ())
    space = h5py.h5s.create_simple((8,))
    dataset = h5py.h5d.create(tensors.id, b"x", h5py.h5t.NATIVE_FLOAT, space, plan)
    dataset.write_direct_chunk((0,), bytes(32), 0)


def time_type(tensors: h5py.Group, folder: Path) -> None:
    h5py.h5d.create(tensors.id, b"x", h5py.h5t.UNIX_D32LE, h5py.h5s.create_simple((3,)))


ATTACKS: list[tuple[Attack, type[Exception], str]] = [
    (external_link, UnsafeInputError, "link to another file"),
    (soft_link, UnsafeInputError, "soft link"),
    (soft_loop, UnsafeInputError, "soft link"),
    (dangling, UnsafeInputError, "soft link"),
    (external_storage, UnsafeInputError, "another file"),
    (virtual, UnsafeInputError, "virtual"),
    (a_group, StoreError, "dataset"),
    (named_type, StoreError, "dataset"),
    (vlen_text, DTypeError, "element type"),
    (ragged, DTypeError, "element type"),
    (reference, DTypeError, "element type"),
    (region_reference, DTypeError, "element type"),
    (opaque, DTypeError, "element type"),
    (compound, DTypeError, "element type"),
    (null_space, CorruptTensorError, "null"),
    (lying_dtype, CorruptTensorError, "bfloat16, but float64"),
    (unknown_dtype, DTypeError, "unknown element type"),
    (object_dtype, DTypeError, "refused"),
    (short_lanes, CorruptTensorError, "last axis of 12"),
    (no_chunks, CorruptTensorError, "0 of 1099511627776 chunks"),
    (no_storage, CorruptTensorError, "0 are stored"),
    (one_chunk_missing, CorruptTensorError, "2 of 3 chunks"),
    (huge_chunk, CorruptTensorError, "chunks of 2147483648 bytes"),
    (bomb, CorruptTensorError, "cannot hold"),
    (garbage_chunk, CorruptTensorError, "cannot be read"),
    (short_chunk, CorruptTensorError, "cannot be read"),
    (unknown_filter, StoreError, "filter 500"),
    (time_type, DTypeError, "stored type"),
]


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    with h5py.File(tmp_path / "secret.h5", "w") as file:
        file["tensors/secret"] = np.arange(4, dtype=np.float32)
    (tmp_path / "secret.bin").write_bytes(b"0123456789abcdef")
    return tmp_path


@pytest.mark.parametrize(("attack", "kind", "words"), ATTACKS, ids=lambda value: getattr(value, "__name__", ""))
def test_one_named_error_and_the_rest_stays_readable(
    folder: Path, attack: Attack, kind: type[Exception], words: str
) -> None:
    path = folder / "dump.h5"
    with h5py.File(path, "w") as file:
        tensors = file.create_group("tensors")
        tensors["good"] = np.arange(5, dtype=np.float32)
        attack(tensors, folder)
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    with open_store("hdf5", str(path)) as store:
        assert set(store.keys()) == {"good", "x"}
        for read in (lambda: store.get("x").bits(), lambda: store.get("x")[:1], lambda: store.get("x").verify()):
            with pytest.raises(kind, match=words) as caught:
                read()
            assert isinstance(caught.value, MsformatError)
            assert "'x'" in str(caught.value)
            assert str(path) in str(caught.value)
        assert store.get("good")[4] == 4
    # Neither the declared size nor a chunk of it was ever allocated (kilobytes).
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < 200_000
    assert (folder / "secret.bin").read_bytes() == b"0123456789abcdef"


@pytest.mark.parametrize("attack", [external_link, soft_link, soft_loop, dangling, a_group, external_storage, virtual])
def test_many_at_once_are_guarded_too(folder: Path, attack: Attack) -> None:
    path = folder / "dump.h5"
    words = next(words for each, _, words in ATTACKS if each is attack)
    with h5py.File(path, "w") as file:
        tensors = file.create_group("tensors")
        tensors["good"] = np.arange(5, dtype=np.float32)
        attack(tensors, folder)
    with Hdf5Store(str(path)) as store:
        # Links are looked at one by one at first, later all together.
        for _ in range(3):
            good, bad, missing = store.get_many(["good", "x", "missing"])
            assert isinstance(good, StoredTensor)
            assert good.bits().tolist() == [0, 1, 2, 3, 4]
            assert isinstance(bad, MsformatError)
            assert words in str(bad)
            assert "'x'" in str(bad)
            assert isinstance(missing, MsformatError)
            assert "missing" in str(missing)


@pytest.mark.parametrize("where", ["step0", "step0/rank", "step0/rank/tensors", "step0/rank/documents"])
@pytest.mark.parametrize("kind", ["external", "soft", "dataset"])
@pytest.mark.parametrize("mode", ["r", "a", "w"])
def test_every_step_of_a_path_must_be_a_real_group(folder: Path, where: str, kind: str, mode: Any) -> None:
    with h5py.File(folder / "secret.h5", "a") as file:
        file.create_group("step0/rank/tensors")
    path = folder / "dump.h5"
    rest = "step0/rank/tensors".removeprefix(where).strip("/") or "/"
    with h5py.File(path, "w") as file:
        file.create_group(f"real/{rest}")
        target: Any = {"external": h5py.ExternalLink("secret.h5", where), "soft": h5py.SoftLink("/real")}.get(kind)
        file[where] = np.zeros(3) if target is None else target
    secret = (folder / "secret.h5").read_bytes()
    with pytest.raises(MsformatError, match="only hard links" if kind != "dataset" else "as a group"):
        open_store("hdf5", str(path), mode=mode, group="step0/rank")
    assert (folder / "secret.h5").read_bytes() == secret
    groups = Hdf5Store.groups(str(path))
    assert "step0/rank" not in groups or where.count("/") == 2


@pytest.mark.parametrize("attack", [external_link, soft_loop, external_storage, virtual, no_chunks, a_group, vlen_text])
def test_documents_are_guarded_too(folder: Path, attack: Attack) -> None:
    path = folder / "dump.h5"
    with h5py.File(path, "w") as file:
        documents = file.create_group("documents")
        documents["dump.json"] = np.frombuffer(b"{}", np.uint8)
        attack(documents, folder)
    with open_store("hdf5", str(path)) as store:
        with pytest.raises(MsformatError, match="document 'x'"):
            store.get_document("x")
        assert bytes(store.get_document("dump.json") or b"") == b"{}"


def test_bytes_flipped_anywhere_never_give_other_content(folder: Path) -> None:
    """A flipped byte gives the content as it was, or an error of ours; never something else, never a foreign error."""
    path = folder / "dump.h5"
    values = {f"op.{number}": np.full(number, number, np.float32) for number in (1, 30, 9000)}
    with open_store("hdf5", str(path), mode="w") as store:
        for key, value in values.items():
            store.put(key, value, dtype_named("float32"))
    whole = path.read_bytes()
    rng = np.random.default_rng(0)
    refused = 0
    for position in rng.integers(0, len(whole), 150):
        data = bytearray(whole)
        data[position] ^= 1 << int(rng.integers(0, 8))
        path.write_bytes(data)
        try:
            with open_store("hdf5", str(path)) as store:
                for key in list(store.keys()):
                    stored = store.get(key)
                    stored.verify()
                    if key in values and stored.digest is not None:
                        assert stored.bits().tobytes() == values[key].tobytes()
        except MsformatError:
            refused += 1
    assert refused > 10


@pytest.mark.parametrize("damage", [(0, 0), (1, (1 << 64) - 16), (2, 1 << 40)])
def test_a_heap_that_would_never_end_is_refused(tmp_path: Path, damage: tuple[int, int]) -> None:
    """Free space of no bytes has HDF5 itself loop for ever; the find of a fuzzer."""
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        values = file.create_group("tensors").create_dataset("x", data=np.zeros(3, "u2"))
        values.attrs["dtype"] = "bfloat16"
        file["tensors/y"] = np.arange(3)
    with open_store("hdf5", str(path)) as store:
        assert store.get("x").dtype.name == "bfloat16"
    data = bytearray(path.read_bytes())
    at = data.find(b"GCOL") + 16
    number, length = damage
    data[at : at + 2] = number.to_bytes(2, "little")
    data[at + 8 : at + 16] = length.to_bytes(8, "little")
    path.write_bytes(bytes(data))
    with open_store("hdf5", str(path)) as store:
        with pytest.raises(MsformatError, match="heap"):
            store.get("x")
        assert store.get("y").bits().tolist() == [0, 1, 2]


def test_an_index_of_chunks_that_leads_outside_is_refused(tmp_path: Path) -> None:
    """HDF5 itself ends the process with a segmentation fault; the find of a fuzzer. What may grow for real is read."""
    path = tmp_path / "x.h5"
    values = np.arange(24, dtype="i2").reshape(4, 6)
    with h5py.File(path, "w", libver="latest") as file:
        file.create_dataset("tensors/x", data=values, chunks=(2, 3), maxshape=(4, 30003))
    with open_store("hdf5", str(path)) as store:
        assert store.get("x").bits().tolist() == values.tolist()
    data = path.read_bytes()
    at = data.find((4).to_bytes(8, "little") + (30003).to_bytes(8, "little"))
    path.write_bytes(_with_header_sums(data[:at] + data[at : at + 8] + (30).to_bytes(8, "little") + data[at + 16 :]))
    with open_store("hdf5", str(path)) as store, pytest.raises(CorruptTensorError, match="outside of the shape"):
        store.get("x").bits()


@pytest.mark.skipif(not hasattr(h5py.h5d.DatasetID, "chunk_iter"), reason="this HDF5 can only be asked for one")
@pytest.mark.parametrize("settings", [{"compression": "lzf"}, {"fletcher32": True}, {"maxshape": (3000, 2)}])
def test_each_chunk_is_looked_at_once(
    tmp_path: Path, settings: dict[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """HDF5 goes through all chunks before the one that is asked for: thousands of questions take minutes."""
    values = np.arange(4000, dtype="i4").reshape(2000, 2)
    with h5py.File(tmp_path / "x.h5", "w") as file:
        file.create_dataset("tensors/x", data=values, chunks=(1, 2), **settings)

    def refuse(*_: object) -> None:
        raise AssertionError("one chunk was asked for")

    class Watched:
        def __init__(self, dataset: Any) -> None:
            self._dataset = dataset

        def __getattr__(self, name: str) -> Any:
            return refuse if name == "get_chunk_info" else getattr(self._dataset, name)

    real = hdf5_read._check_places
    monkeypatch.setattr(hdf5_read, "_check_places", lambda found, *args, **more: real(Watched(found), *args, **more))
    with open_store("hdf5", str(tmp_path / "x.h5")) as store:
        np.testing.assert_array_equal(store.get("x").bits(), values)


def _with_header_sums(data: bytes) -> bytes:
    """With the checksums that HDF5 wants of object headers."""
    new = bytearray(data)
    for start, end in sealed_parts(data):
        new[end : end + 4] = lookup3(data[start:end]).to_bytes(4, "little")
    return bytes(new)


def test_a_chunk_too_small_for_its_checksum_is_refused(tmp_path: Path) -> None:
    """Its filter would take the four bytes of a checksum off: a segmentation fault; the find of a fuzzer."""
    path = tmp_path / "x.h5"
    with h5py.File(path, "w") as file:
        made = file.create_dataset("tensors/x", (4, 6), "i2", chunks=(2, 3), compression="gzip", fletcher32=True)
        made[:] = 1
        made.id.write_direct_chunk((2, 0), b"ab")
    with open_store("hdf5", str(path)) as store, pytest.raises(CorruptTensorError, match="has only 2 bytes"):
        store.get("x").bits()


def test_members_outside_of_a_compound_type(tmp_path: Path) -> None:
    """Of HDF5, releases before 2.0 read what lies behind the element; complex numbers are compounds."""
    path = tmp_path / "x.h5"
    with h5py.File(path, "w", libver="earliest") as file:
        file["tensors/x"] = np.array([1 + 2j, 3 + 4j], np.complex64)
        file["tensors/good"] = np.arange(3.0)
        file.create_group("documents")
    data = path.read_bytes()
    # The member's name, padded to eight bytes, and its offset.
    member = b"i".ljust(8, b"\0") + (4).to_bytes(4, "little")
    assert data.count(member) == 1
    path.write_bytes(data.replace(member, member[:8] + (11).to_bytes(4, "little")))
    with Hdf5Store(str(path)) as store:
        with pytest.raises((CorruptTensorError, DTypeError), match=r"'x'.*(outside|compound)"):
            store.get("x").bits()
        assert store.get("good").bits().tolist() == [0.0, 1.0, 2.0]
