"""What notebooks show. Judges: html.parser for the form, IPython's formatter for the protocol."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from IPython.core.formatters import HTMLFormatter

import msformat
from msformat.stores.base import StoredTensor
from msformat.table import Table
from tests.conftest import golden_names
from tests.unit.reader_dumps import RELU, VALUES, X, entries, record, write_tensor, write_unit

HOSTILE = "<script>alert('x')</script>\"><img src=x onerror=alert(1)>&amp;\x1b[2J\u202e"


class _Page(HTMLParser):
    """A page taken apart; a tag that is not closed, or closed twice, fails."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.open: list[str] = []
        self.tags: set[str] = set()
        self.attributes: set[tuple[str, str]] = set()
        self.rows: list[list[str]] = []
        self.text = ""
        self.feed(page)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.open.append(tag)
        self.tags.add(tag)
        self.attributes |= {(name, value or "") for name, value in attrs}
        if tag == "tr":
            self.rows.append([])
        elif tag in ("td", "th"):
            self.rows[-1].append("")

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] in (["td"], ["th"]):
            self.rows[-1][-1] += data
        if "style" not in self.open:
            self.text += data


def _page(shown: Any) -> _Page:
    page = HTMLFormatter()(shown)  # what a notebook calls
    assert isinstance(page, str)
    found = _Page(page)
    assert found.tags <= {"style", "div", "strong", "table", "tr", "td", "th", "span", "b", "details", "summary", "pre"}
    assert {name for name, _ in found.attributes} <= {"class"}
    return found


@pytest.mark.parametrize("name", golden_names)
def test_every_real_dump(golden: Callable[[str], Path], name: str) -> None:
    dump = msformat.open(golden(name))
    assert _page(dump).rows[1:] == [
        [unit.key.branch, "" if unit.key.step is None else str(unit.key.step), unit.key.rank, "files"] for unit in dump
    ]
    for unit in dump:
        rows = _page(unit).rows
        assert [row[0] for row in rows[1:]] == list(unit)[:20]
        for entry in list(unit.values())[:6]:
            page = _page(entry)
            shown = [row for row in page.rows[1:] if row[2].startswith("[") and row[1]]
            assert [row[1] for row in shown] == [tensor.dtype_name for tensor in entry.tensors]
            for tensor in entry.tensors[:2]:
                text = _page(tensor).text
                assert tensor.dtype_name in text
                assert str(list(tensor.shape)) in text
        _page(unit.table())


@pytest.fixture
def unit(tmp_path: Path) -> msformat.Unit:
    directory = write_unit(tmp_path / "step0" / "rank3", entries())
    write_tensor(directory, X, VALUES)
    stack = {"0": [[RELU], ["File model.py, line 7, in forward, \n return relu(x)"]]}
    (directory / "stack.json").write_text(json.dumps(stack))
    return msformat.open(tmp_path)[0, 3]


def test_an_entry(unit: msformat.Unit) -> None:
    page = _page(unit[RELU])
    assert page.rows == [
        ["", "type", "shape", "Max", "Min", "Mean", "Norm"],
        ["input_args.0", "torch.float32", "[2, 3, 4]", "23", "0", "11.5", "65"],
        ["input_args.1", "int", "3", "", "", "", ""],
        ["input_args.2", "", "None", "", "", "", ""],
        ["input_kwargs.inplace", "bool", "False", "", "", "", ""],
        ["output.0", "torch.float32", "[2, 3, 4]", "", "", "", ""],
    ]
    assert "File model.py, line 7, in forward, return relu(x)" in page.text
    assert "path relu" in page.text


def test_no_tensor_is_read(unit: msformat.Unit, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: Any, **__: Any) -> None:
        raise AssertionError("read")

    for name in ("bits", "borrowed_bits"):
        monkeypatch.setattr(StoredTensor, name, refuse)
    with pytest.raises(AssertionError, match="read"):
        unit[RELU].inputs[0].numpy()
    for shown in (unit, unit[RELU], *unit.tensors()):
        _page(shown)


def test_whether_there_are_values(unit: msformat.Unit) -> None:
    given, made = unit[RELU].tensors
    assert f"values {X}" in _page(given).text
    assert "none: task 'tensor' saved no data of it" in _page(made).text
    (Path(unit.path) / "dump_tensor_data" / X).unlink()
    lost = msformat.open(unit.path)[0]
    assert f"{X} is not in the store" in _page(lost[RELU].inputs[0]).text


def test_what_is_no_finite_number_stands_out(tmp_path: Path) -> None:
    odd = {"Max": math.inf, "Min": None, "Mean": math.nan, "Norm": 10**400}
    data = {RELU: {"output": [record(VALUES, **odd)]}, "Torch.sum.0.forward": {"output": [record(VALUES, Max=1.5)]}}
    write_unit(tmp_path / "step0" / "rank", data)
    unit = msformat.open(tmp_path)[0]
    page = unit[RELU]._repr_html_()
    assert _page(unit[RELU]).rows[1][3:] == ["inf", "null", "nan", "inf"]
    assert page.count('<td class="bad">') == 3
    assert unit._repr_html_().count('<td class="bad">') == 1
    assert unit.table()._repr_html_().count('<td class="bad">') == 3


def _hostile_unit(directory: Path) -> msformat.Unit:
    tensor = {**record(VALUES, Max=HOSTILE), "type": "torch.Tensor", "dtype": HOSTILE, "md5": HOSTILE}
    slots = {"input_args": [{"type": HOSTILE, "value": HOSTILE}], "input_kwargs": {HOSTILE: tensor}, "output": [tensor]}
    write_unit(directory / "step0" / "rank", {HOSTILE: slots}, task=HOSTILE, level=HOSTILE, framework=HOSTILE)
    (directory / "step0/rank/stack.json").write_text(json.dumps({"0": [[HOSTILE], [HOSTILE]]}))
    (directory / "step0/rank/construct.json").write_text(json.dumps({HOSTILE: f"Module.{HOSTILE}.A.forward.0"}))
    return msformat.open(directory)[0]


def test_a_stranger_s_text_is_text(tmp_path: Path) -> None:
    """No tag, no attribute, no control character and no change of direction comes through; the words do."""
    unit = _hostile_unit(tmp_path)
    for shown in (unit, unit[HOSTILE], *unit.tensors(), unit.table()):
        page = _page(shown)
        assert "alert('x')</script>" in page.text
        assert not re.search("[\x00-\x09\x0b-\x1f\x7f\u202e]", page.text)


def test_lone_surrogates_do_not_break_the_message(tmp_path: Path) -> None:
    write_unit(tmp_path / "step0" / "rank", {"Torch.\ud800.0.forward": {"output": [record(VALUES)]}})
    unit = msformat.open(tmp_path)[0]
    for shown in (unit, unit["Torch.\ud800.0.forward"], unit.table()):
        assert HTMLFormatter()(shown).encode("utf-8")
        assert "\\ud800" in _page(shown).text


def test_large_things_are_cut(tmp_path: Path) -> None:
    long = "x" * 3_000_000
    wide = {**record(VALUES), "shape": [2] * 100_000}
    arguments = [{"type": "str", "value": long}, wide, *[record(VALUES)] * 5000]
    data = {f"Torch.a{n}.0.forward": {"output": []} for n in range(100_000)}
    write_unit(tmp_path / "step0" / "rank", {long: {"input_args": arguments, "output": []}, **data})
    dump = msformat.open(tmp_path)
    unit = dump[0]
    large = Table({"entry": [long] * 100_000, "Norm": np.ones(100_000)})
    for shown in (dump, unit, unit[long], *unit[long].tensors[:1], large):
        assert len(HTMLFormatter()(shown)) < 20_000
        _page(shown)
    assert "… and 99981 more" in _page(unit).text
    assert "… and 4953 more" in _page(unit[long]).text


def test_a_dump_of_many_units_is_not_opened(tmp_path: Path) -> None:
    for step in range(40):
        (tmp_path / f"step{step}" / "rank0").mkdir(parents=True)
        (tmp_path / f"step{step}" / "rank0" / "dump.json").write_text("broken")
    page = _page(msformat.open(tmp_path))
    assert "steps 0, 1, 2, …, 39 (40)" in page.text
    assert "… and 20 more" in page.text


def test_what_cannot_be_read_says_why(tmp_path: Path) -> None:
    unit = write_unit(tmp_path / "step0" / "rank", {})
    (unit / "dump.json").write_text("[1, 2]")
    assert "cannot be read" in _page(msformat.open(tmp_path)[0]).text
    (unit / "dump.json").write_text('{"data": {"Torch.a.0.forward": {}, "Torch.b')
    page = _page(msformat.open(tmp_path)[0])
    assert "not complete" in page.text
    assert page.rows[1][0] == "Torch.a.0.forward"


def test_an_entry_that_cannot_be_decoded_stops_no_other(tmp_path: Path) -> None:
    deep: Any = []
    for _ in range(300):
        deep = [deep]
    data = {"Torch.a.0.forward": {"output": [record(VALUES)]}, "Torch.b.0.forward": {"output": deep}}
    write_unit(tmp_path / "step0" / "rank", data)
    rows = _page(msformat.open(tmp_path)[0]).rows
    assert [row[0] for row in rows[1:]] == list(data)
    assert rows[1][2] == "float32 [2, 3, 4]"


def test_a_credential_in_a_url_stays_hidden() -> None:
    assert "hunter2" not in _page(Table({"entry": ["s3://me:hunter2@host/d"]})).text


def test_no_colour_is_absolute(unit: msformat.Unit) -> None:
    """What is drawn on a light page must be readable on a dark one: colours are the page's own, or shine through."""
    style = re.search("<style>(.*)</style>", unit._repr_html_())
    assert style is not None
    for _, value in re.findall(r"[;{](color|background(?:-color)?):([^;}]*)", style[1]):
        alpha = re.fullmatch(r"rgba\(\d+,\d+,\d+,(\.\d+)\)", value)
        assert value in ("inherit", "none") or (alpha is not None and float(alpha[1]) <= 0.3)


def test_tables_show_their_first_rows(unit: msformat.Unit) -> None:
    page = _page(unit.table())
    assert page.rows[0] == ["unit", "entry", "slot", "path", "dtype", "shape", "Max", "Min", "Mean", "Norm"]
    assert page.rows[1][1:] == [RELU, "input_args", "0", "torch.float32", "[2, 3, 4]", "23", "0", "11.5", "65"]
    assert _page(unit.table(filter="nowhere")).rows == []
    assert _page(Table({"mine": np.array([1, None, "a"], dtype=object)})).rows == [["mine"], ["1"], [""], ["a"]]
