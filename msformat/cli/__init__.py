"""The command ``msformat``. Exit codes: 0 all done, 1 done in part (the list is printed), 2 nothing usable."""

from __future__ import annotations

import argparse
import os
import sys
from collections.abc import Sequence

from msformat.cli import convert, diff, inspect, maintain, report, table
from msformat.cli.output import drop, fix_encoding, problem, spoken_warnings
from msformat.errors import MsformatError

__all__ = ["main"]


def build_parser() -> argparse.ArgumentParser:
    """The whole command line."""
    parser = argparse.ArgumentParser(
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
    parser = build_parser()
    arguments = parser.parse_args(argv)
    if arguments.version:
        from msformat import __version__  # noqa: PLC0415

        print(f"msformat {__version__}")
        return 0
    if arguments.command is None:
        parser.print_help()
        return 2
    try:
        with spoken_warnings() as said:
            code: int = arguments.run(arguments)
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
        problem(_in_words(error))
        _finish_output()
        return 2
    # What was warned about is not as it should be, though something was shown.
    return code or min(1, len(said))


def _say_interrupted() -> int:
    problem("interrupted; what was finished stays, what was not is removed")
    return 130


def _broke_off(error: BaseException | None) -> bool:
    """Whether it came of an interrupt: in a lock of threading it leaves as ``RuntimeError: release unlocked lock``."""
    while error is not None and not isinstance(error, KeyboardInterrupt):
        error = error.__cause__ or error.__context__
    return error is not None


def _finish_output() -> None:
    """Write what was printed before an error, unless that very output was the error (a full disk)."""
    try:
        sys.stdout.flush()
    except OSError:
        drop(sys.stdout)


def _in_words(error: Exception) -> str:
    """What went wrong, without ``[Errno 2]``."""
    if isinstance(error, OSError) and error.strerror and isinstance(error.filename, (str, bytes)):
        return f"{os.fsdecode(error.filename)}: {error.strerror[0].lower()}{error.strerror[1:]}"
    return str(error) or type(error).__name__
