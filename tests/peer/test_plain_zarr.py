"""zarr-python alone reads what the Zarr store writes, and the store reads what zarr-python alone writes."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from msformat.dtypes import DType, dtype_from_numpy, dtype_named, known_dtypes
from msformat.errors import CorruptTensorError, StoreError
from msformat.stores.base import Mode, StoreOptions
from msformat.stores.zarr import PACK_BELOW, ZarrStore
from tests.contract.store_contract import exotic_arrays, random_bits

zarr = pytest.importorskip("zarr")

FLOAT32 = dtype_named("float32")


def as_documented(unit: Any, place: dict[str, Any], dtype: DType) -> NDArray[Any]:
    """The recipe of the store's docstring."""
    if "array" in place:
        return np.asarray(unit[place["array"]][place.get("row", ...)])
    shape = dtype.stored_shape(tuple(place["shape"]))
    end = place["offset"] + math.prod(shape) * dtype.storage.itemsize
    return np.asarray(unit[place["pack"]][place["offset"] : end].view(dtype.storage).reshape(shape))


@pytest.mark.parametrize(
    "compression",
    ["auto", "none", "gzip:1", "zstd:3", "lz4", "blosc-zstd:5+bitshuffle", "blosc-lz4+shuffle", "zstd:7+shuffle"],
)
def test_plain_zarr_reads_every_dtype(tmp_path: Path, compression: str) -> None:
    big = PACK_BELOW // 4 + 4
    wanted: dict[str, tuple[NDArray[Any], DType]] = {}
    with ZarrStore(str(tmp_path / "d.zarr"), mode="w", options=StoreOptions(compression=compression)) as store:
        every = known_dtypes() if compression in ("auto", "none") else [FLOAT32, dtype_named("bool")]
        for number, dtype in enumerate(every):
            for shape in ((), (3, 5), (0, 2), (17, math.ceil(big * 4 / dtype.itemsize / 17))):
                key = f"{dtype.name}.{len(wanted)}"
                wanted[key] = (random_bits(dtype, shape, seed=number), dtype)
                store.put(key, *wanted[key])
        for array in exotic_arrays():
            dtype = dtype_from_numpy(array.dtype)
            key = f"exotic.{len(wanted)}"
            wanted[key] = (dtype.to_bits(array), dtype)
            store.put(key, *wanted[key])
    unit = zarr.open_group(tmp_path / "d.zarr", mode="r")
    index = json.loads(unit["documents/index.json"][:].tobytes())["tensors"]
    assert list(index) == list(wanted)
    kinds = set()
    for key, (bits, dtype) in wanted.items():
        place = index[key]
        kinds.add("array" in place)
        found = as_documented(unit, place, dtype)
        assert (found.dtype, found.shape) == (bits.dtype, bits.shape), key
        assert found.tobytes() == bits.tobytes(), key
        if "array" in place:
            attributes = dict(unit[place["array"]].attrs)
            assert attributes.get("dtype", str(bits.dtype)) == dtype.name
    assert kinds == {True, False}


def test_20000_small_tensors_are_few_files_that_plain_zarr_reads(tmp_path: Path) -> None:
    values = np.random.default_rng(0).standard_normal((20_000, 8, 4), np.float32)
    options = StoreOptions(durability="process")
    with ZarrStore(str(tmp_path / "d.zarr"), mode="w", options=options) as store:
        for number, value in enumerate(values):
            store.put(f"Functional.linear.{number}.forward.input.0.npy", value, FLOAT32)
    inodes = 1 + sum(1 for _ in (tmp_path / "d.zarr").rglob("*"))
    assert inodes < 50  # as .npy files: 20,001
    unit = zarr.open_group(tmp_path / "d.zarr", mode="r")
    index = json.loads(unit["documents/index.json"][:].tobytes())["tensors"]
    packs = {name: unit[name][:] for name in {place["pack"] for place in index.values()}}
    for number in range(20_000):
        place = index[f"Functional.linear.{number}.forward.input.0.npy"]
        found = packs[place["pack"]][place["offset"] : place["offset"] + 128].view("f4").reshape(place["shape"])
        assert found.tobytes() == values[number].tobytes()


def test_plain_zarr_reads_many_chunks_and_documents(tmp_path: Path) -> None:
    bits = np.random.default_rng(0).standard_normal((3, 1700, 1001)).astype(np.float32)
    document = np.random.default_rng(1).bytes(9 << 20)
    with ZarrStore(str(tmp_path / "d.zarr"), mode="w", group="step0/rank3") as store:
        store.put("x.pt", bits, FLOAT32, owned=True)
        store.put("bad/name", bits[0], FLOAT32)
        for version in (b"first", document, b"third and last", document):
            store.put_document("dump.json", version)
        store.put_document("index.json", b"theirs")
        store.put_document("zarr.json", b"theirs too")
        assert store.documents() == ("dump.json", "index.json", "zarr.json")
        assert store.get_document("index.json") == b"theirs"
    unit = zarr.open_group(tmp_path / "d.zarr", mode="r")["step0/rank3"]
    index = json.loads(unit["documents/index.json"][:].tobytes())["tensors"]
    array = unit[index["x.pt"]["array"]]
    assert array.shards is not None
    assert [path.name for path in (tmp_path / "d.zarr/step0/rank3" / array.path.split("/", 2)[2]).glob("0.*")] == [
        "0.0.0.0"
    ]
    assert np.array_equal(array[0], bits)
    assert np.array_equal(array[0, 1, 5:1500:700], bits[1, 5:1500:700])
    assert unit["documents/dump.json"][:].tobytes() == document
    assert np.array_equal(unit[index["bad/name"]["array"]][index["bad/name"]["row"]], bits[0])
    with ZarrStore(str(tmp_path / "d.zarr"), group="step0/rank3") as store:
        assert store.get_document("dump.json") == document
        for selection in (np.s_[1, 5:1500:700, ::-500], np.s_[..., 1000], np.s_[2:0:-1, 849:852]):
            assert np.array_equal(store.get("x.pt")[selection], bits[selection])


def sharded_values() -> NDArray[Any]:
    return np.arange(13 * 7, dtype=np.float32).reshape(13, 7) + 1


def _create_sharded(tensors: Any) -> None:
    from zarr.codecs import BytesCodec, ShardingCodec

    data = sharded_values()
    tensors.create_array("sharded", shape=data.shape, chunks=(2, 3), shards=(6, 6), dtype="f4")[...] = data
    start = ShardingCodec(chunk_shape=(2, 3), index_location="start", index_codecs=[BytesCodec(endian="big")])
    options = {"shape": data.shape, "dtype": "f4", "chunks": (6, 6), "compressors": None}
    tensors.create_array("sharded at start", serializer=start, **options)[...] = data
    tensors.create_array("sharded in part", shape=data.shape, chunks=(2, 3), shards=(6, 6), dtype="f4")[:2] = data[:2]
    twice = ShardingCodec(chunk_shape=(6, 6), codecs=[ShardingCodec(chunk_shape=(2, 3))])
    tensors.create_array("sharded twice", serializer=twice, **options)[...] = data


@pytest.fixture
def foreign(tmp_path: Path) -> Path:
    """A store in our group layout that zarr-python made: no index, no digests, all the codecs it likes."""
    from zarr.codecs import BloscCodec, GzipCodec, TransposeCodec, ZstdCodec

    root = zarr.open_group(tmp_path / "foreign.zarr", mode="w", zarr_format=3)
    tensors = root.create_group("tensors")
    data = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    more: dict[str, dict[str, Any]] = {
        "zstd": {"compressors": ZstdCodec()},
        "gzip": {"compressors": GzipCodec()},
        "blosc": {"compressors": BloscCodec(cname="lz4", shuffle="bitshuffle")},
        "two": {"compressors": [GzipCodec(), ZstdCodec()]},
        "none": {"compressors": None},
        "transposed": {"filters": TransposeCodec(order=(2, 0, 1))},
        "slashes": {"chunk_key_encoding": {"name": "default", "separator": "/"}},
        "dots": {"chunk_key_encoding": {"name": "v2", "separator": "."}},
    }
    for name, options in more.items():
        array = tensors.create_array(name, shape=data.shape, chunks=(2, 3, 5), dtype="f4", **options)
        array[...] = data
    for name, value in (("scalar", np.array(3.5)), ("bool", np.array([True, False])), ("c", np.array([1 + 2j]))):
        tensors.create_array(name, shape=value.shape, dtype=value.dtype)[...] = value
    tensors.create_array("bf16", shape=(2,), dtype="u2", attributes={"dtype": "bfloat16"})[...] = [0x3F80, 0x4000]
    _create_sharded(tensors)
    documents = root.create_group("documents")
    documents.create_array("dump.json", shape=(2,), dtype="u1")[...] = np.frombuffer(b"{}", np.uint8)
    return tmp_path / "foreign.zarr"


def test_arrays_of_plain_zarr_are_read(foreign: Path) -> None:
    data = np.arange(60, dtype=np.float32).reshape(3, 4, 5)
    with ZarrStore(str(foreign)) as store:
        assert store.documents() == ("dump.json",)
        assert store.get_document("dump.json") == b"{}"
        for key in ("zstd", "gzip", "blosc", "two", "none", "transposed", "slashes", "dots"):
            assert np.array_equal(store.get(key).numpy(), data), key
            assert np.array_equal(store.get(key)[1:, ::-2, 3], data[1:, ::-2, 3]), key
        assert store.get("scalar")[()] == 3.5
        assert store.get("bool").numpy().tolist() == [True, False]
        assert store.get("c")[0] == 1 + 2j
        assert store.get("bf16").dtype.name == "bfloat16"
        assert store.get("bf16").numpy().astype(float).tolist() == [1.0, 2.0]
        assert np.array_equal(store.get("sharded").numpy(), sharded_values())
        for selection in (np.s_[4], np.s_[3:12:2, 1], np.s_[::-5], np.s_[..., -1]):
            assert np.array_equal(store.get("sharded")[selection], sharded_values()[selection])
            assert np.array_equal(store.get("sharded at start")[selection], sharded_values()[selection])
        with pytest.raises(CorruptTensorError, match="chunk cannot be read"):
            store.get("sharded in part").bits()
        with pytest.raises(StoreError, match="shards within shards"):
            store.get("sharded twice").bits()


def test_a_checksum_of_plain_zarr_is_checked(tmp_path: Path) -> None:
    from zarr.codecs import Crc32cCodec

    root = zarr.open_group(tmp_path / "f.zarr", mode="w", zarr_format=3)
    array = root.create_group("tensors").create_array("x", shape=(4,), dtype="f4", compressors=[Crc32cCodec()])
    array[...] = [1, 2, 3, 4]
    with ZarrStore(str(tmp_path / "f.zarr")) as store:
        assert store.get("x").numpy().tolist() == [1, 2, 3, 4]
        chunk = tmp_path / "f.zarr/tensors/x/c/0"
        chunk.write_bytes(b"\1" + chunk.read_bytes()[1:])
        with pytest.raises(CorruptTensorError, match="crc32c"):
            store.get("x").bits()


def test_a_store_of_plain_zarr_can_be_added_to(foreign: Path) -> None:
    shutil.rmtree(foreign / "tensors/sharded twice")
    with ZarrStore(str(foreign), mode="a") as store:
        store.put("ours", np.ones(3, np.float32), FLOAT32)
    with ZarrStore(str(foreign)) as store:
        assert {"zstd", "two", "ours"} <= set(store.keys())
        assert store.get("two").shape == (3, 4, 5)
        assert store.get("ours")[1] == 1


def test_chunks_that_plain_zarr_did_not_write_are_no_zeros(tmp_path: Path) -> None:
    root = zarr.open_group(tmp_path / "f.zarr", mode="w", zarr_format=3)
    root.create_group("tensors").create_array("x", shape=(4,), dtype="f4")
    with ZarrStore(str(tmp_path / "f.zarr")) as store, pytest.raises(CorruptTensorError, match="write_empty_chunks"):
        store.get("x").bits()


def test_zarr_v2_is_refused(tmp_path: Path) -> None:
    zarr.open_group(tmp_path / "v2.zarr", mode="w", zarr_format=2).create_group("tensors")
    modes: tuple[Mode, ...] = ("r", "w", "a")
    for mode in modes:
        with pytest.raises(StoreError, match=r"Zarr v2.*only Zarr v3"):
            ZarrStore(str(tmp_path / "v2.zarr"), mode=mode)
    with pytest.raises(StoreError, match="only Zarr v3"):
        ZarrStore.groups(str(tmp_path / "v2.zarr"))
    draft = tmp_path / "draft.zarr/meta"
    draft.mkdir(parents=True)
    (draft / "root.group.json").write_text("{}")
    (draft.parent / "zarr.json").write_text('{"zarr_format": "https://purl.org/zarr/spec/protocol/core/3.0"}')
    with pytest.raises(StoreError, match="only Zarr v3"):
        ZarrStore(str(draft.parent))
