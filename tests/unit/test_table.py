"""Tables: null, NaN and missing stay three things. Judges: csv, pandas and pyarrow."""

from __future__ import annotations

import csv
import json
import math
import pickle
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

import msformat
from msformat import extras
from msformat.table import MISSING, Table

BIG = 2**53 + 1
# One tensor each: Max and what it is.
MAXIMA: list[dict[str, Any]] = [
    {"Max": 1.5},
    {"Max": math.nan},
    {"Max": None},
    {},
    {"Max": -math.inf},
    {"Max": True},
    {"Max": BIG},
]


def _record(extra: dict[str, Any], shape: tuple[int, ...] = (2, 3)) -> dict[str, Any]:
    return {"type": "torch.Tensor", "dtype": "torch.float32", "shape": list(shape), **extra}


@pytest.fixture
def unit(tmp_path: Path) -> msformat.Unit:
    directory = tmp_path / "step0" / "rank3"
    directory.mkdir(parents=True)
    rows = [_record(extra) for extra in MAXIMA]
    data = {
        "Torch.a.0.forward": {"input_args": rows, "output": [_record({"md5": "0123abcd", "requires_grad": True}, ())]},
        '中文, "quoted"\n.0.debug': _record({"Max": 0, "data_name": "中文.0.debug.npy"}, (0, 3)),
    }
    header = {"task": "statistics", "level": "mix", "framework": "pytorch", "dump_data_dir": None}
    (directory / "dump.json").write_text(json.dumps({**header, "data": data}))
    return msformat.open(tmp_path)[0, 3]


def test_columns_and_rows(unit: msformat.Unit) -> None:
    table = unit.table()
    assert len(table) == 9
    assert table.columns == (
        "unit", "step", "rank", "entry", "slot", "path", "type", "dtype", "shape",
        "Max", "Min", "Mean", "Norm", "digest", "data_name", "requires_grad",
    )  # fmt: skip
    assert repr(table) == "<Table: 9 rows, 16 columns>"
    row = table[7]
    assert (row.unit, row.step, row.rank) == ("step0/rank3", 0, "rank3")
    assert (row.entry, row.slot, row.path) == ("Torch.a.0.forward", "output", "0")
    assert (row.shape, row.digest, row.requires_grad, row.data_name) == ((), "0123abcd", True, None)
    assert [found.entry for found in table] == list(table["entry"])
    assert next(table.rows())["shape"] == (2, 3)


def test_the_column_is_exact(unit: msformat.Unit) -> None:
    column = unit.table()["Max"]
    assert column.dtype == object
    assert column[0] == 1.5
    assert math.isnan(column[1])
    assert column[2] is None
    assert column[3] is MISSING
    assert column[4] == -math.inf
    assert column[5] is True
    assert column[6] == BIG


def test_missing_prints_as_nothing_and_stays_itself() -> None:
    assert str(MISSING) == ""
    assert repr(MISSING) == "<missing>"
    assert not MISSING
    assert pickle.loads(pickle.dumps(MISSING)) is MISSING


def test_numbers_for_arithmetic(unit: msformat.Unit) -> None:
    numbers = unit.table().numbers("Max")
    assert list(numbers.mask[:7]) == [False, False, True, True, False, False, False]
    assert math.isnan(numbers.data[1])
    assert numbers[5] == 1.0
    assert numbers[[0, 2]].mean() == 1.5
    text = Table({"Max": ["NaN", "oops", 10**400, -(10**400)]}).numbers("Max")
    assert math.isnan(text.data[0])
    assert list(text.mask) == [False, True, False, False]
    assert list(text.data[2:]) == [math.inf, -math.inf]


def test_smaller_tables(unit: msformat.Unit) -> None:
    table = unit.table()
    assert len(table[2:4]) == 2
    assert len(table[table["slot"] == "output"]) == 1
    assert table[np.array([8, 0])]["shape"][0] == (0, 3)
    assert table[-1].shape == (0, 3)
    with pytest.raises(KeyError):
        table["nothing"]


def test_filter_concat_and_the_whole_dump(unit: msformat.Unit, tmp_path: Path) -> None:
    assert len(unit.table(filter="Torch.a")) == 8
    assert len(unit.table(filter="nowhere")) == 0
    both = Table.concat([unit.table(), unit.table()])
    assert len(both) == 18
    assert both[9] == both[0]
    assert list(both[7:11]["slot"]) == ["output", "", "input_args", "input_args"]
    assert list(both[np.array([9, 0, 17])]["slot"]) == ["input_args", "input_args", ""]
    assert list(both[np.array([17, 17])]["shape"]) == [(0, 3), (0, 3)]
    assert len(both[both["slot"] == "nowhere"]) == 0
    assert np.array_equal(both[::2].numbers("Max").mask, both.numbers("Max").mask[::2])
    assert Table.concat([]).columns == both.columns
    whole = msformat.open(tmp_path).table(filter="debug")
    assert list(whole["rank"]) == ["rank3"]


def test_pandas(unit: msformat.Unit) -> None:
    frame = unit.table().to_pandas()
    maxima = list(frame["Max"])
    assert maxima[0] == 1.5
    assert math.isnan(maxima[1])
    assert maxima[2] is None
    assert maxima[3] is pd.NA
    assert maxima[6] == BIG
    assert frame["step"].dtype.kind == "i"
    assert frame["shape"][0] == (2, 3)
    assert frame[frame.slot == "output"].digest.item() == "0123abcd"


def test_arrow_and_parquet(unit: msformat.Unit, tmp_path: Path) -> None:
    found = unit.table().to_arrow()
    maxima = found["Max"]
    assert maxima.type == pa.float64()
    assert maxima.null_count == 3  # null, no such key, and the output without statistics
    assert math.isnan(maxima[1].as_py())
    assert maxima[2].as_py() is None
    assert found["missing"][2].as_py() == ["Min", "Mean", "Norm"]
    assert found["missing"][3].as_py() == ["Max", "Min", "Mean", "Norm"]
    assert found["shape"][8].as_py() == [0, 3]
    assert found["requires_grad"][7].as_py() is True
    unit.table().to_parquet(tmp_path / "t.parquet")
    assert pq.read_table(tmp_path / "t.parquet").schema == found.schema
    assert Table.concat([]).to_arrow().schema == found.schema


def test_polars(unit: msformat.Unit) -> None:
    found = unit.table().to_polars()
    assert found.schema["Max"] == pl.Float64
    assert found["Max"].is_nan()[1]
    assert found["Max"].null_count() == 3
    assert found["Max"][4] == -math.inf
    assert found["missing"][3].to_list() == ["Max", "Min", "Mean", "Norm"]
    assert found["shape"][8].to_list() == [0, 3]
    assert found.filter(pl.col("slot") == "output")["digest"].to_list() == ["0123abcd"]
    assert Table.concat([]).to_polars().schema == found.schema


def test_whoever_speaks_arrow_takes_a_table_as_it_is(unit: msformat.Unit) -> None:
    """The PyCapsule interface, which polars, DuckDB and pandas know."""
    table = unit.table()
    assert pa.table(table).schema == table.to_arrow().schema
    assert pa.table(table)["Max"].null_count == 3
    assert pl.DataFrame(table).equals(table.to_polars())


def test_lone_surrogates_have_an_arrow_form() -> None:
    assert Table({"entry": ["a\ud800"]}).to_arrow()["entry"][0].as_py() == "a\\ud800"


@pytest.mark.parametrize("bom", [False, True])
def test_csv(unit: msformat.Unit, tmp_path: Path, bom: bool) -> None:
    path = tmp_path / "t.csv"
    unit.table().to_csv(path, bom=bom)
    assert path.read_bytes().startswith(b"\xef\xbb\xbf") is bom
    with path.open(encoding="utf-8-sig" if bom else "utf-8", newline="") as stream:
        rows = list(csv.DictReader(stream))
    assert [row["Max"] for row in rows[:7]] == ["1.5", "NaN", "null", "", "-Infinity", "true", str(BIG)]
    assert rows[0]["shape"] == "[2, 3]"
    assert rows[8]["entry"] == '中文, "quoted"\n.0.debug'
    assert rows[8]["Max"] == "0"
    assert (rows[7]["requires_grad"], rows[0]["requires_grad"], rows[0]["digest"]) == ("true", "", "")
    assert [found.name for found in tmp_path.iterdir() if "partial" in found.name] == []


def test_csv_in_an_ascii_locale_and_lone_surrogates(tmp_path: Path) -> None:
    code = "from msformat.table import Table; Table({'entry': ['\\u4e2d', 'a\\ud800']}).to_csv('t.csv')"
    env = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "PATH": ""}
    subprocess.run([sys.executable, "-c", code], cwd=tmp_path, env=env, check=True)
    assert (tmp_path / "t.csv").read_text("utf-8").split() == ["entry", "中", "a\\ud800"]


@pytest.mark.parametrize(
    ("method", "package"), [("to_pandas", "pandas"), ("to_arrow", "pyarrow"), ("to_polars", "polars")]
)
def test_a_missing_library_names_its_extra(method: str, package: str, monkeypatch: pytest.MonkeyPatch) -> None:
    def absent(module: str) -> None:
        raise ModuleNotFoundError(f"No module named {module!r}", name=module)

    monkeypatch.setattr(extras, "import_module", absent)
    with pytest.raises(msformat.BackendMissingError, match=r"msformat\[(table|polars)\]") as caught:
        getattr(Table.concat([]), method)()
    assert caught.value.package == package


def test_a_table_pickles(unit: msformat.Unit) -> None:
    table = unit.table()
    copy = pickle.loads(pickle.dumps(table))
    assert copy.columns == table.columns
    assert [repr(row) for row in copy] == [repr(row) for row in table]  # NaN is not equal to itself
    assert copy["Max"][3] is MISSING
