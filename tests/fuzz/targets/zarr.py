"""Zarr stores: metadata, indices, shards and chunks of a stranger; what is read agrees with zarr-python."""

from __future__ import annotations

import tempfile
import warnings
from collections.abc import Iterator
from importlib.util import find_spec
from pathlib import Path
from random import Random
from typing import Any

import numpy as np
from numpy.typing import NDArray

from msformat.dtypes import dtype_named
from msformat.errors import MsformatError
from msformat.filesystem import open_filesystem
from msformat.stores.base import StoreOptions
from msformat.stores.zarr import ZarrStore
from msformat.stores.zarr_metadata import load_array
from msformat.stores.zarr_read import read_array
from tests.fuzz.mutators import change_json, change_lines, change_shard, change_tree, seal_index_line
from tests.fuzz.reading import read_tensor
from tests.fuzz.samples import pack_tree, unpack_tree
from tests.fuzz.target import Change, Target

_MOST_BYTES = 1 << 20


def check(data: bytes, place: Path) -> None:
    """A store, file by file."""
    files = unpack_tree(data)
    if files is None:
        return
    root = place / "dump.zarr"
    for name, content in files.items():
        path = root / name
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        except OSError:  # a directory and a file of one name
            continue
    for group in _groups(root):
        _check_unit(root, group)
    for path in sorted(root.rglob("zarr.json")):
        _check_array(root, path.parent.relative_to(root).as_posix())


def _groups(root: Path) -> tuple[str, ...]:
    try:
        return ("", *ZarrStore.groups(str(root)))
    except MsformatError:
        return ()


def _check_unit(root: Path, group: str) -> None:
    try:
        store = ZarrStore(str(root), group=group)
        keys = list(store.keys())
    except MsformatError:
        return
    assert len(store) == len(keys)
    for key in keys:
        try:
            assert key in store
            read_tensor(store.get(key))
        except MsformatError:
            continue
    for name in store.documents():
        try:
            found = store.get_document(name)
            assert found is None or isinstance(bytes(found), bytes)
        except MsformatError:
            continue
    store.close()


def _check_array(root: Path, node: str) -> None:
    fs = open_filesystem(str(root))
    try:
        meta = load_array(fs, "" if node == "." else node)
        if meta is None or int(np.prod(meta.shape, dtype=object)) * meta.storage.itemsize > _MOST_BYTES:
            return
        ours = read_array(fs, "" if node == "." else node, meta, "array")
    except MsformatError:
        return
    theirs = _by_zarr(root / node)
    assert theirs is None or (theirs.shape == ours.shape and theirs.tobytes() == np.ascontiguousarray(ours).tobytes())


def _by_zarr(place: Path) -> NDArray[Any] | None:
    """What zarr-python reads; None where it cannot, or is not installed."""
    try:
        import zarr
    except ModuleNotFoundError:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            array = zarr.open_array(place, mode="r", zarr_format=3)
            return np.asarray(array[...]) if array.nchunks <= 64 else None
    except Exception:  # noqa: BLE001 (it knows many ways to say that a store is not to its taste)
        return None


# --- inputs ---------------------------------------------------------------------------------------------------------


def seeds() -> Iterator[bytes]:
    """Units that are finished and unfinished, and what zarr-python writes."""
    with tempfile.TemporaryDirectory() as folder:
        yield _packed(_write_unit(Path(folder, "dump.zarr"), finish=True))
        yield _packed(_write_unit(Path(folder, "open.zarr"), finish=False))
    if find_spec("zarr") is not None:
        with tempfile.TemporaryDirectory() as folder:
            yield _packed(_write_foreign(Path(folder, "foreign.zarr")))


def _packed(root: Path) -> bytes:
    files = (path for path in sorted(root.rglob("*")) if path.is_file())
    return pack_tree({path.relative_to(root).as_posix(): path.read_bytes() for path in files})


def _write_unit(root: Path, *, finish: bool) -> Path:
    options = StoreOptions(threads=0, durability="process")
    store = ZarrStore(str(root), mode="w", group="step0/rank", options=options)
    for number, name in enumerate(("float32", "bfloat16", "bool")):
        dtype = dtype_named(name)
        store.put(f"x.{number}", np.ones((number + 1, 2), dtype.storage), dtype)
    # A row of an array, in a shard, repeats so that it packs small.
    store.put("large", np.zeros((150, 120), np.float32), dtype_named("float32"))
    store.sync()
    if not finish:
        return root
    store.put_document("dump.json", b'{"task": "tensor", "level": "L1", "data": {}}')
    store.close()
    return root


def _write_foreign(root: Path) -> Path:
    import zarr

    group = zarr.open_group(root, mode="w", zarr_format=3).require_group("tensors")
    values = np.arange(24, dtype=np.int16).reshape(4, 6)
    kinds: dict[str, dict[str, Any]] = {
        "plain": {"chunks": (2, 3), "compressors": None},
        "sharded": {"chunks": (2, 3), "shards": (4, 6)},
        "gzip": {"chunks": (4, 6), "compressors": zarr.codecs.GzipCodec()},
        "blosc": {"chunks": (4, 4), "compressors": zarr.codecs.BloscCodec(cname="lz4")},
        "moved": {"chunks": (2, 6), "filters": zarr.codecs.TransposeCodec(order=(1, 0)), "compressors": None},
    }
    for name, more in kinds.items():
        group.create_array(name, shape=values.shape, dtype="i2", **more)[:] = values
    return root


def mutate(data: bytes, change: Change, random: Random) -> bytes:
    """One file, so that its checksums fit."""

    def inside(name: str, content: bytes) -> bytes:
        if name.endswith("zarr.json"):
            return change_json(content, change, random)
        if name.endswith("index.jsonl"):
            return change_lines(content, change, random, _without_crc, seal_index_line)
        return change_shard(content, change, random)

    return change_tree(data, change, random, inside)


def _without_crc(line: bytes) -> bytes:
    return line.rpartition(b',"crc32"')[0] or line


TARGET = Target(check, seeds, mutate, most_bytes=32768)
