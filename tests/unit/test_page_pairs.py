"""Pages about two dumps: what they show is what numpy says of the arrays, and what the comparison found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import msformat
from msformat.cli import main
from msformat.compare.run import diff
from msformat.pages.pairs import ComparisonPages
from tests.unit.page_dumps import BLOCK, CALL, GRADIENT, HEAD, NORM, Parsed, write_network
from tests.unit.test_pages import texts, unpack

VERDICTS = ["same", "close", "unknown", "only_a", "only_b", "unreadable", "different"]


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """A norm that gives 1.01 times what it should, and the reference; two steps."""
    return write_network(tmp_path / "bad", steps=2, fault=1.01), write_network(tmp_path / "good", steps=2)


def compared(a: Path, b: Path, out: Path, *options: str) -> tuple[int, dict[str, Any]]:
    code = main(["report", str(a), str(b), "-o", str(out), *options])
    return code, Parsed(out.read_text("utf-8")).data()


def test_the_headline_is_that_of_diff(
    pair: tuple[Path, Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, data = compared(*pair, tmp_path / "a.html")
    assert code == 0
    first = data["about"]["overviews"][0]["first"]
    found = msformat.diff(*pair).divergence
    assert found is not None
    assert found.tensor is not None
    assert first["key"] == found.entry.key == CALL
    assert (first["slot"], first["path"], first["module"]) == ("output", "0", "layers.0.norm")
    assert first["reasons"] == list(found.reasons)
    assert first["stack"][0].startswith("File model.py, line 7")
    assert first["parents"] == [NORM, BLOCK]
    assert f"they part first at {CALL} output.0 in step0/rank0" in capsys.readouterr().out


def test_numbers_of_both_sides(pair: tuple[Path, Path], tmp_path: Path) -> None:
    _, data = compared(*pair, tmp_path / "a.html")
    unit = data["unit-0"]
    columns = unit["columns"]
    assert texts(unit, unit["keys"]) == [BLOCK, NORM, CALL, HEAD, GRADIENT]
    a, b = (np.load(side / f"step0/rank0/dump_tensor_data/{CALL}.output.0.npy").astype(np.float64) for side in pair)
    row = unpack(unit["owners"]).tolist().index(2) + 1
    expected = {
        "severity": np.linalg.norm(a - b) / np.linalg.norm(b),
        "cosine": (a * b).sum() / np.linalg.norm(a) / np.linalg.norm(b),
        "max_abs": np.abs(a - b).max(),
        "max": a.max(),
        "norm": np.linalg.norm(a),
        "b_max": b.max(),
        "b_norm": np.linalg.norm(b),
    }
    for name, value in expected.items():
        assert unpack(columns[name])[row] == pytest.approx(value, rel=1e-5), name
    assert VERDICTS[unpack(columns["verdict"])[row]] == "different"
    assert VERDICTS[unpack(columns["verdict"])[row - 1]] == "same"
    overview = data["about"]["overviews"][0]
    # Outputs of the call, the norm and the block; input and output of the head; the gradient.
    assert overview["differing"] == 6
    assert overview["verdicts"]["same"] == 3
    weights = [np.load(side / f"step0/rank0/dump_tensor_data/{GRADIENT}.weight.npy") for side in pair]
    assert overview["gradientNorm"] == pytest.approx(np.linalg.norm(weights[0]), rel=1e-6)
    assert overview["gradientNormB"] == pytest.approx(np.linalg.norm(weights[1]), rel=1e-6)


def test_dumps_that_are_the_same(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    a, b = write_network(tmp_path / "a"), write_network(tmp_path / "b")
    code, data = compared(a, b, tmp_path / "a.html")
    assert code == 0
    assert data["about"]["overviews"][0]["first"] is None
    assert data["about"]["overviews"][0]["firstBits"] is None
    assert "nothing differs" in capsys.readouterr().out


def test_within_the_thresholds_the_first_bit_is_still_named(pair: tuple[Path, Path], tmp_path: Path) -> None:
    _, data = compared(*pair, tmp_path / "a.html", "--rtol", "0.5")
    overview = data["about"]["overviews"][0]
    assert overview["first"] is None
    assert overview["firstBits"]["key"] == CALL


def test_what_one_side_lacks(tmp_path: Path) -> None:
    a, b = write_network(tmp_path / "a"), write_network(tmp_path / "b", steps=2)
    document = a / "step0/rank0/dump.json"
    content = json.loads(document.read_text())
    del content["data"][NORM]
    document.write_text(json.dumps(content))
    code, data = compared(a, b, tmp_path / "a.html")
    assert code == 1
    unit = data["unit-0"]
    keys = texts(unit, unit["keys"])
    assert VERDICTS[unpack(unit["nodes"]["verdict"])[keys.index(NORM)]] == "only_b"
    row = unpack(unit["owners"]).tolist().index(keys.index(NORM))
    assert texts(unit, unit["columns"]["dtype"])[row] == ""
    assert texts(unit, unit["columns"]["b_dtype"])[row] == "torch.float32"
    assert data["about"]["overviews"][1]["problem"].lower() == "only in b"


def test_an_argument_that_differs(tmp_path: Path) -> None:
    roots = [write_network(tmp_path / name) for name in "ab"]
    for root, epsilon in zip(roots, (1e-2, 1e-5), strict=True):
        document = root / "step0/rank0/dump.json"
        content = json.loads(document.read_text())
        content["data"][CALL]["input_args"].append({"type": "float", "value": epsilon})
        document.write_text(json.dumps(content))
    _, data = compared(*roots, tmp_path / "a.html")
    first = data["about"]["overviews"][0]["first"]
    assert (first["key"], first["scalar"], first["reasons"]) == (CALL, "input.1", ["0.01 in A, 1e-05 in B"])
    assert data["unit-0"]["details"]["scalars"][0][:2] == [CALL, "input.1"]


def test_histograms_and_steps_of_both(pair: tuple[Path, Path]) -> None:
    source = ComparisonPages(diff(*pair), *map(msformat.open, pair))
    page = source.unit(0)
    row = page.owners.tolist().index(page.keys.index(CALL)) + 1
    sides = source.histograms(0, row)
    for side, root in zip(sides, pair, strict=True):
        values = np.load(root / f"step0/rank0/dump_tensor_data/{CALL}.output.0.npy")
        assert (side["low"], side["high"], side["elements"]) == (values.min(), values.max(), 12)
    points = source.series(0, row)
    assert [point["step"] for point in points] == [0, 1]
    for point in points:
        for prefix, root in zip(("", "b_"), pair, strict=True):
            values = np.load(root / f"step{point['step']}/rank0/dump_tensor_data/{CALL}.output.0.npy")
            assert point[f"{prefix}norm"] == pytest.approx(np.linalg.norm(values.astype(np.float64)))


def test_nothing_to_compare_is_one_line(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_network(tmp_path / "a")
    assert main(["report", str(root), str(tmp_path / "none"), "-o", str(tmp_path / "a.html")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1
    assert not (tmp_path / "a.html").exists()
