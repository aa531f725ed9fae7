"""``msformat diff`` and the real ``msprobe compare`` give each tensor the same verdict and the same numbers."""

from __future__ import annotations

import math
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch

import msformat
from msformat.compare.rows import columns_of, rows_of
from tests.peer.test_msprobe_compare import compare

pytestmark = [pytest.mark.peer, pytest.mark.timeout(900)]

_SAME_NUMBERS = ("Cosine", "EucDist", "MaxAbsErr", "One Thousandth Err Ratio", "Five Thousandths Err Ratio")


def changed(original: Path, place: Path) -> Path:
    """A copy of a dump in which every fourth tensor is off: by rounding, a little, or much."""
    msformat.convert_dump(original, place, msformat.ConvertOptions(to="files", links=False))
    torch.manual_seed(0)
    for at, file in enumerate(sorted(place.rglob("*.pt"))):
        tensor = torch.load(file)
        if not tensor.is_floating_point() or at % 4 == 3:
            continue
        noise = torch.randn(tensor.shape)
        torch.save(tensor + (tensor * 1e-6, 0.01 * noise, 3 * noise)[at % 4].to(tensor.dtype), file)
    return place


@pytest.mark.parametrize("name", ["torch_8.1.0_mix_tensor", "torch_8.1.0_L0_tensor"])
def test_verdicts_and_numbers_agree(golden: Callable[[str], Path], tmp_path: Path, peer_python: str, name: str) -> None:
    bad = changed(golden(name), tmp_path / "bad")
    theirs = compare(peer_python, bad / "step0" / "rank", golden(name) / "step0" / "rank", tmp_path / "result")
    found = msformat.diff(bad, golden(name), msformat.DiffOptions(steps=frozenset({0})))
    ours = {row["NPU Name"]: row for row in rows_of(found)}
    assert set(columns_of("values")) >= set(theirs[0])
    judged = [row for row in theirs if row["Accuracy Reached or Not"] in ("Yes", "No") and row["NPU Name"] in ours]
    assert {row["Accuracy Reached or Not"] for row in judged} == {"Yes", "No"}
    assert len(judged) > 30
    for row in judged:
        mine = ours[row["NPU Name"]]  # type: ignore[index]
        assert mine["Accuracy Reached or Not"] == row["Accuracy Reached or Not"], row
        for column in _SAME_NUMBERS:
            assert _agree(mine[column], row[column]), (column, mine[column], row)


def _agree(ours: Any, theirs: Any) -> bool:
    """msprobe rounds a cosine to six digits, and writes words where it has no number."""
    try:
        number = float(theirs)
    except (TypeError, ValueError):
        return True
    return math.isnan(number) or math.isclose(float(ours), number, rel_tol=2e-6, abs_tol=2e-6)


def test_rules_of_msprobe_are_its_rules(golden: Callable[[str], Path], tmp_path: Path, peer_python: str) -> None:
    """With ``--rules msprobe`` the verdict itself is the one of msprobe."""
    original = golden("torch_8.1.0_L0_tensor")
    bad = changed(original, tmp_path / "bad")
    theirs = compare(peer_python, bad / "step0" / "rank", original / "step0" / "rank", tmp_path / "result")
    options = msformat.DiffOptions(steps=frozenset({0}), thresholds=msformat.Thresholds(rules="msprobe"))
    verdicts = {tensor.name: tensor.verdict for tensor in msformat.diff(bad, original, options).units[0].tensors}
    for row in theirs:
        if row["Accuracy Reached or Not"] in ("Yes", "No") and row["NPU Name"] in verdicts:
            is_good = verdicts[str(row["NPU Name"])] in ("same", "close")
            assert is_good == (row["Accuracy Reached or Not"] == "Yes"), row
