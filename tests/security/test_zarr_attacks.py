"""Zarr stores made by an attacker: no code runs, nothing outside is touched, no memory is spent on lies."""

from __future__ import annotations

import contextlib
import gzip
import json
import os
import pickle
import shutil
import subprocess
import sys
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from msformat.dtypes import dtype_named
from msformat.errors import CorruptTensorError, FormatError, MsformatError, StoreError, UnsafeInputError
from msformat.stores.base import StoreOptions
from msformat.stores.zarr import PACK_BELOW, ZarrStore
from msformat.stores.zarr_codecs import parse_codecs
from msformat.stores.zarr_index import encode_index
from tests.zarr_layout import as_first_layout

numcodecs = pytest.importorskip("numcodecs")

FLOAT32 = dtype_named("float32")
BIG = np.random.default_rng(0).standard_normal((3000, 1000)).astype(np.float32)


@pytest.fixture
def victim(tmp_path: Path) -> Path:
    """A good store: a chunked array ``big`` (as the first layout has them), a packed tensor ``small``, a document."""
    location = tmp_path / "d.zarr"
    with ZarrStore(str(location), mode="w") as store:
        store.put("big", BIG, FLOAT32)
        store.put("small", np.arange(5, dtype=np.float32), FLOAT32)
        store.put_document("dump.json", b"{}")
    as_first_layout(location)
    return location


def edit(path: Path, lies: dict[str, Any]) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **lies}))


def reindex(store: Path, tensors: dict[str, Any]) -> None:
    """Replace the index by one that says anything, as a log, which needs no codec."""
    shutil.rmtree(store / "documents/index.json")
    lines = []
    for key, place in tensors.items():
        text = json.dumps({"key": key, **place}).encode()[:-1]
        lines.append(text + f',"crc32":"{zlib.crc32(text):08x}"}}\n'.encode())
    (store / "index.jsonl").write_bytes(b"".join(lines))


def read_all(location: Path) -> None:
    with ZarrStore(str(location)) as store:
        for key in tuple(store.keys()):
            store.get(key).verify()
        for name in {*store.documents(), "dump.json"}:
            store.get_document(name)


class Bomb:
    def __reduce__(self) -> Any:
        return os.mkdir, ("ran-code",)


# --- codecs -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("node", ["tensors/big", "packs/0", "documents/dump.json", "documents/index.json"])
def test_a_pickle_behind_harmless_codecs(
    victim: Path, node: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("numcodecs.pickle", "numcodecs.json2", "pickle", "numcodecs.vlen-array", "vlen-utf8"):
        chain = ["bytes", {"name": "zstd", "configuration": {}}, {"name": name, "configuration": {}}]
        edit(victim / node / "zarr.json", {"codecs": chain})
        for chunk in (victim / node).glob("[0-9]*"):
            chunk.write_bytes(pickle.dumps(Bomb()))
        with pytest.raises(UnsafeInputError, match=rf"{name}.*allow-list"):
            read_all(victim)
    assert not (tmp_path / "ran-code").exists()


@pytest.mark.parametrize(
    "codecs",
    [
        None,
        [],
        {},
        "bytes",
        [None],
        [{"name": 3}],
        [{"name": "bytes", "configuration": 3}],
        ["zstd"],
        ["bytes", "bytes"],
        ["zstd", "bytes"],
        ["bytes", "transpose"],
        [{"name": "transpose", "configuration": {"order": [0, 0]}}, "bytes"],
        [{"name": "transpose", "configuration": {"order": [0, True]}}, "bytes"],
        [{"name": "transpose", "configuration": {"order": [0, 1]}}] * 2 + ["bytes"],
        [{"name": "bytes", "configuration": {"endian": "middle"}}],
        [{"name": "bytes", "configuration": {"endian": []}}],
    ],
)
def test_malformed_codec_chains(codecs: Any) -> None:
    with pytest.raises(FormatError):
        parse_codecs(codecs, 2, "here")


# --- chunks -------------------------------------------------------------------------------------------------------


def test_a_missing_chunk_is_no_zeros(victim: Path) -> None:
    (victim / "tensors/big/1.0").unlink()
    with ZarrStore(str(victim)) as store:
        with pytest.raises(CorruptTensorError, match=r"tensors/big/1\.0: tensor 'big'"):
            store.get("big").bits()
        assert np.array_equal(store.get("big")[0], BIG[0])
    (victim / "packs/0/0").unlink()
    with ZarrStore(str(victim)) as store, pytest.raises(CorruptTensorError, match="'small'"):
        store.get("small").bits()
    shutil.rmtree(victim / "packs/0")
    with ZarrStore(str(victim)) as store, pytest.raises(CorruptTensorError, match="'small'"):
        store.get("small").bits()


@pytest.mark.parametrize("compression", ["auto", "none", "gzip", "zstd", "blosc-zstd+shuffle"])
def test_truncated_and_damaged_chunks(tmp_path: Path, compression: str) -> None:
    location = tmp_path / "d.zarr"
    bits = BIG[:40]
    with ZarrStore(str(location), mode="w", options=StoreOptions(compression=compression)) as store:
        store.put("x", bits, FLOAT32)
    as_first_layout(location, compression)
    chunk = location / "tensors/x/0.0"
    good = chunk.read_bytes()
    for length in (0, 1, 15, 17, len(good) // 2, len(good) - 1):
        chunk.write_bytes(good[:length])
        with ZarrStore(str(location)) as store, pytest.raises(CorruptTensorError, match=r"x/0\.0: tensor 'x'"):
            store.get("x").bits()
    chunk.write_bytes(good + b"x")
    with ZarrStore(str(location)) as store, pytest.raises(CorruptTensorError, match="'x'"):
        store.get("x").verify()
    random = np.random.default_rng(0)
    for _ in range(60):
        bad = bytearray(good)
        at = random.integers(0, 24) if random.integers(2) else random.integers(0, len(good))
        bad[at] ^= random.integers(1, 256)
        chunk.write_bytes(bad)
        with ZarrStore(str(location)) as store:
            try:
                store.get("x").verify()
            except CorruptTensorError:
                continue
            # A byte that means nothing (a time stamp, a reserved bit) may differ.
            assert np.array_equal(store.get("x").numpy(), bits)


def zeros_in(codec: str, size: int) -> bytes:
    """``size`` zeros in very few bytes, with a header that tells the truth."""
    if codec == "gzip":
        deflate = zlib.compressobj(9, zlib.DEFLATED, 31)
        return b"".join([*(deflate.compress(bytes(1 << 20)) for _ in range(size >> 20)), deflate.flush()])
    encoder = numcodecs.Zstd(1) if codec == "zstd" else numcodecs.Blosc("zstd", 9)
    return bytes(encoder.encode(np.zeros(size, np.uint8)))


@pytest.mark.parametrize("codec", ["gzip", "zstd", "blosc"])
def test_a_decompression_bomb(tmp_path: Path, codec: str) -> None:
    location = tmp_path / "d.zarr"
    bits = BIG[:40]
    with ZarrStore(str(location), mode="w", options=StoreOptions(compression=codec)) as store:
        store.put("x", bits, FLOAT32)
    as_first_layout(location, codec)
    (location / "tensors/x/0.0").write_bytes(zeros_in(codec, 256 << 20))
    with ZarrStore(str(location)) as store, pytest.raises(CorruptTensorError, match="expected"):
        store.get("x").bits()


LIMITED = """
import resource, sys
import numpy as np
from msformat.stores.zarr import ZarrStore
import numcodecs.blosc, numcodecs.zstd
resource.setrlimit(resource.RLIMIT_AS, (3 << 30, 3 << 30))
store = ZarrStore(sys.argv[1])
for index in (..., 0, -1):
    try:
        store.get(sys.argv[2])[index]
    except OSError as error:
        print(type(error).__name__)
"""


@pytest.mark.parametrize(
    ("shape", "chunks"),
    [
        ([1 << 40], [1 << 20]),
        ([1 << 28, 40], [1 << 20, 40]),
        ([1 << 33], [1 << 28]),
        ([1 << 20, 1 << 20], [1, 1 << 20]),
        ([1 << 60], [1]),
    ],
)
def test_a_shape_that_the_bytes_cannot_back(tmp_path: Path, shape: list[int], chunks: list[int]) -> None:
    location = tmp_path / "d.zarr"
    with ZarrStore(str(location), mode="w") as store:
        store.put("x", BIG, FLOAT32)
    as_first_layout(location)
    node = location / "tensors/x"
    grid = {"name": "regular", "configuration": {"chunk_shape": chunks}}
    edit(node / "zarr.json", {"shape": shape, "chunk_grid": grid})
    some = (node / "0.0").read_bytes()
    for number in range(4):
        (node / ".".join([str(number), *["0"] * (len(shape) - 1)])).write_bytes(some)
    reindex(location, {"x": {"array": "tensors/x", "dtype": "float32", "shape": shape}})
    found = subprocess.run(
        [sys.executable, "-c", LIMITED, str(location), "x"], capture_output=True, text=True, check=True, timeout=60
    )
    assert found.stdout.split() == ["CorruptTensorError"] * 3


@pytest.mark.parametrize("name", ["zstd", "gzip", "blosc"])
def test_headers_that_claim_too_much(tmp_path: Path, name: str) -> None:
    """A header of a few bytes that says 1 GiB, in a chunk that is declared to hold that."""
    heads = {
        "zstd": b"\x28\xb5\x2f\xfd\xa0" + (1 << 30).to_bytes(4, "little") + b"\1\0\0",
        "gzip": gzip.compress(b"x"),
        "blosc": b"\2\1\1\4" + (1 << 30).to_bytes(4, "little") + (1 << 20).to_bytes(4, "little") + b"\x14\0\0\0" * 2,
    }
    location = tmp_path / "d.zarr"
    with ZarrStore(str(location), mode="w", options=StoreOptions(compression=name)) as store:
        store.put("x", BIG, FLOAT32)
    as_first_layout(location, name)
    node = location / "tensors/x"
    grid = {"name": "regular", "configuration": {"chunk_shape": [1 << 28]}}
    edit(node / "zarr.json", {"shape": [1 << 28], "chunk_grid": grid})
    (node / "0").write_bytes(heads[name])
    reindex(location, {"x": {"array": "tensors/x", "dtype": "float32", "shape": [1 << 28]}})
    found = subprocess.run(
        [sys.executable, "-c", LIMITED, str(location), "x"], capture_output=True, text=True, check=True, timeout=60
    )
    assert found.stdout.split() == ["CorruptTensorError"] * 3


# --- metadata -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "lie",
    [
        {"shape": [-1, 1000]},
        {"shape": [3000.0, 1000]},
        {"shape": [True, 1000]},
        {"shape": "3000"},
        {"shape": [1 << 62, 1 << 62]},
        {"shape": [1] * 65},
        {"shape": [3000]},
        {"shape": [3000, 1001]},
        {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [0, 1000]}}},
        {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [1 << 31, 1000]}}},
        {"chunk_grid": {"name": "regular", "configuration": {"chunk_shape": [10]}}},
        {"chunk_grid": {"name": "regular", "configuration": []}},
        {"chunk_grid": {"name": "rectilinear", "configuration": {}}},
        {"chunk_grid": None},
        {"chunk_key_encoding": {"name": "default", "configuration": {"separator": "../"}}},
        {"chunk_key_encoding": {"name": "v3", "configuration": {}}},
        {"chunk_key_encoding": 3},
        {"data_type": "object"},
        {"data_type": "float64"},
        {"data_type": {"name": "numpy.datetime64", "configuration": {}}},
        {"data_type": "r16"},
        {"node_type": "group"},
        {"node_type": "file"},
        {"zarr_format": 2},
        {"zarr_format": 4},
        {"attributes": [1]},
        {"storage_transformers": [{"name": "x"}]},
        {"virtual": {"must_understand": True}},
    ],
    ids=str,
)
def test_metadata_that_lies(victim: Path, lie: dict[str, Any]) -> None:
    edit(victim / "tensors/big/zarr.json", lie)
    with ZarrStore(str(victim)) as store:
        with pytest.raises((FormatError, StoreError), match="big"):
            store.get("big").bits()
        assert store.get("small")[3] == 3


@pytest.mark.parametrize("text", ["", "[", "[]", "null", "3", "[" * 100000, '{"a":' * 100000, "\xff", '{"zarr_format"'])
@pytest.mark.parametrize("node", ["", "tensors/big", "packs/0", "documents/dump.json", "documents/index.json"])
def test_broken_json(victim: Path, node: str, text: str) -> None:
    (victim / node / "zarr.json").write_bytes(text.encode("latin-1"))
    with pytest.raises(MsformatError):
        read_all(victim)
    for mode in ("a", "w"):
        if node == "":
            with pytest.raises(MsformatError):
                ZarrStore(str(victim), mode=mode)


def test_metadata_of_endless_size(victim: Path) -> None:
    with (victim / "tensors/big/zarr.json").open("ab") as stream:
        stream.truncate(1 << 40)
    with ZarrStore(str(victim)) as store, pytest.raises(UnsafeInputError, match="bigger than"):
        store.get("big").bits()
    with (victim / "index.jsonl").open("ab") as stream:
        stream.truncate(1 << 40)
    with pytest.raises(UnsafeInputError, match="bigger than"):
        ZarrStore(str(victim))


@pytest.mark.parametrize("dtype", ["|O", "object", "float64", "bfloat16", "<M8[us]", "V8", 7, None, {"a": 1}])
def test_attributes_of_another_type(victim: Path, dtype: Any) -> None:
    shutil.rmtree(victim / "documents/index.json")
    edit(victim / "tensors/big/zarr.json", {"attributes": {"dtype": dtype}})
    with ZarrStore(str(victim)) as store:
        if dtype is None:
            assert store.get("big").dtype == FLOAT32
            return
        with pytest.raises(FormatError, match="big"):
            store.get("big")


# --- the index ----------------------------------------------------------------------------------------------------

GOOD = {"pack": "packs/0", "offset": 0, "dtype": "float32", "shape": [5]}


@pytest.mark.parametrize(
    "node",
    ["../secret", "tensors/../../secret", "/etc/passwd", "tensors/a/b", "tensors/..", "tensors/", "", "documents/x"],
)
@pytest.mark.parametrize("kind", ["array", "pack"])
def test_an_index_that_points_elsewhere(victim: Path, node: str, kind: str) -> None:
    place = {kind: node, "dtype": "float32", "shape": [5], **({"offset": 0} if kind == "pack" else {})}
    reindex(victim, {"x": place, "y": GOOD})
    with pytest.raises(UnsafeInputError, match="unsafe node"):
        ZarrStore(str(victim))


@pytest.mark.parametrize(
    "change",
    [
        {"offset": -8},
        {"offset": 1 << 70},
        {"offset": "0"},
        {"shape": [-1]},
        {"shape": [1 << 63]},
        {"shape": None},
        {"shape": [1] * 65},
        {"shape": "5"},
        {"dtype": None},
        {"dtype": 5},
        {"digest": "../../x"},
        {"array": "tensors/big"},
        {"pack": None},
    ],
    ids=str,
)
def test_an_index_that_makes_no_sense(victim: Path, change: dict[str, Any]) -> None:
    reindex(victim, {"x": {**GOOD, **change}, "y": GOOD})
    with pytest.raises(FormatError, match="line 1"):
        ZarrStore(str(victim))


@pytest.mark.parametrize(
    "change",
    [
        {"offset": 8},
        {"offset": 1 << 60},
        {"shape": [1 << 62]},
        {"shape": [1 << 20, 1 << 20, 1 << 20]},
        {"shape": [7]},
        {"pack": "packs/9"},
        {"pack": "tensors/big"},
        {"dtype": "|O"},
        {"dtype": "<U1"},
        {"dtype": "nonsense"},
        {"digest": "0" * 32},
    ],
    ids=str,
)
def test_an_index_that_lies_about_a_pack(victim: Path, change: dict[str, Any]) -> None:
    reindex(victim, {"x": {**GOOD, **change}, "y": GOOD})
    with ZarrStore(str(victim)) as store:
        assert store.get("y")[4] == 4
        if change.get("dtype") == "<U1":
            assert store.get("x").bits().dtype == np.uint32
            return
        with pytest.raises((CorruptTensorError, FormatError)):
            store.get("x").verify()


def test_an_index_of_another_format(victim: Path) -> None:
    good = json.loads(encode_index({}))
    store = ZarrStore(str(victim), mode="a")
    changes: list[dict[str, Any]] = [{"format": "x"}, {"version": 2}, {"tensors": []}, {"tensors": {"x": {}}}]
    for change in changes:
        store._put_array_of_bytes("documents/index.json", json.dumps({**good, **change}).encode())
        with pytest.raises(FormatError, match=r"index\.json"):
            ZarrStore(str(victim))


# --- links --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "path",
    [
        "tensors/big/0.0",
        "tensors/big/zarr.json",
        "tensors/big",
        "tensors",
        "packs",
        "packs/0/0",
        "documents/dump.json",
        "documents",
        "zarr.json",
    ],
)
def test_links_out_of_the_store(victim: Path, path: str, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    shutil.move(victim / path, outside)
    (victim / path).symlink_to(outside)
    with pytest.raises(MsformatError):
        read_all(victim)


@pytest.mark.parametrize("path", ["tensors", "packs", "documents", "tensors/0", "documents/dump.json", "index.jsonl"])
def test_nothing_is_written_through_links(victim: Path, path: str, tmp_path: Path) -> None:
    outside = tmp_path / "outside"
    if path == "index.jsonl":
        outside.write_bytes(b"")
    else:
        outside.mkdir()
    if (victim / path).exists():
        shutil.rmtree(victim / path)
    (victim / path).symlink_to(outside)

    def attempt() -> None:
        with ZarrStore(str(victim), mode="a") as store:
            store.put("new", np.zeros(PACK_BELOW, np.float32), FLOAT32)
            store.put("packed", np.ones(3, np.float32), FLOAT32)
            store.sync()
            store.put_document("dump.json", b"x")

    # Nothing is in the way of a number that nobody has.
    with contextlib.nullcontext() if path == "tensors/0" else pytest.raises(MsformatError):
        attempt()
    assert outside.read_bytes() == b"" if outside.is_file() else list(outside.iterdir()) == []


def test_a_fifo_does_not_hang(victim: Path) -> None:
    chunk = victim / "tensors/big/0.0"
    chunk.unlink()
    os.mkfifo(chunk)
    with ZarrStore(str(victim)) as store, pytest.raises(MsformatError):
        store.get("big").bits()
