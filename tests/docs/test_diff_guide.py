"""docs/diff.md does what it says."""

from __future__ import annotations

import re
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest
import yaml

from msformat.cli import build_parser
from msformat.compare.mapping import parse_mapping
from msformat.compare.thresholds import Thresholds
from msformat.dtypes import dtype_named

GUIDE = (Path(__file__).resolve().parents[2] / "docs" / "diff.md").read_text()


def blocks(language: str) -> list[str]:
    return re.findall(rf"^```{language}\n(.*?)^```", GUIDE, re.MULTILINE | re.DOTALL)


def test_the_code_runs(golden: Callable[[str], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    shutil.copytree(golden("torch_8.1.0_L0_tensor"), tmp_path / "my_dump")
    monkeypatch.chdir(tmp_path)
    (code,) = blocks("python")
    told: dict[str, object] = {}
    exec(code, told)
    assert told["found"].exit_code == 0  # type: ignore[attr-defined]
    assert told["tensor"].verdict == "same"  # type: ignore[attr-defined]


def test_the_mapping_is_one() -> None:
    (text,) = blocks("yaml")
    found = parse_mapping(yaml.safe_load(text), "docs/diff.md")
    assert found.modules == {"decoder.blocks": "layers"}
    assert all((found.apis, found.entries, found.parameters, found.tensors))


def test_the_tolerances_are_the_defaults() -> None:
    rows = re.findall(r"^\| (float[^|]*|bfloat16|integers[^|]*) \| ([^|]*) \|$", GUIDE, re.MULTILINE)
    assert len(rows) == 6
    names = {"e4m3": "float8_e4m3fn", "e3m4": "float8_e3m4", "e5m2": "float8_e5m2", "HiFloat8": "hifloat8"}
    for types, values in rows:
        spelled = re.findall(r"\w+", types.replace("float8 ", "").replace("integers", "int32"))
        given = [float(value) for value in re.findall(r"[0-9][0-9.e-]*", values.partition(":")[0])]
        for name, value in zip(spelled, given * (len(spelled) if len(given) == 1 else 1), strict=True):
            dtype = dtype_named(names.get(name, name))
            assert Thresholds().tolerance(dtype, dtype) == value, name


def test_every_option_of_the_guide_is_there() -> None:
    known = " ".join(
        option
        for action in build_parser()._subparsers._group_actions[0].choices["diff"]._actions  # type: ignore[union-attr,index,call-overload]
        for option in action.option_strings
    ).split()
    named = set(re.findall(r"(?<![-\w`'])--[a-z][a-z0-9-]*", GUIDE.replace("`", " ")))
    assert named - {"--only"} <= set(known)
