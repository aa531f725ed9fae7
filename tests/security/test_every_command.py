"""Every way into a dump, tried on every dump of an attacker.

Nothing of it runs, nothing beside it is read or written, memory stays bounded, and what is good in it is still found.
"""

from __future__ import annotations

import json
import os
import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import msformat
from msformat.cli import main
from msformat.errors import MsformatError
from msformat.pages.dumps import DumpPages
from msformat.pages.packing import script_json
from msformat.pages.server import PageServer
from msformat.pages.unitpage import encode_unit
from tests.security import corpus, corpus_containers, corpus_journals, corpus_tensors
from tests.security.bounded import bounded
from tests.security.corpus import GOOD, SECRET, SECRET_NUMBER, VALUES, Attacks, Builder, Place
from tests.small_dumps import tree_bytes

CORPORA: dict[str, Builder] = {
    "trees": corpus.links_and_pipes,
    "documents": corpus.documents,
    "records": corpus.records,
    "texts": corpus.texts,
    "tensors": corpus_tensors.tensor_files,
    "hdf5": corpus_containers.hdf5,
    "zarr arrays": corpus_containers.zarr_arrays,
    "zarr indexes": corpus_containers.zarr_indexes,
    "columns": corpus_containers.columns,
    "journals": corpus_journals.journals,
    "save directories": corpus_journals.save_directory,
    "kernels": corpus_journals.kernels,
}
DRIVING = re.compile("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e\u2028\u2029]")
# Entries of these have names of their own.
_OTHER_NAMES = {"save directories": "good.0.debug", "kernels": "Add.Default_Add-op1"}

# They have no entry of that name, and no call of a framework.
_NOT_IN_OTHERS = {"show", "show json", "a part", "diff", "diff back"}

# What is done to a dump ``{dump}``, beside a good one ``{good}``, into a folder ``{out}``.
COMMANDS = {
    "info": "info {dump}",
    "info json": "info {dump} --json",
    "ls": "ls {dump}",
    "ls tensors": "ls {dump} --tensors",
    "ls json": "ls {dump} --tensors --json",
    "show": "show {dump} {key}",
    "show json": "show {dump} {key} --json",
    "show a tensor": "show {dump} {key}.output.0.npy",
    "show nothing": "show {dump} Functional.goodd.0.forward",
    "table": "table {dump}",
    "table json": "table {dump} --json",
    "table csv": "table {dump} --csv {out}/t.csv",
    "table parquet": "table {dump} --parquet {out}/t.parquet",
    "verify": "verify {dump}",
    "verify shallow": "verify {dump} --shallow --json",
    "to files": "convert {dump} {out}/files --quiet",
    "to pt": "convert {dump} {out}/pt --tensors pt --dialect 26 --strict-json --json",
    "to hdf5": "convert {dump} {out}/x.h5 --compression none --quiet",
    "to zarr": "convert {dump} {out}/x.zarr --compression none --quiet",
    "a part": "convert {dump} {out}/part --filter Functional.* --dialect 1.2 --quiet",
    "diff": "diff {dump} {good} --csv {out}/d.csv --xlsx {out}/d.xlsx --json --quiet",
    "diff back": "diff {good} {dump} --parquet {out}/d.parquet --all --rows 1000",
    "diff itself": "diff {dump} {dump} --quiet",
    "report": "report {dump} -o {out}/r.html --json",
    "report of two": "report {dump} {good} -o {out}/r2.html",
}
# These write into the dump.
REPAIRS = {"recover": "recover {dump}", "recover orphans": "recover {dump} --orphans --json"}


@dataclass
class Tried:
    """A dump of an attacker, and what was said about it."""

    attacks: Attacks
    place: Place
    good: Path
    out: Path
    key: str
    said: dict[str, str]

    def run(self, capsys: pytest.CaptureFixture[str], name: str, command: str) -> int:
        """A command; whatever happens must be said in its own words."""
        folder = self.out / name
        folder.mkdir()
        places = {"dump": self.attacks.path, "good": self.good, "out": folder, "key": self.key}
        with bounded():
            code = main([word.format(**places) for word in command.split()])
        found = capsys.readouterr()
        self.said[name] = found.out + found.err
        assert "Traceback" not in self.said[name]
        assert "out of memory" not in self.said[name]
        assert code in (0, 1, 2)
        return code

    def check_untouched(self, before: dict[str, bytes]) -> None:
        """Nothing ran, nothing beside the dump was changed, and nothing of it is anywhere."""
        assert not self.place.canary.exists()
        assert not Path("canary").exists()
        assert tree_bytes(self.place.secret) == before
        known = {"dump", "secret", "good", "out", "dump.zarr"}
        assert {path.name for path in self.out.parent.iterdir()} <= known
        for name, text in self.said.items():
            assert not _is_told(text.encode("utf-8", "surrogatepass")), name
        for path, data in tree_bytes(self.out).items():
            assert not _is_told(data), path


def _is_told(data: bytes) -> bool:
    return any(secret in data for secret in (SECRET, SECRET_NUMBER.tobytes(), b"123456.7"))


@pytest.fixture(scope="module", autouse=True)
def warm(tmp_path_factory: pytest.TempPathFactory) -> None:
    """Libraries are loaded once, and their memory is no dump's."""
    folder = tmp_path_factory.mktemp("warm")
    corpus.good_unit(folder / "good/step0/rank0")
    for number, command in enumerate(COMMANDS.values()):
        (folder / str(number)).mkdir()
        places = {"dump": folder / "good", "good": folder / "good", "out": folder / str(number), "key": GOOD}
        assert main([word.format(**places) for word in command.split()]) in (0, 1, 2)
    every_call(folder / "good")


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """What is tried here is over before the disk has it."""
    monkeypatch.setattr(os, "fsync", lambda _: None)


@pytest.fixture
def make(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[[str], Tried]]:
    """Make a dump of a kind; in the end nothing may have happened to what is beside it."""
    made: list[tuple[Tried, dict[str, bytes]]] = []
    monkeypatch.chdir(tmp_path)

    def make_one(kind: str) -> Tried:
        place = Place.make(tmp_path)
        attacks = CORPORA[kind](place)
        corpus.good_unit(tmp_path / "good/step0/rank0")
        (tmp_path / "out").mkdir()
        tried = Tried(attacks, place, tmp_path / "good", tmp_path / "out", _OTHER_NAMES.get(kind, GOOD), {})
        made.append((tried, tree_bytes(place.secret)))
        return tried

    yield make_one
    for tried, before in made:
        tried.check_untouched(before)


@pytest.mark.parametrize("kind", CORPORA)
def test_every_command(kind: str, make: Callable[[str], Tried], capsys: pytest.CaptureFixture[str]) -> None:
    tried = make(kind)
    codes = {name: tried.run(capsys, name, command) for name, command in COMMANDS.items()}
    nothing = {"show a tensor", "show nothing"} | (_NOT_IN_OTHERS if kind in _OTHER_NAMES else set())
    assert {name for name, code in codes.items() if code == 2} <= nothing
    # The command line shows nothing that drives a terminal.
    assert not [name for name, text in tried.said.items() if DRIVING.search(text)]
    for name in ("ls", "table", "table json", "ls tensors"):
        assert tried.key.partition(".")[0] in tried.said[name]
    _check_refused(tried)
    for target in ("files", "pt", "x.h5", "x.zarr"):
        name = {"files": "to files", "pt": "to pt", "x.h5": "to hdf5", "x.zarr": "to zarr"}[target]
        _check_good(tried.out / name / target, tried.key)


def _check_refused(tried: Tried) -> None:
    """Each attack is a problem of its own, by name."""
    problems = tried.said["verify"].splitlines()
    for name, words in tried.attacks.refused.items():
        about = [text for text in problems if name in text]
        assert any(re.search(words, text) for text in about), (name, words, about)


def _check_good(path: Path, key: str) -> None:
    """What is good in the dump came out of the conversion."""
    with msformat.open(path) as dump:
        found = next(entry for unit in dump for name, entry in unit.items() if name.startswith(key))
        np.testing.assert_array_equal(found.tensors[-1].numpy(), VALUES)


@pytest.mark.parametrize("name", REPAIRS)
@pytest.mark.parametrize("kind", CORPORA)
def test_every_repair(kind: str, name: str, make: Callable[[str], Tried], capsys: pytest.CaptureFixture[str]) -> None:
    tried = make(kind)
    tried.run(capsys, name, REPAIRS[name])
    tried.run(capsys, "verify", COMMANDS["verify"])
    tried.run(capsys, "ls", COMMANDS["ls"])
    assert tried.key.partition(".")[0] in tried.said["ls"]


@pytest.mark.parametrize("kind", CORPORA)
def test_every_call(kind: str, make: Callable[[str], Tried]) -> None:
    tried = make(kind)
    with bounded(), warnings.catch_warnings():
        warnings.simplefilter("ignore", UserWarning)
        tried.said["calls"] = every_call(tried.attacks.path)


def every_call(path: Path) -> str:
    """Everything that a dump can be asked for, in a text."""
    said: list[Any] = []
    with msformat.open(path) as dump:
        said += [repr(dump), dump.problems, dump.steps, dump.ranks, dump._repr_html_(), dump.table().numbers("Max")]
        for unit in dump:
            _tell(said, lambda unit=unit: _unit_calls(unit))
        pages = DumpPages(dump, dump.units)
        for at in range(len(dump)):
            said.append(script_json(pages.overview(at)))
            _tell(said, lambda at=at: _page_calls(pages, at))
        with PageServer(pages) as server:
            said.append(server.page.decode())
    return "".join(map(str, said))


def _tell(said: list[Any], call: Callable[[], Iterator[Any]]) -> None:
    """What calls give, up to an error of ours."""
    try:
        said.extend(call())
    except (MsformatError, OSError) as error:
        said.append(error)


def _unit_calls(unit: msformat.Unit) -> Iterator[Any]:
    yield from (repr(unit), unit._repr_html_(), unit.header, unit.complete, unit.documents, unit.usage, unit.problems)
    yield from (str(unit.tree())[:10_000], unit.orphans(), unit.children())
    unit.table().to_arrow()
    unit.table().to_pandas()
    errors: list[Any] = []
    values = unit.read(on_error=lambda name, error: errors.append((name, error)))
    yield from ((name, array.sum() if array.dtype.kind == "f" else array.size) for name, array in values)
    for key in list(unit)[:100]:
        entry = unit[key]
        yield from (entry._repr_html_(), entry.stack, entry.parent, json.dumps(entry.json())[:1000])
        for tensor in entry.tensors:
            yield from (tensor._repr_html_(), tensor.statistics(), tensor.dtype)
            _tell(errors, lambda tensor=tensor, key=key: iter([unit.to_xarray(key, tensor.place, lazy=False)]))
    yield errors


def _page_calls(pages: DumpPages, at: int) -> Iterator[Any]:
    unit = pages.unit(at)
    yield script_json(encode_unit(unit))
    for row in range(min(len(unit.owners), 100)):
        _tell([], lambda row=row: iter([script_json(pages.histograms(at, row)), script_json(pages.series(at, row))]))
