"""``diff`` of what lies at a URL, on workers of a cluster, in a journal, and in every store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import msformat
from msformat.cli import main
from tests.loopback import served
from tests.small_dumps import FORMS, convert_whole, write_tree, write_unit

UNITS = ("step0/rank0", "step0/rank1")


@pytest.mark.parametrize(("name", "options"), FORMS.items())
def test_every_store_against_files_here_and_at_a_url(
    tmp_path: Path, memory_url: str, name: str, options: dict[str, Any]
) -> None:
    source = write_tree(tmp_path / "src", UNITS)
    other = write_tree(tmp_path / "other", UNITS)
    victim = next((other / "step0/rank1/dump_tensor_data").glob("*relu.1*"))
    values = np.load(victim)
    values[2, 3] += 5
    np.save(victim, values)
    for place in (tmp_path / "here", memory_url):
        target = f"{place}/{name}"
        if place != memory_url:
            (tmp_path / "here").mkdir()
        convert_whole(other, target, **options)  # type: ignore[arg-type]
        found = msformat.diff(target, source)
        assert found.counts == {"same": 5, "different": 1}
        headline = found.divergence
        assert headline is not None
        assert str(headline.a) == "step0/rank1"
        assert headline.entry.key == "Functional.relu.1.forward"
        assert headline.tensor is not None
        assert headline.tensor.metrics is not None
        assert headline.tensor.metrics.worst == (2, 3)


@pytest.mark.filterwarnings("ignore::DeprecationWarning", "ignore::ResourceWarning")
def test_units_on_a_cluster(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    write_tree(tmp_path / "a", UNITS)
    write_tree(tmp_path / "b", UNITS)
    monkeypatch.chdir(tmp_path)  # relative paths: the workers are somewhere else
    with served("cluster") as address:
        assert main(["diff", "a", "b", "--dask", address, "--json"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert [unit["unit"] for unit in found["units"]] == list(UNITS)
    assert found["counts"] == {"same": 6}


def test_a_unit_whose_writer_died(tmp_path: Path) -> None:
    """Entries of the journal are compared, and the result says that it is in part."""
    write_unit(tmp_path / "whole" / "step0" / "rank", {"Functional.relu.0.forward": np.ones(3, np.float32)})
    unit = tmp_path / "died" / "step0" / "rank"
    write_unit(unit, {"Functional.relu.0.forward": np.ones(3, np.float32), "Functional.relu.1.forward": np.ones(2)})
    document = (unit / "dump.json").read_bytes()
    (unit / "dump.json").write_bytes(document[: document.index(b"Functional.relu.1.forward") + 60])
    found = msformat.diff(tmp_path / "died", tmp_path / "whole")
    assert found.exit_code == 1
    assert found.counts == {"same": 1}
    assert found.units[0].problems[0].startswith("a: ")


def test_a_side_that_cannot_be_read_at_all(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """One bad rank is named, the others are compared."""
    write_tree(tmp_path / "a", UNITS)
    write_tree(tmp_path / "b", UNITS)
    (tmp_path / "a" / "step0" / "rank0" / "dump.json").write_text("no json")
    assert main(["diff", str(tmp_path / "a"), str(tmp_path / "b"), "--quiet"]) == 1
    assert "step0/rank0" in capsys.readouterr().err
    (tmp_path / "a" / "step0" / "rank1" / "dump.json").write_text("no json")
    assert main(["diff", str(tmp_path / "a"), str(tmp_path / "b"), "--quiet"]) == 2
