"""The suite in old and odd environments: ``make test-matrix``, or ``python -m tools.matrix [ROW ...]``.

A row is an interpreter, versions of libraries and the part of the suite that can run there. Its environment is made
under ``.venv-matrix`` and kept. A test may be skipped for a library that the row lacks on purpose; one
that is skipped for a library that should be there fails the row, and a row that could not be tried is no success.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import shutil
import subprocess
import sys
import time
import xml.etree.ElementTree as ET
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from packaging.requirements import Requirement

from msformat.cli.tables import print_table

if sys.version_info >= (3, 11):
    import tomllib
else:
    import tomli as tomllib  # pytest brings it

ROOT = Path(__file__).resolve().parents[1]
HOME = ROOT / ".venv-matrix"
# The libraries a column of the table is about.
SHOWN = ("numpy", "h5py", "zarr", "torch")
FRAMEWORKS = ("torch", "mindspore")
# What the extra "test" has and judges no test: the checkers, and the botocore that goes with the newest s3fs only.
NO_JUDGES = {"msformat", "mypy", "ruff", "aiobotocore", "boto3"}
# aiobotocore is what the oldest s3fs takes, and says which boto3: left to itself, pip tries hundreds to find that out.
OLD_S3 = ("aiobotocore[boto3]~=2.11.0",)
# matplotlib 3.7 calls what the pyparsing of today warns about, and warnings are errors.
OLD_PLOT = ("pyparsing~=3.1.0",)
FRAMEWORK_FREE = (
    "tests",
    *(f"--ignore=tests/capture/{name}" for name in ("integrations", "mindspore", "mindtorch", "pytorch")),
    "--ignore=tests/browser",
    "--ignore=tests/crash/test_capture_training.py",
    "--ignore=tests/mindtorch",
    "--ignore=tests/peer",
)
# Capture of torch, and every test that torch judges.
WITH_TORCH = (
    "tests/capture/pytorch",
    "tests/contract/test_files.py",
    "tests/crash/test_capture_training.py",
    "tests/docs",
    "tests/golden",
    "tests/reports",
    "tests/security/test_pt_attacks.py",
    "tests/unit",
)
# h5py 3.8 asks numpy 1.26 for what that calls deprecated; our tests take every warning for an error.
OLD_WARNINGS = ("-W", "ignore:`product` is deprecated:DeprecationWarning")
_MISSING = re.compile(r"could not import '(\w+)|(?:^|Skipped: )(\w+) is not installed")


@dataclass(frozen=True)
class Row:
    """One environment and what is tried in it.

    Parameters
    ----------
    name : str
        Of the row on the command line, and of its folder.
    python : str
        Major and minor version.
    about : str
        What the row is for, in words.
    oldest : bool
        Every dependency that pyproject.toml names is at its declared minimum, as is ``framework``.
    framework : str
        An extra of pyproject.toml, none of which is installed otherwise.
    pins : tuple of str
        Requirements beside those of pyproject.toml.
    tests : tuple of str
        Arguments of pytest.
    absent : frozenset of str
        Libraries that the row lacks on purpose.
    """

    name: str
    python: str
    about: str
    oldest: bool = False
    framework: str = ""
    pins: tuple[str, ...] = ()
    tests: tuple[str, ...] = FRAMEWORK_FREE
    absent: frozenset[str] = frozenset({"torch"})


# zarr-python 3.0 is not for Python 3.10, torch 2.1 not for numpy 2: the oldest of each is where the others can be.
ROWS = (
    Row("oldest", "3.10", "every minimum", oldest=True, pins=(*OLD_S3, *OLD_PLOT), absent=frozenset({"torch", "zarr"})),
    Row("zarr-3.0", "3.11", "zarr 3.0, numpy 1.26", pins=("zarr==3.0.0", "numpy==1.26.*")),
    Row("python-3.10", "3.10", "newest libraries", absent=frozenset({"torch", "zarr"})),
    Row("python-3.12", "3.12", "newest libraries"),
    Row("python-3.13", "3.13", "newest libraries"),
    Row("torch-2.1", "3.10", "every minimum, torch too", oldest=True, framework="torch", pins=(*OLD_S3, *OLD_PLOT),
        tests=WITH_TORCH + OLD_WARNINGS, absent=frozenset({"zarr"})),
    Row("torch-2.13", "3.11", "newest libraries", framework="torch", pins=("torch==2.13.0",),
        tests=WITH_TORCH, absent=frozenset()),
)  # fmt: skip


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

    @property
    def unexpected(self) -> set[str]:
        """Libraries that tests missed and the row should have."""
        found = {_missing_library(reason) for reason in self.skipped}
        return {name for name in found if name and name not in self.row.absent}

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


def declared() -> dict[str, Any]:
    """The table ``project`` of pyproject.toml."""
    with (ROOT / "pyproject.toml").open("rb") as stream:
        return dict(tomllib.load(stream)["project"])


def requirements(row: Row, project: dict[str, Any]) -> list[str]:
    """What pip is asked to install, all at once, so that what contradicts itself is refused."""
    ours = f"{ROOT}[test{',' * bool(row.framework)}{row.framework}]"
    if not row.oldest:
        return ["-e", ours, *row.pins]
    judges = [text for text in project["optional-dependencies"]["test"] if Requirement(text).name not in NO_JUDGES]
    return ["-e", str(ROOT), *minima(row, project), *judges, *row.pins]


def minima(row: Row, project: dict[str, Any]) -> list[str]:
    """Every dependency at its declared minimum, in the extras too: ``numpy>=1.26`` as ``numpy==1.26``."""
    extras = project["optional-dependencies"]
    left_out = {"test", *FRAMEWORKS} - {row.framework}
    texts = [*project["dependencies"], *(text for name in extras if name not in left_out for text in extras[name])]
    found: dict[str, str] = {}
    for wanted in map(Requirement, texts):
        here = wanted.marker is None or wanted.marker.evaluate({"python_version": row.python, "extra": ""})
        if wanted.name != "msformat" and here:
            (least,) = [one.version for one in wanted.specifier if one.operator == ">="]
            found[wanted.name] = f"{wanted.name}=={least}"
    return list(found.values())


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
    result = Result(row)
    began = time.monotonic()
    base = interpreter(row.python)
    if base is None:
        result.problem = f"there is no Python {row.python}"
        return result
    home = HOME / row.name
    if not _install(base, home, requirements(row, declared())):
        result.problem = f"not installable, see {(home / 'install.log').relative_to(ROOT)}"
        return result
    result.versions = _versions(home)
    _run_tests(row, home, workers)
    _read_results(home / "junit.xml", result)
    result.seconds = time.monotonic() - began
    return result


def _install(base: str, home: Path, wanted: Sequence[str]) -> bool:
    """Whether the environment is there. Made anew when what is wanted is not what it was made of."""
    ready = home / "ready.json"
    recipe = json.dumps([list(wanted), (ROOT / "pyproject.toml").read_text("utf-8")])
    if ready.exists() and ready.read_text("utf-8") == recipe:
        return True
    print(f"  installing {' '.join(wanted[2:]) or 'everything at its newest'}", flush=True)
    subprocess.run([base, "-m", "venv", "--clear", str(home)], check=True)
    pip = [str(home / "bin" / "python"), "-m", "pip", "install"]
    with (home / "install.log").open("w") as log:
        for arguments in (["--upgrade", "pip"], wanted):
            if subprocess.run([*pip, *arguments], stdout=log, stderr=log, check=False).returncode:
                return False
    ready.write_text(recipe, "utf-8")
    return True


def _versions(home: Path) -> dict[str, str]:
    """Of every installed distribution."""
    code = "import importlib.metadata as m, json; print(json.dumps({d.name: d.version for d in m.distributions()}))"
    done = subprocess.run([home / "bin" / "python", "-c", code], capture_output=True, text=True, check=True)
    return dict(json.loads(done.stdout))


def _run_tests(row: Row, home: Path, workers: str) -> None:
    (home / "junit.xml").unlink(missing_ok=True)
    command = [str(home / "bin" / "python"), "-m", "pytest", "-q", "-n", workers, "-m", "not peer and not browser"]
    # Each row's cache would replace the other's.
    command += ["-p", "no:cacheprovider", f"--junitxml={home / 'junit.xml'}", *row.tests]
    with (home / "pytest.log").open("w") as log:
        subprocess.run(command, cwd=ROOT, stdout=log, stderr=log, check=False)


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


def report(results: Sequence[Result]) -> None:
    """The table, and below it what was skipped and what failed."""
    columns = ["row", "Python", *SHOWN, "for", "passed", "skipped", "failed", "min", "verdict"]
    print_table(columns, map(_cells, results), right=("passed", "skipped", "failed", "min"))
    for result in results:
        print("\n".join(_details(result)), end="\n" * bool(result.skipped or result.failed))


def _cells(result: Result) -> list[object]:
    row = result.row
    counts = [result.passed, result.skipped.total(), len(result.failed), f"{result.seconds / 60:.1f}"]
    shown = [result.versions.get(name) for name in SHOWN]
    return [row.name, row.python, *shown, row.about, *([None] * 4 if result.problem else counts), result.verdict]


def _details(result: Result) -> Iterator[str]:
    for reason, count in result.skipped.most_common():
        yield f"{result.row.name}: {count} skipped: {reason}"
    for name in result.failed:
        yield f"{result.row.name}: FAILED {name}"


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 when every row was tried and passed."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    names = [row.name for row in ROWS]
    parser.add_argument("rows", nargs="*", metavar="ROW", choices=[[], *names], help=f"of {', '.join(names)}")
    parser.add_argument("--workers", default="2", help="processes of pytest")
    parser.add_argument("--list", action="store_true", help="say what there is, and run nothing")
    options = parser.parse_args(arguments)
    chosen = [row for row in ROWS if not options.rows or row.name in options.rows]
    if options.list:
        print_table(["row", "Python", "for"], [(row.name, row.python, row.about) for row in chosen])
        return 0
    results = []
    for row in chosen:
        print(f"{row.name}: Python {row.python}, {row.about}", flush=True)
        results.append(run_row(row, options.workers))
    report(results)
    return int(any(result.verdict != "passed" for result in results))


if __name__ == "__main__":
    sys.exit(main())
