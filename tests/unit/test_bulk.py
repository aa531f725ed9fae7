"""Many tensors in one call: values are judged by the arrays that numpy, or the store's own writer, was given."""

from __future__ import annotations

import itertools
import json
import random
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import ml_dtypes
import numpy as np
import pytest
from numpy.typing import NDArray

import msformat
from msformat.bulk import _BATCH
from msformat.convert import ConvertOptions, convert
from tests.local_urls import LocalUrls
from tests.small_dumps import record, write_unit

KINDS = ("npy", "pt", "h5", "zarr")
COUNT = 60
LARGE = "Functional.large.0.forward.output.0"


class Watched(LocalUrls):
    """Local files as if they were far away: requests take time, and how many run at once is counted."""

    protocol = "watched"
    running: ClassVar[int] = 0
    most: ClassVar[int] = 0
    lock: ClassVar[Any] = threading.Lock()

    def cat_file(self, path: str, start: int | None = None, end: int | None = None, **more: Any) -> bytes:
        with self.lock:
            Watched.running += 1
            Watched.most = max(self.most, self.running)
        time.sleep(0.002)
        try:
            return bytes(super().cat_file(path, start, end, **more))
        finally:
            with self.lock:
                Watched.running -= 1


@pytest.fixture(scope="module", autouse=True)
def _watched() -> None:
    fsspec.register_implementation("watched", Watched, clobber=True)


@pytest.fixture(scope="module")
def arrays() -> dict[str, NDArray[Any]]:
    values = np.random.default_rng(0).standard_normal((COUNT, 8, 16), np.float32)
    found: dict[str, NDArray[Any]] = {f"Functional.linear.{at}.forward": value for at, value in enumerate(values)}
    found["Functional.large.0.forward"] = np.arange(1 << 17, dtype=np.int64).reshape(256, 512)
    found["Functional.scalar.0.forward"] = np.array(-0.0)
    found["Functional.empty.0.forward"] = np.zeros((0, 3), np.float16)
    return found


@pytest.fixture(scope="module")
def places(tmp_path_factory: pytest.TempPathFactory, arrays: dict[str, NDArray[Any]]) -> dict[str, str]:
    root = tmp_path_factory.mktemp("bulk")
    write_unit(root / "npy" / "step0" / "rank0", arrays)
    for kind, target in (("h5", root / "d.h5"), ("zarr", root / "d.zarr"), ("pt", root / "pt")):
        options = ConvertOptions(tensors="pt") if kind == "pt" else ConvertOptions()
        assert convert(root / "npy", target, options).exit_code == 0
    return {"npy": str(root / "npy"), "pt": str(root / "pt"), "h5": str(root / "d.h5"), "zarr": str(root / "d.zarr")}


def expected(arrays: dict[str, NDArray[Any]], kind: str) -> dict[str, NDArray[Any]]:
    suffix = ".pt" if kind == "pt" else ".npy"
    return {f"{key}.output.0{suffix}": value for key, value in arrays.items()}


@pytest.mark.parametrize("prefix", ["", "watched://"])
@pytest.mark.parametrize("kind", KINDS)
def test_all_tensors_in_order(kind: str, prefix: str, places: dict[str, str], arrays: dict[str, NDArray[Any]]) -> None:
    wanted = expected(arrays, kind)
    with msformat.open(prefix + places[kind])[0, 0] as unit:
        found = list(unit.read())
        assert [name for name, _ in found] == list(wanted)
        for name, values in found:
            assert values.dtype == wanted[name].dtype
            assert values.shape == wanted[name].shape
            assert values.tobytes() == wanted[name].tobytes()
            assert values.flags.writeable
        names = list(wanted)
        random.Random(0).shuffle(names)
        again = [*names, names[0]]
        assert [name for name, _ in unit.read(again)] == again
        assert all(np.array_equal(values, wanted[name]) for name, values in unit.read(iter(again)))


@pytest.mark.parametrize("kind", ["npy", "pt", "zarr"])
def test_requests_to_a_url_run_at_the_same_time(kind: str, places: dict[str, str]) -> None:
    with msformat.open("watched://" + places[kind])[0, 0] as unit:
        names = [tensor.data_name or "" for tensor in unit.tensors()]
        Watched.most = 0
        assert len(list(unit.read(names))) == len(names)
    # In Zarr nearly all lie in one pack, which one request brings.
    assert Watched.most >= (1 if kind == "zarr" else 4)


def test_values_belong_to_the_caller(places: dict[str, str]) -> None:
    with msformat.open(places["zarr"])[0, 0] as unit:
        name, first = next(unit.read())
        first[...] = 7
        assert not np.array_equal(dict(unit.read([name]))[name], first)


@pytest.mark.parametrize("prefix", ["", "watched://"])
def test_a_bad_tensor_is_named_and_the_rest_goes_on(prefix: str, tmp_path: Path) -> None:
    values = {f"Functional.relu.{at}.forward": np.full(3, at, np.float32) for at in range(4)}
    data = write_unit(tmp_path / "d" / "step0" / "rank0", values) / "dump_tensor_data"
    cut = data / "Functional.relu.1.forward.output.0.npy"
    cut.write_bytes(cut.read_bytes()[:-1])
    (data / "Functional.relu.2.forward.output.0.npy").unlink()
    unit = msformat.open(f"{prefix}{tmp_path / 'd'}")[0, 0]
    failed: dict[str, Exception] = {}
    found = dict(unit.read(on_error=failed.__setitem__))
    assert [array[0] for array in found.values()] == [0, 3]
    assert [type(error) for error in failed.values()] == [msformat.CorruptTensorError, msformat.TensorNotFoundError]
    assert list(failed) == [cut.name, "Functional.relu.2.forward.output.0.npy"]
    with pytest.warns(UserWarning, match="left out: Functional") as caught:
        assert len(dict(unit.read())) == 2
    assert len(caught) == 2
    with pytest.raises(KeyError):
        list(unit.read(["a", "b"], on_error=lambda name, _: {}[name]))


def test_a_chunk_that_is_lost(tmp_path: Path, places: dict[str, str], arrays: dict[str, NDArray[Any]]) -> None:
    assert convert(places["npy"], tmp_path / "d.zarr", ConvertOptions()).exit_code == 0
    for path in (tmp_path / "d.zarr" / "step0" / "rank0" / "tensors").rglob("*"):
        if path.is_file() and path.name != "zarr.json":
            path.unlink()
    failed: list[str] = []
    found = dict(msformat.open(tmp_path / "d.zarr")[0, 0].read(on_error=lambda name, _: failed.append(name)))
    assert failed
    assert set(found) == set(expected(arrays, "zarr")) - set(failed)


def test_types_are_those_of_the_document(tmp_path: Path) -> None:
    values = np.array([1.5, -2.0], ml_dtypes.bfloat16)
    unit = write_unit(tmp_path / "d" / "step0" / "rank0", {"Mint.add.0.forward": values.astype(np.float32)})
    document = json.loads((unit / "dump.json").read_text())
    document["data"]["Mint.add.0.forward"]["output"][0]["dtype"] = "BFloat16"
    (unit / "dump.json").write_text(json.dumps(document))
    ((_, found),) = msformat.open(tmp_path / "d")[0, 0].read(["Mint.add.0.forward.output.0.npy"])
    assert found.dtype == values.dtype
    assert found.tobytes() == values.tobytes()


def test_tensors_and_names_that_no_document_has(tmp_path: Path) -> None:
    unit = write_unit(tmp_path / "d" / "step0" / "rank0", {"Functional.relu.0.forward": np.ones(2, np.float32)})
    np.save(unit / "dump_tensor_data" / "orphan.npy", np.arange(3))
    saved = record(np.ones(2, np.float32), "x")
    del saved["data_name"]
    document = json.loads((unit / "dump.json").read_text())
    document["data"]["Functional.relu.0.forward"]["input_args"] = [saved]
    (unit / "dump.json").write_text(json.dumps(document))
    opened = msformat.open(tmp_path / "d")[0, 0]
    assert [name for name, _ in opened.read()] == ["Functional.relu.0.forward.output.0.npy"]
    assert [values.tolist() for _, values in opened.read(["orphan.npy"])] == [[0, 1, 2]]
    failed: list[str] = []
    assert len(list(opened.read(opened.tensors(), on_error=lambda name, _: failed.append(name)))) == 1
    assert failed == ["Functional.relu.0.forward: input_args.0"]


def test_names_are_taken_as_they_are_needed(places: dict[str, str]) -> None:
    taken = 0

    def names() -> Iterator[str]:
        nonlocal taken
        for number in itertools.count(1):
            taken = number
            yield f"{LARGE}.npy"

    read = msformat.open(places["npy"])[0, 0].read(names())
    assert next(read)[1].shape == (256, 512)
    assert taken <= _BATCH
