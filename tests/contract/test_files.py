"""The ``files`` store keeps the shared promises; numpy and torch judge what lies on disk."""

from __future__ import annotations

import json
import os
import stat
import unicodedata
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from msformat.dtypes import DType, dtype_named
from msformat.errors import StoreError, UnsafeInputError
from msformat.stores.files import FilesStore
from tests.contract.store_contract import FLOAT32, StoreContract, random_bits
from tests.judges import judge, torch_is_before, torch_saves

torch = judge("torch")


def file_of(unit: Path, key: str) -> Path:
    """The file behind a key, by reading the sidecar as any program could."""
    data = unit / "dump_tensor_data"
    sidecar = unit / "tensors.jsonl"
    lines = [json.loads(line) for line in sidecar.read_text().splitlines()] if sidecar.exists() else []
    for line in lines:
        if line.get("key", line["file"]) == key:
            return data / str(line["file"])
    return data / key


def torch_bits(path: Path) -> tuple[bytes, tuple[int, ...]]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # complex32 warns that it is experimental
        tensor = torch.load(path, weights_only=True)
        shape = tuple(tensor.shape)
        flat = torch.empty(0, dtype=torch.uint8).set_(tensor.untyped_storage())
        assert tensor.is_contiguous()
    return flat.numpy().tobytes(), shape


def is_known_to_torch(dtype: DType) -> bool:
    """Whether this release loads files of a type: 2.1 has neither float8 nor complex32 there, and no uint16 at all."""
    if dtype.name.startswith(("float8", "float4", "complex32", "uint16", "uint32", "uint64", "bits")):
        return hasattr(torch, dtype.name) and torch_saves(getattr(torch, dtype.name))
    return dtype.name != "qint32"  # saved, and not loaded with weights_only


def zip_bits(path: Path) -> bytes:
    """The storage of a ``.pt``."""
    with zipfile.ZipFile(path) as archive:
        (member,) = [name for name in archive.namelist() if name.endswith("/data/0")]
        return archive.read(member)


class _Folding(FilesStore):
    """On a disk where neither case nor the spelling of accents makes a difference, as on the laptops of many."""

    def _data_path(self, name: str) -> str:
        directory, given = os.path.split(super()._data_path(name))
        return os.path.join(directory, self._there(given))

    def _file_of(self, key: str) -> str | None:
        path = super()._file_of(key)
        return None if path is None else f"dump_tensor_data/{self._there(os.path.basename(path))}"

    def _there(self, name: str) -> str:
        def folded(text: str) -> str:
            return unicodedata.normalize("NFC", text).casefold()

        found = os.listdir(os.path.join(self.location, "dump_tensor_data"))
        return next((item for item in found if folded(item) == folded(name)), name)


class TestFiles(StoreContract):
    backend: ClassVar[str] = "files"
    keeps_order: ClassVar[bool] = False
    suffixes: ClassVar[tuple[str, ...]] = ("", ".npy", ".pt")
    checked_suffix: ClassVar[str] = ".pt"
    copies_of_equal_content: ClassVar[int] = 2  # one a file format

    def location(self, tmp_path: Path) -> str:
        return str(tmp_path / "step0" / "rank0")

    def raw_get(self, tmp_path: Path, key: str, dtype: DType) -> tuple[NDArray[Any], tuple[int, ...] | None]:
        path = file_of(Path(self.location(tmp_path)), key)
        if key.endswith(".pt"):
            if torch_is_before("2.8") and not is_known_to_torch(dtype):
                return np.frombuffer(zip_bits(path), np.uint8), None
            raw, shape = torch_bits(path)
            return np.frombuffer(raw, np.uint8), shape[:-1] if dtype.lanes > 1 else shape
        array = np.load(path, allow_pickle=False)
        if dtype.name == "bfloat16":
            assert array.dtype == np.float32
            assert not np.any(array.view(np.uint32) & 0xFFFF)
            return (array.view(np.uint32) >> 16).astype(np.uint16), array.shape
        return np.frombuffer(array.tobytes(), np.uint8), array.shape

    def flip_byte(self, tmp_path: Path, key: str) -> None:
        path = file_of(Path(self.location(tmp_path)), key)
        data = bytearray(path.read_bytes())
        data[len(data) // 2] ^= 1
        path.write_bytes(data)

    # --- what only files promise -------------------------------------------------------------------------------

    def test_a_canonical_tree_has_no_file_more(self, tmp_path: Path) -> None:
        with self.open(tmp_path, "w") as store:
            store.put("Functional.relu.0.forward.input.0.npy", np.zeros(3, np.float32), FLOAT32)
            store.put("Functional.relu.0.forward.input.1.pt", random_bits(dtype_named("bfloat16"), (3,)), BFLOAT16)
            store.put_document("dump.json", b"{}")
        unit = Path(self.location(tmp_path))
        assert sorted(p.relative_to(unit).as_posix() for p in unit.rglob("*") if p.is_file()) == [
            "dump.json",
            "dump_tensor_data/Functional.relu.0.forward.input.0.npy",
            "dump_tensor_data/Functional.relu.0.forward.input.1.pt",
        ]

    @pytest.mark.parametrize("equal", [False, True])
    def test_names_that_are_one_on_disk_are_two_keys(self, tmp_path: Path, equal: bool) -> None:
        location = self.location(tmp_path)
        keys = ["Q.0.debug.npy", "q.0.debug.npy", "Q.0.DEBUG.npy", "caf\u00e9.npy", "cafe\u0301.npy", "CAFE\u0301.npy"]
        with _Folding(location, mode="w") as store:
            for number, key in enumerate(keys):
                store.put(key, np.full(3, 7 if equal else number, np.float32), FLOAT32)
        with _Folding(location) as store:
            assert set(store.keys()) == set(keys)
            for number, key in enumerate(keys):
                assert store.get(key).numpy().tolist() == [7 if equal else number] * 3
        with FilesStore(location) as store:
            # A disk that tells them apart has the same names for them.
            assert [store.get(key)[0] for key in keys] == [7 if equal else number for number in range(len(keys))]

    def test_no_tensor_no_directory(self, tmp_path: Path) -> None:
        with self.open(tmp_path, "w") as store:
            store.put_document("dump.json", b"{}")
        assert not (Path(self.location(tmp_path)) / "dump_tensor_data").exists()

    def test_keys_are_sorted_naturally(self, tmp_path: Path) -> None:
        with self.open(tmp_path, "w") as store:
            for number in (10, 2, 1):
                store.put(f"op.{number}.npy", np.zeros(1, np.float32), FLOAT32)
            assert list(store.keys()) == ["op.1.npy", "op.2.npy", "op.10.npy"]

    def test_permissions_follow_the_umask(self, tmp_path: Path) -> None:
        old = os.umask(0o027)
        try:
            with self.open(tmp_path, "w") as store:
                store.put("x.npy", np.zeros(1, np.float32), FLOAT32)
                store.put("odd/key", np.zeros(2, np.float32), FLOAT32)
                store.put_document("dump.json", b"{}")
        finally:
            os.umask(old)
        unit = Path(self.location(tmp_path))
        for path in (*unit.rglob("*"), unit):
            assert stat.S_IMODE(path.stat().st_mode) == (0o750 if path.is_dir() else 0o640), path

    def test_links_share_an_inode_a_suffix(self, tmp_path: Path) -> None:
        with self.open(tmp_path, "w") as store:
            for key in ("a.npy", "b.npy", "a.pt", "b.pt"):
                store.put(key, np.ones(9, np.float32), FLOAT32)
        data = Path(self.location(tmp_path)) / "dump_tensor_data"
        inodes = {name: (data / name).stat().st_ino for name in ("a.npy", "b.npy", "a.pt", "b.pt")}
        assert inodes["a.npy"] == inodes["b.npy"] != inodes["a.pt"] == inodes["b.pt"]

    def test_copies_where_the_file_system_has_no_links(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        def refuse(*_: object) -> None:
            raise PermissionError("no links here")

        monkeypatch.setattr(os, "link", refuse)
        with self.open(tmp_path, "w") as store:
            for key in ("a.npy", "b.npy"):
                store.put(key, random_bits(BFLOAT16, (9,)), BFLOAT16)
        with self.open(tmp_path, "r") as store:
            assert store.get("b.npy").bits().tobytes() == random_bits(BFLOAT16, (9,)).tobytes()
            assert store.get("b.npy").dtype == BFLOAT16

    def test_a_key_that_equals_the_file_name_of_another(self, tmp_path: Path) -> None:
        with self.open(tmp_path, "w") as store:
            store.put("a/b", np.zeros(1, np.float32), FLOAT32)
            (name,) = [p.name for p in (Path(self.location(tmp_path)) / "dump_tensor_data").iterdir()]
            store.put(name, np.ones(1, np.float32), FLOAT32)
        with self.open(tmp_path, "r") as store:
            assert sorted(store.keys()) == sorted(["a/b", name])
            assert store.get("a/b")[0] == 0
            assert store.get(name)[0] == 1

    def test_a_torn_sidecar_line_is_cut_off_and_overwritten(self, tmp_path: Path) -> None:
        with self.open(tmp_path, "w") as store:
            store.put("x.npy", random_bits(BFLOAT16, (5,)), BFLOAT16)
        sidecar = Path(self.location(tmp_path)) / "tensors.jsonl"
        with sidecar.open("ab") as stream:
            stream.write(b'{"file": "y.npy", "dty')
        with self.open(tmp_path, "a") as store:
            assert store.get("x.npy").dtype == BFLOAT16
            store.put("z.npy", random_bits(BFLOAT16, (6,)), BFLOAT16)
        assert [json.loads(line)["file"] for line in sidecar.read_text().splitlines()] == ["x.npy", "z.npy"]
        with self.open(tmp_path, "r") as store:
            assert store.get("z.npy").dtype == BFLOAT16

    def test_a_damaged_sidecar_line_hides_no_other_tensor(self, tmp_path: Path) -> None:
        with self.open(tmp_path, "w") as store:
            store.put("x.npy", random_bits(BFLOAT16, (5,)), BFLOAT16)
            store.put("plain.npy", np.zeros(2, np.float32), FLOAT32)
        sidecar = Path(self.location(tmp_path)) / "tensors.jsonl"
        sidecar.write_bytes(b'{"file": 3}\n[]\n{"file": "q", "dtype": "nonsense"}\n' + sidecar.read_bytes())
        with pytest.warns(UserWarning, match="damaged and left out") as caught:
            store = self.open(tmp_path, "r")
        assert len(caught) == 3
        assert store.get("x.npy").dtype == BFLOAT16
        assert store.get("plain.npy").shape == (2,)

    def test_a_killed_writer_leaves_only_recognisable_leftovers(self, tmp_path: Path) -> None:
        with self.open(tmp_path, "w") as store:
            store.put("x.npy", np.zeros(2, np.float32), FLOAT32)
        leftover = Path(self.location(tmp_path)) / "dump_tensor_data" / ".y.npy.msformat-partial-0123456789ab"
        leftover.write_bytes(b"half")
        with self.open(tmp_path, "r") as store:
            assert list(store.keys()) == ["x.npy"]

    @pytest.mark.parametrize("name", ["", "..", "a/b", "/abs", "journal.jsonl", "tensors.jsonl", "x.h5", "nul\0"])
    def test_document_names(self, tmp_path: Path, name: str) -> None:
        with self.open(tmp_path, "w") as store, pytest.raises(UnsafeInputError):
            store.put_document(name, b"")

    def test_reading_a_url(self, tmp_path: Path) -> None:
        fsspec = pytest.importorskip("fsspec")
        with self.open(tmp_path, "w") as store:
            store.put("x.npy", np.arange(100_000, dtype=np.float32), FLOAT32)
            store.put("x.pt", np.arange(100_000, dtype=np.float32), FLOAT32)
            store.put("odd/key", random_bits(BFLOAT16, (4,)), BFLOAT16)
            store.put_document("dump.json", b"{}")
        memory = fsspec.filesystem("memory")
        memory.put(self.location(tmp_path), "/files-test/unit", recursive=True)
        with FilesStore("memory://files-test/unit") as store:
            assert sorted(store.keys()) == ["odd/key", "x.npy", "x.pt"]
            assert store.get("x.npy")[5:8].tolist() == [5, 6, 7]
            assert store.get("x.pt")[::-50_000].tolist() == [99_999, 49_999]
            assert store.get("odd/key").dtype == BFLOAT16
            assert store.documents() == ("dump.json",)
        with pytest.raises(StoreError, match="local"):
            FilesStore("memory://files-test/unit", mode="a")

    def test_real_dumps(self, golden: Callable[[str], Path]) -> None:
        for name in ("torch_8.1.0_mix_tensor", "torch_1.2.2_debug_tensor", "mindspore_8.1.0_mix_tensor"):
            unit = next(golden(name).rglob("dump_tensor_data")).parent
            with FilesStore(str(unit)) as store:
                names = [p.name for p in (unit / "dump_tensor_data").iterdir()]
                assert set(store.keys()) == set(names)
                assert "dump.json" in store.documents() or "debug.json" in store.documents()
                for key in names:
                    store.get(key).verify()
                    expected = _expected(unit / "dump_tensor_data" / key)
                    assert store.get(key).numpy().tobytes() == expected


BFLOAT16 = dtype_named("bfloat16")


def _expected(path: Path) -> bytes:
    return torch_bits(path)[0] if path.suffix == ".pt" else np.ascontiguousarray(np.load(path)).tobytes()
