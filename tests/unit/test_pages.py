"""Pages about a dump and about two: judged by html.parser and json, by numpy, and by formulas written out here."""

from __future__ import annotations

import base64
import hashlib
import json
import re
import shutil
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ml_dtypes
import numpy as np
import pytest

import msformat
from msformat.cli import main
from msformat.pages import histogram as histograms
from msformat.pages.dumps import DumpPages
from msformat.pages.health import Health, health_of
from msformat.pages.histogram import histogram
from msformat.pages.packing import packed, script_json
from msformat.pages.page import write_page
from msformat.pages.unitpage import encode_unit, event_times, gradients_last, parents_of
from tests.unit.page_dumps import BLOCK, CALL, GRADIENT, HEAD, HOSTILE, NORM, Parsed, slots, write_network
from tests.unit.reader_dumps import record, write_tensor, write_unit

PAGES = Path(msformat.__file__).parent / "pages"
SCRIPTS = sorted(PAGES.glob("*.js"))
REAL = ("torch_8.1.0_mix_tensor", "torch_1.2.2_debug_tensor", "torch_26.2.0_mix_md5", "mindspore_8.1.0_L0_tensor")
# Ways from text to markup or code, and to other machines; what would end the block that a script stands in.
FORBIDDEN = (
    "innerHTML", "outerHTML", "insertAdjacentHTML", "document.write", "eval(", "new Function", "import(", "</script",
    "<!--", "XMLHttpRequest", "WebSocket", "localStorage",
)  # fmt: skip


def unpack(column: dict[str, Any]) -> np.ndarray:
    """A packed column, as its description says."""
    return np.tile(np.frombuffer(base64.b64decode(column["data"]), dtype=f"<{column['type']}"), column.get("repeat", 1))


def texts(unit: dict[str, Any], column: dict[str, Any]) -> list[str]:
    return [unit["texts"][code] for code in unpack(column["text"])]


def report(*arguments: object, out: Path) -> tuple[int, Parsed]:
    """Run the command and read its page."""
    code = main(["report", *map(str, arguments), "-o", str(out)])
    return code, Parsed(out.read_text("utf-8"))


# --- columns ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        ([], "u1"),
        ([0, 255], "u1"),
        ([-1, 3], "i1"),
        ([256], "u2"),
        ([-1, 200], "i2"),
        ([70000], "u4"),
        ([-1, 70000], "i4"),
        ([0.5, float("nan"), float("inf"), float("-inf")], "f4"),
        ([1e300], "f8"),
        ([float("nan")] * 3, "f4"),
        ([-7] * 5, "i1"),
        ([1e-300, 1.0], "f8"),
    ],
)
def test_columns_are_narrow_and_say_the_same(values: list[float], kind: str) -> None:
    array = np.array(values, dtype=np.float64 if kind[0] == "f" else np.int64)
    column = packed(array)
    assert column["type"] == kind
    np.testing.assert_allclose(unpack(column), array, rtol=1e-6)


@pytest.mark.parametrize("text", HOSTILE)
def test_json_in_a_script_block(text: str) -> None:
    block = script_json({"a": text})
    assert block.isascii()
    assert not set("<>&") & set(block)
    assert json.loads(block) == {"a": text}


# --- health ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("high", "low", "mean", "norm", "dtype", "health"),
    [
        (1, -1, 0, 1, "torch.float32", Health.FINE),
        (0, 0, 0, 0, "torch.float32", Health.ZERO),
        (np.nan, np.nan, np.nan, np.nan, "torch.float32", Health.NAN),
        (np.inf, 0, np.inf, np.inf, "torch.float32", Health.INFINITE),
        (np.inf, -np.inf, np.nan, np.inf, "torch.float32", Health.INFINITE),
        (1, -np.inf, -np.inf, np.inf, "torch.float32", Health.MASKED),
        (-np.inf, -np.inf, -np.inf, np.inf, "torch.float32", Health.INFINITE),
        (40000, -1, 0, 50000, "torch.float16", Health.NEAR),
        (40000, -1, 0, 50000, "Float16", Health.NEAR),
        (40000, -1, 0, 50000, "torch.bfloat16", Health.FINE),
        (1, -65504, 0, 65504, "torch.float16", Health.FINE),
        (1, -65000, 0, 65504, "torch.float16", Health.NEAR),
        (300, -1, 0, 300, "torch.float8_e4m3fn", Health.NEAR),
        (2**62, 0, 0, 2**62, "torch.int64", Health.FINE),
        (1, -1, 0, np.inf, "torch.float16", Health.INFINITE),
        (1, 0, None, None, "torch.bool", Health.FINE),
        (None, None, None, np.nan, "torch.float32", Health.NAN),
        (None, None, None, None, "torch.float32", Health.UNKNOWN),
        (1, 1, 1, 1, "whatever", Health.FINE),
    ],
)
def test_health(high: Any, low: Any, mean: Any, norm: Any, dtype: str, health: Health) -> None:
    given = {"Max": high, "Min": low, "Mean": mean, "Norm": norm}
    statistics = {
        name: np.ma.MaskedArray([np.nan if value is None else value], mask=[value is None], dtype=np.float64)
        for name, value in given.items()
    }
    assert health_of(statistics, np.array([dtype], dtype=object)).tolist() == [health]


def test_minus_infinity_is_no_mask_in_a_backward_or_a_parameter(tmp_path: Path) -> None:
    values = {"Max": 1.0, "Min": float("-inf"), "Mean": float("-inf"), "Norm": float("inf")}
    bad = record(np.zeros(2, np.float32), None, **values)
    data = {"Functional.mul.0.forward": slots(bad, bad), "Functional.mul.0.backward": {"input": [bad], "output": [bad]}}
    write_unit(tmp_path / "step0" / "rank0", data)
    dump = msformat.open(tmp_path)
    assert DumpPages(dump, dump.units).unit(0).columns["health"].tolist() == [3, 3, 5, 5]


# --- the tree --------------------------------------------------------------------------------------------------------


def test_begin_and_end_of_calls() -> None:
    """a(b c(d)) e: a+ b+ b- c+ d+ d- c- a- e+ e-."""
    depths = np.array([0, 1, 1, 2, 0])
    begins, ends = event_times(depths)
    assert begins.tolist() == [0, 1, 3, 4, 8]
    assert ends.tolist() == [7, 2, 6, 5, 9]
    assert parents_of(depths).tolist() == [-1, 0, 0, 2, -1]


def test_gradients_go_last() -> None:
    nodes = [(0, "Module.a.A.parameters_grad"), (0, "b"), (1, "Module.c.C.parameters_grad"), (0, "d.parameters_grad.0")]
    keys, depths = gradients_last(nodes)
    assert keys == ["b", "Module.c.C.parameters_grad", "Module.a.A.parameters_grad", "d.parameters_grad.0"]
    assert depths.tolist() == [0, 1, 0, 0]


# --- a page about one dump -------------------------------------------------------------------------------------------


def test_what_a_page_holds(tmp_path: Path) -> None:
    root = write_network(tmp_path / "net", steps=2)
    code, page = report(root, out=tmp_path / "a.html")
    assert code == 0
    about, unit = page.data()["about"], page.data()["unit-0"]
    assert about["labels"] == ["step0/rank0", "step1/rank0"]
    assert [row["tensors"] for row in about["overviews"]] == [9, 9]
    assert texts(unit, unit["keys"]) == [BLOCK, NORM, CALL, HEAD, GRADIENT]
    assert unpack(unit["depths"]).tolist() == [0, 1, 2, 0, 0]
    assert unpack(unit["nodes"]["order"]).tolist() == [2, 1, 0, 3, 4]
    assert unpack(unit["owners"]).tolist() == [0, 0, 1, 1, 2, 2, 3, 3, 4]
    table = msformat.open(root)[0].table()
    order = [table["entry"].tolist().index(key) for key in (BLOCK, NORM, CALL, HEAD)]
    rows = np.array([row for first in order for row in (first, first + 1)] + [8])
    for name in ("Max", "Min", "Mean", "Norm"):
        np.testing.assert_allclose(unpack(unit["columns"][name.lower()]), table.numbers(name)[rows].data, rtol=1e-6)
    assert texts(unit, unit["columns"]["shape"]) == ["[3, 4]"] * 9
    assert unit["frames"][0] == "File model.py, line 7, in forward, x = self.norm(x)"
    assert unpack(unit["stackOf"][0]).tolist() == [0, 0, 0, 0, -1]


def test_the_gradient_norm_of_a_step(tmp_path: Path) -> None:
    root = write_network(tmp_path / "net")
    _, page = report(root, out=tmp_path / "a.html")
    weight = np.load(root / f"step0/rank0/dump_tensor_data/{GRADIENT}.weight.npy")
    assert page.data()["about"]["overviews"][0]["gradientNorm"] == pytest.approx(np.linalg.norm(weight))


def test_the_first_nan_is_that_of_the_call_and_not_of_the_module_around_it(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = write_network(tmp_path / "net", fault=float("nan"))
    _, page = report(root, out=tmp_path / "a.html")
    first = page.data()["about"]["overviews"][0]["first"]
    assert (first["key"], first["slot"], first["path"], first["health"]) == (CALL, "output", "0", "nan")
    assert first["inputsFine"] is True
    assert first["parents"] == [NORM, BLOCK]
    assert first["stack"][0].startswith("File model.py, line 7")
    assert first["before"] == []
    assert f"first NaN at {CALL} output.0 in step0/rank0" in capsys.readouterr().out


def test_a_page_asks_nobody_for_anything(tmp_path: Path) -> None:
    _, page = report(write_network(tmp_path / "net"), out=tmp_path / "a.html")
    for tag, attributes in page.elements:
        assert not {"src", "href", "action", "style", "srcset"} & set(attributes), tag
        assert not [name for name in attributes if name.startswith("on")], tag
    policy = next(
        str(found["content"]) for found, _ in page.all("meta") if found.get("http-equiv") == "Content-Security-Policy"
    )
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'"
    assert "connect-src" not in rules
    [script] = [text for attributes, text in page.all("script") if not attributes]
    [(_, style)] = page.all("style")
    for text, rule in ((script, "script-src"), (style, "style-src")):
        assert rules[rule] == f"'sha256-{base64.b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"


def test_real_dumps_make_pages(golden: Callable[[str], Path], tmp_path: Path) -> None:
    for name in (
        "torch_8.1.0_mix_tensor",
        "torch_1.2.2_debug_tensor",
        "torch_26.2.0_mix_md5",
        "mindspore_8.1.0_L0_tensor",
    ):
        code, page = report(golden(name), out=tmp_path / "a.html")
        dump = msformat.open(golden(name))
        assert code == 0
        data = page.data()
        for at, unit in enumerate(dump):
            assert sorted(texts(data[f"unit-{at}"], data[f"unit-{at}"]["keys"])) == sorted(
                node.key for node in unit.tree()
            )
            assert len(unpack(data[f"unit-{at}"]["owners"])) == len(unit.table())


def test_a_structure_dump_has_a_tree(
    golden: Callable[[str], Path], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    code, page = report(golden("torch_8.1.0_L1_structure"), out=tmp_path / "a.html")
    unit = page.data()["unit-0"]
    assert code == 0
    assert "no tensors were recorded" in capsys.readouterr().out
    assert len(unpack(unit["depths"])) > 10
    assert set(unpack(unit["nodes"]["order"]).tolist()) == {-1}
    assert unit["frames"]


@pytest.mark.parametrize("filters", [(), ("--filter", "no such name")])
def test_an_empty_page_is_no_clean_bill(
    filters: tuple[str, ...], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = write_network(tmp_path / "net") if filters else write_unit(tmp_path / "net/step0/rank0", {}).parents[1]
    assert report(root, *filters, out=tmp_path / "a.html")[0] == 2
    assert "nothing was recorded, or nothing that was asked for" in capsys.readouterr().out


def test_a_filter_keeps_what_is_around(tmp_path: Path) -> None:
    _, page = report(write_network(tmp_path / "net"), "--filter", "layer_norm", out=tmp_path / "a.html")
    unit = page.data()["unit-0"]
    assert texts(unit, unit["keys"]) == [BLOCK, NORM, CALL]


def test_steps_are_chosen_and_a_wrong_one_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_network(tmp_path / "net", steps=3)
    _, page = report(root, "--steps", "1-2", out=tmp_path / "a.html")
    assert page.data()["about"]["labels"] == ["step1/rank0", "step2/rank0"]
    assert main(["report", str(root), "--steps", "7", "-o", str(tmp_path / "b.html")]) == 2
    assert "no unit of the wanted steps and ranks; there are step0/rank0" in capsys.readouterr().err
    assert not (tmp_path / "b.html").exists()


def test_a_unit_that_cannot_be_read_is_named_and_the_others_shown(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root = write_network(tmp_path / "net", steps=2)
    (root / "step0/rank0/dump.json").write_text("no json")
    code, page = report(root, out=tmp_path / "a.html")
    assert code == 1
    assert "step0/rank0" in capsys.readouterr().err
    assert "problem" in page.data()["about"]["overviews"][0]
    assert set(page.data()) == {"about", "unit-1"}
    (root / "step1/rank0/dump.json").write_text("[]")
    capsys.readouterr()
    assert report(root, out=tmp_path / "a.html")[0] == 2
    assert "no NaN" not in capsys.readouterr().out


def test_an_unfinished_dump_says_so(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_network(tmp_path / "net")
    document = root / "step0/rank0/dump.json"
    document.write_text(document.read_text()[:-400])
    code, page = report(root, out=tmp_path / "a.html")
    assert code == 1
    assert "step0/rank0: not complete: " in capsys.readouterr().err
    assert page.data()["unit-0"]["notes"][0].startswith("not complete: ")
    assert page.data()["about"]["overviews"][0]["notes"] == page.data()["unit-0"]["notes"]


def test_the_page_is_written_whole_or_not_at_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = write_network(tmp_path / "net")
    assert main(["report", str(root), "-o", str(tmp_path / "nowhere" / "a.html")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


# --- when there is no room -------------------------------------------------------------------------------------------


def _many(root: Path, calls: int) -> Path:
    fine = record(np.zeros(2, np.float32), None, Max=1.0, Min=-1.0, Mean=0.0, Norm=1.0)
    bad = {**fine, "Max": float("nan"), "Min": float("nan"), "Mean": float("nan"), "Norm": float("nan")}
    data = {f"Functional.op{n}.0.forward": slots(fine, bad if n == calls - 5 else fine) for n in range(calls)}
    for step in (0, 1):
        write_unit(root / f"step{step}" / "rank0", data if step else {key: slots(fine, fine) for key in data})
    return root


def test_a_page_is_bounded_and_says_what_is_left_out(tmp_path: Path) -> None:
    dump = msformat.open(_many(tmp_path / "d", 4000))
    done = write_page(DumpPages(dump, dump.units), tmp_path / "a.html", most_bytes=150_000)
    page = Parsed((tmp_path / "a.html").read_text())
    data = page.data()
    # The unit with the NaN comes first, and its entry stays; of the other there is no room.
    assert set(data) == {"about", "unit-1"}
    unit = data["unit-1"]
    keys = texts(unit, unit["keys"])
    assert "Functional.op3995.0.forward" in keys
    assert unit["leftOut"] == 4000 - len(keys) > 0
    assert data["about"]["leftOut"] == list(done.left_out)
    assert [text.split(":")[0] for text in done.left_out] == ["step1/rank0", "step0/rank0"]
    assert done.size < 150_000 + 120_000  # the script and the style


def test_the_command_says_what_is_left_out(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    root = _many(tmp_path / "d", 12000)
    assert report(root, "--size", "1", out=tmp_path / "a.html")[0] == 1
    assert "no room in the page: step0/rank0: left out whole" in capsys.readouterr().err
    assert report(root, out=tmp_path / "b.html")[0] == 0


def test_a_size_of_nothing_is_refused(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        main(["report", "a", "--size", "0", "-o", str(tmp_path / "c.html")])
    assert "'0' is no size" in capsys.readouterr().err


def test_what_is_kept_of_a_deep_tree_keeps_its_parents(tmp_path: Path) -> None:
    root = write_network(tmp_path / "net", fault=float("nan"))
    dump = msformat.open(root)
    unit = encode_unit(DumpPages(dump, dump.units).unit(0), most=3)
    assert texts(unit, unit["keys"]) == [BLOCK, NORM, CALL]
    assert unit["leftOut"] == 2
    assert unpack(unit["owners"]).tolist() == [0, 0, 1, 1, 2, 2]


# --- histograms ------------------------------------------------------------------------------------------------------


def _tensor(tmp_path: Path, values: np.ndarray, dtype: str) -> msformat.Tensor:
    entry = {**record(values, "x.0.debug.npy"), "dtype": dtype}
    unit = write_unit(tmp_path / "step0" / "rank0", {"x.0.debug": entry}, name="debug.json")
    write_tensor(unit, "x.0.debug.npy", values)
    return next(iter(msformat.open(tmp_path)[0, 0].tensors()))


@pytest.mark.parametrize("piece", [1 << 24, 64])
def test_a_histogram_is_numpys(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, piece: int) -> None:
    monkeypatch.setattr(histograms, "_PIECE", piece)
    values = np.random.default_rng(3).normal(size=(3, 5, 17)).astype(np.float32)
    values[0, 0, :6] = [np.nan, np.inf, -np.inf, 0.0, -0.0, np.inf]
    found = histogram(_tensor(tmp_path, values, "torch.float32"))
    finite = values[np.isfinite(values)].astype(np.float64)
    assert (found["nan"], found["posinf"], found["neginf"], found["zero"]) == (1, 2, 1, 2)
    assert (found["elements"], found["finite"]) == (255, 251)
    assert (found["low"], found["high"]) == (finite.min(), finite.max())
    assert found["counts"] == np.histogram(finite, 64)[0].tolist()
    powers = np.floor(np.log2(np.abs(finite[finite != 0]))).astype(int)
    assert found["lowestExponent"] == powers.min()
    assert found["exponents"] == np.bincount(powers - powers.min()).tolist()


@pytest.mark.parametrize(
    ("values", "dtype", "low", "high"),
    [
        (np.array([1.5, -2], ml_dtypes.bfloat16).view(np.uint16), "torch.bfloat16", -2.0, 1.5),
        (np.array([448, -0.5], ml_dtypes.float8_e4m3fn).view(np.uint8), "torch.float8_e4m3fn", -0.5, 448.0),
        (np.array([True, False]), "torch.bool", 0.0, 1.0),
        (np.array([-3, 7], np.int64), "torch.int64", -3.0, 7.0),
        (np.array([3 + 4j, 0], np.complex64), "torch.complex64", 0.0, 5.0),
        (np.array(2.5, np.float64), "torch.float64", 2.5, 2.5),
    ],
)
def test_histograms_of_types_that_numpy_lacks(
    tmp_path: Path, values: np.ndarray, dtype: str, low: float, high: float
) -> None:
    found = histogram(_tensor(tmp_path, values, dtype))
    assert (found["low"], found["high"]) == (low, high)
    assert sum(found["counts"]) == values.size


def test_a_histogram_of_nothing(tmp_path: Path) -> None:
    found = histogram(_tensor(tmp_path, np.zeros((0, 3), np.float32), "torch.float32"))
    assert found == {"elements": 0, "nan": 0, "posinf": 0, "neginf": 0, "zero": 0, "finite": 0}
    (tmp_path / "step0/rank0/dump_tensor_data/x.0.debug.npy").write_bytes(b"broken")
    found = histogram(next(iter(msformat.open(tmp_path)[0, 0].tensors())))
    assert set(found) == {"problem"}
    assert "x.0.debug.npy" in found["problem"]


# --- scripts ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_show_text_as_text(script: Path) -> None:
    source = script.read_text("utf-8")
    for forbidden in FORBIDDEN:
        assert forbidden not in source, forbidden
    assert re.findall(r"https?://[^\"]*", source) in ([], ["http://www.w3.org/2000/svg"])
    assert ("fetch(" in source) == (script.name == "data.js")
    assert len(source.splitlines()) <= 450


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda path: path.name)
def test_scripts_are_javascript(script: Path) -> None:
    node = shutil.which("node")
    if node is None:
        pytest.skip("there is no node")
    done = subprocess.run([node, "--check", str(script)], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_every_asset_is_in_the_distribution() -> None:
    from importlib.resources import files

    names = {path.name for path in files("msformat.pages").iterdir()}
    assert {"page.html", "page.css", "app.js"} <= names
    project = (PAGES.parents[1] / "pyproject.toml").read_text("utf-8")
    for kind in ("html", "css", "js"):
        assert f'"pages/*.{kind}"' in project
