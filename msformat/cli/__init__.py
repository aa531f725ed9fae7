"""The command ``msformat``. Exit codes: 0 all done, 1 done in part (the list is printed), 2 nothing usable."""

from __future__ import annotations

import argparse
import errno
import os
import sys
from collections.abc import Sequence
from typing import NoReturn

from msformat.cli import convert, diff, inspect, maintain, report, table
from msformat.cli.output import drop, fix_encoding, plain, problem, spoken_warnings
from msformat.errors import MsformatError

__all__ = ["main"]


class _Parser(argparse.ArgumentParser):
    """A parser whose words reach a person whatever an argument is (a name that ``*`` found) and wherever they go."""

    def error(self, message: str) -> NoReturn:
        """Say what is wrong with an argument, and end with 2."""
        super().error(plain(message))

    def exit(self, status: int = 0, message: str | None = None) -> NoReturn:
        """End; what was printed is written before, while what fails is still told."""
        sys.stdout.flush()
        try:
            super().exit(status, message)
        finally:
            _flush_errors()


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = _Parser(
        prog="msformat",
        description="Read, convert and verify msprobe precision dumps (json + npy/pt, HDF5, Zarr).",
        epilog="Exit codes: 0 all done, 1 done in part (the list is printed), 2 nothing usable.",
    )
    parser.add_argument("--version", action="store_true", help="print the version and leave")
    commands = parser.add_subparsers(dest="command", metavar="COMMAND")
    for module in (convert, inspect, table, diff, report, maintain):
        module.add_commands(commands)
    return parser


def main(argv: Sequence[str] | None = None) -> int:
    """Run the command line; returns the exit code."""
    fix_encoding()
    try:
        with spoken_warnings() as said:
            code = _run(argv)
        sys.stdout.flush()
    except BrokenPipeError:
        # The reader of our pipe (head, less) has seen enough.
        drop(sys.stdout)
        return 0
    except KeyboardInterrupt:
        return _say_interrupted()
    except MemoryError:
        problem("out of memory")
        return 2
    except Exception as error:
        if _broke_off(error):
            return _say_interrupted()
        # The last one: a name that the locale's file names cannot spell.
        if not isinstance(error, (MsformatError, OSError, UnicodeEncodeError)):
            raise
        _say(error)
        return 2
    # What was warned about is not as it should be, though something was shown.
    return code or min(1, len(said))


def _run(argv: Sequence[str] | None) -> int:
    parser = build_parser()
    arguments = parser.parse_args(argv)
    _refuse_dashes(parser, arguments)
    if arguments.version:
        from msformat import __version__  # noqa: PLC0415

        print(f"msformat {__version__}")
        return 0
    if arguments.command is None:
        parser.print_help()
        return 2
    code: int = arguments.run(arguments)
    return code


def _refuse_dashes(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> None:
    """Refuse ``--`` where a value belongs (``--csv=--``): argparse of Python before 3.13 makes an empty list of it."""
    for name, value in vars(arguments).items():
        if isinstance(value, list) and (not value or [] in value):
            parser.error(f"argument {name}: expected a value, found '--'")


def _say_interrupted() -> int:
    problem("interrupted; what was finished stays, what was not is removed")
    return 130


def _broke_off(error: BaseException | None) -> bool:
    """Whether it came of an interrupt: in a lock of threading it leaves as ``RuntimeError: release unlocked lock``."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _say(error: Exception) -> None:
    """One line about an error, once what was printed before it is written; that very output may be the error."""
    try:
        sys.stdout.flush()
    except OSError as lost:
        drop(sys.stdout)
        problem(_in_words(OSError(lost.errno, lost.strerror, "standard output")))
        if isinstance(error, OSError) and error.errno == lost.errno and error.filename is None:
            return
    problem(_in_words(error))


def _flush_errors() -> None:
    """Python would complain at exit, with an exit code of its own."""
    try:
        sys.stderr.flush()
    except OSError:
        drop(sys.stderr)


def _in_words(error: Exception) -> str:
    """What went wrong, without ``[Errno 2]``."""
    if not isinstance(error, OSError) or not error.strerror or isinstance(error, MsformatError):
        return str(error) or type(error).__name__
    reason = f"{error.strerror[0].lower()}{error.strerror[1:]}"
    if isinstance(error.filename, (str, bytes)):
        return f"{os.fsdecode(error.filename)}: {reason}"
    return f"the current directory: {reason}" if error.errno == errno.ENOENT and _is_nowhere() else reason


def _is_nowhere() -> bool:
    """Whether the current directory was removed: no relative path leads anywhere then."""
    try:
        os.getcwd()
    except OSError:
        return True
    return False
