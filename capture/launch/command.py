"""The command ``python -m capture run``."""

from __future__ import annotations

import argparse
import atexit
import json
import os
import subprocess
import sys
from typing import Any, NoReturn

from capture.launch.arrivals import Arrivals
from capture.launch.program import Program, ProgramError, module_program, run_program, script_program, set_paths

__all__ = ["main"]

_USAGE = "python -m capture run [options] (train.py | -m module) [arguments of the program]"
_ABOUT = """\
Runs a PyTorch training as `python train.py` would, and captures it. A step is what runs from the call of a model that
trains to the end of an optimizer's step; the model is what the optimizers train. In MindSpore, steps of Model.train and
Model.fit are captured. Options stand before the program, as with torchrun: torchrun --nproc-per-node 2 -m capture run
--capture config.json train.py. docs/integrations.md says more."""


def main(arguments: list[str]) -> NoReturn:
    """Run the command; ends as the program ends, or with exit code 2 where there is nothing to run."""
    options = _parser().parse_args(arguments)
    given = _given(options)
    given["dump_path"] = _checked(given)
    try:
        # A module is looked for where the program will look, and its name stands for it meanwhile, as Python has it.
        program = _program(options)
    except ProgramError as error:
        _refuse(str(error), error.exit_code)
    launched = _Launched(given, options)
    Arrivals({"torch": launched.torch_is_there, "mindspore": launched.mindspore_is_there}).install()
    # The first to be registered is the last to run.
    atexit.register(launched.report)
    try:
        run_program(program, (options.module or options.script)[1:])
    except BaseException as error:
        launched.note(error)
        raise
    sys.exit(0)


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m capture", description=__doc__)
    commands = parser.add_subparsers(dest="command", required=True, metavar="run")
    run = commands.add_parser(
        "run",
        usage=_USAGE,
        description=_ABOUT,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    add = run.add_argument
    add("--capture", metavar="FILE", help="config.json, as for PrecisionDebugger; the options below win over it")
    add("--dump-path", metavar="DIR", help="where the dump goes; without it and a file: ./captured")
    add("--task", help="statistics, tensor or structure")
    add("--level", help="L0, L1 or mix")
    add("--step", metavar="STEPS", help="steps to capture, as 0,2,10-12")
    add("--first-step", type=int, default=0, metavar="N", help="number of the first step, in a resumed training")
    add("--step-is", choices=("optimizer", "forward"), default="optimizer",
        help="what ends a step: an optimizer's step (default), or the next call of the model (inference)")  # fmt: skip
    add("--optimizer", default="", metavar="CLASS", help="of several optimizers, the one whose step ends a step")
    add("-m", dest="module", nargs=argparse.REMAINDER, help="run a module, as python -m does")
    add("script", nargs=argparse.REMAINDER, help=argparse.SUPPRESS)
    return parser


def _given(options: argparse.Namespace) -> dict[str, Any]:
    """Arguments of PrecisionDebugger."""
    if not (options.module or options.script):
        _refuse(f"no program to run: {_USAGE}")
    if options.first_step < 0:
        _refuse(f"--first-step {options.first_step}: a number from 0 is needed")
    given = {
        "config_path": options.capture and os.path.abspath(options.capture),
        "dump_path": options.dump_path or (None if options.capture else "captured"),
        "task": options.task, "level": options.level, "step": options.step and options.step.split(","),
    }  # fmt: skip
    return {name: value for name, value in given.items() if value is not None}


def _checked(given: dict[str, Any]) -> str:
    """Where the dump goes; ends here when the configuration is wrong."""
    command = [sys.executable, "-m", "capture.launch.settings", json.dumps(given)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)  # noqa: S603
    if done.returncode:
        _refuse(done.stderr.strip())
    return str(json.loads(done.stdout)["dump_path"])


def _program(options: argparse.Namespace) -> Program:
    if options.script:
        program = script_program(options.script[0])
        set_paths(program, options.script[0])
        return program
    sys.argv = ["-m"]
    program = module_program(options.module[0])
    set_paths(program, str(program.main.__file__))
    return program


def _refuse(message: str, exit_code: int = 2) -> NoReturn:
    _say(message)
    sys.exit(exit_code)


class _Launched:
    """What follows the program, once it has imported a framework."""

    def __init__(self, given: dict[str, Any], options: argparse.Namespace) -> None:
        self._given, self._options = given, options
        self._pid = os.getpid()
        self._torch: Any = None
        self._mindspore: Any = None

    def torch_is_there(self) -> None:
        """Follow optimizers and modules."""
        try:
            from capture.launch.torch_program import follow  # noqa: PLC0415 (torch was imported just now)

            options = self._options
            self._torch = follow(self._given, options.step_is, options.optimizer, options.first_step)
        except Exception as error:  # noqa: BLE001 (the program runs, whatever happens to capture)
            _say(f"nothing is captured: {error}")

    def mindspore_is_there(self) -> None:
        """Follow ``Model.train`` and ``Model.fit``."""
        try:
            from capture.launch.mindspore_program import follow  # noqa: PLC0415 (MindSpore was imported just now)

            self._mindspore = follow(self._given)
        except Exception as error:  # noqa: BLE001 (the program runs, whatever happens to capture)
            _say(f"nothing is captured: {error}")

    def note(self, error: BaseException) -> None:
        """The program ended with this."""
        for followed in (self._torch, self._mindspore):
            if followed is not None:
                followed.error = error

    def report(self) -> None:
        """Say what was captured, at the very end; and why, where it is nothing."""
        if os.getpid() != self._pid:
            return
        followed = [found for found in (self._torch, self._mindspore) if found is not None]
        steps = sum(found.captured for found in followed)
        if steps:
            _say(f"{steps} step{'s'[: steps != 1]} captured into {self._given['dump_path']}")
        elif not followed:
            _say("nothing was captured: the program imported neither torch nor mindspore in this process")
        else:
            _say("nothing was captured: " + "; ".join(found.why_nothing() for found in followed))


def _say(message: str) -> None:
    sys.stderr.write(f"capture run: {message}\n")
