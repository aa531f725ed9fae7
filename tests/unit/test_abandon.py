"""Ctrl-C in the middle of a conversion waits for nothing that no thread has begun."""

from __future__ import annotations

import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from msformat.convert import ConvertOptions, convert
from msformat.stores.hdf5_chunks import ChunkFilter
from msformat.stores.zarr_write import ArrayWriter
from tests.small_dumps import temporaries, write_unit

TENSORS = 12
PACKS: dict[str, tuple[type, str]] = {"zarr": (ArrayWriter, "_write_file"), "hdf5": (ChunkFilter, "pack")}


class Gate:
    """Whoever packs waits until the pool of threads is to end, or for ever: then the test fails after a while."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, owner: type, name: str) -> None:
        self.begun: list[int] = []
        self._is_open = threading.Event()
        monkeypatch.setattr(owner, name, self._gated(getattr(owner, name)))
        monkeypatch.setattr(ThreadPoolExecutor, "shutdown", self._opening(ThreadPoolExecutor.shutdown))

    def _gated(self, pack: Callable[..., Any]) -> Callable[..., Any]:
        def packing(*arguments: Any) -> Any:
            # What the main thread packs by itself are the documents.
            if threading.current_thread() is not threading.main_thread():
                self.begun.append(threading.get_ident())
                if not self._is_open.wait(20):
                    self._is_open.set()
            return pack(*arguments)

        return packing

    def _opening(self, shutdown: Callable[..., None]) -> Callable[..., None]:
        def ending(pool: ThreadPoolExecutor, wait: bool = True, *, cancel_futures: bool = False) -> None:
            shutdown(pool, wait=False, cancel_futures=cancel_futures)
            self._is_open.set()
            shutdown(pool, wait=wait, cancel_futures=cancel_futures)

        return ending


@pytest.fixture
def source(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    entries = {f"Functional.relu.{number}.forward": rng.random((300, 400), np.float32) for number in range(TENSORS)}
    return write_unit(tmp_path / "src/step0/rank", entries).parents[1]


@pytest.mark.parametrize("target", ["out", "one"])
@pytest.mark.parametrize("backend", PACKS)
def test_only_what_was_begun_is_waited_for(
    source: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, backend: str, target: str
) -> None:
    gate = Gate(monkeypatch, *PACKS[backend])

    def stop(unit: str, done: int, total: int) -> None:
        if done == total:
            raise KeyboardInterrupt

    place = tmp_path / "place"
    place.mkdir()
    path = place / ("out" if target == "out" else {"zarr": "out.zarr", "hdf5": "out.h5"}[backend])
    options = ConvertOptions(compression="gzip:1", to=backend if target == "out" else None)
    with pytest.raises(KeyboardInterrupt):
        convert(source, path, options, progress=stop)
    # Each of these tensors is a chunk.
    assert 0 < len(gate.begun) == len(set(gate.begun)) < TENSORS
    assert not temporaries(place)
    assert not [found for found in place.rglob("*") if found.is_file()]
