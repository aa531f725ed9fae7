"""The graphs that msprobe draws of two dumps: of one that we exported, and the one it came from, each node equal."""

from __future__ import annotations

import json
import sqlite3
import subprocess
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from tests.peer.test_msprobe_compare import msformat

pytestmark = [pytest.mark.peer, pytest.mark.timeout(600)]

Figures = list[tuple[str, dict[str, Any]]]


@pytest.fixture(params=["hdf5", "zarr"])
def exported(request: pytest.FixtureRequest, tmp_path: Path) -> Callable[[Path], Path]:
    """Where a unit stands after a way through a container and back."""

    def export(original: Path) -> Path:
        msformat("convert", original, tmp_path / "stored", "--to", request.param)
        msformat("convert", tmp_path / "stored", tmp_path / "exported", "--to", "files")
        (unit,) = (tmp_path / "exported" / "step0").iterdir()
        return unit

    return export


def run_msprobe(python: str, *arguments: str | Path) -> None:
    command = [str(Path(python).with_name("msprobe")), *map(str, arguments)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, (done.stdout + done.stderr)[-4000:]


def check(construct: Path, drawn: set[str], figures: Figures) -> None:
    """Every call that has a place is drawn, and every tensor of it has no error."""
    placed = {key for key in json.loads(construct.read_text()) if not key.endswith("parameters_grad")}
    assert placed <= drawn
    measured = [(name, figure) for name, figure in figures if "MaxAbsErr" in figure]
    assert len(measured) > 150
    errors = {name: figure["MaxAbsErr"] for name, figure in measured}
    assert {error for error in errors.values() if error not in ("unsupported", "N/A")} == {"0.0"}


def test_graph_of_8_1_0(
    golden: Callable[[str], Path], exported: Callable[[Path], Path], tmp_path: Path, peer_python: str
) -> None:
    original = golden("torch_8.1.0_mix_tensor")
    unit = exported(original)
    config = tmp_path / "graph.json"
    paths = {"npu_path": str(unit), "bench_path": str(original / "step0" / "rank"), "is_print_compare_log": False}
    config.write_text(json.dumps(paths))
    run_msprobe(peer_python, "-f", "pytorch", "graph", "-i", config, "-o", tmp_path / "graph")
    (page,) = (tmp_path / "graph").glob("*.vis")
    nodes = json.loads(page.read_text())["NPU"]["node"]
    check(unit / "construct.json", set(nodes), list(_figures(nodes.values())))


def test_graph_of_26_2_0(
    golden: Callable[[str], Path], exported: Callable[[Path], Path], tmp_path: Path, peer26_python: str
) -> None:
    original = golden("torch_26.2.0_mix_tensor")
    unit = exported(original)
    reference = original / "step0" / unit.name
    run_msprobe(peer26_python, "graph_visualize", "-tp", unit, "-gp", reference, "-o", tmp_path / "graph")
    (page,) = (tmp_path / "graph").glob("*.vis.db")
    with closing(sqlite3.connect(page)) as file:
        rows = file.execute(
            "SELECT node_name, input_data, output_data FROM tb_nodes WHERE data_source = 'NPU'"
        ).fetchall()
    nodes = [{"input_data": json.loads(given), "output_data": json.loads(made)} for _, given, made in rows]
    check(unit / "construct.json", {name for name, _, _ in rows}, list(_figures(nodes)))


def _figures(nodes: Any) -> Iterator[tuple[str, dict[str, Any]]]:
    for node in nodes:
        for side in ("input_data", "output_data"):
            yield from (node[side] or {}).items()
