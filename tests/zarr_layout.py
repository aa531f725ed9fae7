"""Where things lie in a Zarr store, and stores of the first layout made of those of today."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import msgspec
import numpy as np

from msformat.filesystem import LocalFileSystem
from msformat.stores.codecs import chunk_shape, parse_compression
from msformat.stores.zarr import ZarrStore
from msformat.stores.zarr_codecs import array_encoder
from msformat.stores.zarr_documents import write_document
from msformat.stores.zarr_index import Place, encode_index
from msformat.stores.zarr_metadata import array_document, load_array

__all__ = ["as_first_layout", "place_of", "row_file"]


def _index(unit: Path) -> dict[str, Place]:
    return dict(ZarrStore(str(unit))._places)


def place_of(unit: Path, key: str) -> Place:
    """Where a tensor lies."""
    return _index(unit)[key]


def row_file(unit: Path, key: str) -> Path:
    """The only file of a tensor that is a row."""
    place = place_of(unit, key)
    (found,) = (unit / place.node).glob(f"{place.row}.*")
    return found


def as_first_layout(unit: Path, compression: str = "auto") -> None:
    """Take rows apart: an array for each tensor above 64 KiB, a file for each chunk."""
    places = {}
    with ZarrStore(str(unit)) as store:
        for key, place in _index(unit).items():
            bits, dtype = store.get(key).bits(), store.get(key).dtype
            if place.row is None:
                places[key] = place
                continue
            folder = unit / "tensors" / key
            folder.mkdir()
            chunks = chunk_shape(bits.shape, bits.itemsize)
            encoder = array_encoder(parse_compression(compression), bits.itemsize)
            attributes = {**({} if dtype.is_native else {"dtype": dtype.name}), "xxh3_128": place.digest, "key": key}
            (folder / "zarr.json").write_bytes(
                array_document(bits.shape, chunks, bits.dtype, encoder, attributes=attributes)
            )
            for at in np.ndindex(*(-(-a // b) for a, b in zip(bits.shape, chunks, strict=True))):
                region = tuple(slice(i * c, (i + 1) * c) for i, c in zip(at, chunks, strict=True))
                whole = np.zeros(chunks, bits.dtype)
                whole[tuple(slice(length) for length in bits[region].shape)] = bits[region]
                (folder / ".".join(map(str, at))).write_bytes(bytes(encoder.encode(whole)))
            places[key] = msgspec.structs.replace(place, array=f"tensors/{key}", row=None)
    for folder in (unit / "tensors").glob("[0-9]*"):
        shutil.rmtree(folder)
    index = unit / "documents/index.json"
    write_document(str(index), encode_index(places), load_array(LocalFileSystem(str(index)), ""))
    group = json.loads((unit / "zarr.json").read_text())
    (unit / "zarr.json").write_text(json.dumps({**group, "attributes": {"msformat": {"layout": 1}}}))
