"""``msformat info`` of many units: what a person sees of them, judged by what was written and by ``--json``."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from msformat.cli import main, tables
from msformat.cli.fold import interval_text
from msformat.units import UnitKey

RANKS = 60
MISSING, SHORT, OTHER = 7, 9, 30


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two steps of 60 ranks; in step 1 one is missing, one has fewer entries, one another level."""
    root = tmp_path_factory.mktemp("many")
    for step in range(2):
        for rank in range(RANKS):
            if (step, rank) != (1, MISSING):
                _write(root / f"step{step}/rank{rank}", odd=rank if step else -1)
    return root


def _write(unit: Path, odd: int) -> None:
    unit.mkdir(parents=True)
    node: dict[str, Any] = {"input_args": [], "input_kwargs": {}, "output": []}
    data = {f"Functional.relu.{number}.forward": node for number in range(2 if odd == SHORT else 3)}
    header = {"task": "statistics", "level": "L0" if odd == OTHER else "L1", "framework": "pytorch"}
    (unit / "dump.json").write_text(json.dumps({**header, "dump_data_dir": None, "data": data}))


def _rows(text: str) -> dict[str, list[str]]:
    """Words of each line by the first one."""
    return {words[0]: words[1:] for line in text.splitlines() if (words := line.split())}


def test_units_that_are_alike_share_a_line(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(tree)]) == 0
    out = capsys.readouterr().out
    assert "--units lists all" in out
    rows = _rows(out)
    assert rows["step0/rank0-59"][:7] == ["60", "files", "pytorch", "L1", "statistics", "3", "180"]
    assert rows["step1/rank0-6,8-29,31-59"][:7] == ["58", "files", "pytorch", "L1", "statistics", "2-3", "173"]
    assert rows["step1/rank30"][:7] == ["1", "files", "pytorch", "L0", "statistics", "3", "3"]
    assert rows["total"][:2] == ["119", "356"]


def test_json_and_units_tell_all(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(tree), "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    units = {str(path.parent.relative_to(tree)) for path in tree.glob("*/*/dump.json")}
    assert {unit["unit"] for unit in found["units"]} == units
    assert found["total"]["entries"] == 356
    assert found["total"]["bytes"] == sum(path.stat().st_size for path in tree.glob("*/*/dump.json"))
    assert main(["info", str(tree), "--units"]) == 0
    rows = _rows(capsys.readouterr().out)
    assert units <= rows.keys()
    assert rows["step1/rank9"][4] == "2"


def test_a_damaged_unit_stands_alone(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for step in range(2):
        for rank in range(RANKS):
            _write(tmp_path / f"step{step}/rank{rank}", odd=-1)
    (tmp_path / "step1/rank5/dump.json").write_text('{"task": ')
    assert main(["info", str(tmp_path)]) == 1
    told = capsys.readouterr()
    rows = _rows(told.out)
    assert (rows["step1/rank5"][0], rows["step1/rank5"][-1]) == ("1", "no")
    assert (rows["step1/rank0-4,6-59"][0], rows["step1/rank0-4,6-59"][-1]) == ("59", "yes")
    assert "step1/rank5: " in told.err
    assert main(["info", str(tmp_path), "--units"]) == 1
    assert "no: " in capsys.readouterr().out


def test_few_units_are_all_listed(tree: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["info", str(tree), "--steps", "0"]) == 0
    assert "step0/rank59" in _rows(capsys.readouterr().out)


def test_labels_of_ranks() -> None:
    def text(*labels: str) -> str:
        return interval_text(UnitKey(0, label) for label in labels)

    assert text("rank3") == "rank3"
    assert text("rank10", "rank9", "rank11", "rank13") == "rank9-11,13"
    assert text("rank", "proc4711") == "rank,proc4711"
    assert text("rank0", "rank1", "rank") == "rank0-1,rank"
    assert text(*(f"rank{2 * n}" for n in range(10))) == "rank0,2,4,6,8,10,… (4 more)"


@pytest.mark.parametrize("width", [400, 40])
def test_long_tables_say_what_short_ones_do(
    width: int, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Drawn by rich or by ourselves: the same cells in the same order, numbers to the right, wide letters counted."""
    rows = [(f"层{'x' * (n % 5)}", n, None, "\x1b[31mred") for n in range(12)]
    target = tables.console()
    target.width = width
    monkeypatch.setattr(tables, "console", lambda: target)
    printed = []
    for limit in (100, 5):
        monkeypatch.setattr(tables, "_PLAIN_FROM", limit)
        target.file = None  # type: ignore[assignment] # standard output as it is now
        tables.print_table(
            ("name", "count", "none", "text"), rows, title="Title", right=("count",), total=("sum", 66, None, "")
        )
        printed.append(capsys.readouterr().out)
    short, long = ([line.split() for line in text.splitlines() if line.strip(" ─")] for text in printed)
    assert long == short
    assert "\x1b" not in printed[1]
    if width == 400:
        ends = {tables._width(line[: line.index("\\x1b")]) for line in printed[1].splitlines() if "\\x1b" in line}
        assert len(ends) == 1
