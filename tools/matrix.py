"""The suite in old and odd environments: ``make test-matrix``, or ``python -m tools.matrix [ROW ...]``.

A row (tools/matrix_rows.py) is an interpreter, versions of libraries and the part of the suite that can run there. Its
environment is made under ``.venv-matrix`` and kept. A test may be skipped for a library that the row lacks on purpose;
one that is skipped for a library that should be there fails the row, and a row that could not be tried is no success.
``--write docs/environments.md`` puts the latest outcome of every row into that document.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime, timezone
from pathlib import Path

from msformat.cli.tables import print_table
from tools.matrix_rows import NOWHERE, ROOT, ROWS, Row, declared, requirements
from tools.packing import build_sdist, build_wheel
from tools.report import markdown_table, replace_tables

HOME = ROOT / ".venv-matrix"
# The libraries a column of the table is about.
SHOWN = ("numpy", "h5py", "zarr", "torch")
_MISSING = re.compile(r"could not import '(\w+)|(?:^|Skipped: )(\w+) is not installed")


@dataclass
class Result:
    """What came of a row: counts of tests, and words where it could not be tried."""

    row: Row
    problem: str = ""
    versions: dict[str, str] = field(default_factory=dict)
    passed: int = 0
    failed: list[str] = field(default_factory=list)
    skipped: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    day: str = ""

    @property
    def unexpected(self) -> set[str]:
        """Libraries that tests missed and the row should have."""
        found = {_missing_library(reason) for reason in self.skipped}
        return {name for name in found if name and name not in self.row.absent | NOWHERE}

    @property
    def verdict(self) -> str:
        """A word or a few for the table; ``passed`` and nothing else is success."""
        if self.problem:
            return f"not tried: {self.problem}"
        if self.failed:
            return "FAILED"
        if self.unexpected:
            return f"FAILED: no {', '.join(sorted(self.unexpected))}"
        return "passed" if self.passed else "FAILED: no test ran"


def _missing_library(reason: str) -> str | None:
    found = _MISSING.search(reason)
    return found and (found[1] or found[2])


def interpreter(version: str) -> str | None:
    """A Python of this version: our own, one on the path, one of pyenv's; None where there is none that runs."""
    places = [sys.executable, shutil.which(f"python{version}")]
    places += map(str, sorted(_pyenv().glob(f"versions/{version}.*/bin/python"), reverse=True))
    return next((place for place in places if place and _version_of(place) == version), None)


def _pyenv() -> Path:
    return Path(os.environ.get("PYENV_ROOT") or Path.home() / ".pyenv")


def _version_of(python: str) -> str:
    code = "import sys; print('{}.{}'.format(*sys.version_info))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, check=False)
    return done.stdout.strip()


def run_row(row: Row, workers: str) -> Result:
    """Make the row's environment where it is not there yet, and run its tests."""
    result = Result(row, day=f"{datetime.now(tz=timezone.utc):%Y-%m-%d}")
    began = time.monotonic()
    base = interpreter(row.python)
    if base is None:
        result.problem = f"there is no Python {row.python}"
        return result
    home = HOME / row.name
    if not (_install_archive if row.archive else _install)(base, home, row):
        result.problem = f"not installable, see {(home / 'install.log').relative_to(ROOT)}"
        return result
    result.versions = _versions(home)
    _run_tests(row, home, workers)
    _read_results(home / "junit.xml", result)
    result.seconds = time.monotonic() - began
    return result


def _install(base: str, home: Path, row: Row) -> bool:
    """Whether the environment is there. Made anew when what is wanted is not what it was made of."""
    wanted = requirements(row, declared())
    ready = home / "ready.json"
    recipe = json.dumps([wanted, (ROOT / "pyproject.toml").read_text("utf-8")])
    if ready.exists() and ready.read_text("utf-8") == recipe:
        return True
    if not _make(base, home, wanted):
        return False
    ready.write_text(recipe, "utf-8")
    return True


def _install_archive(base: str, home: Path, row: Row) -> bool:
    """The same for what people install, which is as new as the working tree: made anew each time."""
    with tempfile.TemporaryDirectory() as folder:
        archive = build_sdist(Path(folder))
        if row.archive == "wheel":
            archive = build_wheel(archive, Path(folder))
        return _make(base, home, [str(archive)])


def _make(base: str, home: Path, wanted: Sequence[str]) -> bool:
    print(f"  installing {' '.join(wanted)}", flush=True)
    subprocess.run([base, "-m", "venv", "--clear", str(home)], check=True)
    pip = [str(home / "bin" / "python"), "-m", "pip", "install"]
    with (home / "install.log").open("w") as log:
        for arguments in (["--upgrade", "pip"], wanted):
            if subprocess.run([*pip, *arguments], stdout=log, stderr=log, check=False).returncode:
                return False
    return True


def _versions(home: Path) -> dict[str, str]:
    """Of every installed distribution, and of Python."""
    code = (
        "import importlib.metadata as m, json, platform as p;"
        "print(json.dumps({'Python': p.python_version()} | {d.name: d.version for d in m.distributions()}))"
    )
    done = subprocess.run([home / "bin" / "python", "-c", code], capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def _run_tests(row: Row, home: Path, workers: str) -> None:
    (home / "junit.xml").unlink(missing_ok=True)
    python = str(home / "bin" / "python")
    command = [sys.executable if row.archive else python, "-m", "pytest", "-q", "-n", workers]
    # Each row's cache would replace the other's.
    command += ["-m", "not peer and not browser", "-p", "no:cacheprovider", f"--junitxml={home / 'junit.xml'}"]
    environment = os.environ | ({"MSFORMAT_BARE_PYTHON": python} if row.archive else {})
    with (home / "pytest.log").open("w") as log:
        subprocess.run([*command, *row.tests], cwd=ROOT, env=environment, stdout=log, stderr=log, check=False)


def _read_results(path: Path, result: Result) -> None:
    if not path.exists():
        result.problem = f"pytest did not finish, see {path.with_name('pytest.log')}"
        return
    for case in ET.parse(path).iter("testcase"):
        skipped = case.find("skipped")
        if case.find("failure") is not None or case.find("error") is not None:
            result.failed.append(f"{case.get('classname')}::{case.get('name')}")
        elif skipped is not None:
            result.skipped[_reason(skipped)] += 1
        else:
            result.passed += 1


def _reason(skipped: ET.Element) -> str:
    """Why, without the place: of a module that was skipped, pytest says it in the text."""
    text = skipped.text or "" if skipped.get("message") == "collection skipped" else skipped.get("message", "")
    library = _missing_library(text)
    return f"{library} is not installed" if library else text


def keep(result: Result, folder: Path) -> None:
    """Remember what came of a row, for the document; its environment may be removed."""
    folder.mkdir(parents=True, exist_ok=True)
    told = {name: value for name, value in vars(result).items() if name != "row"}
    (folder / f"{result.row.name}.json").write_text(json.dumps(told), "utf-8")


def kept(row: Row, folder: Path) -> Result:
    """What came of a row when it was last run."""
    path = folder / f"{row.name}.json"
    if not path.exists():
        return Result(row, problem="not run yet")
    told = json.loads(path.read_text("utf-8"))
    return Result(row, **told | {"skipped": Counter(told["skipped"])})


def document(results: Sequence[Result]) -> str:
    """Tables of Markdown: the rows, what each installed, and what was skipped or failed where."""
    columns = ["row", "day", "Python", *SHOWN, "for", "passed", "skipped", "failed", "minutes", "verdict"]
    rows = markdown_table(columns, ([cell if cell is not None else "" for cell in _cells(one)] for one in results))
    details = [f"- {line}" for result in results for line in _details(result)]
    names = sorted({name for result in results for name in _told(result.versions)}, key=str.lower)
    versions = ([name, *(_told(result.versions).get(name, "") for result in results)] for name in names)
    table = markdown_table(["library", *(result.row.name for result in results)], versions)
    return "\n\n".join([rows, "\n".join(details), "## Versions", table])


def _told(versions: Mapping[str, str]) -> dict[str, str]:
    """Those of Python and of what pyproject.toml names."""
    project = declared()
    texts = [*project["dependencies"], *(text for extra in project["optional-dependencies"].values() for text in extra)]
    names = {_plain(re.split(r"[^\w-]", text, maxsplit=1)[0]) for text in texts} - {"msformat"} | {"python"}
    return {name: version for name, version in versions.items() if _plain(name) in names}


def _plain(name: str) -> str:
    return name.lower().replace("_", "-")


def report(results: Sequence[Result]) -> None:
    """The table, and below it what was skipped and what failed."""
    columns = ["row", "day", "Python", *SHOWN, "for", "passed", "skipped", "failed", "min", "verdict"]
    print_table(columns, map(_cells, results), right=("passed", "skipped", "failed", "min"))
    for result in results:
        print("\n".join(_details(result)), end="\n" * bool(result.skipped or result.failed))


def _cells(result: Result) -> list[object]:
    row = result.row
    counts = [result.passed, result.skipped.total(), len(result.failed), f"{result.seconds / 60:.1f}"]
    shown = [result.versions.get("Python", row.python), *map(result.versions.get, SHOWN)]
    return [row.name, result.day, *shown, row.about, *([None] * 4 if result.problem else counts), result.verdict]


def _details(result: Result) -> Iterator[str]:
    for reason, count in result.skipped.most_common():
        yield f"{result.row.name}: {count} skipped: {reason}"
    for name in result.failed:
        yield f"{result.row.name}: FAILED {name}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 when every row was tried and passed."""
    options = _options(arguments)
    chosen = [row for row in ROWS if not options.rows or row.name in options.rows]
    if options.list:
        print_table(["row", "Python", "for"], [(row.name, row.python, row.about) for row in chosen])
        return 0
    results = []
    for row in () if options.write else chosen:
        print(f"{row.name}: Python {row.python}, {row.about}", flush=True)
        results.append(run_row(row, options.workers))
        keep(results[-1], HOME / "results")
    if options.write:
        results = [kept(row, HOME / "results") for row in ROWS]
        replace_tables(Path(options.write), document(results))
    report(results)
    return int(any(result.verdict != "passed" for result in results))


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [row.name for row in ROWS]
    parser.add_argument("rows", nargs="*", metavar="ROW", choices=[[], *names], help=f"of {', '.join(names)}")
    parser.add_argument("--workers", default="2", help="processes of pytest")
    parser.add_argument("--list", action="store_true", help="say what there is, and run nothing")
    parser.add_argument("--write", metavar="FILE", help="run nothing; put what the latest runs gave into this document")
    return parser.parse_args(arguments)


if __name__ == "__main__":
    sys.exit(main())
