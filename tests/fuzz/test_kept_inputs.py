"""The inputs that fuzzing kept, and those that were once finds, keep every promise; no fuzzing engine is needed.

``make fuzz`` looks for new ones (docs/fuzzing.md).
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fuzz.guard import run_measured
from tests.fuzz.target import KEPT_CORPUS, KEPT_FINDS, NAMES, kept_inputs, load_target

_MOST_BYTES = 2 << 20


@pytest.mark.parametrize("name", NAMES)
def test_every_promise_is_kept(name: str, tmp_path: Path) -> None:
    target = load_target(name)
    inputs = kept_inputs(name)
    assert len(inputs) >= 10
    for path in inputs:
        print(path)  # shown when it fails
        run_measured(target, path.read_bytes(), tmp_path / "place")


@pytest.mark.parametrize("name", NAMES)
def test_seeds_keep_every_promise(name: str, tmp_path: Path) -> None:
    target = load_target(name)
    seeds = list(target.seeds())
    assert seeds
    for number, data in enumerate(seeds):
        assert len(data) <= target.most_bytes, number
        run_measured(target, data, tmp_path / "place")


def test_what_is_kept_is_small_and_has_a_target() -> None:
    places = [path for root in (KEPT_CORPUS, KEPT_FINDS) for path in root.glob("*") if path.is_dir()]
    assert {path.name for path in places} <= set(NAMES)
    assert sum(path.stat().st_size for place in places for path in place.iterdir()) <= _MOST_BYTES
