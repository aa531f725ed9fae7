"""What every store promises, whatever keeps the bytes. Each backend's test module subclasses :class:`StoreContract`.

The subclass brings *raw access*: a way to the stored bits that bypasses the store (plain numpy, torch, h5py, zarr), so
that a bug which writing and reading share cannot hide.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
from numpy.typing import NDArray

from msformat.digest import content_digest
from msformat.dtypes import DType, dtype_from_numpy, dtype_named, known_dtypes
from msformat.errors import (
    CorruptTensorError,
    DTypeError,
    KeyExistsError,
    StoreError,
    TensorNotFoundError,
    UnsafeInputError,
)
from msformat.stores.base import Mode, Store, StoreOptions
from msformat.stores.registry import open_store
from tests.contract.samples import (
    FLOAT32,
    INT64,
    ODD_KEYS,
    SELECTIONS,
    SHAPES,
    exotic_arrays,
    random_bits,
    same_bits,
    special_bits,
)

__all__ = ["FLOAT32", "INT64", "StoreContract", "exotic_arrays", "random_bits", "same_bits", "special_bits"]


class StoreContract(ABC):
    """Subclass as ``TestXxx(StoreContract)``, fill in the abstract methods, and adjust the class attributes."""

    backend: ClassVar[str]
    #: Content outlives the object; False only for ``memory``.
    persistent: ClassVar[bool] = True
    #: ``keys()`` gives the order of ``put`` (else: any order; natural order is tested by the backend itself).
    keeps_order: ClassVar[bool] = True
    #: A second reader may open the store after ``sync`` while the writer is still open.
    live_reads: ClassVar[bool] = True
    #: Suffixes of keys to try each dtype with.
    suffixes: ClassVar[tuple[str, ...]] = ("",)
    #: A key of this suffix has its bytes checked by ``verify``.
    checked_suffix: ClassVar[str] = ""
    #: How often equal content under keys of all ``suffixes`` is stored.
    copies_of_equal_content: ClassVar[int] = 1

    # --- what a backend brings ---------------------------------------------------------------------------------

    @abstractmethod
    def location(self, tmp_path: Path) -> str:
        """Where the store of this test lies."""

    @abstractmethod
    def raw_get(self, tmp_path: Path, key: str, dtype: DType) -> tuple[NDArray[Any], tuple[int, ...] | None]:
        """Stored bits (in ``dtype.storage``) and *logical* shape, without msformat; None: the judge says no shape."""

    @abstractmethod
    def flip_byte(self, tmp_path: Path, key: str) -> None:
        """Flip a bit in the stored data of a key (uncompressed store, closed), without touching what describes it."""

    def open(self, tmp_path: Path, mode: Mode, **options: Any) -> Store:
        return open_store(self.backend, self.location(tmp_path), mode=mode, options=StoreOptions(**options))

    def reopen(self, store: Store, tmp_path: Path) -> Store:
        """Close and open for reading."""
        store.close()
        return self.open(tmp_path, "r")

    def stored_size(self, tmp_path: Path) -> int:
        """Bytes of tensor data kept; the default adds up all files, a hard link once."""
        found = {}
        for path in tmp_path.rglob("*"):
            if path.is_file():
                status = path.stat()
                found[status.st_ino] = status.st_size
        return sum(found.values())

    # --- bits --------------------------------------------------------------------------------------------------

    def test_every_dtype_and_shape_comes_back_bit_for_bit(self, tmp_path: Path) -> None:
        wanted = {}
        with self.open(tmp_path, "w") as store:
            for number, dtype in enumerate(known_dtypes()):
                for suffix in self.suffixes:
                    for shape in SHAPES if dtype in (FLOAT32, dtype_named("bfloat16")) else ((), (0, 3), (3, 5)):
                        key = f"{dtype.name}.{'x'.join(map(str, shape))}{suffix}"
                        bits = random_bits(dtype, shape, seed=number)
                        digest = store.put(key, bits, dtype)
                        assert digest == content_digest(bits, dtype)
                        wanted[key] = (bits, dtype, shape)
        with self.open(tmp_path, "r") as store:
            assert set(store.keys()) == set(wanted)
            assert len(store) == len(wanted)
            for key, (bits, dtype, shape) in wanted.items():
                self._check(store, tmp_path, key, bits, dtype, shape)

    def test_special_values(self, tmp_path: Path) -> None:
        cases = [(f"{name}{suffix}", dtype, bits) for name, dtype, bits in special_bits() for suffix in self.suffixes]
        with self.open(tmp_path, "w") as store:
            for key, dtype, bits in cases:
                store.put(key, bits, dtype)
        with self.open(tmp_path, "r") as store:
            for key, dtype, bits in cases:
                self._check(store, tmp_path, key, bits, dtype, bits.shape)

    def test_exotic_numpy_types(self, tmp_path: Path) -> None:
        cases = [
            (f"exotic{number}{suffix}", array)
            for number, array in enumerate(exotic_arrays())
            for suffix in self.suffixes
        ]
        with self.open(tmp_path, "w") as store:
            for key, array in cases:
                dtype = dtype_from_numpy(array.dtype)
                store.put(key, dtype.to_bits(array), dtype)
        with self.open(tmp_path, "r") as store:
            for key, array in cases:
                stored = store.get(key)
                assert stored.dtype == dtype_from_numpy(array.dtype)
                assert stored.shape == array.shape
                assert same_bits(stored.bits(), stored.dtype.to_bits(array))
                assert np.array_equal(stored.numpy()[..., None].astype(str), array[..., None].astype(str))
                if array.size:
                    assert same_bits(
                        stored.bits(np.s_[..., :1] if array.ndim else ...),
                        stored.dtype.to_bits(array[..., :1] if array.ndim else array),
                    )

    def test_big_endian_values_are_kept_as_values(self, tmp_path: Path) -> None:
        big = np.array([1, 2, 258], ">i4")
        dtype = dtype_from_numpy(big.dtype)
        with self.open(tmp_path, "w") as store:
            for suffix in self.suffixes:
                store.put(f"big{suffix}", big.astype(dtype.storage), dtype)
        with self.open(tmp_path, "r") as store:
            for suffix in self.suffixes:
                assert store.get(f"big{suffix}").numpy().tolist() == [1, 2, 258]

    def test_strided_and_expanded_input(self, tmp_path: Path) -> None:
        base = np.arange(24, dtype=np.float32).reshape(4, 6)
        cases: dict[str, NDArray[Any]] = {
            "transposed": base.T,
            "stepped": base[::2, ::3],
            "reversed": base[::-1],
            "expanded": np.broadcast_to(np.float32(7), (3, 5)),
            "row": np.broadcast_to(base[0], (3, 6)),
        }
        with self.open(tmp_path, "w") as store:
            for name, array in cases.items():
                for suffix in self.suffixes:
                    store.put(name + suffix, array, FLOAT32)
        with self.open(tmp_path, "r") as store:
            for name, array in cases.items():
                for suffix in self.suffixes:
                    self._check(store, tmp_path, name + suffix, np.array(array, order="C"), FLOAT32, array.shape)

    def test_the_store_keeps_no_reference(self, tmp_path: Path) -> None:
        with self.open(tmp_path, "w") as store:
            source = np.arange(5000, dtype=np.float32)
            for suffix in self.suffixes:
                store.put(f"x{suffix}", source, FLOAT32)
                store.put(f"view{suffix}", source[::-1], FLOAT32)
            source[:] = -1
            store.sync()
        with self.open(tmp_path, "r") as store:
            for suffix in self.suffixes:
                assert same_bits(store.get(f"x{suffix}").bits(), np.arange(5000, dtype=np.float32))
                assert same_bits(store.get(f"view{suffix}").bits(), np.arange(5000, dtype=np.float32)[::-1].copy())

    def test_what_is_read_belongs_to_the_caller(self, tmp_path: Path) -> None:
        with self.open(tmp_path, "w") as store:
            store.put("x", np.arange(100_000, dtype=np.float32), FLOAT32)
            store.put("s", np.array(3, np.float32), FLOAT32)
        with self.open(tmp_path, "r") as store:
            for key in ("x", "s"):
                read = store.get(key).bits()
                kept = read.copy()
                read[...] = -5
                assert same_bits(store.get(key).bits(), kept)

    def test_owned_bits(self, tmp_path: Path) -> None:
        with self.open(tmp_path, "w") as store:
            store.put("x", np.arange(70_000, dtype=np.float32), FLOAT32, owned=True)
        with self.open(tmp_path, "r") as store:
            self._check(store, tmp_path, "x", np.arange(70_000, dtype=np.float32), FLOAT32, (70_000,))

    # --- keys --------------------------------------------------------------------------------------------------

    def test_odd_keys(self, tmp_path: Path) -> None:
        with self.open(tmp_path, "w") as store:
            for number, key in enumerate(ODD_KEYS):
                store.put(key, np.full(3, number, np.float32), FLOAT32)
                assert key in store
        with self.open(tmp_path, "r") as store:
            assert sorted(store.keys()) == sorted(ODD_KEYS)
            for number, key in enumerate(ODD_KEYS):
                assert store.get(key).key == key
                self._check(store, tmp_path, key, np.full(3, number, np.float32), FLOAT32, (3,))
            assert "Blocks" not in store
            assert None not in store
        outside = {path.name for path in tmp_path.parent.iterdir()}
        assert not any("escape" in name for name in outside)

    def test_order_of_keys(self, tmp_path: Path) -> None:
        order = [f"op.{number}.forward" for number in (3, 1, 10, 2, 0)]
        with self.open(tmp_path, "w") as store:
            for key in order:
                store.put(key, np.zeros(2, np.float32), FLOAT32)
            live = list(store.keys())
        with self.open(tmp_path, "r") as store:
            found = list(store.keys())
        assert sorted(found) == sorted(live) == sorted(order)
        if self.keeps_order:
            assert found == live == order

    def test_missing_key_names_near_matches(self, tmp_path: Path) -> None:
        with self.open(tmp_path, "w") as store:
            store.put("Functional.relu.0.forward.output.0", np.zeros(1, np.float32), FLOAT32)
        with self.open(tmp_path, "r") as store:
            with pytest.raises(TensorNotFoundError, match=r"relu\.0\.forward\.output\.0") as caught:
                store.get("Functional.relu.0.forward.output.1")
            assert caught.value.near == ["Functional.relu.0.forward.output.0"]
            assert isinstance(caught.value, KeyError)
            # Where keys are file names, a name that leads outside is told apart from one that is not there.
            with pytest.raises((TensorNotFoundError, UnsafeInputError)):
                store.get("../../etc/passwd\0")

    def test_same_key_again(self, tmp_path: Path) -> None:
        bits = np.arange(6, dtype=np.float32)
        for suffix in self.suffixes:
            key = f"x{suffix}"
            with self.open(tmp_path, "a") as store:
                assert store.put(key, bits, FLOAT32) == store.put(key, bits.copy(), FLOAT32)
                with pytest.raises(KeyExistsError):
                    store.put(key, bits + 1, FLOAT32)
                with pytest.raises(KeyExistsError):
                    store.put(key, bits.view(np.int32), dtype_named("int32"))
                with pytest.raises(KeyExistsError):
                    store.put(key, bits.reshape(2, 3), FLOAT32)
            with self.open(tmp_path, "a") as store:
                store.put(key, bits, FLOAT32)
                with pytest.raises(KeyExistsError):
                    store.put(key, bits + 1, FLOAT32)
            with self.open(tmp_path, "r") as store:
                assert same_bits(store.get(key).bits(), bits)

    def test_bits_of_another_type_are_refused(self, tmp_path: Path) -> None:
        with self.open(tmp_path, "w") as store:
            with pytest.raises(DTypeError):
                store.put("x", np.zeros(3, np.float64), FLOAT32)
            assert "x" not in store

    # --- slices ------------------------------------------------------------------------------------------------

    @pytest.mark.parametrize("compression", ["auto", "none"])
    def test_slices(self, tmp_path: Path, compression: str) -> None:
        array = np.arange(5 * 6 * 7, dtype=np.int64).reshape(5, 6, 7)
        with self.open(tmp_path, "w", compression=compression) as store:
            for suffix in self.suffixes:
                store.put(f"x{suffix}", array, INT64)
        with self.open(tmp_path, "r") as store:
            for suffix in self.suffixes:
                stored = store.get(f"x{suffix}")
                for selection in SELECTIONS:
                    assert same_bits(stored[selection], np.array(array[selection])), selection
                refused: tuple[Any, ...] = (5, -6, (0, 0, 7), (0, 0, 0, 0), (..., ...), [0, 1], True, "x", None)
                for selection in refused:
                    with pytest.raises(IndexError):
                        stored[selection]

    def test_slices_of_scalars_and_empty_tensors(self, tmp_path: Path) -> None:
        with self.open(tmp_path, "w") as store:
            for suffix in self.suffixes:
                store.put(f"scalar{suffix}", np.array(4, np.int64), INT64)
                store.put(f"empty{suffix}", np.zeros((3, 0, 2), np.int64), INT64)
        with self.open(tmp_path, "r") as store:
            for suffix in self.suffixes:
                assert store.get(f"scalar{suffix}")[...].shape == ()
                assert store.get(f"scalar{suffix}")[()] == 4
                with pytest.raises(IndexError):
                    store.get(f"scalar{suffix}")[0]
                assert store.get(f"empty{suffix}")[1:].shape == (2, 0, 2)

    def test_slices_of_a_large_tensor(self, tmp_path: Path) -> None:
        array = np.random.default_rng(1).standard_normal((700, 900)).astype(np.float32)
        with self.open(tmp_path, "w") as store:
            for suffix in self.suffixes:
                store.put(f"x{suffix}", array, FLOAT32)
        with self.open(tmp_path, "r") as store:
            for suffix in self.suffixes:
                for selection in (np.s_[3:650:7, ::-11], np.s_[-1], np.s_[:, 5], np.s_[300:301, 2:3]):
                    assert same_bits(store.get(f"x{suffix}")[selection], np.array(array[selection], order="C"))

    # --- content addressing ------------------------------------------------------------------------------------

    @pytest.mark.parametrize("links", [True, False])
    def test_equal_content_is_stored_once(self, tmp_path: Path, links: bool) -> None:
        bits = random_bits(FLOAT32, (512, 512))
        keys = [f"copy{number}{suffix}" for suffix in self.suffixes for number in range(4)]
        with self.open(tmp_path, "w", links=links, compression="none") as store:
            for key in keys:
                store.put(key, bits, FLOAT32)
        size = self.stored_size(tmp_path) / (1 << 20)
        full = self.copies_of_equal_content if links else len(keys)
        assert full <= size < full + 0.5
        with self.open(tmp_path, "r") as store:
            for key in keys:
                self._check(store, tmp_path, key, bits, FLOAT32, (512, 512))

    def test_links_differ_by_dtype_and_shape(self, tmp_path: Path) -> None:
        zeros = np.zeros(12, np.float32)
        with self.open(tmp_path, "w") as store:
            for suffix in self.suffixes:
                store.put(f"f{suffix}", zeros, FLOAT32)
                store.put(f"i{suffix}", zeros.view(np.int32), dtype_named("int32"))
                store.put(f"m{suffix}", zeros.reshape(3, 4), FLOAT32)
        with self.open(tmp_path, "r") as store:
            for suffix in self.suffixes:
                assert store.get(f"f{suffix}").dtype.name == "float32"
                assert store.get(f"i{suffix}").dtype.name == "int32"
                assert store.get(f"m{suffix}").shape == (3, 4)

    @pytest.mark.parametrize("links", [True, False])
    def test_a_second_name_without_bits(self, tmp_path: Path, links: bool) -> None:
        bits = random_bits(FLOAT32, (512, 512))
        keys = [f"same{number}{suffix}" for suffix in self.suffixes for number in range(3)]
        with self.open(tmp_path, "w", links=links, compression="none") as store:
            store.put(keys[0], bits, FLOAT32, owned=True)
            for key, existing in zip(keys[1:], keys, strict=False):
                store.put_same(key, existing)
                store.put_same(key, existing)
        size = self.stored_size(tmp_path) / (1 << 20)
        full = self.copies_of_equal_content if links else len(keys)
        assert full <= size < full + 0.5
        with self.open(tmp_path, "a") as store:
            store.put_same("later", keys[0])
        with self.open(tmp_path, "r") as store:
            assert set(store.keys()) == {*keys, "later"}
            for key in keys:
                self._check(store, tmp_path, key, bits, FLOAT32, (512, 512))
            assert same_bits(store.get("later").bits(), bits)

    def test_a_second_name_of_small_and_odd_tensors(self, tmp_path: Path) -> None:
        cases = {f"{dtype.name}.{len(shape)}": (random_bits(dtype, shape), dtype, shape)
                 for dtype in (FLOAT32, dtype_named("bfloat16"), dtype_named("float4_e2m1fn_x2"), INT64)
                 for shape in ((), (0, 3), (3, 5))}  # fmt: skip
        with self.open(tmp_path, "w") as store:
            for name, (bits, dtype, _) in cases.items():
                for suffix in self.suffixes:
                    store.put(f"{name}{suffix}", bits, dtype)
                    store.put_same(f"{name}.again{suffix}", f"{name}{suffix}")
        with self.open(tmp_path, "r") as store:
            for name, (bits, dtype, shape) in cases.items():
                for suffix in self.suffixes:
                    self._check(store, tmp_path, f"{name}.again{suffix}", bits, dtype, shape)

    def test_a_second_name_must_be_free_and_the_first_be_there(self, tmp_path: Path) -> None:
        with self.open(tmp_path, "w") as store:
            store.put("a", np.zeros(3, np.float32), FLOAT32)
            store.put("b", np.ones(3, np.float32), FLOAT32)
            with pytest.raises(KeyExistsError):
                store.put_same("a", "b")
            with pytest.raises(TensorNotFoundError):
                store.put_same("c", "missing")
            assert "c" not in store
        with self.open(tmp_path, "r") as store:
            assert store.get("a")[0] == 0
            with pytest.raises(StoreError):
                store.put_same("c", "a")

    @pytest.mark.parametrize("owned", [True, False])
    @pytest.mark.parametrize("size", [64, 1 << 18, 3 << 20])
    def test_the_same_bytes_as_another_tensor(self, tmp_path: Path, size: int, owned: bool) -> None:
        bits = random_bits(FLOAT32, (size,))
        views: dict[str, tuple[NDArray[Any], DType]] = {
            "row": (bits, FLOAT32),
            "matrix": (bits.reshape(-1, 32), FLOAT32),
            "cube": (bits.reshape(2, 4, -1), FLOAT32),
            "int": (bits.view(np.int32), dtype_named("int32")),
            "int64": (bits.view(np.int64).reshape(2, -1), INT64),
            "bytes": (bits.view(np.uint8), dtype_named("uint8")),
            "bfloat16": (bits.view(np.uint16).reshape(-1, 2), dtype_named("bfloat16")),
            "half": (bits.view(np.float16), dtype_named("float16")),
        }
        with self.open(tmp_path, "w") as store:
            for name, (array, dtype) in views.items():
                for suffix in self.suffixes:
                    store.put(f"{name}{suffix}", array.copy(), dtype, owned=owned)
        with self.open(tmp_path, "r") as store:
            for name, (array, dtype) in views.items():
                for suffix in self.suffixes:
                    stored = store.get(f"{name}{suffix}")
                    assert (stored.dtype, stored.shape) == (dtype, array.shape)
                    stored.verify()
                    self._check(store, tmp_path, f"{name}{suffix}", array, dtype, array.shape)

    # --- documents ---------------------------------------------------------------------------------------------

    def test_documents(self, tmp_path: Path) -> None:
        big = np.random.default_rng(0).integers(0, 256, 3 << 20, dtype=np.uint8).tobytes()
        with self.open(tmp_path, "w") as store:
            store.put("tensor", np.zeros(1, np.float32), FLOAT32)
            assert store.documents() == ()
            store.put_document("dump.json", b"{}")
            store.put_document("stack.json", memoryview(b"[NaN]"))
            store.put_document("dump.json", big)
            store.put_document("dump_error_info.log", "错误\n".encode())
            store.put_document("empty.json", b"")
            assert bytes(store.get_document("dump.json") or b"") == big
        for mode in ("r", "a") if self.persistent else ("r",):
            with self.open(tmp_path, mode) as store:
                assert store.documents() == ("dump.json", "dump_error_info.log", "empty.json", "stack.json")
                assert bytes(store.get_document("dump.json") or b"") == big
                assert bytes(store.get_document("stack.json") or b"") == b"[NaN]"
                empty = store.get_document("empty.json")
                assert empty is not None
                assert bytes(empty) == b""
                assert store.get_document("construct.json") is None
                assert list(store.keys()) == ["tensor"]
        with self.open(tmp_path, "a") as store:
            store.put_document("dump.json", b"short")
        with self.open(tmp_path, "r") as store:
            assert bytes(store.get_document("dump.json") or b"") == b"short"

    def test_several_documents(self, tmp_path: Path) -> None:
        with self.open(tmp_path, "w") as store:
            store.put_document("stack.json", b"old")
            store.put_documents({"stack.json": b"{}", "construct.json": memoryview(b"[]"), "dump.json": b"NaN"})
            store.put_documents({})
        with self.open(tmp_path, "r") as store:
            found = {name: bytes(store.get_document(name) or b"") for name in store.documents()}
            assert found == {"construct.json": b"[]", "dump.json": b"NaN", "stack.json": b"{}"}
            with pytest.raises(StoreError):
                store.put_documents({"dump.json": b""})

    # --- modes and life ----------------------------------------------------------------------------------------

    def test_reading_refuses_to_write(self, tmp_path: Path) -> None:
        self.open(tmp_path, "w").close()
        with self.open(tmp_path, "r") as store:
            with pytest.raises(StoreError):
                store.put("x", np.zeros(1, np.float32), FLOAT32)
            with pytest.raises(StoreError):
                store.put_document("dump.json", b"")

    def test_modes(self, tmp_path: Path) -> None:
        if not self.persistent:
            pytest.skip("nothing outlives a store in memory")
        with pytest.raises(StoreError):
            self.open(tmp_path, "r")
        with self.open(tmp_path, "w") as store:
            store.put("x", np.zeros(1, np.float32), FLOAT32)
            store.put_document("dump.json", b"{}")
        with pytest.raises(StoreError):
            self.open(tmp_path, "w")
        with self.open(tmp_path, "a") as store:
            store.put("y", np.ones(1, np.float32), FLOAT32)
            assert "x" in store
        with self.open(tmp_path, "r") as store:
            assert set(store.keys()) == {"x", "y"}
            assert store.get("x")[0] == 0
            assert store.get("y")[0] == 1

    def test_what_is_put_can_be_read_at_once(self, tmp_path: Path) -> None:
        with self.open(tmp_path, "w") as store:
            for suffix in self.suffixes:
                store.put(f"x{suffix}", np.arange(9, dtype=np.float32), FLOAT32)
                assert store.get(f"x{suffix}")[4] == 4

    def test_a_second_reader_sees_what_was_synced(self, tmp_path: Path) -> None:
        if not (self.persistent and self.live_reads):
            pytest.skip(f"{self.backend} makes no such promise")
        with self.open(tmp_path, "w") as store:
            for suffix in self.suffixes:
                store.put(f"x{suffix}", np.arange(9, dtype=np.float32), FLOAT32)
            store.put_document("dump.json", b"{}")
            store.sync()
            with self.open(tmp_path, "r") as reader:
                for suffix in self.suffixes:
                    assert same_bits(reader.get(f"x{suffix}").bits(), np.arange(9, dtype=np.float32))
                assert bytes(reader.get_document("dump.json") or b"") == b"{}"
            store.put("later", np.zeros(3, np.float32), FLOAT32)
        with self.open(tmp_path, "r") as store:
            assert len(store) == len(self.suffixes) + 1

    def test_closing_twice(self, tmp_path: Path) -> None:
        store = self.open(tmp_path, "w")
        store.put("x", np.zeros(1, np.float32), FLOAT32)
        store.close()
        store.close()

    def test_abandoning(self, tmp_path: Path) -> None:
        """What was synced is there, and whoever comes next can write."""
        store = self.open(tmp_path, "w", threads=2)
        wanted = {f"x{suffix}": random_bits(FLOAT32, (300, 1000)) for suffix in self.suffixes}
        for key, bits in wanted.items():
            store.put(key, bits, FLOAT32)
        store.sync()
        for number in range(9):
            store.put(f"later{number}", random_bits(FLOAT32, (300, 1000)), FLOAT32, owned=True)
        store.abandon()
        store.abandon()
        store.close()
        if not self.persistent:
            return
        for round_ in range(2):
            with self.open(tmp_path, "r") as store:
                for key, bits in wanted.items():
                    assert same_bits(store.get(key).bits(), bits)
                for key in set(store.keys()) - set(wanted):
                    store.get(key).verify()
            if round_ == 0:
                wanted["more"] = random_bits(FLOAT32, (30, 40))
                with self.open(tmp_path, "a") as store:
                    store.put("more", wanted["more"], FLOAT32)

    def test_verify(self, tmp_path: Path) -> None:
        key = f"x{self.checked_suffix}"
        with self.open(tmp_path, "w", compression="none") as store:
            store.put(key, random_bits(INT64, (1000,)), INT64)
            store.put("other", np.zeros(5, np.float32), FLOAT32)
        with self.open(tmp_path, "r") as store:
            for name in (key, "other"):
                store.get(name).verify()
        self.flip_byte(tmp_path, key)
        with self.open(tmp_path, "r") as store:
            store.get("other").verify()
            with pytest.raises(CorruptTensorError, match=key.replace(".", r"\.")):
                store.get(key).verify()

    # --- shared ------------------------------------------------------------------------------------------------

    def _check(
        self, store: Store, tmp_path: Path, key: str, bits: NDArray[Any], dtype: DType, shape: tuple[int, ...]
    ) -> None:
        stored = store.get(key)
        assert (stored.dtype, stored.shape) == (dtype, shape), key
        assert same_bits(stored.bits(), bits), key
        assert stored.digest in (None, content_digest(np.ascontiguousarray(bits).reshape(bits.shape), dtype))
        raw, raw_shape = self.raw_get(tmp_path, key, dtype)
        assert raw_shape in (None, shape), key
        assert raw.tobytes() == bits.tobytes(), key
