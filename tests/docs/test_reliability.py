"""docs/reliability.md: every test that it names is there, and one that is named for a store runs on it."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from functools import lru_cache
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs/reliability.md").read_text("utf-8")
NAMED = sorted(set(re.findall(r"`(test_\w+(?:::\w+)+)`", PAGE)))
STORES = ("files", "hdf5", "zarr")
# What a test's file says when all stores are meant, or one by its own name.
_ALL = {"BACKENDS", "TARGETS", "FORMS", "store_class"}


@lru_cache(maxsize=1)
def _files() -> dict[str, list[Path]]:
    found: dict[str, list[Path]] = {}
    for path in (ROOT / "tests").rglob("test_*.py"):
        found.setdefault(path.stem, []).append(path)
    return found


@lru_cache(maxsize=64)
def _functions(path: Path) -> dict[str, ast.FunctionDef]:
    """Tests of a file, those of classes as ``Class::test``."""
    return dict(_named(ast.parse(path.read_text("utf-8")).body, ""))


def _named(body: list[ast.stmt], prefix: str) -> Iterator[tuple[str, ast.FunctionDef]]:
    for node in body:
        if isinstance(node, ast.FunctionDef):
            yield prefix + node.name, node
        elif isinstance(node, ast.ClassDef):
            yield from _named(node.body, f"{prefix}{node.name}::")


def _find(name: str) -> tuple[Path, ast.FunctionDef]:
    stem, _, test = name.partition("::")
    paths = [path for path in _files().get(stem, []) if test in _functions(path)]
    assert len(paths) == 1, f"{name}: {len(paths)} tests of that name"
    return paths[0], _functions(paths[0])[test]


def _rows() -> Iterator[tuple[str, list[str]]]:
    for line in PAGE.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if line.startswith("| ") and len(cells) == 5 and cells[0] != "what happens":
            yield cells[0], cells[2:]


def _runs_on(path: Path, test: ast.FunctionDef, store: str) -> bool:
    """Whether the parameters of a test, its fixtures or its file speak of the store."""
    text = path.read_text("utf-8")
    if "out.h5" in text and "out.zarr" in text and "target" in {argument.arg for argument in test.args.args}:
        # Destinations: a directory of files, one file of HDF5, one of Zarr.
        return True
    if store in path.stem or (store == "files" and "files" in ast.unparse(test)):
        return True
    fixtures = {argument.arg for argument in test.args.args}
    functions = dict(_functions(path))
    if (shared := path.with_name("conftest.py")).exists():
        functions = {**_functions(shared), **functions}
    around = [test, *(functions[name] for name in fixtures if name in functions)]
    said = " ".join(ast.unparse(node) for each in around for node in (*each.decorator_list, *each.body))
    words = set(re.findall(r"\w+", said))
    if words & _ALL or store in words:
        return True
    return bool(words & {"target", "location", "UNITS"}) and bool(re.search(rf"\b{store}\b", text))


def test_there_is_something_to_hold() -> None:
    assert len(NAMED) > 50
    assert len(list(_rows())) > 35


@pytest.mark.parametrize("name", NAMED)
def test_every_test_that_is_named_is_there(name: str) -> None:
    _find(name)


def test_every_cell_names_a_test_of_its_store() -> None:
    for fault, cells in _rows():
        for store, cell in zip(STORES, cells, strict=True):
            names = re.findall(r"`(test_\w+(?:::\w+)+)`", cell)
            assert names, (fault, store)
            assert any(_runs_on(*_find(name), store) for name in names), (fault, store, names)


def test_at_least_ten_guards_were_taken_out_and_noticed() -> None:
    _, _, table = PAGE.partition("<!-- mutation: made by tools/mutation.py -->")
    rows = [line for line in table.splitlines() if line.startswith("| ") and "`test_" in line]
    assert len(rows) >= 10
    assert "| nothing |" not in table
