"""Guards are taken out one after the other, in a copy of the tree: the tests that hold each must fail.

``python -m tools.mutation`` runs the tests of all guards as they are, then those of each guard without it, prints a
table, and ends with 1 where a guard's absence goes unnoticed. ``--only WORD`` takes the guards whose name holds it,
``--write FILE`` puts the table between the markers of a document.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from xml.etree import ElementTree as ET

from tools.mutants import MUTANTS, Mutant

__all__ = ["main"]

ROOT = Path(__file__).resolve().parents[1]
BEGIN, END = "<!-- mutation: made by tools/mutation.py -->", "<!-- /mutation -->"
# A guard against waiting for ever is missed by waiting for ever.
_PATIENCE_S = 600
_COLUMNS = ("guard", "taken out", "failed without it")


def main() -> int:
    """Run, print and write."""
    arguments = _parse()
    chosen = [mutant for mutant in MUTANTS if arguments.only in mutant.guard]
    if not chosen:
        sys.exit(f"no guard's name holds {arguments.only!r}")
    with tempfile.TemporaryDirectory(prefix="mutation-") as place:
        tree = _copy(Path(place) / "tree")
        _check_texts(tree, chosen)
        passed, _ = _run(tree, {test for mutant in chosen for test in mutant.tests})
        if not passed:
            sys.exit("the tests do not pass as they are: nothing was taken out")
        print(f"{len(chosen)} guards; their tests pass as they are", flush=True)
        failures = [_try(tree, mutant) for mutant in chosen]
    rows = [_row(mutant, failed) for mutant, failed in zip(chosen, failures, strict=True)]
    if arguments.write:
        _replace(Path(arguments.write), rows)
    survivors = [mutant.guard for mutant, failed in zip(chosen, failures, strict=True) if mutant.tests - failed]
    print(f"survivors: {'; '.join(survivors) or 'none'}")
    return 1 if survivors else 0


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--only", default="", metavar="WORD", help="guards whose name holds it")
    parser.add_argument("--write", metavar="FILE", help="put the table into this document")
    return parser.parse_args()


def _copy(tree: Path) -> Path:
    """The files that git knows or would know; never the tree itself, where somebody works."""
    listed = subprocess.run(
        ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"],
        cwd=ROOT, capture_output=True, text=True, check=True,
    ).stdout  # fmt: skip
    for name in filter(None, listed.split("\0")):
        if (ROOT / name).is_file():
            (tree / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(ROOT / name, tree / name)
    code = "import msformat, capture; print(msformat.__file__); print(capture.__file__)"
    found = _python(tree, "-c", code, capture_output=True).stdout.split()
    if not all(Path(name).is_relative_to(tree) for name in found):
        sys.exit(f"the copy's Python imports {found}, not the copy")
    return tree


def _python(tree: Path, *arguments: str, capture_output: bool = False) -> subprocess.CompletedProcess[str]:
    """Python in the copy, whose files come before any that are installed."""
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    return subprocess.run(
        [sys.executable, *arguments], cwd=tree, env=environment, capture_output=capture_output, text=True, check=False,
        timeout=_PATIENCE_S,
    )  # fmt: skip


def _run(tree: Path, tests: Iterable[str]) -> tuple[bool, frozenset[str]]:
    """Whether all tests passed, and which of those that were named failed."""
    report = tree / "report.xml"
    report.unlink(missing_ok=True)
    names = sorted(tests)
    done = _python(
        tree, "-m", "pytest", "-q", "-p", "no:cacheprovider", "--junitxml", str(report), *names, capture_output=True
    )
    if done.returncode not in (0, 1):
        sys.exit(f"pytest did not run:\n{done.stdout[-3000:]}{done.stderr[-3000:]}")
    failed = frozenset(name for name in names if _has_failed(name, _failures(report)))
    if done.returncode and not failed:
        sys.exit(f"something else failed:\n{done.stdout[-3000:]}")
    return done.returncode == 0, failed


def _failures(report: Path) -> list[tuple[str, str]]:
    """Module and name of each test that failed, parameters included."""
    cases = ET.parse(report).getroot().iter("testcase")
    return [
        (case.get("classname", ""), case.get("name", ""))
        for case in cases
        if case.find("failure") is not None or case.find("error") is not None
    ]


def _has_failed(test: str, failures: Sequence[tuple[str, str]]) -> bool:
    """Whether a test, as it is named on pytest's command line, is among them; without parameters any of its own is."""
    path, *parts = test.split("::")
    module = path.removesuffix(".py").replace("/", ".")
    owner, name = ".".join([module, *parts[:-1]]), parts[-1]
    return any(owner == where and name in (what, what.partition("[")[0]) for where, what in failures)


def _check_texts(tree: Path, chosen: Iterable[Mutant]) -> None:
    """Before minutes of work: each guard is where it is said to be."""
    for mutant in chosen:
        count = (tree / mutant.file).read_text("utf-8").count(mutant.old)
        if count != 1:
            sys.exit(f"{mutant.guard}: {mutant.file} holds {count} times:\n{mutant.old}")


def _try(tree: Path, mutant: Mutant) -> frozenset[str]:
    """Which tests noticed."""
    file = tree / mutant.file
    text = file.read_text("utf-8")
    file.write_text(text.replace(mutant.old, mutant.new), "utf-8")
    try:
        _, failed = _run(tree, mutant.tests)
    except subprocess.TimeoutExpired:
        failed = frozenset()
    finally:
        file.write_text(text, "utf-8")
    said = "noticed" if failed == mutant.tests else f"SURVIVES {', '.join(sorted(mutant.tests - failed))}"
    print(f"{mutant.guard}: {said}", flush=True)
    return failed


def _row(mutant: Mutant, failed: Iterable[str]) -> tuple[str, str, str]:
    tests = ", ".join(f"`{_short(test)}`" for test in sorted(failed))
    return mutant.guard, f"{mutant.change} (`{mutant.file}`)", tests or "nothing"


def _short(test: str) -> str:
    """``tests/unit/test_x.py::test_y[z]`` as ``test_x::test_y``, which is how the document names tests."""
    path, *parts = re.sub(r"\[.*", "", test).split("::")
    return "::".join([Path(path).stem, *parts])


def _replace(document: Path, rows: Sequence[Sequence[str]]) -> None:
    from msformat.atomic import write_atomic

    lines = [_COLUMNS, tuple("---" for _ in _COLUMNS), *rows]
    table = "\n".join(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in row)} |" for row in lines)
    text = document.read_text("utf-8")
    before, _, rest = text.partition(BEGIN)
    _, _, after = rest.partition(END)
    write_atomic(document, f"{before}{BEGIN}\n\n{table}\n\n{END}{after}".encode())


if __name__ == "__main__":
    sys.exit(main())
