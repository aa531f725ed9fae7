"""Plots. Judges: the artists' data against numpy formulas written out here; every figure is really drawn, with Agg."""

from __future__ import annotations

import json
import math
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import matplotlib as mpl
import numpy as np
import pytest
from matplotlib.axes import Axes
from matplotlib.collections import PolyCollection

import msformat
from msformat import plot
from msformat.plotdata import counts_of
from tests.judges import judge, torch_type
from tests.unit.reader_dumps import record, write_tensor, write_unit

torch = judge("torch")
mpl.use("Agg")
KEYS = tuple(f"Module.layers.{n}.Linear.forward.0" for n in range(4))
SHAPES = ((2, 3), (5,), (1, 1), (4, 4))


@pytest.fixture(autouse=True)
def _closed() -> Iterator[None]:
    yield
    from matplotlib import pyplot as plt

    plt.close("all")


def _statistics(step: int, rank: int, layer: int) -> dict[str, float]:
    base = 100.0 * step + 10.0 * rank + layer
    return {"Max": base + 1, "Min": -base, "Mean": base / 7, "Norm": 2 * base + 3}


def _dump(root: Path, change: Callable[[int, int, int, dict[str, Any]], Any] | None = None) -> msformat.Dump:
    """Steps 0, 10 and 15, ranks 0 and 1, four layers; ``change`` spoils statistics."""
    for step in (0, 10, 15):
        for rank in (0, 1):
            data = {}
            for layer, key in enumerate(KEYS):
                found: dict[str, Any] = dict(_statistics(step, rank, layer))
                if change is not None:
                    change(step, rank, layer, found)
                tensor = record(np.zeros(SHAPES[layer], np.float32), **found)
                data[key] = {"input_args": [record(np.zeros(1), Norm=9.0)], "output": [tensor]}
            write_unit(root / f"step{step}" / f"rank{rank}", data, task="statistics")
    return msformat.open(root)


def _lines(axes: Axes) -> dict[str, tuple[list[float], list[float]]]:
    axes.figure.canvas.draw()  # what cannot be drawn fails here
    return {str(line.get_label()): (list(line.get_xdata()), list(line.get_ydata())) for line in axes.get_lines()}  # type: ignore[arg-type]


def test_over_layers(tmp_path: Path) -> None:
    axes = plot.over_layers(_dump(tmp_path))
    lines = _lines(axes)
    assert set(lines) == {f"step{step}/rank{rank}" for step in (0, 10, 15) for rank in (0, 1)}
    assert lines["step10/rank1"] == ([0, 1, 2, 3], [2 * (1010.0 + layer) + 3 for layer in range(4)])
    assert [label.get_text() for label in axes.get_xticklabels()] == list(KEYS)
    assert axes.get_ylabel() == "Norm"
    legend = axes.get_legend()
    assert legend is not None
    assert len(legend.get_texts()) == 6


def test_over_steps(tmp_path: Path) -> None:
    axes = plot.over_steps(_dump(tmp_path), "Max", filter="layers.2")
    assert _lines(axes) == {
        f"{KEYS[2]}, rank{rank}": ([0, 10, 15], [100.0 * step + 10 * rank + 3 for step in (0, 10, 15)])
        for rank in (0, 1)
    }
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0", "10", "15"]


def test_a_unit_a_table_and_axes_of_one_s_own(tmp_path: Path) -> None:
    from matplotlib import pyplot as plt

    dump = _dump(tmp_path)
    mine = plt.figure().add_subplot()
    assert plot.over_layers(dump[10, 1], ax=mine) is mine
    assert list(_lines(mine)) == ["step10/rank1"]
    table = dump.table()
    assert list(_lines(plot.over_layers(table[table["step"] == 15], filter="*layers.[01]*"))) == [
        "step15/rank0",
        "step15/rank1",
    ]
    several = plot.over_layers(dump[0, 0], slot=None)
    assert [label.get_text() for label in several.get_xticklabels()][:2] == [f"{KEYS[0]} input_args.0", KEYS[0]]


def _filled(axes: Axes) -> tuple[list[float], list[float]]:
    """Lower and upper edge of the filled area at each position."""
    area = next(found for found in axes.collections if isinstance(found, PolyCollection))
    vertices = np.asarray(area.get_paths()[0].vertices)
    places = np.unique(vertices[:, 0])
    edges = [vertices[vertices[:, 0] == place, 1] for place in places]
    return [float(edge.min()) for edge in edges], [float(edge.max()) for edge in edges]


def test_envelope_over_layers(tmp_path: Path) -> None:
    axes = plot.envelope(_dump(tmp_path))
    low, high = _filled(axes)
    assert high == [1510.0 + layer + 1 for layer in range(4)]
    assert low == [-(1510.0 + layer) for layer in range(4)]


def test_envelope_over_steps(tmp_path: Path) -> None:
    axes = plot.envelope(_dump(tmp_path), over="steps")
    low, high = _filled(axes)
    assert high == [100.0 * step + 10 + 3 + 1 for step in (0, 10, 15)]
    assert low == [-(100.0 * step + 10 + 3) for step in (0, 10, 15)]
    sizes = [math.prod(shape) for shape in SHAPES]
    expected = [
        np.average([_statistics(step, rank, layer)["Mean"] for rank in (0, 1) for layer in range(4)], weights=sizes * 2)
        for step in (0, 10, 15)
    ]
    x, y = _lines(axes)["mean"]
    assert x == [0, 10, 15]
    assert np.allclose(y, expected, rtol=1e-12)


def _spoil(step: int, rank: int, layer: int, found: dict[str, Any]) -> None:
    if (step, rank, layer) == (10, 1, 1):
        found["Norm"] = found["Max"] = math.nan
    if (step, rank, layer) == (15, 0, 2):
        found["Norm"] = found["Max"] = math.inf
    if (step, rank, layer) == (15, 1, 3):
        found["Norm"] = None


def test_what_is_not_finite_is_marked_where_it_stands(tmp_path: Path) -> None:
    dump = _dump(tmp_path, _spoil)
    lines = _lines(plot.over_layers(dump))
    assert lines["NaN or infinite: 2"][0] == [1, 2]
    assert math.isnan(lines["step10/rank1"][1][1])
    assert math.isnan(lines["step15/rank1"][1][3])  # null: a gap, and no mark
    assert _lines(plot.over_steps(dump))["NaN or infinite: 2"][0] == [10, 15]
    assert _lines(plot.envelope(dump))["NaN or infinite: 2"][0] == [1, 2]
    assert all(np.isfinite(_filled(plot.envelope(dump, over="steps"))[1]))


def test_where_nan_begins(tmp_path: Path) -> None:
    axes = plot.nonfinite_map(_dump(tmp_path, _spoil))
    axes.figure.canvas.draw()
    shown = np.ma.filled(axes.get_images()[0].get_array(), math.nan)
    assert shown.tolist() == [[0, 0, 0], [0, 2, 0], [0, 0, 1], [0, 0, 0]]
    assert [label.get_text() for label in axes.get_xticklabels()] == ["0", "10", "15"]
    assert [label.get_text() for label in axes.get_yticklabels()] == [KEYS[1], KEYS[2]]


def test_no_nan_is_lost_among_many_entries(tmp_path: Path) -> None:
    """One of 30,000 entries, which is less than a line of any screen."""
    keys = [f"Torch.mul.{n}.forward" for n in range(30_000)]
    bad = 17_321
    zero, nan = record(np.zeros(1), Max=0.0), record(np.zeros(1), Max=math.nan)
    data = {key: {"output": [nan if n == bad else zero]} for n, key in enumerate(keys)}
    write_unit(tmp_path / "step0" / "rank0", data)
    axes = plot.nonfinite_map(msformat.open(tmp_path))
    axes.figure.canvas.draw()
    shown = np.ma.filled(axes.get_images()[0].get_array(), math.nan)
    assert shown.shape == (500, 1)
    assert np.flatnonzero(shown == 2).tolist() == [bad // 60]
    assert [label.get_text() for label in axes.get_yticklabels()] == [keys[bad]]
    assert "30000 entries, 60 to a line" in axes.get_ylabel()


def test_names_of_neighbours_do_not_cover_each_other_and_nan_goes_first(tmp_path: Path) -> None:
    keys = [f"Torch.mul.{n}.forward" for n in range(400)]
    values = {100: math.inf, 101: math.inf, 102: math.nan, 103: math.nan, 300: math.inf, 301: math.inf}
    data = {key: {"output": [record(np.zeros(1), Max=values.get(n, 0.0))]} for n, key in enumerate(keys)}
    write_unit(tmp_path / "step0" / "rank0", data)
    axes = plot.nonfinite_map(msformat.open(tmp_path))
    axes.figure.canvas.draw()
    boxes = [label.get_window_extent() for label in axes.get_yticklabels()]
    assert [label.get_text() for label in axes.get_yticklabels()] == [keys[102], keys[300]]
    assert not boxes[0].overlaps(boxes[1])


# --- histograms ------------------------------------------------------------------------------------------------------


def _tensor(root: Path, values: Any) -> msformat.Tensor:
    name = "Torch.mul.0.forward.output.0"
    is_torch = not isinstance(values, np.ndarray)
    meta = {
        "type": "torch.Tensor",
        "dtype": str(values.dtype) if is_torch else f"torch.{values.dtype}",
        "shape": list(values.shape),
        "data_name": f"{name}.{'pt' if is_torch else 'npy'}",
    }
    unit = write_unit(root / "step0" / "rank0", {"Torch.mul.0.forward": {"output": [meta]}})
    if is_torch:
        (unit / "dump_tensor_data").mkdir()
        torch.save(values, unit / "dump_tensor_data" / meta["data_name"])
    else:
        write_tensor(unit, meta["data_name"], values)
    return msformat.open(root)[0]["Torch.mul.0.forward"].outputs[0]


def _bars(axes: Axes) -> tuple[Any, Any]:
    axes.figure.canvas.draw()
    from matplotlib.patches import StepPatch

    values, edges, _ = next(found for found in axes.patches if isinstance(found, StepPatch)).get_data()
    return values, edges


@pytest.mark.parametrize("dtype", ["float32", "float64", "float16", "int64", "uint8", "bool"])
def test_histogram(tmp_path: Path, dtype: str) -> None:
    values = (np.random.default_rng(3).standard_normal((7, 31, 5)) * 3).astype(dtype)
    counts, edges = _bars(plot.histogram(_tensor(tmp_path, values), bins=16))
    expected = np.histogram(values.astype(np.float64), 16)
    assert np.allclose(edges, expected[1], rtol=1e-12)
    assert counts.sum() == values.size
    assert np.array_equal(counts, np.histogram(values.astype(np.float64), edges)[0])


def test_histogram_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("msformat.plotdata._PIECE", 7)
    values = np.random.default_rng(4).standard_normal(100).astype(np.float32)
    counts, edges = _bars(plot.histogram(_tensor(tmp_path, values), bins=10))
    assert np.array_equal(counts, np.histogram(values.astype(np.float64), edges)[0])


@pytest.mark.parametrize("name", ["bfloat16", "float8_e5m2"])
def test_histogram_of_what_numpy_lacks(tmp_path: Path, name: str) -> None:
    dtype = torch_type(name, in_files=True)
    values = torch.linspace(-2, 5, 300).to(dtype)
    axes = plot.histogram(_tensor(tmp_path, values), bins=8, log=True)
    counts, edges = _bars(axes)
    assert np.array_equal(counts, np.histogram(values.float().numpy().astype(np.float64), edges)[0])
    assert axes.get_yscale() == "log"
    assert axes.get_xlabel() == str(dtype)


def test_histogram_of_complex_numbers(tmp_path: Path) -> None:
    values = np.array([3 + 4j, 0, -1j], np.complex64)
    counts, edges = _bars(plot.histogram(_tensor(tmp_path, values), bins=5))
    assert (edges[0], edges[-1]) == (0.0, 5.0)
    assert counts.tolist() == [1, 1, 0, 0, 1]


def test_histogram_says_what_it_does_not_show(tmp_path: Path) -> None:
    values = np.array([1, np.nan, np.inf, np.nan, -np.inf, 2, np.nan], np.float32)
    axes = plot.histogram(_tensor(tmp_path / "a", values), bins=4)
    assert _bars(axes)[0].sum() == 2
    assert axes.texts[0].get_text() == "NaN: 3\n+inf: 1\n-inf: 1"
    nothing = plot.histogram(_tensor(tmp_path / "b", np.full(3, np.nan, np.float32)))
    assert nothing.texts[0].get_text() == "NaN: 3\nno finite values"
    empty = plot.histogram(_tensor(tmp_path / "c", np.zeros((0, 3), np.float32)))
    assert empty.texts[0].get_text() == "no finite values"


@pytest.mark.parametrize(
    "values",
    [np.array([-1.7e308, 1.7e308]), np.full(3, 1.7e308), np.full(2, 5e-324), np.zeros(()), np.array([0, 2**63 - 1])],
)
def test_counts_at_the_ends_of_float64(tmp_path: Path, values: np.ndarray) -> None:
    """Where matplotlib has no axis any more."""
    found = counts_of(_tensor(tmp_path, values), 4)
    assert found.counts.sum() == values.size
    assert np.all(np.isfinite(found.edges))
    assert np.all(np.diff(found.edges / 2) >= 0)


def test_histogram_without_values(tmp_path: Path) -> None:
    tensor = next(iter(_dump(tmp_path)[0, 0].tensors()))
    with pytest.raises(msformat.TensorNotFoundError, match="task 'statistics' saved no data"):
        plot.histogram(tensor)


# --- strangers, real dumps, other machines ---------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["$\\frac{$", "_hidden", "\\input{/etc/passwd}", "a\x1b[31m\n\u202eb", "x" * 100_000])
def test_names_of_strangers_are_drawn_as_they_are(tmp_path: Path, name: str) -> None:
    """No mathematics, no TeX, no control characters, no figure of a mile."""
    values = np.ones(3, np.float32)
    key = f"Torch.{name}.0.forward"
    meta = {**record(values, "t.npy", Norm=1.0, Max=math.nan, Min=0.0, Mean=0.5), "dtype": f"torch.float32 {name}"}
    unit = write_unit(tmp_path / "step0" / "rank0", {name: {"output": [meta]}, key: {"output": [meta]}})
    write_tensor(unit, "t.npy", values)
    dump = msformat.open(tmp_path)
    with mpl.rc_context({"text.usetex": True}):
        made = [plot.over_layers(dump), plot.over_steps(dump), plot.envelope(dump), plot.nonfinite_map(dump)]
        made.append(plot.histogram(dump[0][key].outputs[0]))
    for axes in made:
        texts = [axes.title, axes.xaxis.label, *axes.get_xticklabels(), *axes.get_yticklabels()]
        legend = axes.get_legend()
        texts += legend.get_texts() if legend is not None else []
        for text in texts:
            if "Torch" in text.get_text() or name[:3] in text.get_text():
                assert (text.get_usetex(), text.get_parse_math()) == (False, False)
                assert len(text.get_text()) < 120
                assert not set("\x1b\n\u202e") & set(text.get_text())
    for axes in made[:4]:
        for label in (*axes.get_xticklabels(), *axes.get_yticklabels(), *axes.texts):
            label.set_usetex(False)
        axes.xaxis.label.set_usetex(False)
    steps = plot.over_steps(dump)
    legend = steps.get_legend()
    assert legend is not None
    assert len(legend.get_texts()) == 2
    steps.figure.canvas.draw()


@pytest.mark.parametrize("name", ["torch_8.1.0_mix_tensor", "mindspore_8.1.0_mix_tensor"])
def test_real_dumps(golden: Callable[[str], Path], name: str) -> None:
    root = golden(name)
    dump = msformat.open(root)
    unit = dump[0]
    document = json.loads((root / unit.key.path / "dump.json").read_text())["data"]
    outputs = {key: entry["output"] for key, entry in document.items() if "output" in entry and ".forward" in key}
    expected = {
        key: found[0]["Norm"] for key, found in outputs.items() if len(found) == 1 and found[0] and "Norm" in found[0]
    }
    axes = plot.over_layers(unit, filter=".forward")
    x, y = _lines(axes)[unit.label]
    names = [label.get_text() for label in plot.over_layers(unit, filter=next(iter(expected))).get_xticklabels()]
    assert names == [next(iter(expected))]
    drawn = [value for value in y if not math.isnan(value)]
    assert set(expected.values()) - {None} <= set(drawn)
    assert x == sorted(x)
    for function in (plot.envelope, plot.nonfinite_map):
        function(dump).figure.canvas.draw()


def test_what_cannot_be_drawn(tmp_path: Path) -> None:
    dump = _dump(tmp_path, lambda step, rank, layer, found: found.clear())
    with pytest.raises(msformat.FormatError, match="none of 24 tensors has a Norm"):
        plot.over_layers(dump)
    with pytest.raises(msformat.FormatError, match="have no statistics"):
        plot.nonfinite_map(dump, slot="output")
    with pytest.raises(msformat.FormatError, match="matches filter 'nowhere'"):
        plot.over_steps(dump, filter="nowhere")
    with pytest.raises(msformat.FormatError, match="no statistic 'Median': there are Max, Min, Mean, Norm"):
        plot.over_steps(dump, "Median")


def test_a_thousand_lines_are_refused(tmp_path: Path) -> None:
    table = _dump(tmp_path).table()[:1]
    columns = {name: [table[0][at]] * 1001 for at, name in enumerate(table.columns)}
    many = msformat.Table(columns | {"entry": [f"a{n}" for n in range(1001)], "slot": ["output"] * 1001})
    with pytest.raises(msformat.FormatError, match="1001 lines show nothing"):
        plot.over_steps(many)


def test_without_a_screen(tmp_path: Path) -> None:
    """A process that never chose a backend, as on a server."""
    _dump(tmp_path / "d")
    code = "import msformat; msformat.plot.over_layers(msformat.open('d')).figure.savefig('p.png')"
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=tmp_path, env={"PATH": "", "HOME": str(tmp_path)}, check=False
    )
    assert done.returncode == 0
    assert (tmp_path / "p.png").read_bytes().startswith(b"\x89PNG")


def test_a_missing_matplotlib_is_named_with_its_extra(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    dump = _dump(tmp_path)
    monkeypatch.setitem(sys.modules, "matplotlib", None)
    monkeypatch.setitem(sys.modules, "matplotlib.pyplot", None)
    with pytest.raises(msformat.BackendMissingError, match=r"needs matplotlib.*msformat\[plot\]"):
        plot.over_layers(dump)
