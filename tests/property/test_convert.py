"""Random dumps with odd names and every element type: A to B to A is the identity for every ordered pair of stores."""

from __future__ import annotations

import itertools
import json
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from msformat.convert import ConvertOptions, convert
from msformat.dtypes import DType, dtype_named, known_dtypes
from msformat.stores.registry import open_store
from tests.contract.samples import ODD_KEYS, random_bits

FORMS = {"files": "tree", "hdf5": "one.h5", "zarr": "one.zarr", "hdf5-tree": "tree", "zarr-tree": "tree"}
_CONTAINERS = {"files": "", "hdf5": "dump.h5", "zarr": "dump.zarr"}
EXOTIC = tuple(dtype_named(name) for name in ("<U1", "<U3", "|S5", "<M8[us]", "<m8[ns]"))

# No lone surrogates: a document cannot name such a tensor in UTF-8 (a store may still hold it).
_texts = st.text(st.characters(exclude_categories=["Cs"]), max_size=30)
_suffixes = st.sampled_from(["", ".pt", ".npy"])
_names = st.one_of(st.builds(str.__add__, _texts, _suffixes), st.sampled_from(ODD_KEYS))
_dtypes = st.sampled_from((*known_dtypes(), *EXOTIC))
_shapes = st.lists(st.integers(0, 4), max_size=3).map(tuple)
_tensors = st.dictionaries(_names, st.tuples(_dtypes, _shapes, st.integers(0, 9)), max_size=6)
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | _texts,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_texts, inner, max_size=3),
    max_leaves=8,
)


def _bits(dtype: DType, shape: tuple[int, ...], seed: int) -> NDArray[Any]:
    bits = random_bits(dtype, shape, seed)
    # Characters outside Unicode are no text in any program.
    return bits % bits.dtype.type(128) if dtype.name.startswith("<U") else bits


def _document(tensors: dict[str, Any], extra: Any) -> bytes:
    data = {
        f"entry {number}": {
            "output": [
                {"type": "torch.Tensor", "dtype": f"torch.{dtype.name}", "shape": list(shape), "data_name": name}
            ],
            "unknown": extra,
        }
        # The last one stays an orphan.
        for number, (name, (dtype, shape, _)) in enumerate(list(tensors.items())[:-1])
    }
    header = {"task": "tensor", "level": "L1", "framework": "pytorch", "dump_data_dir": None}
    return json.dumps({**header, "data": data}, indent=1).encode()


def _make(place: Path, form: str, tensors: dict[str, Any], documents: dict[str, bytes]) -> Path:
    backend, root, location, group = _where(place, form)
    if not group:
        (root / "step0" / "rank").mkdir(parents=True)
    with open_store(backend, str(location), mode="a", group=group) as store:
        for name, (dtype, shape, seed) in tensors.items():
            store.put(name, _bits(dtype, shape, seed), dtype)
        store.sync()
        for name, data in documents.items():
            store.put_document(name, data)
    return root


def _where(place: Path, form: str) -> tuple[str, Path, Path, str]:
    backend = form.removesuffix("-tree")
    root = place / FORMS[form]
    if FORMS[form] == "tree":
        return backend, root, root / "step0" / "rank" / _CONTAINERS[backend], ""
    return backend, root, root, "step0/rank"


def _content(place: Path, form: str) -> tuple[dict[str, Any], dict[str, bytes]]:
    backend, _, location, group = _where(place, form)
    with open_store(backend, str(location), group=group) as store:
        tensors = {}
        for key in store.keys():  # noqa: SIM118 (a Store is no mapping)
            stored = store.get(key)
            tensors[key] = (stored.dtype.name, stored.shape, stored.bits().tobytes())
        return tensors, {name: bytes(store.get_document(name) or b"") for name in store.documents()}


@pytest.fixture(autouse=True, scope="module")
def _no_waiting_for_disks() -> Any:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("os.fsync", lambda descriptor: None)
        yield


@pytest.mark.parametrize(("first", "second"), list(itertools.permutations(FORMS, 2)), ids=lambda form: form)
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(tensors=_tensors, extra=_json, log=st.binary(max_size=20))
def test_there_and_back_is_the_identity(
    first: str, second: str, tensors: dict[str, Any], extra: Any, log: bytes
) -> None:
    documents = {"dump.json": _document(tensors, extra), "stack.json": b"{}", "dump_error_info.log": log}
    with tempfile.TemporaryDirectory() as scratch:
        places = [Path(scratch) / name for name in ("a", "b", "c")]
        for place in places:
            place.mkdir()
        source = _make(places[0], first, tensors, documents)
        for place, form in ((places[1], second), (places[2], first)):
            target = place / FORMS[form]
            report = convert(source, target, ConvertOptions(to=form.removesuffix("-tree")))
            assert report.exit_code == 0, report.as_json()
            source = target
        expected = {
            name: (dtype.name, shape, _bits(dtype, shape, seed).tobytes())
            for name, (dtype, shape, seed) in tensors.items()
        }
        assert _content(places[2], first) == (expected, documents)
