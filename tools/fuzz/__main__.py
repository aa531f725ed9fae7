"""``python -m tools.fuzz``: fuzz all readers and print a table; see docs/fuzzing.md."""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path

from msformat.cli.tables import print_table
from tests.fuzz.target import NAMES
from tools.fuzz.campaign import ROOT, Campaign, Outcome

_STATES = "state machine"


def main(arguments: Sequence[str] | None = None) -> int:
    """Exit code 0 when nothing was found, else 1; 2 where nothing can be tried."""
    options = _parser().parse_args(arguments)
    strange = sorted(set(options.targets) - {*NAMES, _STATES})
    if strange or find_spec("atheris") is None:
        missing = "atheris is not installed: pip install 'msformat[fuzz]'"
        print(f"no such target: {', '.join(strange)}" if strange else missing, file=sys.stderr)
        return 2
    names = [name for name in (*NAMES, _STATES) if not options.targets or name in options.targets]
    workers = os.cpu_count() or 1
    # The state machine takes a share like each of the others.
    share = max(1, options.seconds * workers // len(names))
    campaign = Campaign(share, Path(options.corpus), workers, keep=options.keep)
    outcomes = campaign.run([name for name in names if name != _STATES])
    if _STATES in names:
        outcomes.append(_run_states(options.seconds))
    _print(outcomes)
    return 0 if all(outcome.is_good for outcome in outcomes) else 1


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.fuzz", description="Fuzz the readers of msformat.")
    parser.add_argument("targets", nargs="*", metavar="TARGET", help=f"default: all of {', '.join(NAMES)}, {_STATES}")
    parser.add_argument("--seconds", type=int, default=240, help="for all targets together (default: 240)")
    parser.add_argument("--keep", action="store_true", help="put new inputs into tests/fuzz/corpus")
    default = ROOT / "build" / "fuzz"
    parser.add_argument("--corpus", default=str(default), help="where inputs are gathered (default: build/fuzz)")
    return parser


def _run_states(seconds: int) -> Outcome:
    """The state machines of writer, journal and reader, with more examples and other ones each time."""
    examples = max(10, seconds // 4)
    test = "tests/property/test_state_machine.py"
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider", "--timeout=0", test]
    environment = {**os.environ, "MSFORMAT_EXAMPLES": str(examples)}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    if done.returncode == 0:
        return Outcome(_STATES, examples, 0, 0)
    report = ROOT / "build" / "fuzz" / "state-machine.log"
    report.parent.mkdir(parents=True, exist_ok=True)
    report.write_text(done.stdout + done.stderr)
    return Outcome(_STATES, examples, 0, 0, report, "a promise of the writer")


def _print(outcomes: Sequence[Outcome]) -> None:
    rows = [
        [each.name, f"{each.runs:,}", each.coverage or None, each.corpus or None, int(each.find is not None)]
        for each in outcomes
    ]
    print_table(["target", "runs", "coverage", "corpus", "finds"], rows, right=["runs", "coverage", "corpus", "finds"])
    for outcome in outcomes:
        if not outcome.is_good:
            print(f"{outcome.name}: {outcome.reason}{f': {outcome.find}' if outcome.find else ''}")


if __name__ == "__main__":
    sys.exit(main())
