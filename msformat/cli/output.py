"""What a person or a program reads: text for a terminal, JSON on request, one line a problem, no tracebacks."""

from __future__ import annotations

import errno
import io
import json
import math
import os
import sys
import warnings
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from msformat.credentials import hide_credentials
from msformat.errors import FormatError
from msformat.plaintext import plain

if TYPE_CHECKING:
    from concurrent.futures import Executor

    from rich.console import Console

__all__ = [
    "bytes_text",
    "check_output",
    "console",
    "drop",
    "executor_of",
    "fix_encoding",
    "plain",
    "print_json",
    "problem",
    "seconds_text",
    "spoken_warnings",
    "tell_problems",
]

_LONGEST = 2000
_STDERR = 2
_UNITS = ("B", "KiB", "MiB", "GiB", "TiB")


def fix_encoding() -> None:
    """Make output survive any locale: what the terminal cannot show is escaped instead of raising (``LC_ALL=C``).

    Streams that the caller closed (``>&-``) become the null device, or the next file opened would take their place.
    """
    while (descriptor := os.open(os.devnull, os.O_RDWR)) <= _STDERR:
        pass
    os.close(descriptor)
    sys.stdout = sys.stdout or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115 (open until the end)
    sys.stderr = sys.stderr or Path(os.devnull).open("w", encoding="utf-8")  # noqa: SIM115
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def console(*, stderr: bool = False) -> Console:
    """A rich console that never reads markup, links or emoji codes from a stranger's names."""
    from rich.console import Console  # noqa: PLC0415 (only commands that draw pay for it)

    stream = sys.stderr if stderr else sys.stdout
    # In a pipe a table must not be folded to 80 columns: the reader is a program or a pager.
    width = None if stream.isatty() else 400
    return Console(file=stream, markup=False, emoji=False, highlight=False, width=width, soft_wrap=False)


def print_json(value: Any) -> None:
    """One JSON document on standard output, strict: NaN and infinities become strings (RFC 8259 has neither)."""
    json.dump(_strict(value), sys.stdout, indent=1, ensure_ascii=True, allow_nan=False)
    sys.stdout.write("\n")


def _strict(value: Any) -> Any:
    if isinstance(value, float) and not math.isfinite(value):
        return json.dumps(value)  # "NaN", "Infinity", "-Infinity": the words that stand bare in dump.json
    if isinstance(value, dict):
        return {str(key): _strict(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_strict(item) for item in value]
    if isinstance(value, str):
        return hide_credentials(value)
    # Element types that JSON lacks (complex, bytes, longdouble): as Python spells them.
    return value if value is None or isinstance(value, (bool, int, float)) else str(value)


def problem(text: str) -> None:
    """One line on standard error for something that went wrong while the rest goes on."""
    # A stranger's name or shape may be megabytes long.
    shown = text if len(text) <= _LONGEST else f"{text[:_LONGEST]}… ({len(text) - _LONGEST} more characters)"
    try:
        sys.stderr.write(f"msformat: {plain(shown)}\n")
        sys.stderr.flush()
    except OSError:  # a full or broken standard error; the exit code still tells
        drop(sys.stderr)


def tell_problems(report: Any, *, name: str = "key") -> None:
    """Notes (where reports have any) and problems of each unit of a report, then those of the whole.

    Parameters
    ----------
    name
        Attribute of a unit that says which it is.
    """
    for unit in report.units:
        _tell(f"{getattr(unit, name)}: ", unit)
    _tell("", report)


def _tell(what: str, said: Any) -> None:
    for text in getattr(said, "notes", ()):
        problem(f"{what}note: {text}")
    for text in said.problems:
        problem(f"{what}{text}")


def drop(stream: TextIO) -> None:
    """Send what a stream still holds, and all that follows, to the null device: Python would complain at exit."""
    with suppress(OSError, ValueError):  # a stream without a descriptor
        null = os.open(os.devnull, os.O_WRONLY)
        os.dup2(null, stream.fileno())
        os.close(null)


@contextmanager
def spoken_warnings() -> Iterator[list[str]]:
    """Say what the reader warns about as :func:`problem` does, each text once; gives the texts said so far."""
    said: list[str] = []
    known: set[str] = set()

    def say(message: Warning | str, category: type[Warning], *_: object) -> None:
        text = str(message)
        if issubclass(category, UserWarning) and text not in known:
            known.add(text)
            said.append(text)
            problem(text)

    with warnings.catch_warnings():
        warnings.simplefilter("always", UserWarning)
        warnings.showwarning = say  # type: ignore[assignment]  # takes what it does not use as *_
        yield said


def executor_of(address: str | None) -> AbstractContextManager[Executor | None]:
    """The cluster that ``--dask`` names, None without one."""
    if address is None:
        return nullcontext()
    from msformat.cluster import cluster_executor  # noqa: PLC0415

    return cluster_executor(address)


def bytes_text(count: int) -> str:
    """``1536`` as ``1.5 KiB``."""
    amount = float(count)
    for unit in _UNITS[:-1]:
        if amount < 1024:
            return f"{int(amount)} {unit}" if unit == "B" else f"{amount:.1f} {unit}"
        amount /= 1024
    return f"{amount:.1f} {_UNITS[-1]}"


def seconds_text(seconds: float) -> str:
    """``0.0123`` as ``0.01 s``, ``75`` as ``1 min 15 s``."""
    if seconds < 60:
        return f"{seconds:.2f} s"
    return f"{int(seconds // 60)} min {int(seconds % 60)} s"


def check_output(output: str, *inputs: str | None) -> None:
    """Refuse a file that cannot be written, before minutes of work.

    Raises
    ------
    OSError
        It is a folder, or there is no folder for it.
    FormatError
        It would replace a file of what is read; an earlier page there may be replaced.
    """
    if os.path.isdir(output):
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), output)
    if not os.path.isdir(os.path.dirname(output) or "."):
        raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), output)
    place = os.path.realpath(output)
    if not os.path.isfile(place) or place.lower().endswith((".html", ".htm")):
        return
    for given in filter(None, inputs):
        there = _whole_input(os.path.realpath(given))
        if place == there or place.startswith(os.path.join(there, "")):
            raise FormatError(f"{output}: is there already, in {given}, which is only read: name another file")


def _whole_input(path: str) -> str:
    """The unit where one of its files was named: all of it is read."""
    from msformat.unitfiles import CONTAINERS, UNIT_FILES  # noqa: PLC0415 (only commands that write pay for it)

    directory, name = os.path.split(path)
    return directory if name in UNIT_FILES or name in CONTAINERS else path
