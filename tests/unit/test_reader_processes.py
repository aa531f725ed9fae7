"""The reader in worker processes and threads, and on a document of 100,000 entries."""

from __future__ import annotations

import concurrent.futures
import json
import multiprocessing
import pickle
import shutil
import threading
import tracemalloc
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import msformat
from msformat import lazy
from tests.judges import judge
from tests.unit.reader_dumps import RELU, VALUES, X, record, write_unit

torch = judge("torch")

# --- processes and threads --------------------------------------------------------------------------------------------


def _sum_of(tensor: msformat.Tensor) -> float:
    return float(tensor.numpy().sum())


def test_everything_pickles(stored: Path) -> None:
    dump = msformat.open(stored)
    x = dump[0, 2].tensor(X)
    assert x.has_data
    for again in (pickle.loads(pickle.dumps(dump))[0, 2].tensor(X), pickle.loads(pickle.dumps(x))):
        assert np.array_equal(again.numpy(), VALUES)
        assert (again.slot, again.path, again.entry.key) == (x.slot, x.path, x.entry.key)
    assert len(pickle.dumps(dump[0, 2])) < 2000
    assert pickle.loads(pickle.dumps(dump[0, 2][RELU])).inputs[0].shape == (2, 3, 4)


@pytest.mark.skipif("fork" not in multiprocessing.get_all_start_methods(), reason="no fork on this system")
@pytest.mark.timeout(60)
def test_forked_workers_open_for_themselves(stored: Path) -> None:
    x = msformat.open(stored)[0, 2].tensor(X)
    assert _sum_of(x) == VALUES.sum()  # opened here, then forked
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # of Python 3.12, about fork and threads
        with multiprocessing.get_context("fork").Pool(2) as pool:
            assert pool.map(_sum_of, [x] * 8) == [VALUES.sum()] * 8
    assert _sum_of(x) == VALUES.sum()


class _Slices(torch.utils.data.Dataset):  # type: ignore[type-arg]
    def __init__(self, tensor: msformat.Tensor) -> None:
        self.tensor = tensor

    def __len__(self) -> int:
        return 24

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.tensor.to_torch(np.unravel_index(index, (2, 3, 4)))  # type: ignore[no-any-return]


@pytest.mark.timeout(60)
def test_a_data_loader_with_two_workers(stored: Path) -> None:
    x = msformat.open(stored)[0, 2].tensor(X)
    assert x.has_data
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        batches = list(torch.utils.data.DataLoader(_Slices(x), batch_size=6, num_workers=2))
    assert torch.equal(torch.cat(batches), torch.from_numpy(VALUES).reshape(-1))


@pytest.mark.timeout(60)
def test_many_threads_read_one_unit(stored: Path) -> None:
    unit = msformat.open(stored)[0, 2]
    barrier = threading.Barrier(8)

    def read(number: int) -> bool:
        barrier.wait()
        return all(np.array_equal(unit[RELU].inputs[0][number % 2], VALUES[number % 2]) for _ in range(20))

    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        assert all(pool.map(read, range(8)))


def test_a_value_is_made_once_for_all_threads() -> None:
    made: list[int] = []
    barrier = threading.Barrier(4)
    value = lazy.Lazy(lambda: made.append(1) or len(made), survives_fork=False)

    def use(_: int) -> Any:
        barrier.wait()
        return value.get()

    with concurrent.futures.ThreadPoolExecutor(4) as pool:
        assert set(pool.map(use, range(4))) == {1}
    assert value.take() == 1
    assert value.get() == 2


def test_a_unit_lives_as_long_as_its_tensors(tree: Path) -> None:
    x = msformat.open(tree)[0, 2].tensor(X)
    shutil.copytree(tree, tree.parent / "copy")
    assert np.array_equal(x.numpy(), VALUES)


# --- size -------------------------------------------------------------------------------------------------------------


def test_the_first_of_100_000_entries_costs_no_other(tmp_path: Path) -> None:
    slots = json.dumps({"input_args": [record(VALUES, Max=1.0)] * 3, "input_kwargs": {}, "output": [record(VALUES)]})
    keys = [f"Functional.some_long_name.{n}.forward" for n in range(100_000)]
    directory = write_unit(tmp_path / "step0" / "rank", {})
    text = '{"task": "statistics", "level": "L1", "framework": "pytorch", "dump_data_dir": null, "data": {'
    (directory / "dump.json").write_text(text + ",\n".join(f'"{key}": {slots}' for key in keys) + "}}")
    size = (directory / "dump.json").stat().st_size
    tracemalloc.start()
    try:
        unit = msformat.open(directory)[0]
        assert unit[keys[0]].inputs[0].shape == (2, 3, 4)
        peak = tracemalloc.get_traced_memory()[1]
        with pytest.raises(msformat.EntryNotFoundError, match="near matches"):
            unit["Functional.some_long_name.77777.forwrad"]
    finally:
        tracemalloc.stop()
    assert size > 40_000_000
    # Decoded, each of the 400,000 tensor records takes some hundred bytes of Python objects.
    # The document itself is one size of it (it is read, not mapped), the index of keys not quite another.
    assert peak < 2.2 * size
